"""The one rule for ids of flows, runs and sessions."""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import Final

from bb.errors import InvalidId
from bb.redaction import redacted

_RESERVED: Final = frozenset({"at", "every", "start", "webhook"})
_LONGEST: Final = 128  # characters of an id
_ID: Final = re.compile(rf"[A-Za-z0-9._:-]{{1,{_LONGEST}}}")
_TENANT: Final = re.compile(r"[A-Za-z0-9._-]{1,63}")


def check_id(value: object, what: str) -> str:
    """`value`, if it is 1 to 128 characters of `[A-Za-z0-9._:-]`; ids are case-sensitive.

    Raises:
        InvalidId: it is anything else; `what` names it in the message ("run id").
    """
    if isinstance(value, str) and _ID.fullmatch(value):
        return value
    raise InvalidId(f"{_shown(value)} is no {what}", remedy="use 1 to 128 characters of A-Z a-z 0-9 . _ : -")


def check_tenant(value: object) -> str:
    """`value`, if it is 1 to 63 characters of `[A-Za-z0-9._-]`: ids begin with it, and a colon is where it ends.

    No id of a tenant may look like one of what a trigger starts.

    Raises:
        InvalidId: it is anything else.
    """
    if isinstance(value, str) and _TENANT.fullmatch(value) and not is_reserved(value):
        return value
    raise InvalidId(
        f"{_shown(value)} is no tenant",
        remedy="use 1 to 63 characters of A-Z a-z 0-9 . _ -, such as a digest; not at, every, start or webhook",
    )


def scoped(tenant: str, id: str) -> str:
    """An id that belongs to one tenant; ids of two tenants are never the same. Without a tenant it is the id."""
    if not tenant:
        return id
    joined = f"{tenant}:{id}"
    return joined if len(joined) <= _LONGEST else f"{tenant}:{hashlib.sha256(id.encode()).hexdigest()}"


def session_of(tenant: str, id: str) -> str:
    """A session of a tenant as it is kept, which may also be how it was given. A run without one has that of its run id."""
    return id if id.startswith(f"{tenant}:") else scoped(tenant, id)


def _shown(value: object) -> str:
    shown = redacted(repr(value))
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def fresh_id() -> str:
    """A new id that nobody has: 32 hex digits of randomness."""
    return uuid.uuid4().hex


def is_reserved(id: str) -> bool:
    """Whether an id is such as triggers and starts give to what they start, which nobody outside may take before them."""
    return id.partition(":")[0] in _RESERVED
