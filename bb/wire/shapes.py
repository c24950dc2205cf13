"""What the fields of flows look like in JSON: for each type of field the way out, the way back, and its JSON Schema.

Nothing is coerced: a wrong JSON type is refused with its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeAlias

from attrs import frozen

from bb.cron import ISO, read_moment, spelled
from bb.errors import InvalidCron, InvalidId
from bb.flows.names import SYMBOL
from bb.flows.types import is_type
from bb.ids import check_id
from bb.redaction import has_secrets, redacted

NESTING: Final = 128  # flows in flows, values in values, parts in a literal

Schema: TypeAlias = dict[str, object]


class Refused(Exception):
    """A part has no JSON form, or is none; `where` is its place, innermost first."""

    def __init__(self, why: str, remedy: str, *where: str) -> None:
        super().__init__(why)
        self.remedy = remedy
        self.where = list(where)

    @property
    def path(self) -> str:
        """The place from the outside in, such as `body[2].then[0].op`."""
        return "".join(reversed(self.where)).removeprefix(".")


@frozen
class Shape:
    """One type of field. Both ways take the value and how deep it stands, and raise `Refused`."""

    write: Callable[[Any, int], object]
    read: Callable[[Any, int], Any]
    schema: Schema


def with_key(out: dict[str, Any], key: str, through: Callable[[Any, int], object], value: object, depth: int) -> None:
    """Put a value into an object, gone through a shape."""
    try:
        out[key] = through(value, depth)
    except Refused as refused:
        refused.where.append(f".{key}")
        raise


def shown(value: object) -> str:
    """A value in a message: short, and of JSON's own types only, as the text of anything else is nobody's to run."""
    if type(value) is str:
        return repr(value) if len(value) <= 60 else f"{value[:57]!r}..."
    if value is None or type(value) in (bool, float) or (type(value) is int and abs(value) < 2**64):
        return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))
    return {dict: "an object", list: "a list", int: "a long number"}.get(type(value), f"a {type(value).__name__}")


def key(name: object) -> str:
    """A key in a path."""
    short = type(name) is str and len(name) <= 60 and SYMBOL.fullmatch(name)
    return f".{name}" if short else f"[{shown(name)}]"


def wrong(value: object, wanted: str) -> Refused:
    """The refusal of a value of another JSON type than wanted."""
    return Refused(f"{shown(value)} stands where {wanted} belongs", f"give {wanted}")


def secret() -> Refused:
    """The refusal of a text with a secret: masked it would be another flow, and as it is it may not be stored."""
    return Refused("a registered secret stands in the flow, and is not written", "let the op that needs it fetch it")


# --- plain values ---

_PAIRS: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def _text(value: Any, _: int = 0) -> str:
    if type(value) is not str:
        raise wrong(value, "a text")
    if not value.isascii() and _PAIRS.search(value):
        raise Refused("a text holds a pair of lone surrogates, which JSON would join", "write the character itself")
    return value


def _text_out(value: Any, _: int) -> str:
    if has_secrets() and redacted(_text(value)) != value:
        raise secret()
    return _text(value)


def _flag(value: Any, _: int) -> bool:
    if type(value) is not bool:
        raise wrong(value, "true or false")
    return value


def _whole(least: int | None = None, most: int | None = None) -> Shape:
    bounds = {name: bound for name, bound in (("minimum", least), ("maximum", most)) if bound is not None}

    def check(value: Any, _: int) -> int:
        if type(value) is float and value.is_integer():  # JSON has one kind of number: 5.0 is a way to write 5
            value = int(value)
        if type(value) is not int:
            raise wrong(value, "a whole number")
        if (least is not None and value < least) or (most is not None and value > most):
            raise Refused(f"{shown(value)} is out of range", f"give a whole number within {bounds}")
        return value

    return Shape(check, check, {"type": "integer", **bounds})


_MS: Final = timedelta(milliseconds=1)


def _span(least: int) -> Shape:
    number = _whole(least, timedelta.max // _MS)

    def write(value: Any, depth: int) -> object:
        if type(value) is not timedelta or value % _MS:
            raise Refused(f"{value!r} is no length of time in whole milliseconds", "round it to milliseconds")
        return number.write(value // _MS, depth)

    return Shape(write, lambda value, depth: timedelta(milliseconds=number.read(value, depth)), number.schema)


def choice(options: Sequence[str]) -> Shape:
    """One of some words."""

    def check(value: Any, _: int) -> str:
        if type(value) is not str or value not in options:
            raise Refused(f"{shown(value)} is none of the words known here", f"use one of {' '.join(options)}")
        return value

    return Shape(check, check, {"enum": list(options)})


def _whole_text(pattern: str) -> Schema:
    return {"type": "string", "pattern": rf"^(?:{pattern})$(?!\n)"}  # `$` alone would allow a last line break in Python


def _type_pattern() -> str:
    name = pattern = "[A-Za-z_][A-Za-z0-9_]*"
    for _ in range(31):
        pattern = f"(?:{name}|List<{pattern}>)"
    return pattern


def _type(value: Any, _: int) -> str:
    if type(value) is not str or not is_type(value):
        raise wrong(value, "a type: Any, Bool, Number, String, List<...> or the name of a class")
    return value


def _id(value: Any, _: int) -> str:
    if type(value) is not str:
        raise wrong(value, "an id")
    try:
        return check_id(value, "id")
    except InvalidId as error:
        raise Refused(error.message, error.remedy) from None


def _name(value: Any, _: int) -> str:
    if not _text(value):
        raise Refused("a name is empty", "give it one")
    return _text(value)


def _name_out(value: Any, depth: int) -> str:
    return _text_out(_name(value, depth), depth)


def _part(value: Any, depth: int) -> object:
    return _text(value) if type(value) is str else WHOLE.read(value, depth)


def _part_out(value: Any, depth: int) -> object:
    return _text_out(value, depth) if type(value) is str else WHOLE.write(value, depth)


def _moment(value: Any, _: int) -> object:
    try:
        return read_moment(_text(value))
    except InvalidCron as error:
        raise Refused(error.message, error.remedy) from None


TEXT: Final = Shape(_text_out, _text, {"type": "string"})
FLAG: Final = Shape(_flag, _flag, {"type": "boolean"})
WHOLE: Final = _whole()
COUNT: Final = _whole(0)
SPAN: Final = _span(timedelta.min // _MS)
MOMENT: Final = Shape(lambda value, _: spelled(value), _moment, _whole_text(ISO))
POSITIVE_SPAN: Final = _span(1)
TYPE: Final = Shape(_type, _type, _whole_text(_type_pattern()))
ID: Final = Shape(_id, _id, _whole_text("[A-Za-z0-9._:-]{1,128}"))
NAME: Final = Shape(_name_out, _name, {"type": "string", "minLength": 1})
PART: Final = Shape(_part_out, _part, {"type": ["string", "integer"]})


# --- collections ---


def listed(item: Shape) -> Shape:
    """A list of these; a tuple in the flow."""
    put, take = item.write, item.read

    def write(values: Any, depth: int) -> object:
        out: list[object] = []
        try:
            for value in values:
                out.append(put(value, depth))  # noqa: PERF401 - a comprehension takes a frame more in 3.11
        except Refused as refused:
            refused.where.append(f"[{len(out)}]")
            raise
        return out

    def read(values: Any, depth: int) -> object:
        if type(values) is not list:
            raise wrong(values, "a list")
        out: list[object] = []
        try:
            for value in values:
                out.append(take(value, depth))  # noqa: PERF401 - as above
        except Refused as refused:
            refused.where.append(f"[{len(out)}]")
            raise
        return tuple(out)

    return Shape(write, read, {"type": "array", "items": item.schema})


def mapped(item: Shape) -> Shape:
    """An object of these, with any keys."""

    def through(values: Mapping[Any, Any], depth: int, name: Callable[[Any, int], str], of: Any) -> dict[str, object]:
        out: dict[str, object] = {}
        at: Any = None
        try:
            for at, value in values.items():
                out[name(at, 0)] = of(value, depth)
        except Refused as refused:
            refused.where.append(key(at))
            raise
        return out

    def read(values: Any, depth: int) -> object:
        if type(values) is not dict:
            raise wrong(values, "an object")
        return through(values, depth, _text, item.read)

    def write(values: Any, depth: int) -> object:
        return through(values, depth, _text_out, item.write)

    return Shape(write, read, {"type": "object", "additionalProperties": item.schema})
