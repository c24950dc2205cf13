"""What the benchmarks share: the work of one step, the floors it is measured against, and how results are shown."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import diskcache

import bb

TEXT = "x" * 210
"""The message that every step adds, as long as those the peers were measured with."""


async def speak(turn: bb.Turn, chat: bb.ModelChat[str]) -> None:
    turn.reply(TEXT)


AGENT = bb.Agent().on_message(speak)


def steps(count: int) -> bb.NamedFlow:
    """A chain of `count` agent flows, one message each."""
    flow: bb.Flow | bb.Chain = bb.Flow().with_agent(AGENT)
    for _ in range(count - 1):
        flow = flow >> bb.Flow().with_agent(AGENT)
    return flow.with_id("bench")


@contextmanager
def folder() -> Iterator[Path]:
    """A new empty folder on a real disk, gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="bb-bench-", dir=os.environ.get("BB_BENCH_DIR")))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def ratio(work: Callable[[], float], floor: Callable[[], float], rounds: int = 7) -> float:
    """Work over floor, measured in turn so that both meet the same machine; the median of several rounds."""
    return statistics.median(work() / floor() for _ in range(rounds))


def best(measure: Callable[[], float], times: int = 5) -> float:
    """The smallest of several measurements: the one least disturbed by whatever else the machine does."""
    return min(measure() for _ in range(times))


def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Seconds that a coroutine takes in a loop of its own, the loop's start not counted."""

    async def main() -> float:
        began = time.perf_counter()
        await work()
        return time.perf_counter() - began

    return asyncio.run(main())


def sqlite_commit(count: int = 300) -> float:
    """F: seconds of one commit of one such record, SQLite in WAL mode with synchronous=FULL."""
    with folder() as path:
        link = sqlite3.connect(path / "floor.db", isolation_level=None)
        link.execute("PRAGMA journal_mode=WAL")
        link.execute("PRAGMA synchronous=FULL")
        link.execute("CREATE TABLE floor (id INTEGER PRIMARY KEY, data BLOB)")
        began = time.perf_counter()
        for _ in range(count):
            link.execute("BEGIN IMMEDIATE")
            link.execute("INSERT INTO floor (data) VALUES (?)", (TEXT.encode(),))
            link.execute("COMMIT")
        taken = time.perf_counter() - began
        link.close()
    return taken / count


def diskcache_set(count: int = 300) -> float:
    """D: seconds of one diskcache `set` of the same bytes with its defaults."""
    with folder() as path, diskcache.Cache(str(path)) as cache:
        began = time.perf_counter()
        for index in range(count):
            cache.set(f"key-{index}", TEXT.encode())
        return (time.perf_counter() - began) / count


def show(what: str, value: float, unit: str, budget: str) -> None:
    """One line of a result."""
    print(f"{what:<64} {value:>10.2f} {unit:<8} budget {budget}")
