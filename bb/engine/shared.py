"""The live chat of a `Group`, and the latch that lets replayed members speak before running ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

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

    def fork(self) -> Shared:
        """A view for one member of a `One`: it reads along, and what it says is kept back until it has won."""
        return Shared((), self)

    def join(self) -> None:
        """Hand on what was kept back."""
        if self._outer is not None:
            for message in self._said:
                self._outer.append(message)
            self._said = []


class Latch:
    """Opens when every member has come to its first step that is not replayed, or to its end."""

    def __init__(self, members: int) -> None:
        self._missing = set(range(members))
        self._open = asyncio.Event()

    def arrive(self, member: int) -> None:
        """Count a member in; again changes nothing."""
        self._missing.discard(member)
        if not self._missing:
            self._open.set()

    def seat(self, member: int) -> Seat:
        """The latch as one member sees it."""
        return Seat(self, member)

    async def wait(self) -> None:
        """Return when the latch is open."""
        await self._open.wait()


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
