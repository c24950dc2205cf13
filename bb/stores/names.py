"""The one rule for names of streams and leases, and for records, in every store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bb.errors import StoreError
from bb.redaction import redacted

LONGEST_NAME: Final = 400
LARGEST_RECORD: Final = 512 * 1024 * 1024  # bytes; SQLite ends at 1e9


def check_name(name: object) -> str:
    """`name`, if it is 1 to 400 printable characters.

    Raises:
        StoreError: it is anything else.
    """
    if isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable():
        return name
    shown = redacted(repr(name))  # before it is cut, as half a secret would not be found any more
    raise StoreError(
        f"{shown if len(shown) <= 60 else shown[:57] + '...'} is no name of a stream or lease",
        remedy=f"use 1 to {LONGEST_NAME} printable characters",
    )


def check_records(records: Sequence[bytes]) -> tuple[bytes, ...]:
    """A snapshot of `records`, if all are bytes of at most 512 MiB.

    Raises:
        StoreError: one is not.
    """
    for record in records:
        if type(record) is not bytes:
            raise StoreError(f"a record is bytes, not {type(record).__name__}", remedy="encode it first")
        if len(record) > LARGEST_RECORD:
            raise StoreError(f"a record of {len(record)} bytes is over the limit of {LARGEST_RECORD}")
    return tuple(records)
