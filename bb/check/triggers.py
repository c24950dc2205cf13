"""Rules of triggers: there is something to start, and a webhook has its id for itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from bb.check.problem import Problem
from bb.check.scene import Rule, Scene
from bb.check.sites import Site, sites
from bb.flows.tree import All, AnyFlow, Group, One, Select, Webhook, slots, takes_rest


def _starts_nothing(site: Site, _: Scene) -> Iterator[str]:
    for _name, flows in slots(site.body):
        last = flows if isinstance(site.body, Select | All | One | Group) else flows[-1:]
        for flow in filter(takes_rest, last):
            yield f"{flow.kind} has no body, and nothing stands after it, so it starts nothing; give it what it is to run"


def webhook_ids(found: Sequence[Site], beside: Iterable[AnyFlow]) -> Iterator[Problem]:
    """The webhooks of a flow whose id another one has, in the flow or in those registered beside it."""
    seen = {site.body.id for flow in beside for site in sites(flow) if isinstance(site.body, Webhook)}
    for site in found:
        if isinstance(site.body, Webhook):
            if site.body.id in seen:
                yield Problem(
                    "webhook-dup",
                    f"another webhook has the id {site.body.id!r}, and a call could mean either; give it one of its own",
                    site.path,
                )
            seen.add(site.body.id)


SITES: Final = (Rule("starts-nothing", _starts_nothing, warning=True),)
