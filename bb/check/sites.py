"""`Site`: one statement of a tree, with what is known of the places around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

from attrs import field, frozen

from bb.agents.agent import Agent
from bb.flows.tree import (
    TRIGGERS,
    All,
    AnyFlow,
    Bare,
    Chain,
    DurableFlow,
    Flow,
    Group,
    NamedFlow,
    Once,
    One,
    Return,
    Run,
    Select,
    body_of,
    children,
    picks_of,
    segment,
    slots,
    takes_rest,
)
from bb.models.base import Model
from bb.record import Record

Around: TypeAlias = Literal[
    "top",  # it is the body of the flow that is registered, or stands directly in it
    "durable",  # inside a durable flow
    "beside",  # inside a member of All, One or Group
    "member",  # the same, with no named flow in between that a Return would leave
    "racing",  # inside a member of One
    "cleanup",  # inside finally or undo, with no named flow in between
    "once",  # inside a Once
]


@frozen(eq=False, repr=False)
class Site(Record):
    """One statement: where it stands, and what stands around it.

    `model` is the one an agent there falls back on; `picks` is what the `Select` offers that a selection made at its end
    will meet, None when nobody can tell. `cut` says that a `Return` stands right before it, `lent` that it belongs to a flow
    that a `Run` brings in.
    """

    flow: AnyFlow
    path: str
    around: frozenset[Around]
    model: Model | None = None
    picks: frozenset[str] | None = None
    cut: bool = False
    lent: bool = False
    body: Bare = field(init=False)
    """The statement without its name."""

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "body", body_of(self.flow))

    def inside(self) -> Iterator[Site]:
        """The statements directly inside."""
        body = self.body
        for name, flows in slots(body):
            around = _within(self, name)
            in_order = not isinstance(body, Select | All | One | Group)
            picks = (
                _picks(flows, self.picks if isinstance(body, Chain) else None)
                if in_order
                else [self.picks] * len(flows)
            )
            for index, flow in enumerate(flows):
                if in_order and index and takes_rest(flows[index - 1]):
                    around = _LATER
                yield Site(
                    flow,
                    f"{self.path}/{segment(name, index, flow)}",
                    _at(flow, around),
                    _model(flow, self.model),
                    picks[index],
                    in_order and index > 0 and isinstance(flows[index - 1], Return),
                    self.lent,
                )


_LATER: Final[frozenset[Around]] = frozenset()
"""What is around the body of a trigger: it runs as a job of its own."""


def _within(site: Site, slot: str) -> frozenset[Around]:
    """What is around whatever stands in a slot of the statement."""
    body, around = site.body, set(site.around)
    if isinstance(body, TRIGGERS):
        return _LATER
    if "/" in site.path or not isinstance(body, Chain):  # the root alone has a path of one segment
        around.discard("top")
    if isinstance(site.flow, DurableFlow):
        around.add("durable")
    if isinstance(body, All | One | Group):
        around |= {"beside", "member"}
    if isinstance(body, One):
        around.add("racing")
    if isinstance(body, Once):
        around.add("once")
    if slot.startswith(("finally", "undo")):
        around.add("cleanup")
    return frozenset(around)


def _at(flow: AnyFlow, around: frozenset[Around]) -> frozenset[Around]:
    """What is around the body of a flow that stands there: a name shuts out what ends with it."""
    return around - {"top", "member", "cleanup"} if isinstance(flow, NamedFlow | DurableFlow) else around


def _model(flow: AnyFlow, outer: Model | None) -> Model | None:
    body = body_of(flow)
    near = None if isinstance(body, TRIGGERS) else body.model
    return near if near is not None else outer


def _picks(flows: tuple[AnyFlow, ...], ahead: frozenset[str] | None) -> list[frozenset[str] | None]:
    """What a selection made at the end of each of the flows, one after another, will meet."""
    found = []
    for flow in reversed(flows):
        found.append(ahead)
        ahead = picks_of((flow,), ahead)
    return found[::-1]


def sites(flow: AnyFlow, model: Model | None = None) -> Iterator[Site]:
    """Every statement of a registered flow, parents first. It needs no stack, however deep the flow is."""
    yield from _all(Site(flow, segment("flow", 0, flow), frozenset({"top"}), _model(flow, model)))


def lent(flow: AnyFlow, flows: Mapping[str, AnyFlow]) -> Iterator[Site]:
    """Every statement that the `Run`s of a flow bring in, as it stands there; flows that lead to themselves but once."""
    seen: set[tuple[str, frozenset[Around]]] = set()
    left = [site for site in sites(flow) if isinstance(site.body, Run)]
    while left:
        site = left.pop()
        run = site.body
        assert isinstance(run, Run)
        target = flows.get(run.flow)
        around = frozenset(site.around - {"top", "member", "cleanup"})
        if target is None or (run.flow, around) in seen:
            continue
        seen.add((run.flow, around))
        path = f"{site.path}/{segment('flow', 0, target)}"
        for inner in _all(Site(target, path, _at(target, around), lent=True)):
            yield inner
            if isinstance(inner.body, Run):
                left.append(inner)


def _all(root: Site) -> Iterator[Site]:
    left = [root]
    while left:
        site = left.pop()
        yield site
        left += reversed(list(site.inside()))


def agents_of(flow: AnyFlow) -> Iterator[Agent[Any]]:
    """Every agent of a tree, in order."""
    left = [flow]
    while left:
        flow = left.pop()
        body = body_of(flow)
        if isinstance(body, Flow):
            yield from body.agents
        left += [child for _, child in reversed(children(flow))]
