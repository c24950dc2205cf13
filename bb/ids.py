"""The one rule for ids of flows, runs and sessions."""

from __future__ import annotations

import re
import uuid
from typing import Final

from bb.errors import InvalidId
from bb.redaction import redacted

_RESERVED: Final = frozenset({"at", "every", "start", "webhook"})
_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def check_id(value: object, what: str) -> str:
    """`value`, if it is 1 to 128 characters of `[A-Za-z0-9._:-]`; ids are case-sensitive.

    Raises:
        InvalidId: it is anything else; `what` names it in the message ("run id").
    """
    if isinstance(value, str) and _ID.fullmatch(value):
        return value
    shown = redacted(repr(value))
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    raise InvalidId(f"{shown} is no {what}", remedy="use 1 to 128 characters of A-Z a-z 0-9 . _ : -")


def fresh_id() -> str:
    """A new id that nobody has: 32 hex digits of randomness."""
    return uuid.uuid4().hex


def is_reserved(id: str) -> bool:
    """Whether an id is such as triggers and starts give to what they start, which nobody outside may take before them."""
    return id.partition(":")[0] in _RESERVED
