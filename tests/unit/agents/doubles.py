"""What a turn and a chat need from whoever runs them, in memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from typing_extensions import TypeVar

from bb.agents.agent import Agent
from bb.agents.chat import ModelChat
from bb.agents.ports import Sent
from bb.agents.turn import Turn
from bb.messages import Message, Request, Usage
from bb.models.base import Model
from bb.place import Work

T = TypeVar("T", default=str)


class Memory:
    """A ledger: entries by kind, name, request and how often that was asked in this attempt."""

    def __init__(self, known: dict[str, Any] | None = None) -> None:
        self.known: dict[str, Any] = known if known is not None else {}
        self.spent: list[Usage] = []
        self._seen: Counter[str] = Counter()

    async def entry(
        self, kind: str, name: str, request: object, run: Callable[[], Awaitable[T]], work: Work | None = None
    ) -> T:
        base = f"{kind}/{name}/{request!r}"
        self._seen[base] += 1
        key = f"{base}/{self._seen[base]}"
        if key not in self.known:
            self.known[key] = await run()
        return self.known[key]

    def spend(self, usage: Usage) -> None:
        self.spent.append(usage)

    def kinds(self) -> list[str]:
        """The kind and name of every entry, in order."""
        return ["/".join(key.split("/")[:2]) for key in self.known]


class Live:
    """A floor that grants once, and the sink it grants."""

    def __init__(self, *, grants: bool = True, error: Exception | None = None) -> None:
        self.grants = grants
        self.error = error
        self.text: list[str] = []
        self.said: list[Sequence[Message]] = []

    async def claim(self, said: Sequence[Message]) -> Live | None:
        self.said.append(said)
        granted, self.grants = self.grants, False
        return self if granted else None

    async def write(self, text: str) -> None:
        if self.error is not None:
            raise self.error
        self.text.append(text)


class Doors:
    """Gates."""

    def __init__(self) -> None:
        self._events: dict[str, asyncio.Event] = {}

    def open(self, name: str) -> None:
        self._events.setdefault(name, asyncio.Event()).set()

    async def wait(self, name: str) -> None:
        await self._events.setdefault(name, asyncio.Event()).wait()


class Table:
    """A shared chat."""

    def __init__(self, *messages: Message) -> None:
        self.chat = list(messages)

    def view(self) -> Sequence[Message]:
        return tuple(self.chat)

    def append(self, message: Message) -> None:
        self.chat.append(message)


def turn(*messages: Message | str, **options: Any) -> Turn:
    """A turn over these messages."""
    chat = [Message(one) if isinstance(one, str) else one for one in messages]
    sent = Sent(**{key: options.pop(key) for key in ("request", "payload", "metadata", "params") if key in options})
    given: dict[str, Any] = {"ledger": Memory(), "floor": Live(grants=False), "gates": Doors(), "sent": sent}
    return Turn(messages=chat, **(given | options))


def chat(model: Model | None, agent: Agent[T] | None = None, **options: Any) -> ModelChat[T]:
    """A chat with this model."""
    given: dict[str, Any] = {"ledger": Memory(), "request": Request(), "flow": "talk", "path": "talk"}
    return ModelChat(agent=agent if agent is not None else Agent(name="helper"), model=model, **(given | options))
