"""OpenTelemetry: which spans and metrics a run leaves behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import bb
from bb.models.base import named
from bb.testing import MockStore, ScriptedModel
from bb.trace import EventKind
from tests.strategies import Plot, World, plots

AT = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
SPENT = bb.Usage(input=10, output=7, cache_read=3, cache_write=2, reasoning=4)


class Telemetry:
    """A tracer, and what it has exported."""

    def __init__(self, **options: int) -> None:
        self._spans = InMemorySpanExporter()
        self._metrics = InMemoryMetricReader()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._spans))
        meters = MeterProvider(metric_readers=[self._metrics])
        self.tracer = bb.OpenTelemetryTracer(self.provider, meters, **options)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._spans.get_finished_spans()

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def span(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """What a metric holds: labels, and the sum and count of a histogram or the value of a counter."""
        data = self._metrics.get_metrics_data()
        if data is None:
            return []
        found = []
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if metric.name == name:
                        for point in metric.data.data_points:
                            if isinstance(point, NumberDataPoint):
                                held: Any = point.value
                            else:
                                held = point.sum, point.count
                            found.append((dict(point.attributes or {}), held))
        return found


def told(kind: EventKind, path: str = "f", after: float = 0, **more: Any) -> bb.Event:
    given = {"run_id": "r-1", "flow": path.rpartition("/")[2], **more}
    return bb.Event(kind=kind, path=path, at=AT + timedelta(seconds=after), **given)


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    assert span.attributes is not None
    return span.attributes


def is_within(inner: ReadableSpan, outer: ReadableSpan | trace.Span) -> bool:
    context = outer.get_span_context()
    assert context is not None
    return inner.parent is not None and inner.parent.span_id == context.span_id


def talk(id: str, model: bb.Model) -> bb.NamedFlow:
    return bb.Flow().with_agent(bb.Agent(id).with_model(model)).with_id(id)


def failing(id: str, broken: list[bool]) -> bb.NamedFlow:
    async def wavers(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await chat.ask()
        if broken[0]:
            raise ValueError("a message that is no business of telemetry")
        turn.reply("well")

    agent = bb.Agent(id).with_model(ScriptedModel("a", "b", usage=SPENT)).on_message(wavers)
    return bb.Flow().with_agent(agent).with_id(id)


@bb.op()
async def add(a: int, b: int) -> int:
    return a + b


@bb.op()
async def explode() -> int:
    raise bb.Fatal("boom")


# --- spans ---


async def test_a_run_its_steps_calls_and_messages_are_spans() -> None:
    seen, sent = Telemetry(), list[str]()

    async def mail(text: str) -> None:
        sent.append(text)

    flow = (
        bb.Bind("n", add(a=1, b=2))
        .next(talk("say", ScriptedModel("hi", usage=SPENT)))
        .next(bb.Notify(mail))
        .with_id("f")
        .durable()
    )
    await bb.App(trace=seen.tracer).run(flow, "q", run_id="r-1")

    assert sent == ["hi"]
    assert seen.names == [
        "execute_tool add",
        "chat ScriptedModel",
        "invoke_agent say",
        "notify f",
        "invoke_workflow f",
    ]
    whole = seen.span("invoke_workflow f")
    assert whole.parent is None
    for step in seen.spans[:-1]:
        assert is_within(step, seen.span("invoke_agent say") if step.name.startswith("chat") else whole)
        assert whole.start_time <= step.start_time <= step.end_time <= whole.end_time  # type: ignore[operator]
        assert step.status.status_code is StatusCode.UNSET
    assert dict(attributes(seen.span("execute_tool add"))) == {
        "bb.run_id": "r-1",
        "bb.path": "f/body~bind.0",
        "bb.attempt": 1,
        "bb.flow": "f",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add",
        "gen_ai.tool.type": "function",
    }
    assert dict(attributes(seen.span("invoke_agent say"))) == {
        "bb.run_id": "r-1",
        "bb.path": "f/say",
        "bb.attempt": 1,
        "bb.flow": "say",
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "say",
        "gen_ai.usage.input_tokens": 15,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.cache_creation.input_tokens": 2,
        "gen_ai.usage.reasoning.output_tokens": 4,
    }
    assert attributes(whole).items() >= {
        ("gen_ai.operation.name", "invoke_workflow"),
        ("gen_ai.workflow.name", "f"),
        ("gen_ai.usage.output_tokens", 7),
        ("bb.outcome", "finished"),
        ("bb.resumed", False),
    }


async def test_a_flow_without_an_id_has_no_name_to_tell() -> None:
    seen = Telemetry()
    await bb.App(trace=seen.tracer).run(bb.Flow().with_agent(bb.Agent().with_model(bb.FixedModel("a"))), "q")
    assert seen.names == ["chat FixedModel", "invoke_agent", "invoke_workflow flow~agents.0"]
    assert "gen_ai.agent.name" not in attributes(seen.spans[1])


async def test_a_model_stage_is_an_agent() -> None:
    seen = Telemetry()
    stage = bb.Bind("found", bb.AiSegment("Do it", (add,))).next(bb.Return(bb.Var("found"))).with_id("f")
    await bb.App(trace=seen.tracer, model=ScriptedModel("done")).run(stage, "q")
    assert seen.names == ["chat ScriptedModel", "invoke_agent f", "invoke_workflow f"]


class Named:
    """A model that says where it comes from."""

    name, provider = "gpt-9", "acme"

    def __init__(self, *pieces: bb.Chunk | Exception, then: asyncio.Event | None = None) -> None:
        self.pieces = pieces
        self.then = then

    async def stream(self, request: bb.ModelRequest, /) -> AsyncIterator[bb.Chunk]:
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece
        if self.then is not None:
            self.then.set()
            await asyncio.Event().wait()


async def test_a_call_of_a_model_is_a_span_in_its_step() -> None:
    seen = Telemetry()
    await bb.App(trace=seen.tracer).run(talk("a", Named("hi", SPENT)).with_id("f"), "q", run_id="r-1")
    call = seen.span("chat gpt-9")
    assert is_within(call, seen.span("invoke_agent f")) and call.kind is SpanKind.CLIENT
    assert call.status.status_code is StatusCode.UNSET
    told = dict(attributes(call))
    assert told.pop("gen_ai.response.time_to_first_chunk") > 0
    assert told == {
        "bb.run_id": "r-1",
        "bb.path": "f",
        "bb.attempt": 1,
        "bb.flow": "f",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "acme",
        "gen_ai.request.model": "gpt-9",
        "gen_ai.request.stream": True,
        "gen_ai.usage.input_tokens": 15,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.cache_creation.input_tokens": 2,
        "gen_ai.usage.reasoning.output_tokens": 4,
    }
    labels = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "acme", "gen_ai.request.model": "gpt-9"}
    for metric in ("gen_ai.client.operation.duration", "gen_ai.client.operation.time_to_first_chunk"):
        assert [(at, held[1]) for at, held in seen.points(metric)] == [(labels, 1)]
    assert seen.points("gen_ai.client.token.usage") == [
        (labels | {"gen_ai.token.type": "input"}, (15, 1)),
        (labels | {"gen_ai.token.type": "output"}, (7, 1)),
    ]


def test_the_models_of_providers_name_them() -> None:
    models = bb.OpenAIModel("gpt-9", api_key="none"), bb.AnthropicModel("claude-9", api_key="none")
    assert [named(model) for model in models] == [("gpt-9", "openai"), ("claude-9", "anthropic")]


async def test_a_model_without_a_provider_runs_in_the_process() -> None:
    seen = Telemetry()
    await bb.App(trace=seen.tracer).run(talk("a", bb.FixedModel("x")), "q")
    call = seen.span("chat FixedModel")
    assert call.kind is SpanKind.INTERNAL and attributes(call)["gen_ai.provider.name"] == "custom"


async def test_a_call_of_a_model_that_fails_has_the_class_of_its_error_and_its_tokens() -> None:
    seen = Telemetry()
    with pytest.raises(bb.AgentFailed):
        await bb.App(trace=seen.tracer).run(talk("a", Named("hi", SPENT, bb.UpstreamError("a word of it"))), "q")
    call = seen.span("chat gpt-9")
    assert (call.status.status_code, call.status.description) == (StatusCode.ERROR, "UpstreamError")
    assert attributes(call).items() >= {("error.type", "UpstreamError"), ("gen_ai.usage.output_tokens", 7)}
    (labels, held), *others = seen.points("gen_ai.client.operation.duration")
    assert (labels["error.type"], held[1], others) == ("UpstreamError", 1, [])
    assert "a word" not in "".join(span.to_json() for span in seen.spans)


@pytest.mark.parametrize("leaves", ["the handler", "the client"])
async def test_an_answer_that_nobody_waits_for_ends_its_span_and_nothing_is_current(leaves: str) -> None:
    hanging, current = asyncio.Event(), list[trace.Span]()

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        async with turn.stream() as out:
            async for piece in (await chat.ask()).stream():
                current.append(trace.get_current_span())
                await out.write(piece)
                if leaves == "the handler":
                    await hanging.wait()
                    break

    seen = Telemetry()
    agent = bb.Agent("a").with_model(Named("hi", SPENT, then=hanging)).on_message(handler)
    app, flow = bb.App(trace=seen.tracer), bb.Flow().with_agent(agent).with_id("f")
    with seen.provider.get_tracer("mine").start_as_current_span("request") as request:
        async with asyncio.timeout(5), app.stream(flow, "q") as text:
            async for piece in text:
                assert piece == "hi"
                if leaves == "the client":
                    await hanging.wait()
                    break
        assert trace.get_current_span() is request
    await app.stop()
    assert current == [request] and not seen.tracer._runs
    assert seen.names[:3] == ["chat gpt-9", "invoke_agent f", "invoke_workflow f"]
    call = seen.span("chat gpt-9")
    assert is_within(call, seen.span("invoke_agent f"))
    assert (call.status.status_code, attributes(call)["bb.outcome"]) == (StatusCode.UNSET, "cancelled")
    assert attributes(call)["gen_ai.usage.output_tokens"] == 7
    assert [labels["error.type"] for labels, _ in seen.points("gen_ai.client.operation.duration")] == ["CancelledError"]
    assert [labels["gen_ai.token.type"] for labels, _ in seen.points("gen_ai.client.token.usage")] == [
        "input",
        "output",
    ]


async def test_tools_and_steps_are_spans_in_their_step_and_replays_are_events() -> None:
    broken = [True]

    def look(given: dict[str, Any]) -> str:
        raise KeyError("a word of it")

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        tool = bb.Tool("look", "Looks", {"type": "object"}).on_call(look)
        reply = await chat.add("hi").with_tools(tool).resolve()
        await turn.step("pay", lambda: 5)
        await chat.ask_with("more")
        if broken[0]:
            raise ValueError("not yet")
        turn.reply(reply.text)

    seen = Telemetry()
    model = ScriptedModel(bb.ToolCall("1", "look"), "one", "two", "three")
    flow = bb.Flow().with_agent(bb.Agent("a").with_model(model).on_message(handler)).with_id("f").durable()
    app = bb.App(trace=seen.tracer)
    with pytest.raises(bb.AgentFailed):
        await app.run(flow, "q", run_id="r-1")
    asked = "chat ScriptedModel"
    assert seen.names == [asked, "execute_tool look", asked, "step pay", asked, "invoke_agent f", "invoke_workflow f"]
    assert all(is_within(span, seen.span("invoke_agent f")) for span in seen.spans[:5])
    tool = seen.span("execute_tool look")
    assert (tool.status.status_code, attributes(tool)["error.type"]) == (StatusCode.ERROR, "KeyError")
    assert attributes(tool)["gen_ai.tool.name"] == "look"
    assert "a word" not in "".join(span.to_json() for span in seen.spans)
    assert [(labels, held[1]) for labels, held in seen.points("gen_ai.execute_tool.duration")] == [
        ({"gen_ai.tool.name": "look", "error.type": "KeyError"}, 1)
    ]

    broken[0] = False
    await app.run(flow, run_id="r-1")
    assert seen.names[7:] == [asked, "invoke_agent f", "invoke_workflow f"]
    assert [event.name for event in seen.spans[-2].events] == [
        "bb.model.cached",
        "bb.tool.cached",
        "bb.model.cached",
        "bb.step.cached",
    ]
    assert seen.points("bb.steps.replayed") == [({}, 4)]


async def test_calls_at_once_are_spans_of_their_own() -> None:
    came, together = list[bb.ModelRequest](), asyncio.Event()

    async def answers(request: bb.ModelRequest) -> str:
        came.append(request)
        if len(came) == 3:
            together.set()
        await together.wait()
        return "x"

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await asyncio.gather(*(chat.ask_with("the same") for _ in range(3)))

    seen = Telemetry()
    model = ScriptedModel(answers, answers, answers)
    await bb.App(trace=seen.tracer, model=model).run(bb.Flow().with_agent(bb.Agent("a").on_message(handler)), "q")
    assert seen.names == [*["chat ScriptedModel"] * 3, "invoke_agent", "invoke_workflow flow~agents.0"]
    assert "left" not in {attributes(span).get("bb.outcome") for span in seen.spans}


async def test_what_fails_has_the_status_and_what_is_replayed_is_an_event() -> None:
    seen, broken = Telemetry(), [True]
    flow = talk("a", bb.FixedModel("x")).next(failing("b", broken)).with_id("f").durable()
    app = bb.App(trace=seen.tracer)
    with pytest.raises(bb.AgentFailed):
        await app.run(flow, "q", run_id="r-1")
    assert seen.names == [
        "chat FixedModel",
        "invoke_agent a",
        "chat ScriptedModel",
        "invoke_agent b",
        "invoke_workflow f",
    ]
    step, whole = seen.spans[3:]
    assert (step.name, step.status.status_code, step.status.description) == (
        "invoke_agent b",
        StatusCode.ERROR,
        "ValueError",
    )
    assert attributes(step).items() >= {("error.type", "ValueError"), ("bb.error", "AgentFailed")}
    assert (whole.status.status_code, whole.status.description) == (StatusCode.ERROR, "ValueError")
    told = {("bb.outcome", "failed"), ("error.type", "ValueError"), ("bb.error", "AgentFailed")}
    assert attributes(whole).items() >= told
    assert "no business" not in "".join(span.to_json() for span in seen.spans)

    broken[0] = False
    await app.run(flow, "q", run_id="r-1")
    assert seen.names[5:] == ["chat ScriptedModel", "invoke_agent b", "invoke_workflow f"]
    again = seen.spans[-1]
    assert attributes(again).items() >= {("bb.attempt", 2), ("bb.resumed", True), ("bb.outcome", "finished")}
    (cached,) = again.events
    assert (cached.name, dict(cached.attributes or {})["bb.path"]) == ("bb.flow.cached", "f/a")
    assert seen.points("bb.steps.replayed") == [({}, 1)]


async def test_a_message_that_cannot_be_sent_fails() -> None:
    async def mail(text: str) -> None:
        raise OSError("no network")

    seen = Telemetry()
    with pytest.raises(bb.NotifyFailed):
        await bb.App(trace=seen.tracer).run(talk("a", bb.FixedModel("x")).next(bb.Notify(mail)).with_id("f"), "q")
    step = seen.span("notify f")
    assert step.status.status_code is StatusCode.ERROR
    assert attributes(step).items() >= {("error.type", "OSError"), ("bb.error", "NotifyFailed")}


async def test_the_loser_of_a_race_is_cancelled_and_no_error() -> None:
    async def hangs(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await asyncio.Event().wait()

    async def wins(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await asyncio.sleep(0)
        turn.reply("first")

    seen = Telemetry()
    race = bb.One(
        bb.Flow().with_agent(bb.Agent().on_message(wins)).with_id("fast"),
        bb.Flow().with_agent(bb.Agent().on_message(hangs)).with_id("slow"),
    )
    await bb.App(trace=seen.tracer).run(race.with_id("f"), "q")
    slow = seen.span("invoke_agent slow")
    assert (slow.status.status_code, attributes(slow)["bb.outcome"]) == (StatusCode.UNSET, "cancelled")
    assert "error.type" not in attributes(slow)


async def test_a_run_that_parks_ends_its_span() -> None:
    seen = Telemetry()
    flow = talk("a", bb.FixedModel("x")).next(bb.Await("form", bind="n")).next(bb.Respond()).with_id("f").durable()
    app = bb.App(trace=seen.tracer)
    outcome = await app.run(flow, "q", run_id="r-1")
    assert outcome.waiting_for == "form"
    whole = seen.span("invoke_workflow f")
    assert (whole.status.status_code, attributes(whole)["bb.outcome"]) == (StatusCode.UNSET, "parked")
    assert [event.name for event in whole.events] == ["bb.run.parked"]


async def test_a_store_that_fails_interrupts() -> None:
    seen, store = Telemetry(), MockStore()
    store.fail_append(3, times=99)
    with pytest.raises(bb.StoreError):
        await bb.App(store=store, trace=seen.tracer).run(
            talk("a", bb.FixedModel("x")).next(bb.Respond()).with_id("f").durable(), "q"
        )
    whole = seen.span("invoke_workflow f")
    assert (attributes(whole)["bb.outcome"], attributes(whole)["error.type"]) == ("interrupted", "StoreError")
    assert seen.points("bb.store.errors") == [({}, 1)]


async def test_a_run_belongs_to_the_span_around_it_and_nothing_becomes_current() -> None:
    seen, current = Telemetry(), list[str]()

    async def looks(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await asyncio.sleep(0)
        current.append(getattr(trace.get_current_span(), "name", ""))
        turn.reply("x")

    side = [bb.Flow().with_agent(bb.Agent().on_message(looks)).with_id(id) for id in ("a", "b")]
    with seen.provider.get_tracer("mine").start_as_current_span("request") as request:
        await bb.App(trace=seen.tracer).run(bb.All(*side).with_id("f"), "q")
        assert trace.get_current_span() is request
    assert current == ["request", "request"]
    whole = seen.span("invoke_workflow f")
    assert is_within(whole, request)
    assert all(is_within(seen.span(f"invoke_agent {id}"), whole) for id in ("a", "b"))


def test_times_are_those_of_the_events_and_parents_are_found_by_path() -> None:
    seen = Telemetry()
    for event in (
        told("run.start"),
        told("flow.start", "f/body~bind.0", 1, flow="f", detail="ai_segment"),
        told("flow.start", "f/body~bind.0/x/arg~call.0", 2, flow="f", detail="add"),
        told("select.none", "f/body~bind.0/x", 3),
        told("flow.end", "f/body~bind.0/x/arg~call.0", 4, flow="f", detail="add"),
        told("flow.end", "f/body~bind.0", 5, flow="f", detail="ai_segment"),
        told("run.end", "f", 6, detail="finished"),
    ):
        seen.tracer.event(event)
    call, stage, whole = seen.spans
    assert is_within(call, stage) and is_within(stage, whole)
    assert whole.start_time == 1_893_553_445_678_901_000
    assert [span.end_time - span.start_time for span in seen.spans] == [2 * 10**9, 4 * 10**9, 6 * 10**9]  # type: ignore[operator]
    assert [event.name for event in stage.events] == ["bb.select.none"]
    assert stage.events[0].timestamp == whole.start_time + 3 * 10**9


def test_a_clock_that_is_set_back_makes_no_negative_time() -> None:
    seen = Telemetry()
    seen.tracer.event(told("run.start", after=10))
    seen.tracer.event(told("run.end", detail="finished"))
    (whole,) = seen.spans
    assert whole.end_time == whole.start_time
    assert [value for _, value in seen.points("gen_ai.workflow.duration")] == [(0.0, 1)]


def test_secrets_are_left_out() -> None:
    bb.redact("sk-12345")
    seen = Telemetry()
    for event in (
        told("run.start", run_id="sk-12345"),
        told("try.caught", "f/sk-12345", run_id="sk-12345", detail="key sk-12345"),
        told("flow.start", "f/sk-12345", run_id="sk-12345", detail="op-sk-12345"),
        told("flow.end", "f/sk-12345", run_id="sk-12345", detail="op-sk-12345"),
        told("run.end", run_id="sk-12345", detail="finished"),
    ):
        seen.tracer.event(event)
    assert len(seen.spans) == 2
    assert "sk-12345" not in "".join(span.to_json() for span in seen.spans)
    assert [labels for labels, _ in seen.points("gen_ai.execute_tool.duration")] == [
        {"gen_ai.tool.name": "op-[redacted]"}
    ]


@given(plot=plots(max_leaves=6), data=st.data())
@settings(max_examples=25)
def test_every_step_of_any_flow_is_one_span_within_its_run(plot: Plot, data: st.DataObject) -> None:
    failing = data.draw(st.sampled_from(plot.agents)) if plot.agents else "nobody"

    async def go() -> None:
        seen, events, world = Telemetry(), bb.Recorder(), World()
        world.fails[failing] = 1
        app, flow = bb.App(trace=bb.Tee(seen.tracer, events)), plot.durable(world)
        for _ in range(2):
            with suppress(bb.AgentFailed):
                await app.run(flow, "hi", run_id="r-1")
        assert not seen.tracer._runs
        wholes = [span for span in seen.spans if span.name.startswith("invoke_workflow")]
        steps = [span for span in seen.spans if span not in wholes]
        assert len(wholes) == 2
        kinds: tuple[EventKind, ...] = ("flow.start", "notify", "model.start", "step.start")
        begun = [path for kind in kinds for path in events.paths(kind)]
        assert sorted(attributes(step)["bb.path"] for step in steps) == sorted(begun)
        inside = [step for step in steps if step.name.startswith(("chat ", "step "))]
        assert all(any(is_within(step, whole) for whole in wholes) for step in steps if step not in inside)
        assert all(any(is_within(step, around) for around in steps) for step in inside)
        assert "left" not in {attributes(span).get("bb.outcome") for span in seen.spans}

    asyncio.run(go())


# --- what never ends ---


def test_what_is_open_when_a_run_ends_ends_with_it() -> None:
    seen = Telemetry()
    for event in (
        told("run.start"),
        told("flow.start", "f/a", 1),
        told("run.end", "f", 2, detail="parked"),
        told("flow.end", "f/a", 3),  # too late: it is ignored
    ):
        seen.tracer.event(event)
    assert [(span.name, attributes(span)["bb.outcome"]) for span in seen.spans] == [
        ("invoke_agent a", "left"),
        ("invoke_workflow f", "parked"),
    ]
    assert seen.spans[0].end_time == seen.spans[1].end_time


def test_a_run_or_step_that_begins_again_ends_what_it_left() -> None:
    seen = Telemetry()
    for event in (
        told("run.start"),
        told("flow.start", "f/a"),
        told("flow.start", "f/a"),
        told("run.resumed", attempt=2),
        told("run.end", attempt=2, detail="finished"),
    ):
        seen.tracer.event(event)
    assert [attributes(span)["bb.outcome"] for span in seen.spans] == ["left", "left", "left", "finished"]


def test_an_undo_without_a_beginning_has_a_run_around_it() -> None:
    seen = Telemetry()
    for event in (
        told("unwind.start", "f/saga"),
        told("flow.start", "f/saga/undo", 1, flow="f", detail="add"),
        told("flow.end", "f/saga/undo", 2, flow="f", detail="add"),
        told("run.end", "f", 3, detail="failed", error="Unwound", usage=SPENT),
    ):
        seen.tracer.event(event)
    call, whole = seen.spans
    assert (call.name, whole.name, attributes(whole)["bb.path"]) == ("execute_tool add", "invoke_workflow f", "f")
    assert attributes(whole).items() >= {("bb.outcome", "failed"), ("error.type", "Unwound")}
    assert seen.points("bb.tokens") == []  # those were counted call by call


def test_runs_that_never_end_are_given_up_the_silent_longest_first() -> None:
    seen = Telemetry(max_runs=2)
    seen.tracer.event(told("run.start", run_id="r-1"))
    seen.tracer.event(told("run.start", run_id="r-2"))
    seen.tracer.event(told("flow.start", "f/a", 1, run_id="r-2"))
    seen.tracer.event(told("emit", "f/b", 1, run_id="r-1"))
    for n in range(3, 100):
        seen.tracer.event(told("emit", "f/b", n, run_id="r-1"))
        seen.tracer.event(told("run.start", after=n, run_id=f"r-{n}"))
    assert len(seen.tracer._runs) == 2
    first, second = seen.spans[:2]
    assert (first.name, second.name) == ("invoke_agent a", "invoke_workflow f")
    assert [attributes(span)["bb.run_id"] for span in seen.spans] == ["r-2", "r-2", *(f"r-{n}" for n in range(3, 99))]
    assert {attributes(span)["bb.outcome"] for span in seen.spans} == {"left"}


def test_a_tracer_may_be_shared_by_threads() -> None:
    seen = Telemetry(max_runs=3)

    def work(thread: int) -> None:
        for n in range(50):
            for event in (told("run.start"), told("flow.start", "f/a"), told("flow.end", "f/a"), told("run.end")):
                seen.tracer.event(bb.Event(**{**_fields(event), "run_id": f"{thread}-{n}"}))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen.spans) == 300 and not seen.tracer._runs


def _fields(event: bb.Event) -> dict[str, Any]:
    return {"kind": event.kind, "path": event.path, "at": event.at, "flow": event.flow, "detail": "finished"}


# --- metrics ---


async def test_metrics_are_labelled_by_what_the_program_names() -> None:
    seen, broken = Telemetry(), [True]
    app = bb.App(trace=seen.tracer)
    flow = bb.Bind("n", add(a=1, b=2)).next(failing("of:data", broken)).with_id("f").durable()
    with pytest.raises(bb.AgentFailed):
        await app.run(flow, "q", run_id="client-1", session_id="client-2")
    assert [labels for labels, _ in seen.points("gen_ai.workflow.duration")] == [
        {"gen_ai.workflow.name": "f", "bb.outcome": "failed", "bb.resumed": False, "error.type": "ValueError"}
    ]
    assert [(labels, held[1]) for labels, held in seen.points("gen_ai.execute_tool.duration")] == [
        ({"gen_ai.tool.name": "add"}, 1)
    ]
    assert [(labels, held[1]) for labels, held in seen.points("gen_ai.invoke_agent.duration")] == [
        ({"error.type": "ValueError"}, 1)
    ]


async def test_a_call_that_fails_is_counted_by_its_error() -> None:
    seen = Telemetry()
    with pytest.raises(bb.OpFailed):
        await bb.App(trace=seen.tracer).run(bb.Bind("n", explode()).with_id("f"), "q")
    assert [(labels, held[1]) for labels, held in seen.points("gen_ai.execute_tool.duration")] == [
        ({"gen_ai.tool.name": "explode", "error.type": "Fatal"}, 1)
    ]


@pytest.mark.parametrize("fails", [False, True])
async def test_tokens_are_counted_once_also_those_of_a_step_that_failed(fails: bool) -> None:
    seen = Telemetry()
    flow = talk("a", ScriptedModel("x", usage=SPENT)).next(failing("b", [fails])).with_id("f").durable()
    running = bb.App(trace=seen.tracer).run(flow, "q")
    if fails:
        with pytest.raises(bb.AgentFailed):
            await running
    else:
        await running
    assert [(labels["gen_ai.token.type"], held) for labels, held in seen.points("gen_ai.client.token.usage")] == [
        ("input", (30, 2)),
        ("output", (14, 2)),
    ]
    assert {labels["bb.token.kind"]: tokens for labels, tokens in seen.points("bb.tokens")} == {
        "input": 20,
        "cache_read": 6,
        "cache_write": 4,
        "output": 6,
        "reasoning": 8,
    }


async def test_retries_are_counted() -> None:
    seen, left = Telemetry(), [2]

    async def wavers(turn: bb.Turn, chat: bb.ModelChat) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise ValueError("not yet")
        turn.reply("now")

    step = bb.Flow().with_agent(bb.Agent().on_message(wavers)).with_id("a")
    flow = bb.Retry(3, step, backoff="none", delay=timedelta()).with_id("f")
    await bb.App(trace=seen.tracer).run(flow, "q")
    assert seen.points("bb.retries") == [({}, 2)]
    assert seen.names == ["invoke_agent a", "invoke_agent a", "invoke_agent a", "invoke_workflow f"]


# --- the extra ---


def test_without_the_package_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import bb\n"
        "from bb import *\n"
        "try: bb.OpenTelemetryTracer()\n"
        "except bb.WiringError as error: print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "OpenTelemetryTracer needs the opentelemetry-api package: install bb-flow[otel]\n"


async def test_without_a_provider_it_costs_nothing_and_breaks_nothing() -> None:
    outcome = await bb.App(trace=bb.OpenTelemetryTracer()).run(talk("a", bb.FixedModel("x")), "q")
    assert outcome.answer == "x"
