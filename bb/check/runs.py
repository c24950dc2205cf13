"""Rules of `Run`: the flow is there, and does not come round to itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from bb.check.scene import Rule, Scene
from bb.check.sites import Site
from bb.flows.tree import AnyFlow, Run, body_of, children


def _run_unknown(site: Site, scene: Scene) -> Iterator[str]:
    if isinstance(site.body, Run) and scene.flows is not None and site.body.flow not in scene.flows:
        yield f"no flow is registered as {site.body.flow!r}; register it first"


def _run_cycle(site: Site, scene: Scene) -> Iterator[str]:
    if isinstance(site.body, Run) and site.body.flow in scene.circles:
        yield f"the flow would run itself: {' -> '.join(scene.circles[site.body.flow])}; break the circle"


def circles(found: Sequence[Site], flows: Mapping[str, AnyFlow]) -> dict[str, tuple[str, ...]]:
    """Those of the flows that statements run which lead round a circle, each with the circle."""
    targets = dict.fromkeys(site.body.flow for site in found if isinstance(site.body, Run))
    return {target: round for target in targets if (round := _circle(target, flows))}


def _circle(start: str, flows: Mapping[str, AnyFlow]) -> tuple[str, ...]:
    """A way from a flow to one that is on it already, which is its first and last; empty when there is none."""
    way: list[str] = []
    done: set[str] = set()
    left: list[tuple[str, bool]] = [(start, False)]
    while left:
        name, leaving = left.pop()
        if leaving:
            done.add(way.pop())
        elif name in way:
            return (*way[way.index(name) :], name)
        elif name not in done and name in flows:
            way.append(name)
            left.append((name, True))
            left += [(target, False) for target in _targets(flows[name])]
    return ()


def _targets(flow: AnyFlow) -> list[str]:
    """The ids that the `Run`s of a flow name."""
    found: dict[str, None] = {}
    left = [flow]
    while left:
        flow = left.pop()
        body = body_of(flow)
        if isinstance(body, Run):
            found[body.flow] = None
        left += [child for _, child in reversed(children(flow))]
    return list(found)


SITES: Final = (
    Rule("run-unknown", _run_unknown),
    Rule("run-cycle", _run_cycle),
)
