"""Bounded model stages: cases 67 to 70 of the language, and the trials of half a turn, parallel tools and the cap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

import bb
from bb.errors import MaxRounds
from bb.flows.calls import ON_EXHAUSTED
from bb.flows.expressions import Var
from bb.flows.tree import AiSegment, Bind, Emit, Memo, Once, Return, WithTools
from bb.messages import ToolCall, unresolved
from bb.models.base import ModelRequest
from bb.ops import Op, op
from bb.testing import Crash, Effects, MockStore, ScriptedModel, crash_everywhere
from tests.trials.kit import Disk, disk_of, mocked


@pytest.fixture(params=["memory", "file"])
async def disk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Disk]:
    async with disk_of(request.param, tmp_path) as made:
        yield made


class Calendar:
    """A calendar that can be read freely, and booked only with leave."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.effects = Effects()

        @op("calendar.read", effects=["read"])
        async def read(day: str) -> list[str]:
            """The free slots of a day."""
            self.calls.append(f"read {day}")
            self.effects.ran(f"read {day}")
            return [f"{day} 10:00"]

        @op("calendar.book", effects=["send_external"], risk="high")
        async def book(slot: str) -> str:
            """Book a slot."""
            self.calls.append(f"book {slot}")
            self.effects.ran(f"book {slot}")
            return f"booked {slot}"

        self.read: Op[Any, Any] = read
        self.book: Op[Any, Any] = book

    def reading(self, day: str, id: str = "") -> ToolCall:
        return ToolCall(id or f"r-{day}", "calendar.read", f'{{"day": "{day}"}}')

    def booking(self, slot: str) -> ToolCall:
        return ToolCall(f"b-{slot}", "calendar.book", f'{{"slot": "{slot}"}}')


@pytest.fixture
def calendar() -> Calendar:
    return Calendar()


FINALIZE = ToolCall("f", "finalize")


def found(segment: AiSegment) -> bb.NamedFlow:
    """A flow that says something after the stage, and returns what it came to."""
    return Bind("found", segment).next(Emit("after")).next(Return(Var("found"))).with_id("find")


# --- 67: the bound ----------------------------------------------------------------------------------------------------


def made(segment: AiSegment) -> bb.DurableFlow:
    return segment.with_id("f").durable()


def test_what_a_segment_does_without_rounds_is_part_of_it_and_has_every_spelling() -> None:
    plain, strict = (made(AiSegment("g", on_exhausted=then)) for then in ON_EXHAUSTED)
    assert bb.signature(plain) == bb.signature(made(AiSegment("g"))) != bb.signature(strict)
    for flow in (plain, strict):
        assert bb.text.parse(bb.text.format(flow))["f"] == flow == bb.wire.from_wire(bb.wire.to_wire(flow))
    assert "on_exhausted: error" in bb.text.format(strict)
    with pytest.raises(bb.WiringError, match="maybe"):
        AiSegment("g", on_exhausted=cast("Any", "maybe"))
    with pytest.raises(bb.BBError, match="maybe"):
        bb.text.parse('flow f\n  ai_segment(goal: "g", on_exhausted: maybe)\n')


@pytest.mark.parametrize("durable", [False, True])
async def test_a_segment_without_rounds_may_be_a_failure(disk: Disk, calendar: Calendar, durable: bool) -> None:
    """A retry asks for the last answer once more, and reads nothing again that was read."""
    mon, tue = map(calendar.reading, ("mon", "tue"))
    model = ScriptedModel(mon, tue, "tuesday")
    flow = found(AiSegment("Find a slot", [calendar.read], 2, on_exhausted="error"))
    app = disk.app(*[flow.durable()] if durable else [flow], model=model)

    with pytest.raises(MaxRounds, match="2 rounds"):
        await app.run("find", "hi", run_id="r")
    assert calendar.calls == ["read mon", "read tue"]
    if durable:
        outcome = await app.run("find", run_id="r")
        assert outcome.value == {"result": "tuesday", "reason": "answer", "rounds": 2}
        assert calendar.calls == ["read mon", "read tue"]


@pytest.mark.parametrize("durable", [False, True])
async def test_case_067_a_segment_is_bounded_by_max_rounds_and_returns_control(
    disk: Disk, calendar: Calendar, durable: bool
) -> None:
    mon, tue, wed = map(calendar.reading, ("mon", "tue", "wed"))
    model = ScriptedModel(["looking", mon], tue, wed, "never asked")
    flow = found(AiSegment("Find a slot", [calendar.read], 3))
    app = disk.app(*[flow.durable()] if durable else [flow], model=model)

    outcome = await app.run("find", "hi")

    assert len(model.requests) == 3 and calendar.calls == ["read mon", "read tue", "read wed"]
    assert outcome.value == {"result": "looking", "reason": "exhausted", "rounds": 3}
    assert [message.content for message in outcome.messages] == ["after"]


# --- 68: until --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", ["x", " ", 0, False, [0], {"a": None}, "[]", "false"])
async def test_case_068_a_segment_exits_early_when_its_until_symbol_is_bound(calendar: Calendar, held: object) -> None:
    model = ScriptedModel("never asked")
    app = bb.App(model=model)
    flow = Bind("slot", held).next(found(AiSegment("Find a slot", [calendar.read], 3, "slot"))).with_id("find")

    outcome = await app.run(flow, "hi")

    assert model.requests == []
    assert outcome.value == {"result": "", "reason": "until", "rounds": 0}


@pytest.mark.parametrize("held", [None, "", [], {}])
async def test_case_068_an_empty_symbol_is_not_filled(calendar: Calendar, held: object) -> None:
    model = ScriptedModel("none is free")
    flow = Bind("slot", held).next(found(AiSegment("Find a slot", [calendar.read], 3, "slot"))).with_id("find")

    outcome = await bb.App(model=model).run(flow, "hi")

    assert outcome.value == {"result": "none is free", "reason": "answer", "rounds": 1}


async def test_case_068_a_decision_fills_the_symbol_also_in_a_replay(disk: Disk, calendar: Calendar) -> None:
    model = ScriptedModel(ToolCall("1", "decide", '{"value": ""}'), ToolCall("2", "decide", '{"value": "mon 10:00"}'))
    segment = AiSegment("Find a slot", [calendar.read], 3, "slot")
    flow = Bind("found", segment).next(Return(Var("slot"))).with_id("find").durable()

    for _ in range(2):
        assert (await disk.app(flow, model=model).run("find", "hi", run_id="r")).value == "mon 10:00"

    assert len(model.requests) == 2
    assert model.requests[1].messages[-1].results[0].is_error  # the first was empty


# --- 69: confinement --------------------------------------------------------------------------------------------------


async def test_case_069_a_segment_cannot_call_an_op_outside_its_scope(calendar: Calendar) -> None:
    outside = [calendar.booking("mon"), ToolCall("2", "ai_segment", '{"goal": "more"}'), ToolCall("3", "unheard.of")]
    model = ScriptedModel(outside, "I cannot book")
    app = bb.App(ops=[calendar.read, calendar.book], model=model)

    outcome = await app.run(found(AiSegment("Book", ["calendar.read"], 5)), "hi")

    assert calendar.calls == []
    assert outcome.value == {"result": "I cannot book", "reason": "answer", "rounds": 2}
    assert "calendar.book" not in [tool.name for tool in model.requests[0].tools]
    told = model.requests[1].messages[-1].results
    assert [(result.call_id, result.is_error) for result in told] == [("b-mon", True), ("2", True), ("3", True)]
    assert all(result.content.startswith("not selected") for result in told)


async def test_case_069_with_tools_around_it_confine_it_before_the_model_is_asked(calendar: Calendar) -> None:
    model = ScriptedModel("never asked")
    flow = found(AiSegment("Book", [calendar.read, calendar.book]))

    with pytest.raises(bb.BBError, match=r"calendar\.book was denied"):
        await bb.App(model=model).run(confined(flow), "hi")

    assert model.requests == [] and calendar.calls == []


def confined(flow: bb.AnyFlow) -> bb.NamedFlow:
    return WithTools(["calendar.read"], flow).with_id("confined")


# --- 70: an authored budget -------------------------------------------------------------------------------------------


async def test_case_070_a_segment_honours_an_authored_budget_of_50_rounds(calendar: Calendar) -> None:
    rounds = [calendar.reading(f"day {number}") for number in range(49)]
    model = ScriptedModel(*rounds, "done")

    outcome = await bb.App(model=model).run(found(AiSegment("Look at every day", [calendar.read], 50)), "hi")

    assert outcome.value == {"result": "done", "reason": "answer", "rounds": 50}
    assert len(calendar.calls) == 49


# --- it is a call: memo, once -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
async def test_a_memo_asks_the_model_once_per_session(disk: Disk, calendar: Calendar, durable: bool) -> None:
    model = ScriptedModel(ToolCall("1", "decide", '{"value": "mon"}'))
    memo = Memo("found", AiSegment("Find a day", [calendar.read], 3, "day"))
    flow = memo.next(Return([Var("found"), Var("day")])).with_id("find")
    app = disk.app(*[flow.durable()] if durable else [flow], model=model)

    first = await app.run("find", "hi", session_id="s")
    second = await app.run("find", "hi", session_id="s")

    record = {"result": "mon", "reason": "until", "rounds": 1, "decision": "mon"}
    assert first.value == second.value == [record, "mon"] and len(model.requests) == 1


async def test_a_once_around_it_books_once_per_session(disk: Disk, calendar: Calendar) -> None:
    model = ScriptedModel(calendar.booking("mon"), "booked")
    once = Once("book", AiSegment("Book", [calendar.book]), bind="receipt")
    flow = once.next(Return(Var("receipt"))).with_id("book").durable()
    app = disk.app(flow, model=model)

    first = await app.run("book", "hi", session_id="s")
    second = await app.run("book", "hi", session_id="s")

    assert first.value == second.value and calendar.calls == ["book mon"] and len(model.requests) == 2


# --- C14: half a turn -------------------------------------------------------------------------------------------------


class Strict:
    """A model that, as providers do, refuses a chat with a call that has no result. It reads three days and books one."""

    def __init__(self, calendar: Calendar) -> None:
        self.asked: list[ModelRequest] = []
        self._answers: list[Any] = [
            [calendar.reading("mon", "1"), calendar.reading("tue", "2")],
            [calendar.reading("wed", "3"), calendar.booking("mon")],
            [calendar.booking("tue"), FINALIZE],
        ]

    async def stream(self, request: ModelRequest, /) -> Any:
        self.asked.append(request)
        if unresolved(request.messages):
            raise bb.UpstreamRejected("a call has no result", status=400)
        for chunk in self._answers[sum(bool(message.calls) for message in request.messages)]:
            yield chunk
        yield bb.Usage(1, 1)


DONE = {
    "result": "",
    "reason": "answer",
    "rounds": 3,
    "actions": [
        {"id": "b-mon", "op": "calendar.book", "status": "ok", "result": "booked mon"},
        {"id": "b-tue", "op": "calendar.book", "status": "ok", "result": "booked tue"},
    ],
}


async def test_trial_c14_a_segment_may_die_at_every_append(calendar: Calendar) -> None:
    segment = AiSegment("Book", [calendar.read, calendar.book], 3).with_model(Strict(calendar))
    flow = found(segment).durable()

    report = await crash_everywhere(flow, "hi", effects=calendar.effects)

    assert report.cases > 20


@pytest.mark.parametrize("when", ["before", "after", "during"])
async def test_trial_c14_a_crash_between_call_and_result_asks_only_what_was_not_answered(
    calendar: Calendar, when: Any
) -> None:
    def flow(model: Strict) -> bb.DurableFlow:
        return found(AiSegment("Book", [calendar.read, calendar.book], 3).with_model(model)).durable()

    store = MockStore()
    whole = await mocked(store, flow(Strict(calendar))).run("find", "hi", run_id="r")
    assert whole.value == DONE and whole.usage == bb.Usage(3, 3)
    for number in range(1, store.appends + 1):
        store, first, second = MockStore(), Strict(calendar), Strict(calendar)
        store.crash_at(number, when)
        with pytest.raises((Crash, bb.BBError)):
            await mocked(store, flow(first)).run("find", "hi", run_id="r")
        store.revive()

        again = await mocked(store, flow(second)).run("find", "hi", run_id="r")

        assert again.value == DONE
        assert 3 <= len(first.asked) + len(second.asked) <= 4  # at most the one whose answer was not recorded


async def test_trial_c14_the_next_turn_is_accepted(disk: Disk, calendar: Calendar) -> None:
    model = Strict(calendar)
    segment = AiSegment("Book", [calendar.read, calendar.book], 3)
    flow = Bind("one", segment).next(found(segment)).with_id("find").durable()

    outcome = await disk.app(flow, model=model).run("find", "hi", run_id="r")

    assert outcome.value == DONE and len(model.asked) == 6 and not unresolved(outcome.messages)


# --- D7: parallel tools -----------------------------------------------------------------------------------------------


async def test_trial_d7_parallel_tools_answer_in_the_order_of_their_calls(disk: Disk) -> None:
    heard: list[str] = []
    slow = asyncio.Event()

    @op("look", effects=["read"])
    async def look(at: str) -> str:
        if at == "first":
            await slow.wait()
        slow.set()
        heard.append(at)
        return f"saw {at}"

    both = [ToolCall("1", "look", '{"at": "first"}'), ToolCall("2", "look", '{"at": "second"}')]
    flow = found(AiSegment("Look around", [look])).durable()
    broken, whole = ScriptedModel(both, bb.UpstreamError("busy")), ScriptedModel("done")
    with pytest.raises(bb.UpstreamError):
        await disk.app(flow, model=broken).run("find", "hi", run_id="r")

    outcome = await disk.app(flow, model=whole).run("find", "hi", run_id="r")

    assert outcome.value == {"result": "done", "reason": "answer", "rounds": 2}
    assert heard == ["second", "first"]  # both were under way at once, and neither ran again
    told = broken.requests[1].messages
    assert [(result.call_id, result.content) for result in told[-1].results] == [
        ("1", "saw first"),
        ("2", "saw second"),
    ]
    assert whole.requests[0].messages == told


async def test_trial_d7_a_replay_reports_the_stage_where_it_stood(disk: Disk, calendar: Calendar) -> None:
    flow = found(AiSegment("Look", [calendar.read])).durable()
    model = ScriptedModel([calendar.reading("mon"), calendar.reading("tue")], "done")
    events: list[list[tuple[str, str]]] = []
    for _ in range(2):
        trace = bb.Recorder()
        await disk.app(flow, model=model, trace=trace).run("find", "hi", run_id="r")
        events.append([(event.kind, event.path) for event in trace.events if event.kind.startswith("flow.")])

    place = "find/body~bind.0"
    assert events == [[("flow.start", place), ("flow.end", place)], [("flow.cached", place)]]


# --- P7: the cap ------------------------------------------------------------------------------------------------------


async def test_trial_p7_hitting_the_cap_keeps_the_work_and_can_be_gone_on_from(disk: Disk, calendar: Calendar) -> None:
    model = ScriptedModel([calendar.booking("mon"), "mon looks good"], calendar.reading("tue"))
    rest = ScriptedModel("went on")
    first = Bind("found", AiSegment("Book", [calendar.read, calendar.book], 2).with_model(model))
    further = Bind("more", AiSegment(Var("found"), [calendar.read], 2).with_model(rest))
    flow = first.next(further).next(Return([Var("found"), Var("more")])).with_id("find").durable()

    await disk.app(flow).run("find", "hi", run_id="r")
    outcome = await disk.app(flow).run("find", "hi", run_id="r")

    action = {"id": "b-mon", "op": "calendar.book", "status": "skipped", "result": None}
    assert outcome.value == [
        {"result": "mon looks good", "reason": "exhausted", "rounds": 2, "actions": [action]},
        {"result": "went on", "reason": "answer", "rounds": 1},
    ]
    assert calendar.calls == ["read tue"] and len(model.requests) == 2
    assert "mon looks good" in rest.requests[0].messages[0].content
