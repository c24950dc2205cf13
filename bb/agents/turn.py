"""`Turn`: how a handler faces the client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar, cast, final, overload

from bb.agents.invoke import invoke, told
from bb.agents.links import Linked, linked
from bb.agents.ports import NOTHING_SENT, Floor, Gates, Sent, SharedChat, Sink
from bb.agents.reply import ModelReply
from bb.errors import Closed, Fatal, Interruption, InvalidInput, SchemaMismatch, WiringError
from bb.ids import check_id
from bb.messages import Message, Request, ToolCall
from bb.place import Ledger
from bb.schema import Schema

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@final
class StreamOut:
    """The text a handler streams; false when it does not reach the client live.

    Either way what is written becomes one reply when the stream ends, so the same text must not be replied as well.
    `value` may be set to what it means to the program (default: the text).
    """

    def __init__(self, sink: Sink | None, check: Callable[[], None]) -> None:
        self.value: object = None
        self._pieces: list[str] = []
        self._granted = sink is not None
        self._sink = sink
        self._check = check
        self._ended = False

    def __bool__(self) -> bool:
        return self._granted

    @property
    def text(self) -> str:
        """What was written so far."""
        return "".join(self._pieces)

    async def write(self, text: str) -> None:
        """Say `text`; waits while the client is slow. A client that went away is not an error.

        Raises:
            Closed: the stream has ended.
        """
        self._check()
        if self._ended:
            raise Closed("the stream has ended", remedy="write inside its `async with` block")
        if not text:
            return
        self._pieces.append(text)  # adding to a text would copy all of it for each piece
        if self._sink is not None:
            try:
                await self._sink.write(text)
            except (Fatal, Interruption):
                raise
            except Exception:
                self._sink = None  # nobody reads on, but the reply is still wanted

    def end(self) -> None:
        """No more is written (called when the block is left)."""
        self._ended = True


@final
class Gate:
    """A named one-shot barrier between the agents of one run; `turn.gate(name)` gives it."""

    def __init__(self, name: str, gates: Gates, check: Callable[[], None]) -> None:
        self.name = name
        self._gates = gates
        self._check = check

    def open(self) -> None:
        """Let everyone through who waits or will wait; doing it again changes nothing."""
        self._check()
        self._gates.open(self.name)

    async def wait(self) -> None:
        """Return when the gate is open."""
        self._check()
        await self._gates.wait(self.name)


class _Said:
    """One reply: what it says, and for a model's reply that is still arriving, where it will come from."""

    def __init__(self, message: Message | None, reply: ModelReply[Any] | None, value: object) -> None:
        self.message = message
        self.reply = reply
        self.explicit = value
        self.calls: dict[str, ToolCall] = {}

    def now(self) -> Message:
        message = self.message
        if message is None:
            message = self.reply.message if self.reply is not None else Message(role="assistant")
        if not self.calls:
            return message
        held = {call.id for call in message.calls}
        return message.with_calls(*(call for id, call in self.calls.items() if id not in held))

    def call(self, calls: Sequence[ToolCall]) -> None:
        for call in calls:
            self.calls.setdefault(call.id, call)

    def value(self) -> object:
        if self.explicit is not None:
            return self.explicit
        if self.reply is not None:
            try:
                return cast(object, self.reply.value)
            except SchemaMismatch:  # it calls tools and says nothing of the shape
                pass
        return self.now().content


@final
class Turn:
    """What one handler sees of the client, and how it answers. Acting on it raises `Closed` once it has returned.

    Whoever runs the handler makes the turn, and afterwards awaits `settle()`, reads `replies`, `selected` and `value`,
    and calls `close()`.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        ledger: Ledger,
        floor: Floor,
        gates: Gates,
        sent: Sent = NOTHING_SENT,
        shared: SharedChat | None = None,
        run_id: str = "",
        path: str = "",
        flow: str = "",
    ) -> None:
        self._messages = tuple(messages)
        self._ledger = ledger
        self._floor = floor
        self._gates = gates
        self._sent = sent
        self._shared = shared
        self._run_id = run_id
        self._path = path
        self._flow = flow
        self._said: list[_Said] = []
        self._selected: str | None = None
        self._streams = 0
        self._closed = False

    # what the client sent

    @property
    def messages(self) -> tuple[Message, ...]:
        """The chat as it was when the handler started."""
        return self._messages

    @property
    def last(self) -> Message:
        """The newest message, in a `Group` the newest of the shared chat; an empty one when there is none."""
        chat = self._live()
        return chat[-1] if chat else Message()

    @property
    def in_group(self) -> bool:
        """Whether this turn shares a live chat with the other members of a `Group`."""
        return self._shared is not None

    @property
    def tool_results(self) -> tuple[Linked, ...]:
        """The tool results in the chat with their calls, in a `Group` those of the shared chat."""
        return linked(self._live())

    @property
    def request(self) -> Request:
        """The parameters the client sent along."""
        return self._sent.request

    @property
    def params(self) -> Mapping[str, object]:
        """The parameters this flow was called with (read only)."""
        return MappingProxyType(self._sent.params)

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._run_id

    def payload(self, type_: type[T]) -> T | None:
        """What the trigger or caller handed over, as a `type_`; None when there is none or it does not fit.

        What a webhook was sent is bytes: `payload(bytes)` gives them as they are, any other type reads them as JSON.

        Raises:
            WiringError: `type_` has no schema.
        """
        return None if self._sent.payload is None else _decoded(self._sent.payload, type_)

    def metadata(self, type_: type[T]) -> T | None:
        """What came beside the payload (such as headers), as a `type_`; None when there is none or it does not fit.

        Raises:
            WiringError: `type_` has no schema.
        """
        return _decoded(dict(self._sent.metadata), type_) if self._sent.metadata else None

    @property
    def path(self) -> str:
        """Where in the flow this turn is, from the flow that was run."""
        return self._path

    @property
    def flow(self) -> str:
        """The id of the nearest named flow around it."""
        return self._flow

    # answering

    def reply(self, said: str | Message | ModelReply[Any], *, value: object = None) -> None:
        """Say something to the client; any number of times. In a `Group` the other members see it at once.

        A model's reply is said with its tool calls, and may still be arriving. `value` is what the reply means to the
        program (default: the model reply's value, else the text); that of the last reply is the value of the run.

        Raises:
            InvalidInput: it is none of these, such as a coroutine that was not awaited.
            Closed: the handler has returned.
        """
        self._check()
        if isinstance(said, str):
            entry = _Said(Message(said, "assistant"), None, value)
        elif isinstance(said, ModelReply):
            entry = _Said(said.message if said.ended else None, said, value)
        elif isinstance(said, Message):
            entry = _Said(said.as_("assistant"), None, value)
        else:
            raise self._no_reply(said)
        self._say(entry)

    def call(self, *calls: ToolCall) -> None:
        """Ask the client to run tools: added to the turn's last reply, or to an empty one. No calls, no effect.

        In a `Group` they are a message of their own. A call that the reply already holds is not added again.

        Raises:
            Closed: the handler has returned.
        """
        self._check()
        if not calls:
            return
        if self._shared is not None:
            self._say(_Said(Message(role="assistant", calls=calls), None, None))
            return
        if not self._said:
            self._said.append(_Said(Message(role="assistant"), None, None))
        self._said[-1].call(calls)

    def select(self, id: str) -> None:
        """Pick the member that a following `Select` enters; the last pick counts.

        Raises:
            InvalidId: not an id.
            Closed: the handler has returned.
        """
        self._check()
        self._selected = check_id(id, "selected id")

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[StreamOut]:
        """`async with turn.stream() as out: await out.write(...)`: speak to the client live, where that is possible.

        `out` is false when the text does not go out live (another agent speaks, nobody listens, or in a `Group`); it is
        kept all the same. However the block is left, what was written becomes one reply.

        Raises:
            Closed: the handler has returned.
        """
        self._check()
        sink: Sink | None = None
        if self._shared is None:
            await self.settle()
            sink = await self._floor.claim(tuple(self.replies))
        out = StreamOut(sink, self._check)
        self._streams += bool(out)
        try:
            yield out
        finally:
            out.end()
            self._streams -= bool(out)
            if (text := out.text) and not self._closed:
                self._say(_Said(Message(text, "assistant"), None, out.value))

    # working

    @overload
    async def step(self, name: str, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    async def step(self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    async def step(
        self, name: str, fn: Callable[..., object] | None = None, /, *args: object, **kwargs: object
    ) -> object:
        """The result of `fn(*args)`, remembered in a durable flow: a retry of the handler does not run it again.

        `fn` is async, or plain and then runs in a thread. The arguments tell one step from another, so they must be
        savable; so must the result.

        Raises:
            WiringError: the name or the function is missing.
            NotSavable: an argument or the result cannot be kept exactly.
            Closed: the handler has returned.
        """
        self._check()
        if fn is None or not isinstance(name, str) or not callable(fn):
            raise self._no_step(name, fn)
        request: object = {"args": args, "kwargs": kwargs} if kwargs else args
        return await self._ledger.entry("step", name, request, lambda: invoke(fn, *args, **kwargs))

    def gate(self, name: str) -> Gate:
        """The gate of that name in this run; `open()` it, or `await` its `wait()`.

        Raises:
            Closed: the handler has returned (also from the gate).
        """
        self._check()
        return Gate(name, self._gates, self._check)

    # for whoever runs the handler

    @property
    def streaming(self) -> bool:
        """Whether a stream that reaches the client live is open."""
        return self._streams > 0

    @property
    def replies(self) -> list[Message]:
        """What was said, in order; complete after `settle()`."""
        return [said.now() for said in self._said]

    @property
    def selected(self) -> str | None:
        """The id that was picked, or None."""
        return self._selected

    @property
    def value(self) -> object:
        """The value of the last reply; None without one."""
        return self._said[-1].value() if self._said else None

    async def settle(self) -> None:
        """Wait for the model replies that were said while they were still arriving.

        Raises:
            UpstreamError: one of them broke off.
        """
        for said in self._said:
            if said.message is None and said.reply is not None:
                said.message = (await said.reply.done()).message
                if self._shared is not None:
                    self._shared.append(said.now())

    def close(self) -> None:
        """The handler has returned: from now on every acting method raises `Closed`."""
        self._closed = True

    def _no_reply(self, said: object) -> InvalidInput:
        what, advice = told(said)
        return InvalidInput(
            f"reply takes text, a Message or a ModelReply, not {what}",
            path=self._path,
            remedy=advice or "turn.reply(text, value=...) says text and hands on any value",
        )

    def _no_step(self, name: object, fn: object) -> WiringError:
        (what, advice), wanted = (told(name), "a name") if not isinstance(name, str) else (told(fn), "a function")
        return WiringError(
            f"step was given {what} where {wanted} belongs",
            path=self._path,
            remedy="call it as turn.step(name, fn, *args)" + (", it calls and awaits fn" if advice else ""),
        )

    def _say(self, said: _Said) -> None:
        self._said.append(said)
        if self._shared is not None and said.message is not None:
            self._shared.append(said.now())

    def _live(self) -> Sequence[Message]:
        return self._messages if self._shared is None else self._shared.view()

    def _check(self) -> None:
        if self._closed:
            raise Closed(
                "the turn was used after its handler had returned",
                flow=self._flow,
                path=self._path,
                remedy="await everything the handler starts before it returns",
            )


def _decoded(value: object, type_: type[T]) -> T | None:
    if type(value) is type_:
        return value
    if type_ is bytes:  # only what came as bytes is bytes
        return None
    if type(value) is bytes:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    try:
        return Schema(type_).structure(value)
    except SchemaMismatch:
        return None
