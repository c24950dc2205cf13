"""Trials H11, I7 and O1: runs side by side, runs inside other people's cancel scopes, and context variables."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import anyio
import pytest
import structlog
from structlog.testing import LogCapture

import bb

user: ContextVar[str] = ContextVar("user", default="nobody")

Handler = Callable[[bb.Turn, bb.ModelChat], Awaitable[None]]


def leaf(*handlers: Handler) -> bb.Flow:
    return bb.Flow().with_agent(*(bb.Agent().on_message(handler) for handler in handlers))


# --- H11: one flow, many runs ---


async def test_trial_h11_fifty_runs_of_one_flow_do_not_mix() -> None:
    keys: dict[str, set[str]] = {}

    async def first(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await asyncio.sleep(0.001)
        keys.setdefault(turn.run_id, set()).add(bb.idempotency_key())
        turn.reply(f"{user.get()} {turn.last.content} {turn.run_id}")

    def look(text: str) -> str:
        return f"{user.get()} looked for {text}"

    async def second(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.reply(await turn.step("look", look, turn.messages[0].content))
        assert user.get() == turn.messages[0].content.replace("q", "u")

    trace = bb.Recorder()
    app = bb.App(trace=trace)
    flow = (leaf(first) >> bb.All(leaf(second), leaf(second)) >> bb.Respond()).with_id("f").durable()

    async def one(i: int) -> bb.Outcome:
        user.set(f"u{i}")
        return await app.run(flow, f"q{i}", run_id=f"r-{i}")

    outcomes = await asyncio.gather(*(one(i) for i in range(50)))
    for i, outcome in enumerate(outcomes):
        looked = f"u{i} looked for q{i}"
        assert outcome.answer == f"u{i} q{i} r-{i}\n\n{looked}\n\n{looked}"
        replay = await app.run(flow, f"q{i}", run_id=f"r-{i}")
        assert replay.messages == outcome.messages
    assert len(set().union(*keys.values())) == 50
    starts = [event.path for event in trace.events if event.run_id == "r-7" and event.kind == "flow.start"]
    assert sorted(starts) == [
        "f/body~agents.0",
        "f/body~all.1/branch~agents.0",
        "f/body~all.1/branch~agents.1",
    ]
    assert user.get() == "nobody"


def test_trial_h11_runs_in_threads_of_their_own_do_not_mix() -> None:
    async def says(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await asyncio.sleep(0.001)
        turn.reply(f"{user.get()} {turn.run_id}")

    app = bb.App()
    flow = leaf(says).with_id("f").durable()
    got: dict[int, str] = {}

    def one(i: int) -> None:
        user.set(f"u{i}")
        got[i] = asyncio.run(app.run(flow, "hi", run_id=f"r-{i}")).answer

    threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {i: f"u{i} r-{i}" for i in range(8)}


# --- I7: other people's cancel scopes ---


class Slow:
    """An agent that hangs, and takes its time when it is cancelled."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.ended = asyncio.Event()

    async def handle(self, turn: bb.Turn, chat: bb.ModelChat) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.2)
            self.ended.set()

    def flow(self, durable: bool) -> bb.AnyFlow:
        named = (bb.Flow() >> leaf(self.handle)).with_id("f")
        return named.durable() if durable else named


class Idle:
    """Asserts that what happens inside is prompt and leaves the processor idle."""

    def __enter__(self) -> None:
        self.wall, self.cpu = time.monotonic(), time.process_time()

    def __exit__(self, *exc: object) -> None:
        assert time.monotonic() - self.wall < 3
        assert time.process_time() - self.cpu < 0.15


@pytest.mark.parametrize("durable", [False, True])
async def test_trial_i7_asyncio_timeout(durable: bool) -> None:
    slow = Slow()
    with Idle(), pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await bb.App().run(slow.flow(durable), "hi")
    assert slow.ended.is_set()  # who cancels once finds the run at rest


async def test_trial_i7_a_run_in_anyios_cancel_scope_ends_without_spinning() -> None:
    slow, app = Slow(), bb.App()
    with Idle():
        with anyio.move_on_after(0.05) as scope:
            await app.run(slow.flow(durable=True), "hi", run_id="r-1")
        assert scope.cancelled_caught
        assert not slow.ended.is_set()  # anyio cancels until it is obeyed; waiting for the run would keep the loop busy
        await slow.ended.wait()
        await asyncio.sleep(0.01)
    assert [info.status for info in await app.runs()] == ["interrupted"]


async def test_trial_i7_a_run_that_was_cut_off_there_goes_on_at_once() -> None:
    tries: list[int] = []

    async def hangs_once(turn: bb.Turn, chat: bb.ModelChat) -> None:
        tries.append(1)
        if len(tries) > 1:
            turn.reply("done")
            return
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)

    app = bb.App()
    flow = leaf(hangs_once).with_id("f").durable()
    with anyio.move_on_after(0.02):
        await app.run(flow, "hi", run_id="r-1")
    assert (await app.run(flow, "hi", run_id="r-1")).answer == "done"
    assert len(tries) == 2


@pytest.mark.parametrize("library", ["asyncio", "anyio"])
async def test_trial_i7_a_sibling_in_a_task_group_fails(library: str) -> None:
    slow, app = Slow(), bb.App()

    async def fails() -> None:
        await slow.began.wait()
        raise KeyError("sibling")

    async def runs() -> None:
        await app.run(slow.flow(durable=True), "hi", run_id="r-1")

    async def together() -> None:
        if library == "asyncio":
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(runs())
                tasks.create_task(fails())
        else:
            async with anyio.create_task_group() as group:
                group.start_soon(runs)
                group.start_soon(fails)

    with Idle(), pytest.raises(ExceptionGroup) as caught:
        await together()
    assert caught.group_contains(KeyError)
    await slow.ended.wait()


async def test_trial_i7_a_cancel_scope_inside_a_handler_is_the_handlers_own() -> None:
    async def tries(turn: bb.Turn, chat: bb.ModelChat) -> None:
        with anyio.move_on_after(0.01) as scope:
            await asyncio.Event().wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asyncio.sleep, 0)
        turn.reply(f"gave up: {scope.cancelled_caught}")

    with Idle():
        assert (await bb.App().run(leaf(tries).with_id("f").durable(), "hi")).answer == "gave up: True"


async def test_trial_i4_cancelling_twice_is_still_a_cancellation() -> None:
    slow, app = Slow(), bb.App()
    task = asyncio.ensure_future(app.run(slow.flow(durable=True), "hi", run_id="r-1"))
    await slow.began.wait()
    task.cancel()
    await asyncio.sleep(0.01)
    task.cancel()
    with Idle(), pytest.raises(asyncio.CancelledError):
        await task
    await slow.ended.wait()
    await asyncio.sleep(0.01)
    assert [info.status for info in await app.runs()] == ["interrupted"]


# --- O1: context variables ---


@pytest.mark.parametrize("durable", [False, True])
async def test_trial_o1_what_a_caller_bound_is_there_wherever_its_code_runs(durable: bool) -> None:
    log = LogCapture()
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, log])

    def in_a_thread() -> str:
        assert threading.current_thread() is not threading.main_thread()
        structlog.get_logger().info("step")
        return user.get()

    async def works(turn: bb.Turn, chat: bb.ModelChat) -> None:
        structlog.get_logger().info("handler")
        turn.reply(await turn.step("s", in_a_thread))

    async def sends(text: str) -> None:
        structlog.get_logger().info("notify")

    user.set("ada")
    flow = (bb.Group(leaf(works)) >> bb.One(leaf(works)) >> bb.Notify(sends)).with_id("f")
    try:
        with structlog.contextvars.bound_contextvars(request="q-1"):
            outcome = await bb.App().run(flow.durable() if durable else flow, "hi")
    finally:
        structlog.reset_defaults()
    assert outcome.answer == "ada"
    assert [entry["event"] for entry in log.entries] == ["handler", "step", "handler", "step", "notify"]
    assert {entry["request"] for entry in log.entries} == {"q-1"}


async def test_trial_o1_what_a_handler_binds_stays_with_it() -> None:
    async def binds(turn: bb.Turn, chat: bb.ModelChat) -> None:
        user.set(user.get() + "!")
        await asyncio.sleep(0)
        turn.reply(user.get())

    user.set("ada")
    outcome = await bb.App().run(bb.All(leaf(binds), leaf(binds)).with_id("f").durable(), "hi")
    assert [message.content for message in outcome.messages] == ["ada!", "ada!"]
    assert user.get() == "ada"
