"""Trials G: what is dropped, when, and what must not be."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import bb
from bb.testing.clock import ManualClock
from bb.testing.mock_store import MockStore
from tests.trials.kit import Disk, Work, contents, cut_off, mocked

HOUR = timedelta(hours=1)


async def test_trial_G2_what_is_over_its_ttl_is_gone_without_any_write_of_its_own(disk: Disk, work: Work) -> None:
    clock = ManualClock(auto=True)
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable(ttl=HOUR)
    app = disk.app(flow, clock=clock)
    for n in range(5):
        work.fail("b", 1)
        with pytest.raises(bb.AgentFailed):
            await app.run("job", "x" * 10_000, run_id=f"r{n}")
    before = sum(len(record) for records in (await contents(app.store)).values() for record in records)
    clock.advance(2 * HOUR)

    other = disk.app(flow, clock=clock)
    assert await other.prune() == 5

    after = sum(len(record) for records in (await contents(app.store)).values() for record in records)
    assert before > 50_000 and after < 3_000
    assert {run.status for run in await other.runs()} == {"expired"}
    assert await other.prune() == 0


async def test_trial_G4_nothing_of_a_run_outlives_it_however_it_ended(disk: Disk, work: Work) -> None:
    clock = ManualClock(auto=True)
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()
    app = disk.app(flow, clock=clock, retention=timedelta(days=1))
    await app.run("job", "hi", run_id="finished")
    work.fail("b", 1)
    with pytest.raises(bb.AgentFailed):
        await app.run("job", "hi", run_id="failed")
    for run_id in ("interrupted", "cancelled"):
        await cut_off(app, work.hold("b"), "job", "hi", run_id=run_id)
    await app.cancel("cancelled")
    await app.submit("job", "hi", run_id="submitted")
    assert {run.status for run in await app.runs()} == {"finished", "failed", "interrupted", "cancelled", "queued"}
    clock.advance(timedelta(hours=23))
    assert await app.prune() == 0
    clock.advance(2 * HOUR)

    assert await app.prune() == 4

    assert [run.run_id for run in await app.runs()] == ["submitted"]  # accepted work, which no app has begun yet
    await app.cancel("submitted")
    clock.advance(timedelta(hours=25))
    assert await app.prune() == 1
    assert [name for name in await contents(app.store) if not name.startswith("tree/")] == []
    assert (await app.run("job", "hi", run_id="finished")).replayed == ()


async def test_trial_G4_a_request_to_cancel_goes_with_its_run(disk: Disk, work: Work) -> None:
    flow = work.flow("a").durable()
    await cut_off(disk.app(flow), work.hold("a"), "a", "hi", run_id="r")
    app = disk.app(flow, retention=timedelta(0))
    await app.store.append("control/r", 0, [b'"cancel"'])

    with pytest.raises(bb.RunCancelled):
        await app.run("a", "hi", run_id="r")

    assert "control/r" not in await contents(app.store)
    assert (await app.run("a", "hi", run_id="r")).answer == "a"


async def test_trial_G4_a_store_that_fails_while_pruning_loses_nothing(work: Work) -> None:
    store, clock = MockStore(), ManualClock(auto=True)
    app = mocked(store, work.flow("a").durable(ttl=HOUR), clock=clock, retention=HOUR)
    work.fail("a", 1)
    with pytest.raises(bb.AgentFailed):
        await app.run("a", "hi", run_id="r")
    await app.run("a", "hi", run_id="over")
    clock.advance(2 * HOUR)
    store.fail_read(1)

    assert await app.prune() == 1
    assert await app.prune() == 1

    assert [run.status for run in await app.runs()] == ["expired"]


async def test_trial_G5_an_old_tombstone_does_not_harm_a_new_run(disk: Disk, work: Work) -> None:
    clock = ManualClock(auto=True)
    app = disk.app(work.flow("a").durable(ttl=HOUR), clock=clock, retention=timedelta(days=1))
    work.fail("a", 1)
    with pytest.raises(bb.AgentFailed):
        await app.run("a", "hi", run_id="r")
    clock.advance(2 * HOUR)
    assert await app.prune() == 1
    clock.advance(timedelta(hours=20))
    await app.run("a", "hi", run_id="r", replace=True)
    clock.advance(timedelta(hours=10))  # the tombstone would be over by now

    assert await app.prune() == 0

    assert (await app.run("a", "hi", run_id="r")).replayed == ("a",)


async def test_trial_G5_a_run_in_use_is_never_pruned(disk: Disk, work: Work) -> None:
    clock = ManualClock(auto=True)
    flow = work.flow("a").durable(ttl=HOUR)
    app, hold = disk.app(flow, clock=clock), work.hold("a")
    task = asyncio.create_task(app.run("a", "hi", run_id="r"))
    await hold.reached.wait()
    clock.advance(timedelta(days=30))

    assert await app.prune() == 0 and await disk.app(flow, clock=clock).prune() == 0

    hold.go.set()
    assert (await task).answer == "a"
