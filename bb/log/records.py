"""What facts and rows have in common as records: JSON arrays that begin with the version of their format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from bb.codec import loads
from bb.errors import CorruptRecord

T = TypeVar("T")

_RESTORE: Final = "restore the store from a copy"


def unpacked(record: bytes, where: str, version: int, what: str, read: Callable[[list[Any]], T]) -> T:
    """What `read` makes of the fields behind the version.

    Raises:
        CorruptRecord: it is no such record, or of a version this release does not know; `where` names it, `what` its kind.
    """
    try:
        found, *fields = cast("list[Any]", loads(record))
    except Exception as error:
        raise CorruptRecord(f"{where} cannot be read: {error}", remedy=_RESTORE) from error
    if found != version:
        raise CorruptRecord(f"{where} has format version {found}, known is {version}", remedy="upgrade bb")
    try:
        return read(fields)
    except Exception as error:
        raise CorruptRecord(f"{where} is no {what}: {error}", remedy=_RESTORE) from error
