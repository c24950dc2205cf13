"""What must not type-check: each line marked `# E: ...` is an error of that kind, and no other line is."""

from datetime import datetime, timedelta

from bb.agents.agent import Agent
from bb.flows.tree import All, AnyFlow, Chain, DurableFlow, Flow, Group, NamedFlow, Notify, One, Respond, Select
from bb.flows.triggers import At, Every, Webhook
from bb.models.base import Model


def unnamed(agent: Agent, model: Model, a: Flow, b: NamedFlow) -> None:
    Flow().durable()  # E: "Flow" has no attribute "durable"
    Flow().with_agent(agent).with_model(model).durable()  # E: "Flow" has no attribute "durable"
    a.next(b).durable()  # E: "Chain" has no attribute "durable"
    (a >> b).durable()  # E: "Chain" has no attribute "durable"
    Select(b).durable()  # E: "Select" has no attribute "durable"
    All(a, b).durable()  # E: "All" has no attribute "durable"
    One(a, b).durable()  # E: "One" has no attribute "durable"
    Group(a, b).durable()  # E: "Group" has no attribute "durable"
    Respond().durable()  # E: "Respond" has no attribute "durable"


def naming_closes(agent: Agent, model: Model, a: Flow, b: NamedFlow, c: DurableFlow) -> None:
    a.with_id("a").next(b).durable()  # E: "Chain" has no attribute "durable"
    a.with_id("a").with_agent(agent)  # E: "NamedFlow" has no attribute "with_agent"
    a.with_id("a").with_model(model).with_agent(agent)  # E: "NamedFlow" has no attribute "with_agent"
    a.next(b).with_agent(agent)  # E: "Chain" has no attribute "with_agent"
    All(a, b).with_agent(agent)  # E: "All" has no attribute "with_agent"
    c.with_agent(agent)  # E: "DurableFlow" has no attribute "with_agent"


def durable_is_final(model: Model, a: NamedFlow) -> None:
    a.durable().durable()  # E: "DurableFlow" has no attribute "durable"
    a.durable().with_id("b")  # E: "DurableFlow" has no attribute "with_id"
    a.durable().with_id("b").durable()  # E: "DurableFlow" has no attribute "with_id"
    a.durable().with_model(model)  # E: "DurableFlow" has no attribute "with_model"
    a.durable().next(a).durable()  # E: "Chain" has no attribute "durable"


def any_flow(flow: AnyFlow) -> None:
    flow.with_id("a")  # E: union-attr
    flow.durable()  # E: union-attr


def arguments(agent: Agent, a: Flow, b: NamedFlow) -> None:
    a.next(agent)  # E: arg-type
    a >> agent  # E: operator
    a.next(other=b)  # E: call-arg
    a.next(a, b)  # E: call-arg
    a.with_agent(b)  # E: arg-type
    a.with_model("gpt")  # E: arg-type
    a.with_id(1)  # E: arg-type
    All(a, agent)  # E: arg-type
    Select([a, b])  # E: arg-type
    Notify(print)  # E: arg-type
    b.durable(3)  # E: call-arg
    b.durable(retries="3")  # E: arg-type
    b.durable(ttl=60)  # E: arg-type
    b.durable(days=timedelta(days=1))  # E: call-arg


def immutable(a: Flow, b: NamedFlow, c: Chain) -> None:
    a.agents = ()  # E: read-only
    b.id = "c"  # E: read-only
    c.steps = ()  # E: read-only


class Mine(Flow):  # E: final
    """The kinds are a closed set."""


def acting(agent: Agent) -> None:
    agent.ask()  # E: "Agent\[str\]" has no attribute "ask"
    agent.on_message(print)  # E: arg-type


def triggers(model: Model, a: Flow, when: datetime) -> None:
    Every("* * * * *", a).with_id("a")  # E: "Every" has no attribute "with_id"
    Every("* * * * *", a).with_model(model)  # E: "Every" has no attribute "with_model"
    Every("* * * * *", a).durable()  # E: "Every" has no attribute "durable"
    At(when, a).with_id("a")  # E: "At" has no attribute "with_id"
    At(when, a).with_model(model)  # E: "At" has no attribute "with_model"
    Webhook("a", a).with_id("b")  # E: "Webhook" has no attribute "with_id"
    Webhook("a", a).with_model(model)  # E: "Webhook" has no attribute "with_model"
    NamedFlow(Webhook("a", a), "b")  # E: arg-type
    Every(a)  # E: arg-type
    Every("* * * * *", a, tz=1)  # E: arg-type
    At(5, a)  # E: arg-type
    At([when], a)  # E: arg-type
    Webhook("a", [a])  # E: arg-type
