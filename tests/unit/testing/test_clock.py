from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta, timezone

import pytest

import bb
from bb.testing import ManualClock


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_time_stands_still_until_it_is_advanced() -> None:
    clock: bb.Clock = ManualClock(datetime(2030, 5, 1, 12, tzinfo=timezone(timedelta(hours=2))))
    assert clock.now() == clock.now() == datetime(2030, 5, 1, 10, tzinfo=UTC)
    assert clock.now().tzinfo is UTC
    assert clock.monotonic() == 0.0


def test_advancing_moves_both_kinds_of_time() -> None:
    clock = ManualClock(datetime(2030, 5, 1, tzinfo=UTC))
    clock.advance(1.5)
    clock.advance(timedelta(minutes=1))
    assert clock.now() == datetime(2030, 5, 1, 0, 1, 1, 500_000, tzinfo=UTC)
    assert clock.monotonic() == 61.5


def test_time_does_not_go_backwards() -> None:
    with pytest.raises(ValueError, match="backwards"):
        ManualClock().advance(-1)


def test_randomness_is_what_was_set() -> None:
    clock = ManualClock(jitter=0.25)
    assert clock.random() == 0.25
    clock.jitter = 0.75
    assert clock.random() == 0.75


async def test_sleepers_wake_in_the_order_of_their_time() -> None:
    clock = ManualClock()
    woken: list[str] = []

    async def sleep(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(name)

    tasks = [asyncio.create_task(sleep(name, s)) for name, s in (("c", 3), ("a", 1), ("b", 2), ("also b", 2), ("d", 9))]
    await turns()
    assert clock.sleepers == 5
    clock.advance(0.5)
    await turns()
    assert woken == []
    clock.advance(2.5)
    await turns()
    assert woken == ["a", "b", "also b", "c"]
    assert clock.sleepers == 1
    clock.advance(timedelta(hours=1))
    await asyncio.gather(*tasks)
    assert woken[-1] == "d"
    assert sorted(clock.slept) == [1, 2, 2, 3, 9]


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = ManualClock()
    task = asyncio.create_task(clock.sleep(1))
    other = asyncio.create_task(clock.sleep(1))
    await turns()
    task.cancel()
    await asyncio.wait({task})
    assert clock.sleepers == 1
    clock.advance(1)
    await other


async def test_in_auto_mode_nobody_waits_and_others_get_a_turn() -> None:
    clock = ManualClock(auto=True)
    ran: list[str] = []

    async def other() -> None:
        ran.append("other")

    task = asyncio.create_task(other())
    await clock.sleep(3600)
    ran.append("sleeper")
    await task
    assert ran == ["other", "sleeper"]
    assert clock.monotonic() == 3600
    assert clock.slept == [3600]


async def test_no_time_at_all_is_only_a_turn() -> None:
    clock = ManualClock()
    await clock.sleep(0)
    assert clock.monotonic() == 0.0
    assert clock.slept == [0]


async def test_it_works_over_several_loops() -> None:
    clock = ManualClock()
    woken = threading.Event()

    async def elsewhere() -> None:
        await clock.sleep(5)
        woken.set()

    thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
    thread.start()
    here = asyncio.create_task(clock.sleep(5))
    while clock.sleepers < 2:  # noqa: ASYNC110 - the other thread has no event to give
        await asyncio.sleep(0.001)
    clock.advance(5)
    await here
    assert await asyncio.to_thread(woken.wait, 5)
    thread.join()


async def test_a_loop_that_has_gone_is_no_hindrance() -> None:
    clock = ManualClock()

    def elsewhere() -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(clock.sleep(1))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        del task

    await asyncio.to_thread(elsewhere)
    mine = asyncio.create_task(clock.sleep(1))
    await turns()
    clock.advance(1)
    await mine


async def test_retries_of_a_flow_sleep_on_it() -> None:
    clock = ManualClock(auto=True, jitter=0.0)
    calls = 0

    async def flaky(turn: bb.Turn, _chat: bb.ModelChat) -> None:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise ConnectionError
        turn.reply("done")

    flow = bb.Flow().with_agent(bb.Agent().on_message(flaky)).with_id("r").durable(retries=2)
    outcome = await bb.App(clock=clock).run(flow, "go")
    assert outcome.answer == "done"
    assert clock.slept == [0.25, 0.5]
