"""What happens in a run, as events, and where they go."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from datetime import datetime
from typing import Literal, Protocol, TextIO, TypeAlias

from attrs import frozen

from bb.messages import Usage
from bb.ports import check_port
from bb.redaction import redacted

EventKind: TypeAlias = Literal[
    "run.start",
    "run.resumed",
    "run.retry",
    "run.parked",
    "run.end",
    "flow.start",
    "flow.end",
    "flow.cached",
    "flow.error",
    "model.start",
    "model.end",
    "model.error",
    "model.cached",
    "tool.start",
    "tool.end",
    "tool.error",
    "tool.cached",
    "step.start",
    "step.end",
    "step.error",
    "step.cached",
    "select",
    "select.enter",
    "select.none",
    "all.start",
    "one.start",
    "group.start",
    "respond",
    "notify",
    "notify.end",
    "notify.error",
    "emit",
    "memo.hit",
    "once.skipped",
    "once.waiting",
    "checkpoint",
    "checkpoint.skipped",
    "await.resumed",
    "try.caught",
    "retry",
    "unwind.start",
    "unwind.end",
    "cleanup.failed",
    "debounce.dropped",
    "job.scheduled",
    "job.fired",
    "durable.discarded",
    "store.error",
]


@frozen
class Event:
    """One thing that happened.

    `flow` is the nearest id, `path` the place, `attempt` counts from 1 within the run, `detail` depends on the kind,
    `dur_ns` is a duration in nanoseconds (0 when the kind has none). What a field does not apply to, leaves it empty.
    """

    kind: EventKind
    run_id: str
    path: str
    at: datetime
    flow: str = ""
    attempt: int = 1
    detail: str = ""
    dur_ns: int = 0
    usage: Usage | None = None
    error: str = ""
    """The class of the error that ended something; if it came from a handler, an op, a sender or an approver, of that one."""
    entry: str = ""
    """Which call of a model, tool or step of a handler it is: the same from its start to its end, and in a replay."""
    provider: str = ""
    """Who provides the model that is called, where it says so."""
    first_ns: int = 0
    """How long a model took for the first piece of text, in nanoseconds."""
    raised_as: str = ""
    """The class of bb's error for `error`, such as `AgentFailed`, if it has one."""


class Tracer(Protocol):
    """Anything that takes events. One that raises never breaks a run: the error is logged and dropped."""

    def event(self, event: Event, /) -> None:
        """Take one event; called on the event loop, so it must not block."""
        ...


def check_tracer(tracer: object) -> None:
    """Raises:
    WiringError: it is neither None nor an object with a method `event(event)`.
    """
    check_port(tracer, "tracer", ("event",), "give an object with event(event), such as bb.JSONLines(sys.stderr)")


class Recorder:
    """A tracer that keeps every event, for tests and for looking back."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def event(self, event: Event, /) -> None:
        self.events.append(event)

    def kinds(self) -> list[str]:
        """The kinds in order."""
        return [event.kind for event in self.events]

    def paths(self, kind: EventKind) -> list[str]:
        """The paths of the events of one kind, in order."""
        return [event.path for event in self.events if event.kind == kind]

    def flows(self, kind: EventKind) -> list[str]:
        """The flow ids of the events of one kind, in order."""
        return [event.flow for event in self.events if event.kind == kind]


class JSONLines:
    """A tracer that writes one JSON object per event and line; empty fields are left out."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = threading.Lock()

    def event(self, event: Event, /) -> None:
        line = json.dumps(fields(event), ensure_ascii=False)
        with self._lock:
            self._out.write(line + "\n")
            self._out.flush()


class StructlogTracer:
    """A tracer that logs each event through structlog at debug level, its kind as the event name."""

    def event(self, event: Event, /) -> None:
        import structlog

        bound = fields(event)
        kind = str(bound.pop("kind"))
        structlog.get_logger("bb").debug(
            kind, **{k: redacted(v) if isinstance(v, str) else v for k, v in bound.items()}
        )


class Tee:
    """A tracer that hands every event to several others; one that raises does not keep it from the rest."""

    def __init__(self, *tracers: Tracer) -> None:
        for tracer in tracers:
            check_tracer(tracer)
        self.tracers: Sequence[Tracer] = tracers

    def event(self, event: Event, /) -> None:
        errors: list[Exception] = []
        for tracer in self.tracers:
            try:
                tracer.event(event)
            except Exception as error:
                errors.append(error)
        if errors:
            raise ExceptionGroup("tracers failed", errors)


def fields(event: Event) -> dict[str, object]:
    """The event as plain values, empty ones and secrets left out, times in ISO 8601."""
    out: dict[str, object] = {
        "kind": event.kind,
        "run_id": event.run_id,
        "path": event.path,
        "at": event.at.isoformat(),
    }
    if event.flow:
        out["flow"] = event.flow
    if event.detail:
        out["detail"] = event.detail
    for name in ("error", "raised_as", "entry", "provider"):
        if said := getattr(event, name):
            out[name] = said
    for name in ("dur_ns", "first_ns"):
        if took := getattr(event, name):
            out[name] = took
    if event.usage is not None and event.usage.total:
        out["usage"] = {
            "input": event.usage.input,
            "output": event.usage.output,
            "cache_read": event.usage.cache_read,
            "cache_write": event.usage.cache_write,
            "reasoning": event.usage.reasoning,
        }
    out["attempt"] = event.attempt
    # before any encoding: in JSON a secret with a quote or a line break would no longer be found
    return {name: redacted(value) if isinstance(value, str) else value for name, value in out.items()}
