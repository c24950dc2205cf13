"""`ModelReply`: a model's answer, whole or still arriving."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, final

from typing_extensions import TypeVar

from bb.agents.answer import Answer
from bb.errors import WiringError
from bb.messages import Message, ToolCall, Usage
from bb.schema import structure

T = TypeVar("T", default=str)
S = TypeVar("S")


class Feed:
    """Where the pieces of one answer arrive; any number of readers follow it, each from the beginning."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.usage = Usage()
        self.answer: Answer | None = None
        self.error: BaseException | None = None
        self._moved = asyncio.Event()

    @classmethod
    def of(cls, answer: Answer) -> Feed:
        """A feed that has ended with this answer."""
        feed = cls()
        feed.end(answer)
        return feed

    def say(self, text: str) -> None:
        """Take a piece of text."""
        self.pieces.append(text)
        self._move()

    def bill(self, usage: Usage) -> None:
        """Take what was billed so far."""
        self.usage = usage

    def end(self, answer: Answer) -> None:
        """The answer is whole. One that came without its pieces (a replayed one) is a single piece."""
        self.answer, self.usage = answer, answer.usage
        if not self.pieces and answer.message.content:
            self.pieces.append(answer.message.content)
        self._move()

    def fail(self, error: BaseException) -> None:
        """The answer broke off; every reader gets the error."""
        self.error = error
        self._move()

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.answer is not None or self.error is not None

    async def follow(self) -> AsyncIterator[str]:
        """Every piece from the first on, then the end or the error."""
        at = 0
        while True:
            while at < len(self.pieces):
                yield self.pieces[at]
                at += 1
            if self.error is not None:
                raise self.error
            if self.answer is not None:
                return
            await self._moved.wait()

    async def whole(self) -> Answer:
        """The answer, once it is whole."""
        while not self.ended:
            await self._moved.wait()
        return self.now()

    def now(self) -> Answer:
        """The answer, which must have ended."""
        if self.error is not None:
            raise self.error
        if self.answer is None:
            raise WiringError("the reply is still arriving", remedy="`await reply.done()` before you read its parts")
        return self.answer

    def _move(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


@final
class ModelReply(Generic[T]):
    """What a model answered; `T` is the type of `value`.

    Inside a granted `turn.stream()`, `chat.ask()` hands back an answer that is still arriving. `stream()`, `read_all()`
    and `done()` serve that too; the properties are for a reply that has ended, as every other has: `await reply.done()`
    first. Readers do not disturb each other.

    Everything but `usage` raises the error of an answer that broke off (`UpstreamError`): cut-off text never looks
    whole.
    """

    def __init__(self, feed: Feed, read: Callable[[Answer], T]) -> None:
        self._feed = feed
        self._read = read
        self._value: tuple[T] | None = None

    async def stream(self) -> AsyncIterator[str]:
        """The text piece by piece, from the beginning for every reader, late ones too.

        Raises (while iterating):
            UpstreamError: the provider failed.
            Closed: the handler returned before the answer was whole.
        """
        async for piece in self._feed.follow():
            yield piece

    async def read_all(self) -> str:
        """The whole text, once it is there; as often as you like.

        Raises:
            UpstreamError: the provider failed.
            Closed: the handler returned before the answer was whole.
        """
        return (await self._feed.whole()).message.content

    async def done(self) -> ModelReply[T]:
        """This reply, once it has ended.

        Raises:
            UpstreamError: the provider failed.
            Closed: the handler returned before the answer was whole.
        """
        await self._feed.whole()
        return self

    @property
    def ended(self) -> bool:
        """Whether the answer has ended, well or not."""
        return self._feed.ended

    @property
    def text(self) -> str:
        """The text of the answer.

        Raises:
            WiringError: the reply is still arriving.
        """
        return self.message.content

    @property
    def value(self) -> T:
        """The answer in the shape of its agent's schema; without a schema, the text.

        Raises:
            WiringError: the reply is still arriving.
            SchemaMismatch: the model called tools instead of answering.
        """
        if self._value is None:
            self._value = (self._read(self._feed.now()),)
        return self._value[0]

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tools the model wants run.

        Raises:
            WiringError: the reply is still arriving.
        """
        return self.message.calls

    @property
    def message(self) -> Message:
        """The answer as one assistant message, text and calls.

        Raises:
            WiringError: the reply is still arriving.
        """
        return self._feed.now().message

    @property
    def usage(self) -> Usage:
        """The tokens billed: of all rounds after `resolve()`, of the part that came when the answer broke off."""
        if not self.ended:
            self._feed.now()
        return self._feed.usage

    def extract(self, type_: type[S]) -> S:
        """The text read as JSON of a `type_`, strictly.

        Raises:
            SchemaMismatch: the text does not fit.
            WiringError: the reply is still arriving.
        """
        return structure(self.text, type_)

    def __repr__(self) -> str:
        answer = self._feed.answer
        return f"ModelReply({answer.message.content!r})" if answer is not None else f"ModelReply(ended={self.ended})"
