"""Trials L: events, awaits and human answers; and C16, waiting after an effect."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import bb
from bb.engine.memory.mailbox import answer
from bb.engine.runs.leases import Leases
from bb.errors import NotWaiting
from bb.flows.refs import ref
from bb.flows.tree import (
    AiSegment,
    Await,
    Each,
    Emit,
    Memo,
    Once,
    Repeat,
    Return,
    Saga,
    Scope,
    Step,
    Timeout,
    Try,
    When,
)
from bb.log import Parked, decode, run_stream
from bb.stores.base import Lease
from bb.testing.mock_store import MockStore
from tests.trials.kit import Disk, Work, contents, mocked, until


def listening(*sources: str, **options: Any) -> bb.DurableFlow:
    """Awaits one event after the other, and gives them all."""
    awaits = [Await(source, bind=f"x{number}") for number, source in enumerate(sources)]
    flow: Any = awaits[0]
    for wait in awaits[1:]:
        flow = flow >> wait
    heard = [ref(f"x{number}") for number in range(len(sources))]
    done: bb.NamedFlow = (flow >> Return(heard)).with_id("f")
    return done.durable(**options)


async def finished(app: bb.App, run_id: str) -> bb.Outcome:
    """The outcome of a run that goes on by itself."""

    async def is_over() -> bool:
        return any(run.run_id == run_id and run.status == "finished" for run in await app.runs())

    await until(is_over)
    return await app.run("f", run_id=run_id)


# --- L1, L2: early events ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before the run", "before the await", "same tick"])
async def test_trial_L1_an_event_that_comes_early_is_kept(disk: Disk, work: Work, when: str) -> None:
    flow = (work.flow("a") >> Await("door", bind="x") >> Return(ref("x"))).with_id("f").durable()
    app, hold = disk.app(flow), work.hold("a")
    if when == "before the run":
        assert (await app.deliver("door", "open", session_id="s")).run_id is None
    running = asyncio.create_task(app.run("f", "hi", run_id="r", session_id="s"))
    await hold.reached.wait()
    if when == "before the await":
        assert (await app.deliver("door", "open", session_id="s")).run_id is None
    hold.go.set()
    if when == "same tick":
        await app.deliver("door", "open", session_id="s")

    await running

    assert (await finished(app, "r")).value == "open" and work.calls == ["a"]


async def test_trial_L2_one_early_event_is_for_one_await(disk: Disk) -> None:
    app = disk.app(listening("a", "a", "a"))
    await app.deliver("a", "early", session_id="s")
    assert (await app.run("f", run_id="r", session_id="s")).waiting_for == "a"
    (parked,) = [f for f in [decode(r, "") for r in await disk.store().read(run_stream("r"))] if isinstance(f, Parked)]
    assert parked.path == "f/body~await.1"

    for payload in ("second", "third"):
        await app.deliver("a", payload, session_id="s")

    assert (await finished(app, "r")).value == ["early", "second", "third"]


async def test_trial_L2_the_same_delivery_again_is_one_event(disk: Disk) -> None:
    app = disk.app(listening("a", "a"))
    await app.run("f", run_id="r", session_id="s")
    for _ in range(3):
        assert (await app.deliver("a", "first", session_id="s", delivery_id="d1")).run_id == "r"

    async def moved() -> bool:
        (run,) = await app.runs()
        return run.status == "parked" and len([e for e in await app.events("r") if e.kind == "run.parked"]) == 2

    await until(moved)
    assert (await app.deliver("a", "first", session_id="s", delivery_id="d1")).run_id == "r"
    assert (await app.run("f", run_id="r")).waiting_for == "a"

    await app.deliver("a", "second", session_id="s", delivery_id="d2")

    assert (await finished(app, "r")).value == ["first", "second"]


async def test_the_run_that_waits_longest_gets_the_event(disk: Disk) -> None:
    app = disk.app(listening("a"))
    for run_id in ("r1", "r2"):  # the second was started before the first had parked
        await app.run("f", run_id=run_id, session_id="s" if run_id == "r1" else "t")

    assert (await app.deliver("a", 1, session_id="s")).run_id == "r1"
    assert (await app.deliver("a", 2, session_id="t")).run_id == "r2"
    assert (await finished(app, "r1")).value == [1] and (await finished(app, "r2")).value == [2]


# --- L4: another process ----------------------------------------------------------------------------------------------

_HOLDER = """
    import asyncio, sys
    import bb
    from bb.engine.runs import jobs
    from bb.flows.refs import ref
    from bb.flows.tree import Await, Return

    jobs.SWEEP = 0.05

    async def main():
        app = bb.App(store=bb.FileStore(sys.argv[1]))
        app.register((Await("a", bind="x") >> Return(ref("x"))).with_id("f").durable())
        async with app:
            print("started", flush=True)
            await asyncio.to_thread(sys.stdin.read)

    asyncio.run(main())
"""


def _started(directory: Path) -> subprocess.Popen[str]:
    """A process with a started app, until its input ends."""
    command = [sys.executable, "-c", textwrap.dedent(_HOLDER), str(directory)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def test_trial_L4_an_event_for_a_run_of_another_process_is_heard_there(tmp_path: Path) -> None:
    flow = (Await("a", bind="x") >> Return(ref("x"))).with_id("f").durable()
    store = bb.FileStore(tmp_path / "state")
    here, there = bb.App(store=store), bb.App(store=bb.FileStore(tmp_path / "state"))
    there.register(flow)
    await there.run("f", run_id="r", session_id="s")
    holder = _started(tmp_path / "state")
    try:
        assert holder.stdin is not None and holder.stdout is not None
        assert await asyncio.to_thread(holder.stdout.readline) == "started\n"

        assert (await here.deliver("a", "over there", session_id="s")).run_id == "r"

        async def is_over() -> bool:
            return [run.status for run in await here.runs()] == ["finished"]

        await until(is_over, 30)
        assert (await there.run("f", run_id="r")).value == "over there"
    finally:
        holder.communicate()
        for app in (here, there):
            await app.stop(timedelta(0))


async def test_trial_L4_who_starts_after_the_delivery_goes_on_with_the_run(disk: Disk) -> None:
    await disk.app(listening("a")).run("f", run_id="r", session_id="s")
    await disk.app(listening("a")).run("f", run_id="still", session_id="t")
    await disk.app().deliver("a", 1, session_id="s")

    async with disk.app(listening("a")) as app:
        assert (await finished(app, "r")).value == [1]
        assert {run.run_id: (run.status, run.attempts) for run in await app.runs()}["still"] == ("parked", 1)


async def test_trial_L4_a_leg_that_was_cut_off_goes_on_at_the_next_start(disk: Disk, work: Work) -> None:
    flow = (Await("a", bind="x") >> work.flow("b") >> Return(ref("x"))).with_id("f").durable()
    app, hold = disk.app(flow), work.hold("b")
    await app.run("f", run_id="r", session_id="s")
    await app.deliver("a", 1, session_id="s")
    await hold.reached.wait()
    await app.stop(timedelta(0))
    assert [run.status for run in await disk.app().runs()] == ["interrupted"]

    async with disk.app(flow) as app:
        assert (await finished(app, "r")).value == 1 and work.calls == ["b", "b"]


async def test_with_resume_on_reregister_it_waits_for_its_flow(disk: Disk) -> None:
    flow = listening("a", resume_on_reregister=True)
    await disk.app(flow).run("f", run_id="r", session_id="s")
    await disk.app().deliver("a", 1, session_id="s")

    async with disk.app(flow) as app:
        await asyncio.sleep(0.05)
        assert [run.status for run in await app.runs()] == ["parked"]
        app.register(flow)
        assert (await finished(app, "r")).value == [1]


# --- L5, L8: answers --------------------------------------------------------------------------------------------------


async def test_trial_L5_the_first_answer_stands(disk: Disk) -> None:
    flow = (
        (
            (Emit("Pay?") >> Await("user", bind="yes", type="Bool"))
            >> Await("user", bind="sure", type="Bool")
            >> Return([ref("yes"), ref("sure")])
        )
        .with_id("f")
        .durable()
    )
    session = disk.app(flow).session("f", "s")
    await session.start()
    (parked,) = await disk.app()._conversations.parked("s")
    await session.send("true", turn_id="t1")

    rows = disk.app()._runner.sessions.rows("s")
    with pytest.raises(NotWaiting, match="answered already"):
        await answer(rows, "user", parked.run, parked.path, "false", "t2")

    assert (await session.send("true", turn_id="t3")).outcome.value == [True, True]


async def test_trial_L8_of_five_equal_messages_each_is_one_turn(disk: Disk) -> None:
    app = disk.app(listening(*["user"] * 5))
    session = app.session("f", "s")
    turns = [await session.start()]

    for _ in range(5):
        assert not turns[-1].done
        turns.append(await session.send("again"))

    assert turns[-1].outcome.value == ["again"] * 5 and len({turn.turn_id for turn in turns}) == 6


async def test_trial_L8_of_five_equal_events_each_wakes_the_run_once(disk: Disk) -> None:
    app = disk.app(listening(*["user"] * 5))
    await app.run("f", run_id="r", session_id="s")

    for _ in range(5):
        await app.deliver("user", "again", session_id="s")

    assert (await finished(app, "r")).value == ["again"] * 5
    assert len([event for event in await app.events("r") if event.kind == "run.parked"]) <= 5


# --- L7: where an await may stand -------------------------------------------------------------------------------------

WAIT = Await("a", bind="x")
PLACES: dict[str, Callable[[], bb.AnyFlow]] = {
    "memo": lambda: Memo("m", WAIT),  # type: ignore[arg-type]
    "once": lambda: Once("o", WAIT),
    "scope": lambda: Scope(WAIT),
    "finally": lambda: Scope(Emit("a"), finally_=(WAIT,)),
    "saga": lambda: Saga(Step(WAIT)),
    "undo": lambda: Saga(Step(Emit("a"), undo=WAIT)),
    "group": lambda: bb.Group(WAIT, Emit("a")),
    "all": lambda: bb.All(WAIT, Emit("a")),
    "one": lambda: bb.One(WAIT, Emit("a")),
    "when": lambda: When(True, WAIT),
    "each": lambda: Each("i", [1], WAIT),
    "repeat": lambda: Repeat(2, WAIT),
    "try": lambda: Try(WAIT, handler=(Emit("a"),)),
    "timeout": lambda: Timeout(timedelta(seconds=1), WAIT),
    "named child": lambda: WAIT.with_id("child"),
    "segment": lambda: AiSegment("do it", until=WAIT),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("place", PLACES)
def test_trial_L7_an_await_anywhere_else_is_refused_before_anything_runs(place: str) -> None:
    def register() -> None:
        bb.App().register((Emit("first") >> PLACES[place]()).with_id("f").durable())

    with pytest.raises(bb.WiringError):
        register()


# --- C16 --------------------------------------------------------------------------------------------------------------


async def test_trial_C16_what_was_done_before_an_await_is_not_done_again(disk: Disk, work: Work) -> None:
    """Regression 'await in ledger': elsewhere a resume ran what stood before the await again."""
    flow = (work.flow("a") >> Await("door", bind="x") >> work.flow("b") >> Return(ref("x"))).with_id("f").durable()

    async def waits_at() -> list[tuple[str, str]]:
        return [(row.run, row.path) for row in await disk.app()._conversations.parked("s")]

    await disk.app(flow).run("f", "hi", run_id="r", session_id="s")
    first = await waits_at()
    for _ in range(3):
        assert (await disk.app(flow).run("f", run_id="r")).waiting_for == "door"
    assert await waits_at() == first and work.calls == ["a"]

    await disk.app().deliver("door", "open", session_id="s")

    assert (await disk.app(flow).run("f", run_id="r")).value == "open" and work.calls == ["a", "b"]


# --- no wake-up is lost -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("number", range(1, 7))
async def test_an_event_that_comes_at_any_append_of_a_run_that_parks_is_heard(number: int, late: bool) -> None:
    store = MockStore()
    app, other = mocked(store, listening("a")), mocked(store)
    hang = store.hang_append(number, after=late)
    running = asyncio.create_task(app.run("f", run_id="r", session_id="s"))
    await until(lambda: hang.reached)
    await other.deliver("a", "now", session_id="s")  # it knows no flow: who parks has to look again itself
    hang.release()
    await running

    assert (await finished(app, "r")).value == ["now"]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_event_that_comes_while_the_lease_goes_back_is_heard(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    app, other = disk.app(listening("a")), disk.app()  # which knows no flow: who parks has to look again itself
    real, came = Leases.release, asyncio.Event()

    async def release(self: Leases, lease: Lease) -> None:
        if when == "after":
            await real(self, lease)
        if not came.is_set():
            came.set()
            await other.deliver("a", "now", session_id="s")
            await asyncio.sleep(0.02)
        if when == "before":
            await real(self, lease)

    monkeypatch.setattr(Leases, "release", release)
    await app.run("f", run_id="r", session_id="s")

    assert (await finished(app, "r")).value == ["now"]


async def test_an_event_that_comes_when_the_run_has_looked_for_the_last_time_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = bb.App()
    app.register(listening("a"))
    real = app._runner.sessions.has_come
    came: list[bool] = []

    async def has_come(session_id: str, source: str, run_id: str) -> bool:
        found = await real(session_id, source, run_id)
        if not came:
            came.append(found)
            await app.deliver("a", "now", session_id="s")
            await asyncio.sleep(0.01)  # who was woken by it joins the run that is about to end
        return found

    monkeypatch.setattr(app._runner.sessions, "has_come", has_come)
    first = await app.run("f", run_id="r", session_id="s")

    assert first.waiting_for == "a" and came == [False]
    assert (await finished(app, "r")).value == ["now"]


async def test_many_events_at_once_lose_nothing(disk: Disk) -> None:
    apps = [disk.app(listening(*["a"] * 6)) for _ in range(3)]
    await apps[0].run("f", run_id="r", session_id="s")

    async def deliver(number: int) -> None:
        await apps[number % 3].deliver("a", number, session_id="s", delivery_id=f"d{number}")

    await asyncio.gather(*map(deliver, [*range(6), *range(6)]))

    value = (await finished(apps[0], "r")).value
    assert isinstance(value, list) and sorted(value) == list(range(6))


async def test_a_duplicate_delivery_does_not_wake_a_run_that_failed(disk: Disk, work: Work) -> None:
    flow = (Await("a") >> work.flow("b")).with_id("f").durable()
    app = disk.app(flow)
    work.fail("b", 1)
    await app.run("f", run_id="r", session_id="s")
    await app.deliver("a", 1, session_id="s", delivery_id="d")

    async def has_failed() -> bool:
        return [run.status for run in await app.runs()] == ["failed"]

    await until(has_failed)
    before = await contents(disk.store())

    assert (await app.deliver("a", 1, session_id="s", delivery_id="d")).run_id == "r"
    await asyncio.sleep(0.02)

    assert await contents(disk.store()) == before and work.calls == ["b"]
