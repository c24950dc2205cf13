"""What a step inherits from where it stands in the tree."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from attrs import evolve, frozen

from bb.engine.frame.claims import Claim
from bb.engine.frame.pending import Pending
from bb.engine.frame.run import Run
from bb.engine.frame.scope import ActiveScope
from bb.engine.frame.shared import Seat, Shared, Voice
from bb.errors import Interruption, is_fatal
from bb.messages import Message
from bb.models.base import Model
from bb.record import Record


class Lane:
    """A branch that can be given up: closed, or only halted.

    What a closed branch still tries to do or keep is refused. A halted one replays up to where it had come, and is refused
    new work: so what it left open is found, and unwound on a lane that shelters from the halt.
    """

    def __init__(self, outer: Lane | None = None, *, shelter: bool = False) -> None:
        self._outer = outer
        self._shelter = shelter
        self._closed = False
        self._halted = False
        self._cleanups = 0

    @contextmanager
    def cleaning(self) -> Iterator[None]:
        """A cleanup is under way in the branch, and so in those around it."""
        branches = [self]
        while branches[-1]._outer is not None:
            branches.append(branches[-1]._outer)
        for branch in branches:
            branch._cleanups += 1
        try:
            yield
        finally:
            for branch in branches:
                branch._cleanups -= 1

    @property
    def cleans_up(self) -> bool:
        """Whether a cleanup is under way in the branch."""
        return self._cleanups > 0

    def close(self) -> None:
        """Give the branch up."""
        self._closed = True

    def halt(self) -> None:
        """Refuse new work in the branch."""
        self._halted = True

    def halt_all(self) -> None:
        """Refuse new work in the whole run."""
        lane = self
        while lane._outer is not None:
            lane = lane._outer
        lane.halt()

    @property
    def closed(self) -> bool:
        """Whether the branch, or one around it, was given up."""
        lane: Lane | None = self
        while lane is not None:
            if lane._closed:
                return True
            lane = lane._outer
        return False

    @property
    def halted(self) -> bool:
        """Whether the branch, or one around it that it is not sheltered from, was halted."""
        lane: Lane | None = self
        while lane is not None:
            if lane._halted:
                return True
            lane = None if lane._shelter else lane._outer
        return False

    def check(self) -> None:
        """Raise `CancelledError` in a branch that was given up and goes on all the same."""
        if self.closed:
            raise asyncio.CancelledError("this branch was given up")

    def begin(self) -> None:
        """Raise `CancelledError` before new work, or before its result is kept, in a branch that was closed or halted."""
        if self.closed or self.halted:
            raise asyncio.CancelledError("this branch was given up")


class Throttling(Protocol):
    """What counts the calls that are dispatched inside."""

    async def look(self, path: str) -> None:
        """Raise before a call for which there is no room."""
        ...

    async def admit(self, path: str) -> None:
        """Take the room for a call, or raise if there is none."""
        ...

    def count(self) -> None:
        """One call was dispatched."""
        ...


@frozen(eq=False, repr=False)
class Context(Record):
    """What a step inherits; changed only where the tree branches."""

    run: Run
    lane: Lane
    model: Model | None = None
    """The nearest one: of a flow around, or the app's."""
    scope: ActiveScope | None = None
    shared: Shared | None = None
    seat: Seat | None = None
    aside: bool = False
    """Beside other members: a stage boundary here delivers nothing."""
    tries: tuple[tuple[str, int], ...] = ()
    """The durable flows around, up to the nearest catcher of failures, each with its retries."""
    tools: frozenset[str] | None = None
    """The ops that may run here; None: all."""
    items: tuple[object, ...] = ()
    """The items of the loops around."""
    pending: Pending | None = None
    """Inside a saga: the onces that are complete only when it has succeeded."""
    throttles: tuple[Throttling, ...] = ()
    schedules: list[Callable[[], Awaitable[None]]] | None = None
    """Inside a member of `One`: what it would schedule, if it wins."""
    cut_off: list[Claim] | None = None
    """Inside a member of `One`: the claims of onces in whose body it was cut off."""

    @property
    def for_good(self) -> bool:
        """Whether a cancellation here ends things for good, rather than interrupts them."""
        return self.scope is None or (self.lane.halted and not self.lane.closed)

    def tries_again(self, error: BaseException) -> bool:
        """Whether a durable flow around will run again after this error, so that nothing is over yet."""
        if self.run.journal is None or is_fatal(error):
            return False
        failures = self.run.journal.history.failures
        return any(failures.get(path, 0) < retries for path, retries in self.tries)

    async def make_room(self, path: str) -> None:
        """Pass the throttles around a call that is about to be dispatched.

        Raises:
            Throttled: one of them has no room. Then the call counts in none.
        """
        for throttle in self.throttles[1:]:
            await throttle.look(path)
        for throttle in self.throttles:
            await throttle.admit(path)

    def tell(self, messages: Iterable[Message]) -> None:
        """Let the members of a group around hear what was said; agents do that themselves, while they speak."""
        if self.shared is not None:
            for message in messages:
                self.shared.append(message)

    @contextmanager
    def revocable(self) -> Iterator[Context]:
        """For work whose failure is caught: what it has said to a group around is taken back then.

        A replay does not go through that work again. What others have answered meanwhile is said all the same.
        """
        if self.shared is None:
            yield self
            return
        voice = Voice(self.shared)
        try:
            yield evolve(self, shared=voice)
        except Interruption:
            raise  # nothing has failed, and nobody goes on
        except Exception:
            voice.unsay()
            raise

    def under(self, model: Model | None) -> Context:
        """Below a flow that may name a model."""
        return self if model is None else evolve(self, model=model)
