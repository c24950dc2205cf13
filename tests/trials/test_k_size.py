"""Trials K: size and memory."""

from __future__ import annotations

import asyncio
import gc
from datetime import timedelta
from typing import Any

import pytest

import bb
from bb.engine.frame.run import Run
from bb.engine.runs.live import Live
from bb.log import History
from bb.testing.mock_store import MockStore
from tests.trials.kit import Disk, Work, contents, mocked, until

KIB = 1024


def leaf(name: str, handler: Any) -> bb.NamedFlow:
    return bb.Flow().with_agent(bb.Agent(name).on_message(handler)).with_id(name)


def says(name: str, make: Any, calls: list[str]) -> bb.NamedFlow:
    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        calls.append(name)
        turn.reply(name, value=make())

    return leaf(name, handler)


async def test_trial_K1_a_result_over_the_limit_fails_once_before_it_is_saved(disk: Disk, work: Work) -> None:
    calls: list[str] = []
    big = says("big", lambda: "x" * (70 * KIB), calls)
    flow = work.flow("a").next(big.durable(retries=5)).with_id("job").durable(retries=5)
    app = disk.app(flow, value_limit=64 * KIB)

    with pytest.raises(bb.TooLarge) as raised:
        await app.run("job", "hi", run_id="r")

    assert calls == ["big"]  # no retry makes it smaller
    assert raised.value.path == "job/big" and "65536" in str(raised.value) and "limit of the app" in str(raised.value)
    assert [event.path for event in await app.events("r") if event.kind == "flow.end"] == ["job/a"]
    assert max(len(record) for records in (await contents(app.store)).values() for record in records) < KIB
    assert (await disk.app(flow).run("job", "hi", run_id="r")).replayed == ("job/a",)  # a higher limit, and it goes on


async def test_trial_K1_what_is_just_under_the_limit_is_kept(disk: Disk) -> None:
    calls: list[str] = []
    flow = says("fits", lambda: "x" * (63 * KIB), calls).durable()

    first = await disk.app(flow, value_limit=64 * KIB).run("fits", "hi", run_id="r")

    assert (await disk.app(flow, value_limit=64 * KIB).run("fits", "hi", run_id="r")).value == first.value


@pytest.mark.parametrize("too_large", [70 * KIB, 64 * KIB - 20])  # the value alone is, or only its record
async def test_trial_K1_a_first_value_that_is_too_large_does_not_spoil_its_run(disk: Disk, too_large: int) -> None:
    calls: list[str] = []
    size = [too_large]
    big = says("big", lambda: "x" * size[0], calls)
    flow = bb.All(big, says("small", lambda: 1, calls)).with_id("job").durable()
    app = disk.app(flow, value_limit=64 * KIB)
    with pytest.raises(bb.TooLarge):
        await app.run("job", "hi", run_id="r")
    size[0] = 10

    outcome = await disk.app(flow, value_limit=64 * KIB).run("job", "hi", run_id="r")

    assert outcome.replayed == ("job/small",) and calls == ["big", "small", "big"]


@pytest.mark.parametrize("where", ["input", "step", "answer"])
async def test_trial_K1_the_limit_holds_for_everything_that_is_recorded(disk: Disk, where: str) -> None:
    text = "x" * (70 * KIB)

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        if where == "step":
            await turn.step("big", lambda: text)
        if where == "answer":
            await chat.ask_with("hi")
        turn.reply("small")

    agent = bb.Agent("a", model=bb.FixedModel(text)).on_message(handler)
    app = disk.app(bb.Flow().with_agent(agent).with_id("a").durable(retries=3), value_limit=64 * KIB)

    with pytest.raises((bb.TooLarge, bb.AgentFailed)) as raised:
        await app.run("a", text if where == "input" else "hi", run_id="r")

    error = raised.value if isinstance(raised.value, bb.TooLarge) else raised.value.__cause__
    assert isinstance(error, bb.TooLarge) and (where == "input" or error.path == "a")


async def test_trial_K1_a_long_chat_costs_each_step_only_what_it_adds(disk: Disk, work: Work) -> None:
    flow = work.flow("s0").next(work.flow("s1"))
    for n in range(2, 40):
        flow = flow.next(work.flow(f"s{n}"))
    chat = [bb.Message("word " * 200) for _ in range(200)]  # 200 kB
    app = disk.app(flow.with_id("job").durable())

    await app.run("job", chat, run_id="r")

    records = (await contents(app.store))["run/r"]
    assert len(records[0]) > 200_000 and sum(map(len, records[1:])) < 40 * 200


async def test_trial_K2_a_run_that_is_over_leaves_nothing_in_memory(disk: Disk, work: Work) -> None:
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()
    app = disk.app(flow, retention=timedelta(0))
    for n in range(200):
        await app.run("job", "hi", run_id=f"K2.{n}")
        if n % 10 == 0:
            work.fail("b", 1)
            with pytest.raises(bb.AgentFailed):
                await app.run("job", "hi", run_id=f"K2.f{n}")
    del flow
    gc.collect()

    known = [thing for thing in gc.get_objects() if isinstance(thing, Live | Run | History)]

    assert len({one.run_id for one in known if one.run_id.startswith("K2.")}) <= 1  # the last failure may still be told


async def test_trial_K2_a_slow_store_holds_one_append_of_a_run_at_a_time(work: Work) -> None:
    store = MockStore()
    flow = bb.All(*(work.flow(f"m{n}") for n in range(50))).with_id("job").durable()
    hang = store.hang_append(lambda stream, records: any(b'"job/' in record for record in records))
    task = asyncio.create_task(mocked(store, flow).run("job", "hi", run_id="r"))
    await until(lambda: hang.reached)
    for _ in range(200):
        await asyncio.sleep(0)
    assert len(work.calls) == 50 and store.appends == 3  # the beginning, the tree, and the one that hangs
    hang.release()

    assert len((await task).messages) == 50
    assert store.appends <= 5  # the other 49 savepoints went together


async def test_trial_K4_a_slow_reader_slows_the_writer_down(disk: Disk) -> None:
    written = 0
    piece = "x" * (8 * KIB)

    async def chatter(turn: bb.Turn, chat: bb.ModelChat) -> None:
        nonlocal written
        async with turn.stream() as out:
            for _ in range(100):
                await out.write(piece)
                written += len(piece)

    app = disk.app(leaf("chatter", chatter).durable())
    read = ahead = 0
    async with app.stream("chatter", "hi", run_id="r") as stream:
        async for chunk in stream:
            read += len(chunk)
            for _ in range(20):
                await asyncio.sleep(0)
            ahead = max(ahead, written - read)

    assert read == written == 100 * len(piece) and ahead < 100 * KIB


async def test_trial_K4_a_slow_reader_slows_down_nobody_who_came_to_the_same_run(disk: Disk) -> None:
    piece = "x" * (8 * KIB)

    async def chatter(turn: bb.Turn, chat: bb.ModelChat) -> None:
        async with turn.stream() as out:
            for _ in range(100):
                await out.write(piece)

    app = disk.app(leaf("chatter", chatter).durable())
    async with app.stream("chatter", "hi", run_id="r") as slow:
        texts = aiter(slow)
        first = await anext(texts)
        whole = await asyncio.wait_for(app.run("chatter", "hi", run_id="r"), 10)
        assert whole.answer == piece * 100
        assert first + "".join([text async for text in texts]) == whole.answer
