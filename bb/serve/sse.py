"""Server-sent events, kept alive and shut down in good order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

import anyio
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.types import Receive, Scope, Send

from bb.logs import warning
from bb.serve.wire import Frame

KEEP_ALIVE: Final = 15.0  # seconds without a word after which a comment says that the connection lives
STALLED: Final = 60.0  # seconds that a client may take none of what is sent; one that is merely slow takes something


class EventStream(EventSourceResponse):
    """A response of frames. What is `held` is let go of when it ends, however it ends."""

    def __init__(
        self,
        frames: AsyncIterator[Sequence[Frame]],
        held: AbstractAsyncContextManager[object],
        *,
        closing: anyio.Event,
        grace: float,
        keep_alive: float = KEEP_ALIVE,
    ) -> None:
        super().__init__(
            _encoded(frames),
            ping=keep_alive,
            ping_message_factory=lambda: ServerSentEvent(comment="keep-alive", sep="\n"),
            send_timeout=STALLED,
            shutdown_event=closing,
            shutdown_grace_period=grace,
        )
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held:
            try:
                await super().__call__(scope, receive, send)
            except SendTimeoutError:
                warning("a client stopped reading, and its stream was cut", path=str(scope.get("path", "")))


async def _encoded(frames: AsyncIterator[Sequence[Frame]]) -> AsyncIterator[bytes]:
    async for several in frames:
        yield b"".join(ServerSentEvent(each.data, event=each.event, id=each.id, sep="\n").encode() for each in several)
