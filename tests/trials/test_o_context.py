"""Trials O: context, logs, traces and secrets."""

from __future__ import annotations

import io
import json
import logging
import threading
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import bb
from bb.testing import ManualClock
from tests.trials.kit import Disk, Hold, Work, contents, cut_off
from tests.wires.server import Answer, error, openai, serving

SECRET = "sk-live-0123456789abcdef"


def leaf(name: str, handler: Any) -> bb.NamedFlow:
    return bb.Flow().with_agent(bb.Agent(name).on_message(handler)).with_id(name)


async def test_trial_O1_bound_context_reaches_plain_functions_in_threads(disk: Disk) -> None:
    seen: list[tuple[str, Any, str]] = []
    main = threading.get_ident()

    def plain() -> str:
        bound = structlog.contextvars.get_contextvars()
        seen.append(("thread" if threading.get_ident() != main else "loop", bound.get("run_id"), bb.idempotency_key()))
        return "done"

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        with structlog.contextvars.bound_contextvars(run_id=turn.run_id):
            turn.reply(await turn.step("plain", plain))

    for run_id in ("r1", "r2"):
        await disk.app(leaf("a", handler).durable()).run("a", "hi", run_id=run_id)

    assert [(where, bound) for where, bound, _ in seen] == [("thread", "r1"), ("thread", "r2")]
    assert seen[0][2] != seen[1][2]


async def test_trial_O4_a_registered_secret_is_nowhere(
    disk: Disk, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    bb.redact(SECRET)
    tries: list[int] = []
    lines = io.StringIO()

    class Leaky:
        def __repr__(self) -> str:
            return f"Leaky({SECRET})"

        async def stream(self, request: bb.ModelRequest, /) -> Any:
            yield f"the key is {SECRET}"

    tool_said = f"tool {SECRET}"

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError(f"401 for {SECRET}")
        step = await turn.step("login", lambda: {"token": SECRET, SECRET: [tool_said]})
        reply = await chat.ask_with(f"use {SECRET}")
        call = bb.ToolCall.new("pay", {"key": SECRET})
        turn.reply(bb.Message(reply.text, "assistant", [call], [call.result(tool_said)]), value={"step": step})

    async def failing(turn: bb.Turn, chat: bb.ModelChat) -> None:
        raise RuntimeError(f"Bearer {SECRET}")

    async def pager(text: str) -> None:
        raise OSError(f"https://user:{SECRET}@pager")

    agent = bb.Agent("a", model=Leaky(), role=bb.Role(f"your key is {SECRET}")).on_message(handler)
    flow = bb.Flow().with_agent(agent).with_id("a")
    ends = bb.One(leaf("f1", failing), leaf("f2", failing))
    job = flow.next(ends).with_id("job").durable(retries=1)
    paged = flow.next(bb.Notify(pager)).with_id("paged").durable()
    seen = bb.Recorder()
    errors: list[BaseException] = []
    with caplog.at_level(logging.DEBUG):
        app = disk.app(job, paged, trace=bb.Tee(seen, bb.JSONLines(lines), bb.StructlogTracer()))
        given = bb.Input((bb.Message(f"hi {SECRET}"),), payload={"p": SECRET}, metadata={"authorization": SECRET})
        for name in ("job", "paged"):
            try:
                await app.run(name, given, params={"key": SECRET}, run_id=name)
            except bb.BBError as error:
                errors.append(error)
        runs = await app.runs()
        events = [event for name in ("job", "paged") for event in await app.events(name)]

    assert len(errors) == 2 and len(runs) == 2
    stored = b"".join(record for records in (await contents(app.store)).values() for record in records)
    assert b"[redacted]" in stored and SECRET.encode() not in stored
    if disk.directory is not None:
        await app.store.close()
        assert not any(SECRET.encode() in file.read_bytes() for file in disk.directory.rglob("*") if file.is_file())
    out, err = capsys.readouterr()
    for text in (
        *map(str, errors),
        *map(repr, errors),
        lines.getvalue(),
        repr(seen.events),
        repr(runs),
        repr(events),
        repr(job),
        repr(app),
        caplog.text,
        out,
        err,
    ):
        assert SECRET not in text
    assert "[redacted]" in str(errors[1]) and all(json.loads(line) for line in lines.getvalue().splitlines())


async def test_trial_O4_a_secret_in_the_text_does_not_break_a_replay(disk: Disk, work: Work) -> None:
    bb.redact(SECRET)
    flow = work.flow("a", f"key {SECRET}").next(work.flow("b")).with_id("job").durable()

    first = await disk.app(flow).run("job", f"hi {SECRET}", run_id="r")
    second = await disk.app(flow).run("job", f"hi {SECRET}", run_id="r")

    assert second.messages == first.messages and work.heard["b"] == ("hi [redacted]", "key [redacted]")
    with pytest.raises(bb.InputConflict):
        await disk.app(flow).run("job", "hi [redacted]", run_id="r")  # the fingerprint is of what came in


async def test_trial_O4_what_a_stranger_raises_is_told_without_the_secret(disk: Disk) -> None:
    bb.redact(SECRET)

    class Broken:
        def event(self, event: bb.Event, /) -> None:
            raise RuntimeError(f"collector refused {SECRET}")

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.reply("fine")

    with structlog.testing.capture_logs() as logs:
        outcome = await disk.app(leaf("a", handler).durable(), trace=Broken()).run("a", "hi", run_id="r")

    assert outcome.answer == "fine" and logs and SECRET not in repr(logs)


async def test_trial_O5_the_program_around_a_run_is_not_stored(disk: Disk) -> None:
    hold = Hold()
    context = {"password": "hunter2-hunter2"}

    class Client:
        password = "hunter2-hunter2"

        async def stream(self, request: bb.ModelRequest, /) -> Any:
            yield "answer"

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        kept = context  # closed over, as programs do
        await chat.ask_with("hi")
        await turn.step("used", lambda: len(kept["password"]))
        hold.reached.set()
        await hold.go.wait()

    agent = bb.Agent("a", model=Client(), role=bb.Role("system prompt")).on_message(handler)
    app = disk.app(bb.Flow().with_agent(agent).with_id("a").durable())
    await cut_off(app, hold, "a", "hi", run_id="r")

    stored = b"".join(record for records in (await contents(app.store)).values() for record in records)

    assert b"hunter2" not in stored and b"system prompt" not in stored and b"answer" in stored


async def test_trial_O4_no_span_or_metric_holds_a_key_of_a_provider_also_when_a_call_is_tried_again(disk: Disk) -> None:
    spans, metrics = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    tracer = bb.OpenTelemetryTracer(provider, MeterProvider(metric_readers=[metrics]))
    quoting = f"Incorrect API key provided: {SECRET}"

    def look(given: dict[str, Any]) -> str:
        raise LookupError(f"401 for {SECRET}")

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        tool = bb.Tool("look", "Looks", {"type": "object"}).on_call(look)
        reply = await chat.add(f"use {SECRET}").with_tools(tool).resolve()
        await turn.step(f"log in with {SECRET}", lambda: None)
        turn.reply(reply.text)

    call = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "look", "arguments": "{}"}}]}
    answers = [error(500, quoting), Answer(openai(call)), error(503, quoting)]
    async with serving(*answers, Answer(openai({"content": f"the key is {SECRET}"}))) as wire:
        model = bb.OpenAIModel("gpt-test", base_url=f"{wire.url}/v1", api_key=SECRET)
        flow = bb.Flow().with_agent(bb.Agent("a", model=model).on_message(handler)).with_id("a").durable(retries=2)
        app = disk.app(flow, clock=ManualClock(auto=True), trace=tracer)
        await app.run("a", f"hi {SECRET}", params={"key": SECRET}, run_id="r")
        await model.aclose()

    exported = "".join(span.to_json() for span in spans.get_finished_spans())
    assert [request.headers["authorization"] for request in wire.requests] == [f"Bearer {SECRET}"] * 4
    failed = [
        span.name for span in spans.get_finished_spans() if (span.attributes or {}).get("error.type") == "UpstreamError"
    ]
    assert failed == ["chat gpt-test", "invoke_agent a"] * 2 and '"error.type": "LookupError"' in exported
    assert "bb.run.retry" in exported and "bb.tool.cached" in exported and "step log in with [redacted]" in exported
    assert SECRET not in exported
    measured = metrics.get_metrics_data()
    assert measured is not None and "gpt-test" in measured.to_json() and SECRET not in measured.to_json()
