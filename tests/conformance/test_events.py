"""Events of what handlers and model stages do: calls of models, runs of tools and steps, and their replays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import bb
from bb.flows.tree import AiSegment, Bind, Return
from bb.ops import Op, op
from bb.testing import ManualClock, ScriptedModel
from tests.trials.kit import Disk, disk_of

SPENT = bb.Usage(input=10, output=5)
WORK = ("model.", "tool.", "step.")


@pytest.fixture(params=["memory", "file"])
async def disk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Disk]:
    async with disk_of(request.param, tmp_path) as made:
        yield made


class Slow:
    """A model that says where it comes from, takes its time, and may hang or fail after its first piece."""

    name = "slow-1"
    provider = "acme"

    def __init__(self, clock: ManualClock, then: str = "") -> None:
        self.clock = clock
        self.then = then
        self.speaks = asyncio.Event()

    async def stream(self, request: bb.ModelRequest, /) -> AsyncIterator[bb.Chunk]:
        yield SPENT
        await self.clock.sleep(2)
        yield "so"
        self.speaks.set()
        if self.then == "hang":
            await asyncio.Event().wait()
        if self.then == "fail":
            raise bb.UpstreamError("no more of it")
        await self.clock.sleep(3)
        yield "lar"


def named(handler: Callable[..., Awaitable[None]], model: bb.Model | None = None) -> bb.NamedFlow:
    agent = bb.Agent("a").on_message(handler)
    return bb.Flow().with_agent(agent if model is None else agent.with_model(model)).with_id("f")


def told(events: list[bb.Event]) -> list[tuple[str, str, str]]:
    """What happened inside handlers: kinds, names and errors."""
    return [(event.kind, event.detail, event.error) for event in events if event.kind.startswith(WORK)]


async def asks(turn: bb.Turn, chat: bb.ModelChat) -> None:
    turn.reply((await chat.add(*turn.messages).ask()).text)


@pytest.mark.parametrize("durable", [False, True])
async def test_a_call_of_a_model_tells_its_model_time_and_tokens(disk: Disk, durable: bool) -> None:
    clock, seen = ManualClock(auto=True), bb.Recorder()
    flow = named(asks, Slow(clock))
    await disk.app(clock=clock, trace=seen).run(flow.durable() if durable else flow, "hi", run_id="r")

    assert seen.kinds() == ["run.start", "flow.start", "model.start", "model.end", "flow.end", "run.end"]
    start, end = seen.events[2:4]
    for event in (start, end):
        assert (event.path, event.flow, event.detail, event.provider, event.run_id) == ("f", "f", "slow-1", "acme", "r")
    assert start.entry == end.entry != ""
    assert (start.dur_ns, start.first_ns, start.usage) == (0, 0, None)
    assert (end.dur_ns, end.first_ns, end.usage) == (5 * 10**9, 2 * 10**9, SPENT)
    assert end.error == ""


async def test_a_model_that_says_nothing_of_itself_is_called_by_its_class() -> None:
    seen = bb.Recorder()
    await bb.run(named(asks), "hi", model=bb.FixedModel("x"), trace=seen)
    assert told(seen.events) == [("model.start", "FixedModel", ""), ("model.end", "FixedModel", "")]
    assert {event.provider for event in seen.events} == {""}


async def test_a_call_that_breaks_off_tells_its_error_and_what_was_billed() -> None:
    clock, seen = ManualClock(auto=True), bb.Recorder()
    with pytest.raises(bb.AgentFailed):
        await bb.App(clock=clock, trace=seen).run(named(asks, Slow(clock, "fail")), "hi")
    assert told(seen.events) == [("model.start", "slow-1", ""), ("model.error", "slow-1", "UpstreamError")]
    assert [event.usage for event in seen.events if event.kind == "model.error"] == [SPENT]
    assert (seen.events[-1].detail, seen.events[-1].error) == ("failed", "UpstreamError")
    assert "no more of it" not in repr(seen.events)


async def test_an_answer_that_does_not_fit_is_an_error_of_its_call() -> None:
    seen = bb.Recorder()
    agent = bb.Agent("a").with_schema(bb.Usage).with_model(bb.FixedModel("no JSON"))
    with pytest.raises(bb.AgentFailed):
        await bb.run(bb.Flow().with_agent(agent), "hi", trace=seen)
    assert told(seen.events) == [("model.start", "FixedModel", ""), ("model.error", "FixedModel", "SchemaMismatch")]


async def test_calls_at_one_place_are_told_apart() -> None:
    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        replies = await asyncio.gather(chat.ask_with("x"), chat.ask_with("x"), chat.ask_with("y"))
        turn.reply(" ".join(reply.text for reply in replies))

    seen = bb.Recorder()
    both = bb.Flow().with_agent(*(bb.Agent(name).on_message(handler) for name in ("a", "b"))).with_id("f")
    await bb.App(trace=seen, model=ScriptedModel(*"123456")).run(both.durable(), "hi")
    begun = [event.entry for event in seen.events if event.kind == "model.start"]
    ended = [event.entry for event in seen.events if event.kind == "model.end"]
    assert len(set(begun)) == 6 and sorted(begun) == sorted(ended)
    assert set(seen.paths("model.start")) == {"f"}


# --- streams ---


async def test_a_stream_is_one_call() -> None:
    clock, seen = ManualClock(auto=True), bb.Recorder()
    app = bb.App(clock=clock, trace=seen, model=Slow(clock))
    async with app.stream(bb.Flow().with_agent(bb.Agent("a")).with_id("f"), "hi") as text:
        assert [piece async for piece in text] == ["so", "lar"]
    assert told(seen.events) == [("model.start", "slow-1", ""), ("model.end", "slow-1", "")]
    assert seen.kinds().index("model.end") < seen.kinds().index("flow.end")


async def test_an_abandoned_stream_ends_with_its_handler() -> None:
    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        async with turn.stream() as out:
            async for piece in (await chat.ask()).stream():
                await out.write(piece)
                break

    clock, seen = ManualClock(auto=True), bb.Recorder()
    app = bb.App(clock=clock, trace=seen)
    async with asyncio.timeout(5), app.stream(named(handler, Slow(clock, "hang")), "hi") as text:
        assert [piece async for piece in text] == ["so"]
    assert told(seen.events) == [("model.start", "slow-1", ""), ("model.error", "slow-1", "CancelledError")]
    assert [event.usage for event in seen.events if event.kind == "model.error"] == [SPENT]
    assert seen.kinds().index("model.error") < seen.kinds().index("flow.end")


@pytest.mark.parametrize("live", [False, True])
async def test_a_cancelled_call_ends_before_its_run(live: bool) -> None:
    clock, seen = ManualClock(auto=True), bb.Recorder()
    model = Slow(clock, "hang")
    app, flow = bb.App(clock=clock, trace=seen), bb.Flow().with_agent(bb.Agent("a").with_model(model)).with_id("f")

    async def listen() -> None:
        async with app.stream(flow, "hi") as text:
            async for _ in text:
                pass

    task = asyncio.ensure_future(listen() if live else app.run(flow, "hi"))
    await model.speaks.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await app.stop()
    assert told(seen.events) == [("model.start", "slow-1", ""), ("model.error", "slow-1", "CancelledError")]
    assert seen.kinds()[-2:] == ["flow.error", "run.end"]


# --- tools and steps ---


def tool(name: str, *errors: Exception) -> bb.Tool:
    left = list(errors)

    def run(given: dict[str, Any]) -> str:
        if left:
            raise left.pop(0)
        return "found"

    return bb.Tool(name, "Looks", {"type": "object"}).on_call(run)


async def test_tools_are_told_by_their_names_also_those_whose_error_the_model_sees() -> None:
    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        reply = await chat.add("hi").with_tools(tool("good"), tool("bad", KeyError("a word"))).resolve()
        turn.reply(reply.text)

    seen = bb.Recorder()
    calls = [bb.ToolCall(id, name) for id, name in (("1", "good"), ("2", "bad"), ("3", "never offered"))]
    await bb.run(named(handler), "hi", model=ScriptedModel(calls, "done"), trace=seen)
    assert told(seen.events) == [
        ("model.start", "ScriptedModel", ""),
        ("model.end", "ScriptedModel", ""),
        ("tool.start", "good", ""),
        ("tool.end", "good", ""),
        ("tool.start", "bad", ""),
        ("tool.error", "bad", "KeyError"),
        ("model.start", "ScriptedModel", ""),
        ("model.end", "ScriptedModel", ""),
    ]
    assert "a word" not in repr(seen.events)


async def test_a_tool_that_is_fatal_tells_so() -> None:
    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await chat.with_tools(tool("bad", bb.Fatal("the end"))).resolve()

    seen = bb.Recorder()
    with pytest.raises(bb.AgentFailed):
        await bb.run(named(handler), "hi", model=ScriptedModel(bb.ToolCall("1", "bad")), trace=seen)
    assert told(seen.events)[2:] == [("tool.start", "bad", ""), ("tool.error", "bad", "Fatal")]


async def test_what_was_done_before_a_failure_is_told_as_replayed(disk: Disk) -> None:
    broken = [True]

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        reply = await chat.add("hi").with_tools(tool("look")).resolve()
        await turn.step("pay/all", lambda: 5)
        await chat.ask_with("and now?")
        if broken[0]:
            raise ValueError("not yet")
        turn.reply(reply.text)

    flow = named(handler).durable()
    model = ScriptedModel(bb.ToolCall("1", "look"), "one", "two", "three", usage=SPENT)
    kinds: list[list[tuple[str, str, str]]] = []
    entries: list[set[str]] = []
    for _ in range(2):
        seen = bb.Recorder()
        app = disk.app(flow, model=model, trace=seen)
        if broken[0]:
            with pytest.raises(bb.AgentFailed):
                await app.run("f", "hi", run_id="r")
        else:
            await app.run("f", run_id="r")
        broken[0] = False
        kinds.append(told(seen.events))
        entries.append({event.entry for event in seen.events if event.entry})

    asked, done = [("model.start", "ScriptedModel", ""), ("model.end", "ScriptedModel", "")], ("model.cached",)
    assert kinds[0] == [
        *asked,
        ("tool.start", "look", ""),
        ("tool.end", "look", ""),
        *asked,
        ("step.start", "pay/all", ""),
        ("step.end", "pay/all", ""),
        *asked,
    ]
    assert kinds[1] == [
        (*done, "ScriptedModel", ""),
        ("tool.cached", "look", ""),
        (*done, "ScriptedModel", ""),
        ("step.cached", "pay/all", ""),
        *asked,  # the handler raised on this answer
    ]
    assert entries[0] == entries[1] and len(entries[0]) == 5

    # the log tells the same to who comes later, all but the name of the model
    kept = [event for event in await disk.app(flow).events("r") if event.entry]
    assert {event.entry for event in kept} == entries[0]
    assert [(event.kind, event.detail) for event in kept] == [
        ("model.end", ""),
        ("tool.end", "look"),
        ("model.end", ""),
        ("step.end", "pay/all"),
        ("model.end", ""),
        ("model.end", ""),
    ]
    assert {event.usage for event in kept if event.kind == "model.end"} == {SPENT}
    assert {(event.path, event.flow, event.run_id) for event in kept} == {("f", "f", "r")}


async def test_a_step_that_fails_tells_its_error_and_is_done_anew(disk: Disk) -> None:
    left = [1]

    def pays() -> int:
        if left:
            raise OSError(f"no network {left.pop()}")
        return 5

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.reply(str(await turn.step("pay", pays)))

    seen = bb.Recorder()
    app = disk.app(clock=ManualClock(auto=True), trace=seen)
    await app.run(named(handler).durable(retries=1), "hi", run_id="r")
    assert told(seen.events) == [
        ("step.start", "pay", ""),
        ("step.error", "pay", "OSError"),
        ("step.start", "pay", ""),
        ("step.end", "pay", ""),
    ]
    for events in (seen.events, await app.events("r")):
        assert [event.error for event in events if event.kind == "run.retry"] == ["OSError"]


async def test_a_model_stage_tells_its_rounds_and_ops_and_a_call_is_told_once() -> None:
    @op("calendar.read", effects=["read"])
    async def read(day: str) -> str:
        if day == "never":
            raise ValueError("there is none")
        return f"{day} 10:00"

    looked: Op[Any, Any] = read
    calls = [bb.ToolCall(day, "calendar.read", f'{{"day": "{day}"}}') for day in ("mon", "never")]
    flow = Bind("found", AiSegment("Look", [looked])).next(Bind("one", looked(day="tue"))).next(Return(bb.Var("one")))
    seen = bb.Recorder()
    await bb.App(ops=[looked], trace=seen, model=ScriptedModel(calls, "done")).run(flow.with_id("f"), "hi")
    within = told(seen.events)
    assert within[:2] == within[-2:] == [("model.start", "ScriptedModel", ""), ("model.end", "ScriptedModel", "")]
    assert sorted(within[2:-2]) == [
        ("tool.end", "calendar.read", ""),
        ("tool.error", "calendar.read", "ValueError"),
        ("tool.start", "calendar.read", ""),
        ("tool.start", "calendar.read", ""),
    ]
    assert [event.detail for event in seen.events if event.kind == "flow.start"] == ["ai_segment", "calendar.read"]
    assert not [event for event in seen.events if event.path.endswith("call.0") and event.kind.startswith("tool.")]


async def test_a_secret_in_a_name_is_left_out(disk: Disk) -> None:
    bb.redact("sk-live-0123456789")

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.reply(str(await turn.step("log in with sk-live-0123456789", lambda: 5)))

    seen = bb.Recorder()
    app = disk.app(trace=seen)
    await app.run(named(handler).durable(), "hi", run_id="r")
    assert [event.detail for event in seen.events if event.entry] == ["log in with [redacted]"] * 2
    assert "sk-live" not in repr(seen.events) + repr(await app.events("r"))


# --- the end of a run ---


@pytest.mark.parametrize("durable", [False, True])
async def test_a_run_that_fails_tells_the_class_of_its_error_and_no_word_of_it(disk: Disk, durable: bool) -> None:
    async def fails(turn: bb.Turn, chat: bb.ModelChat) -> None:
        raise ValueError("a secret of the house")

    seen, flow = bb.Recorder(), named(fails)
    app = disk.app(trace=seen)
    with pytest.raises(bb.AgentFailed):
        await app.run(flow.durable() if durable else flow, "hi", run_id="r")
    last = seen.events[-1]
    assert (last.kind, last.detail, last.error, last.raised_as) == ("run.end", "failed", "ValueError", "AgentFailed")
    assert "house" not in repr(seen.events)
    if durable:
        assert (await app.events("r"))[-1].error == "ValueError"


async def test_a_run_that_is_cancelled_has_not_failed(disk: Disk) -> None:
    clock, seen = ManualClock(auto=True), bb.Recorder()
    model = Slow(clock, "hang")
    app = disk.app(clock=clock, trace=seen)
    task = asyncio.ensure_future(app.run(named(asks, model).durable(), "hi", run_id="r"))
    await model.speaks.wait()
    await app.cancel("r")
    with pytest.raises(bb.RunCancelled):
        await task
    assert told(seen.events)[-1] == ("model.error", "slow-1", "CancelledError")
    assert (seen.events[-1].detail, seen.events[-1].error) == ("cancelled", "")
