"""Runs that nobody waits for."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest
import structlog

import bb
from bb.engine.runs import jobs
from bb.log import run_stream
from bb.testing.clock import ManualClock
from bb.testing.mock_store import MockStore
from tests.trials.kit import Disk, Work, cut_off, mocked, until


async def all_finished(app: bb.App, count: int) -> None:
    async def done() -> bool:
        return [run.status for run in await app.runs()] == ["finished"] * count

    await until(done)


async def test_a_job_waits_until_an_app_is_started(disk: Disk, work: Work) -> None:
    app = disk.app(work.flow("a").durable())
    run_id = await app.submit("a", "hi", params={"x": 1}, session_id="s")
    await asyncio.sleep(0.02)
    assert work.calls == [] and [run.run_id for run in await app.runs()] == [run_id]

    await app.start()

    await all_finished(app, 1)
    assert (await app.run("a", "hi", params={"x": 1}, run_id=run_id)).session_id == "s"


async def test_starting_twice_is_starting_once(disk: Disk, work: Work) -> None:
    app = disk.app(work.flow("a").durable())
    await app.submit("a", "hi", run_id="r")

    await asyncio.gather(app.start(), app.start())
    await app.start()

    await all_finished(app, 1)
    assert work.count("a") == 1


async def test_no_more_jobs_run_at_once_than_there_are_workers(disk: Disk) -> None:
    now = most = 0

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        turn.reply("done")

    flow = bb.Flow().with_agent(bb.Agent("a").on_message(handler)).with_id("a").durable()
    async with disk.app(flow, workers=3) as app:
        await asyncio.gather(*(app.submit("a", "hi") for _ in range(12)))
        await all_finished(app, 12)

    assert most == 3


async def test_a_job_can_be_joined(disk: Disk, work: Work) -> None:
    async with disk.app(work.flow("a").durable()) as app:
        hold = work.hold("a")
        await app.submit("a", "hi", run_id="r")
        await hold.reached.wait()
        joined = asyncio.create_task(app.run("a", "hi", run_id="r"))
        left = asyncio.create_task(app.run("a", "hi", run_id="r"))
        await asyncio.sleep(0.01)
        left.cancel()
        await asyncio.wait([left])
        hold.go.set()

        assert (await joined).answer == "a" and work.count("a") == 1


async def test_a_job_goes_on_when_those_who_joined_it_leave(disk: Disk, work: Work) -> None:
    async with disk.app(work.flow("a").durable()) as app:
        hold = work.hold("a")
        await app.submit("a", "hi", run_id="r")
        await hold.reached.wait()
        joined = asyncio.create_task(app.run("a", "hi", run_id="r"))
        await asyncio.sleep(0.01)
        joined.cancel()
        await asyncio.wait([joined])
        hold.go.set()

        await all_finished(app, 1)
        assert work.count("a") == 1


async def test_a_job_whose_holder_died_is_found_by_the_next_sweep(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "SWEEP", 0.05)
    store = MockStore()
    flow = work.flow("a").durable()
    lease = await store.acquire("run/r", "a process elsewhere", 30)
    assert lease is not None
    async with mocked(store, flow) as app:
        await app.submit("a", "hi", run_id="r")
        await asyncio.sleep(0.2)
        assert work.calls == []
        await store.release(lease)
        await all_finished(app, 1)

    assert work.count("a") == 1


async def test_a_store_that_fails_does_not_end_the_sweeping(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "SWEEP", 0.02)
    store = MockStore()
    flow = work.flow("a").durable()
    async with mocked(store, flow) as app:
        await mocked(store, flow).submit("a", "hi", run_id="r")  # by another process
        store.fail_read(1, times=3)
        await until(lambda: work.calls == ["a"])
        await all_finished(app, 1)


async def test_a_flow_registered_from_another_thread_resumes_its_jobs(disk: Disk, work: Work) -> None:
    flow = work.flow("a").durable()
    await disk.app(flow).submit("a", "hi", run_id="r")
    async with disk.app() as app:
        thread = threading.Thread(target=app.register, args=(flow,))
        thread.start()
        await asyncio.to_thread(thread.join)
        await all_finished(app, 1)


async def test_jobs_that_cannot_go_on_are_logged_once_each(disk: Disk, work: Work) -> None:
    await disk.app(work.flow("gone").durable()).submit("gone", "hi", run_id="r1")
    failing = work.flow("a").durable()
    work.fail("a", 1)
    with structlog.testing.capture_logs() as logs:
        async with disk.app(failing) as app:
            await app.submit("a", "hi", run_id="r2")

            async def failed() -> bool:
                return "failed" in [run.status for run in await app.runs()]

            await until(failed)
            app.register(work.flow("other").durable())
            await asyncio.sleep(0.02)

    by_run = [(entry.get("run_id"), entry["log_level"]) for entry in logs]
    assert by_run.count(("r1", "warning")) == 1 and by_run.count(("r2", "error")) == 1


async def test_stop_gives_running_jobs_their_time(disk: Disk, work: Work) -> None:
    app, hold = disk.app(work.flow("a").durable()), work.hold("a")
    await app.start()
    await app.submit("a", "hi", run_id="r")
    await hold.reached.wait()
    stopping = asyncio.create_task(app.stop(timedelta(seconds=5)))
    await asyncio.sleep(0.02)
    assert not stopping.done()
    hold.go.set()

    await stopping

    assert [run.status for run in await app.runs()] == ["finished"]


async def test_an_app_may_be_started_again(disk: Disk, work: Work) -> None:
    app = disk.app(work.flow("a").durable())
    for n in range(3):
        async with app:
            await app.submit("a", "hi", run_id=f"r{n}")
            await all_finished(app, n + 1)

    assert work.count("a") == 3


async def test_old_runs_are_pruned_now_and_then(disk: Disk, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PRUNE", -1.0)
    app = disk.app(work.flow("a").durable(), retention=timedelta(0))
    await app.run("a", "hi", run_id="r1")
    await asyncio.sleep(0.01)
    await app.run("a", "hi", run_id="r2")

    async def pruned() -> bool:
        return "r1" not in [run.run_id for run in await app.runs()]

    await until(pruned)


async def test_stopping_in_good_order_is_no_crash_however_often(disk: Disk) -> None:
    began = 0
    patient = True

    async def slow(turn: bb.Turn, chat: bb.ModelChat) -> None:
        nonlocal began
        began += 1
        if patient:
            await asyncio.sleep(60)
        turn.reply("done")

    flow = bb.Flow().with_agent(bb.Agent("slow").on_message(slow)).with_id("slow").durable()
    run_id = await disk.app(flow).submit("slow", "hi")
    for deploy in range(1, 8):
        app = disk.app(flow)
        await app.start()

        async def is_under_way(count: int = deploy) -> bool:
            return began == count

        await until(is_under_way)
        await app.stop(timedelta(0))

    assert [run.status for run in await disk.app().runs()] == ["interrupted"]
    patient = False
    async with disk.app(flow) as app:
        await all_finished(app, 1)
        assert (await app.run("slow", run_id=run_id)).answer == "done"


async def test_a_start_that_failed_may_be_tried_again(work: Work) -> None:
    class Down(bb.MemStore):
        down = True

        async def list(self, prefix: str) -> list[bb.StreamInfo]:
            if self.down:
                raise bb.StoreError("down")
            return await super().list(prefix)

    store = Down()
    app = bb.App(store=store)
    app.register(work.flow("a").durable())
    await app.submit("a", "hi", run_id="r")
    with pytest.raises(bb.StoreError):
        await app.start()
    store.down = False

    await app.start()

    await until(lambda: work.count("a"))
    await app.stop()


async def test_a_start_drops_old_runs(disk: Disk, work: Work) -> None:
    clock = ManualClock()
    await disk.app(work.flow("a").durable(), clock=clock).run("a", "hi", run_id="r")
    clock.advance(timedelta(days=8))
    app = disk.app(clock=clock)

    await app.start()

    async def gone() -> bool:
        return not await app.runs()

    await until(gone)


@pytest.mark.parametrize("how", ["left", "failed", "cancelled"])
async def test_a_run_that_came_to_nothing_may_be_handed_over_as_a_job(disk: Disk, work: Work, how: str) -> None:
    flow = work.flow("a").next(work.flow("b")).with_id("f").durable()
    app = disk.app(flow)
    if how == "failed":
        work.fail("b", 1)
        with pytest.raises(bb.AgentFailed):
            await app.run("f", "hi", run_id="r")
    else:
        await cut_off(app, work.hold("b"), "f", "hi", run_id="r")
    if how == "cancelled":
        await app.cancel("r")

    await app.submit("f", "hi", run_id="r")
    await app.submit("f", "hi", run_id="r")

    later = disk.app(flow)
    await later.start()
    await until(lambda: work.count("b") == 2)
    assert (await later.run("f", "hi", run_id="r")).answer == "b" and work.count("a") == 1


async def test_a_run_that_a_caller_holds_is_not_handed_over(disk: Disk, work: Work) -> None:
    hold = work.hold("a")
    app = disk.app(work.flow("a").durable())
    run = asyncio.create_task(app.run("a", "hi", run_id="r"))
    await hold.reached.wait()

    with pytest.raises(bb.RunBusy):
        await app.submit("a", "hi", run_id="r")

    hold.go.set()
    await run
    await app.submit("a", "hi", run_id="r")
    assert [info.status for info in await app.runs()] == ["finished"]


async def test_a_cancelled_job_is_no_error(disk: Disk, work: Work) -> None:
    hold = work.hold("a")
    app = disk.app(work.flow("a").durable())
    await app.start()
    await app.submit("a", "hi", run_id="r")
    await hold.reached.wait()

    with structlog.testing.capture_logs() as logs:
        await app.cancel("r")
        await until(lambda: not app._jobs._busy)

    assert logs == [] and [info.status for info in await app.runs()] == ["cancelled"]


@pytest.mark.parametrize("registered", [True, False])
async def test_a_job_that_waits_outlasts_the_retention(work: Work, registered: bool) -> None:
    # no app was started for longer than finished runs are kept: what was accepted is neither dropped nor begun with nothing
    clock, store = ManualClock(auto=True), bb.MemStore()
    flow = work.flow("a").durable()
    before = bb.App(store=store, clock=clock)
    before.register(flow)
    for n in range(3):
        await before.submit("a", f"input {n}", run_id=f"j{n}")
    clock.advance(timedelta(days=8))
    app = bb.App(store=store, clock=clock, workers=1)
    if registered:
        app.register(flow)
    await app.start()
    await asyncio.sleep(0.05)
    assert await app.prune() == 0
    app.register(flow)

    await all_finished(app, 3)
    for n in range(3):
        outcome = await app.run("a", f"input {n}", run_id=f"j{n}")
        assert outcome.replayed == ("a",)
    assert work.heard["a"] == ("input 2",) and work.count("a") == 3
    await app.stop()


async def test_a_job_that_was_dropped_before_its_turn_is_not_begun_with_nothing(work: Work) -> None:
    store = bb.MemStore()
    flow = work.flow("a").durable()
    app = bb.App(store=store, workers=1)
    app.register(flow)
    async with app:
        hold = work.hold("a")
        await app.submit("a", "first", run_id="j0")
        await hold.reached.wait()
        await app.submit("a", "second", run_id="j1")
        await store.delete(run_stream("j1"))  # as `prune` of another process may
        hold.go.set()
        await until(lambda: work.count("a") == 1)
        await asyncio.sleep(0.05)

        assert work.calls == ["a"] and [run.run_id for run in await app.runs()] == ["j0"]


async def test_a_job_that_was_cancelled_or_failed_before_its_turn_is_not_run(disk: Disk, work: Work) -> None:
    app = disk.app(work.flow("a").durable(), work.flow("b").durable(), workers=1)
    async with app:
        hold = work.hold("a")
        await app.submit("a", "first", run_id="j0")
        await hold.reached.wait()
        await app.submit("b", "second", run_id="cancelled")
        await app.submit("b", "third", run_id="failed")
        await app.submit("b", "fourth", run_id="done")
        await app.cancel("cancelled")
        work.fail("b", 1)
        with pytest.raises(bb.AgentFailed):
            await app.run("b", "third", run_id="failed")  # a caller did not wait for its turn
        await app.run("b", "fourth", run_id="done")
        hold.go.set()
        await asyncio.sleep(0.1)

        told = {run.run_id: run.status for run in await app.runs()}
        assert told == {"j0": "finished", "cancelled": "cancelled", "failed": "failed", "done": "finished"}
        assert work.calls == ["a", "b", "b"]
        assert (await app.run("b", run_id="cancelled")).answer == "b"  # who wants it can still have it
