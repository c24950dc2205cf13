"""The cost of one durable step on each store, against the write it needs; and of a step that is not durable.

Run it as `python bench/step.py`.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable

from common import TEXT, best, diskcache_set, folder, ratio, show, sqlite_commit, steps, timed

import bb

STEPS = 300
RUNS = 7
TOGETHER = 64


def one_run(make_store: Callable[[], bb.Store], flow: bb.NamedFlow | bb.DurableFlow) -> float:
    """Seconds per step of a run alone, its start and end included."""

    async def work() -> float:
        app = bb.App(store=make_store())
        app.register(flow)
        await app.run(flow, "warm up")
        taken = []
        for _ in range(RUNS):
            began = time.perf_counter()
            await app.run(flow, "go")
            taken.append(time.perf_counter() - began)
        await app.stop()
        return statistics.median(taken)

    return asyncio.run(work()) / STEPS


def many_runs(make_store: Callable[[], bb.Store], flow: bb.DurableFlow, steps_each: int) -> float:
    """Seconds per step with many runs at once."""

    async def work() -> float:
        app = bb.App(store=make_store())
        app.register(flow)
        await app.run(flow, "warm up")
        began = time.perf_counter()
        await asyncio.gather(*(app.run(flow, "go") for _ in range(TOGETHER)))
        taken = time.perf_counter() - began
        await app.stop()
        return taken

    return asyncio.run(work()) / (TOGETHER * steps_each)


def bare() -> float:
    """Seconds of the coroutine alone."""

    async def handler() -> str:
        return TEXT

    async def work() -> None:
        for _ in range(STEPS):
            await handler()

    return best(lambda: timed(work)) / STEPS


def main() -> None:
    plain, durable = steps(STEPS), steps(STEPS).durable()
    print(f"F, one SQLite commit with synchronous=FULL: {best(sqlite_commit) * 1e6:.0f} us")
    print(f"D, one diskcache set with its defaults:     {best(diskcache_set) * 1e6:.0f} us\n")
    with folder() as path:
        names = iter(range(1000))

        def fresh(fsync: bool) -> Callable[[], bb.Store]:
            return lambda: bb.FileStore(path / str(next(names)), fsync=fsync)

        synced = ratio(lambda: one_run(fresh(True), durable), sqlite_commit)
        together = ratio(lambda: many_runs(fresh(True), steps(30).durable(), 30), sqlite_commit)
        file = ratio(lambda: one_run(fresh(False), durable), diskcache_set)
    coroutine = bare()
    memory = best(lambda: one_run(bb.MemStore, durable))
    light = best(lambda: one_run(bb.MemStore, plain))
    show("durable step, FileStore(fsync=True), alone", synced, "F", "<= 1.6 F")
    show(f"durable step, FileStore(fsync=True), {TOGETHER} runs at once", together, "F", "<= 0.5 F")
    show("durable step, FileStore(), alone", file, "D", "<= 1.5 D")
    show("durable step, MemStore, over the bare coroutine", (memory - coroutine) * 1e6, "us", "<= 60 us")
    show("step that is not durable, over the bare coroutine", (light - coroutine) * 1e6, "us", "<= 10 us")


if __name__ == "__main__":
    main()
