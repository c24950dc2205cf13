"""Trials I: cancellation and shutdown."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

import bb
from bb.testing.clock import ManualClock
from bb.testing.mock_store import MockStore
from tests.trials.kit import Disk, Hold, Work, contents, cut_off, mocked, until


def leaf(name: str, handler: Any) -> bb.NamedFlow:
    return bb.Flow().with_agent(bb.Agent(name).on_message(handler)).with_id(name)


def three(work: Work) -> bb.DurableFlow:
    return work.flow("a").next(work.flow("b")).next(work.flow("c")).with_id("job").durable()


@pytest.mark.parametrize("how", ["caller", "cancel"])
async def test_trial_I1_a_cancelled_run_keeps_its_record(disk: Disk, work: Work, how: str) -> None:
    app, hold = disk.app(three(work)), work.hold("b")
    if how == "caller":
        await cut_off(app, hold, "job", "hi", run_id="r")
    else:
        task = asyncio.create_task(app.run("job", "hi", run_id="r"))
        await hold.reached.wait()
        await app.cancel("r")
        with pytest.raises(bb.RunCancelled):
            await task
    (run,) = await app.runs()
    assert run.status == ("interrupted" if how == "caller" else "cancelled")
    assert [event.path for event in await app.events("r") if event.kind == "flow.end"] == ["job/a"]

    outcome = await disk.app(three(work)).run("job", "hi", run_id="r")

    assert outcome.replayed == ("job/a",) and work.calls == ["a", "b", "b", "c"]


async def test_trial_I2_a_save_that_was_under_way_is_there_or_is_not_and_nothing_comes_later(work: Work) -> None:
    store = MockStore()
    flow = bb.All(work.flow("a"), work.flow("b")).with_id("job").durable()
    hang = store.hang_append(lambda stream, records: any(b'"job/' in record for record in records))
    task = asyncio.create_task(mocked(store, flow).run("job", "hi", run_id="r"))
    await until(lambda: hang.reached)  # a is being saved, and b is in the queue behind it
    task.cancel()
    await asyncio.sleep(0.02)
    hang.release()
    with pytest.raises(asyncio.CancelledError):
        await task
    kept = await contents(store)
    await asyncio.sleep(0.02)
    assert await contents(store) == kept

    outcome = await mocked(store, flow).run("job", "hi", run_id="r")

    saved = len(outcome.replayed)
    assert work.calls.count("a") + work.calls.count("b") == 4 - saved and saved >= 1
    assert outcome.messages[0].content == "a" and outcome.messages[1].content == "b"


@pytest.mark.parametrize("times", [1, 2, 3, 5])
async def test_trial_I4_a_second_cancellation_while_saving_changes_nothing(work: Work, times: int) -> None:
    store = MockStore()
    hang = store.hang_append(lambda stream, records: any(b'"job/a"' in record for record in records))
    task = asyncio.create_task(mocked(store, three(work)).run("job", "hi", run_id="r"))
    await until(lambda: hang.reached)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.01)
    hang.release()

    with pytest.raises(asyncio.CancelledError):
        await task

    assert (await mocked(store, three(work)).run("job", "hi", run_id="r")).replayed == ("job/a",)


async def test_trial_I5_a_cancelled_run_ends_with_exactly_one_event(disk: Disk, work: Work) -> None:
    seen = bb.Recorder()
    app, hold = disk.app(three(work), trace=seen), work.hold("b")
    callers = [asyncio.create_task(app.run("job", "hi", run_id="r")) for _ in range(3)]
    await hold.reached.wait()

    await asyncio.gather(app.cancel("r"), app.cancel("r"))
    await app.cancel("r")

    for caller in callers:
        with pytest.raises(bb.RunCancelled):
            await caller
    assert [(event.kind, event.detail) for event in seen.events if event.kind == "run.end"] == [
        ("run.end", "cancelled")
    ]
    assert [run.status for run in await app.runs()] == ["cancelled"]
    assert [event.detail for event in await app.events("r") if event.kind == "run.end"] == ["cancelled"]


async def test_trial_I5_a_holder_elsewhere_hears_of_it_in_time(disk: Disk, work: Work) -> None:
    app, hold = disk.app(three(work)), work.hold("b")
    task = asyncio.create_task(app.run("job", "hi", run_id="r"))
    await hold.reached.wait()
    began = time.monotonic()

    other = disk.app(three(work))
    await other.cancel("r")
    await other.cancel("r")  # asking again changes nothing

    with pytest.raises(bb.RunCancelled):
        await task
    assert time.monotonic() - began < 2
    assert [run.status for run in await other.runs()] == ["cancelled"]
    assert not [name for name in await contents(app.store) if name.startswith("control/")]


async def test_trial_I5_a_run_that_nobody_runs_is_cancelled_at_once(disk: Disk, work: Work) -> None:
    flow = three(work)
    await cut_off(disk.app(flow), work.hold("b"), "job", "hi", run_id="r")
    app = disk.app(flow)

    await app.cancel("r")

    assert [run.status for run in await app.runs()] == ["cancelled"]
    with pytest.raises(bb.UnknownRun):
        await app.cancel("nobody")


async def test_trial_I5_a_cancelled_job_does_not_come_back(disk: Disk, work: Work) -> None:
    flow = three(work)
    await disk.app(flow).submit("job", "hi", run_id="r")
    await disk.app(flow).cancel("r")

    async with disk.app(flow) as app:
        await asyncio.sleep(0.05)
        assert [run.status for run in await app.runs()] == ["cancelled"] and work.calls == []


@pytest.mark.parametrize("scope", ["anyio", "anyio group", "asyncio", "wait_for"])
@pytest.mark.parametrize("durable", [True, False])
async def test_trial_I7_a_deadline_ends_a_run_promptly_and_idly(
    disk: Disk, work: Work, scope: str, durable: bool
) -> None:
    async def tidy(turn: bb.Turn, chat: bb.ModelChat) -> None:
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0)

    named = leaf("slow", tidy)
    flow = named.durable() if durable else named
    app = disk.app(flow)
    began, cpu = time.monotonic(), time.process_time()

    if scope == "anyio":
        with anyio.move_on_after(0.1) as deadline:
            await app.run("slow", "hi", run_id="r")
        assert deadline.cancelled_caught
    elif scope == "anyio group":
        async with anyio.create_task_group() as group:
            group.start_soon(app.run, "slow", "hi")
            await anyio.sleep(0.1)
            group.cancel_scope.cancel()
    elif scope == "asyncio":
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await app.run("slow", "hi", run_id="r")
    else:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(app.run("slow", "hi", run_id="r"), 0.1)

    assert time.monotonic() - began < 2 and time.process_time() - cpu < 0.5


async def test_trial_I7_a_handler_slow_to_end_does_not_make_a_deadline_spin(work: Work) -> None:
    async def slow(turn: bb.Turn, chat: bb.ModelChat) -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)
            raise

    app = mocked(MockStore(), leaf("slow", slow).durable())
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.01)

    counter = asyncio.create_task(count())
    cpu = time.process_time()
    with anyio.move_on_after(0.05):
        await app.run("slow", "hi", run_id="r")
    await asyncio.sleep(0.6)
    counter.cancel()

    assert time.process_time() - cpu < 0.4 and turns > 20


WHERE: ContextVar[str] = ContextVar("where", default="outside")


async def test_trial_I8_a_handlers_cleanup_runs_once_and_in_its_own_context(disk: Disk) -> None:
    cleaned: list[tuple[str, str, str]] = []
    hold = Hold()

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        WHERE.set(turn.run_id)
        try:
            hold.reached.set()
            await hold.go.wait()
        finally:
            cleaned.append((WHERE.get(), turn.run_id, bb.idempotency_key()))
        turn.reply("done")

    flow = leaf("a", handler).durable()
    app = disk.app(flow)
    await cut_off(app, hold, "a", "hi", run_id="r")
    gc.collect()
    assert [entry[:2] for entry in cleaned] == [("r", "r")] and WHERE.get() == "outside"
    hold.go.set()

    await disk.app(flow).run("a", "hi", run_id="r")

    assert [entry[:2] for entry in cleaned] == [("r", "r"), ("r", "r")] and len({key for *_, key in cleaned}) == 1


async def test_trial_I8_a_handler_that_swallows_a_cancel_is_the_last_one_to_run(disk: Disk, work: Work) -> None:
    hold = Hold()

    async def stubborn(turn: bb.Turn, chat: bb.ModelChat) -> None:
        hold.reached.set()
        try:
            await hold.go.wait()
        except asyncio.CancelledError:
            turn.reply("half an answer")

    flow = leaf("stubborn", stubborn).next(work.flow("b")).with_id("job").durable()
    app = disk.app(flow)
    task = asyncio.create_task(app.run("job", "hi", run_id="r"))
    await hold.reached.wait()

    await app.cancel("r")

    with pytest.raises(bb.RunCancelled):
        await task
    assert work.calls == [] and [run.status for run in await app.runs()] == ["cancelled"]
    hold.go.set()
    with_all = asyncio.create_task(disk.app(flow).run("job", "hi", run_id="r"))
    await with_all
    assert with_all.result().replayed == ()  # half an answer was not kept


async def test_trial_I10_a_hung_run_with_retries_left_can_be_ended(disk: Disk, work: Work) -> None:
    flow = work.flow("a").next(work.flow("b").durable(retries=5)).with_id("job").durable(retries=5)
    app, hold = disk.app(flow), work.hold("b")
    task = asyncio.create_task(app.run("job", "hi", run_id="r"))
    await hold.reached.wait()

    await app.cancel("r")

    with pytest.raises(bb.RunCancelled):
        await task
    await asyncio.sleep(0.02)
    assert work.count("b") == 1
    assert (await app.run("job", "hi", run_id="r")).answer == "b"  # and its id is free for a new attempt


async def test_trial_I10_a_cancel_during_the_pause_before_a_retry(work: Work) -> None:
    clock = ManualClock()
    app = mocked(MockStore(), work.flow("a").durable(retries=5), clock=clock)
    work.fail("a", 5)
    task = asyncio.create_task(app.run("a", "hi", run_id="r"))
    await until(lambda: clock.sleepers)

    await app.cancel("r")

    with pytest.raises(bb.RunCancelled):
        await task
    assert work.count("a") == 1 and clock.sleepers == 0


SHUTDOWN = """
    import asyncio, sys, threading, time
    import bb

    def leaf(name, seconds=0.0):
        async def handler(turn, chat):
            await asyncio.sleep(seconds)
            turn.reply("x" * 100_000)
        return bb.Flow().with_agent(bb.Agent(name).on_message(handler)).with_id(name)

    flow = leaf("a").next(leaf("b", 30)).with_id("job").durable()
    app = bb.App(store=bb.FileStore(sys.argv[1], fsync=True))

    async def main():
        for n in range(20):
            asyncio.ensure_future(app.run(flow, "hi", run_id=f"r{n}"))
        await asyncio.sleep(float(sys.argv[2]))

    asyncio.run(main())
    print(len(threading.enumerate()) < 10)
"""


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.1])
def test_trial_I11_a_loop_that_ends_while_the_store_writes_ends_quietly(tmp_path: Path, seconds: float) -> None:
    command = [sys.executable, "-X", "dev", "-c", textwrap.dedent(SHUTDOWN), str(tmp_path / "state"), str(seconds)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 0 and ended.stdout == "True\n"
    assert ended.stderr == ""
    app = bb.App(store=bb.FileStore(tmp_path / "state"))

    async def statuses() -> set[str]:
        async with app:
            return {run.status for run in await app.runs()}

    assert asyncio.run(statuses()) <= {"interrupted"}


async def test_trial_I11_nothing_is_left_behind(tmp_path: Path, work: Work) -> None:
    before = threading.active_count()
    for n in range(5):
        app = bb.App(store=bb.FileStore(tmp_path / f"state{n}"))
        await app.run(work.flow("a").durable(), "hi", run_id="r")
        await app.stop(timedelta(0))
    await until(lambda: threading.active_count() <= before + 1)
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


# --- joiners ----------------------------------------------------------------------------------------------------------


async def test_trial_I1_the_run_goes_on_while_anybody_waits(disk: Disk, work: Work) -> None:
    app, hold = disk.app(three(work)), work.hold("b")
    callers = [asyncio.create_task(app.run("job", "hi", run_id="r")) for _ in range(3)]
    await hold.reached.wait()
    for caller in callers[:2]:
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
    hold.go.set()

    assert (await callers[2]).answer == "c" and work.calls == ["a", "b", "c"]


@pytest.mark.parametrize("detach", [True, False])
async def test_trial_I1_the_last_to_leave_turns_off_the_light_unless_detached(
    disk: Disk, work: Work, detach: bool
) -> None:
    app, hold = disk.app(three(work)), work.hold("b")
    callers = [asyncio.create_task(app.run("job", "hi", run_id="r", detach=detach)) for _ in range(2)]
    await hold.reached.wait()
    for caller in callers:
        caller.cancel()
    await asyncio.wait(callers)
    hold.go.set()

    async def status() -> str:
        return (await app.runs())[0].status

    if detach:

        async def finished() -> bool:
            return await status() == "finished"

        await until(finished)
        assert work.calls == ["a", "b", "c"]
    else:
        assert await status() == "interrupted" and work.calls == ["a", "b"]


async def test_trial_I1_one_who_joins_detached_keeps_the_run_for_all(disk: Disk, work: Work) -> None:
    app, hold = disk.app(three(work)), work.hold("b")
    first = asyncio.create_task(app.run("job", "hi", run_id="r"))
    await hold.reached.wait()
    second = asyncio.create_task(app.run("job", "hi", run_id="r", detach=True))
    await asyncio.sleep(0.01)
    for caller in (second, first):
        caller.cancel()
        with suppress(asyncio.CancelledError):
            await caller
    hold.go.set()

    async def finished() -> bool:
        return [run.status for run in await app.runs()] == ["finished"]

    await until(finished)
    assert work.calls == ["a", "b", "c"]


async def test_trial_I1_a_stream_that_is_left_interrupts_its_run(disk: Disk, work: Work) -> None:
    app, hold = disk.app(three(work)), work.hold("b")
    async with app.stream("job", "hi", run_id="r"):
        await hold.reached.wait()

    assert [run.status for run in await app.runs()] == ["interrupted"] and work.calls == ["a", "b"]


async def test_trial_I1_a_joiner_takes_over_when_the_loop_of_the_runner_ends(disk: Disk, work: Work) -> None:
    app, started = disk.app(three(work)), threading.Event()
    gate = threading.Event()

    def other() -> None:
        async def main() -> None:
            hold = work.hold("b")
            task = asyncio.ensure_future(app.run("job", "hi", run_id="r"))
            await hold.reached.wait()
            started.set()
            await asyncio.to_thread(gate.wait)
            del task

        asyncio.run(main())  # cancels what is still running

    thread = threading.Thread(target=other)
    thread.start()
    await asyncio.to_thread(started.wait)
    joined = asyncio.create_task(app.run("job", "hi", run_id="r"))
    await asyncio.sleep(0.05)
    gate.set()

    outcome = await asyncio.wait_for(joined, 20)
    await asyncio.to_thread(thread.join)
    assert outcome.answer == "c" and outcome.replayed == ("job/a",) and work.calls == ["a", "b", "b", "c"]


async def test_trial_I1_stopping_the_app_tells_its_callers(disk: Disk, work: Work) -> None:
    app, hold = disk.app(three(work)), work.hold("b")
    caller = asyncio.create_task(app.run("job", "hi", run_id="r"))
    await hold.reached.wait()

    await app.stop(timedelta(0))

    with pytest.raises(bb.Interrupted):
        await caller
    assert [run.status for run in await disk.app(three(work)).runs()] == ["interrupted"]
