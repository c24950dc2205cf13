"""A stream that waits until its run is let in."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

import bb
from bb.testing.mock_store import MockStore


def speaking(size: int = 1, times: int = 1) -> tuple[bb.DurableFlow, list[int]]:
    written: list[int] = []

    async def speak(turn: bb.Turn, chat: bb.ModelChat) -> None:
        async with turn.stream() as out:
            for _ in range(times):
                await out.write("x" * size)
                written.append(size)

    return (bb.Flow().with_agent(bb.Agent("a").on_message(speak)) >> bb.Respond()).with_id("f").durable(), written


@pytest.mark.parametrize("durable", [False, True])
async def test_a_run_that_was_let_in_has_begun(durable: bool) -> None:
    flow, _ = speaking()
    async with bb.App().stream(flow if durable else flow.body.with_id("g"), "hi") as text:
        await text.begun()
        assert [chunk async for chunk in text] == ["x"]
        await text.begun()


async def test_a_run_that_is_refused_says_so_before_any_text() -> None:
    app = bb.App()
    flow, _ = speaking()
    await app.run(flow, "hi", run_id="r")

    async with app.stream(flow, "ho", run_id="r") as text:
        with pytest.raises(bb.InputConflict):
            await text.begun()


async def test_a_run_that_another_process_has_is_refused_in_the_end() -> None:
    store = MockStore()
    await store.acquire("run/r", "somebody", 60)
    flow, _ = speaking()
    async with bb.App(store=store).stream(flow, "hi", run_id="r", wait=timedelta(0)) as text:
        with pytest.raises(bb.RunBusy):
            await text.begun()


async def test_a_run_does_not_get_ahead_of_who_is_about_to_read() -> None:
    flow, written = speaking(10_000, 100)
    async with bb.App().stream(flow, "hi") as text:
        await text.begun()
        for _ in range(50):
            await asyncio.sleep(0)
        assert sum(written) < 100_000
        assert sum([len(chunk) async for chunk in text]) == 1_000_000


async def test_who_then_only_wants_the_outcome_holds_nobody_back() -> None:
    flow, written = speaking(10_000, 100)
    async with bb.App().stream(flow, "hi") as text:
        await text.begun()
        assert len((await text.outcome()).answer) == 1_000_000 == sum(written)


def test_a_run_of_another_loop_is_joined() -> None:
    may = threading.Event()
    running = threading.Event()

    async def speak(turn: bb.Turn, chat: bb.ModelChat) -> None:
        running.set()
        await asyncio.to_thread(may.wait, 10)
        turn.reply("done")

    flow = bb.Flow().with_agent(bb.Agent("a").on_message(speak)).with_id("f").durable()
    app = bb.App()
    thread = threading.Thread(target=lambda: asyncio.run(_run(app, flow)))
    thread.start()
    assert running.wait(10)

    async def join() -> str:
        async with app.stream(flow, "hi", run_id="r") as text:
            await text.begun()
            may.set()
            return "".join([chunk async for chunk in text])

    assert asyncio.run(join()) == "done"
    thread.join(10)


async def _run(app: bb.App, flow: bb.DurableFlow) -> None:
    await app.run(flow, "hi", run_id="r")
