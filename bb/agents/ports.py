"""What a turn needs from whoever runs it, as protocols, so that agents know nothing of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from attrs import frozen

from bb.messages import Message, Request

_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})


@frozen
class Sent:
    """What came with a run beside its messages."""

    request: Request = Request()
    payload: object = None
    metadata: Mapping[str, object] = _NOTHING
    params: Mapping[str, object] = _NOTHING


NOTHING_SENT: Final = Sent()


class SharedChat(Protocol):
    """The live chat of a `Group`: what every member has said so far."""

    def view(self) -> Sequence[Message]:
        """All messages up to now."""
        ...

    def append(self, message: Message) -> None:
        """Say something that the other members see at once."""
        ...


class Sink(Protocol):
    """The live output to a streaming client."""

    async def write(self, text: str) -> None:
        """Send text on; returns when the client may get more (back-pressure)."""
        ...


class Floor(Protocol):
    """Who may speak to the client live."""

    async def claim(self, said: Sequence[Message]) -> Sink | None:
        """The live output, or None when this turn is not the one to stream, or nobody listens.

        `said` is what the turn has replied so far; it is delivered first where it belongs to the same stage.
        """
        ...


class Gates(Protocol):
    """Named one-shot barriers between the agents of one run."""

    def open(self, name: str) -> None:
        """Let everyone through who waits or will wait; doing it again changes nothing."""
        ...

    async def wait(self, name: str) -> None:
        """Return when the gate is open."""
        ...
