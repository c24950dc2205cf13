"""A thousand runs at once, ten steps each, over FileStore().

Run it as `python bench/throughput.py`.
"""

from __future__ import annotations

import asyncio
import time

from common import folder, show, steps

import bb

RUNS = 1000
STEPS = 10


async def measure() -> float:
    """Runs per second."""
    flow = steps(STEPS).durable()
    with folder() as path:
        app = bb.App(store=bb.FileStore(path))
        app.register(flow)
        await app.run(flow, "warm up")
        began = time.perf_counter()
        outcomes = await asyncio.gather(*(app.run(flow, "go") for _ in range(RUNS)))
        taken = time.perf_counter() - began
        assert all(len(outcome.messages) == STEPS for outcome in outcomes)
        await app.stop()
    return RUNS / taken


def main() -> None:
    rate = max(asyncio.run(measure()) for _ in range(3))
    show(f"{RUNS:,} concurrent runs of {STEPS} steps, FileStore()", rate, "runs/s", ">= 500 runs/s")


if __name__ == "__main__":
    main()
