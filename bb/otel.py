"""`OpenTelemetryTracer`: what happens in a run, as spans and metrics of OpenTelemetry."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never, final

from attrs import Factory, define, evolve, frozen

from bb.errors import WiringError
from bb.messages import Usage
from bb.redaction import redacted
from bb.trace import Event

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

_Attributes: TypeAlias = dict[str, str | int | float | bool]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SEGMENT: Final = "ai_segment"
"""What the events of a model stage have as their detail, where those of a call have the name of the op."""
_WORKFLOW: Final = "invoke_workflow"
_AGENT: Final = "invoke_agent"
_MODEL: Final = "chat"
_TOOL: Final = "execute_tool"
_NOTIFY: Final = "notify"
_STEP: Final = "step"

_UNNAMED: Final = "custom"
"""The provider of a model that names none; the conventions want one."""
_LABELS: Final[Mapping[str, frozenset[str]]] = {
    _MODEL: frozenset({"gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"}),
    _TOOL: frozenset({"gen_ai.tool.name"}),
}
"""The attributes of a span that its durations are told apart by."""

# as the conventions advise
_RUN_SECONDS: Final = (1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200)
_STEP_SECONDS: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
_CALL_SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS: Final = tuple(4**n for n in range(14))


@frozen
class _Open:
    """A span that has not ended: since when, in nanoseconds, and what its duration is measured under."""

    span: Span
    since: int
    operation: str
    labels: _Attributes


@define
class _OpenRun:
    """An attempt under way, and its open spans by path and, inside a handler, entry."""

    whole: _Open
    name: str
    resumed: bool
    steps: dict[tuple[str, str], _Open] = Factory(dict)


@final
class OpenTelemetryTracer:
    """A tracer for OpenTelemetry: spans and metrics by its conventions for generative AI, as of version 1.41.

    See https://opentelemetry.io/docs/specs/semconv/gen-ai/ (agent spans, metrics; both still "development"). Needs the
    extra `bb-flow[otel]`. Without providers those that are set globally are used.

    Spans, each with `bb.run_id`, `bb.path`, `bb.flow` and `bb.attempt`:

    - `invoke_workflow {flow}`: one attempt at a run, below the span that was current where it began. `bb.outcome` is
      `finished`, `parked`, `cancelled`, `failed` or `interrupted`; the last two set the status. `bb.resumed` tells whether
      it goes on with what is on record, be it only to look at a run that has finished.
    - `invoke_agent {flow}`: an agent flow or a model stage, with `gen_ai.usage.*`. Its input tokens include cached ones.
    - `chat {model}`: a call of a model, in the step it is made in, with its own `gen_ai.usage.*`.
    - `execute_tool {name}`: a call of an op, or the run of a tool that a model called.
    - `step {name}`: a `turn.step`.
    - `notify {flow}`: a message sent.

    What failed has the status and `error.type`, the class of the error that a handler, an op or a sender raised, and as
    `bb.error` the class that bb raised for it; what was cancelled, as the losers of a race and answers that nobody waited
    for, has `bb.outcome` alone. Everything else that happens, replays above all, is an event `bb.{kind}` of the nearest
    span around it. What is still open when the run ends or parks ends with it, as `bb.outcome` `left`.

    Metrics: `gen_ai.workflow.duration`, `gen_ai.invoke_agent.duration`, `gen_ai.client.operation.duration` (of models),
    `gen_ai.execute_tool.duration` (seconds; their counts count runs, steps and calls),
    `gen_ai.client.operation.time_to_first_chunk` (seconds to the first text), `gen_ai.client.token.usage` of calls of
    models, failed ones too, and the counters `bb.tokens` (by `bb.token.kind`, cached and reasoning ones apart),
    `bb.steps.replayed`, `bb.retries` and `bb.store.errors`. They are labelled by the names of flows that are run, of models
    and their providers, of ops and tools, by outcomes and by classes of errors; never by run, session or path, nor by the
    ids of flows within a run, which may come from data.

    Nothing is ever made the current span, so spans of concurrent steps cannot be mixed up. No message, argument or
    result is told; what was caught, retried or could not be cleaned up is told in the words of its error. Secrets given
    to `bb.redact` are left out.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        max_runs: int = 10_000,
    ) -> None:
        """`max_runs` bounds the memory: beyond it, the spans of the run that was silent longest are ended.

        Raises:
            WiringError: the extra is not installed.
        """
        try:
            from opentelemetry import metrics, trace
            from opentelemetry.trace import SpanKind
        except ImportError as error:
            raise WiringError(
                "OpenTelemetryTracer needs the opentelemetry-api package", remedy="install bb-flow[otel]"
            ) from error
        self._in_context = trace.set_span_in_context
        self._client, self._internal = SpanKind.CLIENT, SpanKind.INTERNAL
        self._max_runs = max_runs
        self._tracer = trace.get_tracer("bb", tracer_provider=tracer_provider)
        meter = metrics.get_meter("bb", meter_provider=meter_provider)
        self._seconds = {
            operation: meter.create_histogram(
                name, unit="s", description=description, explicit_bucket_boundaries_advisory=buckets
            )
            for operation, name, description, buckets in (
                (_WORKFLOW, "gen_ai.workflow.duration", "Time of one attempt at a run.", _RUN_SECONDS),
                (_AGENT, "gen_ai.invoke_agent.duration", "Time of an agent flow or model stage.", _STEP_SECONDS),
                (_MODEL, "gen_ai.client.operation.duration", "Time of a call of a model.", _CALL_SECONDS),
                (_TOOL, "gen_ai.execute_tool.duration", "Time of an op or tool.", _CALL_SECONDS),
            )
        }
        self._first = meter.create_histogram(
            "gen_ai.client.operation.time_to_first_chunk",
            unit="s",
            description="Time until a model says something.",
            explicit_bucket_boundaries_advisory=_CALL_SECONDS,
        )
        self._usage = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Tokens of a call of a model.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self._tokens = meter.create_counter("bb.tokens", unit="{token}", description="Tokens billed.")
        self._replayed = meter.create_counter(
            "bb.steps.replayed", unit="{step}", description="What was not done again."
        )
        self._retries = meter.create_counter("bb.retries", unit="{retry}", description="Attempts after a failure.")
        self._store_errors = meter.create_counter("bb.store.errors", unit="{error}", description="Store failures.")
        self._runs: dict[str, _OpenRun] = {}
        """The silent longest first."""
        self._lock = threading.Lock()  # apps of several threads may share a tracer

    def event(self, event: Event, /) -> None:
        with self._lock:
            self._take(event)

    def _take(self, event: Event) -> None:
        match event.kind:
            case "run.start" | "run.resumed":
                if (known := self._runs.pop(event.run_id, None)) is not None:
                    self._leave(known, _time(event.at))
                self._begin(event)
            case "run.end":
                self._end(event)
            case "flow.start" | "notify" | "model.start" | "tool.start" | "step.start":
                self._start(event)
            case "flow.end" | "notify.end" | "model.end" | "tool.end" | "step.end":
                self._stop(event, "")
            case "flow.error" | "notify.error":
                self._stop(event, event.error or event.detail)
            case "model.error" | "tool.error" | "step.error":
                self._stop(event, event.error)
            case "flow.cached" | "model.cached" | "tool.cached" | "step.cached" | "memo.hit" | "once.skipped":
                self._replayed.add(1)
                self._tell(event)
            case "run.retry" | "retry":
                self._retries.add(1)
                self._tell(event)
            case "store.error":
                self._store_errors.add(1)
                self._tell(event)
            case (
                "run.parked"
                | "select"
                | "select.enter"
                | "select.none"
                | "all.start"
                | "one.start"
                | "group.start"
                | "respond"
                | "emit"
                | "once.waiting"
                | "checkpoint"
                | "checkpoint.skipped"
                | "await.resumed"
                | "try.caught"
                | "unwind.start"
                | "unwind.end"
                | "cleanup.failed"
                | "debounce.dropped"
                | "job.scheduled"
                | "job.fired"
                | "durable.discarded"
            ):
                self._tell(event)
            case _:
                assert_never(event.kind)

    def _begin(self, event: Event) -> _OpenRun:
        name = redacted(event.path.partition("/")[0])  # the segment of the flow that is run
        resumed = event.kind == "run.resumed"
        attributes: _Attributes = {
            "gen_ai.operation.name": _WORKFLOW,
            "gen_ai.workflow.name": name,
            "bb.resumed": resumed,
        }
        whole = self._open(evolve(event, path=name, flow=name), _WORKFLOW, name, attributes, None)
        run = self._runs[event.run_id] = _OpenRun(whole, name, resumed)
        while len(self._runs) > self._max_runs:
            silent = next(iter(self._runs))
            self._leave(self._runs.pop(silent), _time(event.at))
        return run

    def _start(self, event: Event) -> None:
        run = self._run(event)
        if run is None:
            run = self._begin(event)  # an undo before the run is ended, or a run that was silent for too long
        place = event.path, event.entry
        if (known := run.steps.pop(place, None)) is not None:
            _close(known, _time(event.at), "left")
        operation, name, attributes = _work(event)
        around = self._in_context(_around(run, event.path).span)
        run.steps[place] = self._open(event, operation, name, attributes, around)

    def _open(self, event: Event, operation: str, name: str, more: _Attributes, around: Context | None) -> _Open:
        since = _time(event.at)
        attributes = {**_place(event), **more}
        kind = self._client if event.provider else self._internal
        span = self._tracer.start_span(f"{operation} {name}".strip(), around, kind, attributes, start_time=since)
        labels = _LABELS.get(operation, frozenset())
        return _Open(span, since, operation, {name: said for name, said in more.items() if name in labels})

    def _stop(self, event: Event, error: str) -> None:
        run = self._run(event)
        step = run.steps.pop((event.path, event.entry), None) if run is not None else None
        used = event.usage if event.usage is not None and event.usage.total else None
        if used is not None and event.kind in ("model.end", "model.error"):  # the steps around them sum it up
            self._count(used, _model(event))
        if step is None:
            return
        if used is not None:
            step.span.set_attributes(_usage(used))
        if event.first_ns:
            first = event.first_ns / 1e9
            step.span.set_attribute("gen_ai.response.time_to_first_chunk", first)
            self._first.record(first, step.labels)
        outcome = "cancelled" if error == "CancelledError" else "failed" if error else ""
        took = _close(step, _time(event.at), outcome, error, event.raised_as)
        if (seconds := self._seconds.get(step.operation)) is not None:
            seconds.record(took, step.labels | ({"error.type": error} if error else {}))

    def _end(self, event: Event) -> None:
        run = self._runs.pop(event.run_id, None)
        if run is None:
            return
        at, outcome = _time(event.at), event.detail
        if event.usage is not None and event.usage.total:
            run.whole.span.set_attributes(_usage(event.usage))
        self._leave_steps(run, at)
        took = _close(run.whole, at, outcome, event.error, event.raised_as)
        labels: _Attributes = {"gen_ai.workflow.name": run.name, "bb.outcome": outcome, "bb.resumed": run.resumed}
        self._seconds[_WORKFLOW].record(took, labels | ({"error.type": event.error} if event.error else {}))

    def _leave(self, run: _OpenRun, at: int) -> None:
        """End the spans of a run whose end will not be told."""
        self._leave_steps(run, at)
        _close(run.whole, at, "left")

    def _leave_steps(self, run: _OpenRun, at: int) -> None:
        for step in reversed(run.steps.values()):  # those inside first
            _close(step, at, "left")

    def _run(self, event: Event) -> _OpenRun | None:
        run = self._runs.pop(event.run_id, None)
        if run is not None:
            self._runs[event.run_id] = run  # it is the last that will be given up
        return run

    def _tell(self, event: Event) -> None:
        run = self._run(event)
        if run is None:
            return
        attributes = _place(event)
        if event.detail:
            attributes["bb.detail"] = redacted(event.detail)
        _around(run, event.path).span.add_event(f"bb.{event.kind}", attributes, _time(event.at))

    def _count(self, usage: Usage, labels: _Attributes) -> None:
        for kind, tokens in (("input", _input(usage)), ("output", usage.output)):
            if tokens:
                self._usage.record(tokens, {**labels, "gen_ai.token.type": kind})
        for kind, tokens in _kinds(usage):
            self._tokens.add(tokens, {"bb.token.kind": kind})


def _close(open: _Open, at: int, outcome: str, error: str = "", raised_as: str = "") -> float:
    """End a span; the seconds it took."""
    if outcome:
        open.span.set_attribute("bb.outcome", outcome)
    if error and outcome != "cancelled":
        from opentelemetry.trace import StatusCode

        open.span.set_attribute("error.type", error)
        if raised_as:
            open.span.set_attribute("bb.error", raised_as)
        open.span.set_status(StatusCode.ERROR, error)
    end = max(at, open.since)  # a clock may be set back
    open.span.end(end)
    return (end - open.since) / 1e9


def _around(run: _OpenRun, path: str) -> _Open:
    """The innermost open span at a path or around it."""
    while path:
        if (step := run.steps.get((path, ""))) is not None:
            return step
        path = path.rpartition("/")[0]
    return run.whole


def _work(event: Event) -> tuple[str, str, _Attributes]:
    """What begins with an event: the operation, what it is done with, and what the conventions want told of it."""
    flow, detail = redacted(event.flow), redacted(event.detail)
    if event.kind == "notify":
        return _NOTIFY, flow, {}
    if event.kind == "step.start":
        return _STEP, detail, {}
    if event.kind == "model.start":
        return _MODEL, detail, _model(event) | {"gen_ai.request.stream": True}
    if event.kind == "flow.start" and detail in ("", _SEGMENT):
        named: _Attributes = {"gen_ai.agent.name": flow} if flow else {}
        return _AGENT, flow, {"gen_ai.operation.name": _AGENT} | named
    return _TOOL, detail, {"gen_ai.operation.name": _TOOL, "gen_ai.tool.name": detail, "gen_ai.tool.type": "function"}


def _model(event: Event) -> _Attributes:
    return {
        "gen_ai.operation.name": _MODEL,
        "gen_ai.provider.name": redacted(event.provider) or _UNNAMED,
        "gen_ai.request.model": redacted(event.detail),
    }


def _place(event: Event) -> _Attributes:
    place: _Attributes = {
        "bb.run_id": redacted(event.run_id),
        "bb.path": redacted(event.path),
        "bb.attempt": event.attempt,
    }
    if event.flow:
        place["bb.flow"] = redacted(event.flow)
    return place


def _usage(usage: Usage) -> _Attributes:
    return {
        "gen_ai.usage.input_tokens": _input(usage),
        "gen_ai.usage.output_tokens": usage.output,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning,
    }


def _input(usage: Usage) -> int:
    """Input tokens as the conventions count them: cached ones belong to them."""
    return usage.input + usage.cache_read + usage.cache_write


def _kinds(usage: Usage) -> Iterator[tuple[str, int]]:
    """The counts that are not zero, disjoint: what was thought is taken out of the output."""
    counts = {
        "input": usage.input,
        "cache_read": usage.cache_read,
        "cache_write": usage.cache_write,
        "output": usage.output - usage.reasoning,
        "reasoning": usage.reasoning,
    }
    return ((kind, tokens) for kind, tokens in counts.items() if tokens > 0)


def _time(at: datetime) -> int:
    """Nanoseconds since 1970; whole microseconds, which a float of seconds cannot hold."""
    return (at - _EPOCH) // timedelta(microseconds=1) * 1000
