"""`check`: every rule over every statement and value of a flow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeVar, cast

from bb.check import agents, names, operations, placement, runs, secrets, shapes, triggers
from bb.check.problem import Problem
from bb.check.scene import Rule, Scene
from bb.check.sites import Site, lent, sites
from bb.check.spots import Spot, given, ops_of, parts, spots
from bb.flows.base import a_flow
from bb.flows.expressions import Lit, Valued
from bb.flows.tree import (
    KINDS,
    AnyFlow,
    DurableFlow,
    NamedFlow,
    children,
    flow_id,
    segment,
)
from bb.models.base import Model
from bb.ops import Catalogue

if TYPE_CHECKING:
    from bb.flows.expressions import Value

N = TypeVar("N")

NESTING: Final = 128  # levels of statements and values

_SITES: Final[tuple[Rule[Site], ...]] = (
    *agents.SITES,
    *placement.SITES,
    *shapes.SITES,
    *names.SITES,
    *operations.SITES,
    *runs.SITES,
    *secrets.SITES,
    *triggers.SITES,
)
_SPOTS: Final[tuple[Rule[Spot], ...]] = (*names.SPOTS, *operations.SPOTS, *secrets.SPOTS)


def check(
    flow: AnyFlow,
    *,
    model: Model | None = None,
    beside: Iterable[AnyFlow] = (),
    catalogue: Catalogue | None = None,
    flows: Mapping[str, AnyFlow] | None = None,
    symbols: Iterable[str] = (),
) -> tuple[Problem, ...]:
    """The problems of a flow, errors first.

    Args:
        flow: what is to be run or registered.
        model: the one that agents without any fall back on.
        beside: flows registered with the same app, which share the names of agents.
        catalogue: what names of ops, agents and senders stand for; without it they are not looked up.
        flows: the registered flows by id, for `Run`; without it its targets are not looked up.
        symbols: names that the session has bound already.
    """
    if deep := _too_deep(a_flow(flow)):
        return (deep,)
    found = list(sites(flow, model))
    known = {**(flows or {}), flow_id(flow): flow}
    scene = Scene(
        flow,
        catalogue,
        known if flows is not None else None,
        defined=frozenset((*names.defined(found), *symbols)),
        durable=any(isinstance(site.flow, DurableFlow) for site in found),
        repeats=frozenset(shapes.repeated(found)),
        circles=runs.circles(found, known),
        used=frozenset(op.name for op in ops_of(flow)),
    )
    problems = [problem for site in found for problem in _of(site, scene)]
    for site in lent(flow, known):
        problems += _broken(placement.LENT, site, site.path, scene)
    beside = tuple(beside)
    problems += agents.agent_names(scene, beside)
    problems += triggers.webhook_ids(found, beside)
    return tuple(sorted(problems, key=lambda problem: problem.warning))


def _of(site: Site, scene: Scene) -> Iterator[Problem]:
    yield from _broken(_SITES, site, site.path, scene)
    for spot in spots(site):
        yield from _broken(_SPOTS, spot, spot.path, scene)


def _broken(rules: Iterable[Rule[N]], of: N, path: str, scene: Scene) -> Iterator[Problem]:
    for rule in rules:
        for message in rule.find(of, scene):
            yield Problem(rule.code, message, path, rule.warning)


def _too_deep(flow: AnyFlow) -> Problem | None:
    """A flow nested so deep that walking it could exhaust the stack."""
    level: list[object] = [flow]
    depth = 0
    while level and depth < NESTING:
        inner = (part for whole in level for part in _inside(whole))
        level = list({id(part): part for part in inner}.values())  # what stands in several places is as deep in each
        depth += 1
    if not level:
        return None
    return Problem(
        "too-deep",
        f"more than {NESTING} statements and values inside each other; run some as flows of their own, or bind parts of a value",
        segment("flow", 0, flow),
    )


def _inside(whole: object) -> Iterable[object]:
    """The statements and values directly inside a statement or value, and what nests in the data of a literal."""
    node = whole.body if isinstance(whole, NamedFlow | DurableFlow) else whole
    if isinstance(node, Lit):
        return (node.value,) if isinstance(node.value, _NESTS) else ()
    if isinstance(node, Valued):
        return [value for _, _, value in parts(cast("Value", node), "field")]  # the kinds of value are a closed set
    if isinstance(node, KINDS):
        return [*(child for _, child in children(node)), *(value for _, _, value in given(node))]
    items = node.values() if isinstance(node, dict) else cast("Iterable[object]", node)
    return [item for item in items if isinstance(item, _NESTS)]


_NESTS: Final = (dict, list, tuple, set, frozenset)
