"""A small HTTP server on a real socket that answers from a script, speaking the OpenAI and Anthropic wires."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from attrs import field, frozen


@frozen
class Exchange:
    """A request as it came over the socket."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]


@frozen
class Answer:
    """What the server says: a status, headers, and a body in pieces; `cut` drops the connection in the middle."""

    pieces: Sequence[str] = ()
    status: int = 200
    headers: Mapping[str, str] = field(factory=dict)
    cut: bool = False
    hold: asyncio.Event | None = None
    """Waited for before the last piece."""


def openai(
    *deltas: Mapping[str, Any], finish: str | None = "stop", usage: Mapping[str, Any] | None = None
) -> list[str]:
    """Events of a chat completion: one per delta, the finish, and the usage on a chunk without choices."""
    frames = [_chunk([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas]
    if finish is not None:
        frames.append(_chunk([{"index": 0, "delta": {}, "finish_reason": finish}]))
    if usage is not None:
        frames.append(_chunk([], usage=usage))
    return [f"data: {json.dumps(frame)}\n\n" for frame in frames] + (["data: [DONE]\n\n"] if finish is not None else [])


def _chunk(choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, **more}


def anthropic(
    *blocks: Mapping[str, Any], stop: bool = True, input: int = 7, output: int = 5, **cache: int
) -> list[str]:
    """Events of a message: a block is {"text": [pieces]} or {"tool": name, "id": id, "json": [pieces]}."""
    usage = {"input_tokens": input, "output_tokens": 1, **cache}
    message: dict[str, Any] = {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
    }
    frames: list[dict[str, Any]] = [
        {"type": "message_start", "message": message | {"stop_sequence": None, "usage": usage}}
    ]
    for index, block in enumerate(blocks):
        if "text" in block:
            start: dict[str, Any] = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in block["text"]]
        else:
            start = {"type": "tool_use", "id": block["id"], "name": block["tool"], "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in block["json"]]
        frames.append({"type": "content_block_start", "index": index, "content_block": start})
        frames += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        frames.append({"type": "content_block_stop", "index": index})
    if stop:
        delta = {"stop_reason": "end_turn", "stop_sequence": None}
        frames.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": output}})
        frames.append({"type": "message_stop"})
    return [f"event: {frame['type']}\ndata: {json.dumps(frame)}\n\n" for frame in frames]


def error(status: int, message: str, **headers: str) -> Answer:
    """An error as both wires spell it."""
    body = json.dumps({"type": "error", "error": {"type": "some_error", "message": message}})
    return Answer([body], status, {name.replace("_", "-"): value for name, value in headers.items()})


class Wire:
    """The running server: `url`, the `requests` it got, and how many connections are open."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[Exchange] = []
        self.open = 0
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        self.open += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client went away, or the server stops
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.close()

    async def stop(self) -> None:
        """End the connections that are still open."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append(Exchange(first.split()[1], headers, json.loads(body or b"{}")))
        answer = self.answers.pop(0)
        kind = "text/event-stream" if answer.status == 200 else "application/json"
        said = {"content-type": kind, "transfer-encoding": "chunked", **answer.headers}
        lines = [f"HTTP/1.1 {answer.status} Said", *(f"{name}: {value}" for name, value in said.items())]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        for at, piece in enumerate(answer.pieces):
            if answer.hold is not None and at == len(answer.pieces) - 1:
                await answer.hold.wait()
            data = piece.encode()
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()
        if answer.cut:
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


@asynccontextmanager
async def serving(*answers: Answer) -> AsyncIterator[Wire]:
    """A server on a free port of this machine for the length of the block."""
    wire = Wire(*answers)
    server = await asyncio.start_server(wire.handle, "127.0.0.1", 0)
    wire.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield wire
    finally:
        server.close()
        await wire.stop()
        await server.wait_closed()
