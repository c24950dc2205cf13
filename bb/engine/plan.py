"""A flow prepared for running: each node with its segment, its name, and what surely comes after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Final, assert_never

from attrs import evolve, field, frozen

from bb.flows.base import changed
from bb.flows.options import DurableOptions
from bb.flows.tree import (
    TRIGGERS,
    All,
    AnyFlow,
    At,
    Await,
    Chain,
    Checkpoint,
    DurableFlow,
    Every,
    Flow,
    Group,
    NamedFlow,
    Notify,
    Once,
    One,
    Respond,
    Return,
    Run,
    Saga,
    Scope,
    Select,
    Timeout,
    Trigger,
    Unless,
    Webhook,
    When,
    WithTools,
    body_of,
    flow_id,
    gathered,
    picks_of,
    segment,
    slots,
)
from bb.identity import Tree, body_key, signature_of, tree
from bb.log import Body
from bb.models.base import Model
from bb.ops import Catalogue
from bb.record import Record


@frozen(eq=False, repr=False)
class Ahead(Record):
    """What is known, before a node runs, of what follows it."""

    responds: bool = False
    """A `Respond` comes right after, so what the node says now surely belongs to the stage that it closes."""
    ends: bool = False
    """Nothing comes after: what the node says last is the run's answer, if nothing was delivered before."""
    picks: frozenset[str] | None = None
    """The ids that the next `Select` offers; None when none comes next."""


@frozen(eq=False, repr=False)
class Node(Record):
    """One node of a prepared flow; `name` is the nearest id, its own or that of the flow around it."""

    flow: AnyFlow
    """As the app knows it: agents and senders that were only names are the functions they stand for."""
    segment: str
    name: str
    ahead: Ahead
    parts: tuple[Node, ...] = ()
    """What a wrapper wraps, the steps of a chain, the members of a group, or the target of a `Run`."""
    signature: str = ""
    """Of durable flows and of the root; of a `Once`, the key of its body."""
    form: Tree = field(factory=dict, repr=False)
    bodies: Mapping[str, tuple[Node, ...]] = field(factory=dict, repr=False)
    """The statements of a statement, by slot."""
    index: int = 0
    """Its position among its siblings."""
    returns: bool = False
    """Whether a `Return` inside leaves this named flow."""
    checkpoints: bool = False
    """Whether the flow has checkpoints."""


@frozen(eq=False, repr=False)
class Cause(Record):
    """Why a plan is run that nobody asks for: the trigger that starts it, and what it inherits from there."""

    trigger: Trigger
    place: str
    """The path of the trigger from the registered flow."""
    body: Body
    """What tells it from those that other triggers start."""
    name: str = ""
    """The nearest id."""
    model: Model | None = None
    """The nearest one."""
    tools: frozenset[str] | None = None
    """The ops that may run; None: all."""


@frozen(eq=False, repr=False)
class Plan(Record):
    """A flow ready to run."""

    root: Node
    durable: bool
    """Whether any part is durable, and so whether the store is touched."""
    flow: AnyFlow
    """The flow it was made from."""
    catalogue: Catalogue
    """What the names in it stand for."""
    unwinds: bool = False
    """Whether anything in it has to be unwound."""
    uses_symbols: bool = False
    """Whether it holds anything but agents and groups of them."""
    sources: frozenset[str] = frozenset()
    """What it may wait for."""
    cause: Cause | None = None
    """What starts it, if it is the body of a trigger."""
    bodies: Mapping[str, Plan] = field(factory=dict)
    """What the triggers in it start, and the triggers in that, by their place."""

    def runs(self, flow: str) -> bool:
        """Whether a `Run` inside runs that flow, now or later."""
        now = any(isinstance(node.flow, Run) and node.flow.flow == flow for node in _nodes(self.root))
        return now or any(body.runs(flow) for body in self.bodies.values())

    def absolute(self, path: str) -> str:
        """A path of a run, as one from the registered flow."""
        return _home(self.flow, self.cause) + path[len(self.root.segment) :]

    @property
    def waits(self) -> bool:
        """Whether it may park."""
        return bool(self.sources)

    @property
    def name(self) -> str:
        """The id that runs of it are filed under; the root's segment when it has none. Of a trigger's body: its place."""
        return self.cause.place if self.cause is not None else self.root.name or self.root.segment

    @property
    def responds(self) -> bool:
        """Whether it may deliver anything."""
        return any(isinstance(body_of(node.flow), Respond) for node in _nodes(self.root))

    @property
    def ttl(self) -> timedelta | None:
        """The longest ttl of the outermost durable flows; None when one of them has none."""
        ttls = [options.ttl for options in self._outermost]
        known = [ttl for ttl in ttls if ttl is not None]
        return max(known) if known and len(known) == len(ttls) else None

    @property
    def resumes_on_reregister(self) -> bool:
        """Whether the run waits for its flow to be registered again before it resumes by itself."""
        return any(options.resume_on_reregister for options in self._outermost)

    @property
    def _outermost(self) -> list[DurableOptions]:
        return list(_options(self.flow))


def _options(flow: AnyFlow) -> Iterator[DurableOptions]:
    if isinstance(flow, DurableFlow):
        yield flow.options
        return
    for part in _parts(flow):
        yield from _options(part)


def _parts(flow: AnyFlow) -> Iterator[AnyFlow]:
    """The direct parts of a flow that run when it does."""
    body = body_of(flow)
    if isinstance(body, TRIGGERS):
        return
    for _, flows in slots(body):
        yield from flows if isinstance(body, Select | All | One | Group) else gathered(flows)


@frozen(eq=False, repr=False)
class Known(Record):
    """What the names in a flow stand for: the catalogue of the app, and the flows registered with it."""

    catalogue: Catalogue = Catalogue()
    flows: Mapping[str, AnyFlow] = field(factory=dict)


NOTHING: Final = Known()


def prepare(flow: AnyFlow, known: Known = NOTHING) -> Plan:
    """Prepare a flow that passed its check."""
    plan = _plan(flow, known)
    return evolve(plan, bodies=_told_apart(plan.bodies)) if plan.bodies else plan


def _told_apart(plans: Mapping[str, Plan]) -> dict[str, Plan]:
    """What the triggers of a flow start; ids that different bodies have stand for none of them."""
    causes = {place: plan.cause for place, plan in plans.items() if plan.cause is not None}
    bodies = {(cause.body.kind, cause.body.ids, cause.body.signature) for cause in causes.values()}
    times = Counter((kind, ids) for kind, ids, _ in bodies)
    out = dict(plans)
    for place, cause in causes.items():
        if cause.body.ids and times[cause.body.kind, cause.body.ids] > 1:
            out[place] = evolve(plans[place], cause=evolve(cause, body=evolve(cause.body, ids=())))
    return out


def _plan(flow: AnyFlow, known: Known, cause: Cause | None = None) -> Plan:
    name = flow_id(flow) or (cause.name if cause is not None else "")
    root = _node(flow, segment("flow", 0, flow), name, Ahead(ends=True), known)
    nodes = list(_nodes(root))
    kinds = {type(body_of(node.flow)) for node in nodes}
    bodies: dict[str, Plan] = {}
    model, tools = (cause.model, cause.tools) if cause is not None else (None, None)
    for inner in _causes(root, _home(flow, cause), model, tools, known):
        body = inner.trigger.body
        if body:
            plan = _plan(body[0] if len(body) == 1 else Chain(body), known, inner)
            bodies.update({inner.place: plan, **plan.bodies})
    return Plan(
        root,
        # what a trigger starts is on record, so that a crash does not lose it
        durable=cause is not None or any(isinstance(node.flow, DurableFlow) for node in nodes),
        flow=flow,
        catalogue=known.catalogue,
        unwinds=bool(kinds & _UNWOUND),
        uses_symbols=not kinds <= _SPEAKING,
        sources=frozenset(wait.source for node in nodes if isinstance(wait := body_of(node.flow), Await)),
        cause=cause,
        bodies=bodies,
    )


def _home(flow: AnyFlow, cause: Cause | None) -> str:
    """The absolute path of the root of a plan: of a registered flow, or of the body of a trigger."""
    if cause is None:
        return segment("flow", 0, flow)
    return cause.place if isinstance(flow, Chain) else f"{cause.place}/{segment('body', 0, flow)}"


def _causes(node: Node, path: str, model: Model | None, tools: frozenset[str] | None, known: Known) -> Iterator[Cause]:
    """Every trigger at a node and below, with what its body inherits from where it stands."""
    body = body_of(node.flow)
    if isinstance(body, TRIGGERS):
        yield Cause(body, path, _body(body, known), node.name, model, tools)
        return
    model = body.model if body.model is not None else model
    if isinstance(body, WithTools):
        tools = frozenset(body.tools) if tools is None else tools & frozenset(body.tools)
    if isinstance(node.flow, NamedFlow | DurableFlow):
        yield from _causes(node.parts[0], path, model, tools, known)
        return
    for part in (*node.parts, *(part for parts in node.bodies.values() for part in parts)):
        yield from _causes(part, f"{path}/{part.segment}", model, tools, known)


def _body(trigger: Trigger, known: Known) -> Body:
    """What tells the body of a trigger from others; its ids are those of the flows that it names or runs."""
    ids = [step.flow if isinstance(step, Run) else flow_id(step) for step in trigger.body]
    signature = body_key(trigger.body, known.flows, known.catalogue)
    return Body(trigger.kind, spec_of(trigger), signature, tuple(filter(None, ids)))


def spec_of(trigger: Trigger) -> tuple[str, ...]:
    """What a trigger says for itself that is known before it is reached: a timetable and its zone, or the id of a webhook."""
    match trigger:
        case Every(cron=cron, tz=tz):
            return (cron,) if tz is None else (cron, tz)
        case Webhook(id=id):
            return (id,)
        case At():
            return ()
        case unreachable:
            assert_never(unreachable)


_UNWOUND: Final = {Saga, Scope, Timeout}
_SPEAKING: Final = {Flow, Chain, Select, All, One, Group, Respond, Notify}


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for part in (*node.parts, *(part for parts in node.bodies.values() for part in parts)):
        yield from _nodes(part)


def _node(flow: AnyFlow, at: str, name: str, ahead: Ahead, known: Known, index: int = 0) -> Node:
    match flow:
        case Every() | At() | Webhook():
            return Node(flow, at, name, ahead, index=index)  # its body is a plan of its own
        case NamedFlow():
            inner = _node(flow.body, at, flow.id, ahead, known)
            return Node(flow, at, flow.id, ahead, (inner,), index=index, returns=_returns(flow.body))
        case DurableFlow():
            form = tree(flow, at, known.flows, known.catalogue)
            inner = _node(flow.body, at, flow.id, ahead, known)
            marks = any(isinstance(step, Checkpoint) for step in steps_of(flow))
            return Node(
                flow,
                at,
                flow.id,
                ahead,
                (inner,),
                signature_of(form),
                form,
                index=index,
                returns=_returns(flow.body),
                checkpoints=marks,
            )
        case Chain(steps=steps):
            return Node(flow, at, name, ahead, _row("body", steps, name, ahead, known), index=index)
        case Select(members=members):
            return Node(flow, at, name, ahead, _branches(members, name, ahead, known), index=index)
        case All(members=members) | One(members=members) | Group(members=members):
            # beside others nothing may be streamed, but what a member selects goes on to what follows the group
            beside = Ahead(picks=ahead.picks)
            return Node(flow, at, name, ahead, _branches(members, name, beside, known), index=index)
        case Flow(agents=agents):
            bound = changed(flow, agents=tuple(map(known.catalogue.agent, agents)))
            return Node(bound, at, name, ahead, index=index)
        case Notify(send=None, name=sender):
            return Node(changed(flow, send=known.catalogue.senders[sender]), at, name, ahead, index=index)
        case Run(flow=target):
            found = known.flows[target]
            part = _node(found, segment("run", 0, found), flow_id(found), Ahead(), known)
            return Node(flow, at, name, ahead, (part,), index=index)
        case When() | Unless() | WithTools():
            bodies = {slot: _row(slot, flows, name, ahead, known) for slot, flows in slots(flow)}
            return Node(flow, at, name, ahead, bodies=bodies, index=index)
        case Once(body=body):
            bodies = {"body": _row("body", body, name, Ahead(), known)}
            return Node(
                flow,
                at,
                name,
                ahead,
                signature=body_key(body, known.flows, known.catalogue),
                bodies=bodies,
                index=index,
            )
        case _:
            # what is said inside may become void, or go on in another round: nothing of it is streamed
            bodies = {slot: _row(slot, flows, name, Ahead(), known) for slot, flows in slots(flow)}
            return Node(flow, at, name, ahead, bodies=bodies, index=index)


def steps_of(flow: NamedFlow | DurableFlow) -> tuple[AnyFlow, ...]:
    """The statements at the top of a named flow."""
    return flow.body.steps if isinstance(flow.body, Chain) else (flow.body,)


def _returns(flow: AnyFlow) -> bool:
    """Whether a `Return` inside leaves the named flow around."""
    if isinstance(flow, Return):
        return True
    return any(_returns(part) for part in _parts(flow) if not isinstance(part, NamedFlow | DurableFlow))


def _row(slot: str, flows: tuple[AnyFlow, ...], name: str, outer: Ahead, known: Known) -> tuple[Node, ...]:
    """The nodes of statements that follow each other."""
    flows = gathered(flows)
    aheads = [outer]  # from the last to the first, so that a long row costs no more than its length
    for step in reversed(flows[1:]):
        aheads.append(Ahead(responds=isinstance(body_of(step), Respond), picks=picks_of((step,), aheads[-1].picks)))
    return tuple(
        _node(step, segment(slot, i, step), flow_id(step) or name, aheads[-1 - i], known, i)
        for i, step in enumerate(flows)
    )


def _branches(members: tuple[AnyFlow, ...], name: str, ahead: Ahead, known: Known) -> tuple[Node, ...]:
    return tuple(
        _node(member, segment("branch", i, member), flow_id(member) or name, ahead, known, i)
        for i, member in enumerate(members)
    )
