"""Jobs on record: what their rows come to, and that no crash between two appends loses or doubles one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import pytest
import structlog
from attrs import evolve

import bb
from bb.log.jobs import Job
from bb.log.rows import Armed, Dropped, Fired, Row, decode_row, encode_row
from bb.testing import crash_everywhere
from bb.testing.mock_store import Crash, MockStore
from tests.timetable import Timetable, later, rest, until

EVERY = Armed("every", "f/body~every.0", "r1", 10, 100, ("* * * * *",), {"m": 1})
AT = Armed("at", "f/body~at.0", "r1", 10, 100, ("100",), {})
HOOK = Armed("webhook", "f/body~webhook.0", "r1", 10, None, ("w",), {})


def job(*rows: Any) -> Job:
    made = Job()
    for row in rows:
        made.add(row)
    return made


def state(made: Job) -> tuple[object, ...]:
    return made.armed, made.due, made.over


# --- the fold ---


def test_a_tick_moves_a_timetable_on_and_an_at_is_over() -> None:
    assert state(job(EVERY, Fired("j:100", 105, 100, 160))) == (EVERY, 160, None)
    assert state(job(AT, Fired("j:100", 105, 100, None))) == (AT, None, 105)


def test_a_row_that_comes_twice_or_too_late_changes_nothing() -> None:
    fired = Fired("j:100", 105, 100, 160)
    assert state(job(EVERY, EVERY, fired, EVERY, fired)) == (EVERY, 160, None)
    assert state(job(AT, Fired("j:100", 105, 100, None), AT, evolve(AT, run="r2"))) == (AT, None, 105)
    assert state(job(fired, Dropped(1))) == (None, None, None)


def test_armed_again_the_same_timetable_goes_on_and_another_begins_anew() -> None:
    again = evolve(EVERY, run="r2", due=500, given={"m": 2})
    assert state(job(EVERY, again)) == (again, 100, None)
    other = evolve(again, spec=("0 * * * *",))
    assert state(job(EVERY, other)) == (other, 500, None)


def test_a_timetable_armed_for_another_body_begins_anew() -> None:
    def of(signature: str, *ids: str) -> Armed:
        return evolve(EVERY, run=signature, due=500, given={"b": ["every", ["* * * * *"], signature, list(ids)]})

    assert job(EVERY, of("s1")).due == 100  # an old record does not tell its body
    assert job(evolve(of("s1", "a"), due=100), of("s2", "a")).due == 100
    assert job(evolve(of("s1"), due=100), of("s2")).due == 500
    assert job(evolve(of("s1", "a"), due=100), of("s2", "b")).due == 500
    with pytest.raises(bb.CorruptRecord):
        job(evolve(EVERY, given={"b": 1}))


def test_what_was_dropped_is_over_until_it_is_armed_again() -> None:
    again = evolve(EVERY, run="r2", due=500)
    assert state(job(EVERY, Dropped(50))) == (EVERY, None, 50)
    assert state(job(EVERY, Dropped(50), Fired("j:100", 105, 100, 160))) == (EVERY, None, 50)
    assert state(job(EVERY, Dropped(50), again)) == (again, 500, None)
    assert state(job(AT, Dropped(50), evolve(AT, run="r2"))) == (AT, None, 50)


@pytest.mark.parametrize(
    "rows",
    [
        (),
        (HOOK,),
        (EVERY, Fired("j:100", 105, 100, 160)),
        (AT, Fired("j:100", 105, 100, None)),
        (EVERY, Dropped(50)),
    ],
)
def test_the_shortest_rows_come_to_the_same(rows: Sequence[Row]) -> None:
    made = job(*rows)
    again = job(*made.shortest())
    assert (again.due, again.over) == (made.due, made.over)
    assert [decode_row(encode_row(row), "here") for row in made.shortest()] == made.shortest()


async def test_a_timetable_that_ticks_for_long_stays_short() -> None:
    time = Timetable()
    app = time.app(later(bb.Every("* * * * *", time.agent("a")), id="f"))
    async with app:
        await app.run("f", "hi")
        for _ in range(80):
            await time.pass_(minutes=1)
        assert time.count("a") == 80
        (info,) = await time.store.list("job/")
        assert info.length < 64
        assert len(await app.jobs()) == 1


# --- crashes ---


def story(time: Timetable) -> bb.DurableFlow:
    """A run that schedules one job, and a timetable whose body is durable."""
    body = later(time.agent("x").with_id("x"), time.agent("y").with_id("y"), id="body").durable()
    at = bb.At(time.clock.now() + timedelta(minutes=1), time.agent("once"))
    steps = (time.agent("a").with_id("a"), at, bb.Every("*/2 * * * *", body), time.agent("b").with_id("b"))
    return later(*steps, id="f").durable()


async def played(store: MockStore, flow: bb.DurableFlow, time: Timetable) -> None:
    """Run the flow, and let the jobs it schedules come due, in as many processes as it takes."""
    for _ in range(4):
        store.revive()
        app = time.app(flow)
        playing = asyncio.ensure_future(_played(app, time))
        dying = asyncio.ensure_future(until(lambda: store.crashed, seconds=60))
        await asyncio.wait([playing, dying], return_when=asyncio.FIRST_COMPLETED)
        crashed = store.crashed
        for task in (playing, dying):
            task.cancel()
        await asyncio.wait([playing, dying])
        if not crashed:
            playing.result()
            await app.stop(timedelta(0))
            return
        with contextlib.suppress(Crash, bb.BBError):
            await app.stop(timedelta(0))
    raise AssertionError("it never came to its end")


async def _played(app: bb.App, time: Timetable) -> None:
    await app.start()
    await app.run("f", "hi", run_id="r")
    while time.clock.now() < _START + timedelta(minutes=4):
        await time.pass_(minutes=1)
    await rest()


_START = Timetable().clock.now()


@pytest.mark.parametrize("when", ["before", "after", "during"])
async def test_no_crash_loses_or_doubles_a_job(when: Literal["before", "after", "during"]) -> None:
    strike = 0
    while True:
        strike += 1
        store = MockStore()
        time = Timetable(store)
        store.crash_at(strike, when)
        flow = story(time)
        with structlog.testing.capture_logs():
            await played(store, flow, time)
        if store.appends < strike:
            break
        told = f"crash {when} append {strike}: {[one.agent for one in time.heard]}"
        runs = {one.run_id for one in time.heard if one.agent == "once"}
        assert len(runs) == 1 and 1 <= time.count("once") <= 2, told
        ticks = {one.run_id for one in time.heard if one.agent == "y"}
        assert 1 <= len(ticks) <= 2, told
        for step in ("x", "y"):
            assert len(ticks) <= time.count(step) <= len(ticks) + 1, told
        store.revive()
        app = time.app(flow)
        assert {run.status for run in await app.runs()} == {"finished"}, told
        assert [info.kind for info in await app.jobs()] == ["every"], told
    assert strike > 15


async def test_a_crash_between_the_record_of_a_run_and_the_next_time_starts_it_once() -> None:
    store = MockStore()
    time = Timetable(store)
    flow = later(bb.Every("* * * * *", time.agent("a")), id="f")
    app = time.app(flow)
    await app.start()
    await app.run("f", "hi")
    store.crash_at(lambda stream, records: stream.startswith("job/") and b'"fire"' in records[-1])
    with structlog.testing.capture_logs():
        await time.pass_(minutes=1)
        assert store.crashed and time.count("a") == 0
        with contextlib.suppress(Crash, bb.BBError):
            await app.stop(timedelta(0))
    store.revive()
    await time.pass_(minutes=10)

    async with time.app(flow) as app:
        await until(lambda: time.count("a") >= 1)
        await rest()
        assert time.count("a") == 1
        (info,) = await app.jobs()
        assert info.next == _START + timedelta(minutes=12)


async def test_two_processes_that_look_at_once_start_it_once() -> None:
    time = Timetable()
    flow = later(bb.At(time.soon(minutes=1), time.agent("a")), id="f")
    apps = [time.app(flow) for _ in range(5)]
    for app in apps:
        await app.start()
    await apps[0].run("f", "hi")
    time.clock.advance(60)
    for app in apps:
        app._jobs.scheduler.wake()
    await rest()
    assert time.count("a") == 1
    await time.stop()


async def test_a_store_that_fails_for_a_while_delays_a_job_and_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bb.engine.runs.scheduler.LOOK", 0.02)
    store = MockStore()
    time = Timetable(store)
    app = time.app(later(bb.At(time.soon(minutes=1), time.agent("a")), id="f"))
    async with app:
        await app.run("f", "hi")
        store.fail_append(lambda stream, _: stream.startswith("run/at:"), times=3)
        with structlog.testing.capture_logs() as logs:
            time.clock.advance(60)
            await until(lambda: time.count("a") == 1)
        assert [log["event"] for log in logs] == ["a job could not be started"] * 3


async def test_a_job_that_cannot_be_read_stops_no_other() -> None:
    time = Timetable()
    app = time.app(later(bb.At(time.soon(minutes=1), time.agent("a")), id="f"))
    await time.store.append("job/at:broken", 0, [b"[9]"])
    with structlog.testing.capture_logs() as logs:
        async with app:
            await app.run("f", "hi")
            await time.pass_(minutes=1)
            assert (time.count("a"), await app.jobs()) == (1, [])
    assert "job/at:broken" in {log.get("job") for log in logs}


async def test_a_tracer_that_fails_stops_no_job() -> None:
    class Broken:
        def event(self, event: bb.Event, /) -> None:
            if event.kind == "job.fired":
                raise ValueError("no")

    time = Timetable()
    app = bb.App(store=time.store, clock=time.clock, trace=Broken())
    app.register(later(bb.At(time.soon(minutes=1), time.agent("a")), id="f"))
    with structlog.testing.capture_logs() as logs:
        async with app:
            await app.run("f", "hi")
            await time.pass_(minutes=1)
            assert time.count("a") == 1
    assert [log["event"] for log in logs] == ["a tracer failed"]


async def test_a_flow_whose_trigger_is_gone_leaves_the_job_to_people() -> None:
    time = Timetable()
    async with time.app(later(bb.At(time.soon(minutes=1), time.agent("a")), id="f")) as app:
        await app.run("f", "hi")
    with structlog.testing.capture_logs() as logs:
        async with time.app(later(time.agent("a"), id="f")) as app:
            await time.pass_(minutes=2)
            assert len(await app.jobs()) == 1
    assert [log["event"] for log in logs] == ["a job waits for its flow to be registered"]


@pytest.mark.parametrize("when", ["before", "after", "during"])
async def test_no_crash_loses_what_the_winner_of_one_schedules(when: Literal["before", "after", "during"]) -> None:
    strike = 0
    while True:
        strike += 1
        store = MockStore()
        time = Timetable(store)
        due = time.soon(minutes=1)

        def member(name: str, time: Timetable = time, due: datetime = due) -> bb.AnyFlow:
            return bb.Chain([bb.At(due, time.agent(f"later-{name}")), time.agent(name)])

        flow = later(bb.One(member("a"), member("b")), time.agent("c").with_id("c"), id="f").durable()
        store.crash_at(strike, when)
        with structlog.testing.capture_logs():
            await played(store, flow, time)
        if store.appends < strike:
            break
        outcome = await time.app(flow).run("f", run_id="r")
        won = outcome.messages[0].content
        told = f"crash {when} append {strike}: {[one.agent for one in time.heard]}"
        assert {one.agent for one in time.heard if "later" in one.agent} == {f"later-{won}"}, told
        assert len({one.run_id for one in time.heard if "later" in one.agent}) == 1, told
    assert strike > 8


async def test_a_flow_with_triggers_comes_back_from_a_crash_at_any_append() -> None:
    time = Timetable()

    def member(name: str) -> bb.AnyFlow:
        return bb.Chain([bb.At(time.soon(minutes=1), time.agent(f"later-{name}")), time.agent(name).with_id(name)])

    loop = bb.Each("x", [1, 2], bb.Every("* * * * *", time.agent("tick")))
    flow = later(bb.All(member("a"), member("b")), loop, bb.Webhook("w"), time.agent("d"), id="f").durable()
    report = await crash_everywhere(flow, "hi")
    assert report.cases > 20 and not report.findings
