"""`AnthropicModel`: Anthropic's messages."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from bb.errors import UpstreamError, WiringError
from bb.messages import Message, ToolCall, Usage
from bb.models.base import Chunk, ModelRequest
from bb.models.provider import PerLoop, as_object, from_network, keep_secret, own_names, unwrapped, upstream, wire_name
from bb.models.transcript import settled
from bb.schema import finite, no_constant

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from anthropic.types import RawMessageStreamEvent

MAX_TOKENS: Final = 4096
THINKING: Final = 1024
"""How many tokens a thinking model may think."""


@final
class AnthropicModel:
    """A model by name at Anthropic. Needs the extra `bb-flow[anthropic]`.

    Key and address default to `ANTHROPIC_API_KEY` and `ANTHROPIC_BASE_URL`. The SDK's own retries are off, as durable
    flows have theirs. `max_tokens` (default 4096) limits the answer; `think=True` allows 1024 more for thinking.
    `client` is used as it is, in every event loop, and never closed.
    """

    provider: Final = "anthropic"
    """What traces call the provider, whichever server it is."""

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        think: bool | None = None,
        client: AsyncAnthropic | None = None,
    ) -> None:
        self.name = name
        self.temperature = temperature
        self.max_tokens = max_tokens
        self.think = think
        self._base_url = base_url
        self._key = api_key
        self._given = client
        self._clients: PerLoop[AsyncAnthropic] = PerLoop(self._make, _close)
        keep_secret(api_key)

    def __repr__(self) -> str:
        return f"AnthropicModel({self.name!r})"

    async def aclose(self) -> None:
        """Close the connections of the running event loop now rather than with the loop."""
        await self._clients.aclose()

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[Chunk]:
        """The answer; with a schema it comes whole, and calls come whole after the text.

        Raises (while iterating):
            UpstreamError: the provider failed or the answer broke off.
            UpstreamRejected: the provider refuses this request.
            WiringError: the SDK or the key is missing.
        """
        client = self._given.with_options(max_retries=0) if self._given is not None else await self._clients.get()
        failure: UpstreamError
        try:
            async for chunk in self._stream(client, request):
                yield chunk
        except Exception as error:
            if not _is_theirs(error):
                raise
            failure = upstream(error, self.name, client.api_key or client.auth_token)
        else:
            return
        raise failure  # out here the SDK's error, which holds the request and its key, is not chained to it

    async def _stream(self, client: AsyncAnthropic, request: ModelRequest) -> AsyncIterator[Chunk]:
        schema = request.schema
        held: list[str] = []
        calls: dict[int, _Call] = {}
        answer = _answer(request)
        usage = Usage()
        finished = False
        async with await client.messages.create(**self._body(request)) as events:
            event: RawMessageStreamEvent
            async for event in events:
                match event.type:
                    case "message_start":
                        yield (usage := _usage(usage, event.message.usage))
                    case "content_block_start" if event.content_block.type == "tool_use":
                        block = event.content_block
                        calls[event.index] = _Call(block.id, block.name, json.dumps(block.input) if block.input else "")
                    case "content_block_delta" if event.delta.type == "text_delta":
                        if schema is not None:
                            held.append(event.delta.text)
                        elif event.delta.text:
                            yield event.delta.text
                    case "content_block_delta" if event.delta.type == "input_json_delta" and event.index in calls:
                        calls[event.index].input += event.delta.partial_json
                    case "message_delta":
                        yield (usage := _usage(usage, event.usage))
                    case "message_stop":
                        finished = True
                    case _:
                        pass  # thinking, citations, tools of the server and what is yet to be invented
        if not finished:
            raise UpstreamError(f"{self.name}: the answer broke off", remedy="try again")
        if schema is not None:
            answers = [call.input or "{}" for call in calls.values() if call.name == answer]
            text = answers[0] if answers else "".join(held)
            if text:
                yield unwrapped(text) if as_object(schema)[1] else text
        names = own_names(request.tools)
        for _, call in sorted(calls.items()):
            if schema is None or call.name != answer:
                name = names.get(call.name, call.name)
                yield ToolCall(call.id, name, call.input) if call.id else ToolCall.new(name, call.input)

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        system, messages = _wire(request.messages)
        limit = self.max_tokens or MAX_TOKENS
        body: dict[str, Any] = {"model": self.name, "messages": messages, "max_tokens": limit, "stream": True}
        if system:
            body["system"] = system
        if self.temperature is not None:
            body["extra_body"] = {"temperature": self.temperature}  # newer SDKs have no argument for it
        if self.think:
            body["thinking"] = {"type": "enabled", "budget_tokens": THINKING}
            body["max_tokens"] = limit + THINKING if self.max_tokens else limit
        elif self.think is not None:
            body["thinking"] = {"type": "disabled"}
        tools = [
            {"name": wire_name(tool.name), "description": tool.description, "input_schema": dict(tool.schema)}
            for tool in request.tools
        ]
        choice = _choice(request.tool_choice)
        if request.schema is not None:
            schema, _ = as_object(request.schema)
            name, said = _answer(request), "Give the answer by calling this."
            tools = [] if request.tool_choice == "none" else tools
            if request.tool_choice in ("", "none"):
                choice = {"type": "any"} if tools else {"type": "tool", "name": name}
                choice = {"type": "auto"} if self.think else choice  # a thinking model cannot be forced
                tools.append({"name": name, "description": said, "input_schema": schema})
        if tools:
            body["tools"] = tools
            if choice is not None:
                body["tool_choice"] = choice
        return body

    def _make(self) -> AsyncAnthropic:
        try:
            from anthropic import AnthropicError, AsyncAnthropic
        except ImportError as error:
            raise WiringError(
                "AnthropicModel needs the anthropic package", remedy="install bb-flow[anthropic]"
            ) from error
        try:
            client = AsyncAnthropic(api_key=self._key, base_url=self._base_url, max_retries=0)
        except AnthropicError as error:
            raise WiringError(
                f"AnthropicModel {self.name!r}: {error}", remedy="set ANTHROPIC_API_KEY or give api_key"
            ) from error
        if not (client.api_key or client.auth_token or getattr(client, "credentials", None)):
            raise WiringError(
                f"AnthropicModel {self.name!r} has no key", remedy="set ANTHROPIC_API_KEY or give api_key"
            )
        keep_secret(client.api_key)
        keep_secret(client.auth_token)
        return client


class _Call:
    """A tool call whose input is still coming."""

    def __init__(self, id: str, name: str, input: str) -> None:
        self.id, self.name, self.input = id, name, input


async def _close(client: AsyncAnthropic) -> None:
    await client.close()


def _is_theirs(error: Exception) -> bool:
    from anthropic import AnthropicError

    return isinstance(error, AnthropicError) or from_network(error)


def _answer(request: ModelRequest) -> str:
    """The name of the tool whose input is the answer, which a model with a schema must call."""
    name = "answer"
    while any(tool.name == name for tool in request.tools):
        name += "_"
    return name


def _choice(choice: str) -> dict[str, object] | None:
    match choice:
        case "":
            return None
        case "any" | "none":
            return {"type": choice}
        case name:
            return {"type": "tool", "name": wire_name(name)}


def _usage(so_far: Usage, usage: Any) -> Usage:
    """The running counts, which are cumulative; a field that is left out keeps its count."""

    def count(field: str, known: int) -> int:
        given = getattr(usage, field, None)
        return known if given is None else int(given)

    details = getattr(usage, "output_tokens_details", None)
    thought = getattr(details, "thinking_tokens", None)
    return Usage(
        count("input_tokens", so_far.input),
        count("output_tokens", so_far.output),
        count("cache_read_input_tokens", so_far.cache_read),
        count("cache_creation_input_tokens", so_far.cache_write),
        so_far.reasoning if thought is None else int(thought),
    )


def _wire(messages: Sequence[Message]) -> tuple[str, list[dict[str, object]]]:
    """The system text, and the turns with neighbours of one role made one."""
    system: list[str] = []
    turns: list[dict[str, Any]] = []
    for message in settled(messages):
        if message.role in ("system", "developer") and not message.calls:
            system += [message.content] if message.content else []
            continue
        blocks: list[dict[str, object]] = [
            {
                "type": "tool_result",
                "tool_use_id": result.call_id,
                "content": result.content or ("error" if result.is_error else ""),
                "is_error": result.is_error,
            }
            for result in message.results
        ]
        if message.content:
            blocks.append({"type": "text", "text": message.content})
        blocks += [
            {"type": "tool_use", "id": call.id, "name": wire_name(call.name), "input": _object(call.input)}
            for call in message.calls
        ]
        role = "assistant" if message.calls or message.role == "assistant" else "user"
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return "\n\n".join(system), turns


def _object(raw: str) -> dict[str, object]:
    """A call's input as the object that Anthropic wants; what is none is handed over as text."""
    try:
        data = json.loads(raw or "{}", parse_constant=no_constant, parse_float=finite)
    except (ValueError, RecursionError):
        data = None
    return data if isinstance(data, dict) else {"input": raw}
