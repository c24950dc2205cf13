"""Servers, and clients of both kinds in one face."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx2
import uvicorn
from anthropic import Anthropic, AsyncAnthropic
from attrs import frozen
from openai import AsyncOpenAI, OpenAI
from starlette.applications import Starlette

import bb
from bb.serve import Service
from bb.serve.server import server_of
from tests.crashes.processes import ROOT, until

Messages = Sequence[Mapping[str, Any]]


class Site:
    """`bb serve` in a process of its own, over one directory."""

    def __init__(self, home: Path, module: str = "tests.serve.site", log: str = "log") -> None:
        self.home = home
        self._module = module
        self.url = ""
        self._process: subprocess.Popen[str] | None = None
        self._log = home / log

    def start(self, *options: str) -> None:
        """Start it, and wait until it listens."""
        environment = {**os.environ, "SITE_HOME": str(self.home), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "bb.cli", "serve", f"{self._module}:app", "--port", "0", *options]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, text=True)
        for _ in self._lines():
            if found := re.search(r"running on (http://\S+)", self.log()):
                self.url = found[1]
                return

    def _lines(self) -> Iterator[None]:
        """Once for each change of the log."""
        assert self._process is not None
        size = -1
        while True:
            if self._log.stat().st_size != size:
                size = self._log.stat().st_size
                yield
            try:
                code = self._process.wait(0.01)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError(f"the server ended with {code}: {self.log()}")

    def log(self) -> str:
        """What it has said so far."""
        return self._log.read_text()

    def kill(self) -> None:
        """As the kernel does it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def terminate(self) -> None:
        """Ask it to end."""
        self.signal("SIGTERM")

    def signal(self, name: str) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(signal.Signals[name])

    async def ended(self) -> int:
        """Wait for its end: the exit code."""
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait, 30)

    def stop(self) -> None:
        """End it if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self.signal("SIGINT")  # as from a keyboard: it ends by returning
            self._process.wait(30)

    def notes(self) -> list[str]:
        """The effects that were made."""
        path = self.home / "notes"
        return path.read_text().splitlines() if path.exists() else []

    def open(self, gate: str) -> None:
        """Let a handler go on."""
        (self.home / f"{gate}.open").touch()

    async def waits(self, gate: str) -> None:
        """Wait until a handler waits."""
        await until((self.home / f"{gate}.waits").exists)


@asynccontextmanager
async def serving(app: Service | Starlette) -> AsyncIterator[str]:
    """An application on a real socket in this loop; gives its address."""
    if isinstance(app, Service):
        server = server_of(app, host="127.0.0.1", port=0, log_level="error")
    else:
        server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    task = asyncio.ensure_future(server.serve())
    try:
        await until(lambda: server.started or task.done())
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@frozen
class Heard:
    """An answer as a client got it."""

    text: str
    pieces: tuple[str, ...]
    """The text as it came."""
    calls: tuple[tuple[str, str, object], ...]
    """Id, name and arguments."""
    finish: str | None
    usage: Any
    headers: Mapping[str, str]


class Client(Protocol):
    """An official client."""

    async def ask(self, model: str, said: str | Messages, *, stream: bool, **more: Any) -> Heard:
        """Send a request; `headers` and fields of the body may be given. Raises as the client does."""
        ...


def _messages(said: str | Messages) -> list[Any]:
    return [{"role": "user", "content": said}] if isinstance(said, str) else [*said]


class ViaOpenAI:
    """OpenAI's."""

    def __init__(self, url: str, *, retries: int = 0) -> None:
        self._with: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": "none", "max_retries": retries}

    async def ask(self, model: str, said: str | Messages, *, stream: bool, **more: Any) -> Heard:
        body = {"model": model, "messages": _messages(said), "extra_headers": more.pop("headers", {}), **more}
        async with AsyncOpenAI(**self._with) as client:
            raw = await client.chat.completions.with_raw_response.create(**body, stream=stream)
            answer = await parsed(raw)
            return heard_whole(answer, raw.headers) if not stream else heard([x async for x in answer], raw.headers)


class ViaOpenAISync(ViaOpenAI):
    """OpenAI's for programs without a loop."""

    async def ask(self, model: str, said: str | Messages, *, stream: bool, **more: Any) -> Heard:
        body = {"model": model, "messages": _messages(said), "extra_headers": more.pop("headers", {}), **more}

        def ask() -> Heard:
            with OpenAI(**self._with) as client:
                raw = client.chat.completions.with_raw_response.create(**body, stream=stream)
                answer: Any = raw.parse()
                return heard_whole(answer, raw.headers) if not stream else heard(list(answer), raw.headers)

        return await asyncio.to_thread(ask)


class ViaAnthropic:
    """Anthropic's."""

    def __init__(self, url: str, *, retries: int = 0) -> None:
        self._with: dict[str, Any] = {"base_url": url, "api_key": "none", "max_retries": retries}

    async def ask(self, model: str, said: str | Messages, *, stream: bool, **more: Any) -> Heard:
        body = {"model": model, "messages": _messages(said), "max_tokens": 100, **more}
        body["extra_headers"] = body.pop("headers", {})
        async with AsyncAnthropic(**self._with) as client:
            if not stream:
                raw = await client.messages.with_raw_response.create(**body)
                return heard_message(await parsed(raw), None, raw.headers)
            async with client.messages.stream(**body) as events:
                pieces = tuple([text async for text in events.text_stream])
                return heard_message(await events.get_final_message(), pieces, events.response.headers)


class ViaAnthropicSync(ViaAnthropic):
    """Anthropic's for programs without a loop."""

    async def ask(self, model: str, said: str | Messages, *, stream: bool, **more: Any) -> Heard:
        body = {"model": model, "messages": _messages(said), "max_tokens": 100, **more}
        body["extra_headers"] = body.pop("headers", {})

        def ask() -> Heard:
            with Anthropic(**self._with) as client:
                if not stream:
                    raw = client.messages.with_raw_response.create(**body)
                    return heard_message(raw.parse(), None, raw.headers)
                with client.messages.stream(**body) as events:
                    pieces = tuple(events.text_stream)
                    return heard_message(events.get_final_message(), pieces, events.response.headers)

        return await asyncio.to_thread(ask)


CLIENTS: list[type[ViaOpenAI | ViaOpenAISync | ViaAnthropic | ViaAnthropicSync]] = [
    ViaOpenAI,
    ViaOpenAISync,
    ViaAnthropic,
    ViaAnthropicSync,
]


async def parsed(raw: Any) -> Any:
    """What a response says; some versions of the clients give it in a coroutine."""
    answer = raw.parse()
    return await answer if inspect.isawaitable(answer) else answer


def heard_whole(answer: Any, headers: Mapping[str, str]) -> Heard:
    """A chat completion."""
    (choice,) = answer.choices
    text = choice.message.content or ""
    calls = tuple(
        (call.id, call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls or ()
    )
    return Heard(text, (text,), calls, choice.finish_reason, answer.usage, headers)


def heard(chunks: Sequence[Any], headers: Mapping[str, str]) -> Heard:
    """The chunks of a chat completion, which must be in good order."""
    assert len({chunk.id for chunk in chunks}) == 1
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant" and not any(delta.role for delta in deltas[1:])
    finishes = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert [bool(finish) for finish in finishes] == [False] * (len(finishes) - 1) + [True]
    parts = [part for delta in deltas for part in delta.tool_calls or ()]
    assert [part.index for part in parts] == list(range(len(parts)))
    calls = tuple((part.id, part.function.name, json.loads(part.function.arguments)) for part in parts)
    pieces = tuple(delta.content for delta in deltas if delta.content)
    counts = [chunk.usage for chunk in chunks if chunk.usage is not None]
    assert len(counts) <= 1 and (not counts or not chunks[-1].choices)
    return Heard("".join(pieces), pieces, calls, finishes[-1], counts[0] if counts else None, headers)


def heard_message(message: Any, pieces: tuple[str, ...] | None, headers: Mapping[str, str]) -> Heard:
    """A message."""
    text = "".join(block.text for block in message.content if block.type == "text")
    calls = tuple((block.id, block.name, block.input) for block in message.content if block.type == "tool_use")
    assert pieces is None or "".join(pieces) == text
    return Heard(text, pieces or (text,), calls, message.stop_reason, message.usage, headers)


def body_of(path: str, said: str | Messages, model: str = "", **more: Any) -> dict[str, Any]:
    """A request as either wire takes it."""
    return {"model": model, "messages": _messages(said), **more}


PATHS = ["/v1/chat/completions", "/v1/messages"]


def error_of(path: str, answer: httpx2.Response) -> tuple[int, str, str]:
    """Status, type and message of an error in the shape of its wire."""
    assert answer.headers["content-type"] == "application/json"
    said = answer.json()
    error = said["error"]
    if path == "/v1/messages":
        assert said["type"] == "error" and error.keys() == {"type", "message"}
        assert said["request_id"] == answer.headers["x-run-id"]
    else:
        assert said.keys() == {"error"} and error.keys() == {"message", "type", "param", "code", "run_id"}
        assert error["run_id"] == answer.headers["x-run-id"]
    return answer.status_code, error["type"], error["message"]


def frames_of(text: str) -> list[tuple[str | None, str]]:
    """The events of a stream: name and data."""
    out: list[tuple[str | None, str]] = []
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            known = dict(line.split(": ", 1) for line in lines)
            out.append((known.get("event"), known.get("data", "")))
    return out


def agent(handler: bb.Handler, name: str = "a") -> bb.Flow:
    """A flow of one agent."""
    return bb.Flow().with_agent(bb.Agent(name).on_message(handler))


def text_of(path: str, answer: httpx2.Response) -> str:
    """The text of an answer, streamed or not."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        said = answer.json()
        return str(said["content"][0]["text"] if path == "/v1/messages" else said["choices"][0]["message"]["content"])
    data = [json.loads(data) for _, data in frames_of(answer.text) if data != "[DONE]"]
    if path == "/v1/messages":
        return "".join(part["delta"]["text"] for part in data if part["type"] == "content_block_delta")
    return "".join(part["choices"][0]["delta"].get("content", "") for part in data)
