"""`OpenTelemetryTracer`: what happens in a run, as spans and metrics of OpenTelemetry."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never, final

from attrs import Factory, astuple, define, evolve, frozen

from bb.errors import WiringError
from bb.messages import NO_USAGE, Usage
from bb.redaction import redacted
from bb.trace import Event

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

_Attributes: TypeAlias = dict[str, str | int | bool]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SEGMENT: Final = "ai_segment"
"""What the events of a model stage have as their detail, where those of a call have the name of the op."""
_MODEL: Final = "invoke_agent"
_TOOL: Final = "execute_tool"
_NOTIFY: Final = "notify"
_WORKFLOW: Final = "invoke_workflow"

_OUTCOMES: Final = frozenset({"finished", "parked", "cancelled", "failed", "interrupted"})
"""How a run ends; any other detail is the class of the error that ended it."""

# as the conventions advise
_RUN_SECONDS: Final = (1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200)
_STEP_SECONDS: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
_TOOL_SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS: Final = tuple(4**n for n in range(14))


@frozen
class _Open:
    """A span that has not ended: since when, in nanoseconds, and what its durations are measured under."""

    span: Span
    since: int
    operation: str
    name: str


@define
class _OpenRun:
    """An attempt under way, its open spans by path, and the tokens that the metrics have of it."""

    whole: _Open
    resumed: bool
    told: bool
    """Whether the beginning of the attempt was seen, and so everything in it."""
    steps: dict[str, _Open] = Factory(dict)
    counted: Usage = NO_USAGE


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
    - `execute_tool {op}`: a call of an op.
    - `notify {flow}`: a message sent.

    A failed step has the status and `error.type`; a cancelled one, as the losers of a race, has `bb.outcome` alone.
    Everything else that happens, replayed steps above all, is an event `bb.{kind}` of the nearest span around it. What
    is still open when the run ends or parks ends with it, as `bb.outcome` `left`.

    Metrics: `gen_ai.workflow.duration`, `gen_ai.invoke_agent.duration`, `gen_ai.execute_tool.duration` (seconds; their
    counts count runs, steps and calls), `gen_ai.client.token.usage` of steps (of those that failed, when the run ends),
    and the counters `bb.tokens` (by `bb.token.kind`, cached and reasoning ones apart), `bb.steps.replayed`, `bb.retries`
    and `bb.store.errors`. They are labelled by the names of flows that are run and of ops, by outcomes and by classes of
    errors; never by run, session or path, nor by the ids of flows within a run, which may come from data.

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
        except ImportError as error:
            raise WiringError(
                "OpenTelemetryTracer needs the opentelemetry-api package", remedy="install bb-flow[otel]"
            ) from error
        self._in_context = trace.set_span_in_context
        self._max_runs = max_runs
        self._tracer = trace.get_tracer("bb", tracer_provider=tracer_provider)
        meter = metrics.get_meter("bb", meter_provider=meter_provider)
        self._seconds = {
            operation: meter.create_histogram(
                name, unit="s", description=description, explicit_bucket_boundaries_advisory=buckets
            )
            for operation, name, description, buckets in (
                (_WORKFLOW, "gen_ai.workflow.duration", "Time of one attempt at a run.", _RUN_SECONDS),
                (_MODEL, "gen_ai.invoke_agent.duration", "Time of an agent flow or model stage.", _STEP_SECONDS),
                (_TOOL, "gen_ai.execute_tool.duration", "Time of a call of an op.", _TOOL_SECONDS),
            )
        }
        self._usage = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Tokens of an agent flow or model stage.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self._tokens = meter.create_counter("bb.tokens", unit="{token}", description="Tokens billed.")
        self._replayed = meter.create_counter("bb.steps.replayed", unit="{step}", description="Steps not done again.")
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
            case "flow.start" | "notify":
                self._start(event)
            case "flow.end" | "notify.end":
                self._stop(event, "")
            case "flow.error" | "notify.error":
                self._stop(event, event.detail)
            case "flow.cached" | "memo.hit" | "once.skipped":
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
        resumed, told = event.kind == "run.resumed", event.kind in ("run.start", "run.resumed")
        attributes: _Attributes = {
            "gen_ai.operation.name": _WORKFLOW,
            "gen_ai.workflow.name": name,
            "bb.resumed": resumed,
        }
        whole = self._open(evolve(event, path=name, flow=name), _WORKFLOW, name, attributes, None)
        run = self._runs[event.run_id] = _OpenRun(whole, resumed, told)
        while len(self._runs) > self._max_runs:
            silent = next(iter(self._runs))
            self._leave(self._runs.pop(silent), _time(event.at))
        return run

    def _start(self, event: Event) -> None:
        run = self._run(event)
        if run is None:
            run = self._begin(event)  # an undo before the run is ended, or a run that was silent for too long
        if (known := run.steps.pop(event.path, None)) is not None:
            _close(known, _time(event.at), "left")
        name = redacted(event.flow)
        attributes: _Attributes = {}
        if event.kind == "notify":
            operation = _NOTIFY
        elif event.detail in ("", _SEGMENT):
            operation = attributes["gen_ai.operation.name"] = _MODEL
            if name:
                attributes["gen_ai.agent.name"] = name
        else:
            operation = attributes["gen_ai.operation.name"] = _TOOL
            name = attributes["gen_ai.tool.name"] = redacted(event.detail)
            attributes["gen_ai.tool.type"] = "function"
        around = self._in_context(_around(run, event.path).span)
        run.steps[event.path] = self._open(event, operation, name, attributes, around)

    def _open(self, event: Event, operation: str, name: str, more: _Attributes, around: Context | None) -> _Open:
        since = _time(event.at)
        span = self._tracer.start_span(
            f"{operation} {name}".strip(), around, attributes={**_place(event), **more}, start_time=since
        )
        return _Open(span, since, operation, name)

    def _stop(self, event: Event, error: str) -> None:
        run = self._run(event)
        step = run.steps.pop(event.path, None) if run is not None else None
        if event.usage is not None and event.usage.total:
            self._count(event.usage)
            if run is not None:
                run.counted = run.counted + event.usage
            if step is not None:
                step.span.set_attributes(_usage(event.usage))
        if step is None:
            return
        outcome = "cancelled" if error == "CancelledError" else "failed" if error else ""
        took = _close(step, _time(event.at), outcome, error)
        if (seconds := self._seconds.get(step.operation)) is not None:
            labels = {"gen_ai.tool.name": step.name} if step.operation == _TOOL else {}
            seconds.record(took, labels | ({"error.type": error} if error else {}))

    def _end(self, event: Event) -> None:
        run = self._runs.pop(event.run_id, None)
        if run is None:
            return
        at, outcome, error = _time(event.at), event.detail, ""
        if outcome not in _OUTCOMES:
            outcome, error = "failed", event.detail
        elif outcome in ("failed", "interrupted"):
            error = "_OTHER"  # the event does not say which; the conventions have this word for it
        if event.usage is not None and event.usage.total:
            run.whole.span.set_attributes(_usage(event.usage))
            if run.told:  # what steps spent that did not finish
                self._count(_rest(event.usage, run.counted))
        self._leave_steps(run, at)
        took = _close(run.whole, at, outcome, error)
        labels: _Attributes = {
            "gen_ai.workflow.name": run.whole.name,
            "bb.outcome": outcome,
            "bb.resumed": run.resumed,
        }
        self._seconds[_WORKFLOW].record(took, labels | ({"error.type": error} if error else {}))

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

    def _count(self, usage: Usage) -> None:
        for kind, tokens in (("input", _input(usage)), ("output", usage.output)):
            if tokens:
                self._usage.record(tokens, {"gen_ai.operation.name": _MODEL, "gen_ai.token.type": kind})
        for kind, tokens in _kinds(usage):
            self._tokens.add(tokens, {"bb.token.kind": kind})


def _close(open: _Open, at: int, outcome: str, error: str = "") -> float:
    """End a span; the seconds it took."""
    if outcome:
        open.span.set_attribute("bb.outcome", outcome)
    if error and outcome != "cancelled":
        from opentelemetry.trace import StatusCode

        open.span.set_attribute("error.type", error)
        open.span.set_status(StatusCode.ERROR, outcome if error == "_OTHER" else error)
    end = max(at, open.since)  # a clock may be set back
    open.span.end(end)
    return (end - open.since) / 1e9


def _around(run: _OpenRun, path: str) -> _Open:
    """The innermost open span at a path or around it."""
    while path:
        if (step := run.steps.get(path)) is not None:
            return step
        path = path.rpartition("/")[0]
    return run.whole


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


def _rest(whole: Usage, counted: Usage) -> Usage:
    return Usage(*(max(0, one - other) for one, other in zip(astuple(whole), astuple(counted), strict=True)))


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
