"""Values to text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from math import isfinite
from typing import TYPE_CHECKING, Final, assert_never

from bb.flows.expressions import Expr, Field, Format, List_, Lit, Obj, Parse, Var
from bb.flows.names import RESERVED, SYMBOL, is_op_name, is_symbol
from bb.flows.tree import AiSegment, Call, Peek
from bb.flows.types import is_type
from bb.redaction import has_secrets, redacted

if TYPE_CHECKING:
    from bb.flows.expressions import Value

DEPTH: Final = 128
"""How deep blocks, brackets and the parts of a value may nest, all together."""

_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
_HIDDEN: Final = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""What would not be seen, would turn the line around, or is no text in UTF-8: such characters are written as escapes."""
_UNSAFE: Final = re.compile(rf'{_HIDDEN.pattern}|[\x00-\x09\x0b-\x1f]|"""|"\Z')
BINDS: Final = {
    "||": 1,
    "&&": 2,
    "==": 3,
    "!=": 3,
    "<": 4,
    "<=": 4,
    ">": 4,
    ">=": 4,
    "+": 5,
    "-": 5,
    "*": 6,
    "/": 6,
    "!": 7,
    "neg": 7,
}
"""How tightly operators hold their operands."""
_PART: Final = 8


class Unspellable(Exception):
    """The language has no spelling for this; its JSON form may say it."""


class TooDeep(Exception):
    """It is nested deeper than a text may be."""


def check_depth(depth: int) -> None:
    """Raises:
    TooDeep: a reader would refuse it.
    """
    if depth > DEPTH:
        raise TooDeep


def quoted(text: str) -> str:
    """A text in quotes, on one line.

    Raises:
        Unspellable: it holds a registered secret, which its JSON form refuses by name.
    """
    if has_secrets() and redacted(text) != text:
        raise Unspellable
    shown = json.dumps(text, ensure_ascii=False)
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", shown)


def block_text(text: str) -> str:
    """A text in quotes; over several lines if it has them and they can be written as they are."""
    if "\n" in text and not _UNSAFE.search(text) and not has_secrets():
        return f'"""{text}"""'
    return quoted(text)


def label(name: str) -> str:
    """The name of a flow, an agent or a sender: bare if it is an identifier."""
    return name if is_symbol(name) else quoted(name)


def symbol(name: str) -> str:
    """A name that is bound; `$` keeps it from being a reserved word.

    Raises:
        Unspellable: it is no identifier.
    """
    if not SYMBOL.fullmatch(name):
        raise Unspellable
    return f"${name}" if name in RESERVED else name


def typed(type: str | None) -> str:
    """`: Type`, or nothing.

    Raises:
        Unspellable: it is a reserved word.
    """
    if type is None:
        return ""
    if type in RESERVED or not is_type(type):
        raise Unspellable
    return f": {type}"


def span(time: timedelta) -> str:
    """A length of time in the largest unit that says it exactly.

    Raises:
        Unspellable: it is negative or has a fraction of a millisecond.
    """
    count, rest = divmod(time, timedelta(milliseconds=1))
    if rest or count < 0:
        raise Unspellable
    if not count:
        return "0ms"
    unit, size = next((unit, size) for unit, size in _UNITS if count % size == 0)
    return f"{count // size}{unit}"


def count(number: object) -> str:
    """A whole number.

    Raises:
        Unspellable: it is none.
    """
    if type(number) is not int:
        raise Unspellable
    return literal(number, 0)


def names(texts: Iterable[str]) -> str:
    """A list of texts."""
    return f"[{', '.join(map(quoted, texts))}]"


def literal(value: object, depth: int) -> str:
    """Plain data as JSON.

    Raises:
        Unspellable: it is no JSON.
    """
    check_depth(depth)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, int) or (isinstance(value, float) and isfinite(value)):
        try:
            return json.dumps(value)
        except ValueError:  # Python's limit on digits
            raise Unspellable from None
    if type(value) is list:
        return f"[{', '.join([literal(item, depth + 1) for item in value])}]"
    if type(value) is dict and all(type(key) is str for key in value):
        pairs = [f"{quoted(key)}: {literal(item, depth + 1)}" for key, item in value.items()]
        return f"{{{', '.join(pairs)}}}"
    raise Unspellable


def value(value: Value, depth: int) -> str:
    """A value as an expression; `depth` is how deep it stands.

    Raises:
        Unspellable: the language has no spelling for it.
        TooDeep: it is nested deeper than a text may be.
    """
    check_depth(depth)
    match value:
        case Lit(value=str() as text):
            return block_text(text)
        case Lit(value=plain):
            return literal(plain, depth)
        case Var(name=name):
            return symbol(name)
        case Field():
            return _field(value, depth)
        case Format(template=template):
            return f"fmt({block_text(template)})"
        case Parse():
            return f"parse({_spell(value.value, depth + 1)}, as: {quoted(value.to)})"
        case Expr(op="!" | "neg" as op, args=(inner,)):
            return f"{'!' if op == '!' else '-'}{_operand(inner, BINDS[op], depth + 1, bare_number=op == '!')}"
        case Expr(op=op, args=args):
            left, right = args
            binds = BINDS[op]
            return f"{_operand(left, binds, depth + 1)} {op} {_operand(right, binds + 1, depth + 1)}"
        case Obj(fields=fields):
            _mixed(fields.values())
            pairs = [f"{quoted(key)}: {_spell(item, depth + 1)}" for key, item in fields.items()]
            return f"{{{', '.join(pairs)}}}"
        case List_(items=items):
            _mixed(items)
            return f"[{', '.join([_spell(item, depth + 1) for item in items])}]"
        case Call():
            return _call(value, depth)
        case Peek(name=name):
            return f"peek {symbol(name)}"
        case AiSegment():
            return _segment(value, depth)
        case unreachable:
            assert_never(unreachable)


_spell: Final[Callable[[Value, int], str]] = value


def _mixed(values: Iterable[Value]) -> None:
    """A record or list without an expression would be read as a literal."""
    if all(isinstance(value, Lit) for value in values):
        raise Unspellable


def _operand(value: Value, binds: int, depth: int, *, bare_number: bool = True) -> str:
    """A value inside an operator that binds so tightly, in parentheses if it must be."""
    text = _spell(value, depth)
    loose = isinstance(value, Expr) and BINDS[value.op] < binds
    if loose or (not bare_number and isinstance(value, Lit) and isinstance(value.value, int | float)):
        return f"({text})"
    return text


def _field(field: Field, depth: int) -> str:
    if not field.path:
        raise Unspellable
    inner = _operand(field.value, _PART, depth + 1, bare_number=False)
    if isinstance(field.value, Field):
        inner = f"({inner})"
    parts = "".join(map(_part, field.path))
    return f"{inner}{parts}{'?' if field.optional else ''}"


def _part(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{count(int(part))}]"
    return f".{part}" if SYMBOL.fullmatch(part) else f"[{quoted(part)}]"


def _call(call: Call[object], depth: int) -> str:
    if not is_op_name(call.op) or len(call.args) > 1:
        raise Unspellable
    match call.args:
        case (Obj(fields=fields),) if fields and all(map(SYMBOL.fullmatch, fields)):
            if len(fields) > 1 and all(isinstance(item, Var) and item.name == key for key, item in fields.items()):
                given = [symbol(key) for key in fields]
            else:
                given = [f"{key}: {_spell(item, depth + 2)}" for key, item in fields.items()]
        case args:
            given = [_spell(arg, depth + 1) for arg in args]
    return f"{call.op}({', '.join(given)})"


def _segment(segment: AiSegment, depth: int) -> str:
    given = [f"goal: {_spell(segment.goal, depth + 1)}"]
    if segment.tools:
        given.append(f"tools: {names(segment.tools)}")
    if segment.max_rounds != 8:
        given.append(f"max_rounds: {count(segment.max_rounds)}")
    if segment.until is not None:
        given.append(f"until: {quoted(segment.until)}")
    if segment.on_exhausted != "return":
        given.append(f"on_exhausted: {segment.on_exhausted}")
    return f"ai_segment({', '.join(given)})"
