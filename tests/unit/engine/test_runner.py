"""Admission, joining, taking over: what happens around the walk of a run."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import bb
from bb.engine.runs import leases
from bb.engine.runs.live import Live
from bb.log import run_stream
from bb.testing.clock import ManualClock
from bb.testing.mock_store import MockStore
from tests.trials.kit import Disk, Work, contents, cut_off, mocked, until


async def test_a_fresh_id_is_made_up_and_told(disk: Disk, work: Work) -> None:
    app = disk.app(work.flow("a").durable())

    one, two = await app.run("a", "hi"), await app.run("a", "hi")

    assert one.run_id != two.run_id and one.session_id == one.run_id
    assert (await app.run("a", "hi", run_id=one.run_id)).replayed == ("a",)


async def test_a_session_belongs_to_its_run(disk: Disk, work: Work) -> None:
    app = disk.app(work.flow("a").durable())
    outcome = await app.run("a", "hi", run_id="r", session_id="s")
    assert outcome.session_id == "s"

    with pytest.raises(bb.InputConflict, match="session"):
        await app.run("a", "hi", run_id="r", session_id="other")

    assert (await app.run("a", "hi", run_id="r")).session_id == "s"


async def test_params_are_kept_with_the_run(disk: Disk) -> None:
    seen: list[Any] = []

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        seen.append((dict(turn.params), turn.payload(dict), turn.metadata(dict), turn.request.model, turn.run_id))
        if len(seen) == 1:
            raise ValueError("once")
        turn.reply("done")

    flow = bb.Flow().with_agent(bb.Agent("a").on_message(handler)).with_id("a").durable()
    given = bb.Input((bb.Message("hi"),), bb.Request(model="m"), {"p": 1}, {"h": "v"})
    with pytest.raises(bb.AgentFailed):
        await disk.app(flow).run("a", given, params={"x": (1, 2)}, run_id="r")

    await disk.app(flow).run("a", run_id="r")

    assert seen[0] == seen[1] == ({"x": (1, 2)}, {"p": 1}, {"h": "v"}, "m", "r")


async def test_a_fenced_run_that_was_to_replace_joins_and_does_not_replace_again(work: Work) -> None:
    clock = ManualClock()
    store = MockStore(clock)
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()
    await mocked(store, flow).run("job", "hi", run_id="r")
    hold = work.hold("a")
    old = asyncio.create_task(mocked(store, flow).run("job", "hi", run_id="r", replace=True))
    await hold.reached.wait()
    clock.advance(leases.LEASE_SECONDS + 1)
    await mocked(store, flow).run("job", "hi", run_id="r")
    kept = await store.read(run_stream("r"))
    hold.go.set()

    assert (await old).replayed == ("job/a", "job/b")

    assert await store.read(run_stream("r")) == kept


async def test_a_run_that_lost_its_lease_while_its_step_waits_is_stopped(work: Work) -> None:
    clock = ManualClock()
    store = MockStore(clock)
    flow = work.flow("a").durable()
    app = mocked(store, flow)
    app._runner.leases.keeper._seconds = 0.1  # so that it looks after its lease at once
    hold = work.hold("a")
    old = asyncio.create_task(app.run("a", "hi", run_id="r"))
    await hold.reached.wait()
    clock.advance(leases.LEASE_SECONDS + 1)

    new = await mocked(store, flow).run("a", "hi", run_id="r")

    assert (await asyncio.wait_for(old, 5)).messages == new.messages  # though nobody let its own step go on
    assert work.count("a") == 2


async def test_a_caller_from_another_loop_joins(disk: Disk, work: Work) -> None:
    app, hold = disk.app(work.flow("a").durable()), work.hold("a")
    task = asyncio.create_task(app.run("a", "hi", run_id="r"))
    await hold.reached.wait()
    results: list[bb.Outcome] = []

    def other() -> None:
        results.append(asyncio.run(app.run("a", "hi", run_id="r")))

    thread = threading.Thread(target=other)
    thread.start()
    await asyncio.sleep(0.05)
    hold.go.set()
    outcome = await task
    await asyncio.to_thread(thread.join)

    assert results == [outcome] and work.count("a") == 1


async def test_an_error_reaches_every_joiner(disk: Disk, work: Work) -> None:
    app, hold = disk.app(work.flow("a").durable()), work.hold("a")
    hold.error = ValueError("no luck")
    tasks = [asyncio.create_task(app.run("a", "hi", run_id="r")) for _ in range(3)]
    await hold.reached.wait()
    hold.go.set()

    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert {str(result) for result in results} == {str(results[0])} and isinstance(results[0], bb.AgentFailed)


async def test_one_loop_after_the_other_may_use_an_app(work: Work) -> None:
    app = bb.App()
    flow = work.flow("a").durable()

    def in_a_loop_of_its_own() -> bb.Outcome:
        return asyncio.run(app.run(flow, "hi", run_id="r"))

    first = await asyncio.to_thread(in_a_loop_of_its_own)
    second = await asyncio.to_thread(in_a_loop_of_its_own)
    await app.stop()

    assert first.messages == second.messages and work.count("a") == 1


def test_a_run_whose_loop_died_is_taken_up(work: Work) -> None:
    app = bb.App()
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        hold = work.hold("b")
        behind.append(loop.create_task(app.run(flow, "hi", run_id="r")))
        await hold.reached.wait()

    behind: list[asyncio.Task[bb.Outcome]] = []
    loop.run_until_complete(begin())
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # what this loop leaves behind is the point
    loop.close()  # without cancelling anything, as a crashing framework does
    behind.clear()
    del task

    async def again() -> bb.Outcome:
        outcome = await app.run(flow, "hi", run_id="r")
        await app.stop()
        return outcome

    assert asyncio.run(again()).replayed == ("job/a",)
    gc.collect()  # and what was left behind goes quietly, in this context


async def test_waiting_for_a_holder_takes_real_time_and_no_more_than_asked(disk: Disk, work: Work) -> None:
    flow = work.flow("a").durable()
    hold = work.hold("a")
    task = asyncio.create_task(disk.app(flow).run("a", "hi", run_id="r"))
    await hold.reached.wait()
    loop = asyncio.get_running_loop()
    began = loop.time()

    with pytest.raises(bb.RunBusy, match="another process"):
        await disk.app(flow, clock=ManualClock(auto=True)).run("a", "hi", run_id="r", wait=timedelta(seconds=0.2))

    assert 0.15 < loop.time() - began < 1
    task.cancel()
    await asyncio.wait([task])


async def test_a_store_that_cannot_give_a_lease_back_does_not_hide_the_outcome(work: Work) -> None:
    class Stubborn(MockStore):
        async def release(self, lease: bb.Lease) -> None:
            raise bb.StoreError("no")

    assert (await mocked(Stubborn(), work.flow("a").durable()).run("a", "hi", run_id="r")).answer == "a"


async def test_a_finished_run_replays_while_its_lease_is_held(disk: Disk, work: Work) -> None:
    flow = work.flow("a").durable()
    app = disk.app(flow)
    await app.run("a", "hi", run_id="r")
    lease = await app.store.acquire(run_stream("r"), "somebody", 30)
    assert lease is not None

    outcome = await app.run("a", "hi", run_id="r", wait=timedelta(0))

    assert outcome.replayed == ("a",)
    await app.store.release(lease)


async def test_nothing_is_left_live(disk: Disk, work: Work) -> None:
    flow = work.flow("a").durable()
    app = disk.app(flow)
    await app.run("a", "hi", run_id="r1")
    work.fail("a", 1)
    with pytest.raises(bb.AgentFailed):
        await app.run("a", "hi", run_id="r2")
    await cut_off(app, work.hold("a"), "a", "hi", run_id="r3")
    with pytest.raises(bb.InputConflict):
        await app.run("a", "ho", run_id="r1")

    assert app._runner.live == {}
    assert [await app.store.holder(run_stream(run_id)) for run_id in ("r1", "r2", "r3")] == [None] * 3


async def test_a_run_partly_durable_remembers_that_part(disk: Disk, work: Work) -> None:
    flow = work.flow("before").next(work.flow("kept").durable()).next(work.flow("after")).with_id("job")
    app = disk.app(flow)
    await app.run("job", "hi", run_id="r")

    outcome = await disk.app(flow).run("job", "hi", run_id="r")

    assert outcome.replayed == ("job/kept",)
    assert work.calls == ["before", "kept", "after", "before", "after"]
    assert [name for name in await contents(app.store) if name.startswith("run/")] == ["run/r"]


async def test_many_runs_of_a_registered_and_of_an_unregistered_flow(disk: Disk, work: Work) -> None:
    flow = work.flow("a").durable()
    app = disk.app()
    await asyncio.gather(*(app.run(flow, "hi", run_id=f"r{n}") for n in range(50)))
    app.register(flow)
    outcomes = await asyncio.gather(*(app.run("a", "hi", run_id=f"r{n}") for n in range(50)))

    assert all(outcome.replayed == ("a",) for outcome in outcomes) and work.count("a") == 50
    await until(lambda: app._runner.live == {})


async def test_a_lost_lease_is_told_wherever_its_cancellation_met_the_run() -> None:
    live = Live("r", "a", None, False)

    async def main() -> bb.Outcome:
        await asyncio.sleep(60)  # not in the journal, which would tell by itself
        raise AssertionError

    live.enter()
    live.start(main())
    live.enter()
    elsewhere = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(live.outcome())))
    await asyncio.sleep(0.05)
    live.lose(bb.Fenced("the lease went to another"))

    with pytest.raises(bb.Fenced):
        await live.outcome()
    with pytest.raises(bb.Fenced):
        await elsewhere


async def test_a_cancel_that_comes_when_the_end_is_being_recorded_is_too_late(work: Work) -> None:
    store = Slow()
    app = bb.App(store=store)
    flow = work.flow("a").durable()
    seen = set()

    for turns in range(12):
        run = asyncio.create_task(app.run(flow, "hi", run_id=f"r{turns}"))
        await asyncio.sleep(turns * 0.0015)
        with suppress(bb.UnknownRun):
            await app.cancel(f"r{turns}")
        (told,) = await asyncio.gather(run, return_exceptions=True)
        status = {info.run_id: info.status for info in await app.runs()}.get(f"r{turns}")
        seen.add((type(told), status))

    assert seen <= {(bb.Outcome, "finished"), (bb.RunCancelled, "cancelled"), (bb.RunCancelled, None)}


class Slow(bb.MemStore):
    """Completes an append some time after it was written."""

    def append(self, *args: Any, **kwargs: Any) -> asyncio.Future[int]:
        future = super().append(*args, **kwargs)

        async def later() -> int:
            await asyncio.sleep(0.004)
            return await future

        return asyncio.ensure_future(later())


async def test_a_caller_who_leaves_while_it_asks_for_the_lease_does_not_keep_it(work: Work, tmp_path: Path) -> None:
    asked = asyncio.Event()

    class Telling(bb.FileStore):
        async def acquire(self, name: str, owner: str, seconds: float) -> bb.Lease | None:
            asked.set()
            return await super().acquire(name, owner, seconds)

    app = bb.App(store=Telling(tmp_path))
    flow = work.flow("a").durable()
    run = asyncio.create_task(app.run(flow, "hi", run_id="r"))
    await asked.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run

    assert await app.store.holder(run_stream("r")) is None
    assert (await app.run(flow, "hi", run_id="r", wait=timedelta(0))).answer == "a"
    await app.stop()


class Rival(bb.MemStore):
    """Lets somebody else act just before a lease is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.acts: list[Callable[[], Awaitable[object]]] = []

    async def acquire(self, name: str, owner: str, seconds: float) -> bb.Lease | None:
        while self.acts:
            await self.acts.pop()()
        return await super().acquire(name, owner, seconds)


async def test_a_run_started_over_while_another_waits_for_it_is_not_mixed_with_the_old_one(work: Work) -> None:
    store = Rival()
    flow = work.flow("a").next(work.flow("b")).with_id("f").durable()
    mine, other = bb.App(store=store), bb.App(store=store)
    work.fail("b", 1)
    with pytest.raises(bb.AgentFailed):
        await mine.run(flow, "old", run_id="r")
    store.acts = [lambda: other.run(flow, "new", run_id="r", replace=True)]

    with pytest.raises(bb.InputConflict):
        await mine.run(flow, "old", run_id="r")

    assert (await other.run(flow, "new", run_id="r")).replayed == ("f/a", "f/b")


async def test_a_replay_writes_nothing_into_a_run_started_over_meanwhile(work: Work) -> None:
    store = Rival()
    flow = work.flow("a").durable().next(work.flow("pause")).next(work.flow("b").durable()).with_id("f")
    changed = work.flow("a").durable().next(work.flow("pause")).next(work.flow("b", version="2").durable()).with_id("f")
    mine, other = bb.App(store=store), bb.App(store=store)
    await mine.run(flow, "old", run_id="r")
    store.acts = [lambda: other.run(flow, "new", run_id="r", replace=True)]

    with pytest.raises(bb.InputConflict):
        await mine.run(changed, "old", run_id="r")

    assert (await other.run(flow, "new", run_id="r")).replayed == ("f/a", "f/b")


async def test_input_and_steps_may_hold_classes_registered_with_functions_of_their_own(disk: Disk) -> None:
    class Point:
        def __init__(self, x: int) -> None:
            self.x = x

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.reply(str(await turn.step("double", lambda point: point.x * 2, Point(2))))

    flow = bb.Flow().with_agent(bb.Agent("a").on_message(handler)).with_id("a").durable()
    app = disk.app()
    app.types.register(Point, dump=lambda point: point.x, load=Point)
    given = bb.Input((bb.Message("hi"),), payload=Point(1))

    assert (await app.run(flow, given, run_id="r")).answer == "4"

    with pytest.raises(bb.InputConflict):
        await app.run(flow, bb.Input((bb.Message("hi"),), payload=Point(3)), run_id="r")


async def test_params_are_input_too(disk: Disk, work: Work) -> None:
    app = disk.app()
    flow = work.flow("a").durable()
    await app.run(flow, params={"x": 1}, run_id="r")

    assert (await app.run(flow, params={"x": 1}, run_id="r")).replayed == ("a",)
    assert (await app.run(flow, run_id="r")).replayed == ("a",)
    with pytest.raises(bb.InputConflict):
        await app.run(flow, params={"x": 2}, run_id="r")


async def test_stop_reaches_a_run_that_another_of_its_id_is_to_replace(disk: Disk, work: Work) -> None:
    hold = work.hold("a")
    app = disk.app(work.flow("a").durable())
    old = asyncio.create_task(app.run("a", "hi", run_id="r"))
    await hold.reached.wait()
    new = asyncio.create_task(app.run("a", "ho", run_id="r", replace=True))
    await asyncio.sleep(0)

    await app.stop(timedelta(0))

    told = await asyncio.gather(old, new, return_exceptions=True)
    assert [type(one) for one in told] == [bb.Interrupted, bb.Interrupted]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_who_waits_for_a_run_whose_loop_is_closed_takes_it_over(work: Work) -> None:
    app = bb.App()
    flow = work.flow("a").durable()
    loop = asyncio.new_event_loop()

    async def begin() -> asyncio.Task[bb.Outcome]:
        hold = work.hold("a")
        task = asyncio.create_task(app.run(flow, "hi", run_id="r"))
        await hold.reached.wait()
        return task

    task = loop.run_until_complete(begin())
    answers: list[str] = []

    def join() -> None:
        async def wait() -> bb.Outcome:
            return await asyncio.wait_for(app.run(flow, "hi", run_id="r"), 10)

        answers.append(asyncio.run(wait()).answer)

    thread = threading.Thread(target=join)
    thread.start()
    threading.Event().wait(0.2)
    loop.close()
    thread.join()

    assert answers == ["a"]
    del task
    gc.collect()


async def test_apps_that_come_and_go_leave_no_threads(work: Work) -> None:
    flow = work.flow("a").durable()
    before = threading.active_count()

    for _ in range(50):
        await bb.run(flow, "hi")

    assert threading.active_count() - before < 10
