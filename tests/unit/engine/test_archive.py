"""The runs that a store keeps."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
import structlog

import bb
from bb.log import run_stream
from bb.testing.clock import ManualClock
from bb.testing.mock_store import MockStore
from tests.trials.kit import Disk, Work, contents, cut_off, mocked


def three(work: Work) -> bb.DurableFlow:
    return work.flow("a").next(work.flow("b")).next(work.flow("c")).with_id("job").durable()


async def test_runs_are_listed_with_what_people_want_to_know(disk: Disk, work: Work) -> None:
    clock = ManualClock(auto=True)
    app = disk.app(three(work), clock=clock)
    began = clock.now()
    clock.advance(10)
    await app.run("job", "hi", run_id="r1")
    work.fail("b", 1)
    with pytest.raises(bb.AgentFailed):
        await app.run("job", "hi", run_id="r2")
    hold = work.hold("c")
    task = asyncio.create_task(app.run("job", "hi", run_id="r3"))
    await hold.reached.wait()

    runs = await disk.app(three(work), clock=clock).runs()

    assert [(run.run_id, run.flow, run.status, run.attempts) for run in runs] == [
        ("r1", "job", "finished", 1),
        ("r2", "job", "failed", 1),
        ("r3", "job", "running", 1),
    ]
    assert all(run.started == run.progress == began + timedelta(seconds=10) for run in runs)
    assert runs[0].error == "" and "b fails" in runs[1].error and runs[1].error.startswith("job/b: ")
    hold.go.set()
    await task


async def test_listing_finished_runs_reads_one_record_of_each(work: Work) -> None:
    store = MockStore()
    app = mocked(store, three(work))
    for n in range(5):
        await app.run("job", "hi", run_id=f"r{n}")
    store.fail_read(1, times=99)

    assert len(await app.runs()) == 5


@pytest.mark.parametrize("damage", [b"junk", b'[9,0,"end"]', b'[1,0,"forget","x",""]'])
async def test_a_run_that_cannot_be_read_is_logged_and_hides_nothing(disk: Disk, work: Work, damage: bytes) -> None:
    app = disk.app(three(work))
    await app.run("job", "hi", run_id="good")
    await app.store.append(run_stream("bad"), 0, [damage])

    with structlog.testing.capture_logs() as logs:
        runs = await app.runs()

    assert [run.run_id for run in runs] == ["good"]
    assert [entry["log_level"] for entry in logs] == ["error"] and "bad" in repr(logs)
    assert await app.prune() == 0


async def test_what_is_forgotten_runs_again(disk: Disk, work: Work) -> None:
    app = disk.app(three(work))
    await app.run("job", "hi", run_id="r")

    await app.forget("r", "job/b")

    assert [run.status for run in await app.runs()] == ["interrupted"]
    outcome = await app.run("job", "hi", run_id="r")
    assert outcome.replayed == ("job/a", "job/c") and work.calls == ["a", "b", "c", "b"]
    assert [run.status for run in await app.runs()] == ["finished"]


async def test_forgetting_a_path_forgets_what_is_below_it(disk: Disk, work: Work) -> None:
    inner = work.flow("a").next(work.flow("b")).with_id("in").durable()
    flow = inner.next(work.flow("inn")).with_id("job").durable()
    app = disk.app(flow)
    await app.run("job", "hi", run_id="r")

    await app.forget("r", "job/in")

    assert (await app.run("job", "hi", run_id="r")).replayed == ("job/inn",)
    await app.forget("r", "job")
    assert (await app.run("job", "hi", run_id="r")).replayed == ()


async def test_forgetting_what_is_not_there_or_in_use_is_refused(disk: Disk, work: Work) -> None:
    app = disk.app(three(work))
    with pytest.raises(bb.UnknownRun, match="no run nobody"):
        await app.forget("nobody", "job/a")
    await cut_off(app, work.hold("b"), "job", "hi", run_id="r")
    with pytest.raises(bb.UnknownRun, match="its paths are job/a"):
        await app.forget("r", "job/nothing")
    with pytest.raises(bb.UnknownRun):
        await app.forget("r", "jo")
    hold = work.hold("b")
    task = asyncio.create_task(app.run("job", "hi", run_id="r"))
    await hold.reached.wait()

    with pytest.raises(bb.RunBusy):
        await app.forget("r", "job/a")

    hold.go.set()
    assert (await task).replayed == ("job/a",)


async def test_an_unreadable_savepoint_can_be_forgotten(disk: Disk, work: Work) -> None:
    app = disk.app(three(work))
    await app.run("job", "hi", run_id="r")
    records = await app.store.read(run_stream("r"))
    spoilt = [record.replace(b'[["assistant","b"]]', b'[["assistant"]]') for record in records]
    assert spoilt != records
    await app.store.delete(run_stream("r"), leave=spoilt)
    with pytest.raises(bb.CorruptRecord, match="job/b"):
        await disk.app(three(work)).run("job", "hi", run_id="r")

    await app.forget("r", "job/b")

    assert (await disk.app(three(work)).run("job", "hi", run_id="r")).replayed == ("job/a", "job/c")


async def test_prune_says_nothing_of_runs_in_use(disk: Disk, work: Work) -> None:
    clock = ManualClock(auto=True)
    app, hold = disk.app(three(work), clock=clock, retention=timedelta(hours=1)), work.hold("b")
    task = asyncio.create_task(app.run("job", "hi", run_id="r"))
    await hold.reached.wait()
    clock.advance(timedelta(days=1))

    with structlog.testing.capture_logs() as logs:
        assert await app.prune() == 0

    assert logs == []
    hold.go.set()
    await task


async def test_a_cancel_that_came_too_late_harms_nobody(disk: Disk, work: Work) -> None:
    app = disk.app(three(work))
    await app.run("job", "hi", run_id="r")
    before = await contents(app.store)

    await app.cancel("r")

    assert await contents(app.store) == before
    assert (await app.run("job", "hi", run_id="r")).answer == "c"
