"""The Anthropic adapter, through the real SDK and a real socket."""

from __future__ import annotations

import asyncio
import json
import traceback
from typing import Any

import attrs
import pytest

from bb.errors import UpstreamError, UpstreamRejected, WiringError
from bb.messages import Message, Role, ToolCall, ToolResult, ToolSpec, Usage, assistant
from bb.models.anthropic import AnthropicModel
from bb.models.base import Chunk, ModelRequest
from bb.schema import Schema
from tests.wires.server import Answer, Wire, anthropic, error, serving

KEY = "sk-ant-0123456789-abcdefghij"
LOOKUP = ToolSpec("lookup", "Look a thing up", {"type": "object", "properties": {"q": {"type": "string"}}})
TOOL = {"name": "lookup", "description": LOOKUP.description, "input_schema": LOOKUP.schema}


@attrs.frozen
class City:
    name: str


SHAPED = ModelRequest([Message("hi")], schema=Schema(City).json_schema, schema_name="City")


def model(wire: Wire, **options: Any) -> AnthropicModel:
    return AnthropicModel("claude-test", base_url=wire.url, api_key=KEY, **options)


async def ask(wire: Wire, request: ModelRequest | None = None, **options: Any) -> list[Chunk]:
    asked = model(wire, **options)
    try:
        return [chunk async for chunk in asked.stream(request or ModelRequest([Message("hi")]))]
    finally:
        await asked.aclose()


def said(chunks: list[Chunk]) -> list[Chunk]:
    return [chunk for chunk in chunks if not isinstance(chunk, Usage)]


async def test_text_comes_chunk_by_chunk_and_the_last_usage_counts() -> None:
    hold = asyncio.Event()
    events = anthropic({"text": ["a", "b"]}, cache_read_input_tokens=3, cache_creation_input_tokens=2)
    async with serving(Answer(events, hold=hold)) as wire:
        asked = model(wire)
        chunks = aiter(asked.stream(ModelRequest([Message("hi")])))
        assert [await anext(chunks) for _ in range(3)] == [Usage(7, 1, 3, 2), "a", "b"]
        hold.set()
        assert [chunk async for chunk in chunks] == [Usage(7, 5, 3, 2)]
        await asked.aclose()
    assert wire.requests[0].path == "/v1/messages"
    headers = wire.requests[0].headers
    assert KEY in headers.get("x-api-key", headers.get("authorization", ""))
    assert wire.requests[0].body == {
        "model": "claude-test",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "max_tokens": 4096,
        "stream": True,
    }


async def test_calls_come_whole_after_the_text() -> None:
    events = anthropic(
        {"tool": "lookup", "id": "c1", "json": ['{"q"', ': "x"}']},
        {"text": ["one moment"]},
        {"tool": "lookup", "id": "", "json": []},
    )
    async with serving(Answer(events)) as wire:
        text, first, second = said(await ask(wire, ModelRequest([Message("hi")], [LOOKUP], "any")))
    assert (text, first) == ("one moment", ToolCall("c1", "lookup", '{"q": "x"}'))
    assert isinstance(second, ToolCall) and second.id.startswith("call_") and second.input == ""
    assert wire.requests[0].body["tools"] == [TOOL]


@pytest.mark.parametrize(
    ("choice", "wire_choice"),
    [("", None), ("any", {"type": "any"}), ("none", {"type": "none"}), ("lookup", {"type": "tool", "name": "lookup"})],
)
async def test_tool_choice(choice: str, wire_choice: object) -> None:
    async with serving(Answer(anthropic({"text": ["a"]}))) as wire:
        await ask(wire, ModelRequest([Message("hi")], [LOOKUP], choice))
    assert wire.requests[0].body.get("tool_choice") == wire_choice


async def test_messages_on_the_wire() -> None:
    chat = [
        Role("be kind"),
        Message("hi"),
        Message("there"),
        assistant("looking").with_calls(ToolCall("c1", "lookup"), ToolCall("c2", "lookup", "[1]")),
        Message(role="tool").with_results(ToolResult("c1", "found"), ToolResult("c2", "", is_error=True)),
        Message("thanks"),
        Role("be brief"),
    ]
    async with serving(Answer(anthropic({"text": ["a"]}))) as wire:
        await ask(wire, ModelRequest(chat), temperature=0.5, max_tokens=9)
    body = wire.requests[0].body
    assert (body["temperature"], body["max_tokens"], body["system"]) == (0.5, 9, "be kind\n\nbe brief")
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "looking"},
                {"type": "tool_use", "id": "c1", "name": "lookup", "input": {}},
                {"type": "tool_use", "id": "c2", "name": "lookup", "input": {"input": "[1]"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "found", "is_error": False},
                {"type": "tool_result", "tool_use_id": "c2", "content": "error", "is_error": True},
                {"type": "text", "text": "thanks"},
            ],
        },
    ]


@pytest.mark.parametrize(
    ("options", "thinking", "limit"),
    [
        ({"think": True}, {"type": "enabled", "budget_tokens": 1024}, 4096),
        ({"think": True, "max_tokens": 100}, {"type": "enabled", "budget_tokens": 1024}, 1124),
        ({"think": False}, {"type": "disabled"}, 4096),
        ({}, None, 4096),
    ],
)
async def test_thinking(options: dict[str, Any], thinking: object, limit: int) -> None:
    async with serving(Answer(anthropic({"text": ["a"]}))) as wire:
        await ask(wire, **options)
    assert wire.requests[0].body.get("thinking") == thinking
    assert wire.requests[0].body["max_tokens"] == limit


async def test_the_schema_is_a_tool_the_model_must_call_and_its_input_is_the_answer() -> None:
    events = anthropic({"text": ["Here you are."]}, {"tool": "answer", "id": "a1", "json": ['{"name"', ': "Rome"}']})
    async with serving(Answer(events)) as wire:
        assert said(await ask(wire, SHAPED)) == ['{"name": "Rome"}']
    body = wire.requests[0].body
    assert body["tool_choice"] == {"type": "tool", "name": "answer"}
    assert [(tool["name"], tool["input_schema"]) for tool in body["tools"]] == [("answer", Schema(City).json_schema)]


@pytest.mark.parametrize(
    ("choice", "think", "names", "wire_choice"),
    [
        ("", None, ["lookup", "answer"], {"type": "any"}),
        ("", True, ["lookup", "answer"], {"type": "auto"}),
        ("any", None, ["lookup"], {"type": "any"}),
        ("lookup", None, ["lookup"], {"type": "tool", "name": "lookup"}),
        ("none", None, ["answer"], {"type": "tool", "name": "answer"}),
    ],
)
async def test_a_schema_beside_tools(choice: str, think: bool | None, names: list[str], wire_choice: object) -> None:
    events = anthropic({"tool": "lookup", "id": "c1", "json": []})
    async with serving(Answer(events)) as wire:
        request = attrs.evolve(SHAPED, tools=[LOOKUP], tool_choice=choice)
        assert said(await ask(wire, request, think=think)) == [ToolCall("c1", "lookup")]
    body = wire.requests[0].body
    assert [tool["name"] for tool in body["tools"]] == names
    assert body["tool_choice"] == wire_choice


async def test_a_schema_that_is_no_object_is_wrapped_and_its_answer_unwrapped() -> None:
    events = anthropic({"tool": "answer", "id": "a1", "json": ['{"value": [1, 2]}']})
    async with serving(Answer(events)) as wire:
        assert said(await ask(wire, attrs.evolve(SHAPED, schema=Schema(list[int]).json_schema))) == ["[1, 2]"]


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_a_refused_request_is_fatal_and_is_sent_once(status: int) -> None:
    async with serving(error(status, f"no: key {KEY}")) as wire:
        with pytest.raises(UpstreamRejected) as caught:
            await ask(wire)
    assert caught.value.status == status
    assert len(wire.requests) == 1
    assert KEY not in "".join(traceback.format_exception(caught.value)) + repr(model(wire))


@pytest.mark.parametrize("status", [429, 500, 529])
async def test_a_passing_failure_is_sent_once_and_may_be_tried_again(status: int) -> None:
    async with serving(error(status, "later", retry_after_ms="1500")) as wire:
        with pytest.raises(UpstreamError) as caught:
            await ask(wire)
    assert (caught.value.status, caught.value.retry_after) == (status, 1.5)
    assert not isinstance(caught.value, UpstreamRejected)
    assert len(wire.requests) == 1


HALF = anthropic({"text": ["half"]}, stop=False)
OVERLOADED = json.dumps({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})


@pytest.mark.parametrize(
    "answer",
    [Answer(HALF, cut=True), Answer(HALF), Answer([*HALF, f"event: error\ndata: {OVERLOADED}\n\n"])],
    ids=["cut", "ended early", "error event"],
)
async def test_an_answer_that_breaks_off_is_an_error(answer: Answer) -> None:
    async with serving(answer) as wire:
        asked = model(wire)
        chunks = aiter(asked.stream(ModelRequest([Message("hi")])))
        assert [await anext(chunks), await anext(chunks)] == [Usage(7, 1), "half"]
        with pytest.raises(UpstreamError) as caught:
            await anext(chunks)
        assert not isinstance(caught.value, UpstreamRejected)
        await asked.aclose()


async def test_a_given_client_is_used_without_its_retries_and_left_open() -> None:
    from anthropic import AsyncAnthropic

    async with serving(error(500, "no")) as wire:
        client = AsyncAnthropic(api_key=KEY, base_url=wire.url, max_retries=5)
        with pytest.raises(UpstreamError):
            await ask(wire, client=client)
        assert len(wire.requests) == 1
        assert not client.is_closed()
        await client.close()


async def test_no_key_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # where the SDK looks for profiles
    asked = AnthropicModel("claude-test")
    with pytest.raises(WiringError, match="ANTHROPIC_API_KEY"):
        await anext(aiter(asked.stream(ModelRequest([Message("hi")]))))
    await asked.aclose()


async def test_no_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "anthropic", None)
    with pytest.raises(WiringError, match=r"bb-flow\[anthropic\]"):
        await anext(aiter(AnthropicModel("claude-test", api_key=KEY).stream(ModelRequest([Message("hi")]))))


async def test_a_tool_named_like_the_answer_does_not_clash_with_it() -> None:
    mine = attrs.evolve(LOOKUP, name="answer")
    events = anthropic({"tool": "answer", "id": "c1", "json": []}, {"tool": "answer_", "id": "c2", "json": ["{}"]})
    async with serving(Answer(events)) as wire:
        assert said(await ask(wire, attrs.evolve(SHAPED, tools=[mine]))) == ["{}", ToolCall("c1", "answer")]


async def test_a_call_whose_input_is_no_json_is_sent_as_text() -> None:
    chat = [Message("hi"), assistant("").with_calls(ToolCall("c1", "lookup", "{half"))]
    async with serving(Answer(anthropic({"text": ["a"]}))) as wire:
        await ask(wire, ModelRequest(chat))
    assert wire.requests[0].body["messages"][1]["content"][0]["input"] == {"input": "{half"}


async def test_the_input_of_a_tool_that_the_server_runs_is_no_call() -> None:
    events = anthropic({"tool": "search", "id": "s1", "json": ["{}"]}, {"text": ["hi"]})
    events = [event.replace('"tool_use"', '"server_tool_use"') for event in events]
    async with serving(Answer(events)) as wire:
        assert [chunk for chunk in await ask(wire) if not isinstance(chunk, Usage)] == ["hi"]


@pytest.mark.parametrize("input", ['{"a": NaN}', '{"a": 1e999}', "[" * 100_000], ids=["nan", "huge", "deep"])
async def test_a_call_whose_input_cannot_be_sent_does_not_block_the_chat(input: str) -> None:
    call = ToolCall("c1", "lookup", input)
    chat = [Message("hi"), assistant("").with_calls(call), Message(role="tool").with_results(call.result("x"))]
    async with serving(Answer(anthropic({"text": ["ok"]}))) as wire:
        assert "ok" in await ask(wire, ModelRequest(chat))
    assert wire.requests[0].body["messages"][1]["content"][0]["input"] == {"input": input}


async def test_the_dots_in_names_of_tools_are_dashes_at_the_provider() -> None:
    dotted = attrs.evolve(LOOKUP, name="calendar.read")
    call = ToolCall("c1", "calendar.read", "{}")
    chat = [Message("hi"), Message(role="assistant", calls=[call]), Message(role="tool", results=[call.result("free")])]
    async with serving(Answer(anthropic({"tool": "calendar-read", "id": "c2", "json": ["{}"]}))) as wire:
        found = said(await ask(wire, ModelRequest(chat, [dotted], "calendar.read")))
    assert found == [ToolCall("c2", "calendar.read", "{}")]
    body = wire.requests[0].body
    assert body["tools"][0]["name"] == body["tool_choice"]["name"] == "calendar-read"
    assert body["messages"][1]["content"][0]["name"] == "calendar-read"
