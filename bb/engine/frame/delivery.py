"""What reaches a streaming client: one growing text per run, read by any number of listeners.

Law: what was streamed, joined, is the buffered answer. So the text is never sent ahead of what the answer will surely
hold, and at each stage boundary only what is missing is added.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence

from bb.errors import StreamBroken

_AHEAD = 64 * 1024  # characters that a live writer may be ahead of the slowest listener


class Delivery:
    """The text of one run, append-only but for `rewind`."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._chunks: list[str] = []
        self._size = 0
        self._cursor = 0
        self._settled = 0
        self._listeners: list[Listener] = []
        self._closed = False
        self._waiting = 0
        self._lock = threading.Lock()
        self._room: list[Callable[[], None]] = []

    @property
    def has_listeners(self) -> bool:
        """Whether anybody streams this run."""
        return bool(self._listeners)

    @property
    def mark(self) -> int:
        """How many characters have been delivered up to here."""
        return self._cursor

    def listen(self) -> Listener:
        """A new listener, from the first character on."""
        listener = Listener(self)
        with self._lock:
            self._listeners.append(listener)
        return listener

    def rewind(self, mark: int) -> None:
        """Go back to a mark before a retry. Listeners who got text that is not settled are sent to reconnect.

        Settled text (whole stages, whole steps) will be produced again word for word, and is not sent twice.
        """
        with self._lock:
            self._cursor = mark
            if self._size > self._settled:
                self._cut(max(mark, self._settled))

    def settle(self) -> None:
        """Everything up to here will be said again by any retry."""
        self._settled = max(self._settled, self._cursor)

    def write(self, text: str) -> None:
        """Add text where the cursor is; what listeners have already is skipped."""
        with self._lock:
            if self._cursor < self._size:
                text = self._skip(text)
            if not text:
                return
            self._chunks.append(text)
            self._size += len(text)
            self._cursor = self._size
            listeners = list(self._listeners)
        for listener in listeners:
            listener.wake()

    def _skip(self, text: str) -> str:
        known = self.text[self._cursor : self._cursor + len(text)]
        if text.startswith(known):
            self._cursor += len(known)
            return text[len(known) :]
        self._cut(self._cursor)  # a part outside any durable flow answered differently this time
        return text

    def _cut(self, size: int) -> None:
        kept = self.text[:size]
        self._chunks = [kept] if kept else []
        self._size = size
        self._settled = min(self._settled, size)
        for listener in self._listeners:
            if listener.taken > size:
                listener.broken = True
            listener.restart()
            listener.wake()

    @property
    def text(self) -> str:
        """Everything delivered."""
        return "".join(self._chunks)

    def complete(self, answer: str) -> None:
        """Deliver what is still missing of the answer so far."""
        self.write(answer[self._cursor :])

    def close(self) -> None:
        """No more text will come."""
        self._closed = True
        with self._lock:
            listeners = list(self._listeners)
            room, self._room = self._room, []
        for listener in listeners:
            listener.wake()
        for go in room:
            go()

    async def room(self) -> None:
        """Return when not all who wait for the run are listeners that are too far behind."""
        while self._crowded():
            event = asyncio.Event()
            with self._lock:
                self._room.append(setter(event))
            if self._crowded():  # else the last reader, in a thread of its own, read on just before it could wake us
                await event.wait()

    def _crowded(self) -> bool:
        # one who only waits for the outcome, or keeps up, is held back by nobody: the text is kept for the others anyway
        behind = sum(one.reading and self._size - one.taken > _AHEAD for one in self._listeners)
        return not self._closed and 0 < behind >= self._waiting

    def await_by(self, number: int) -> None:
        """So many wait for the run now, listeners and others."""
        self._waiting = number
        self.took()

    # for listeners

    def take(self, listener: Listener) -> str | None:
        """What comes next for a listener, or None when there is nothing yet."""
        with self._lock:  # the writer, in a thread of its own, may be cutting and joining the chunks just now
            return listener.advance(self._chunks)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def took(self) -> None:
        """A listener has read on."""
        if self._room:
            with self._lock:
                room, self._room = self._room, []
            for go in room:
                go()

    def leave(self, listener: Listener) -> None:
        """A listener has gone."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)
        self.took()

    def void(self) -> StreamBroken:
        """The error for a listener whose text became void."""
        return StreamBroken(
            f"text of run {self._run_id} that was already streamed became void",
            run_id=self._run_id,
            remedy=f"the run goes on; stream it again with run_id={self._run_id!r}",
        )


class Listener:
    """One reader of a delivery, in whatever loop it iterates."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._index = 0
        self._offset = 0
        self.taken = 0
        self.broken = False
        self.expected = False
        """Whether somebody is about to iterate it, and the run should not get far ahead of that."""
        self._wake: Callable[[], None] | None = None

    @property
    def reading(self) -> bool:
        """Whether somebody iterates it, or is about to."""
        return self._wake is not None or self.expected

    def wake(self) -> None:
        """There is something new to look at; may be called from any thread."""
        if self._wake is not None:
            self._wake()

    def restart(self) -> None:
        """The chunks were cut and joined: find the place again by characters."""
        self._index, self._offset = 0, self.taken

    def advance(self, chunks: Sequence[str]) -> str | None:
        """Step to the next chunk; what is left of it, or None when there is none yet."""
        if self._index >= len(chunks):
            return None
        chunk = chunks[self._index]
        self._index += 1
        text, self._offset = chunk[self._offset :], max(0, self._offset - len(chunk))
        self.taken += len(text)
        return text

    async def chunks(self) -> AsyncIterator[str]:
        """The text as it comes, until the run ends.

        Raises:
            StreamBroken: text this listener had became void.
        """
        event = asyncio.Event()
        self._wake = setter(event)
        try:
            while True:
                event.clear()
                closed = self._delivery.closed
                if self.broken:
                    raise self._delivery.void()
                text = self._delivery.take(self)
                if text is not None:
                    if text:
                        yield text
                        self._delivery.took()
                elif closed:
                    return
                else:
                    await event.wait()
        finally:
            self._wake = None
            self._delivery.leave(self)


def setter(event: asyncio.Event) -> Callable[[], None]:
    """Sets an event of the running loop, from any thread."""
    loop, home = asyncio.get_running_loop(), threading.get_ident()

    def set_event() -> None:
        if loop.is_closed():
            return
        if threading.get_ident() == home:  # as nearly always: waking the loop from outside is a call of the system
            event.set()
        else:
            loop.call_soon_threadsafe(event.set)

    return set_event
