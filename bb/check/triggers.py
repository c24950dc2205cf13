"""Rules of triggers: there is something to start, at what may be a time, and a webhook has its id for itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, assert_never

from bb.check.problem import Problem
from bb.check.scene import Rule, Scene
from bb.check.sites import Site, sites
from bb.cron import is_moment
from bb.flows.expressions import Expr, Field, Format, List_, Lit, Obj, Parse, Var
from bb.flows.tree import AiSegment, All, AnyFlow, At, Call, Group, One, Peek, Select, Webhook, slots, takes_rest

if TYPE_CHECKING:
    from bb.flows.expressions import Value

_NAME_IN_BRACES: Final = re.compile(r"\{\{?([A-Za-z_][A-Za-z0-9_]*)")


def _starts_nothing(site: Site, _: Scene) -> Iterator[str]:
    for _name, flows in slots(site.body):
        last = flows if isinstance(site.body, Select | All | One | Group) else flows[-1:]
        for flow in filter(takes_rest, last):
            yield f"{flow.kind} has no body, and nothing stands after it, so it starts nothing; give it what it is to run"


def _at_when(site: Site, scene: Scene) -> Iterator[str]:
    if not isinstance(site.body, At) or isinstance(site.body.when, datetime):
        return
    match site.body.when:
        case Lit(value=str() as text) | Format(template=text):
            for name in _NAME_IN_BRACES.findall(text):
                if name not in scene.defined:
                    yield f"nothing binds {name!r}, so its braces stay in the text, which is no time then; bind it"
                    return
    if _is_no_time(site.body.when):
        yield (
            "at is given what surely comes to no time; give it a datetime or a text in ISO 8601, with a zone, or a symbol or "
            "call that comes to one"
        )


def _is_no_time(value: Value) -> bool:
    """Whether a value surely comes to something else."""
    match value:
        case Lit(value=str() as text) | Format(template=text):
            return "{" not in text and not is_moment(text)
        case Lit(value=literal):
            return not is_moment(literal)
        case Expr(op="&&" | "||", args=args):
            return all(map(_is_no_time, args))
        case _:
            return _is_no_text(value)


def _is_no_text(value: Value) -> bool:
    """Whether a value that is made on the spot is surely no text."""
    match value:
        case Lit(value=literal):
            return not isinstance(literal, str)
        case Parse(to=to):
            return to not in ("string", "json")
        case Expr(op="&&" | "||", args=args):
            return all(map(_is_no_text, args))
        case Expr(op="+", args=args):  # texts can be joined, with texts only
            return any(map(_is_no_text, args))
        case Expr() | Obj() | List_() | AiSegment():
            return True
        case Var() | Field() | Format() | Peek() | Call():
            return False
        case unreachable:
            assert_never(unreachable)


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


SITES: Final = (
    Rule("at-when", _at_when),
    Rule("starts-nothing", _starts_nothing, warning=True),
)
