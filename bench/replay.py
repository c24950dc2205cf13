"""The cost of replaying a saved step, and whether it is linear.

Run it as `python bench/replay.py`.
"""

from __future__ import annotations

import asyncio
import time

from common import best, folder, show, steps

import bb


def replay(count: int) -> float:
    """Seconds per step of replaying a finished run in a new app, its log read from disk."""

    async def work() -> float:
        flow = steps(count).durable()
        with folder() as path:
            first = bb.App(store=bb.FileStore(path))
            await first.run(flow, "go", run_id="r")
            await first.stop()
            second = bb.App(store=bb.FileStore(path))
            second.register(flow)
            began = time.perf_counter()
            outcome = await second.run(flow, "go", run_id="r")
            taken = time.perf_counter() - began
            assert len(outcome.replayed) == count
            await second.stop()
        return taken

    return best(lambda: asyncio.run(work()), times=3) / count


def main() -> None:
    small, large = replay(500), replay(4000)
    show("replay per saved step, 500 steps", small * 1e6, "us", "<= 30 us")
    show("replay per saved step, 4,000 steps", large * 1e6, "us", "<= 30 us")
    show("4,000 steps over 500, per step", large / small, "x", "about 1: linear")


if __name__ == "__main__":
    main()
