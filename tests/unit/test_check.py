"""What is refused, or warned of, before anything runs."""

from __future__ import annotations

from datetime import timedelta

import pytest
from structlog.testing import capture_logs

import bb

A = bb.Flow().with_agent(bb.Agent("a").with_model(bb.FixedModel("a")))
ASKS = bb.Flow().with_agent(bb.Agent("asks"))


async def answer(turn: bb.Turn, chat: bb.ModelChat) -> None:
    pass


async def other(turn: bb.Turn, chat: bb.ModelChat) -> None:
    pass


async def send(text: str) -> None:
    pass


def codes(flow: bb.AnyFlow, **given: object) -> list[tuple[str, str]]:
    return [(problem.code, problem.path) for problem in bb.check(flow, **given)]  # type: ignore[arg-type]


def test_a_sound_flow_has_no_problems() -> None:
    flow = (A >> bb.Select(A.with_id("x")) >> bb.All(A, A) >> bb.Respond() >> bb.Notify(send)).with_id("f").durable()
    assert bb.check(flow) == ()


def test_an_agent_without_handler_and_model() -> None:
    flow = (A >> bb.Group(ASKS.with_id("x"))).with_id("f")
    assert codes(flow) == [("no-model", "f/body~group.1/x")]
    told = str(bb.check(flow)[0])
    assert "agent asks has neither a handler nor a model" in told and "App(agents=[...])" in told
    assert str(bb.check(flow)[0]).startswith("no-model at f/body~group.1/x: ")


def test_a_model_anywhere_around_it_is_enough() -> None:
    model = bb.FixedModel("m")
    flow = bb.All(ASKS.with_id("x"))
    assert codes(flow, model=model) == []
    assert codes(flow.with_model(model)) == []
    assert codes((A >> flow).with_id("f").with_model(model)) == []
    assert codes(bb.All(ASKS.with_model(model))) == []
    assert codes(bb.Flow().with_agent(bb.Agent("asks").on_message(answer))) == []
    assert codes(bb.All(A).with_model(model) >> ASKS) == [("no-model", "flow~chain.0/body~agents.1")]


def router(*exits: str) -> bb.Flow:
    return bb.Flow().with_agent(bb.Agent("router").selects(*exits).on_message(answer))


def test_exits_must_be_members_of_the_select_that_follows() -> None:
    select = bb.Select(A.with_id("x"), A.with_id("y"))
    assert codes(router("x", "y") >> select) == []
    assert codes(router("x", "z", "w") >> select) == [("unknown-exit", "flow~chain.0/body~agents.0")]
    assert (
        "'z', 'w' is no member of the Select that follows; it has x, y"
        in bb.check(router("z", "w") >> select)[0].message
    )
    assert codes(router("z")) == []  # it may be chained to a Select later


@pytest.mark.parametrize(
    "flow",
    [
        router("z") >> bb.Respond() >> bb.Notify(send) >> bb.Select(A.with_id("x")),
        router("z") >> bb.Select(A.with_id("x")).with_id("s"),
        router("z") >> bb.Select(A.with_id("x")).with_model(bb.FixedModel("m")),
        router("z").with_id("r").durable() >> bb.Select(A.with_id("x")),
        (A >> router("z")).with_id("r") >> bb.Select(A.with_id("x")),
        router("z") >> (bb.Respond() >> bb.Select(A.with_id("x"))).with_id("later"),
        bb.All(router("z"), A) >> bb.Select(A.with_id("x")),
        bb.One((A >> router("z")).with_id("r")) >> bb.Select(A.with_id("x")),
        bb.Select(router("z").with_id("x")) >> bb.Select(A.with_id("x")),
    ],
)
def test_exits_are_seen_through_names_models_and_groups(flow: bb.AnyFlow) -> None:
    assert [code for code, _ in codes(flow)] == ["unknown-exit"]


@pytest.mark.parametrize(
    "flow",
    [
        router("z") >> A >> bb.Select(A.with_id("x")),  # a flow between drops the selection
        (router("z") >> A).with_id("r") >> bb.Select(A.with_id("x")),
        router("z") >> bb.Select(A.with_id("z")) >> bb.Select(A.with_id("x")),
        bb.All(router("z") >> bb.Select(A.with_id("z"))) >> bb.Select(A.with_id("x")),
    ],
)
def test_a_selection_that_never_gets_there_is_no_problem(flow: bb.AnyFlow) -> None:
    assert codes(flow) == []


def test_a_name_means_one_agent() -> None:
    one, two = (bb.Flow().with_agent(bb.Agent("same").on_message(handler)) for handler in (answer, other))
    assert codes(one >> one) == []
    assert codes(one >> two) == [("agent-name", "flow~chain.0")]
    assert codes(one >> two >> two) == [("agent-name", "flow~chain.0")]  # said once
    versions = bb.Flow().with_agent(bb.Agent("same", "1"), bb.Agent("same", "2")).with_model(bb.FixedModel(""))
    assert codes(versions) == [("agent-name", "flow~agents.0")]
    assert codes(two, beside=[one]) == [("agent-name", "flow~agents.0")]
    # names that come from handlers are nobody's choice
    assert codes(bb.Flow().with_agent(bb.Agent().on_message(answer), bb.Agent().on_message(other))) == []


@pytest.mark.parametrize("kind", [bb.All, bb.One, bb.Group])
def test_a_respond_beside_others_is_warned_of(kind: type[bb.All | bb.One | bb.Group]) -> None:
    problems = bb.check(kind(A >> bb.Respond(), A))
    assert [(problem.code, problem.warning) for problem in problems] == [("respond-aside", True)]


def test_options_that_count_on_the_outermost_flow_only_are_warned_of() -> None:
    for inner in (A.with_id("x").durable(ttl=timedelta(1)), A.with_id("x").durable(resume_on_reregister=True)):
        assert bb.check(inner) == ()
        problems = bb.check((A >> inner).with_id("f").durable())
        assert [(problem.code, problem.path, problem.warning) for problem in problems] == [
            ("inner-option", "f/x", True)
        ]
        assert bb.check((A >> inner).with_id("f")) == ()
    fine = A.with_id("x").durable(retries=2, forward_compatible=True)
    assert bb.check((A >> fine).with_id("f").durable()) == ()


def test_errors_come_first() -> None:
    flow = bb.All(A >> bb.Respond()) >> ASKS
    assert [problem.warning for problem in bb.check(flow)] == [False, True]


def test_register_refuses_with_every_error_and_logs_the_warnings() -> None:
    app = bb.App()
    bad = (router("z") >> bb.Select(ASKS.with_id("x"))).with_id("bad")
    with pytest.raises(bb.WiringError) as caught:
        app.register(bad)
    assert "no-model at bad/body~select.1/x" in str(caught.value)
    assert "unknown-exit at bad/body~agents.0" in str(caught.value)
    assert caught.value.flow == "bad"
    with capture_logs() as logs:
        app.register(bb.All(A >> bb.Respond()).with_id("good"))
    assert [(log["code"], log["log_level"]) for log in logs] == [("respond-aside", "warning")]


async def test_a_refused_flow_has_run_nothing() -> None:
    ran: list[str] = []

    async def runs(turn: bb.Turn, chat: bb.ModelChat) -> None:
        ran.append("x")

    with pytest.raises(bb.WiringError):
        await bb.run(bb.Flow().with_agent(bb.Agent().on_message(runs)) >> ASKS, "hi")
    assert ran == []


async def test_an_app_refuses_two_agents_of_one_name_in_two_flows() -> None:
    one, two = (
        bb.Flow().with_agent(bb.Agent("same").on_message(handler)).with_id(id)
        for handler, id in ((answer, "one"), (other, "two"))
    )
    app = bb.App()
    app.register(one)
    with pytest.raises(bb.WiringError, match="two different agents are named 'same'"):
        app.register(two)
    app.register(two.with_id("one"))  # in the place of the first


def test_a_flow_nested_deeper_than_the_stack_allows_is_refused() -> None:
    def nested(levels: int) -> bb.AnyFlow:
        flow: bb.AnyFlow = A
        for level in range(levels - 1):
            flow = (bb.Flow() >> flow).with_id(f"n{level}")
        return flow

    assert bb.check(nested(128)) == ()
    (problem,) = bb.check(nested(129))
    assert problem.code == "too-deep"
