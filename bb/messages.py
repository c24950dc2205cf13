"""What travels in a chat: messages, tool calls and results, usage, and the request of a client."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from attrs import evolve, field, frozen

from bb.errors import InvalidInput
from bb.schema import structure

T = TypeVar("T")

SEPARATOR: Final = "\n\n"


@frozen
class Usage:
    """Tokens a provider billed, never estimated; zero means not reported.

    The counts are disjoint: `input` excludes what was read from or written to a cache. `reasoning` is part of `output`.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0

    @property
    def total(self) -> int:
        """All billed tokens."""
        return self.input + self.cache_read + self.cache_write + self.output

    def __add__(self, other: Usage) -> Usage:
        if other is NO_USAGE:  # most steps bill nothing
            return self
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.reasoning + other.reasoning,
        )


NO_USAGE: Final = Usage()


@frozen
class ToolCall:
    """A model's wish to run a tool; `input` is the raw JSON text of its arguments ("" when there are none).

    Raises:
        InvalidInput: the input is no text.
    """

    id: str
    name: str
    input: str = ""

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.input, str):
            raise InvalidInput(
                f"the input of tool call {self.name!r} is of type {type(self.input).__name__}",
                remedy="arguments are JSON text: ToolCall.new(name, {...}) or json.dumps({...})",
            )

    @classmethod
    def new(cls, name: str, input: object = None) -> ToolCall:
        """A call with a fresh id (`call_` and 16 hex digits). Text passes as raw JSON, anything else is encoded.

        Raises:
            TypeError: the input has no JSON form.
        """
        raw = input if isinstance(input, str) else "" if input is None else json.dumps(input)
        return cls(f"call_{secrets.token_hex(8)}", name, raw)

    def extract(self, type_: type[T]) -> T:
        """The arguments as a `type_`, strictly.

        Raises:
            SchemaMismatch: the arguments are not JSON or do not fit.
        """
        return structure(self.input or "{}", type_)

    def result(self, content: str, *, is_error: bool = False) -> ToolResult:
        """The result that answers this call."""
        return ToolResult(self.id, content, is_error)


@frozen
class ToolResult:
    """What a tool answered, tied to its call by `call_id`."""

    call_id: str
    content: str = ""
    is_error: bool = False

    def as_error(self) -> ToolResult:
        """The same result, marked as an error."""
        return evolve(self, is_error=True)


def _calls(calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:  # type checkers cannot follow converter=tuple
    return tuple(calls)


def _results(results: Iterable[ToolResult]) -> tuple[ToolResult, ...]:
    return tuple(results)


@frozen
class Message:
    """One entry of a chat: a role ("user", "assistant", "system", …), text, and tool calls or results beside it."""

    content: str = ""
    role: str = "user"
    calls: tuple[ToolCall, ...] = field(default=(), converter=_calls)
    results: tuple[ToolResult, ...] = field(default=(), converter=_results)

    def as_(self, role: str) -> Message:
        """The same message in another role."""
        return evolve(self, role=role)

    def with_calls(self, *calls: ToolCall) -> Message:
        """The message with these calls added."""
        return evolve(self, calls=self.calls + calls)

    def with_results(self, *results: ToolResult) -> Message:
        """The message with these results added."""
        return evolve(self, results=self.results + results)

    @property
    def is_tool_result(self) -> bool:
        """Whether the message carries results."""
        return bool(self.results)


def Role(text: str) -> Message:  # noqa: N802 - reads as the noun it makes, beside Message
    """A system message: the persona of an agent."""
    return Message(text, "system")


def assistant(text: str) -> Message:
    """An assistant message."""
    return Message(text, "assistant")


@frozen
class ToolSpec:
    """What a model or client is told of a tool: name, description and the JSON schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, object]


@frozen
class Request:
    """The parameters a client sent along; agents may read them, nothing applies them by itself."""

    model: str = ""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    think: bool | None = None
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str = ""
    """"" (the model decides), "any", "none" or the name of a tool."""


def _messages(messages: Iterable[Message]) -> tuple[Message, ...]:
    return tuple(messages)


@frozen
class Input:
    """Everything a run starts with: the chat so far, and what a client or a trigger sent beside it."""

    messages: tuple[Message, ...] = field(default=(), converter=_messages)
    request: Request = Request()
    payload: object = None
    metadata: Mapping[str, object] = field(factory=dict)


InputLike: TypeAlias = str | Message | Sequence[Message] | Input
"""Text and a message start a chat of one user message; a sequence is the chat so far."""


def to_input(value: object) -> Input:
    """The input that a program means.

    Raises:
        InvalidInput: it is none.
    """
    match value:
        case Input():
            return value
        case str():
            return Input((Message(value),))
        case Message():
            return Input((value,))
        case list() | tuple() if all(isinstance(message, Message) for message in value):
            return Input(tuple(value))
        case _:
            raise InvalidInput(
                f"{type(value).__name__} is no input",
                remedy="give text, a Message, a list of Messages or an Input; leave it out to go on with the run",
            )


def answered(messages: Iterable[Message]) -> Mapping[str, ToolResult]:
    """Every tool result of a chat by the id of its call."""
    return {result.call_id: result for message in messages for result in message.results}


def unresolved(messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """The calls of a chat that no result anywhere in it answers, in order."""
    done = answered(messages)
    return tuple(call for message in messages for call in message.calls if call.id not in done)


def spoken(messages: Iterable[Message]) -> str:
    """The assistant text of a chat: non-empty contents joined by a blank line."""
    return SEPARATOR.join(m.content for m in messages if m.role == "assistant" and m.content)
