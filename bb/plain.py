"""Any value as plain data, as text for people and models, and as a copy of one's own."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from copy import deepcopy
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Final

import attrs

from bb.errors import InvalidValue
from bb.redaction import redacted

_EXACT: Final = 10**16  # from here on, Python writes floats with an exponent
_SHORT: Final = 60  # characters
PRINTABLE: Final = 13_000  # bits; Python refuses to write longer ints in decimal


def parts_of(value: object) -> object:
    """What an enum member, an object with declared fields or a set consists of, one level deep; all else is itself."""
    if isinstance(value, Enum):
        return value.value
    if attrs.has(kind := type(value)):
        return {part.name: getattr(value, part.name, None) for part in attrs.fields(kind)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {part.name: getattr(value, part.name, None) for part in dataclasses.fields(value)}
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    return value


def plain(value: object) -> object:
    """The value as None, bools, numbers, texts, lists and dicts with text keys. It shares no mutable part with the value.

    This is for reading: whole floats become ints, and what has no such form becomes its text.

    Raises:
        InvalidValue: it is nested too deep, or contains itself.
    """
    try:
        return _plain(value)
    except RecursionError:
        raise InvalidValue("a value is nested too deep to be shown", remedy="show a part of it") from None


def text_of(value: object) -> str:
    """How a value reads: a text is itself, None is empty, `true`, `1` for 1.0, and JSON for what has parts.

    Raises:
        InvalidValue: it is nested too deep, or contains itself.
    """
    if value is None:
        return ""
    try:
        return _written(_plain(value))
    except RecursionError:
        raise InvalidValue("a value is nested too deep to be a text", remedy="show a part of it") from None


def _written(data: object) -> str:
    return data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= PRINTABLE else hex(value)
    if isinstance(value, float):
        return int(value) if isfinite(value) and value.is_integer() and abs(value) < _EXACT else float(value)
    if isinstance(value, Mapping):
        return {_written(_plain(key)): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    parts = parts_of(value)
    return _other(value) if parts is value else _plain(parts)


def _other(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "replace")
    try:
        return str(value)
    except Exception:  # it is anybody's class
        return f"<{type(value).__qualname__}>"


def in_short(value: object) -> str:
    """What a value is, for a message: at most a line, with secrets cut out."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, int) and value.bit_length() > PRINTABLE:
        return f"an int of {value.bit_length():,} bits"
    if isinstance(value, str | int | float | Decimal):
        shown = redacted(str(value))  # before it is cut: half a secret would not be found
        shown = shown if len(shown) <= _SHORT else f"{shown[:_SHORT]}…"
        return repr(shown) if isinstance(value, str) else shown
    name = type(value).__name__
    size = f" of {len(value):,}" if isinstance(value, list | tuple | dict | set | frozenset) else ""
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}{size}"


_FIXED: Final = (str, bytes, int, float, bool, type(None))


def own(value: object) -> object:
    """A copy that shares nothing mutable with the value; what cannot change is its own copy."""
    return value if type(value) in _FIXED else deepcopy(value)
