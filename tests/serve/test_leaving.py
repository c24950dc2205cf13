"""Clients that leave, or take their time; and services inside other applications."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import httpx2
import pytest
import structlog
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount

import bb
from bb.flows.tree import Await, Emit
from bb.serve import Service
from bb.testing.scripted_model import ScriptedModel
from tests.crashes.processes import until
from tests.serve.kit import PATHS, agent, body_of, error_of, serving, text_of
from tests.serve.stage import Stage, app_of, asgi, durable, hello, raw
from tests.trials.kit import until as until_it_is


class Through(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


def faults(logs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What was logged, but that the app was not started, which none of these has to be."""
    return [log for log in logs if "lifespan" not in log["event"]]


async def leaves(service: Service, stage: Stage, *, stream: bool, middleware: bool, text: bytes) -> int:
    """A client that leaves: a streaming one when it has got a text, any other when the run has begun."""
    app: Any = service
    if middleware:
        app = Starlette(routes=[Mount("/", service)], middleware=[Middleware(Through)] * 3)
    left = asyncio.Event()
    body = json.dumps(body_of(PATHS[0], "hi", "f", stream=stream)).encode()
    asking = asyncio.ensure_future(
        raw(app, body, [(b"x-run-id", b"r")], (lambda got: text in got) if stream else (lambda _: False), left)
    )
    await stage.began.wait()
    if not stream:
        left.set()
    return (await asking)[0]


@pytest.mark.parametrize("middleware", [False, True])
@pytest.mark.parametrize(("stream", "text"), [(False, b""), (True, b"assistant"), (True, b"half")])
@pytest.mark.parametrize("detach", [False, True])
async def test_trials_m7_m8_a_durable_run_goes_on_without_its_client(
    stream: bool, text: bytes, detach: bool, middleware: bool
) -> None:
    stage = Stage()
    app = app_of(durable(stage))

    with structlog.testing.capture_logs() as logs:
        status = await leaves(app.asgi(detach=detach), stage, stream=stream, middleware=middleware, text=text)

    assert status == (200 if stream else 499) and not faults(logs)
    if not detach:
        await until(lambda: bool(stage.ended))
        assert stage.ended == ["cancelled"]
    stage.may.set()
    given = bb.Input((bb.Message("hi"),), bb.Request(model="f"))
    assert (await app.run("f", given, run_id="r")).answer == "half whole"
    assert stage.ended[-1] == "done" and len(stage.ended) == (1 if detach else 2)


@pytest.mark.parametrize("middleware", [False, True])
@pytest.mark.parametrize(("stream", "text"), [(False, b""), (True, b"assistant"), (True, b"half")])
async def test_trial_m7_what_is_not_durable_ends_with_its_client(stream: bool, text: bytes, middleware: bool) -> None:
    stage = Stage()
    service = app_of((agent(stage) >> bb.Respond()).with_id("f")).asgi()

    await leaves(service, stage, stream=stream, middleware=middleware, text=text)

    await until(lambda: bool(stage.ended))
    assert stage.ended == ["cancelled"]


@pytest.mark.parametrize("middleware", [False, True])
@pytest.mark.parametrize("text", [b"one", b"half", b"whole", b'"finish_reason":"stop"', b"[DONE]"])
async def test_trial_m7_wherever_a_client_leaves_everything_is_done_once(text: bytes, middleware: bool) -> None:
    stage = Stage()
    stage.may.set()
    said: list[str] = []

    async def first(turn: bb.Turn, chat: bb.ModelChat) -> None:
        said.append("one")
        turn.reply("one")

    flow = (agent(first, "first") >> bb.Respond() >> agent(stage, "second") >> bb.Respond()).with_id("f").durable()
    app = app_of(flow)
    with structlog.testing.capture_logs() as logs:
        assert await leaves(app.asgi(), stage, stream=True, middleware=middleware, text=text) == 200
        await until_finished(app, "r")
    assert not faults(logs)

    async with asgi(app.asgi()) as http:
        answer = await http.post(PATHS[0], json=body_of(PATHS[0], "hi", "f"), headers={"X-Run-Id": "r"})
    assert text_of(PATHS[0], answer) == "one\n\nhalf whole" and (said, stage.ended) == (["one"], ["done"])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_goes_on_without_its_client(stream: bool) -> None:
    stage = Stage()
    flow = (Emit("Go?") >> Await("user", bind="x")).next(agent(stage)).next(bb.Respond()).with_id("f").durable()
    app = app_of(flow)
    session = app.session("f", "s")
    await session.start()
    left = asyncio.Event()
    body = json.dumps(body_of(PATHS[0], "go", "f", stream=stream)).encode()
    headers = [(b"x-session-id", b"s"), (b"x-run-id", b"t")]
    asking = asyncio.ensure_future(raw(app.asgi(), body, headers, leave=left))
    await stage.began.wait()
    left.set()
    await asking
    stage.may.set()

    assert (await session.send("go", turn_id="t")).prompt == "Go?\n\nhalf whole" and stage.ended == ["done"]


async def test_trial_k4_a_slow_client_holds_the_run_back() -> None:
    written = 0
    reads = asyncio.Event()

    async def talk(turn: bb.Turn, chat: bb.ModelChat) -> None:
        nonlocal written
        async with turn.stream() as out:
            for _ in range(200):
                await out.write("x" * 10_000)
                written += 10_000

    service = app_of((agent(talk) >> bb.Respond()).with_id("f")).asgi()
    got = 0

    async def slowly(scope: Any, receive: Any, send: Any) -> None:
        async def hold(message: Any) -> None:
            nonlocal got
            if message["type"] == "http.response.body" and b"xxx" in message["body"]:
                got += 1
                await reads.wait()
            await send(message)

        await service(scope, receive, hold)

    asking = asyncio.ensure_future(raw(slowly, json.dumps(body_of(PATHS[0], "hi", stream=True)).encode()))
    await until(lambda: got == 1 and written > 0)
    for _ in range(100):  # as far as it comes
        await asyncio.sleep(0)
    assert written < 200_000
    reads.set()
    assert (await asking)[2].count(b"x" * 10_000) == 200


async def test_trial_k4_a_client_that_does_not_read_its_socket_holds_the_run_back_and_gets_everything() -> None:
    written = 0

    async def talk(turn: bb.Turn, chat: bb.ModelChat) -> None:
        nonlocal written
        async with turn.stream() as out:
            for _ in range(4000):
                await out.write("x" * 10_000)
                written += 10_000

    body = json.dumps(body_of(PATHS[0], "hi", "f", stream=True)).encode()
    head = f"POST {PATHS[0]} HTTP/1.1\r\nHost: site\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    async with serving(app_of((agent(talk) >> bb.Respond()).with_id("f")).asgi()) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]), limit=1000)
        writer.write(head.encode() + body)
        before = -1
        while not written or written != before:  # as far as the buffers of the system go
            before = written
            await asyncio.sleep(0.3)
        assert 0 < written < 30_000_000
        got = bytearray()
        while piece := await reader.read(2**20):
            got += piece
        writer.close()
    assert got.count(b"x" * 10_000) == 4000 and b"data: [DONE]" in got


async def test_a_client_that_takes_nothing_is_cut_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bb.serve.sse.STALLED", 0.05)
    stage = Stage()
    app = app_of(durable(stage))

    async def stuck(scope: Any, receive: Any, send: Any) -> None:
        async def never(message: Any) -> None:
            if b"half" in message.get("body", b""):
                await asyncio.Event().wait()
            await send(message)

        await app.asgi()(scope, receive, never)

    body = json.dumps(body_of(PATHS[0], "hi", "f", stream=True)).encode()
    await raw(stuck, body, [(b"x-run-id", b"r")])

    stage.may.set()
    given = bb.Input((bb.Message("hi"),), bb.Request(model="f"))
    assert (await app.run("f", given, run_id="r")).answer == "half whole" and stage.ended == ["done"]


async def test_a_stream_without_a_word_is_kept_alive() -> None:
    stage = Stage()
    app = app_of(durable(stage))
    trail, turn = app._archive.trail, app._conversations.run_of_turn
    service = Service(app, app._flows.plans, trail, turn, lambda: app._jobs.started, keep_alive=0.02)
    async with (
        serving(service) as url,
        httpx2.AsyncClient(base_url=url) as http,
        http.stream("POST", PATHS[1], json=body_of(PATHS[1], "hi", stream=True)) as answer,
    ):
        comments = 0
        async for line in answer.aiter_lines():
            comments += line == ": keep-alive"
            if comments == 3:
                stage.may.set()
    assert comments >= 3 and stage.ended == ["done"]


async def test_a_service_is_mounted_in_another_application() -> None:
    app = bb.App(model=ScriptedModel("hello"))
    app.register((bb.Flow().with_agent(bb.Agent("a")) >> bb.Respond()).with_id("f").durable())
    service = app.asgi()
    outer = Starlette(routes=[Mount("/ai", service)], lifespan=service.lifespan)
    job = await app.submit("f", "hi")

    async with serving(outer) as url, httpx2.AsyncClient(base_url=url) as http:
        await until_finished(app, job)
        assert (await http.get("/ai/v1/models")).json()["data"][0]["id"] == "f"
        answer = await http.get("/ai/v1/messages", headers={"X-Run-Id": "r"})
        assert error_of(PATHS[1], answer)[0] == 405 and answer.headers["x-run-id"] == "r"
        assert error_of(PATHS[0], await http.get("/ai/v1/nothing"))[0] == 404
        assert "run.end" in (await http.get(f"/ai/v1/runs/{job}/events")).text


async def until_finished(app: bb.App, run_id: str) -> None:
    async def is_over() -> bool:
        return [run.status for run in await app.runs() if run.run_id == run_id] == ["finished"]

    await until_it_is(is_over)


async def test_a_service_that_is_closing_takes_no_more() -> None:
    stage = Stage()
    service = app_of(durable(stage)).asgi(grace=timedelta(seconds=20))
    async with asgi(service) as http, service.lifespan():
        body = body_of(PATHS[1], "hi")
        first = asyncio.ensure_future(http.post(PATHS[1], json=body))
        await stage.began.wait()
        service.close()
        later = await http.post(PATHS[1], json=body)
        status, type_, _ = error_of(PATHS[1], later)
        assert (status, type_, later.headers["retry-after"]) == (503, "api_error", "1")
        stage.may.set()
        assert (await first).status_code == 200


async def test_websockets_are_turned_away() -> None:
    service = app_of(durable(hello)).asgi()
    said: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        said.append(message)

    await service({"type": "websocket", "path": "/v1/models", "headers": []}, receive, send)
    assert [message["type"] for message in said] == ["websocket.close"]
