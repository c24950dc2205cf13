"""`Answer`: what a model said in full, and how it is collected."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

from attrs import field, frozen

from bb.errors import WiringError
from bb.messages import Message, ToolCall, Usage
from bb.models.base import Chunk, Model, ModelRequest


@frozen
class Answer:
    """One whole answer of a model: the assistant message (text and calls) and what was billed for it."""

    message: Message
    usage: Usage = field(default=Usage())


async def collect(
    model: Model, request: ModelRequest, say: Callable[[str], None], bill: Callable[[Usage], None]
) -> Answer:
    """The whole answer; `say` hears each piece of text as it comes.

    `bill` is told once what the provider reported, also when the answer breaks off.

    Raises:
        UpstreamError: the provider failed; what had come by then is no answer.
    """
    pieces: list[str] = []
    calls: list[ToolCall] = []
    usage = Usage()

    def take(chunk: Chunk) -> None:
        nonlocal usage
        match chunk:
            case str():
                if chunk:
                    pieces.append(chunk)
                    say(chunk)
            case ToolCall():
                calls.append(chunk)
            case Usage():
                usage = chunk
            case _:
                raise WiringError(
                    f"{type(model).__name__}.stream yielded something of type {type(chunk).__name__}",
                    remedy="yield text, ToolCalls and Usages",
                )

    chunks = model.stream(request)
    try:
        async for chunk in chunks:
            take(chunk)
    finally:
        if isinstance(chunks, AsyncGenerator):  # an abandoned one would keep its connection until it is collected
            await chunks.aclose()
        if usage != Usage():
            bill(usage)
    return Answer(Message("".join(pieces), "assistant", tuple(calls)), usage)
