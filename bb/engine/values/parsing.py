"""Texts read as values: by `parse`, and where an `await` declares a type."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from math import inf, isfinite
from typing import Final, NoReturn, assert_never

from bb.errors import InvalidValue
from bb.flows.expressions import ParseAs
from bb.plain import in_short, text_of

_INT: Final = re.compile(r"[+-]?[0-9]+")
_FLOAT: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_BOOLS: Final = {"true": True, "false": False}
_MOST: Final = 2**63
_DIGITS: Final = 4000  # Python reads few more


def coerce(value: object, type: str | None) -> object:
    """What came for an `await` of a declared type: a text that reads as its `Number` or `Bool` is that; all else stays."""
    if not isinstance(value, str):
        return value
    read: object = None
    if type == "Number":
        read = _number(value)
    elif type == "Bool":
        read = _BOOLS.get(value.strip())
    return value if read is None else read


def parse(value: object, to: ParseAs) -> object:
    """A text read as `to`. What is no text must be of that kind already; `string` takes anything, for its text.

    Raises:
        InvalidValue: it does not fit.
    """
    try:
        return _parsed(value, to)
    except InvalidValue:
        raise
    except (ValueError, ArithmeticError, RecursionError):
        raise InvalidValue(f"{in_short(value)} cannot be read as {to}", remedy="check it before it is parsed") from None


def _parsed(value: object, to: ParseAs) -> object:
    match to:
        case "string":
            return text_of(value)
        case "f64":
            return float(_a_number(value))
        case "i64":
            return _whole(_a_number(value))
        case "bool":
            return value if isinstance(value, bool) else _a_bool(_text(value))
        case "json":
            if value is None or isinstance(value, bool | int | float | list | dict):
                return value
            return json.loads(_text(value), parse_constant=_refuse, parse_float=_finite)
        case "form":
            return value if isinstance(value, dict) else _form(_text(value))
        case unreachable:
            assert_never(unreachable)


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)


def _text(value: object) -> str:
    return value if isinstance(value, str) else _refuse(type(value).__name__)


def _a_bool(text: str) -> bool:
    read = _BOOLS.get(text.strip())
    return _refuse(text) if read is None else read


def _number(text: str) -> int | float | None:
    """What a text spells, an int where it is whole; None for anything else, and for what is not finite."""
    text = text.strip()
    if _INT.fullmatch(text):
        return int(text) if len(text) <= _DIGITS else None
    read = float(text) if _FLOAT.fullmatch(text) else inf
    return read if isfinite(read) else None


def _a_number(value: object) -> int | float | Decimal:
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return value
    read = _number(_text(value))
    return _refuse("no number") if read is None else read


def _whole(number: float | Decimal) -> int:
    if not -_MOST <= number < _MOST or number != int(number):
        _refuse("not whole, or too large")
    return int(number)


def _finite(text: str) -> float:
    read = float(text)
    return read if isfinite(read) else _refuse(text)


def _form(text: str) -> dict[str, object]:
    """URL-encoded fields; what is given several times is a list."""
    from urllib.parse import parse_qsl

    fields: dict[str, list[str]] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        fields.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}
