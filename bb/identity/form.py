"""The canonical form of flows and values, and the signature that is made of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias, assert_never

from attrs import evolve, field, frozen

from bb import codec
from bb.cron import spelled
from bb.errors import WiringError
from bb.flows.expressions import Expr, Field, Format, List_, Lit, Obj, Parse, Var
from bb.flows.tree import (
    AiSegment,
    All,
    AnyFlow,
    Assert,
    At,
    Await,
    Bind,
    Call,
    Chain,
    Checkpoint,
    Debounce,
    DurableFlow,
    Each,
    Emit,
    Every,
    Flow,
    Group,
    Memo,
    NamedFlow,
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
    body_of,
    flow_id,
    segment,
    slots,
)
from bb.ops import Catalogue
from bb.record import Record

if TYPE_CHECKING:
    from bb.flows.expressions import Value

Tree: TypeAlias = dict[str, object]
"""The canonical form as JSON: `{"at": segment, "kind": …, "id": …, "of": own content, "split": sizes, "in": [parts]}`.

The own content of agents and of a `Notify` is a list, that of statements an object of their fields, those left out that hold
nothing. Only what has several bodies has a split: how many of its parts are in each.
"""

_MILLI: Final = timedelta(milliseconds=1)


@frozen(eq=False, repr=False)
class _Names(Record):
    """What names in a flow stand for, as far as it counts: the flows that are run, the ops that are called."""

    flows: Mapping[str, AnyFlow] | None = None
    catalogue: Catalogue | None = None
    trail: tuple[str, ...] = ()
    """The flows that the one at hand is inside of, by `Run`."""
    signatures: dict[str, str] = field(factory=dict)

    def version(self, op: str) -> str | None:
        known = self.catalogue.ops.get(op) if self.catalogue is not None else None
        return known.version if known is not None else None

    def signature(self, id: str) -> str | None:
        """The signature of a flow that is run; None when it is not known."""
        target = self.flows.get(id) if self.flows is not None else None
        if target is None:
            return None
        if id in self.trail:
            round = " -> ".join((*self.trail[self.trail.index(id) :], id))
            raise WiringError(f"a flow runs itself: {round}", flow=id, remedy="break the circle")
        if id not in self.signatures:
            form = _tree(target, "", evolve(self, trail=(*self.trail, id)))
            self.signatures[id] = signature_of(form)
        return self.signatures[id]


def tree(
    flow: AnyFlow, at: str = "", flows: Mapping[str, AnyFlow] | None = None, catalogue: Catalogue | None = None
) -> Tree:
    """The canonical form of a flow: everything that counts in its identity, and nothing else.

    Args:
        flow: the flow.
        at: its path segment, where that is not the one of a root.
        flows: the registered flows by id; with them the signature of what a `Run` runs counts.
        catalogue: where the versions of ops are found that a call only names.

    Raises:
        WiringError: a flow would run itself.
    """
    return _tree(flow, at, _Names(flows, catalogue, (own,) if (own := flow_id(flow)) else ()))


def _tree(flow: AnyFlow, at: str, names: _Names) -> Tree:
    body = body_of(flow)
    out: Tree = {"at": at or segment("flow", 0, flow), "kind": body.kind}
    if isinstance(flow, NamedFlow | DurableFlow):
        out["id"] = flow.id
    if own := _own(flow, names):
        out["of"] = own
    bodies = slots(body)
    if len(bodies) > 1:
        out["split"] = [len(flows) for _, flows in bodies]
    parts = [
        _tree(child, segment(slot, index, child), names) for slot, flows in bodies for index, child in enumerate(flows)
    ]
    if parts:
        out["in"] = parts
    return out


def _own(flow: AnyFlow, names: _Names) -> list[object] | dict[str, object]:
    match body_of(flow):
        case Flow(agents=agents):
            return [[agent.name, agent.version, list(agent.exits)] for agent in agents]
        case Notify(name=name):
            return [name]
        case Chain() | Select() | All() | One() | Group() | Respond() | Saga():
            return []
        case Every(cron=cron, tz=tz):
            return _told(cron=cron, tz=tz)
        case At(when=when):
            return {"when": spelled(when) if isinstance(when, datetime) else _value(when, names)}
        case Webhook(id=id):
            return {"id": id}
        case Call() as call:
            return _call(call, names)
        case AiSegment() as segment:
            return _segment(segment, names)
        case Peek(name=name):
            return {"name": name}
        case Bind(name=name, value=value, type=type, effect=effect):
            return _told(name=name, value=_value(value, names), type=type, effect=effect)
        case Memo(name=name, call=value, type=type, effect=effect):
            return _told(name=name, call=_value(value, names), type=type, effect=effect)
        case Emit(value=value) | Return(value=value):
            return {"value": _value(value, names)}
        case When(cond=cond) | Unless(cond=cond):
            return {"cond": _value(cond, names)}
        case Assert(cond=cond, message=message):
            return _told(cond=_value(cond, names), message=message or None)
        case Each(item=item, items=items, collect=collect, flat=flat):
            return _told(item=item, items=_value(items, names), collect=collect, flat=flat or None)
        case Repeat(max=max, until=until, collect=collect):
            return _told(max=max, until=_optional(until, names), collect=collect)
        case Try(catch=catch):
            return _told(catch=catch)
        case Retry(max=max, backoff=backoff, delay=delay, bind=bind):
            return _told(max=max, backoff=backoff, delay=delay // _MILLI, bind=bind)
        case Timeout(after=after, bind=bind):
            return _told(after=after // _MILLI, bind=bind)
        case WithTools(tools=tools, bind=bind):
            return _told(tools=list(tools), bind=bind)
        case Throttle(name=name, max=max, per=per):
            return _told(name=name, max=max, per=per // _MILLI)
        case Debounce(name=name, wait=wait):
            return _told(name=name, wait=wait // _MILLI)
        case Run(flow=target, bind=bind):
            return _told(flow=target, bind=bind, signature=names.signature(target))
        case Await(source=source, bind=bind, type=type, when=when):
            return _told(source=source, bind=bind, type=type, when=_optional(when, names))
        case Checkpoint(label=label):
            return {"label": label}
        case Once(label=label, bind=bind):
            return _told(label=label, bind=bind)
        case Scope(acquire=acquire, bind=bind):
            return _told(acquire=_optional(acquire, names), bind=bind)
        case unreachable:
            assert_never(unreachable)


def _told(**fields: object) -> dict[str, object]:
    """The fields that hold something."""
    return {name: value for name, value in fields.items() if value is not None}


def value_form(value: Value, catalogue: Catalogue | None = None) -> list[object]:
    """The canonical form of a value as JSON: its kind, then what it is made of.

    The fields of a record are in order of their names; literals are their canonical text, so that 1, 1.0 and True differ.
    """
    return _value(value, _Names(catalogue=catalogue))


def _optional(value: Value | None, names: _Names) -> list[object] | None:
    return None if value is None else _value(value, names)


def _value(value: Value, names: _Names) -> list[object]:
    match value:
        case Lit(value=literal):
            return ["lit", codec.canonical(literal).decode("utf-8", "surrogatepass")]
        case Var(name=name) | Peek(name=name):
            return [value.kind, name]
        case Field(value=inner, path=path, optional=optional):
            return ["field", _value(inner, names), list(path), optional]
        case Format(template=template):
            return ["fmt", template]
        case Parse(value=inner, to=to):
            return ["parse", _value(inner, names), to]
        case Expr(op=op, args=args):
            return ["expr", op, *(_value(arg, names) for arg in args)]
        case Obj(fields=fields):
            return ["obj", *([name, _value(inner, names)] for name, inner in sorted(fields.items()))]
        case List_(items=items):
            return ["list", *(_value(item, names) for item in items)]
        case Call() as call:
            return ["call", _call(call, names)]
        case AiSegment() as segment:
            return ["ai_segment", _segment(segment, names)]
        case unreachable:
            assert_never(unreachable)


def _call(call: Call[Any], names: _Names) -> dict[str, object]:
    version = call.bound.version if call.bound is not None else names.version(call.op)
    return _told(op=call.op, version=version, args=[_value(arg, names) for arg in call.args] or None)


def _segment(segment: AiSegment, names: _Names) -> dict[str, object]:
    carried = {op.name: op.version for op in segment.bound}
    tools = [[tool, carried[tool] if tool in carried else names.version(tool)] for tool in segment.tools]
    return _told(
        goal=_value(segment.goal, names),
        tools=tools,
        max_rounds=segment.max_rounds,
        until=segment.until,
        on_exhausted=segment.on_exhausted if segment.on_exhausted != "return" else None,
    )


def canonical(form: Tree) -> str:
    """The one text of a canonical form. A part's segment is left out: it follows from the rest."""
    return json.dumps(_bare(form), separators=(",", ":"), sort_keys=True)


def _bare(form: Tree) -> Tree:
    out = {key: value for key, value in form.items() if key not in ("at", "in")}
    if parts := direct_parts(form):
        out["in"] = [_bare(part) for part in parts]
    return out


def direct_parts(form: Tree) -> list[Tree]:
    """The canonical forms of the direct parts."""
    parts = form.get("in", [])
    assert isinstance(parts, list)
    return parts


def signature_of(form: Tree) -> str:
    """The signature of a canonical form."""
    return hashlib.sha256(canonical(form).encode()).hexdigest()


def signature(flow: AnyFlow, flows: Mapping[str, AnyFlow] | None = None, catalogue: Catalogue | None = None) -> str:
    """SHA-256 of the flow's canonical form, 64 hex digits: kinds, ids, order, and what each statement says.

    That is names, versions and exits of agents, ops with their version and arguments, literals, labels, bounds and types;
    with `flows`, the registered flows by id, the signature of what a `Run` runs too. `catalogue` tells the versions of ops
    that a flow only names, as one read from text does.

    Raises:
        WiringError: a flow would run itself.
    """
    return signature_of(tree(flow, flows=flows, catalogue=catalogue))


def parts_of(form: Tree, path: str = "") -> Iterator[tuple[str, Tree]]:
    """Every part of a canonical form with its absolute path, parents first."""
    path = path or str(form["at"])
    yield path, form
    for part in direct_parts(form):
        yield from parts_of(part, f"{path}/{part['at']}")
