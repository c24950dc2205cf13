"""One run while it is in memory: what every step of it needs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping
from copy import deepcopy
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from attrs import Factory, define, field, frozen

from bb.agents.ports import Sent
from bb.clock import Clock
from bb.codec import Codec
from bb.engine.frame.delivery import Delivery
from bb.engine.frame.envelope import Envelope
from bb.engine.frame.state import NO_SYMBOLS, State, changed
from bb.engine.memory.journal import Journal
from bb.engine.plan import Plan
from bb.errors import WiringError, root_of
from bb.flows.tree import Trigger
from bb.ids import fresh_id, session_of
from bb.logs import warning
from bb.messages import NO_USAGE, Input, Usage
from bb.record import Record
from bb.stores.base import Lease
from bb.trace import Event, EventKind, Tracer

if TYPE_CHECKING:
    from bb.engine.frame.pending import Pending
    from bb.engine.memory.session_memory import SessionMemory


class RunGates:
    """Named one-shot barriers of one run."""

    def __init__(self) -> None:
        self._events: dict[str, asyncio.Event] = {}

    def open(self, name: str) -> None:
        """Let everyone through, now and later."""
        self._event(name).set()

    async def wait(self, name: str) -> None:
        """Return when the gate is open."""
        await self._event(name).wait()

    def _event(self, name: str) -> asyncio.Event:
        return self._events.setdefault(name, asyncio.Event())


@frozen(eq=False, repr=False)
class Reached(Record):
    """A trigger that a run has reached, and what its body is to begin with."""

    trigger: Trigger
    path: str
    """From the registered flow."""
    run_id: str
    began: int
    """When the run was put on record, if it was: one that is started over has another life."""
    starting: bool
    """Whether the run is one of those that the app starts with."""
    tenant: str
    """Whose run it is, where there are tenants: what it schedules is nobody else's."""
    given: dict[str, object]
    """In codec form."""
    due: datetime | None = None
    """When the body of an `At` is to begin."""


Schedule: TypeAlias = Callable[[Reached], Coroutine[Any, Any, str]]
"""Puts what a trigger is to start on record, and gives the id of the job."""


async def unscheduled(reached: Reached) -> str:
    """What takes a trigger where there is no scheduler."""
    raise WiringError(f"nothing here could start what {reached.trigger.kind} is to start", path=reached.path)


@define(eq=False, repr=False)
class Run:
    """One run while it is being run."""

    run_id: str
    session_id: str
    plan: Plan
    input: Input
    params: Mapping[str, object]
    clock: Clock
    codec: Codec
    tracer: Tracer | None
    delivery: Delivery
    envelope: Envelope
    sessions: Callable[[Run, bool], SessionMemory]
    """Opens the memory of the run's session: that of durable flows, or the one in the process."""
    journal: Journal | None = None
    captured: Mapping[str, object] = NO_SYMBOLS
    """What symbols held where the trigger was reached that started it."""
    depth: int = 0
    """How many triggers led to it, one started by the other."""
    tenant: str = ""
    """Whose run it is, where there are tenants."""
    starting: bool = False
    """Whether it is run because the app starts."""
    schedule: Schedule = unscheduled
    fresh: bool = False
    """Whether checkpoints of earlier runs are ignored."""
    until: str = ""
    """The place of an await at which the walk parks, whatever came there since."""
    usage: Usage = NO_USAGE
    replayed: list[str] = Factory(list)
    gates: RunGates = Factory(RunGates)
    stage_claimed: bool = False
    iterations: int = 0
    """How often the loops of the run went round."""
    claims: set[str] = Factory(set)
    """The keys of every `Once` that others may be waiting for: the run is in its body, or in a saga around it."""
    held: dict[str, Pending] = Factory(dict)
    """Of those, the ones that a saga which is under way has finished."""
    symbols: Mapping[str, object] = NO_SYMBOLS
    """What the session held when the run started or last resumed."""
    start: State | None = None
    reached: State | None = None
    """The state after the last statement of the registered flow that is over."""
    trees: set[str] = field(factory=set)
    """Signatures whose tree the store has already; shared by all runs of an app."""
    _sessions: dict[bool, SessionMemory] = field(factory=dict, init=False)
    _locks: dict[str, asyncio.Lock] = field(factory=dict, init=False)
    _sent: Sent = field(init=False)

    @_sent.default
    def _of_input(self) -> Sent:
        return Sent(self.input.request, self.input.payload, self.input.metadata, self.params)

    @property
    def attempt(self) -> int:
        """Which attempt of the run this is, from 1."""
        return max(1, self.journal.history.attempts) if self.journal is not None else 1

    def sent(self) -> Sent:
        """What came with the run, for one handler; in a durable run its own copy.

        A replay skips the handlers before, so what they do to it must not be seen by those after them.
        """
        sent = self._sent
        if self.journal is None or (sent.payload is None and not sent.metadata and not sent.params):
            return sent
        return Sent(sent.request, *deepcopy((sent.payload, sent.metadata, sent.params)))

    @property
    def has_session(self) -> bool:
        """Whether the run belongs to a session that outlives it."""
        return self.session_id != session_of(self.tenant, self.run_id)

    @property
    def fingerprint(self) -> str:
        """What tells the run's input from others."""
        started = self.journal.history.started if self.journal is not None else None
        return started.fingerprint if started is not None else ""

    @cached_property
    def life(self) -> str:
        """Tells the run from others that had its id before; one that is not on record has a life in each process."""
        started = self.journal.history.started if self.journal is not None else None
        return started.life if started is not None else fresh_id()[:16]

    def session(self, durable: bool) -> SessionMemory:
        """What the run remembers for its session: in the store, or while the process lives."""
        if durable not in self._sessions:
            self._sessions[durable] = self.sessions(self, durable)
        return self._sessions[durable]

    @property
    def used_process_memory(self) -> bool:
        """Whether anything was remembered for as long as the process lives."""
        return False in self._sessions

    async def lease(self) -> Lease | None:
        """The lease that the run is written under; a finished one that has something new is taken up again for it."""
        journal = self.journal
        if journal is not None and journal.lease is None:
            await journal.record()
        return journal.lease if journal is not None else None

    def once_lock(self, key: str) -> asyncio.Lock:
        """Keeps apart the places of one run that reach the same `Once` at once."""
        return self._locks.setdefault(key, asyncio.Lock())

    async def sleep(self, seconds: float) -> None:
        """Wait by the clock of the app."""
        await self.clock.sleep(seconds)

    async def keep_symbols(self, place: str) -> None:
        """Show later runs of the session what this one has bound so far."""
        if self.has_session and self.reached is not None:
            bound = {k: v for k, v in changed(self.symbols, self.reached.symbols).items() if k not in self.params}
            await self.session(self.journal is not None).keep_symbols(bound, place)

    def spend(self, usage: Usage) -> None:
        """Count tokens."""
        self.usage = self.usage + usage

    def spent(self) -> Usage:
        """The tokens counted so far."""
        return self.usage

    def end(self, how: str) -> None:
        """Trace how an attempt ends, from where it ends: if it failed or was interrupted, by the error under way there."""
        error = sys.exception() if how in ("failed", "interrupted") else None
        self.failed("run.end", self.plan.root.segment, self.plan.name, error, how, usage=self.usage)

    def failed(
        self,
        kind: EventKind,
        path: str,
        flow: str,
        error: BaseException | None,
        detail: str = "",
        usage: Usage | None = None,
    ) -> None:
        """Trace an end by an error, if there is one; the detail is the class that it was raised as by default."""
        said = type(root_of(error)).__name__ if error is not None else ""
        raised = type(error).__name__ if error is not None else ""
        other = raised if raised != said else ""
        self.emit(kind, path, flow, detail or raised, usage=usage, error=said, raised_as=other)

    def emit(
        self,
        kind: EventKind,
        path: str,
        flow: str = "",
        detail: str = "",
        dur: float = 0.0,
        usage: Usage | None = None,
        *,
        error: str = "",
        entry: str = "",
        provider: str = "",
        first: float = 0.0,
        raised_as: str = "",
    ) -> None:
        """Trace an event; `dur` and `first` in seconds. A tracer that raises is logged and otherwise ignored."""
        if self.tracer is None:
            return
        event = Event(
            kind=kind,
            run_id=self.run_id,
            path=path,
            at=self.clock.now(),
            flow=flow,
            attempt=self.attempt,
            detail=detail,
            dur_ns=int(dur * 1e9),
            usage=usage,
            error=error,
            entry=entry,
            provider=provider,
            first_ns=int(first * 1e9),
            raised_as=raised_as,
        )
        try:
            self.tracer.event(event)
        except Exception as failure:
            warning("a tracer failed", error=repr(failure), kind=kind, run_id=self.run_id)
