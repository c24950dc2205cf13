"""What it costs that a served answer is durable: requests a second, over a bare handler that streams the same bytes.

Run it as `python bench/serving.py`. Each server is a process of its own under the same uvicorn; the clients are one process
that keeps a few connections busy, and does as little as it can.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from common import TEXT, folder, show
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

import bb

if TYPE_CHECKING:
    from starlette.types import ASGIApp

PIECES = [TEXT[at : at + 21] for at in range(0, len(TEXT), 21)]
PATH = "/v1/chat/completions"
ASKED = json.dumps({"model": "bench", "stream": True, "messages": [{"role": "user", "content": "go"}]}).encode()
CONNECTIONS = 16
SECONDS = 1.5
ROUNDS = 7


def bare() -> ASGIApp:
    """The same chunks, made beforehand."""
    from bb.serve.openai import OpenAIVoice
    from bb.serve.wire import Said

    voice = OpenAIVoice("bench", counts=False)
    frames = [*voice.begin(), *(frame for piece in PIECES for frame in voice.say(piece))]
    frames += voice.end(Said(TEXT, (), bb.Usage()))
    chunks = [f"data: {frame.data}\n\n".encode() for frame in frames]

    async def made() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def answer(request: Request) -> StreamingResponse:
        await request.json()
        return StreamingResponse(made(), media_type="text/event-stream")

    return Starlette(routes=[Route(PATH, answer, methods=["POST"])])


def flow(store: bb.Store) -> ASGIApp:
    """A durable flow of one agent."""

    async def speak(turn: bb.Turn, chat: bb.ModelChat) -> None:
        async with turn.stream() as out:
            for piece in PIECES:
                await out.write(piece)

    app = bb.App(store=store)
    app.register(bb.Flow().with_agent(bb.Agent().on_message(speak)).with_id("bench").durable())
    return app.asgi()


def serve(kind: str, home: str) -> None:
    """Be a server on a free port, which it tells as soon as it may be asked."""
    app = bare() if kind == "bare" else flow(bb.MemStore() if kind == "memory" else bb.FileStore(home))
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    # with its protocol, or asyncio would not turn off Nagle's algorithm
    with socket.socket(proto=socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        print(listening.getsockname()[1], flush=True)
        uvicorn.Server(config).run(sockets=[listening])


@contextmanager
def served(kind: str, home: Path) -> Iterator[int]:
    """A server in a process of its own; gives its port."""
    command = [sys.executable, __file__, kind, str(home)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def rate(port: int) -> float:
    """Requests a second."""
    asked = b"POST %s HTTP/1.1\r\nHost: bench\r\nContent-Length: %d\r\n\r\n%s" % (PATH.encode(), len(ASKED), ASKED)
    until = time.perf_counter() + SECONDS

    async def one() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        count = 0
        while time.perf_counter() < until:
            writer.write(asked)
            said = await reader.readuntil(b"\r\n0\r\n\r\n")
            assert said.startswith(b"HTTP/1.1 200") and b"[DONE]" in said
            count += 1
        writer.close()
        return count

    return sum(await asyncio.gather(*(one() for _ in range(CONNECTIONS)))) / SECONDS


def main() -> None:
    with folder() as home, ExitStack() as stack:
        ports = {kind: stack.enter_context(served(kind, home)) for kind in ("bare", "memory", "file")}
        for port in ports.values():
            asyncio.run(rate(port))  # warm up
        rounds = [{kind: asyncio.run(rate(port)) for kind, port in ports.items()} for _ in range(ROUNDS)]
    show("bare Starlette handler", statistics.median(each["bare"] for each in rounds), "req/s", "none")
    for kind, store in (("memory", "MemStore"), ("file", "FileStore()")):
        share = statistics.median(each[kind] / each["bare"] for each in rounds)
        cost = statistics.median(1e6 / each[kind] - 1e6 / each["bare"] for each in rounds)
        show(f"durable flow of one agent, {store}, over it", share, "x", "none")
        show("the same, per request", cost, "us", "none")


if __name__ == "__main__":
    serve(*sys.argv[1:]) if len(sys.argv) > 1 else main()
