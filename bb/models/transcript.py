"""A chat as providers accept it: every tool call followed at once by its result."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Final

from attrs import evolve

from bb.messages import Message, ToolResult

INTERRUPTED: Final = "interrupted: no result of this call was recorded"


def settled(messages: Sequence[Message]) -> Iterator[Message]:
    """The chat with each call's result moved right behind it.

    A call that was never answered gets an error result that says so, and a result without its call becomes the user's
    text: providers refuse a chat with either, and would go on to refuse it for ever.
    """
    waiting: dict[str, deque[ToolResult]] = defaultdict(deque)
    for message in messages:
        for result in message.results:
            waiting[result.call_id].append(result)
    claimed: dict[str, int] = defaultdict(int)  # by id, as some providers use one id again in each round
    for message in messages:
        orphans = [result for result in message.results if not _claim(claimed, result)]
        said = evolve(message, results=())
        if orphans:
            texts = [
                message.content,
                *(f"Result of tool call {result.call_id}: {result.content}" for result in orphans),
            ]
            said = Message("\n\n".join(text for text in texts if text))
        if said.content or said.calls or not message.results:
            yield evolve(said, role="user") if message.results and said.role == "tool" else said
        if message.calls:
            results = []
            for call in message.calls:
                queue = waiting[call.id]
                claimed[call.id] += bool(queue)
                results.append(queue.popleft() if queue else call.result(INTERRUPTED, is_error=True))
            yield Message(role="tool", results=tuple(results))


def _claim(claimed: dict[str, int], result: ToolResult) -> bool:
    """Whether an earlier call took this result."""
    if not claimed[result.call_id]:
        return False
    claimed[result.call_id] -= 1
    return True
