"""Trials P: retries and limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import bb
from bb.testing.clock import ManualClock
from bb.testing.mock_store import Crash, MockStore
from bb.testing.scripted_model import ScriptedModel
from tests.trials.kit import Disk, Work, cut_off, mocked


def leaf(name: str, handler: Any, model: Any = None) -> bb.NamedFlow:
    return bb.Flow().with_agent(bb.Agent(name, model=model).on_message(handler)).with_id(name)


FATAL: dict[str, Exception] = {
    "fatal": bb.Fatal("no"),
    "wiring": bb.WiringError("no"),
    "rejected": bb.UpstreamRejected("401", status=401),
    "too large": bb.TooLarge("no"),
    "in a group": ExceptionGroup("several", [ValueError("x"), bb.Fatal("no")]),
    "an agent below": bb.AgentFailed("below"),
}
FATAL["an agent below"].__cause__ = bb.Fatal("no")


@pytest.mark.parametrize("kind", FATAL)
async def test_trial_P1_what_cannot_help_is_not_tried_again(work: Work, kind: str) -> None:
    clock = ManualClock(auto=True)
    app = mocked(MockStore(), work.flow("a").durable(retries=5), clock=clock)
    work.fail("a", FATAL[kind])

    with pytest.raises(bb.AgentFailed):
        await app.run("a", "hi", run_id="r")

    assert work.count("a") == 1 and clock.slept == []


@pytest.mark.parametrize("kind", ["no model", "unknown select", "conflict", "socket", "broken tool"])
async def test_trial_P1_mistakes_of_the_program_fail_at_once(work: Work, kind: str) -> None:
    calls: list[str] = []

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        calls.append(kind)
        match kind:
            case "no model":
                await chat.ask()
            case "broken tool":
                await chat.with_tools(bb.Tool("", "no name", {})).ask()
            case "socket":
                turn.reply("here", value={"x": [asyncio.current_task()]})
            case "unknown select":
                turn.select("nowhere")
            case _:
                turn.select("left")

    async def other(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.select("right")

    model = bb.FixedModel("x") if kind == "broken tool" else None
    agents = [bb.Agent("a", model=model).on_message(handler)]
    if kind == "conflict":
        agents.append(bb.Agent("b").on_message(other))
    first = bb.Flow().with_agent(*agents).with_id("first")
    flow = first.next(bb.Select(work.flow("left"), work.flow("right"))).with_id("job").durable(retries=5)
    app = mocked(MockStore(), flow)

    with pytest.raises(bb.BBError) as raised:
        await app.run("job", "hi", run_id="r")

    assert calls == [kind] and [run.status for run in await app.runs()] == ["failed"]
    if kind == "socket":
        assert isinstance(raised.value, bb.NotSavable) and raised.value.path == "job/first"
        assert 'result["x"][0]' in str(raised.value) or '["x"][0]' in str(raised.value)


@pytest.mark.parametrize("retries", [0, 3])
async def test_trial_P1_a_value_that_cannot_be_kept_leaves_earlier_savepoints_intact(
    disk: Disk, work: Work, retries: int
) -> None:
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable(retries=retries)
    work.values["b"] = object()
    with pytest.raises(bb.NotSavable, match="object"):
        await disk.app(flow).run("job", "hi", run_id="r")
    assert work.count("b") == 1
    work.values["b"] = "fine"

    assert (await disk.app(flow).run("job", "hi", run_id="r")).replayed == ("job/a",)


async def test_trial_P2_a_stop_signal_of_the_library_is_not_retried_and_the_effect_not_doubled(work: Work) -> None:
    effects: list[str] = []

    def charge(args: dict[str, Any]) -> str:
        effects.append("charge")
        raise bb.Fatal("a person has to approve this")

    tool = bb.Tool("charge", "charges", {"type": "object", "properties": {}}).on_call(charge)

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        try:
            turn.reply(await chat.add("go").with_tools(tool).resolve())
        except ValueError:
            turn.reply("swallowed")

    model = ScriptedModel(bb.ToolCall("c1", "charge", "{}"), "never")
    app = mocked(MockStore(), leaf("a", handler, model).durable(retries=5))

    with pytest.raises(bb.AgentFailed, match="approve"):
        await app.run("a", "hi", run_id="r")

    assert effects == ["charge"] and model.left == 1


@pytest.mark.parametrize("place", ["step", "ask", "tool"])
async def test_trial_P4_a_bare_except_does_not_hide_that_the_store_failed(work: Work, place: str) -> None:
    store = MockStore()
    swallowed: list[str] = []
    tool = bb.Tool("t", "does", {"type": "object", "properties": {}}).on_call(lambda args: "ok")

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        for _ in range(3):
            try:
                if place == "step":
                    await turn.step("s", lambda: 1)
                elif place == "ask":
                    await chat.ask_with("hi")
                else:
                    await chat.add("hi").with_tools(tool).resolve()
            except Exception as error:  # as programs do
                swallowed.append(type(error).__name__)
        turn.reply("as if nothing had happened")

    class Caller:
        async def stream(self, request: bb.ModelRequest, /) -> Any:
            yield bb.ToolCall("c", "t", "{}") if place == "tool" and len(request.messages) == 1 else "text"

    flow = leaf("a", handler, Caller()).next(work.flow("b")).with_id("job").durable(retries=3)
    store.fail_append(lambda stream, records: any(b'"e"' in record for record in records), times=99)

    with pytest.raises(bb.StoreError):
        await mocked(store, flow).run("job", "hi", run_id="r")

    assert swallowed == ["StoreError"] * 3 and work.calls == []
    store.clear()
    assert (await mocked(store, flow).run("job", "hi", run_id="r")).answer == "b"


async def test_trial_P5_killed_cancelled_and_failed_runs_can_all_go_on(work: Work) -> None:
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()

    async def killed(store: MockStore) -> None:
        store.crash_at(lambda stream, records: any(b'"job/b"' in record for record in records))
        with pytest.raises(Crash):
            await mocked(store, flow).run("job", "hi", run_id="r")
        store.revive()

    async def left(store: MockStore) -> None:
        await cut_off(mocked(store, flow), work.hold("b"), "job", "hi", run_id="r")

    async def cancelled(store: MockStore) -> None:
        await left(store)
        await mocked(store, flow).cancel("r")

    async def failed(store: MockStore) -> None:
        work.fail("b", 1)
        with pytest.raises(bb.AgentFailed):
            await mocked(store, flow).run("job", "hi", run_id="r")

    for end, status in ((killed, "interrupted"), (left, "interrupted"), (cancelled, "cancelled"), (failed, "failed")):
        store = MockStore()
        work.calls.clear()
        await end(store)
        app = mocked(store, flow)
        assert [run.status for run in await app.runs()] == [status]

        outcome = await app.run("job", run_id="r")

        assert outcome.replayed == ("job/a",) and work.calls == ["a", "b", "b"]
        assert [run.status for run in await app.runs()] == ["finished"]


async def test_trial_P7_reaching_a_cap_keeps_the_rounds_that_were_run(disk: Disk) -> None:
    ran: list[str] = []
    cap = [2]

    def run(args: dict[str, Any]) -> str:
        ran.append("t")
        return "ok"

    tool = bb.Tool("t", "does", {"type": "object", "properties": {}}).on_call(run)

    class Busy:
        asked = 0

        async def stream(self, request: bb.ModelRequest, /) -> Any:
            Busy.asked += 1
            done = sum(len(message.results) for message in request.messages)
            yield "enough" if done == 3 else bb.ToolCall(f"c{done}", "t", "{}")

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.reply(await chat.add("hi").with_tools(tool).with_max_rounds(cap[0]).resolve())

    flow = leaf("a", handler, Busy()).durable()
    with pytest.raises(bb.AgentFailed) as raised:
        await disk.app(flow).run("a", "hi", run_id="r")
    assert isinstance(raised.value.__cause__, bb.MaxRounds) and ran == ["t"]
    cap[0] = 9

    outcome = await disk.app(flow).run("a", "hi", run_id="r")

    assert outcome.answer == "enough" and ran == ["t"] * 3
    assert Busy.asked == 5  # the first round replays; only the last answer, on which it failed, was asked anew


async def test_trial_P8_a_provider_that_asks_for_time_gets_it(work: Work) -> None:
    clock = ManualClock(auto=True)
    app = mocked(MockStore(), work.flow("a").durable(retries=2), clock=clock)
    work.fail("a", bb.UpstreamError("429", status=429, retry_after=17.0), bb.UpstreamError("503", status=503))

    await app.run("a", "hi", run_id="r")

    assert clock.slept == [17.0, 0.75]


async def test_trial_P8_nested_retries_multiply_and_each_try_is_on_record(work: Work) -> None:
    clock, seen, store = ManualClock(auto=True), bb.Recorder(), MockStore()
    inner = work.flow("a").durable(retries=2)
    middle = inner.next(work.flow("m")).with_id("middle").durable(retries=2)
    outer = middle.next(work.flow("o")).with_id("outer").durable(retries=2)
    work.fail("a", 99)

    with pytest.raises(bb.AgentFailed):
        await mocked(store, outer, clock=clock, trace=seen).run("outer", "hi", run_id="r")

    assert work.count("a") == 27 and len(clock.slept) == 26 and max(clock.slept) <= 30
    assert seen.kinds().count("run.retry") == 26
    (run,) = await mocked(store, outer).runs()
    assert (run.status, run.attempts) == ("failed", 27)
