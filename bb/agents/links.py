"""Which result answers which call."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from bb.messages import Message, ToolCall, ToolResult, answered
from bb.record import Record


@frozen(eq=False, repr=False)
class Linked(Record):
    """A tool result beside the call it answers; a call that the chat does not hold is a stub with only its id."""

    result: ToolResult
    call: ToolCall

    @property
    def content(self) -> str:
        """What the tool answered."""
        return self.result.content

    @property
    def is_error(self) -> bool:
        """Whether the tool failed."""
        return self.result.is_error


def call_of(result: ToolResult, messages: Sequence[Message]) -> ToolCall:
    """The call that a result answers, or a stub with its id and no name when the messages do not hold it."""
    calls = {call.id: call for message in messages for call in message.calls}
    return calls.get(result.call_id) or ToolCall(result.call_id, "")


def result_of(call: ToolCall, messages: Sequence[Message]) -> ToolResult:
    """The result that answers a call, or an empty stub with its id when the messages do not hold it."""
    return answered(messages).get(call.id) or ToolResult(call.id)


def linked(messages: Sequence[Message]) -> tuple[Linked, ...]:
    """Every tool result of the messages with its call, in order."""
    calls = {call.id: call for message in messages for call in message.calls}
    return tuple(
        Linked(result, calls.get(result.call_id) or ToolCall(result.call_id, ""))
        for message in messages
        for result in message.results
    )
