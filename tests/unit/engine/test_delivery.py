"""The text of one run and its listeners."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import bb
from bb.engine.frame.delivery import Delivery, Listener

AHEAD = 64 * 1024


async def read(listener: Listener) -> str:
    return "".join([chunk async for chunk in listener.chunks()])


async def until_first(delivery: Delivery, listener: Listener) -> tuple[str, asyncio.Task[str]]:
    """The first chunk a listener gets, and the task that goes on reading."""
    first: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def go() -> str:
        text = ""
        async for chunk in listener.chunks():
            text += chunk
            if not first.done():
                first.set_result(chunk)
        return text

    task = asyncio.ensure_future(go())
    return await first, task


async def test_every_listener_reads_from_the_first_character() -> None:
    delivery = Delivery("r")
    early = delivery.listen()
    delivery.write("one ")
    delivery.write("")
    late = delivery.listen()
    delivery.write("two")
    delivery.close()
    assert await read(early) == await read(late) == await read(delivery.listen()) == "one two"
    assert delivery.text == "one two"


async def test_a_listener_of_the_writers_own_loop_is_not_woken_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """That would be a system call for each piece of text."""
    woken: list[object] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", woken.append)
    delivery = Delivery("r")
    delivery.write("one ")
    first, reading = await until_first(delivery, delivery.listen())
    delivery.write("two")
    delivery.close()
    assert (first, await reading, woken) == ("one ", "one two", [])


async def test_complete_adds_what_is_missing() -> None:
    delivery = Delivery("r")
    delivery.write("one")
    delivery.complete("one\n\ntwo")
    delivery.complete("one\n\ntwo")
    assert delivery.text == "one\n\ntwo"
    assert delivery.mark == 8


async def test_text_that_nobody_has_read_may_change() -> None:
    delivery = Delivery("r")
    listener = delivery.listen()
    mark = delivery.mark
    delivery.write("try 1")
    delivery.rewind(mark)
    delivery.write("try 2")
    delivery.close()
    assert await read(listener) == "try 2"


async def test_a_listener_that_read_what_became_void_must_reconnect() -> None:
    delivery = Delivery("r-1")
    listener = delivery.listen()
    mark = delivery.mark
    delivery.write("try 1")
    first, task = await until_first(delivery, listener)
    assert first == "try 1"
    delivery.rewind(mark)
    with pytest.raises(bb.StreamBroken, match="became void") as caught:
        await task
    assert caught.value.run_id == "r-1"
    assert not delivery.has_listeners
    delivery.write("try 2")
    delivery.close()
    assert await read(delivery.listen()) == "try 2"


async def test_settled_text_survives_a_retry_and_is_not_sent_twice() -> None:
    delivery = Delivery("r")
    listener = delivery.listen()
    mark = delivery.mark
    delivery.write("stage\n\n")
    delivery.settle()
    first, task = await until_first(delivery, listener)
    delivery.write("half")
    delivery.rewind(mark)
    delivery.write("sta")
    delivery.write("ge\n\nwhole")
    delivery.close()
    assert first == "stage\n\n"
    assert await task == "stage\n\nwhole"


async def test_settled_text_that_comes_out_differently_is_void() -> None:
    delivery = Delivery("r")
    mark = delivery.mark
    delivery.write("stage one")
    delivery.settle()
    _, task = await until_first(delivery, delivery.listen())
    unread = delivery.listen()
    delivery.rewind(mark)
    delivery.write("stage two")
    delivery.close()
    with pytest.raises(bb.StreamBroken):
        await task
    assert await read(unread) == delivery.text == "stage two"


async def test_listeners_may_leave() -> None:
    delivery = Delivery("r")
    listener = delivery.listen()
    assert delivery.has_listeners
    delivery.leave(listener)
    delivery.leave(listener)
    assert not delivery.has_listeners


async def test_a_writer_waits_for_the_slowest_reader() -> None:
    delivery = Delivery("r")
    slow = delivery.listen()
    delivery.write("x")
    chunks = slow.chunks()
    assert await anext(chunks) == "x"
    delivery.write("y" * (AHEAD + 1))
    waiting = asyncio.ensure_future(delivery.room())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    assert len(await anext(chunks)) == AHEAD + 1
    delivery.write("z")
    assert await anext(chunks) == "z"
    await waiting


@pytest.mark.parametrize("other", ["reads along", "wants the whole", "comes while the writer waits"])
async def test_a_slow_reader_holds_nobody_back_but_itself(other: str) -> None:
    delivery = Delivery("r")
    slow = delivery.listen().chunks()
    delivery.await_by(1)
    delivery.write("x")
    assert await anext(slow) == "x"
    delivery.write("y" * (AHEAD + 1))
    if other == "comes while the writer waits":
        waiting = asyncio.ensure_future(delivery.room())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        delivery.await_by(2)
        await waiting
    elif other == "reads along":
        quick = cast("AsyncGenerator[str, None]", delivery.listen().chunks())
        delivery.await_by(2)
        assert [await anext(quick), await anext(quick)] == ["x", "y" * (AHEAD + 1)]
        await asyncio.wait_for(delivery.room(), 1)
        await quick.aclose()
    else:
        delivery.await_by(2)
        await asyncio.wait_for(delivery.room(), 1)

    delivery.await_by(1)  # the other has gone
    waiting = asyncio.ensure_future(delivery.room())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    delivery.close()
    await waiting


@pytest.mark.parametrize("how", ["close", "leave"])
async def test_a_waiting_writer_goes_on_when_there_is_nobody_to_wait_for(how: str) -> None:
    delivery = Delivery("r")
    listener = delivery.listen()
    delivery.write("x")
    chunks = listener.chunks()
    await anext(chunks)
    delivery.write("y" * (AHEAD + 1))
    waiting = asyncio.ensure_future(delivery.room())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    if how == "close":
        delivery.close()
    else:
        delivery.leave(listener)
    await waiting


async def test_one_who_only_waits_for_the_outcome_holds_nobody_back() -> None:
    async def pours(turn: bb.Turn, chat: bb.ModelChat) -> None:
        async with turn.stream() as out:
            for _ in range(4):
                await out.write("x" * AHEAD)

    async with bb.App().stream(bb.Flow().with_agent(bb.Agent().on_message(pours)), "hi") as stream:
        assert len((await stream.outcome()).answer) == 4 * AHEAD
        assert len("".join([chunk async for chunk in stream])) == 4 * AHEAD


async def test_listeners_of_other_threads_read_the_same_and_hold_the_writer_back() -> None:
    delivery = Delivery("r")
    got: list[str] = []
    ready = threading.Barrier(4)

    def listens() -> None:
        listener = delivery.listen()
        ready.wait()
        got.append(asyncio.run(read(listener)))

    threads = [threading.Thread(target=listens) for _ in range(3)]
    for thread in threads:
        thread.start()
    await asyncio.to_thread(ready.wait)
    text = ""
    for i in range(300):
        piece = f"{i} " * 1000
        text += piece
        delivery.write(piece)
        await delivery.room()
    delivery.close()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert got == [text] * 3


class Retelling(RuleBasedStateMachine):
    """Whatever is written, settled and taken back: who is not broken has read exactly the text, and never more."""

    texts = st.text("ab\n", max_size=4)

    @initialize()
    def begin(self) -> None:
        self.delivery = Delivery("r")
        self.spoken = ""
        self.mark = 0
        self.listeners: list[tuple[Listener, list[str]]] = []
        self.loop = asyncio.new_event_loop()
        self.tasks: list[asyncio.Task[None]] = []

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.delivery.close()
            broken = self.loop.run_until_complete(self.ends())
            self.loop.close()
            for (listener, got), error in zip(self.listeners, broken, strict=True):
                assert isinstance(error, bb.StreamBroken) == listener.broken
                assert listener.broken or "".join(got) == self.delivery.text

    async def ends(self) -> list[BaseException | None]:
        return await asyncio.gather(*self.tasks, return_exceptions=True)

    @rule(text=texts)
    def write(self, text: str) -> None:
        self.delivery.write(text)
        self.spoken += text

    @rule(text=texts)
    def complete(self, text: str) -> None:
        self.delivery.complete(self.spoken + text)
        self.spoken += text

    @rule()
    def settle(self) -> None:
        self.delivery.settle()

    @rule()
    def remember(self) -> None:
        self.mark = self.delivery.mark

    @rule()
    def rewind(self) -> None:
        self.delivery.rewind(self.mark)
        self.spoken = self.spoken[: self.mark]

    @precondition(lambda self: len(self.listeners) < 3)
    @rule()
    def listen(self) -> None:
        listener, got = self.delivery.listen(), list[str]()
        self.listeners.append((listener, got))

        async def go() -> None:
            async for chunk in listener.chunks():
                got.append(chunk)

        self.tasks.append(self.loop.create_task(go()))

    @rule()
    def read_on(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(0))

    @invariant()
    def what_was_said_is_there(self) -> None:
        if hasattr(self, "delivery"):
            assert self.delivery.mark == len(self.spoken)
            assert self.delivery.text.startswith(self.spoken)


TestRetelling = Retelling.TestCase
TestRetelling.settings = settings(max_examples=60, stateful_step_count=20)
