"""What a user may write, and the type it has."""

from datetime import datetime, timedelta
from typing import assert_never, assert_type

from attrs import frozen

import bb
from bb.agents.agent import Agent
from bb.flows.expressions import Value
from bb.flows.tree import (
    All,
    AnyFlow,
    Chain,
    DurableFlow,
    Flow,
    Group,
    NamedFlow,
    Notify,
    One,
    Respond,
    Select,
)
from bb.messages import Input, Message, ToolCall, ToolResult
from bb.models.base import Model


@frozen
class City:
    name: str


async def send(text: str) -> None:
    """Sends nothing."""


def agents() -> None:
    agent = Agent()
    assert_type(agent, Agent[str])
    assert_type(agent.with_schema(City), Agent[City])
    assert_type(agent.with_schema(City).with_role("a guide"), Agent[City])
    assert_type(agent.with_role(Message("a guide", "system")).selects("a", "b"), Agent[str])


def flows(agent: Agent, city: Agent[City], model: Model) -> None:
    assert_type(Flow(), Flow)
    assert_type(Flow().with_agent(agent).with_agent(city, agent), Flow)
    assert_type(Flow().with_model(model), Flow)
    assert_type(Flow().with_model(model).with_agent(agent).with_id("a"), NamedFlow)
    assert_type(Flow().with_id("a").with_model(model), NamedFlow)
    assert_type(Flow().with_id("a").with_id("b"), NamedFlow)
    assert_type(Flow().with_id("a").with_model(model).durable(), DurableFlow)


def groups(a: Flow, b: NamedFlow, c: DurableFlow, model: Model) -> None:
    assert_type(Select(b, c), Select)
    assert_type(Select(b).with_model(model), Select)
    assert_type(All(a, b, c).with_model(model), All)
    assert_type(One(a, b, c).with_model(model), One)
    assert_type(Group(a, b, c, model=model), Group)
    assert_type(All(a, b).with_id("all").durable(), DurableFlow)
    assert_type(Respond().with_model(model), Respond)
    assert_type(Notify(send).with_id("mail"), NamedFlow)
    assert_type([a, b, c, Respond()][0].next(a), Chain)


def chains(a: Flow, b: NamedFlow, c: DurableFlow, d: AnyFlow, model: Model) -> None:
    assert_type(a.next(b), Chain)
    assert_type(b.next(a), Chain)
    assert_type(c.next(a), Chain)
    assert_type(d.next(d), Chain)
    assert_type(a >> b >> c >> d >> Respond(), Chain)
    assert_type((a >> b).with_model(model), Chain)
    assert_type((a >> b).with_id("a"), NamedFlow)
    assert_type((a >> b).with_id("a").durable().next(c), Chain)


def triggers(a: Flow, b: NamedFlow, c: DurableFlow, d: AnyFlow, when: datetime) -> None:
    assert_type(bb.Every("0 21 * * *", a, b, c, d, tz="Europe/Berlin").next(a), Chain)
    assert_type(a >> bb.At(when, a) >> bb.Webhook("orders") >> d, Chain)
    assert_type(bb.Chain([bb.Webhook("orders", a)]).with_id("orders").durable(), DurableFlow)
    assert_type(bb.At(when).when, datetime | Value)
    assert_type(bb.At(bb.ref("when", datetime), a), bb.At)
    assert_type(bb.At(bb.ref("day", str) + "T08:00:00Z", a), bb.At)
    assert_type(bb.At(bb.Format("{day}T08:00:00Z"), a), bb.At)
    assert_type(bb.At(bb.Peek("when"), a), bb.At)
    assert_type(bb.At("2026-03-01T08:00:00Z", a), bb.At)
    assert_type(bb.Every("* * * * *").tz, str | None)


def durability(a: NamedFlow) -> None:
    durable = a.durable(forward_compatible=True, retries=3, ttl=timedelta(days=1), resume_on_reregister=True)
    assert_type(durable, DurableFlow)
    assert_type(durable.id, str)


def kinds(flow: AnyFlow) -> str:
    match flow:
        case Flow() | Chain() | Select() | All() | One() | Group() | Respond() | Notify():
            return flow.kind
        case bb.Call() | bb.AiSegment() | bb.Bind() | bb.Emit() | bb.When() | bb.Unless() | bb.Each() | bb.Repeat():
            return flow.kind
        case bb.Return() | bb.Assert() | bb.Try() | bb.Retry() | bb.Timeout() | bb.WithTools() | bb.Throttle():
            return flow.kind
        case bb.Debounce() | bb.Run() | bb.Memo() | bb.Peek() | bb.Await() | bb.Checkpoint() | bb.Once() | bb.Scope():
            return flow.kind
        case bb.Saga():
            return flow.kind
        case bb.Every() | bb.At() | bb.Webhook():
            return flow.kind
        case NamedFlow() | DurableFlow():
            return flow.id
        case rest:
            assert_never(rest)


def messages(call: ToolCall) -> None:
    assert_type(Message("hi", calls=[call], results=(ToolResult(call.id),)).calls, tuple[ToolCall, ...])
    assert_type(Input([Message("hi")]).messages, tuple[Message, ...])
    assert_type(call.extract(City), City)
