"""OpenAI's chat completions, as a server speaks them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import uuid4

from bb.messages import Input, Message, Request, ToolCall, ToolResult, ToolSpec, Usage
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

_DONE: Final = Frame("[DONE]")
_CHOICES: Final = {"auto": "", "required": "any"}


class OpenAIWire:
    """`POST /v1/chat/completions`."""

    def read(self, body: Mapping[str, object]) -> Asked:
        messages = tuple(_message(part, where) for where, part in objects(body, "messages"))
        if not messages:
            raise Refused("messages must not be empty")
        limit = optional(body, "max_completion_tokens", int)
        request = Request(
            model=optional(body, "model", str) or "",
            temperature=optional(body, "temperature", float),
            top_p=optional(body, "top_p", float),
            max_tokens=limit if limit is not None else optional(body, "max_tokens", int),
            stop=texts(body, "stop"),
            think=True if optional(body, "reasoning_effort", str) else None,
            tools=tuple(_tool(part, where) for where, part in objects(body, "tools")),
            tool_choice=_choice(body.get("tool_choice")),
        )
        options = body.get("stream_options")
        counts = options is not None and optional(as_object(options, "stream_options"), "include_usage", bool)
        return Asked(Input(messages, request), bool(optional(body, "stream", bool)), bool(counts))

    def whole(self, said: Said, model: str) -> dict[str, object]:
        message: dict[str, object] = {"role": "assistant", "content": said.text, "refusal": None}
        if said.calls:
            message["content"] = said.text or None
            message["tool_calls"] = [_call(call) for call in said.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(said)}
        return {
            "id": f"chatcmpl-{uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            "choices": [choice],
            "usage": _usage(said.usage),
        }

    def voice(self, asked: Asked, model: str) -> Voice:
        return OpenAIVoice(model, asked.counts)

    def problem(self, problem: Problem, run_id: str) -> dict[str, object]:
        return {"error": {**_error(problem), "run_id": run_id}}


class OpenAIVoice:
    """An answer as chunks: the role, the text, the calls, the finish, and the counts if they were asked for."""

    def __init__(self, model: str, counts: bool) -> None:
        self._counts = counts
        self._head: dict[str, object] = {
            "id": f"chatcmpl-{uuid4().hex}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }

    def begin(self) -> Sequence[Frame]:
        return [self._delta({"role": "assistant", "content": ""})]

    def say(self, text: str) -> Sequence[Frame]:
        return [self._delta({"content": text})]

    def end(self, said: Said) -> Sequence[Frame]:
        frames: list[Frame] = []
        if said.calls:
            calls = [{"index": number, **_call(call)} for number, call in enumerate(said.calls)]
            frames.append(self._delta({"tool_calls": calls}))
        frames.append(self._delta({}, _finish(said)))
        if self._counts:
            frames.append(Frame(dumps({**self._head, "choices": [], "usage": _usage(said.usage)})))
        return [*frames, _DONE]

    def fail(self, problem: Problem) -> Sequence[Frame]:
        return [Frame(dumps({"error": _error(problem)})), _DONE]

    def _delta(self, delta: Mapping[str, object], finish: str | None = None) -> Frame:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        chunk = {**self._head, "choices": [choice]}
        return Frame(dumps({**chunk, "usage": None} if self._counts else chunk))


def _error(problem: Problem) -> dict[str, object]:
    type_ = "server_error" if problem.status >= 500 else "invalid_request_error"
    return {"message": problem.message, "type": type_, "param": None, "code": problem.code}


def _message(part: Mapping[str, object], where: str) -> Message:
    role, content = as_text(part.get("role"), f"{where}.role"), _content(part.get("content"), f"{where}.content")
    answers = optional(part, "tool_call_id", str, f"{where}.")
    if answers is not None:
        return Message(role="tool", results=(ToolResult(answers, content),))
    calls = tuple(_called(call, place) for place, call in objects(part, "tool_calls", f"{where}."))
    return Message(content, role, calls)


def _content(value: object, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    pieces: list[str] = []
    for place, part in objects({where: value}, where):
        kind = part.get("type")
        if kind not in ("text", "refusal"):
            raise unsupported(place, kind)
        pieces.append(as_text(part.get(str(kind)), f"{place}.{kind}"))
    return "".join(pieces)


def _called(part: Mapping[str, object], where: str) -> ToolCall:
    function = as_object(part.get("function"), f"{where}.function")
    return ToolCall(
        as_text(part.get("id"), f"{where}.id"),
        as_text(function.get("name"), f"{where}.function.name"),
        optional(function, "arguments", str, f"{where}.function.") or "",
    )


def _tool(part: Mapping[str, object], where: str) -> ToolSpec:
    if part.get("type") not in (None, "function"):
        raise Refused(f"{where}: tools of type {quoted(part.get('type'))} are not supported")
    function = as_object(part.get("function"), f"{where}.function")
    schema = function.get("parameters")
    return ToolSpec(
        as_name(function.get("name"), f"{where}.function.name"),
        optional(function, "description", str, f"{where}.function.") or "",
        {} if schema is None else as_object(schema, f"{where}.function.parameters"),
    )


def _choice(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return _CHOICES.get(value, value)
    function = as_object(as_object(value, "tool_choice").get("function"), "tool_choice.function")
    return as_name(function.get("name"), "tool_choice.function.name")


def _call(call: ToolCall) -> dict[str, object]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments(call)}}


def _finish(said: Said) -> str:
    return "tool_calls" if said.calls else "stop"


def _usage(usage: Usage) -> dict[str, object]:
    return {
        "prompt_tokens": usage.input + usage.cache_read + usage.cache_write,
        "completion_tokens": usage.output,
        "total_tokens": usage.total,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
