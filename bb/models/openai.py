"""`OpenAIModel`: OpenAI's chat completions, and every server that speaks them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

from bb.errors import UpstreamError, WiringError
from bb.messages import Message, ToolCall, Usage
from bb.models.base import Chunk, ModelRequest
from bb.models.provider import PerLoop, as_object, from_network, keep_secret, own_names, unwrapped, upstream, wire_name
from bb.models.transcript import settled

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types import CompletionUsage
    from openai.types.chat import ChatCompletionChunk
    from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall

_Key: TypeAlias = tuple[int, int]
"""A tool call of an answer: the index its server gave it, and which of the calls of that index it is."""

_ROLES: Final = frozenset({"system", "developer", "user", "assistant"})
_STRICT: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "enum", "anyOf", "$ref", "$defs", "description"}
)


@final
class OpenAIModel:
    """A model by name at OpenAI, or at a compatible server given by `base_url`. Needs the extra `bb-flow[openai]`.

    Key and address default to `OPENAI_API_KEY` and `OPENAI_BASE_URL`. The SDK's own retries are off, as durable flows
    have theirs. `think` is ignored. `client` is used as it is, in every event loop, and never closed.
    `report_usage=False` is for servers that refuse to be asked for token counts while streaming.
    """

    provider: Final = "openai"
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
        client: AsyncOpenAI | None = None,
        report_usage: bool = True,
    ) -> None:
        self.name = name
        self.temperature = temperature
        self.max_tokens = max_tokens
        self.think = think
        self.report_usage = report_usage
        self._base_url = base_url
        self._key = api_key
        self._given = client
        self._clients: PerLoop[AsyncOpenAI] = PerLoop(self._make, _close)
        keep_secret(api_key)

    def __repr__(self) -> str:
        return f"OpenAIModel({self.name!r})"

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
            failure = upstream(error, self.name, client.api_key)
        else:
            return
        raise failure  # out here the SDK's error, which holds the request and its key, is not chained to it

    async def _stream(self, client: AsyncOpenAI, request: ModelRequest) -> AsyncIterator[Chunk]:
        from openai.types.chat.chat_completion_chunk import ChoiceDelta

        wrapped = request.schema is not None and as_object(request.schema)[1]
        held: list[str] = []
        calls: dict[_Key, _Call] = {}
        finished = False
        async with await client.chat.completions.create(**self._body(client, request)) as chunks:
            chunk: ChatCompletionChunk
            async for chunk in chunks:
                for choice in chunk.choices or ():  # some servers send none with the usage, or no delta at the end
                    delta = choice.delta or ChoiceDelta()
                    text = delta.content or delta.refusal
                    if text and wrapped:
                        held.append(text)
                    elif text:
                        yield text
                    for part in delta.tool_calls or ():
                        call = calls.setdefault(_key(part, calls), _Call())
                        call.id = call.id or part.id or ""
                        if part.function is not None:
                            call.name += part.function.name or ""
                            call.input += part.function.arguments or ""
                    finished = finished or choice.finish_reason is not None
                if chunk.usage is not None:
                    yield _usage(chunk.usage)
        if not finished:
            raise UpstreamError(f"{self.name}: the answer broke off", remedy="try again")
        if held:
            yield unwrapped("".join(held))
        names = own_names(request.tools)
        for _, call in sorted(calls.items()):
            name = names.get(call.name, call.name)
            yield ToolCall(call.id, name, call.input) if call.id else ToolCall.new(name, call.input)

    def _body(self, client: AsyncOpenAI, request: ModelRequest) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.name, "messages": _wire(request.messages), "stream": True}
        if self.report_usage:
            body["stream_options"] = {"include_usage": True}
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if self.max_tokens is not None:
            official = (client.base_url.host or "").endswith((".openai.com", ".azure.com"))
            body["max_completion_tokens" if official else "max_tokens"] = self.max_tokens
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": wire_name(tool.name),
                        "description": tool.description,
                        "parameters": dict(tool.schema),
                    },
                }
                for tool in request.tools
            ]
            if request.tool_choice:
                body["tool_choice"] = _choice(request.tool_choice)
        if request.schema is not None:
            schema, _ = as_object(request.schema)
            shape = {"name": request.schema_name or "answer", "schema": schema, "strict": is_strict(schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": shape}
        return body

    def _make(self) -> AsyncOpenAI:
        try:
            from openai import AsyncOpenAI, OpenAIError
        except ImportError as error:
            raise WiringError("OpenAIModel needs the openai package", remedy="install bb-flow[openai]") from error
        try:
            client = AsyncOpenAI(api_key=self._key, base_url=self._base_url, max_retries=0)
        except OpenAIError as error:
            raise WiringError(
                f"OpenAIModel {self.name!r}: {error}", remedy="set OPENAI_API_KEY or give api_key"
            ) from error
        keep_secret(client.api_key)
        return client


class _Call:
    """A tool call whose parts are still coming."""

    def __init__(self) -> None:
        self.id = self.name = self.input = ""


async def _close(client: AsyncOpenAI) -> None:
    await client.close()


def _is_theirs(error: Exception) -> bool:
    from openai import OpenAIError

    return isinstance(error, OpenAIError) or from_network(error)


def _key(part: ChoiceDeltaToolCall, calls: Mapping[_Key, _Call]) -> _Key:
    """Which call a part belongs to.

    A server that leaves the index out begins a call with a new id; one that gives every call the same index does so
    with a new id and a name.
    """
    index: int | None = part.index
    if index is None:
        known = [key for key, call in calls.items() if not part.id or call.id == part.id]
        return max(known) if known else (len(calls), 0)
    newest = max((key for key in calls if key[0] == index), default=(index, 0))
    named = part.function is not None and part.function.name
    other = newest in calls and part.id and named and calls[newest].id not in ("", part.id)
    return (index, newest[1] + 1) if other else newest


def _choice(choice: str) -> object:
    match choice:
        case "any":
            return "required"
        case "none":
            return "none"
        case name:
            return {"type": "function", "function": {"name": wire_name(name)}}


def _usage(usage: CompletionUsage) -> Usage:
    """The counts made disjoint: here what was cached is part of the prompt."""
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    read = (prompt.cached_tokens or 0) if prompt is not None else 0
    written = (getattr(prompt, "cache_write_tokens", None) or 0) if prompt is not None else 0
    reasoning = (completion.reasoning_tokens or 0) if completion is not None else 0
    fresh = max(0, (usage.prompt_tokens or 0) - read - written)
    return Usage(fresh, usage.completion_tokens or 0, read, written, reasoning)


def _wire(messages: Sequence[Message]) -> list[dict[str, object]]:
    out: list[dict[str, object]] = []
    for message in settled(messages):
        for result in message.results:
            content = result.content or ("error" if result.is_error else "")
            out.append({"role": "tool", "tool_call_id": result.call_id, "content": content})
        if message.results:
            continue
        wire: dict[str, object] = {
            "role": message.role if message.role in _ROLES else "user",
            "content": message.content,
        }
        if message.calls:
            wire["role"] = "assistant"
            wire["content"] = message.content or None
            wire["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": wire_name(call.name), "arguments": call.input or "{}"},
                }
                for call in message.calls
            ]
        out.append(wire)
    return out


def is_strict(schema: object) -> bool:
    """Whether OpenAI can hold a model to the schema exactly: every field required, none beside them, plain keywords."""
    if not isinstance(schema, Mapping) or not schema or not schema.keys() <= _STRICT:
        return False
    properties = schema.get("properties", {})
    if schema.get("type") == "object":
        required = schema.get("required", [])
        if schema.get("additionalProperties") is not False or set(properties) != set(required):
            return False
    named = [*properties.values(), *schema.get("$defs", {}).values()]
    return all(map(is_strict, [*named, *([schema["items"]] if "items" in schema else []), *schema.get("anyOf", [])]))
