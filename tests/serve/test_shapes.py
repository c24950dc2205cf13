"""Answers as the wires spell them, where no model of the tests says such things."""

from __future__ import annotations

import json

import bb
from bb.messages import NO_USAGE
from bb.serve.anthropic import AnthropicVoice, AnthropicWire
from bb.serve.openai import OpenAIVoice, OpenAIWire
from bb.serve.wire import Said

CALLS = (
    bb.ToolCall("a", "f"),
    bb.ToolCall("b", "f", "[1]"),
    bb.ToolCall("c", "f", "not json"),
    bb.ToolCall("d", "f", '{"x": 1}'),
)
SAID = Said("", CALLS, NO_USAGE)
INPUTS = [{}, {"value": [1]}, {"value": "not json"}, {"x": 1}]


def test_an_answer_of_calls_alone_has_no_text() -> None:
    message = OpenAIWire().whole(SAID, "f")["choices"]
    assert isinstance(message, list) and message[0]["message"]["content"] is None
    content = AnthropicWire().whole(SAID, "f")["content"]
    assert isinstance(content, list) and [block["type"] for block in content] == ["tool_use"] * 4


def test_the_arguments_of_a_call_are_text_for_one_and_an_object_for_the_other() -> None:
    (calls, *_) = OpenAIVoice("f", counts=False).end(SAID)
    parts = json.loads(calls.data)["choices"][0]["delta"]["tool_calls"]
    assert [part["function"]["arguments"] for part in parts] == ["{}", "[1]", "not json", '{"x": 1}']

    whole = AnthropicWire().whole(SAID, "f")["content"]
    assert isinstance(whole, list) and [block["input"] for block in whole] == INPUTS
    deltas = [json.loads(frame.data) for frame in AnthropicVoice("f").end(SAID) if frame.event == "content_block_delta"]
    assert [json.loads(delta["delta"]["partial_json"]) for delta in deltas] == INPUTS
    assert [delta["index"] for delta in deltas] == [1, 2, 3, 4]
