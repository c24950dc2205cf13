"""Types as the language writes them: `Any Bool Number String List<T>` and names of classes. They are hints.

Only `await` and `parse` change a value because of its type, and only to `Number` and `Bool`.
"""

from __future__ import annotations

import re
import types
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, NewType, Union, cast, get_args, get_origin

from bb.errors import WiringError

_TYPE: Final = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*|List<(?P<of>.+)>)")
_PLAIN: Final = {
    int: "Number",
    float: "Number",
    bool: "Bool",
    str: "String",
    object: "Any",
    None: "Any",
    list: "List<Any>",
}

EFFECTS: Final = (
    "pure",
    "read",
    "model",
    "network",
    "write_file",
    "write_db",
    "send_external",
    "delete",
    "money",
    "human_visible",
)
"""The effect tags of ops and statements."""


def as_type(value: object) -> str:
    """A type in the language's spelling: from that spelling, or from a Python type (`int`, `list[str]`, a class).

    What the language has no word for is as much as it can say: `dict[str, int]` is `dict`, a union `Any`.

    Raises:
        WiringError: it is neither.
    """
    origin, args = get_origin(value), get_args(value)
    if isinstance(value, str):
        if is_type(value):
            return value
    elif value is Any or origin in (Union, types.UnionType, Literal):
        return "Any"
    elif origin is Annotated:
        return as_type(args[0])
    elif isinstance(value, NewType):
        return as_type(cast(object, value.__supertype__))
    elif origin in (list, set, frozenset) or (origin is tuple and args[1:] == (...,)):
        return f"List<{as_type(args[0] if args else Any)}>"
    elif origin is tuple:
        return "List<Any>"
    elif origin is not None:
        return as_type(origin)
    elif value is None or (isinstance(value, type) and value in _PLAIN):
        return _PLAIN[value]
    elif isinstance(value, type) and is_type(value.__name__):
        return value.__name__
    raise WiringError(f"{value!r} is no type", remedy="give a class, or Any, Bool, Number, String or List<...> as text")


def is_type(text: str) -> bool:
    """Whether the text is a type in the language's spelling."""
    for _ in range(32):
        found = _TYPE.fullmatch(text)
        if found is None:
            return False
        if found["of"] is None:
            return True
        text = found["of"]
    return False


def as_optional_type(value: object) -> str | None:
    """`as_type`, or None for None: no type was given."""
    return None if value is None else as_type(value)


def as_span(value: timedelta) -> timedelta:
    """A length of time in whole milliseconds, which is how every spelling writes it.

    Raises:
        WiringError: it is none, or has a fraction of a millisecond.
    """
    if isinstance(value, timedelta) and not value % timedelta(milliseconds=1):
        return value
    raise WiringError(f"{value!r} is no length of time", remedy="give a timedelta of whole milliseconds")


def as_text(value: str) -> str:
    """A name or label, which is text.

    Raises:
        WiringError: it is something else.
    """
    if isinstance(value, str):
        return value
    raise WiringError(f"{value!r} is no text", remedy="give a name or label as text")


def as_optional_text(value: str | None) -> str | None:
    """`as_text`, or None for None."""
    return None if value is None else as_text(value)
