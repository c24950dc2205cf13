"""Cases 1 to 7: what can be built, what cannot, and that building never changes what was there."""

from __future__ import annotations

import warnings
from datetime import timedelta

import pytest

import bb

A = bb.Agent("a").with_model(bb.FixedModel("a"))
B = bb.Agent("b").with_model(bb.FixedModel("b"))


def test_case_001_a_named_flow_becomes_durable_and_knows_its_id_and_options() -> None:
    flow = bb.Flow().with_agent(A).with_id("remember").durable()
    assert isinstance(flow, bb.DurableFlow)
    assert flow.id == "remember"
    assert flow.options == bb.DurableOptions()
    kept = flow.body.with_id("remember").durable(
        forward_compatible=True, retries=3, ttl=timedelta(hours=1), resume_on_reregister=True
    )
    assert kept.options.forward_compatible
    assert kept.options.retries == 3
    assert kept.options.ttl == timedelta(hours=1)
    assert kept.options.resume_on_reregister


def test_case_001_options_are_checked_at_once() -> None:
    named = bb.Flow().with_id("x")
    with pytest.raises(bb.WiringError, match="retries is -1"):
        named.durable(retries=-1)
    for ttl in (timedelta(0), timedelta(seconds=-1)):
        with pytest.raises(bb.WiringError, match="ttl is"):
            named.durable(ttl=ttl)
    for id in ("", " ", "a b", "a/b", "ä", "a" * 129, "a\n", "a~b"):
        with pytest.raises(bb.InvalidId):
            bb.Flow().with_id(id)
    assert bb.Flow().with_id("a" * 128).id == "a" * 128
    assert bb.Flow().with_id("Az09._:-").id == "Az09._:-"


@pytest.mark.parametrize(
    "flow",
    [
        bb.Flow().with_agent(A),
        bb.Flow() >> bb.Respond(),
        bb.Select(bb.Flow().with_id("a")),
        bb.All(bb.Flow()),
        bb.One(bb.Flow()),
        bb.Group(bb.Flow()),
        bb.Respond(),
        bb.Flow().with_id("x").durable(),
    ],
    ids=lambda flow: type(flow).__name__,
)
def test_case_002_only_a_named_flow_offers_durable(flow: bb.AnyFlow) -> None:
    assert not hasattr(flow, "durable")


def test_case_003_what_a_class_does_not_offer_does_not_exist() -> None:
    named = bb.Flow().with_id("x")
    durable = named.durable()
    assert not hasattr(named.next(bb.Respond()), "durable")
    assert not hasattr(durable, "with_id")
    assert not hasattr(durable, "with_model")
    assert not hasattr(named, "with_agent")
    assert not hasattr(bb.Flow().next(bb.Flow()), "with_agent")
    assert isinstance(durable.next(bb.Respond()), bb.Chain)


def test_case_003_nobody_adds_a_kind() -> None:
    for kind in (bb.Flow, bb.Chain, bb.NamedFlow, bb.Select):
        with pytest.raises(TypeError, match="closed set"):
            type("Mine", (kind,), {})


def test_case_003_only_flows_and_agents_go_in() -> None:
    with pytest.raises(bb.WiringError, match="is no flow"):
        bb.Flow().next("x")  # type: ignore[arg-type]
    with pytest.raises(bb.WiringError, match="is no flow"):
        bb.All(A)  # type: ignore[arg-type]
    with pytest.raises(bb.WiringError, match="is no Agent"):
        bb.Flow().with_agent(bb.Flow())  # type: ignore[arg-type]


@bb.op()
def look(n: int) -> int:
    """An op."""
    return n


@pytest.mark.parametrize(
    "part", [look, bb.Agent("a"), bb.Emit("x"), bb.Emit("x").with_id("x").durable(), bb.Step(bb.Emit("x"))]
)
def test_what_is_a_part_of_a_flow_is_no_value(part: object) -> None:
    """An op that was not called would be a literal, and as a condition always true."""
    for build in (bb.Emit, bb.Return, lambda value: bb.Bind("x", value), lambda value: bb.When(value, bb.Emit("x"))):
        with pytest.raises(bb.WiringError, match="stands where a value belongs"):
            build(part)


def test_a_reference_in_an_f_string_is_refused() -> None:
    name = bb.ref("name", str)
    with pytest.raises(bb.WiringError, match="f-string") as raised:
        bb.Emit(f"Hello {name}")
    assert "{name}" in raised.value.remedy


async def test_params_are_names_and_values() -> None:
    for params in ("n", [("n", 1)], 5):
        with pytest.raises(bb.InvalidInput, match="params is a"):
            await bb.App().run(bb.Emit("x"), params=params)  # type: ignore[arg-type]


def test_case_004_two_flows_from_one_base_are_independent() -> None:
    base = bb.Flow().with_agent(A)
    one, two = base.with_agent(B), base.with_model(bb.FixedModel("m"))
    assert base.agents == (A,)
    assert base.model is None
    assert one.agents == (A, B)
    assert two.agents == (A,)

    chain = base.next(bb.Respond())
    longer, other = chain.next(base), chain.next(bb.Flow())
    assert len(chain.steps) == 2
    assert len(longer.steps) == len(other.steps) == 3

    named = base.with_id("x")
    renamed, durable = named.with_id("y"), named.durable(retries=1)
    assert (named.id, renamed.id, durable.id) == ("x", "y", "x")
    group = bb.All(base)
    assert group.with_model(bb.FixedModel("m")).model is not None
    assert group.model is None
    with pytest.raises(AttributeError):
        base.agents = ()  # type: ignore[misc]


@pytest.mark.parametrize("kind", [bb.All, bb.One, bb.Group])
async def test_case_005_a_named_composite_runs_its_members_and_can_be_selected(
    kind: type[bb.All | bb.One | bb.Group],
) -> None:
    async def pick(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.select("team")

    team = kind(bb.Flow().with_agent(A)).with_id("team")
    router = bb.Flow().with_agent(bb.Agent().on_message(pick))
    assert (await bb.run(team, "hi")).answer == "a"
    assert (await bb.run(router >> bb.Select(team, bb.Flow().with_agent(B).with_id("b")), "hi")).answer == "a"
    assert (
        await bb.run(router >> bb.Select((bb.Flow().with_agent(A) >> bb.Flow()).with_id("team")), "x")
    ).answer == "a"


async def test_case_006_a_chain_with_one_named_step_is_selectable_by_that_name() -> None:
    async def pick(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.select("talk")

    router = bb.Flow().with_agent(bb.Agent().on_message(pick))
    talk = bb.Flow().with_agent(A).with_id("talk")
    assert (await bb.run(router >> bb.Select(talk >> bb.Respond()), "hi")).answer == "a"
    assert (await bb.run(router >> bb.Select(talk.durable() >> bb.Respond()), "hi")).answer == "a"


def test_case_006_a_chain_with_two_named_steps_has_no_id() -> None:
    talk, walk = bb.Flow().with_id("talk"), bb.Flow().with_id("walk")
    with pytest.warns(UserWarning, match="without an id"):
        assert bb.Select(talk >> walk).members == ()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(bb.Select((talk >> walk).with_id("both"), talk >> bb.Respond()).members) == 2


def test_case_007_agents_are_values() -> None:
    base = bb.Agent("a").selects("one")
    more = base.selects("two", "three")
    assert base.exits == ("one",)
    assert more.exits == ("one", "two", "three")
    assert base.with_role("judge").role == bb.Role("judge")
    assert base.role is None
    assert base.with_model(bb.FixedModel("x")).model is not None
    assert base.model is None
