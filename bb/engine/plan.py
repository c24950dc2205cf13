"""A flow prepared for running: each node with its segment, its name, and what surely comes after it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import assert_never

from attrs import field, frozen

from bb.flows.options import DurableOptions
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
    body_of,
    children,
    flow_id,
    is_durable,
    picks_of,
    segment,
)
from bb.identity import Tree, signature_of, tree


@frozen
class Ahead:
    """What is known, before a node runs, of what follows it."""

    responds: bool = False
    """A `Respond` comes right after, so what the node says now surely belongs to the stage that it closes."""
    ends: bool = False
    """Nothing comes after: what the node says last is the run's answer, if nothing was delivered before."""
    picks: frozenset[str] | None = None
    """The ids that the next `Select` offers; None when none comes next."""


@frozen
class Node:
    """One node of a prepared flow; `name` is the nearest id, its own or that of the flow around it."""

    flow: AnyFlow
    segment: str
    name: str
    ahead: Ahead
    parts: tuple[Node, ...] = ()
    signature: str = ""
    """Of durable flows and of the root."""
    form: Tree = field(factory=dict, repr=False)


@frozen
class Plan:
    """A flow ready to run."""

    root: Node
    durable: bool
    """Whether any part is durable, and so whether the store is touched."""

    @property
    def flow(self) -> AnyFlow:
        """The flow it was made from."""
        return self.root.flow

    @property
    def name(self) -> str:
        """The id that runs of it are filed under; the root's segment when it has none."""
        return self.root.name or self.root.segment

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
    if isinstance(flow, NamedFlow):
        yield from _options(flow.body)
        return
    for _, child in children(flow):
        yield from _options(child)


def prepare(flow: AnyFlow) -> Plan:
    """Prepare a flow."""
    return Plan(_node(flow, segment("flow", 0, flow), flow_id(flow), Ahead(ends=True)), is_durable(flow))


def _node(flow: AnyFlow, at: str, name: str, ahead: Ahead) -> Node:
    match flow:
        case NamedFlow():
            inner = _node(flow.body, at, flow.id, ahead)
            return Node(flow, at, flow.id, ahead, (inner,))
        case DurableFlow():
            form = tree(flow, at)
            inner = _node(flow.body, at, flow.id, ahead)
            return Node(flow, at, flow.id, ahead, (inner,), signature_of(form), form)
        case Chain(steps=steps):
            parts = tuple(
                _node(step, segment("body", i, step), flow_id(step) or name, _after(steps, i, ahead))
                for i, step in enumerate(steps)
            )
            return Node(flow, at, name, ahead, parts)
        case Select(members=members):
            return Node(flow, at, name, ahead, _branches(members, name, ahead))
        case All(members=members) | One(members=members) | Group(members=members):
            # beside others nothing may be streamed, but what a member selects goes on to what follows the group
            return Node(flow, at, name, ahead, _branches(members, name, Ahead(picks=ahead.picks)))
        case Flow() | Respond() | Notify():
            return Node(flow, at, name, ahead)
        case unreachable:
            assert_never(unreachable)


def _branches(members: tuple[AnyFlow, ...], name: str, ahead: Ahead) -> tuple[Node, ...]:
    return tuple(
        _node(member, segment("branch", i, member), flow_id(member) or name, ahead) for i, member in enumerate(members)
    )


def _after(steps: tuple[AnyFlow, ...], index: int, outer: Ahead) -> Ahead:
    """What follows step `index` of a chain that `outer` follows."""
    rest = steps[index + 1 :]
    if not rest:
        return outer
    return Ahead(responds=isinstance(body_of(rest[0]), Respond), picks=picks_of(rest, outer.picks))
