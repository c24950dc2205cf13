"""Running again what nobody calls for: a run that failed, was cancelled or was left behind, by its id alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

import bb
from bb.log import STUCK_AFTER, Attempted, encode, run_stream
from tests.timetable import Timetable, later, rest, until


@pytest.fixture
async def time() -> AsyncIterator[Timetable]:
    made = Timetable()
    yield made
    await made.stop()


async def status(app: bb.App, run_id: str) -> str:
    (run,) = [run for run in await app.runs() if run.run_id == run_id]
    return run.status


def two(time: Timetable, id: str = "f", ttl: timedelta | None = None) -> bb.DurableFlow:
    return later(time.agent("a").with_id("a"), time.agent("b").with_id("b"), id=id).durable(ttl=ttl)


@pytest.mark.parametrize("durable", [True, False])
async def test_a_run_that_a_trigger_started_goes_on_from_what_it_saved(time: Timetable, durable: bool) -> None:
    body: bb.AnyFlow = two(time, "body") if durable else later(time.agent("a"), time.agent("b"), id="body")
    app = time.app(later(bb.At(time.soon(minutes=1), body), id="f"))
    time.fails["b"] = 1
    async with app:
        await app.run("f", bb.Input([bb.Message("hi")], payload={"k": 1}), params={"p": 2})
        await time.pass_(minutes=1)
        (run,) = await app.runs()
        assert run.status == "failed"

        await app.retry(run.run_id)
        await rest()

        assert await status(app, run.run_id) == "finished"
        assert (time.count("a"), time.count("b")) == (1 if durable else 2, 2)
        assert (time.last("b").chat, time.last("b").payload, time.last("b").params) == (("hi", "a"), {"k": 1}, {"p": 2})


async def test_a_call_of_a_webhook_that_failed_is_retried_without_its_caller(time: Timetable) -> None:
    app = time.app(start=(later(bb.Webhook("w", two(time, "body"), bb.Respond()), id="f"),))
    time.fails["b"] = 1
    async with app:
        with pytest.raises(bb.AgentFailed):
            await app.fire("w", b"x", {}, run_id="r")
        await app.retry("r")
        await rest()
        assert (await status(app, "r"), time.count("a")) == ("finished", 1)
        assert (await app.fire("w", b"x", {}, run_id="r")).answer == "a\n\nb"
        assert time.count("b") == 2


async def test_a_run_of_a_caller_that_failed_or_was_cancelled_becomes_a_job(time: Timetable) -> None:
    app = time.app(two(time))
    time.fails["b"] = 2
    async with app:
        with pytest.raises(bb.AgentFailed):
            await app.run("f", "hi", run_id="r")
        await app.retry("r")
        await rest()
        assert (await status(app, "r"), time.count("b")) == ("failed", 2)
        await app.cancel("r")
        assert await status(app, "r") == "cancelled"
        await app.retry("r")
        await rest()
        assert (await status(app, "r"), time.count("a"), time.count("b")) == ("finished", 1, 3)
        assert (await app.run("f", "hi", run_id="r")).replayed == ("f/a", "f/b")


async def test_a_run_that_was_left_is_taken_up_by_the_next_start(time: Timetable) -> None:
    flow = two(time)
    time.holds["b"] = asyncio.Event()
    app = time.app(flow)
    running = asyncio.create_task(app.run("f", "hi", run_id="r"))
    await until(lambda: time.count("b") == 1)
    running.cancel()
    await asyncio.wait([running])
    time.holds.clear()
    assert await status(app, "r") == "interrupted"

    await app.retry("r")  # nobody is started
    await rest()
    assert await status(app, "r") == "queued"

    async with time.app(flow) as again:
        await until(lambda: time.count("b") == 2)
        await rest()
        assert (await status(again, "r"), time.count("a")) == ("finished", 1)


async def test_a_job_that_ended_its_process_again_and_again_is_taken_up_when_somebody_says_so(time: Timetable) -> None:
    flow = two(time)
    app = time.app(flow)
    await app.submit("f", "hi", run_id="r")
    stream = run_stream("r")
    for number in range(STUCK_AFTER):
        await time.store.append(stream, 1 + number, [encode(Attempted(0, "recovery"), 0)])
    async with time.app(flow) as again:
        await rest()
        assert (await status(again, "r"), len(await time.store.read(stream))) == ("stuck", 1 + STUCK_AFTER)
        assert time.count("a") == 0

        await again.retry("r")
        await rest()
        assert await status(again, "r") == "finished"


async def test_what_is_over_or_waits_stays_as_it_is(time: Timetable) -> None:
    waits = bb.Await("bell", bind="x").next(bb.Emit("it was {x}")).with_id("waits").durable()
    app = time.app(two(time), waits)
    async with app:
        await app.run("f", "hi", run_id="done")
        await app.run("waits", run_id="parked")
        before = [await time.store.read(run_stream(id)) for id in ("done", "parked")]
        for id in ("done", "parked"):
            await app.retry(id)
        await rest()
        assert [await time.store.read(run_stream(id)) for id in ("done", "parked")] == before


async def test_what_cannot_be_retried_is_refused(time: Timetable) -> None:
    app = time.app(two(time, ttl=timedelta(hours=1)))
    with pytest.raises(bb.UnknownRun):
        await app.retry("none")
    with pytest.raises(bb.InvalidId):
        await app.retry("a/b")

    time.fails["b"] = 1
    with pytest.raises(bb.AgentFailed):
        await app.run("f", "hi", run_id="r")
    with pytest.raises(bb.UnknownFlow, match="'f'"):
        await time.app().retry("r")
    time.clock.advance(7200)
    with pytest.raises(bb.RunExpired):
        await app.retry("r")


async def test_a_run_that_is_going_on_is_busy_wherever_it_is(tmp_path: Path) -> None:
    time = Timetable(bb.FileStore(tmp_path))
    flow = two(time)
    time.holds["b"] = asyncio.Event()
    one, other = time.app(flow), time.app(flow)
    running = asyncio.create_task(one.run("f", "hi", run_id="r"))
    await until(lambda: time.count("b") == 1)
    for app in (one, other):
        with pytest.raises(bb.RunBusy):
            await app.retry("r")
    time.holds["b"].set()
    assert (await running).answer == "b"
    await time.stop()
