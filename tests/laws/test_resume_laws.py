"""Law 2: a run that crashed anywhere and is resumed comes out the same. Law 4: a finished run replays and changes nothing."""

from __future__ import annotations

import asyncio
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

import bb
from bb.engine.runs.keeper import Keeper
from bb.log import Decided, Saved, decode, run_stream
from bb.stores.file import FileStore
from bb.testing import Crash, ManualClock, MockStore
from tests.strategies import Plot, World, plots

SECONDS = 10.0  # a run that takes this long hangs
NOW = timedelta(0)


class NoKeeper(Keeper):
    """Leases do not run out here, and a thread per app would be many."""

    def hold(self, *_: object) -> None:
        pass

    def drop(self, *_: object) -> None:
        pass


def app_over(store: bb.Store) -> bb.App:
    app = bb.App(store=store, clock=ManualClock(auto=True))
    app._runner.leases.keeper = NoKeeper(store, 30.0)
    return app


async def run(store: bb.Store, flow: bb.AnyFlow) -> bb.Outcome:
    """What a process of its own would do."""
    async with asyncio.timeout(SECONDS):
        return await app_over(store).run(flow, "hi", run_id="r")


async def crash(store: MockStore, flow: bb.AnyFlow, world: World) -> None:
    """Run until the store dies, or to the end."""
    task = asyncio.ensure_future(app_over(store).run(flow, "hi", run_id="r"))
    async with asyncio.timeout(SECONDS):
        while not task.done() and not store.crashed:  # noqa: ASYNC110 - a turn of the loop is all there is to wait for
            await asyncio.sleep(0)
    world.failed = True  # losers of a race that wait for something to fail need wait no more
    task.cancel()
    await asyncio.wait([task], timeout=SECONDS)
    assert task.done()
    assert task.cancelled() or isinstance(task.exception(), Crash | bb.BBError | None)


def told(outcome: bb.Outcome) -> tuple[object, ...]:
    return outcome.answer, outcome.messages, outcome.value


async def contents(store: bb.Store) -> dict[str, list[bytes]]:
    return {info.name: await store.read(info.name) for info in await store.list("")}


async def memory(store: bb.Store) -> dict[tuple[str, str], object]:
    """The savepoints and decisions of the run, by place. Tokens are billed once and so are not the same.

    Journal entries do not count: what was asked in a group depends on who had spoken by then.
    """
    kept: dict[tuple[str, str], object] = {}
    for record in await store.read(run_stream("r")):
        fact = decode(record, "a record")
        value: object
        match fact:
            case Saved(path=path, delta=dict() as delta):
                key, value = ("saved", path), {part: it for part, it in delta.items() if part != "u"}
            case Decided(path=path, choice=choice):
                key, value = ("decided", path), choice
            case _:
                continue
        assert key not in kept
        kept[key] = value
    return kept


@given(plot=plots(max_leaves=4), data=st.data())
@settings(max_examples=100)
def test_a_crash_at_any_append_changes_nothing(plot: Plot, data: st.DataObject) -> None:
    async def undisturbed() -> tuple[int, tuple[object, ...], dict[tuple[str, str], object]]:
        store = MockStore()
        outcome = await run(store, plot.durable(World()))
        return store.appends, told(outcome), await memory(store)

    appends, expected, remembered = asyncio.run(undisturbed())
    at = data.draw(st.integers(1, appends), "append")
    when: Literal["before", "after", "during"] = data.draw(st.sampled_from(["before", "after", "during"]), "when")
    again = data.draw(st.none() | st.integers(1, appends), "and at this append after that")

    async def go() -> None:
        store, world = MockStore(), World()
        flow = plot.durable(world)
        store.crash_at(at, when)
        await crash(store, flow, world)
        store.revive()
        if again is not None:
            store.crash_at(store.appends + again, when)
            await crash(store, flow, world)
            store.revive()
        store.clear()
        calls = +world.calls
        saved = {key[1] for key in await memory(store) if key[0] == "saved"}

        outcome = await run(store, flow)

        assert told(outcome) == expected
        assert await memory(store) == remembered
        assert set(outcome.replayed) == saved  # all that was kept is used, and nothing else
        if len(saved) == sum(key[0] == "saved" for key in remembered):
            assert world.calls == calls or any(key[0] == "decided" for key in remembered)

    asyncio.run(go())


@given(plot=plots(max_leaves=6))
@settings(max_examples=75)
def test_a_replay_in_memory_executes_and_changes_nothing(plot: Plot) -> None:
    async def go() -> None:
        store, world = MockStore(), World()
        outcome = await run(store, plot.durable(world))
        kept, appends = await contents(store), store.appends

        for other in (world, World()):  # the flow built again is the same flow
            calls, steps, sent = +other.calls, +other.steps, [*other.sent]
            replay = await run(store, plot.durable(other))
            assert told(replay) == told(outcome) and replay.usage == bb.Usage()
            assert (other.calls, other.steps, other.sent) == (calls, steps, sent)
        assert (await contents(store), store.appends) == (kept, appends)

    asyncio.run(go())


@given(plot=plots(max_leaves=6))
@settings(max_examples=20)
def test_a_replay_from_disk_executes_and_changes_nothing(plot: Plot) -> None:
    async def go(home: Path) -> None:
        first = FileStore(home)
        outcome = await run(first, plot.durable(World()))
        kept = await contents(first)
        await first.close()
        file = (home / "cache.db").read_bytes()

        world, store = World(), FileStore(home)
        replay = await run(store, plot.durable(world))
        assert told(replay) == told(outcome)
        assert not (world.calls or world.steps or world.sent)
        assert await contents(store) == kept
        await store.close()
        assert (home / "cache.db").read_bytes() == file

    with tempfile.TemporaryDirectory() as home:
        asyncio.run(go(Path(home)))


@given(plot=plots(max_leaves=6))
@settings(max_examples=50)
def test_replaying_durable_parts_of_a_flow_changes_nothing(plot: Plot) -> None:
    """Where only parts are durable the rest runs again, and what is kept stays as it is."""

    async def go() -> None:
        store = MockStore()
        outcome = await run(store, plot.named(World()))
        kept = await contents(store)
        assert told(await run(store, plot.named(World()))) == told(outcome)
        assert await contents(store) == kept

    asyncio.run(go())
