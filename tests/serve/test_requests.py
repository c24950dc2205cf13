"""What a service lets in: ids, and bodies."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import cast

import httpx2
import pytest

import bb
from tests.serve.kit import PATHS, body_of, error_of, serving
from tests.serve.stage import app_of, asgi, durable, hello, raw


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("header", ["X-Run-Id", "X-Session-Id"])
@pytest.mark.parametrize("id", ["", " ", "a b", "../../x", "C:\\", "a/b", "x" * 129, "x" * 10_000, "ä"])
async def test_case_96_what_is_no_id_is_refused(path: str, header: str, id: str) -> None:
    async with asgi(app_of(durable(hello)).asgi()) as http:
        answer = await http.post(path, json=body_of(path, "hi"), headers=[(header.encode(), id.encode())])
    status, type_, message = error_of(path, answer)
    assert status == 400 and type_ == "invalid_request_error" and header[2:-3].lower() in message
    assert len(answer.headers["x-run-id"]) == 32


@pytest.mark.parametrize("id", [b"r\n", b"r\x00", b"\xff"])
async def test_case_96_bytes_that_no_client_sends_are_refused_too(id: bytes) -> None:
    status, headers, _ = await raw(app_of(durable(hello)).asgi(), b'{"messages": []}', [(b"x-run-id", id)])
    assert status == 400 and len(headers["x-run-id"]) == 32


async def test_case_96_an_id_that_is_sent_twice_is_refused() -> None:
    async with asgi(app_of(durable(hello)).asgi()) as http:
        headers = [("X-Run-Id", "a"), ("X-Run-Id", "b")]
        assert (await http.post(PATHS[0], json=body_of(PATHS[0], "hi"), headers=headers)).status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models", 200),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/messages", 405),
        ("DELETE", "/v1/chat/completions", 405),
        ("POST", "/v1/hooks/none", 404),
        ("POST", "/v1/messages", 400),
        ("POST", "/v1/chat/completions", 400),
    ],
)
async def test_case_96_every_response_repeats_the_run_id(method: str, path: str, status: int) -> None:
    async with app_of(durable(hello)) as app, asgi(app.asgi()) as http:
        answer = await http.request(method, path, headers={"X-Run-Id": "mine", "X-Session-Id": "s"})
    assert answer.status_code == status and answer.headers["x-run-id"] == "mine"
    assert answer.headers["x-session-id"] == "s"
    if status != 200:
        error_of(path, answer)


USER = {"role": "user", "content": "hi"}


def _named(name: str, description: str = "") -> dict[str, object]:
    return {"function": {"name": name, "description": description}}


BAD: list[tuple[str, object, str]] = [
    *((path, body, told) for path in PATHS for body, told in [
        ([], "the body must be an object"),
        ({}, "messages must not be empty"),
        ({"messages": "hi"}, "messages must be a list"),
        ({"messages": ["hi"]}, "messages[0] must be an object"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role must be text"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content must be a list"),
        ({"messages": [USER], "model": 5}, "model must be text"),
        ({"messages": [USER], "stream": "yes"}, "stream must be true or false"),
        ({"messages": [USER], "temperature": "hot"}, "temperature must be a number"),
        ({"messages": [USER], "temperature": 10**400}, "temperature must be a number"),
        ({"messages": [USER], "tools": [{}]}, "tools[0]"),
        ({"messages": [USER], "tools": [{"type": "web_search"}]}, "'web_search' are not supported"),
        ({"messages": [USER], "tool_choice": 5}, "tool_choice must be an object"),
        ({"messages": [USER], "tool_choice": {"type": "look", "function": {"name": "look"}}}, "tool_choice 'look'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "'image_url' is not supported"),
    ]),
    (PATHS[0], {"messages": [USER], "stop": [5]}, "stop[0] must be text"),
    (PATHS[0], {"messages": [USER], "tool_choice": "look", "tools": [_named("see")]}, "tool_choice 'look' is none of"),
    (PATHS[0], {"messages": [USER], "tools": [_named("")]}, "tools[0].function.name must not be empty"),
    (PATHS[0], {"messages": [USER], "tools": [_named("a"), _named("a"), _named("a", "b")]}, "tools[2]: another tool"),
    (PATHS[0], {"messages": [{"content": "hi", "tool_call_id": "c"}]}, "messages[0].role must be text"),
    (PATHS[0], {"messages": [USER], "stream_options": 5}, "stream_options must be an object"),
    (PATHS[0], {"messages": [{**USER, "tool_calls": [{"id": "c"}]}]}, "messages[0].tool_calls[0].function"),
    (PATHS[1], {"messages": [{"role": "user"}]}, "messages[0].content must be text or a list"),
    (PATHS[1], {"messages": [USER], "system": 5}, "system must be a list"),
    (PATHS[1], {"messages": [USER], "system": [{"type": "image"}]}, "'image' is not supported"),
    (PATHS[1], {"messages": [USER], "thinking": "yes"}, "thinking must be an object"),
    (PATHS[1], {"messages": [USER], "tools": [{"name": ""}]}, "tools[0].name must not be empty"),
    (PATHS[1], {"messages": [USER], "tool_choice": {"type": "tool", "name": ""}}, "tool_choice.name must not be empty"),
    (PATHS[1], {"messages": [{"role": "user", "content": [{"type": {}}]}]}, "content of type {} is not supported"),
    (PATHS[1], {"messages": [{"role": "user", "content": [{"type": "x" * 10_000}]}]}, "xxx...xxx"),
    (PATHS[1], {"messages": [USER], "stop_sequences": {}}, "stop_sequences must be a list"),
    (PATHS[1], {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id must be text"),
    (PATHS[1], {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": {}}]}]}, "id must be text"),
    *(
        (PATHS[1], {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": input}]}]}, "input must be an object")
        for input in cast("list[object]", [[], "", 0, False])
    ),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "told"), BAD)
async def test_a_body_that_is_no_request_is_refused_with_the_place(path: str, body: object, told: str) -> None:
    async with asgi(app_of(durable(hello)).asgi()) as http:
        answer = await http.post(path, content=json.dumps(body))
    status, type_, message = error_of(path, answer)
    assert (status, type_) == (400, "invalid_request_error") and told in message


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"temperature": NaN}', b"[" * 100_000, b"1" * 5000])
async def test_a_body_that_is_no_json_is_refused(path: str, body: bytes) -> None:
    async with asgi(app_of(durable(hello)).asgi()) as http:
        assert error_of(path, await http.post(path, content=body))[0] == 400


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_refused(path: str, chunked: bool) -> None:
    async with (
        serving(app_of(durable(hello)).asgi(max_body=1000)) as url,
        httpx2.AsyncClient(base_url=url) as http,
    ):
        body = json.dumps(body_of(path, "x" * 100_000)).encode()
        answer = await http.post(path, content=pieces(body) if chunked else body, headers={"X-Run-Id": "mine"})
        status, type_, message = error_of(path, answer)
        kind = "request_too_large" if path == "/v1/messages" else "invalid_request_error"
        assert (status, type_) == (413, kind) and "1,000 bytes" in message
        assert answer.headers["x-run-id"] == "mine"
        assert (await http.post(path, json=body_of(path, "x" * 500))).status_code == 200


async def pieces(body: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(body), 400):
        yield body[at : at + 400]


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_that_cannot_be_kept_is_refused(path: str) -> None:
    app = bb.App(value_limit=2000)
    app.register(durable(hello))
    for stream in (False, True):
        async with asgi(app.asgi()) as http:
            answer = await http.post(path, json=body_of(path, "x" * 5000, stream=stream))
        assert error_of(path, answer)[0] == 413


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_text_without_utf8_goes_through(path: str, stream: bool) -> None:
    async def odd(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.reply(turn.last.content + "\r\n\u2028é\ud800")

    async with asgi(app_of(durable(odd)).asgi()) as http:
        body = json.dumps(body_of(path, "\ud800", stream=stream)).encode()
        answer = await http.post(path, content=body)
    assert answer.status_code == 200 and '"\\ud800\\r\\n\\u2028\\u00e9\\ud800"' in answer.text
