"""Anthropic's messages, as a server speaks them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from uuid import uuid4

from bb.messages import NO_USAGE, Input, Message, Request, ToolCall, ToolResult, ToolSpec, Usage
from bb.serve.problems import Problem, Refused
from bb.serve.wire import (
    Asked,
    Frame,
    Said,
    Voice,
    arguments,
    as_name,
    as_object,
    as_text,
    dumps,
    objects,
    optional,
    quoted,
    texts,
    unsupported,
)

_ERRORS: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_THINKS: Final = {"enabled": True, "adaptive": True, "disabled": False}


class AnthropicWire:
    """`POST /v1/messages`."""

    def read(self, body: Mapping[str, object]) -> Asked:
        messages = [_message(part, where) for where, part in objects(body, "messages")]
        if not messages:
            raise Refused("messages must not be empty")
        system = _text(body.get("system"), "system") if body.get("system") is not None else ""
        if system:
            messages.insert(0, Message(system, "system"))
        thinking = body.get("thinking")
        kind = None if thinking is None else optional(as_object(thinking, "thinking"), "type", str, "thinking.")
        request = Request(
            model=optional(body, "model", str) or "",
            temperature=optional(body, "temperature", float),
            top_p=optional(body, "top_p", float),
            top_k=optional(body, "top_k", int),
            max_tokens=optional(body, "max_tokens", int),
            stop=texts(body, "stop_sequences"),
            think=_THINKS.get(kind or ""),
            tools=tuple(_tool(part, where) for where, part in objects(body, "tools")),
            tool_choice=_choice(body.get("tool_choice")),
        )
        return Asked(Input(tuple(messages), request), bool(optional(body, "stream", bool)))

    def whole(self, said: Said, model: str) -> dict[str, object]:
        content: list[dict[str, object]] = []
        if said.text or not said.calls:
            content.append({"type": "text", "text": said.text})
        content += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call)} for call in said.calls
        ]
        return {**_head(model), "content": content, "stop_reason": _stop(said), "usage": _usage(said.usage)}

    def voice(self, asked: Asked, model: str) -> Voice:
        return AnthropicVoice(model)

    def problem(self, problem: Problem, run_id: str) -> dict[str, object]:
        return {"type": "error", "error": _error(problem), "request_id": run_id}


class AnthropicVoice:
    """An answer as blocks: the text is block 0, and each call one of its own."""

    def __init__(self, model: str) -> None:
        self._model = model

    def begin(self) -> Sequence[Frame]:
        message = {**_head(self._model), "usage": _usage(NO_USAGE)}  # what it will cost is not known yet
        block = {"type": "text", "text": ""}
        return [_frame("message_start", message=message), _frame("content_block_start", index=0, content_block=block)]

    def say(self, text: str) -> Sequence[Frame]:
        return [_frame("content_block_delta", index=0, delta={"type": "text_delta", "text": text})]

    def end(self, said: Said) -> Sequence[Frame]:
        frames = [_frame("content_block_stop", index=0)]
        for index, call in enumerate(said.calls, 1):
            block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": dumps(_input(call))}
            frames += [
                _frame("content_block_start", index=index, content_block=block),
                _frame("content_block_delta", index=index, delta=delta),
                _frame("content_block_stop", index=index),
            ]
        ending = {"stop_reason": _stop(said), "stop_sequence": None}
        return [*frames, _frame("message_delta", delta=ending, usage=_usage(said.usage)), _frame("message_stop")]

    def fail(self, problem: Problem) -> Sequence[Frame]:
        # no message_stop: it would read as success
        return [_frame("content_block_stop", index=0), _frame("error", error=_error(problem))]


def _frame(type_: str, **fields: object) -> Frame:
    return Frame(dumps({"type": type_, **fields}), type_)


def _head(model: str) -> dict[str, object]:
    return {
        "id": f"msg_{uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _error(problem: Problem) -> dict[str, object]:
    other = "api_error" if problem.status >= 500 else "invalid_request_error"
    return {"type": _ERRORS.get(problem.status, other), "message": problem.message}


def _message(part: Mapping[str, object], where: str) -> Message:
    role, content = as_text(part.get("role"), f"{where}.role"), part.get("content")
    if isinstance(content, str):
        return Message(content, role)
    pieces: list[str] = []
    calls: list[ToolCall] = []
    results: list[ToolResult] = []
    for place, block in objects({"content": _given(content, where)}, "content", f"{where}."):
        match block.get("type"):
            case "text":
                pieces.append(as_text(block.get("text"), f"{place}.text"))
            case "tool_use":
                input = block.get("input")
                given = {} if input is None else as_object(input, f"{place}.input")
                id, name = (as_text(block.get(key), f"{place}.{key}") for key in ("id", "name"))
                calls.append(ToolCall(id, name, json.dumps(given) if given else ""))
            case "tool_result":
                results.append(_result(block, place))
            case "thinking" | "redacted_thinking":
                pass  # a client sends back what some model thought
            case kind:
                raise unsupported(place, kind)
    return Message("".join(pieces), role, tuple(calls), tuple(results))


def _given(content: object, where: str) -> object:
    if content is None:
        raise Refused(f"{where}.content must be text or a list")
    return content


def _result(block: Mapping[str, object], where: str) -> ToolResult:
    content = block.get("content")
    return ToolResult(
        as_text(block.get("tool_use_id"), f"{where}.tool_use_id"),
        "" if content is None else _text(content, f"{where}.content"),
        bool(optional(block, "is_error", bool, f"{where}.")),
    )


def _text(value: object, where: str) -> str:
    """Text, or blocks of it."""
    return value if isinstance(value, str) else "".join(_blocks(value, where))


def _blocks(value: object, where: str) -> Iterator[str]:
    for place, block in objects({where: value}, where):
        if block.get("type") != "text":
            raise unsupported(place, block.get("type"))
        yield as_text(block.get("text"), f"{place}.text")


def _tool(part: Mapping[str, object], where: str) -> ToolSpec:
    if part.get("type") not in (None, "custom"):
        raise Refused(f"{where}: tools of type {quoted(part.get('type'))} are not supported")
    schema = part.get("input_schema")
    return ToolSpec(
        as_name(part.get("name"), f"{where}.name"),
        optional(part, "description", str, f"{where}.") or "",
        {} if schema is None else as_object(schema, f"{where}.input_schema"),
    )


def _choice(value: object) -> str:
    if value is None:
        return ""
    choice = as_object(value, "tool_choice")
    match as_text(choice.get("type"), "tool_choice.type"):
        case "auto":
            return ""
        case "tool":
            return as_name(choice.get("name"), "tool_choice.name")
        case kind:
            return kind


def _input(call: ToolCall) -> dict[str, object]:
    """The arguments of a call as an object, which is all that this wire knows."""
    try:
        given = json.loads(arguments(call))
    except (ValueError, RecursionError):
        given = arguments(call)
    return given if isinstance(given, dict) else {"value": given}


def _stop(said: Said) -> str:
    return "tool_use" if said.calls else "end_turn"


def _usage(usage: Usage) -> dict[str, object]:
    return {
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output,
    }
