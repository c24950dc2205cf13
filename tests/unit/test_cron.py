"""Cron expressions: what is one, and when it comes due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bb
from bb.cron import as_moment, check_cron, next_time, read_moment, spelled
from bb.errors import InvalidCron
from bb.flows.expressions import Lit
from tests.language_flows import CRONS, MOMENTS, ZONES

BERLIN = "Europe/Berlin"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def ticks(cron: str, after: datetime, count: int, tz: str = "UTC") -> list[datetime]:
    """The next times a cron expression comes due, each asked for after the one before."""
    found = []
    for _ in range(count):
        after = next_time(cron, tz, after)
        found.append(after)
    return found


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "a b c d e",
        "5-1 * * * *",
        "1,,2 * * * *",
        "-1 * * * *",
        "@daily",
        "5#1/2 * * * *",
        "* * * * 5#1/2",
    ],
)
def test_case_78_what_is_no_cron_expression_is_refused_when_the_flow_is_built(cron: str) -> None:
    with pytest.raises(InvalidCron, match="minute hour") as caught:
        bb.Every(cron)
    assert isinstance(caught.value, bb.WiringError)


@pytest.mark.parametrize("cron", ["0 0 30 2 *", "0 0 31 4,6 *", "0 0 31 2 */2"])
def test_case_79_what_never_comes_due_is_refused(cron: str) -> None:
    with pytest.raises(InvalidCron):
        bb.Every(cron)


@pytest.mark.parametrize("cron", [5, None, b"* * * * *"])
def test_a_cron_expression_is_a_text(cron: object) -> None:
    with pytest.raises(InvalidCron, match="no cron expression"):
        check_cron(cron, None)


@pytest.mark.parametrize("tz", ["Mars/Olympus", "", "../etc/passwd", "/etc/localtime", "\0", 5])
def test_what_is_no_time_zone_is_refused(tz: str) -> None:
    with pytest.raises(InvalidCron, match="zone"):
        bb.Every("* * * * *", tz=tz)


def test_case_78_the_next_time_is_strictly_after() -> None:
    assert next_time("30 2 * * *", "UTC", at("2026-01-01T02:29:59.999")) == at("2026-01-01T02:30")
    assert next_time("30 2 * * *", "UTC", at("2026-01-01T02:30")) == at("2026-01-02T02:30")
    assert next_time("30 2 * * *", "UTC", at("2026-01-01T02:30:00.001")) == at("2026-01-02T02:30")


def test_case_78_steps_ranges_lists_and_names() -> None:
    assert [t.minute for t in ticks("*/20 * * * *", at("2026-01-01T00:00"), 3)] == [20, 40, 0]
    assert [t.minute for t in ticks("5-10/2,50 * * * *", at("2026-01-01T00:00"), 4)] == [5, 7, 9, 50]
    assert ticks("0 9 * * MON", at("2026-01-01T00:00"), 1) == [at("2026-01-05T09:00")]
    assert ticks("0 9 * * 7", at("2026-01-01T00:00"), 1) == [at("2026-01-04T09:00")]
    assert ticks("0 9 1 jan *", at("2026-01-02T00:00"), 1) == [at("2027-01-01T09:00")]
    assert ticks("0 0 L * *", at("2026-02-01T00:00"), 1) == [at("2026-02-28T00:00")]


def test_case_79_a_leap_day_is_found_years_ahead() -> None:
    assert ticks("0 0 29 2 *", at("2026-01-01T00:00"), 2) == [at("2028-02-29T00:00"), at("2032-02-29T00:00")]


def test_case_79_of_two_day_fields_one_is_enough_unless_one_begins_with_a_star() -> None:
    assert ticks("0 0 13 * FRI", at("2026-02-01T00:00"), 3) == [
        at("2026-02-06T00:00"),
        at("2026-02-13T00:00"),
        at("2026-02-20T00:00"),
    ]
    assert ticks("0 0 */2 * FRI", at("2026-02-01T00:00"), 2) == [at("2026-02-13T00:00"), at("2026-02-27T00:00")]


def test_the_local_zone_counts_without_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Australia/Lord_Howe")
    assert next_time("0 12 * * *", None, at("2026-07-01T00:00")) == at("2026-07-01T01:30")
    monkeypatch.setenv("TZ", ":Europe/Berlin")
    assert next_time("0 12 * * *", None, at("2026-07-01T00:00")) == at("2026-07-01T10:00")
    monkeypatch.delenv("TZ")
    assert next_time("0 12 * * *", None, at("2026-07-01T00:00")) > at("2026-07-01T00:00")


def test_a_local_zone_may_be_a_file_and_without_one_it_is_utc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bb.cron._LOCAL", "/nowhere")
    monkeypatch.delenv("TZ", raising=False)
    assert next_time("0 12 * * *", None, at("2026-07-01T00:00")) == at("2026-07-01T12:00")
    monkeypatch.setenv("TZ", "/nowhere")
    with pytest.raises(InvalidCron, match="zone"):
        next_time("0 12 * * *", None, at("2026-07-01T00:00"))


@settings(max_examples=200)
@given(CRONS, ZONES, st.integers(0, 2**41).map(lambda ms: datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)))
def test_law_times_are_monotone_and_none_is_in_between(cron: str, tz: str, after: datetime) -> None:
    first, second = ticks(cron, after, 2, tz)
    assert after < first < second
    between = after + (first - after) / 2
    assert next_time(cron, tz, between) == first
    assert first.tzinfo is UTC and first.second == 0


def test_a_time_has_a_zone_and_is_kept_to_the_millisecond() -> None:
    later = datetime(2026, 3, 1, 8, 0, 0, 1001, ZoneInfo(BERLIN))
    assert bb.At(later).when == datetime(2026, 3, 1, 7, 0, 0, 2000, UTC)
    assert bb.At(later) == bb.At(later.astimezone(UTC))
    assert bb.At("2026-03-01T08:00:00.001001+01:00") == bb.At(Lit(later)) == bb.At(later)
    for value in (datetime(2026, 3, 1), 5, None):  # noqa: DTZ001 - that is the case
        with pytest.raises(InvalidCron, match="aware"):
            bb.At(value)  # type: ignore[arg-type]
    for text in ("tomorrow", "2026-03-01", "2026-03-01T00:00:00", ""):
        with pytest.raises(InvalidCron, match="ISO 8601"):
            bb.At(text)


@pytest.mark.parametrize(("day", "hours"), [((1, 1, 1), 14), ((9999, 12, 31), -14)])
def test_a_time_that_utc_has_no_year_for_is_refused(day: tuple[int, int, int], hours: int) -> None:
    zone = timezone(timedelta(hours=hours))
    moment = datetime(*day, 12, tzinfo=zone)
    for value in (moment, moment.isoformat()):
        with pytest.raises(InvalidCron, match=r"is no time|beyond the years"):
            bb.At(value)


@given(MOMENTS)
def test_law_a_time_is_read_as_it_was_written(moment: datetime) -> None:
    assert read_moment(spelled(moment)) == as_moment(moment) == moment


@pytest.mark.parametrize(
    "text",
    ["", "now", "2026-03-01", "2026-03-01T08:00", "2026-02-30T08:00Z", "2026-W10-1T08:00Z", "0001-01-01T00:00+14:00"],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidCron, match="ISO 8601"):
        read_moment(text)


def test_a_zone_is_read_as_the_time_it_means() -> None:
    assert read_moment("2026-03-01T08:00+02:00") == datetime(2026, 3, 1, 6, tzinfo=UTC)
    assert spelled(datetime(2026, 3, 1, 8, tzinfo=ZoneInfo(BERLIN))) == "2026-03-01T07:00:00Z"
    assert next_time("0 8 * * *", BERLIN, datetime(2026, 3, 1, tzinfo=UTC)) - datetime(2026, 3, 1, tzinfo=UTC) == (
        timedelta(hours=7)
    )
