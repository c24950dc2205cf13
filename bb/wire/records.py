"""What flows and values look like in JSON: objects of the fields of their classes, by their `kind`.

The shape of a field follows from its type (`_PLAIN`, `_VALUED`, `_BODIES`), so a new kind has a JSON form as soon as it is in
`KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, cast

from attrs import NOTHING, Attribute, fields, frozen

from bb.agents.agent import Agent
from bb.errors import BBError, InvalidCron
from bb.flows.base import DurableFlow, NamedFlow, Param, body_of, flow_id
from bb.flows.calls import ON_EXHAUSTED, AiSegment, Call
from bb.flows.control import BACKOFFS, Bind
from bb.flows.durability import Await, Memo, Peek, Step
from bb.flows.expressions import EXPRESSIONS, OPERATORS, PARSE_AS
from bb.flows.groups import All, Group, Notify, One, Select
from bb.flows.options import DurableOptions
from bb.flows.tree import KINDS, TRIGGERS, AnyFlow, Webhook, build
from bb.flows.triggers import as_time
from bb.wire.literals import LITERAL
from bb.wire.shapes import (
    COUNT,
    FLAG,
    ID,
    MOMENT,
    NAME,
    NESTING,
    PART,
    POSITIVE_SPAN,
    SPAN,
    TEXT,
    TYPE,
    WHOLE,
    Refused,
    Schema,
    Shape,
    choice,
    key,
    listed,
    mapped,
    shown,
    with_key,
    wrong,
)


@frozen
class Part:
    """One field of a class and the key it is written under; it is left out where it has its default."""

    name: str
    key: str
    shape: Shape
    required: bool
    default: object


@frozen
class Record:
    """A class whose values are JSON objects of its fields; `kind` is None for one that is known by where it stands."""

    cls: type[Any]
    kind: str | None
    parts: tuple[Part, ...]
    keys: frozenset[str]
    defaults: Mapping[str, object]

    @classmethod
    def of(cls, of: type[Any], shapes: Mapping[str, Shape]) -> Record:
        """The record of an attrs class; `shapes` are those of its fields, by their types."""
        parts = tuple(_part(of, it, shapes) for it in fields(of) if it.init and _counts(it))
        kind = getattr(of, "kind", None)
        keys = frozenset((*(part.key for part in parts), *_const(kind)))
        return cls(of, kind, parts, keys, {part.name: part.default for part in parts if not part.required})

    def put(self, value: object, out: dict[str, object], depth: int) -> dict[str, object]:
        """Write the fields of a value into an object."""
        for part in self.parts:
            item = getattr(value, part.name)
            if part.required or item != part.default:
                try:  # here and in `take` not by `with_key`, to spare the stack
                    out[part.key] = part.shape.write(item, depth)
                except Refused as refused:
                    refused.where.append(f".{part.key}")
                    raise
        return out

    def take(self, data: Mapping[str, object], depth: int, beside: frozenset[str] = frozenset()) -> Any:
        """The value of an object, which may have the keys `beside` too."""
        if not data.keys() <= self.keys:
            for name in data:
                if name not in self.keys and name not in beside:
                    known = ", ".join(sorted(self.keys | beside))
                    raise Refused(f"unknown key {shown(name)}", f"known are {known}", key(name))
        values = dict(self.defaults)
        for part in self.parts:
            if part.key in data:
                try:
                    values[part.name] = part.shape.read(data[part.key], depth)
                except Refused as refused:
                    refused.where.append(f".{part.key}")
                    raise
            elif part.required:
                raise Refused(f"{self.kind or 'an object'} lacks the key {part.key!r}", "add it")
        try:
            if self.cls in _SIDE_BY_SIDE:  # only their own constructors look for twins
                return self.cls(*cast("tuple[AnyFlow, ...]", values["members"]))
            return build(self.cls, values)
        except BBError as error:
            raise Refused(error.message, error.remedy) from error

    @property
    def properties(self) -> Schema:
        """The JSON Schemas of the keys."""
        return {**_const(self.kind), **{part.key: part.shape.schema for part in self.parts}}

    @property
    def schema(self) -> Schema:
        """The JSON Schema of such an object."""
        return {
            "type": "object",
            "properties": self.properties,
            "required": [*_const(self.kind), *(part.key for part in self.parts if part.required)],
            "additionalProperties": False,
        }


def _counts(it: Attribute[Any]) -> bool:
    """Models and functions do not: they may be missing, no flow differs by them, and who reads it has its own."""
    return bool(it.eq) or it.default is NOTHING


def _const(kind: str | None) -> Schema:
    return {"kind": {"const": kind}} if kind else {}


def _part(of: type[Any], it: Attribute[Any], shapes: Mapping[str, Shape]) -> Part:
    type_ = str(it.type)  # as it is written in the class
    shape = _SPECIAL.get((of, it.name)) or shapes[type_.removesuffix(" | None")]
    required = (of, it.name) in _REQUIRED or (it.default is NOTHING and not type_.endswith(" | None"))
    default = None if it.default is NOTHING else it.default
    if it.converter is not None and not required:
        default = cast("Callable[[object], object]", it.converter)(default)
    return Part(it.name, it.name.rstrip("_"), shape, required, default)


def _object(of: type[Any], shapes: Mapping[str, Shape]) -> Shape:
    """An object that is known by where it stands."""
    record = Record.of(of, shapes)

    def read(data: Any, depth: int) -> object:
        if type(data) is not dict:
            raise Refused(f"{shown(data)} stands where an object belongs", "give an object")
        return record.take(data, depth)

    return Shape(lambda value, depth: record.put(value, {}, depth), read, record.schema)


# --- flows and values ---


def _deeper(depth: int) -> int:
    if depth >= NESTING:
        raise Refused(f"it is nested deeper than {NESTING}", "make some of its parts flows of their own, and run those")
    return depth + 1


def _known(data: Any, what: str, known: Mapping[str, Record], others: Mapping[str, Record]) -> Record:
    """The record of an object that is to be a flow or a value, by its kind."""
    if type(data) is not dict:
        raise Refused(f"{shown(data)} stands where a {what} belongs", "give an object with the key 'kind'")
    if "kind" not in data:
        raise Refused(f"a {what} lacks the key 'kind'", f"known kinds are {', '.join(known)}")
    kind = data["kind"]
    record = known.get(kind) if type(kind) is str else None
    if record is None:
        misplaced = type(kind) is str and kind in others
        remedy = _MISPLACED[what] if misplaced else f"known kinds are {', '.join(known)}"
        raise Refused(f"{shown(kind)} is no kind of {what}", remedy, ".kind")
    return record


_MISPLACED: Final = {
    "flow": "it is a kind of value: emit it, or bind it",
    "value": "it is a kind of flow: let it stand before, and give the symbol it binds",
}


def _write_flow(flow: Any, depth: int) -> dict[str, object]:
    inner, body = _deeper(depth), body_of(flow)
    record = _FLOW_OF.get(type(body))
    if record is None:
        raise Refused(f"a {type(body).__name__} stands where a flow belongs", "give a flow, and name it only once")
    out: dict[str, object] = {"kind": record.kind}
    if isinstance(flow, NamedFlow | DurableFlow):
        with_key(out, "id", ID.write, flow.id, 0)
        if flow.params:
            with_key(out, "params", _PARAMS.write, flow.params, 0)
        if isinstance(flow, DurableFlow):
            with_key(out, "durable", _OPTIONS.write, flow.options, 0)
    return record.put(body, out, inner)


def _read_flow(data: Any, depth: int) -> AnyFlow:
    inner = _deeper(depth)
    record = _known(data, "flow", FLOWS, VALUES)
    if record.cls in TRIGGERS:  # they have no name, and what is called id there is a field
        return cast("AnyFlow", record.take(data, inner))
    body = record.take(data, inner, _WRAPPING)
    given = data.keys() & _WRAPPING
    if not given:
        return cast("AnyFlow", body)
    if "id" not in given:
        raise Refused(f"the flow has {' and '.join(sorted(given))}, but no id", "give it an id")
    read: dict[str, Any] = {"params": ()}
    for name in sorted(given):
        with_key(read, name, WRAPPING[name].read, data[name], 0)
    if "durable" in given:
        return DurableFlow(body, read["id"], read["durable"], read["params"])
    return NamedFlow(body, read["id"], read["params"])


def _write_value(value: Any, depth: int) -> dict[str, object]:
    inner, record = _deeper(depth), _VALUE_OF[type(value)]
    return record.put(value, {"kind": record.kind}, inner)


def _read_value(data: Any, depth: int) -> object:
    inner = _deeper(depth)
    return _known(data, "value", VALUES, FLOWS).take(data, inner)


def _read_call(data: Any, depth: int) -> object:
    record = _known(data, "value", VALUES, FLOWS)
    if record.cls not in _CALLS:
        raise Refused(f"{shown(record.kind)} is no call", "a memo keeps what a call or an ai_segment comes to", ".kind")
    return record.take(data, _deeper(depth))


def _read_selectable(data: Any, depth: int) -> AnyFlow:
    flow = _read_flow(data, depth)
    if not flow_id(flow):
        raise Refused("a member of a select has no id, so nothing could pick it", "give it an id")
    return flow


def _write_agent_name(name: Any, depth: int) -> object:
    if name is None:
        raise Refused("an agent has no name, and so no JSON form", "name it: bb.Agent(name)")
    return ID.write(name, depth)


def _anew(shape: Shape) -> Shape:
    """The same for a statement, in which the nesting of values begins."""
    return Shape(lambda value, _: shape.write(value, 0), lambda data, _: shape.read(data, 0), shape.schema)


def _time(value: Shape) -> Shape:
    """A time, which is a text, or a value that comes to one, which is an object."""

    def write(when: Any, depth: int) -> object:
        return (MOMENT if isinstance(when, datetime) else value).write(when, depth)

    def read(data: Any, depth: int) -> object:
        if type(data) is str:
            return MOMENT.read(data, depth)
        if type(data) is not dict:
            raise wrong(data, "a time or an object")
        try:
            return as_time(value.read(data, depth))
        except InvalidCron as error:
            raise Refused(error.message, error.remedy) from None

    return Shape(write, read, {"if": {"type": "string"}, "then": MOMENT.schema, "else": value.schema})


_CALLS: Final = (Call, AiSegment)
_SIDE_BY_SIDE: Final = (Select, All, One, Group)

_FLOW: Final = Shape(_write_flow, _read_flow, {"$ref": "#/$defs/flow"})
_SELECTABLE: Final = Shape(
    _write_flow, _read_selectable, {"allOf": [{"$ref": "#/$defs/flow"}, {"$ref": "#/$defs/answering"}]}
)
_VALUE: Final = Shape(_write_value, _read_value, {"$ref": "#/$defs/value"})
_CALL: Final = Shape(
    _write_value,
    _read_call,
    {"$ref": "#/$defs/value", "properties": {"kind": {"enum": [one.kind for one in _CALLS]}}},
)

_REQUIRED: Final = {(Agent, "name"), (Notify, "name")}
_SPECIAL: Final[Mapping[tuple[type[Any], str], Shape]] = {
    (Agent, "name"): Shape(_write_agent_name, ID.read, ID.schema),
    (Agent, "exits"): listed(ID),
    (Notify, "name"): NAME,
    (Webhook, "id"): ID,
    (Select, "members"): listed(_SELECTABLE),
    (DurableOptions, "retries"): COUNT,
    (DurableOptions, "ttl"): POSITIVE_SPAN,
    **dict.fromkeys(((cls, "type") for cls in (Param, Bind, Memo, Await)), TYPE),
}
_PLAIN: Final[Mapping[str, Shape]] = {
    "str": TEXT,
    "bool": FLAG,
    "int": WHOLE,
    "timedelta": SPAN,
    "Backoff": choice(BACKOFFS),
    "OnExhausted": choice(ON_EXHAUSTED),
    "Operator": choice(OPERATORS),
    "ParseAs": choice(PARSE_AS),
    "tuple[str, ...]": listed(TEXT),
    "tuple[str | int, ...]": listed(PART),
    "object": LITERAL,
}
_VALUED: Final[Mapping[str, Shape]] = {
    "Value": _VALUE,
    "Call[Any] | AiSegment": _CALL,
    "tuple[Value, ...]": listed(_VALUE),
    "Mapping[str, Value]": mapped(_VALUE),
}
_BODIES: Final[Mapping[str, Shape]] = {
    "tuple[AnyFlow, ...]": listed(_FLOW),
    "tuple[Step, ...]": listed(_object(Step, {"tuple[AnyFlow, ...]": listed(_FLOW)})),
    "tuple[Agent[Any], ...]": listed(_object(Agent, _PLAIN)),
}
_IN_FLOWS: Final = {
    **_PLAIN,
    **_BODIES,
    **{name: _anew(shape) for name, shape in _VALUED.items()},
    "datetime | Value": _time(_anew(_VALUE)),
}
_IN_VALUES: Final = {**_PLAIN, **_VALUED}

_PARAMS: Final = listed(_object(Param, _PLAIN))
_OPTIONS: Final = _object(DurableOptions, _PLAIN)
WRAPPING: Final[Mapping[str, Shape]] = {"id": ID, "params": _PARAMS, "durable": _OPTIONS}
"""The keys that make a flow a named or durable one."""
_WRAPPING: Final = frozenset(WRAPPING)

FLOWS: Final[Mapping[str, Record]] = {cls.kind: Record.of(cls, _IN_FLOWS) for cls in KINDS}
VALUES: Final[Mapping[str, Record]] = {cls.kind: Record.of(cls, _IN_VALUES) for cls in (*EXPRESSIONS, *_CALLS, Peek)}
_FLOW_OF: Final[Mapping[type[Any], Record]] = {record.cls: record for record in FLOWS.values()}
_VALUE_OF: Final[Mapping[type[Any], Record]] = {record.cls: record for record in VALUES.values()}


def write(flow: AnyFlow) -> dict[str, object]:
    """A flow as JSON data. Raises `Refused`."""
    return _write_flow(flow, 0)


def read(data: object) -> AnyFlow:
    """The flow of JSON data. Raises `Refused`."""
    return _read_flow(data, 0)
