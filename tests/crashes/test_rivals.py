"""Several processes and one run id: one of them runs it, and all get the same outcome."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from datetime import timedelta

import pytest

import bb
from tests.crashes.pipeline import ALWAYS
from tests.crashes.processes import Place, Workers, appears, kill, until
from tests.crashes.worker import Job

CALLERS = 20
PROCESSES = 4


async def ended(workers: Workers, pid: int) -> int:
    return await asyncio.to_thread(workers.wait, pid)


async def test_many_callers_in_many_processes(place: Place, workers: Workers, right: object) -> None:
    start = time.time() + 1
    jobs = [place.job("r", f"out-{n}", callers=CALLERS, start=start) for n in range(PROCESSES)]
    pids = [workers.fork(job) for job in jobs]

    assert [await ended(workers, pid) for pid in pids] == [0] * PROCESSES

    for job in jobs:
        said = place.said(job)
        assert len(said) == 2 * CALLERS and all(outcome == right for outcome in said)
    counts = place.side("r").counts()
    assert counts.keys() >= ALWAYS and set(counts.values()) == {1}
    await place.no_place_was_saved_twice("r")


async def test_a_stopped_runner_is_fenced_and_joins_the_one_that_took_over(
    place: Place, workers: Workers, right: object
) -> None:
    first = place.job("r", "first", hook="holds", lease=1.0)
    pid = workers.fork(first)
    await appears(place.home / "reached")
    os.kill(pid, signal.SIGSTOP)
    (place.home / "go").touch()  # when it wakes up, its step is done and ready to be saved
    second = place.job("r", "second", lease=1.0)

    assert place.finish(second) == right
    length = len(await place.facts("r"))
    os.kill(pid, signal.SIGCONT)
    assert await ended(workers, pid) == 0

    assert place.said(first) == [right]
    assert len(await place.facts("r")) == length  # nothing of what it still did was kept
    fences = await place.fences("r")
    assert fences == sorted(fences) and len(set(fences)) == 2
    await place.no_place_was_saved_twice("r")
    assert place.side("r").counts() == Counter(dict.fromkeys({*place.side("r").counts()}, 1)) + Counter(["last"])


async def test_the_late_write_of_a_blocked_runner_is_refused_by_the_store(
    place: Place, workers: Workers, right: object
) -> None:
    # nothing tells it of the loss, so that its next deed after the stop is the write
    first = place.job("r", "first", hook="holds", lease=1.0, deaf=True)
    pid = workers.fork(first)
    await appears(place.home / "reached")
    os.kill(pid, signal.SIGSTOP)
    (place.home / "go").touch()

    assert place.finish(place.job("r", "second", lease=1.0)) == right
    os.kill(pid, signal.SIGCONT)
    assert await ended(workers, pid) == 0

    assert place.said(first) == [right]
    assert (place.home / "r.refused").read_text().split() == ["Fenced"]
    fences = await place.fences("r")
    assert fences == sorted(fences) and len(set(fences)) == 2
    await place.no_place_was_saved_twice("r")


async def test_a_killed_holder_loses_its_lease_at_once(place: Place, workers: Workers, right: object) -> None:
    pid = workers.fork(place.job("r", "first", hook="holds"))
    await appears(place.home / "reached")
    (place.home / "go").touch()
    waiting = place.job("r", "second")
    other = workers.fork(waiting)  # waits while the holder lives
    kill(pid)
    began = time.monotonic()

    assert await ended(workers, other) == 0

    assert time.monotonic() - began < 2
    assert place.said(waiting) == [right]
    assert workers.wait(pid) == -9


async def test_a_blocked_loop_keeps_its_lease(place: Place, workers: Workers, right: object) -> None:
    first = place.job("r", "first", hook="blocks", seconds=2.5, lease=1.0)
    pid = workers.fork(first)
    await appears(place.home / "reached")
    until_then = time.monotonic() + 2.2
    turned_away = 0
    while time.monotonic() < until_then:
        rival: Job = place.job("r", f"rival-{turned_away}", wait=0.0)
        assert place.finish(rival) == "busy"
        turned_away += 1
        await asyncio.sleep(0.2)

    assert await ended(workers, pid) == 0
    assert turned_away > 3 and place.said(first) == [right]
    assert set(place.side("r").counts().values()) == {1}


async def test_a_run_waits_for_another_process_only_so_long(place: Place, workers: Workers, right: object) -> None:
    first = place.job("r", "first", hook="holds")
    pid = workers.fork(first)
    await appears(place.home / "reached")

    began = time.monotonic()
    assert place.finish(place.job("r", "second", wait=0.3)) == "busy"
    assert 0.3 <= time.monotonic() - began < 2

    (place.home / "go").touch()
    assert await ended(workers, pid) == 0
    await until(lambda: place.said(first) == [right])


def test_a_lease_of_less_than_a_second_is_refused() -> None:
    with pytest.raises(bb.WiringError, match="a second or more"):
        bb.App(lease=timedelta(seconds=0.9))
