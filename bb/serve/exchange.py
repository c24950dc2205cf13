"""`Exchange`: one request and its response, from outside the routes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Mapping
from typing import Final, TypeVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from bb.engine.runs.live import seen
from bb.ids import check_id, fresh_id, is_reserved
from bb.serve.patience import Patience
from bb.serve.problems import ClientGone, Refused

T = TypeVar("T")

STALLED: Final = 60.0  # seconds that a client may pause in the middle of a body
_LEFT: Final = 0.5  # seconds that what is not waited for any more has to end
_KEY: Final = "bb.exchange"


class Bodies:
    """The bodies that are coming in. None is waited for any more once nothing of it came for a while, or at the end."""

    def __init__(self) -> None:
        self._patience = Patience()

    async def receive(self, receive: Receive) -> Message:
        """The next piece of one.

        Raises:
            Refused: it did not come.
        """
        try:
            async with self._patience.within(STALLED):
                return await receive()
        except TimeoutError:
            if self._patience.over:
                raise too_late() from None
            raise Refused(f"nothing more of the body came for {STALLED:g} s", 408, "timeout") from None

    def end(self) -> None:
        """The server shuts down: what is still missing comes too late."""
        self._patience.end()


def too_late() -> Refused:
    """What a client is told that comes when the server shuts down."""
    return Refused("the server is shutting down: try again soon", 503, "closing", {"Retry-After": "1"})


class Exchange:
    """What every route has to do with a request: its ids, which every response repeats, and the limit of its body."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, max_body: int, bodies: Bodies) -> None:
        self.headers = Headers(scope=scope)
        self.run_id = fresh_id()
        self.named = False
        """Whether the client gave the run id."""
        self.session_id: str | None = None
        self.started = False
        """Whether the response has begun."""
        self.ran = False
        """Whether a run was asked for."""
        self.also: Mapping[str, str] = {}
        """More headers for the response, whatever it is."""
        self.scope: Scope = {**scope, _KEY: self}
        self._receive = receive
        self._send = send
        self._max_body = max_body
        self._bodies = bodies
        length = self.headers.get("content-length", "")
        self._declared = int(length[:20]) if length.isdecimal() else 0  # what is longer is over every limit
        self._size = 0
        self._more = True
        """Whether the body is to go on."""
        self._heard: list[Message] | None = []
        self._again: deque[Message] = deque()

    @staticmethod
    def of(request: Request) -> Exchange:
        """The exchange that a request belongs to."""
        exchange = request.scope[_KEY]
        assert isinstance(exchange, Exchange)
        return exchange

    def read_ids(self) -> None:
        """Take the ids that the client gave.

        Raises:
            InvalidId: one is none.
            Refused: one was given twice, or is reserved.
        """
        run_id = self._one("x-run-id")
        if run_id is not None:
            self.run_id, self.named = _of_client(run_id, "run id"), True
        session_id = self._one("x-session-id")
        self.session_id = None if session_id is None else _of_client(session_id, "session id")

    def _one(self, name: str) -> str | None:
        values = self.headers.getlist(name)
        if len(values) > 1:
            raise Refused(f"header {name} was sent {len(values)} times")
        return values[0] if values else None

    async def receive(self) -> Message:
        """What the client sends; at first it is kept, to be received again.

        Raises:
            Refused: the body is over the limit, or does not come.
        """
        if self._again:
            return self._again.popleft()
        self._check(self._declared)
        message = await (self._bodies.receive(self._receive) if self._more else self._receive())
        self._more = bool(message.get("more_body"))
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            self._check(self._size)
        if self._heard is not None:
            self._heard.append(message)
        return message

    def rewind(self) -> None:
        """What was received so far is received once more: whoever authorised the request may have read its body."""
        self._again, self._heard = deque(self._heard or ()), None

    async def send(self, message: Message) -> None:
        """Send on, with the ids in the headers."""
        if message["type"] == "http.response.start":
            self.started = True
            message.setdefault("headers", [])
            headers = MutableHeaders(scope=message)
            headers["X-Run-Id"] = self.run_id
            headers.update(self.also)
            if self.session_id is not None:
                headers["X-Session-Id"] = self.session_id
        await self._send(message)

    def _check(self, size: int) -> None:
        if size > self._max_body:
            raise Refused(f"the body is larger than {self._max_body:,} bytes", 413, "too_large")


def _of_client(id: str, what: str) -> str:
    if is_reserved(check_id(id, what)):
        raise Refused(f"{what} {id} is reserved: begin it with another word", 400, "invalid_id")
    return id


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """What the work comes to; it is cancelled when the client leaves, whose request has been read.

    Raises:
        ClientGone: it did.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(seen)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.wait({task, gone}, timeout=_LEFT)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
