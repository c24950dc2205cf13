"""`Spot`: one value inside a statement, with the part it plays there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, assert_never

from attrs import frozen

from bb.check.sites import Site, sites
from bb.flows.expressions import Expr, Field, Format, List_, Lit, Obj, Parse, Var
from bb.flows.tree import (
    AiSegment,
    All,
    AnyFlow,
    Assert,
    At,
    Await,
    Bare,
    Bind,
    Call,
    Chain,
    Checkpoint,
    Debounce,
    Each,
    Emit,
    Every,
    Flow,
    Group,
    Memo,
    Notify,
    Once,
    One,
    Peek,
    Repeat,
    Respond,
    Retry,
    Return,
    Run,
    Saga,
    Scope,
    Select,
    Throttle,
    Timeout,
    Try,
    Unless,
    Webhook,
    When,
    WithTools,
)
from bb.ops import Op
from bb.record import Record

if TYPE_CHECKING:
    from bb.flows.expressions import Value

Role: TypeAlias = Literal[
    "statement",  # the value is the statement
    "field",  # what a statement is given: to bind, to say, to return
    "cond",
    "argument",  # of a call: the only one, or a named one
    "operand",  # of an operator, of field access, of parse
    "leaf",  # anywhere inside a record or list that is not the named arguments of a call
]


@frozen(eq=False, repr=False)
class Spot(Record):
    """One value: where it stands, the statement around it, and the part it plays."""

    value: Value
    path: str
    role: Role
    site: Site


def spots(site: Site) -> Iterator[Spot]:
    """Every value inside a statement (not inside the statements in its bodies), outer ones first."""
    left = [Spot(value, site.path + at, role, site) for at, role, value in given(site.body)][::-1]
    while left:
        spot = left.pop()
        yield spot
        inside = [Spot(value, f"{spot.path}.{at}", role, site) for at, role, value in parts(spot.value, spot.role)]
        left += reversed(inside)


def given(body: Bare) -> tuple[tuple[str, Role, Value], ...]:
    """The values of a statement: the field as it follows the path, the role, the value."""
    match body:
        case Call() | AiSegment() | Peek():
            return (("", "statement", body),)
        case Bind(value=value) | Emit(value=value) | Return(value=value):
            return ((".value", "field", value),)
        case When(cond=cond) | Unless(cond=cond) | Assert(cond=cond):
            return ((".cond", "cond", cond),)
        case Each(items=items):
            return ((".items", "field", items),)
        case Repeat(until=until):
            return ((".until", "cond", until),) if until is not None else ()
        case Memo(call=call):
            return ((".call", "field", call),)
        case Await(when=when):
            return ((".when", "cond", when),) if when is not None else ()
        case At(when=when):
            return () if isinstance(when, datetime) else ((".when", "field", when),)
        case Scope(acquire=acquire):
            return ((".acquire", "field", acquire),) if acquire is not None else ()
        case (
            Flow()
            | Chain()
            | Select()
            | All()
            | One()
            | Group()
            | Respond()
            | Notify()
            | Every()
            | Webhook()
            | Try()
            | Retry()
            | Timeout()
            | WithTools()
            | Throttle()
            | Debounce()
            | Run()
            | Checkpoint()
            | Once()
            | Saga()
        ):
            return ()
        case unreachable:
            assert_never(unreachable)


def parts(value: Value, role: Role) -> Iterable[tuple[str, Role, Value]]:
    """The values directly inside a value that plays this role."""
    below: Role = "leaf" if role == "leaf" else "operand"
    match value:
        case Lit() | Var() | Format() | Peek():
            return ()
        case Field(value=inner) | Parse(value=inner):
            return (("value", below, inner),)
        case Expr(args=args):
            return [(f"args.{i}", below, arg) for i, arg in enumerate(args)]
        case Obj(fields=fields):
            return [(name, "leaf", inner) for name, inner in fields.items()]
        case List_(items=items):
            return [(str(i), "leaf", item) for i, item in enumerate(items)]
        case Call(args=(Obj(fields=fields),)):
            return [(f"args.{name}", "argument", inner) for name, inner in fields.items()]
        case Call(args=(only,)):
            return (("args", "argument", only),)
        case Call(args=args):
            return [(f"args.{i}", "argument", arg) for i, arg in enumerate(args)]
        case AiSegment(goal=goal):
            return (("goal", below, goal),)
        case unreachable:
            assert_never(unreachable)


def ops_of(flow: AnyFlow) -> Iterator[Op[Any, Any]]:
    """Every op that a flow built in Python brings along."""
    for site in sites(flow):
        for spot in spots(site):
            match spot.value:
                case Call(bound=op) if op is not None:
                    yield op
                case AiSegment(bound=ops):
                    yield from ops
                case _:
                    pass
