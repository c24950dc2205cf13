"""Rules of one statement by itself: bounds, labels, and bodies that are there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, assert_never

from bb.check.scene import Rule, Scene
from bb.check.sites import Site
from bb.flows.expressions import Expr, Field, Format, List_, Lit, Obj, Parse, Var
from bb.flows.tree import (
    AiSegment,
    All,
    AnyFlow,
    Await,
    Call,
    Chain,
    Checkpoint,
    Debounce,
    Each,
    Group,
    Once,
    One,
    Peek,
    Repeat,
    Retry,
    Saga,
    Scope,
    Select,
    Throttle,
    Timeout,
    slots,
    takes_rest,
)

if TYPE_CHECKING:
    from bb.flows.expressions import Value

MOST: Final = 100_000  # rounds of a loop
_NAME_IN_BRACES: Final = re.compile(r"\{\s*[A-Za-z_][A-Za-z0-9_]*\s*\}")
_NOTHING: Final = timedelta(0)


def _blank(text: object) -> bool:
    return not isinstance(text, str) or not text.strip()


def _count(value: object) -> bool:
    """Whether it is a whole number of 1 or more."""
    return type(value) is int and value >= 1


def _await_source(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Await) and _blank(site.body.source):
        yield "the source of an await is blank, so nothing could be delivered to it; name where the event comes from"


def _checkpoint_label(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Checkpoint) and _blank(site.body.label):
        yield "the label of a checkpoint is blank; say what has been reached there"


def _once_label(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Once) and _blank(site.body.label):
        yield "the label of a Once is blank; say what it does: Once(label, ...)"


def _label_braces(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Once | Checkpoint) and _NAME_IN_BRACES.search(str(site.body.label)):
        yield f"the label {site.body.label!r} is taken as it stands: braces in it stand for nothing; take them out"


def _once_dup(site: Site, scene: Scene) -> Iterator[str]:
    if site.path in scene.repeats and isinstance(site.body, Once):
        yield (
            f"another Once has the label {site.body.label!r} and the same body, so one completion serves both; give it a label "
            "of its own if it is to run as well"
        )


def repeated(found: Sequence[Site]) -> Iterator[str]:
    """The paths of those `Once`s that equal one before them in label and body."""
    seen: dict[object, list[tuple[AnyFlow, ...]]] = {}
    for site in found:
        if isinstance(site.body, Once):
            same = seen.setdefault(str(site.body.label), [])
            if site.body.body in same:
                yield site.path
            else:
                same.append(site.body.body)


def _scope_bind(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Scope) and site.body.bind is not None and site.body.acquire is None:
        yield f"the scope names {site.body.bind!r} and acquires nothing; give it acquire=..., or drop bind="


def _saga_empty(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Saga) and not site.body.steps:
        yield "a saga without steps does nothing; give it Step(..., undo=...) values"


_MAY_BE_EMPTY: Final = ("otherwise", "handler", "finally", "undo")


def _empty_body(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Select | All | One | Group) and not site.body.members:
        yield f"{site.body.kind} has no members; give it the flows it is to run"
    if isinstance(site.body, Chain | Select | All | One | Group) or takes_rest(site.body):
        return
    for name, flows in slots(site.body):
        if not flows and not name.startswith(_MAY_BE_EMPTY):
            yield f"{site.body.kind} has nothing in its {name}; give it what it is to run"


def _each_items(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Each) and _is_no_list(site.body.items):
        yield "each goes over something that is no list; give it a list, or a symbol or call that holds one"


def _is_no_list(value: Value) -> bool:
    """Whether a value surely comes to something else."""
    match value:
        case Lit(value=literal):
            return not isinstance(literal, list | tuple)
        case Format() | Obj() | AiSegment():
            return True
        case Parse(to=to):
            return to != "json"
        case Expr(op="&&" | "||", args=args):
            return all(map(_is_no_list, args))
        case Expr(op="+", args=args):  # lists can be joined, with lists only
            return any(map(_is_no_list, args))
        case Expr():
            return True
        case Var() | Field() | List_() | Peek() | Call():
            return False
        case unreachable:
            assert_never(unreachable)


def _repeat_max(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Repeat) and not (_count(site.body.max) and site.body.max <= MOST):
        yield f"max is {site.body.max!r}; give a whole number from 1 to {MOST}"


def _retry_max(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Retry) and not _count(site.body.max):
        yield f"max is {site.body.max!r}; give a whole number, 1 or more, which counts the first attempt"


def _retry_delay(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Retry) and site.body.delay < _NOTHING:
        yield f"delay is {site.body.delay}; give a timedelta of 0 or more"


def _timeout_after(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Timeout) and site.body.after <= _NOTHING:
        yield f"after is {site.body.after}; give a positive timedelta"


def _throttle_name(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Throttle) and _blank(site.body.name):
        yield "the name of a throttle is blank, and what it counts is kept under it; name what is called"


def _throttle_max(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Throttle) and not _count(site.body.max):
        yield f"max is {site.body.max!r}; give a whole number, 1 or more"


def _throttle_per(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Throttle) and site.body.per <= _NOTHING:
        yield f"per is {site.body.per}; give a positive timedelta"


def _debounce_name(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Debounce) and _blank(site.body.name):
        yield "the name of a debounce is blank, and those of one name replace each other; name what it is for"


def _debounce_wait(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Debounce) and site.body.wait <= _NOTHING:
        yield f"wait is {site.body.wait}; give a positive timedelta"


SITES: Final = (
    Rule("await-source", _await_source),
    Rule("checkpoint-label", _checkpoint_label),
    Rule("once-label", _once_label),
    Rule("scope-bind", _scope_bind),
    Rule("saga-empty", _saga_empty),
    Rule("empty-body", _empty_body),
    Rule("each-items", _each_items),
    Rule("repeat-max", _repeat_max),
    Rule("retry-max", _retry_max),
    Rule("retry-delay", _retry_delay),
    Rule("timeout-after", _timeout_after),
    Rule("throttle-name", _throttle_name),
    Rule("throttle-max", _throttle_max),
    Rule("throttle-per", _throttle_per),
    Rule("debounce-name", _debounce_name),
    Rule("debounce-wait", _debounce_wait),
    Rule("label-braces", _label_braces, warning=True),
    Rule("once-dup", _once_dup, warning=True),
)
