"""What must not type-check must not exist at run time either."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from attrs.exceptions import FrozenInstanceError

import bb
from bb.agents.agent import Agent
from bb.errors import InvalidId, WiringError
from bb.flows import tree
from bb.flows.tree import All, AnyFlow, Chain, DurableFlow, Flow, Group, NamedFlow, Notify, One, Respond, Select


class Silent:
    """A model that says nothing."""

    async def stream(self, request: object, /) -> Any:
        return
        yield


async def send(text: str) -> None:
    """Sends nothing."""


MODEL = Silent()
AGENT = Agent("a")
NAMED = Flow().with_id("named")
CALL: bb.Call[object] = bb.Call("op")

NAMEABLE: list[tree.Body | NamedFlow] = [
    Flow().with_agent(AGENT),
    Flow().next(Flow()),
    Select(NAMED),
    All(Flow(), NAMED),
    One(Flow(), NAMED),
    Group(Flow(), NAMED),
    Respond(),
    Notify(send),
    CALL,
    bb.AiSegment("goal"),
    bb.Bind("x", CALL),
    bb.Emit("x"),
    bb.When(True, CALL),
    bb.Unless(True, CALL),
    bb.Each("x", [1], CALL),
    bb.Repeat(1, CALL),
    bb.Return(),
    bb.Assert(True),
    bb.Try(CALL),
    bb.Retry(1, CALL),
    bb.Timeout(timedelta(seconds=1), CALL),
    bb.WithTools(["op"], CALL),
    bb.Throttle("x", CALL, max=1, per=timedelta(seconds=1)),
    bb.Debounce("x", CALL, wait=timedelta(seconds=1)),
    bb.Run("other"),
    bb.Memo("x", CALL),
    bb.Peek("x"),
    bb.Await("x"),
    bb.Checkpoint("x"),
    bb.Once("x", CALL),
    bb.Scope(CALL),
    bb.Saga(bb.Step(CALL)),
    NAMED,
]
TRIGGERS: list[AnyFlow] = [bb.Every("* * * * *", CALL), bb.At(datetime.now(UTC), CALL), bb.Webhook("x", CALL)]
FLOWS: list[AnyFlow] = [*NAMEABLE, *TRIGGERS, NAMED.durable()]

OFFERS: dict[type[AnyFlow], set[str]] = {
    Flow: {"with_agent", "with_id", "with_model", "next"},
    NamedFlow: {"durable", "with_id", "with_model", "next"},
    DurableFlow: {"next"},
    **{type(trigger): {"next"} for trigger in TRIGGERS},
}
GROUPS_AND_NODES = {"with_id", "with_model", "next"}


def nameable(flow: tree.Body | NamedFlow) -> tree.Body:
    return flow.body if isinstance(flow, NamedFlow) else flow


def kind_of(flow: AnyFlow) -> str:
    return type(flow).__name__


def test_every_kind_is_here() -> None:
    assert {type(flow) for flow in FLOWS} == {*tree.KINDS, NamedFlow, DurableFlow}


@pytest.mark.parametrize("flow", FLOWS, ids=kind_of)
@pytest.mark.parametrize("name", ["with_agent", "with_id", "with_model", "durable", "next"])
def test_a_kind_has_its_builders_and_no_others(flow: AnyFlow, name: str) -> None:
    if name in OFFERS.get(type(flow), GROUPS_AND_NODES):
        assert callable(getattr(flow, name))
    else:
        with pytest.raises(AttributeError, match=name):
            getattr(flow, name)


@pytest.mark.parametrize(
    "misuse",
    [
        lambda flow, named: flow.with_agent(AGENT).durable,
        lambda flow, named: named.next(flow).durable,
        lambda flow, named: (named >> flow).durable,
        lambda flow, named: named.with_model(MODEL).with_agent,
        lambda flow, named: flow.next(flow).with_agent,
        lambda flow, named: named.durable().next(flow).durable,
        lambda flow, named: named.durable().durable,
        lambda flow, named: named.durable().with_id,
        lambda flow, named: named.durable().with_model,
        lambda flow, named: flow.with_agent(AGENT).agents[0].ask,
    ],
)
def test_misuse_has_no_attribute(misuse: Callable[[Any, Any], object]) -> None:
    with pytest.raises(AttributeError):
        misuse(Flow(), NAMED)


@pytest.mark.parametrize("flow", FLOWS, ids=kind_of)
def test_next_gives_a_chain_of_both(flow: AnyFlow) -> None:
    last = Respond()
    assert type(flow.next(last)) is Chain
    assert flow >> last == flow.next(last)
    assert flow.next(last).steps[-1] == last


@pytest.mark.parametrize("flow", NAMEABLE, ids=kind_of)
def test_a_model_changes_neither_the_kind_nor_what_it_equals(flow: tree.Body | NamedFlow) -> None:
    fitted = flow.with_model(MODEL)
    assert type(fitted) is type(flow)
    assert fitted == flow
    assert nameable(fitted).model is MODEL
    assert nameable(flow).model is None


@pytest.mark.parametrize("flow", NAMEABLE, ids=kind_of)
def test_an_id_names_what_was_composed_so_far(flow: tree.Body | NamedFlow) -> None:
    assert flow.with_id("a") == NamedFlow(nameable(flow), "a")


def test_builders_leave_their_receiver_as_it_was() -> None:
    empty = Flow()
    assert empty.with_agent(AGENT).agents == (AGENT,)
    assert empty.agents == ()
    chain = empty.next(Respond())
    assert len(chain.next(Respond()).steps) == 3
    assert len(chain.steps) == 2
    assert NAMED.with_id("other").id == "other"
    assert NAMED.id == "named"


@pytest.mark.parametrize("flow", FLOWS, ids=kind_of)
def test_a_flow_cannot_be_changed(flow: AnyFlow) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(flow, "id", "b")  # noqa: B010 - a type checker refuses the plain assignment


@pytest.mark.parametrize("kind", [*tree.KINDS, NamedFlow, DurableFlow])
def test_the_kinds_are_a_closed_set(kind: type) -> None:
    with pytest.raises(TypeError, match="closed set"):
        type("Mine", (kind,), {})


@pytest.mark.parametrize("id", ["", "a b", "a/b", "a~b", "ä", "a" * 129, "a\n"])
def test_an_id_outside_the_rule_is_refused_at_once(id: str) -> None:
    with pytest.raises(InvalidId, match="flow id"):
        Flow().with_id(id)


@pytest.mark.parametrize("options", [{"retries": -1}, {"ttl": timedelta(0)}, {"ttl": timedelta(seconds=-1)}])
def test_durable_checks_its_arguments_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(WiringError, match=next(iter(options))):
        NAMED.durable(**options)


def test_durable_options_are_keywords_only() -> None:
    named: Any = NAMED
    with pytest.raises(TypeError, match="positional"):
        named.durable(3)


def test_what_is_no_flow_is_refused_at_once() -> None:
    no_flow: Any = AGENT
    no_agent: Any = NAMED
    for compose in (Flow().next, All, One, Group, Select):
        with pytest.raises(WiringError, match="is no flow"):
            compose(no_flow)
    with pytest.raises(WiringError, match="is no Agent"):
        Flow().with_agent(no_agent)
