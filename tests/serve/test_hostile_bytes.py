"""Bytes that no client would send: an answer comes, or the connection ends, and the server stays as it was."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import io
import json
import os
import time
from collections.abc import AsyncIterator

import httpx2
import pytest

import bb
from tests.serve.kit import PATHS, Site, body_of, error_of, frames_of, serving, text_of
from tests.serve.stage import app_of, asgi, durable, hello, raw

CHAT = PATHS[0].encode()
ASKED = json.dumps(body_of(PATHS[0], "hi", "single")).encode()
CHUNKED = b"Transfer-Encoding: chunked"
LONG = b"Content-Length: 999999999999999"


def request(method: bytes, target: bytes, body: bytes = b"", *headers: bytes, sized: bool = True) -> bytes:
    """A request after which the connection is to end."""
    lines = [method + b" " + target + b" HTTP/1.1", b"Host: site", b"Connection: close", *headers]
    if sized and body:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def post(body: bytes, *headers: bytes, sized: bool = True) -> bytes:
    return request(b"POST", CHAT, body, *headers, sized=sized)


def said(content: bytes, **more: bytes) -> bytes:
    """A body with one message, and other fields, written out."""
    fields = b"".join(b', "%s": %s' % (key.encode(), value) for key, value in more.items())
    return b'{"model": "single", "messages": [{"role": "user", "content": %s}]%s}' % (content, fields)


def tools(schema: bytes) -> bytes:
    return said(b'"hi"', tools=b'[{"function": {"name": "f", "parameters": {"a": %s}}}]' % schema)


async def exchange(site: Site, *parts: bytes, pause: float = 0.0) -> bytes:
    """What comes back until the server ends the connection."""
    host, _, port = site.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


class _Kept(io.BytesIO):
    """What came back, as a socket to the parser of the standard library, which closes what it has read."""

    def makefile(self, mode: str) -> _Kept:
        return self

    def close(self) -> None:
        """More may follow."""


def answers(got: bytes, method: str = "POST") -> list[httpx2.Response]:
    """Every response in what came back, which holds nothing else."""
    out: list[httpx2.Response] = []
    source = _Kept(got)
    while source.tell() < len(got):
        parsed = http.client.HTTPResponse(source, method=method)  # type: ignore[arg-type]
        parsed.begin()
        headers = [(name, value) for name, value in parsed.getheaders() if name.lower() != "transfer-encoding"]
        out.append(httpx2.Response(parsed.status, headers=headers, content=parsed.read()))
    return out


ANSWERED: list[tuple[str, bytes, int]] = [
    ("nothing", post(b""), 400),
    ("a length that is too small", post(ASKED, b"Content-Length: 10", sized=False), 400),
    ("a length over every limit", post(ASKED, LONG, sized=False), 413),
    ("nearly 4 MB", post(said(b'"%s"' % (b"x" * 4_000_000))), 200),
    ("no UTF-8", post(said(b'"\xff\xfe"')), 400),
    ("UTF-16", post(ASKED.decode().encode("utf-16")), 200),
    ("a mark of the byte order", post(b"\xef\xbb\xbf" + ASKED), 200),
    ("a NUL", post(said(b'"\x00"')), 400),
    ("a NUL that is escaped", post(said(b'"\\u0000"')), 200),
    ("half a character", post(said(b'"\\ud800"')), 200),
    ("half a character as a model", post(b'{"model": "\\ud800", "messages": [{"role": "user"}]}'), 404),
    ("a long model", post(b'{"model": "%s", "messages": [{"role": "user"}]}' % (b"m" * 1_000_000)), 404),
    ("deep lists", post(b'{"messages": %s%s}' % (b"[" * 100_000, b"]" * 100_000)), 400),
    ("deep objects", post(said(b'"hi"', x=b'{"a":' * 100_000 + b"1" + b"}" * 100_000)), 400),
    ("a deep type", post(said(b'[{"type": %s1%s}]' % (b"[" * 900, b"]" * 900))), 400),
    ("a key that comes twice", post(b'{"model": "single", "messages": [], "messages": [{"role": "user"}]}'), 200),
    ("NaN", post(said(b'"hi"', temperature=b"NaN")), 400),
    ("a number over every limit", post(said(b'"hi"', temperature=b"1e999")), 400),
    ("such a number in a schema", post(tools(b"-1e999")), 400),
    ("an integer of 400 digits", post(said(b'"hi"', max_tokens=b"9" * 400)), 200),
    ("an integer of 5,000 digits", post(tools(b"9" * 5000)), 400),
    ("compressed", post(gzip.compress(ASKED), b"Content-Encoding: gzip"), 400),
    ("another type of content", post(ASKED, b"Content-Type: text/xml; charset=latin-1"), 200),
    ("a long header", post(ASKED, b"X-Long: " + b"a" * 60_000), 200),
    ("many headers", post(ASKED, *(b"X-%d: a" % number for number in range(3000))), 200),
    ("a long run id", post(ASKED, b"X-Run-Id: " + b"a" * 60_000), 400),
    ("a run id of other bytes", post(ASKED, b"X-Run-Id: \xff"), 400),
    ("a client that asks to go on", post(ASKED, b"Expect: 100-continue"), 200),
    ("a client that expects tea", post(ASKED, b"Expect: tea"), 200),
    ("chunks", post(b"%x\r\n%s\r\n0\r\n\r\n" % (len(ASKED), ASKED), CHUNKED, sized=False), 200),
    ("a slash too many", request(b"POST", CHAT + b"/", ASKED), 404),
    ("two slashes", request(b"POST", b"/" + CHAT, ASKED), 404),
    ("dots", request(b"GET", b"/v1/../v1/models"), 404),
    ("a long path", request(b"GET", b"/" + b"a" * 60_000), 404),
    ("a long query", request(b"GET", b"/v1/models?" + b"a" * 60_000), 200),
    ("an id of NUL", request(b"GET", b"/v1/runs/%00/events"), 400),
    ("an id that is not UTF-8", request(b"GET", b"/v1/runs/%ff%zz/events"), 400),
    ("an id with a slash", request(b"GET", b"/v1/runs/a%2Fb/events"), 404),
    ("a body over the limit for a stream", request(b"GET", b"/v1/runs/r/events", b"", LONG), 413),
    ("a body for a stream of a run that is not kept", request(b"GET", b"/v1/runs/none/events", b"x" * 100), 404),
    ("OPTIONS", request(b"OPTIONS", CHAT), 405),
    ("OPTIONS *", request(b"OPTIONS", b"*"), 404),
    ("TRACE", request(b"TRACE", CHAT), 405),
    ("PROPFIND", request(b"PROPFIND", CHAT, ASKED), 405),
    ("a body where none is read", request(b"GET", b"/v1/models", b"x" * 100), 200),
]


@pytest.mark.parametrize(("sent", "status"), [case[1:] for case in ANSWERED], ids=[case[0] for case in ANSWERED])
async def test_odd_requests_get_an_answer_in_the_shape_of_all_others(running: Site, sent: bytes, status: int) -> None:
    before = len(running.log())
    (answer,) = answers(await exchange(running, sent))
    assert answer.status_code == status and answer.headers["x-run-id"]
    if status != 200:
        assert len(error_of(PATHS[0], answer)[2]) < 500
    logged = running.log()[before:]
    assert "Traceback" not in logged and "[error" not in logged and len(logged) < 70_000


BROKEN: list[tuple[str, bytes]] = [
    ("two lengths", post(ASKED, b"Content-Length: 10")),
    ("a negative length", post(ASKED, b"Content-Length: -1", sized=False)),
    ("a length in words", post(ASKED, b"Content-Length: ten", sized=False)),
    ("a length of 5,000 digits", post(ASKED, b"Content-Length: " + b"9" * 5000, sized=False)),
    ("an encoding that is no chunks", post(ASKED, b"Transfer-Encoding: gzip")),
    ("chunks without a size", post(b"zz\r\nhello\r\n", CHUNKED, sized=False)),
    ("a chunk of a negative size", post(b"-5\r\nhello\r\n0\r\n\r\n", CHUNKED, sized=False)),
    ("a NUL in a header", post(ASKED, b"X-Run-Id: a\x00b")),
    ("a NUL in the path", request(b"GET", b"/v1/\x00")),
    ("a method that is none", request(b"G@T", b"/v1/models")),
    ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256))),
    ("noise", os.urandom(200) + b"\r\n\r\n"),
]


@pytest.mark.parametrize("sent", [case[1] for case in BROKEN], ids=[case[0] for case in BROKEN])
async def test_what_is_not_http_ends_the_connection_and_nothing_else(running: Site, sent: bytes) -> None:
    before = len(running.log())
    (answer,) = answers(await exchange(running, sent))
    assert answer.status_code == 400
    logged = running.log()[before:]
    assert "Traceback" not in logged and "[error" not in logged
    (good,) = answers(await exchange(running, post(ASKED)))
    assert good.status_code == 200


@pytest.mark.parametrize(
    "sent", [post(ASKED, b"Content-Length: 1000", sized=False), post(b"50\r\nhello\r\n", CHUNKED, sized=False)]
)
async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_error(running: Site, sent: bytes) -> None:
    before = len(running.log())
    host, _, port = running.url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    (good,) = answers(await exchange(running, post(ASKED)))  # by now it was seen to leave
    assert good.status_code == 200
    logged = running.log()[before:]
    assert "Traceback" not in logged and "a request failed" not in logged


async def test_a_body_may_come_byte_by_byte(running: Site) -> None:
    head, body = post(ASKED).split(b"\r\n\r\n")
    pieces = [bytes([each]) for each in body]
    (answer,) = answers(await exchange(running, head + b"\r\n\r\n", *pieces, pause=0.001))
    assert answer.status_code == 200 and text_of(PATHS[0], answer) == "one stage"


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_that_stops_coming_is_not_waited_for(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bb.serve.exchange.STALLED", 0.1)
    async with serving(app_of(durable(hello)).asgi()) as url, httpx2.AsyncClient(base_url=url) as http:

        async def half() -> AsyncIterator[bytes]:
            yield b'{"messages": '
            await asyncio.sleep(1)

        answer = await http.post(path, content=half(), headers={"X-Run-Id": "mine"})
        status, _, message = error_of(path, answer)
        assert status == 408 and "0.1 s" in message and answer.headers["x-run-id"] == "mine"


async def test_a_run_may_take_longer_than_a_pause_in_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bb.serve.exchange.STALLED", 0.05)

    async def slow(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await asyncio.sleep(0.2)
        turn.reply("done")

    async with serving(app_of(durable(slow)).asgi()) as url, httpx2.AsyncClient(base_url=url) as http:
        for stream in (False, True):
            answer = await http.post(PATHS[0], json=body_of(PATHS[0], "hi", stream=stream))
            assert text_of(PATHS[0], answer) == "done"


async def test_a_client_may_send_all_of_a_body_that_is_refused(running: Site) -> None:
    async with httpx2.AsyncClient(base_url=running.url) as http:
        for _ in range(3):
            refused = await http.post(PATHS[0], content=said(b'"%s"' % (b"x" * 10_000_000)))
            assert error_of(PATHS[0], refused)[0] == 413
            assert (await http.post(PATHS[0], content=ASKED)).status_code == 200


async def test_requests_may_follow_each_other_without_waiting(running: Site) -> None:
    models = b"GET /v1/models HTTP/1.1\r\nHost: site\r\n\r\n"
    asked = said(b'"hi"', stream=b"true")
    streamed = b"POST %s HTTP/1.1\r\nHost: site\r\nContent-Length: %d\r\n\r\n%s" % (CHAT, len(asked), asked)
    first, second, third, fourth = answers(await exchange(running, models + streamed + models + post(ASKED)))
    assert first.json() == third.json() and first.status_code == 200
    assert text_of(PATHS[0], second) == text_of(PATHS[0], fourth) == "one stage"
    assert len({answer.headers["x-run-id"] for answer in (first, second, third, fourth)}) == 4


@pytest.mark.parametrize("path", [CHAT, b"/v1/models", b"/v1/runs/of-heads/events", b"/v1/nothing"])
async def test_heads_have_no_body(running: Site, path: bytes) -> None:
    answers(await exchange(running, post(ASKED, b"X-Run-Id: of-heads")))
    (answer,) = answers(await exchange(running, request(b"HEAD", path)), "HEAD")
    assert answer.content == b"" and answer.headers["x-run-id"] and answer.status_code in (200, 404, 405)


async def test_a_client_of_the_old_protocol_gets_its_stream(running: Site) -> None:
    asked = said(b'"hi"', stream=b"true")
    head = b"POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % (CHAT, len(asked))
    (answer,) = answers(await exchange(running, head + asked))
    assert text_of(PATHS[0], answer) == "one stage" and frames_of(answer.text)[-1] == (None, "[DONE]")


async def test_a_connection_that_sends_nothing_does_not_hold_a_server_up(site: Site) -> None:
    site.start("--grace", "0.1")
    host, _, port = site.url.removeprefix("http://").partition(":")
    held = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
    half = post(ASKED, b"Content-Length: 1000", sized=False)
    for (_, writer), sent in zip(held, [b"", b"POST ", half], strict=True):
        writer.write(sent)
        await writer.drain()
    answers(await exchange(site, post(ASKED)))
    began = time.monotonic()
    site.terminate()
    got = [await asyncio.wait_for(reader.read(), 20) for reader, _ in held]
    await site.ended()
    for _, writer in held:
        writer.close()
        await writer.wait_closed()

    assert time.monotonic() - began < 2 and "Traceback" not in site.log() and got[:2] == [b"", b""]
    (answer,) = answers(got[2])
    assert error_of(PATHS[0], answer)[0] == 503


@pytest.mark.parametrize("path", PATHS)
async def test_depth_is_a_matter_of_the_request(path: str) -> None:
    """However deep it is, and wherever: it goes through, or is refused."""
    app = app_of(durable(hello), _plain())
    async with asgi(app.asgi()) as http:
        for depth in (50, 300, *range(900, 1000, 7), 5_000):
            for body in _deep(path, b"[" * depth + b"]" * depth):
                answer = await http.post(path, content=body)
                assert answer.status_code in (200, 400), answer.text
                if answer.status_code == 400:
                    error_of(path, answer)


def _plain() -> bb.NamedFlow:
    return bb.Flow().with_agent(bb.Agent("p").on_message(hello)).with_id("plain")


def _deep(path: str, value: bytes) -> list[bytes]:
    """Bodies that have a value where any may be."""
    if path == "/v1/messages":
        call = b'[{"type": "tool_use", "id": "c", "name": "f", "input": {"a": %s}}]' % value
        tool = b'{"name": "f", "input_schema": {"a": %s}}' % value
    else:
        call = b'[{"type": %s}]' % value
        tool = b'{"function": {"name": "f", "parameters": {"a": %s}}}' % value
    body = b'{"model": "%s", "messages": [{"role": "assistant", "content": %s}], "tools": [%s]}'
    return [
        body % (model, content, each)
        for model in (b"f", b"plain")
        for content, each in ((call, b""), (b'"hi"', tool), (value, b""))
    ]


@pytest.mark.parametrize("length", ["9" * 5000, "9" * 20, "00", "", "-1", "\u00b2", "ten"])
async def test_a_length_that_some_server_let_pass_is_no_error(length: str) -> None:
    body = json.dumps(body_of(PATHS[0], "hi")).encode()
    headers = [(b"content-length", length.encode("latin-1"))]
    status, answered, _ = await raw(app_of(durable(hello)).asgi(), body, headers)
    assert status == (413 if length.startswith("9") else 200) and answered["x-run-id"]


@pytest.mark.parametrize("path", ["/v1/messages/", "/v1/messages/count_tokens", "/v1/messages/batches"])
async def test_what_is_not_there_is_told_in_the_shape_of_its_wire(path: str) -> None:
    async with asgi(app_of(durable(hello)).asgi()) as http:
        assert error_of("/v1/messages", await http.post(path, content=b"{}"))[0] == 404
