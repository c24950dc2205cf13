"""The live chat of a `Group`, and the latch that lets replayed members speak before running ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bb.messages import Message


class Shared:
    """What the members of a group have said so far, on top of the chat they started with."""

    def __init__(self, base: Sequence[Message], outer: Shared | None = None) -> None:
        self._base = base
        self._said: list[Message] = []
        self._outer = outer

    def view(self) -> Sequence[Message]:
        """All messages up to now."""
        base = self._base if self._outer is None else self._outer.view()
        return (*base, *self._said)

    def append(self, message: Message) -> None:
        """Say something that every member sees at once."""
        self._said.append(message)

    def withdraw(self, message: Message) -> None:
        """Take back one message, told by its identity: others may have said the same."""
        self._said = [said for said in self._said if said is not message]

    def fork(self) -> Shared:
        """A view for one member of a `One`: it reads along, and what it says is kept back until it has won."""
        return Shared((), self)

    def join(self) -> None:
        """Hand on what was kept back."""
        if self._outer is not None:
            for message in self._said:
                self._outer.append(message)
            self._said = []


class Voice(Shared):
    """What is said to the group where a failure is caught: heard at once, and taken back when there is one."""

    def __init__(self, outer: Shared) -> None:
        super().__init__((), outer)
        self._through = outer

    def view(self) -> Sequence[Message]:
        return self._through.view()

    def append(self, message: Message) -> None:
        super().append(message)
        self._through.append(message)

    def withdraw(self, message: Message) -> None:
        super().withdraw(message)
        self._through.withdraw(message)

    def unsay(self) -> None:
        """Take back everything."""
        for message in list(self._said):
            self.withdraw(message)


class Latch:
    """Opens when every member has come to its first step that is not replayed, or to its end.

    Members that are together one member further out go on when `outer` lets them.
    """

    def __init__(self, members: int, outer: Seat | None = None) -> None:
        self._missing = set(range(members))
        self._open = asyncio.Event()
        self._outer = outer

    def arrive(self, member: int) -> None:
        """Count a member in; again changes nothing."""
        self._missing.discard(member)
        if not self._missing:
            self._open.set()

    def seat(self, member: int) -> Seat:
        """The latch as one member sees it."""
        return Seat(self, member)

    async def wait(self) -> None:
        """Return when the latch is open, and those around it."""
        await self._open.wait()
        if self._outer is not None:
            await self._outer.pass_through()


class Seat:
    """One member's place at a latch."""

    def __init__(self, latch: Latch, member: int) -> None:
        self._latch = latch
        self._member = member

    async def pass_through(self) -> None:
        """Count this member in and wait for the others."""
        self._latch.arrive(self._member)
        await self._latch.wait()

    def leave(self) -> None:
        """Count this member in; it needs no more turn."""
        self._latch.arrive(self._member)


@contextmanager
def taken(seat: Seat | None) -> Iterator[None]:
    """While a member is at its seat, if there is one."""
    try:
        yield
    finally:
        if seat is not None:
            seat.leave()
