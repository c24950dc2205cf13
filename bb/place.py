"""Where a handler, op or tool is at work: the one context variable of bb."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, Token
from typing import Protocol, TypeVar

from attrs import define, frozen

from bb.errors import WiringError
from bb.messages import NO_USAGE, Usage

T = TypeVar("T")


@define(eq=False)
class Work:
    """An ask, tool run or step while it is being done: what a trace tells of it."""

    name: str
    """Of the model, the tool or the step."""
    provider: str = ""
    """Who provides the model, where it says so."""
    usage: Usage = NO_USAGE
    """What was billed for it so far."""
    error: str = ""
    """The class of an error that became a result."""
    clock: Callable[[], float] | None = None
    """Where it is traced: tells seconds until something is heard."""
    heard: float | None = None
    """When by that clock the first piece of an answer came."""

    def hear(self) -> None:
        """Note that a piece of an answer came."""
        if self.clock is not None:
            self.heard, self.clock = self.clock(), None


class Ledger(Protocol):
    """What remembers the side steps of one handler (asks, tool runs, `turn.step`) across retries of its place.

    Outside a durable flow it remembers nothing and only runs them.
    """

    async def entry(
        self, kind: str, name: str, request: object, run: Callable[[], Awaitable[T]], work: Work | None = None
    ) -> T:
        """The recorded result of this request, or that of `run()`, recorded before it is handed on.

        `kind` is "ask", "tool" or "step". Equal requests of one kind and name are told apart by their order. The result must
        be savable, and what is handed on is always the stored value decoded. `work` is what `run` tells of itself, by default
        only `name`.

        Raises:
            Closed: the handler has returned.
            NotSavable: the result cannot be kept exactly.
        """
        ...

    def spend(self, usage: Usage) -> None:
        """Count tokens that a model billed just now."""
        ...


@frozen
class Place:
    """One place in one run: the run, the path in its tree, the agent (by its position) and the entry being run."""

    run_id: str
    path: str
    agent: int = 0
    entry: str = ""
    spent: Callable[[], Usage] = Usage


here: ContextVar[Callable[[], Place]] = ContextVar("bb_place")
"""Tells the place; most handlers never ask, so it is made when they do."""


def leave(token: Token[Callable[[], Place]]) -> None:
    """Undo `here.set`. A coroutine that lost its loop is closed in some other context, where there is nothing to undo."""
    try:  # noqa: SIM105 - on the path of every step, where `suppress` costs more than the reset
        here.reset(token)
    except ValueError:
        pass


def current_place() -> Place | None:
    """Where the running handler, tool, step, sender or op is at work; None outside one."""
    tell = here.get(None)
    return tell() if tell is not None else None


def idempotency_key(label: str = "") -> str:
    """A key for an outside effect that is stable over retries of this place in this run, and different elsewhere.

    Durable work happens at least once: hand the key to the service that you call, so that a second try is recognised.
    `label` tells several effects of one handler apart. 32 hex digits.

    Raises:
        WiringError: called outside a handler, tool, step, sender of a `Notify` or op.
    """
    place = current_place()
    if place is None:
        raise WiringError("idempotency_key() has no place", remedy="call it inside a handler, tool, step, sender or op")
    text = "\x00".join((place.run_id, place.path, str(place.agent), place.entry, label))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def spent() -> Usage:
    """The tokens billed so far in the run around this handler; nothing outside one."""
    place = current_place()
    return place.spent() if place is not None else Usage()
