"""What a chat of 1,000 messages costs on disk: bytes written, bytes kept, and whether a late step costs more than an early one.

Run it as `python bench/chat.py`.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from itertools import pairwise
from pathlib import Path

from common import TEXT, folder, show

import bb

MESSAGES = 1000
RUNS = 9


def written() -> int:
    """Bytes this process has handed to write calls so far (Linux)."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


def size(path: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def growth(times: list[float]) -> float:
    """The median step of the last tenth of a run over that of the first.

    The median, since the log is checkpointed every few hundred steps, which takes as long as dozens of them: a sum would
    tell which tenth a checkpoint fell into.
    """
    steps = [after - before for before, after in pairwise(times)]
    tenth = len(steps) // 10
    return statistics.median(steps[-tenth:]) / statistics.median(steps[:tenth])


async def main() -> None:
    times: list[float] = []

    async def note(turn: bb.Turn, chat: bb.ModelChat[str]) -> None:
        times.append(time.perf_counter())
        turn.reply(TEXT)

    flow: bb.Flow | bb.Chain = bb.Flow().with_agent(bb.Agent().on_message(note))
    for _ in range(MESSAGES - 1):
        flow = flow >> bb.Flow().with_agent(bb.Agent().on_message(note))
    durable = flow.with_id("bench").durable()
    with folder() as path:
        app = bb.App(store=bb.FileStore(path))
        app.register(durable)
        await app.run(durable, "warm up", run_id="first", replace=True)
        before, kept = written(), size(path)
        await app.run(durable, "go", run_id="second")
        used = written() - before
        await app.stop()
        whole = size(path)
    with folder() as path:
        app = bb.App(store=bb.FileStore(path))
        await app.run(durable, "go", run_id="only")
        await app.stop()
        alone = size(path)
        ratios = []
        for _ in range(RUNS):
            times.clear()
            await app.run(durable, "go")
            ratios.append(growth(times))
        await app.stop()
    show(f"written for a chat of {MESSAGES:,} messages", used / 1e6, "MB", "<= 7 MB")
    show("on disk after close, one run", alone / 1e6, "MB", "<= 0.5 MB")
    show("on disk after close, per 210-byte step", alone / MESSAGES, "bytes", "<= 450 bytes")
    show("on disk after close, two runs, per step", whole / (2 * MESSAGES), "bytes", "<= 450 bytes")
    show(f"last tenth over first tenth, median of {RUNS} runs", statistics.median(ratios), "x", "about 1: flat")
    assert kept > 0


if __name__ == "__main__":
    asyncio.run(main())
