"""The cost of a call statement, of a memo hit and of a once hit, each against what it must at least do.

And whether a delivery, or a call inside a throttle, costs more the more there are before it.

Run it as `python bench/nodes.py`.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from common import diskcache_set, folder, ratio, show

import bb

STATEMENTS = 300
RUNS = 7


@bb.op(effects=["pure"])
async def nothing(n: int) -> int:
    """The cheapest op there is."""
    return n


def calls(count: int) -> bb.DurableFlow:
    """Call statements, one after the other."""
    return bb.Chain(tuple(nothing(n) for n in range(count))).with_id("calls").durable()


def memos(count: int) -> bb.DurableFlow:
    """Memos of one call under many names: all but the first are hits."""
    return bb.Chain(tuple(bb.Memo(f"m{n}", nothing(0)) for n in range(count))).with_id("memos").durable()


def onces(count: int) -> bb.DurableFlow:
    """One once in many places: all but the first are hits."""
    return bb.Chain(tuple(bb.Once("o", nothing(0)) for _ in range(count))).with_id("onces").durable()


def seconds(store: Callable[[], bb.Store], flow: bb.DurableFlow) -> float:
    """Seconds per statement of a run, its start and end included."""

    async def work() -> float:
        app = bb.App(store=store())
        app.register(flow)
        await app.run(flow)
        taken = []
        for _ in range(RUNS):
            began = time.perf_counter()
            await app.run(flow)
            taken.append(time.perf_counter() - began)
        await app.stop()
        return statistics.median(taken)

    return asyncio.run(work()) / STATEMENTS


def flatness(count: int = 2000) -> tuple[float, float]:
    """Seconds of the median delivery of the last tenth, with so many events waiting; and that over one of the first tenth."""

    async def work() -> list[float]:
        app = bb.App()
        taken = []
        for n in range(count):
            began = time.perf_counter()
            await app.deliver("form", n, session_id="s")
            taken.append(time.perf_counter() - began)
        return taken

    taken = asyncio.run(work())
    first, last = statistics.median(taken[: count // 10]), statistics.median(taken[-count // 10 :])
    return last, last / first


def throttled(count: int) -> float:
    """Seconds of one call inside a throttle that has seen so many in its window."""

    async def work() -> float:
        app = bb.App()
        once = bb.Throttle("api", nothing(0), max=10 * count, per=timedelta(hours=1))
        flow = bb.Chain((once,) * count).with_id("busy").durable()
        began = time.perf_counter()
        await app.run(flow)
        return time.perf_counter() - began

    return asyncio.run(work()) / count


def main() -> None:
    """Print each cost, in memory in microseconds, on disk as a ratio to one diskcache `set` (D)."""
    for name, make in (("call", calls), ("memo hit", memos), ("once hit", onces)):
        flow = make(STATEMENTS)
        show(f"{name}, MemStore", seconds(bb.MemStore, flow) * 1e6, "us", "none")
        show(f"{name}, FileStore", ratio(partial(on_disk, flow), diskcache_set, 5), "D", "none; a step has 1.5")
    last, growth = flatness()
    show("delivery on MemStore, 2,000 events waiting", last * 1e6, "us", "none")
    show("that over one with 100 waiting", growth, "x", "flat")
    throttled(100)  # loads what is loaded when it is first used
    few, many = throttled(100), throttled(1000)
    show("throttled call on MemStore, 1,000 in its window", many * 1e6, "us", "none")
    show("that over one with 100 in its window", many / few, "x", "flat")


def on_disk(flow: bb.DurableFlow) -> float:
    """Seconds per statement on a fresh FileStore."""
    with folder() as path:
        return seconds(lambda: bb.FileStore(path / "store"), flow)


if __name__ == "__main__":
    main()
