"""Flows and apps for services in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2

import bb
from bb.serve import Service
from tests.serve.kit import PATHS, agent


class Stage:
    """A handler that says "half", and "whole" once it may; it tells how it ended."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.may = asyncio.Event()
        self.ended: list[str] = []

    async def __call__(self, turn: bb.Turn, chat: bb.ModelChat) -> None:
        self.began.set()
        try:
            async with turn.stream() as out:
                await out.write("half ")
                await self.may.wait()
                await out.write("whole")
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("done")

    def flow(self, id: str) -> bb.NamedFlow:
        """A flow of it alone."""
        return agent(self, id).with_id(id)


async def hello(turn: bb.Turn, chat: bb.ModelChat) -> None:
    """Says whose run it is."""
    turn.reply(f"hello {turn.run_id}")


def app_of(*flows: bb.NamedFlow | bb.DurableFlow, store: bb.Store | None = None) -> bb.App:
    """An app of these flows."""
    app = bb.App(store=store)
    app.register(*flows)
    return app


def durable(handler: bb.Handler, id: str = "f") -> bb.DurableFlow:
    """A flow of one handler."""
    return (agent(handler, id) >> bb.Respond()).with_id(id).durable()


def asgi(service: Service) -> httpx2.AsyncClient:
    """A client without a socket."""
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(service), base_url="http://site")


async def raw(
    app: Callable[..., Awaitable[None]],
    body: bytes,
    headers: list[tuple[bytes, bytes]] | None = None,
    gone: Callable[[bytes], bool] = lambda _: False,
    leave: asyncio.Event | None = None,
    path: str = PATHS[0],
) -> tuple[int, dict[str, str], bytes]:
    """A request without a server; the client leaves when it has got what `gone` tells, or at `leave`."""
    sent: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]
    left = leave if leave is not None else asyncio.Event()
    status, got, answered = 0, b"", dict[str, str]()

    async def receive() -> Any:
        if sent:
            return sent.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal status, got
        if message["type"] == "http.response.start":
            status = message["status"]
            answered.update({name.decode().lower(): value.decode() for name, value in message["headers"]})
        got += message.get("body", b"")
        if gone(got):
            left.set()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "server": ("s", 80),
        "headers": [(b"content-type", b"application/json"), *(headers or [])],
    }
    await app(scope, receive, send)
    return status, answered, got
