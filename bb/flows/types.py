"""Types as the language writes them: `Any Bool Number String List<T>` and names of classes. They are hints.

Only `await` and `parse` change a value because of its type, and only to `Number` and `Bool`.
"""

from __future__ import annotations

import re
import types
from datetime import timedelta
from typing import Any, Final, get_args, get_origin

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

    Raises:
        WiringError: it is neither.
    """
    if isinstance(value, str):
        if is_type(value):
            return value
    elif value is Any:
        return "Any"
    elif get_origin(value) in (list, tuple, set, frozenset):
        return f"List<{as_type((get_args(value) or (Any,))[0])}>"
    elif value is None or (isinstance(value, type) and value in _PLAIN):
        return _PLAIN[value]
    elif isinstance(value, type) and is_type(value.__name__):
        return value.__name__
    elif isinstance(value, types.UnionType):
        return "Any"
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
