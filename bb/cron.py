"""When a cron expression comes due: the five fields of Debian's cron, and its rules where daylight saving begins and ends.

`minute hour day-of-month month day-of-week`. When both day fields are given, either one is enough, unless one of them begins
with `*`: then both have to match.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Final

from bb.errors import InvalidCron

if TYPE_CHECKING:
    from cronsim import CronSim

_ADVICE: Final = 'give "minute hour day-of-month month day-of-week", such as "30 2 * * *" or "*/15 9-17 * * MON-FRI"'
_LOCAL: Final = "/etc/localtime"
ISO: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?(?:Z|[+-][0-9]{2}:[0-9]{2})"
"""How a time is written: ISO 8601 with a zone."""


def check_cron(cron: object, tz: object) -> None:
    """Refuse what is no cron expression, or never comes due, or is no time zone.

    Raises:
        InvalidCron: it is so.
    """
    if not isinstance(cron, str):
        raise InvalidCron(f"{cron!r} is no cron expression", remedy=_ADVICE)
    if tz is not None and not isinstance(tz, str):
        raise InvalidCron(f"{tz!r} is no time zone", remedy='give the name of one, such as "Europe/Berlin"')
    next_time(cron, tz, datetime(2026, 1, 1, tzinfo=UTC))


def next_time(cron: str, tz: str | None, after: datetime) -> datetime:
    """The first moment after `after` (aware) at which a cron expression comes due, in UTC; `tz` None is the local zone.

    Raises:
        InvalidCron: it is no cron expression, or never comes due, or the zone is not known here.
    """
    for moment in _moments(cron, after.astimezone(_zone(tz))):
        found = moment.astimezone(UTC)
        # where an hour comes twice, the wall clock alone would lead back to what has been already
        if found > after:
            return found
    raise InvalidCron(f"{cron!r} never comes due", remedy="no year has such a day; name one that comes")


def _moments(cron: str, after: datetime) -> CronSim:
    from cronsim import CronSim, CronSimError  # needed by programs with a timetable only

    if len(cron.split()) != 5:
        raise InvalidCron(f"{cron!r} has not five fields", remedy=_ADVICE)
    try:
        return CronSim(cron, after)
    except (CronSimError, AssertionError, ValueError) as error:
        raise InvalidCron(f"{cron!r} is no cron expression: {error or 'it cannot be read'}", remedy=_ADVICE) from error


def _zone(tz: str | None) -> tzinfo:
    if tz is not None:
        return _named(tz)
    name = os.environ.get("TZ", "").removeprefix(":")
    if name and not name.startswith("/"):
        return _named(name)
    from zoneinfo import ZoneInfo

    try:
        with open(name or _LOCAL, "rb") as file:  # noqa: PTH123 - pathlib would be loaded for this alone
            return ZoneInfo.from_file(file)
    except (OSError, ValueError):
        if not name and os.name == "posix":
            return UTC  # as the C library has it
        raise InvalidCron("the local time zone is not known", remedy='give one: tz="Europe/Berlin"') from None


def _named(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidCron(
            f"{name!r} is no time zone that is known here", remedy='give the name of one, such as "Europe/Berlin"'
        ) from error


def as_moment(value: object) -> datetime:
    """An aware time in UTC, in whole milliseconds, and never earlier than it was.

    Raises:
        InvalidCron: it is no time, or has no zone, or is beyond the years that a datetime knows.
    """
    remedy = "give a datetime with a zone, such as datetime(..., tzinfo=UTC)"
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidCron(f"{value!r:.60} is no aware time", remedy=remedy)
    try:
        utc = value.astimezone(UTC)
        return utc + timedelta(microseconds=-utc.microsecond % 1000)
    except OverflowError:
        raise InvalidCron(f"{value!r} is no time in UTC: it is beyond the years 1 to 9999", remedy=remedy) from None


def spelled(moment: datetime) -> str:
    """A time as text and JSON write it: ISO 8601, in UTC."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def read_moment(text: str) -> datetime:
    """The time that a text in ISO 8601 with a zone names.

    Raises:
        InvalidCron: it names none.
    """
    try:
        if not re.fullmatch(ISO, text):
            raise ValueError(text)
        return as_moment(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        raise InvalidCron(
            f"{text!r:.60} is no time", remedy='write ISO 8601 with a zone, such as "2026-03-01T08:00:00Z"'
        ) from None


def to_moment(value: object) -> datetime:
    """A time, or the one that a text names.

    Raises:
        InvalidCron: it is none, or has no zone.
    """
    return read_moment(value) if isinstance(value, str) else as_moment(value)


def is_moment(value: object) -> bool:
    """Whether it is a time with a zone, or a text that names one."""
    try:
        to_moment(value)
    except InvalidCron:
        return False
    return True
