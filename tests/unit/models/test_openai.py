"""The OpenAI adapter, through the real SDK and a real socket."""

from __future__ import annotations

import asyncio
import gc
import traceback
from typing import Any

import attrs
import pytest

from bb.errors import UpstreamError, UpstreamRejected, WiringError
from bb.messages import Message, Role, ToolCall, ToolResult, ToolSpec, Usage, assistant
from bb.models.base import Chunk, ModelRequest
from bb.models.openai import OpenAIModel, is_strict
from bb.schema import Schema
from tests.wires.server import Answer, Wire, error, openai, serving

KEY = "sk-test-0123456789-abcdefghij"
LOOKUP = ToolSpec("lookup", "Look a thing up", {"type": "object", "properties": {"q": {"type": "string"}}})


@attrs.frozen
class City:
    name: str
    size: int = 1


@attrs.frozen
class Exact:
    name: str


def model(wire: Wire, **options: Any) -> OpenAIModel:
    return OpenAIModel("gpt-test", base_url=f"{wire.url}/v1", api_key=KEY, **options)


async def ask(wire: Wire, request: ModelRequest | None = None, **options: Any) -> list[Chunk]:
    asked = model(wire, **options)
    try:
        return [chunk async for chunk in asked.stream(request or ModelRequest([Message("hi")]))]
    finally:
        await asked.aclose()


async def test_text_comes_chunk_by_chunk_while_the_answer_is_still_being_written() -> None:
    hold = asyncio.Event()
    async with serving(Answer(openai({"content": "a"}, {"content": "b"}), hold=hold)) as wire:
        asked = model(wire)
        chunks = aiter(asked.stream(ModelRequest([Message("hi")])))
        assert await anext(chunks) == "a"
        hold.set()
        assert [chunk async for chunk in chunks] == ["b"]
        await asked.aclose()
    assert wire.requests[0].path == "/v1/chat/completions"
    assert wire.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert wire.requests[0].body == {
        "model": "gpt-test",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_usage_is_made_disjoint() -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "total_tokens": 120,
        "prompt_tokens_details": {"cached_tokens": 60},
        "completion_tokens_details": {"reasoning_tokens": 8},
    }
    async with serving(Answer(openai({"content": "a"}, usage=usage))) as wire:
        assert await ask(wire) == ["a", Usage(40, 20, 60, 0, 8)]


async def test_usage_may_ride_on_a_chunk_with_choices_and_need_not_be_asked_for() -> None:
    pieces = openai({"content": "a"})
    pieces[1] = pieces[1].replace('"model": "m"', '"model": "m", "usage": {"prompt_tokens": 3, "completion_tokens": 4}')
    async with serving(Answer(pieces)) as wire:
        assert await ask(wire, report_usage=False) == ["a", Usage(3, 4)]
    assert "stream_options" not in wire.requests[0].body


async def test_calls_are_gathered_by_index_and_come_whole_after_the_text() -> None:
    deltas: list[dict[str, Any]] = [
        {"tool_calls": [{"index": 1, "id": "c2", "function": {"name": "lookup", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "lookup", "arguments": '{"q"'}}]},
        {"content": "one moment"},
        {"tool_calls": [{"index": 0, "function": {"arguments": ': "x"}'}}]},
        {"tool_calls": [{"index": 2, "function": {"name": "lookup", "arguments": "{}"}}]},
    ]
    async with serving(Answer(openai(*deltas, finish="tool_calls"))) as wire:
        text, first, second, third = await ask(wire, ModelRequest([Message("hi")], [LOOKUP], "any"))
    assert (text, first, second) == ("one moment", ToolCall("c1", "lookup", '{"q": "x"}'), ToolCall("c2", "lookup"))
    assert isinstance(third, ToolCall) and third.id.startswith("call_") and len(third.id) == 21
    assert wire.requests[0].body["tool_choice"] == "required"
    assert wire.requests[0].body["tools"] == [
        {
            "type": "function",
            "function": {"name": "lookup", "description": LOOKUP.description, "parameters": LOOKUP.schema},
        }
    ]


@pytest.mark.parametrize(
    ("choice", "wire_choice"),
    [("", None), ("none", "none"), ("lookup", {"type": "function", "function": {"name": "lookup"}})],
)
async def test_tool_choice(choice: str, wire_choice: object) -> None:
    async with serving(Answer(openai({"content": "a"}))) as wire:
        await ask(wire, ModelRequest([Message("hi")], [LOOKUP], choice))
    assert wire.requests[0].body.get("tool_choice") == wire_choice


async def test_a_choice_without_tools_is_not_sent() -> None:
    async with serving(Answer(openai({"content": "a"}))) as wire:
        await ask(wire, ModelRequest([Message("hi")], (), "any"))
    assert "tool_choice" not in wire.requests[0].body


async def test_messages_on_the_wire() -> None:
    chat = [
        Role("be kind"),
        Message("hi"),
        Message("", "assistant").with_calls(ToolCall("c1", "lookup"), ToolCall("c2", "lookup", '{"q": "x"}')),
        Message(role="tool").with_results(ToolResult("c1", "found"), ToolResult("c2", "", is_error=True)),
        Message("thanks", "client"),
    ]
    async with serving(Answer(openai({"content": "a"}))) as wire:
        await ask(wire, ModelRequest(chat), temperature=0.5, max_tokens=9, think=True)
    body = wire.requests[0].body
    assert (body["temperature"], body["max_tokens"]) == (0.5, 9)
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": "{}"}},
        {"id": "c2", "type": "function", "function": {"name": "lookup", "arguments": '{"q": "x"}'}},
    ]
    assert body["messages"] == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        {"role": "tool", "tool_call_id": "c2", "content": "error"},
        {"role": "user", "content": "thanks"},
    ]


async def test_a_chat_that_ends_in_a_call_is_sent_with_an_answer_to_it() -> None:
    async with serving(Answer(openai({"content": "a"}))) as wire:
        await ask(wire, ModelRequest([Message("hi"), assistant("").with_calls(ToolCall("c1", "lookup"))]))
    last = wire.requests[0].body["messages"][-1]
    assert (last["role"], last["tool_call_id"]) == ("tool", "c1")
    assert "interrupted" in last["content"]


async def test_the_schema_is_sent_and_strict_where_it_can_be() -> None:
    for type_, strict in ((City, False), (Exact, True)):
        schema = Schema(type_)
        async with serving(Answer(openai({"content": '{"name": '}, {"content": '"Rome"}'}))) as wire:
            request = ModelRequest([Message("hi")], schema=schema.json_schema, schema_name=schema.name)
            assert "".join(str(chunk) for chunk in await ask(wire, request)) == '{"name": "Rome"}'
        shape = {"name": type_.__name__, "schema": schema.json_schema, "strict": strict}
        assert wire.requests[0].body["response_format"] == {"type": "json_schema", "json_schema": shape}


async def test_a_schema_that_is_no_object_is_wrapped_and_its_answer_unwrapped() -> None:
    async with serving(Answer(openai({"content": '{"value"'}, {"content": ": [1, 2]}"}))) as wire:
        schema = Schema(list[int])
        assert await ask(wire, ModelRequest([Message("hi")], schema=schema.json_schema)) == ["[1, 2]"]
    sent = wire.requests[0].body["response_format"]["json_schema"]["schema"]
    assert sent["properties"] == {"value": schema.json_schema}


def test_strictness() -> None:
    assert is_strict(Schema(Exact).json_schema)
    assert not is_strict(Schema(City).json_schema)  # a field may be left out
    assert not is_strict(Schema(dict[str, int]).json_schema)  # any key
    assert not is_strict({})


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_refused_request_is_fatal_and_is_sent_once(status: int) -> None:
    async with serving(error(status, f"no: key {KEY}")) as wire:
        with pytest.raises(UpstreamRejected) as caught:
            await ask(wire)
    assert caught.value.status == status
    assert len(wire.requests) == 1


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 503])
async def test_a_passing_failure_is_sent_once_and_may_be_tried_again(status: int) -> None:
    async with serving(error(status, "later", retry_after="7")) as wire:
        with pytest.raises(UpstreamError) as caught:
            await ask(wire)
    assert (caught.value.status, caught.value.retry_after) == (status, 7.0)
    assert not isinstance(caught.value, UpstreamRejected)
    assert len(wire.requests) == 1


async def test_the_key_is_in_no_repr_and_no_error() -> None:
    async with serving(error(401, f"Incorrect API key provided: {KEY}")) as wire:
        with pytest.raises(UpstreamRejected) as caught:
            await ask(wire)
        assert KEY not in repr(model(wire))
    shown = "".join(traceback.format_exception(caught.value))
    assert KEY not in shown and "Incorrect API key" in shown
    assert caught.value.__cause__ is None and caught.value.__context__ is None


@pytest.mark.parametrize(
    "answer",
    [
        Answer(openai({"content": "half"}, finish=None), cut=True),
        Answer(openai({"content": "half"}, finish=None)),
        Answer([*openai({"content": "half"}, finish=None), 'data: {"error": {"message": "overloaded"}}\n\n']),
        Answer([*openai({"content": "half"}, finish=None), "data: {no json\n\n"]),
    ],
    ids=["cut", "ended early", "error frame", "garbage"],
)
async def test_an_answer_that_breaks_off_is_an_error(answer: Answer) -> None:
    async with serving(answer) as wire:
        asked = model(wire)
        chunks = aiter(asked.stream(ModelRequest([Message("hi")])))
        assert await anext(chunks) == "half"
        with pytest.raises(UpstreamError):
            await anext(chunks)
        await asked.aclose()


async def test_no_server_is_an_upstream_error() -> None:
    async with serving() as wire:
        pass
    with pytest.raises(UpstreamError) as caught:
        await ask(wire)
    assert caught.value.status == 0


async def test_leaving_early_lets_the_connection_go() -> None:
    async with serving(Answer(openai({"content": "a"}, {"content": "b"}), hold=asyncio.Event())) as wire:
        asked = model(wire)
        chunks: Any = asked.stream(ModelRequest([Message("hi")]))
        assert await anext(chunks) == "a"
        await chunks.aclose()
        await asked.aclose()
        assert wire.requests


def test_each_event_loop_has_its_own_client_and_none_is_left() -> None:
    asked = OpenAIModel("gpt-test", base_url="http://127.0.0.1:9/v1", api_key=KEY)
    seen = []

    async def run() -> None:
        async with serving(*[Answer(openai({"content": "a"}))] * 2) as wire:
            asked._base_url = f"{wire.url}/v1"
            for _ in range(2):
                assert [chunk async for chunk in asked.stream(ModelRequest([Message("hi")]))] == ["a"]
            seen.append(await asked._clients.get())

    asyncio.run(run())
    asyncio.run(run())
    gc.collect()
    assert len({id(client) for client in seen}) == 2
    assert all(client.is_closed() for client in seen)
    assert not asked._clients._held


async def test_a_given_client_is_used_without_its_retries_and_left_open() -> None:
    from openai import AsyncOpenAI

    async with serving(error(500, "no")) as wire:
        client = AsyncOpenAI(api_key=KEY, base_url=f"{wire.url}/v1", max_retries=5)
        with pytest.raises(UpstreamError):
            await ask(wire, client=client)
        assert len(wire.requests) == 1
        assert not client.is_closed()
        await client.close()


async def test_no_key_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_ADMIN_KEY", raising=False)
    with pytest.raises(WiringError, match="OPENAI_API_KEY"):
        await anext(aiter(OpenAIModel("gpt-test").stream(ModelRequest([Message("hi")]))))


async def test_no_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "openai", None)
    with pytest.raises(WiringError, match=r"bb-flow\[openai\]"):
        await anext(aiter(OpenAIModel("gpt-test", api_key=KEY).stream(ModelRequest([Message("hi")]))))


async def test_calls_without_an_index_begin_with_their_id() -> None:
    deltas: list[dict[str, Any]] = [
        {"tool_calls": [{"index": None, "id": "c1", "function": {"name": "lookup", "arguments": '{"q"'}}]},
        {"tool_calls": [{"index": None, "function": {"arguments": ": 1}"}}]},
        {"tool_calls": [{"index": None, "id": "c2", "function": {"name": "lookup", "arguments": "{}"}}]},
    ]
    async with serving(Answer(openai(*deltas, finish="tool_calls"))) as wire:
        assert await ask(wire) == [ToolCall("c1", "lookup", '{"q": 1}'), ToolCall("c2", "lookup", "{}")]


def part(index: int | None, id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}


@pytest.mark.parametrize(
    "parts",
    [
        [part(0, "a", "f", "{"), part(1, "b", "g", "["), part(0, None, None, "}"), part(1, None, None, "]")],
        [part(0, "a", "f", "{"), part(0, None, None, "}"), part(0, "b", "g", "["), part(0, None, None, "]")],
        [part(0, "a", "f", "{"), part(0, "a2", None, "}"), part(1, "b", "g", "["), part(1, "b2", None, "]")],
        [part(None, "a", "f", "{"), part(None, None, None, "}"), part(None, "b", "g", "["), part(None, "b", None, "]")],
    ],
    ids=["interleaved", "one index for all", "an id for each part", "no index"],
)
async def test_the_parts_of_calls_find_together(parts: list[dict[str, Any]]) -> None:
    async with serving(Answer(openai(*parts))) as wire:
        assert await ask(wire) == [ToolCall("a", "f", "{}"), ToolCall("b", "g", "[]")]


async def test_chunks_that_leave_out_what_they_must_have() -> None:
    events = openai({"content": "a"}, {}, usage={"prompt_tokens": 3, "completion_tokens": 4})
    events.insert(1, 'data: {"id": "c1", "choices": [{"index": 0, "finish_reason": null}]}\n\n')
    events = [event.replace('"choices": []', '"choices": null') for event in events]
    async with serving(Answer(events)) as wire:
        assert await ask(wire) == ["a", Usage(3, 4)]


async def test_the_dots_in_names_of_tools_are_dashes_at_the_provider() -> None:
    dotted = attrs.evolve(LOOKUP, name="calendar.read")
    call = ToolCall("c1", "calendar.read", "{}")
    delta = {"tool_calls": [{"index": 0, "id": "c2", "function": {"name": "calendar-read", "arguments": "{}"}}]}
    chat = [Message("hi"), Message(role="assistant", calls=[call]), Message(role="tool", results=[call.result("free")])]
    async with serving(Answer(openai(delta, finish="tool_calls"))) as wire:
        assert await ask(wire, ModelRequest(chat, [dotted], "calendar.read")) == [ToolCall("c2", "calendar.read", "{}")]
    body = wire.requests[0].body
    assert body["tools"][0]["function"]["name"] == body["tool_choice"]["function"]["name"] == "calendar-read"
    assert body["messages"][1]["tool_calls"][0]["function"]["name"] == "calendar-read"
