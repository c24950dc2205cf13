"""Trials N: clocks, daylight saving, timers that were lost; and C10, a start-up that takes up what it has just begun."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

import bb
from bb.testing.clock import START, ManualClock
from tests.timetable import Timetable, later, rest, until
from tests.trials.kit import Disk, Work, cut_off

CHANGES = {
    # the zone, and the days on which daylight saving begins and ends there
    "US/Pacific": ("2026-03-08", "2026-11-01"),
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "Australia/Lord_Howe": ("2026-10-04", "2026-04-05"),
}
DAYS = [(zone, day) for zone, days in CHANGES.items() for day in days]


def midnight(zone: str, day: str, days: int = 0) -> datetime:
    return datetime.combine(
        datetime.fromisoformat(day).date() + timedelta(days=days), datetime.min.time(), ZoneInfo(zone)
    ).astimezone(UTC)


async def fired(cron: str, zone: str, start: datetime, span: timedelta, step: timedelta) -> list[datetime]:
    """When a timetable fires, in the time of the zone."""
    time = Timetable(clock=ManualClock(start))
    at: list[datetime] = []

    @bb.Agent().on_message
    async def note(turn: bb.Turn, chat: bb.ModelChat) -> None:
        at.append(time.clock.now().astimezone(ZoneInfo(zone)))

    app = time.app(later(bb.Every(cron, bb.Flow().with_agent(note), tz=zone), id="f"))
    async with app:
        await app.run("f", "hi")
        while time.clock.now() < start + span:
            time.clock.advance(step)
            await rest(25)
    return at


@pytest.mark.parametrize(("zone", "day"), DAYS)
async def test_trial_N1_daily_at_half_past_two_fires_once_a_day(zone: str, day: str) -> None:
    at = await fired("30 2 * * *", zone, midnight(zone, day, -1), timedelta(days=3), timedelta(minutes=30))
    dates = [moment.date() for moment in at]
    assert len(dates) == len(set(dates)) == 3
    assert [at[0].strftime("%H:%M"), at[2].strftime("%H:%M")] == ["02:30", "02:30"]
    begins = day == CHANGES[zone][0]
    assert at[1].strftime("%H:%M") == ("03:00" if begins and zone != "Australia/Lord_Howe" else "02:30")
    assert at[1].fold == 0  # the first of two


@pytest.mark.parametrize(("zone", "day"), DAYS)
async def test_trial_N1_in_24_hours_is_24_hours(zone: str, day: str) -> None:
    start = midnight(zone, day, -1) + timedelta(hours=12)
    time = Timetable(clock=ManualClock(start))
    when = start.astimezone(ZoneInfo(zone)).astimezone(UTC) + timedelta(hours=24)
    app = time.app(later(bb.At(when.astimezone(ZoneInfo(zone)), time.agent("a")), id="f"))
    async with app:
        await app.run("f", "hi")
        await time.pass_(hours=23, minutes=59)
        assert time.count("a") == 0
        await time.pass_(minutes=1)
        assert time.count("a") == 1


@pytest.mark.parametrize(("zone", "day"), DAYS)
@pytest.mark.parametrize("cron", ["*/15 * * * *", "0 * * * *"])
async def test_trial_N2_an_interval_is_monotone_without_gaps_and_doubles(zone: str, day: str, cron: str) -> None:
    apart = timedelta(minutes=15) if cron.startswith("*/15") else timedelta(hours=1)
    start = midnight(zone, day) - timedelta(hours=2)
    local = await fired(cron, zone, start, timedelta(hours=8), timedelta(minutes=15))
    at = [moment.astimezone(UTC) for moment in local]
    gaps = {after - before for before, after in pairwise(at)}
    if zone != "Australia/Lord_Howe" or cron != "0 * * * *":  # there a change by half an hour moves the full hours
        assert gaps == {apart}
    assert len(at) == len(set(at)) and at == sorted(at)


@pytest.mark.parametrize(("zone", "day"), DAYS)
async def test_trial_N2_a_restart_in_the_hour_that_comes_twice_fires_nothing_twice(zone: str, day: str) -> None:
    time = Timetable(clock=ManualClock(midnight(zone, day) - timedelta(minutes=15)))
    flow = later(bb.Every("30 1,2 * * *", time.agent("a"), tz=zone), id="f")
    async with time.app(flow) as app:
        await app.run("f", "hi")
    while time.clock.now() < midnight(zone, day) + timedelta(hours=6):
        async with time.app(flow):
            await rest(25)
        time.clock.advance(timedelta(minutes=15))
    assert time.count("a") == 2


async def test_trial_N4_a_timer_that_came_due_while_nothing_ran_fires_at_the_start(tmp_path: Path) -> None:
    time = Timetable(bb.FileStore(tmp_path))
    flow = later(bb.At(time.soon(minutes=1), time.agent("a")), id="f")
    async with time.app(flow) as app:
        await app.run("f", "hi")
    time.clock.advance(timedelta(hours=20))
    async with time.app(flow):
        await until(lambda: time.count("a") == 1)
    await time.stop()


async def test_trial_N4_a_clock_that_jumps_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleeping goes by a clock that stands still while a machine is suspended."""
    monkeypatch.setattr("bb.engine.runs.scheduler.LOOK", 0.02)

    class Jumping(bb.SystemClock):
        ahead = timedelta(0)

        def now(self) -> datetime:
            return datetime.now(UTC) + self.ahead

    clock = Jumping()
    heard: list[str] = []

    @bb.Agent().on_message
    async def note(turn: bb.Turn, chat: bb.ModelChat) -> None:
        heard.append(turn.run_id)

    app = bb.App(clock=clock)
    app.register(later(bb.At(clock.now() + timedelta(hours=5), bb.Flow().with_agent(note)), id="f"))
    async with app:
        await app.run("f", "hi")
        await asyncio.sleep(0.1)
        assert heard == []
        clock.ahead = timedelta(hours=6)
        await until(lambda: len(heard) == 1)


async def test_trial_N4_a_retry_that_was_waiting_when_the_process_ended_goes_on_at_the_start(tmp_path: Path) -> None:
    time = Timetable(bb.FileStore(tmp_path))
    body = later(time.agent("a"), id="body").durable(retries=3)
    flow = later(bb.At(time.soon(minutes=1), body), id="f")
    time.fails["a"] = 1
    app = time.app(flow)
    await app.start()
    await app.run("f", "hi")
    time.clock.advance(60)
    await until(lambda: time.count("a") == 1)
    await app.stop(timedelta(0))  # while it waits for its second try

    async with time.app(flow) as app:
        time.clock.advance(timedelta(hours=11))
        await until(lambda: time.count("a") == 2)
        await rest()
        assert [run.status for run in await app.runs()] == ["finished"]
    await time.stop()


@pytest.mark.parametrize("how", ["finished", "cancelled"])
async def test_trial_N4_a_clock_set_back_between_two_attempts_does_not_age_a_run(
    disk: Disk, work: Work, how: str
) -> None:
    """The end of a run is never dated before its last progress: `prune` goes by it."""
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()
    await cut_off(disk.app(flow, clock=ManualClock(START)), work.hold("b"), "job", "hi", run_id="r")
    app = disk.app(flow, clock=ManualClock(START - timedelta(days=10), auto=True))

    if how == "finished":
        await app.run("job", "hi", run_id="r")
    else:
        await app.cancel("r")

    assert [(run.status, run.progress) for run in await app.runs()] == [(how, START)]
    assert await disk.app(flow, clock=ManualClock(START + timedelta(days=1))).prune() == 0


async def test_trial_C10_a_start_and_a_call_at_the_same_instant_are_one_execution(tmp_path: Path) -> None:
    time = Timetable(bb.FileStore(tmp_path))
    hook = later(bb.Webhook("w", time.agent("b"), bb.Respond()), id="hook")
    start = later(bb.Every("0 0 1 1 *", time.agent("never")), time.agent("s"), id="start")
    for round_ in range(50):
        app = time.app(later(time.agent("a"), id="f").durable(), hook, start=(start,))
        if not round_:
            await app.run("hook", "hi")
        await asyncio.gather(
            app.start(),
            app.run("f", "hi", run_id=f"r{round_}"),
            app.submit("f", "hi", run_id=f"s{round_}"),
            app.fire("w", b"", {}),
        )
        await until(lambda round_=round_: time.count("a") >= 2 * (round_ + 1))  # type: ignore[misc]
        await app.stop()
    runs = [one.run_id for one in time.heard if one.agent in "ab"]
    assert len(runs) == len(set(runs)) == 150
