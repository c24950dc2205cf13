"""One run while it is in memory: what every step of it needs, and the state that steps hand on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import NamedTuple

from attrs import Factory, define, field

from bb.agents.ports import Sent
from bb.clock import Clock
from bb.codec import Codec
from bb.engine.delivery import Delivery
from bb.engine.journal import Journal
from bb.engine.plan import Plan
from bb.errors import SelectConflict
from bb.log import Delta
from bb.logs import warning
from bb.messages import NO_USAGE, Input, Message, Usage, spoken
from bb.trace import Event, EventKind, Tracer


class State(NamedTuple):  # the cheapest of immutable values: every step makes one
    """What steps hand on: the chat, where this run's part of it begins, up to where it was delivered, and the pick."""

    chat: tuple[Message, ...]
    seed: int
    sent: int | None = None
    selected: str | None = None
    value: object = None

    def plus(self, delta: Delta) -> State:
        """The state after a step; a pick made earlier is gone."""
        if not delta.messages:
            return State(self.chat, self.seed, self.sent, delta.selected, self.value)
        return State(self.chat + delta.messages, self.seed, self.sent, delta.selected, delta.value)

    def picked(self, selected: str | None) -> State:
        """The same state with another pick."""
        return State(self.chat, self.seed, self.sent, selected, self.value)

    def delivered(self) -> State:
        """The state after a stage boundary."""
        return State(self.chat, self.seed, len(self.chat), self.selected, self.value)

    @property
    def answer(self) -> str:
        """The buffered answer: all delivered stages, or without any the last message of this run."""
        if self.sent is not None:
            return spoken(self.chat[self.seed : self.sent])
        return self.chat[-1].content if len(self.chat) > self.seed else ""


def merged(state: State, outs: Sequence[State], where: str) -> State:
    """What concurrent members add up to, in declaration order.

    Raises:
        SelectConflict: they picked different ids.
    """
    chat, value = state.chat, state.value
    for out in outs:
        said = out.chat[len(state.chat) :]
        if said:
            chat, value = chat + said, out.value
    return State(chat, state.seed, state.sent, one_pick([out.selected for out in outs], where), value)


def one_pick(picks: Sequence[str | None], where: str) -> str | None:
    """The one id that was picked, or None.

    Raises:
        SelectConflict: there are several.
    """
    made = sorted({pick for pick in picks if pick is not None})
    if len(made) > 1:
        raise SelectConflict(
            f"concurrent agents selected {' and '.join(map(repr, made))}",
            path=where,
            remedy="let one agent decide, or make them agree",
        )
    return made[0] if made else None


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


@define(eq=False)
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
    journal: Journal | None = None
    usage: Usage = NO_USAGE
    replayed: list[str] = Factory(list)
    gates: RunGates = Factory(RunGates)
    stage_claimed: bool = False
    trees: set[str] = field(factory=set)
    """Signatures whose tree the store has already; shared by all runs of an app."""
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

    def spend(self, usage: Usage) -> None:
        """Count tokens."""
        self.usage = self.usage + usage

    def spent(self) -> Usage:
        """The tokens counted so far."""
        return self.usage

    def emit(
        self,
        kind: EventKind,
        path: str,
        flow: str = "",
        detail: str = "",
        dur: float = 0.0,
        usage: Usage | None = None,
    ) -> None:
        """Trace an event; `dur` in seconds. A tracer that raises is logged and otherwise ignored."""
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
        )
        try:
            self.tracer.event(event)
        except Exception as error:
            warning("a tracer failed", error=repr(error), kind=kind, run_id=self.run_id)
