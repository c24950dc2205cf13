"""The `Model` protocol: one method that streams an answer in chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Protocol, TypeAlias

from attrs import field, frozen

from bb.messages import Message, ToolCall, ToolSpec, Usage
from bb.ports import check_port

Chunk: TypeAlias = str | ToolCall | Usage
"""A piece of an answer: text, a whole tool call, or what was billed (the last one counts)."""


def _messages(messages: Iterable[Message]) -> tuple[Message, ...]:  # type checkers cannot follow converter=tuple
    return tuple(messages)


def _tools(tools: Iterable[ToolSpec]) -> tuple[ToolSpec, ...]:
    return tuple(tools)


@frozen
class ModelRequest:
    """What a model is asked: the messages, the tools it may call, and the JSON schema its answer must fit (or None)."""

    messages: tuple[Message, ...] = field(converter=_messages)
    tools: tuple[ToolSpec, ...] = field(default=(), converter=_tools)
    tool_choice: str = ""
    schema: Mapping[str, object] | None = None
    schema_name: str = ""


class Model(Protocol):
    """Anything that answers a chat. Compare models by identity: they do not count in the identity of a flow.

    Traces call a model by its `name` and its `provider`, if it has such attributes, else by its class.
    """

    def stream(self, request: ModelRequest, /) -> AsyncIterator[Chunk]:
        """The answer, chunk by chunk; tool calls come whole.

        Raises (while iterating):
            UpstreamError: the provider failed.
        """
        ...


def named(model: Model) -> tuple[str, str]:
    """What a trace calls a model, and who provides it ("" when it does not say)."""
    name, provider = getattr(model, "name", None), getattr(model, "provider", None)
    return (
        name if isinstance(name, str) and name else type(model).__name__,
        provider if isinstance(provider, str) else "",
    )


def check_model(model: object) -> None:
    """Raises:
    WiringError: it is neither a model nor None; a provider's name for one is text.
    """
    shown = repr(model) if isinstance(model, str) else "..."
    adapter = "AnthropicModel" if shown[1:].startswith("claude") else "OpenAIModel"
    check_port(model, "model", ("stream",), f"pass a model: bb.{adapter}({shown})")
