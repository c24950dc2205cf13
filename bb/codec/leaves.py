"""The values without parts that JSON has no word for: one row for each, with the way out and the way back."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from attrs import frozen

from bb.record import Record


class Unsupported(Exception):
    """The value is of a type that is kept, but this one cannot be; the text says why."""


@frozen(eq=False, repr=False)
class Leaf(Record):
    """How values of one class are written; `write` gives plain data, `read` takes it back.

    `text` says that what is written is the user's own words, in which secrets may stand.
    """

    tag: str
    cls: type
    write: Callable[[Any], object]
    read: Callable[[Any], object]
    text: bool = False


def _zone(zone: tzinfo | None) -> object:
    if zone is None:
        return None
    if type(zone) is timezone:
        offset = zone.utcoffset(None)
        name = zone.tzname(None)
        plain = _span(offset)
        return plain if name == timezone(offset).tzname(None) else [*plain, name]
    if type(zone) is ZoneInfo and zone.key is not None:
        return zone.key
    raise Unsupported(f"has a time zone of type {type(zone).__module__}.{type(zone).__qualname__}")


def _zone_back(plain: Any) -> tzinfo | None:
    if plain is None:
        return None
    if isinstance(plain, str):
        return ZoneInfo(plain)
    days, seconds, micros, *name = plain
    return timezone(timedelta(days, seconds, micros), *name)


def _moment(value: datetime | time) -> list[object]:
    return [value.replace(tzinfo=None).isoformat(), _zone(value.tzinfo), value.fold]


def _datetime(plain: Any) -> datetime:
    text, zone, fold = plain
    return datetime.fromisoformat(text).replace(tzinfo=_zone_back(zone), fold=fold)


def _time(plain: Any) -> time:
    text, zone, fold = plain
    return time.fromisoformat(text).replace(tzinfo=_zone_back(zone), fold=fold)


def _span(value: timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def bits(value: float) -> str:
    """The bits of a float that JSON has no number for, as 16 hex digits."""
    return struct.pack(">d", value).hex()


def _float(plain: Any) -> float:
    value: float = struct.unpack(">d", bytes.fromhex(plain))[0]
    return value


LEAVES: Final = (
    Leaf("int", int, hex, lambda plain: int(plain, 16)),  # hex: decimal text of a big int is refused by Python
    Leaf("float", float, bits, _float),
    Leaf(
        "str",  # a pair of lone surrogates, which JSON would join into one character
        str,
        lambda value: value.encode("utf-8", "surrogatepass").hex(),
        lambda plain: bytes.fromhex(plain).decode("utf-8", "surrogatepass"),
    ),
    Leaf(
        "bytes",
        bytes,
        lambda value: base64.b64encode(value).decode(),
        lambda plain: base64.b64decode(plain, validate=True),
    ),
    Leaf("datetime", datetime, _moment, _datetime),
    Leaf("date", date, date.isoformat, date.fromisoformat),
    Leaf("time", time, _moment, _time),
    Leaf("timedelta", timedelta, _span, lambda plain: timedelta(*plain)),
    Leaf("timezone", timezone, _zone, _zone_back),
    Leaf("zone", ZoneInfo, _zone, _zone_back),
    Leaf("decimal", Decimal, str, Decimal),
    Leaf("uuid", UUID, str, UUID),
    Leaf("path.posix", PosixPath, str, PosixPath, text=True),
    Leaf("path.windows", WindowsPath, str, WindowsPath, text=True),
    Leaf("path.pure.posix", PurePosixPath, str, PurePosixPath, text=True),
    Leaf("path.pure.windows", PureWindowsPath, str, PureWindowsPath, text=True),
)
BY_CLASS: Final[Mapping[type, Leaf]] = {leaf.cls: leaf for leaf in LEAVES}
BY_TAG: Final[Mapping[str, Leaf]] = {leaf.tag: leaf for leaf in LEAVES}
