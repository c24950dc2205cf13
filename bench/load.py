"""Many clients that stream, while their server is killed now and then: nobody goes without the whole answer.

    cd bench && python load.py [--clients 200] [--seconds 60] [--kills 3]

The server is a process of its own over `FileStore`, killed by SIGKILL and started again. Half of the clients speak as
those of OpenAI and half as those of Anthropic; a quarter are the official ones. Each asks with a run id of its own,
comes again with it until it has the whole answer, and goes on with the next run. In the end everything is checked: each
answer, each effect (done at least once, recorded once), and that no run is left over. A check that fails raises.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import anthropic
import httpx2
import openai
from attrs import define, field
from common import folder
from load_app import PARTS, expected, made

import bb

HERE = Path(__file__).parent
PATIENCE = 120  # seconds after the end in which the last answers must have come

Ask: TypeAlias = Callable[[str, str], Awaitable[str]]
"""Sends a text with a run id, and gives the text that was streamed. It raises what is worth another try."""


class Cut(Exception):
    """A stream that ended before its answer did, or a server that asks to come again."""


TRY_AGAIN = (Cut, httpx2.TransportError, openai.APIError, anthropic.APIError)


class Server:
    """`bb serve` in a process of its own."""

    def __init__(self, home: Path) -> None:
        self._home = home
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = process = self._started()
        async with httpx2.AsyncClient(base_url=self.url) as http:
            while True:
                assert process.poll() is None, (self._home / "log").read_text()
                try:
                    await http.get("/v1/models")
                except httpx2.TransportError:
                    await asyncio.sleep(0.02)
                else:
                    return

    def _started(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "bb.cli", "serve", "load_app:app", "--port", str(self._port)]
        paths = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "LOAD_HOME": str(self._home), "PYTHONPATH": paths}
        with (self._home / "log").open("ab") as log:
            return subprocess.Popen(command, cwd=HERE, env=environment, stdout=log, stderr=log)

    async def end(self, number: signal.Signals) -> None:
        """End it by a signal."""
        assert self._process is not None
        self._process.send_signal(number)
        await asyncio.to_thread(self._process.wait)


def by_hand(http: httpx2.AsyncClient, path: str) -> Ask:
    """A client that reads just what it needs; many of them fit in one process."""

    async def ask(text: str, run_id: str) -> str:
        body = {"model": "load", "messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": 99}
        said, whole = "", False
        async with http.stream("POST", path, json=body, headers={"X-Run-Id": run_id}) as answer:
            if answer.status_code != 200:
                raise Cut(f"{answer.status_code}: {(await answer.aread()).decode()}")
            async for line in answer.aiter_lines():
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    break
                data = json.loads(line[6:])
                if "error" in data:
                    raise Cut(data["error"]["message"])
                if path == "/v1/messages":
                    said += data.get("delta", {}).get("text", "")
                    whole = whole or data["type"] == "message_stop"
                else:
                    said += data["choices"][0]["delta"].get("content", "")
                    whole = whole or data["choices"][0]["finish_reason"] == "stop"
        if not whole:
            raise Cut("the stream ended early")
        return said

    return ask


def of_openai(client: openai.AsyncOpenAI) -> Ask:
    """The official client of OpenAI."""

    async def ask(text: str, run_id: str) -> str:
        said, finish = "", None
        async with await client.chat.completions.create(
            model="load",
            messages=[{"role": "user", "content": text}],
            stream=True,
            extra_headers={"X-Run-Id": run_id},
        ) as chunks:
            async for chunk in chunks:
                said += chunk.choices[0].delta.content or ""
                finish = chunk.choices[0].finish_reason or finish
        if finish != "stop":
            raise Cut("the stream ended early")
        return said

    return ask


def of_anthropic(client: anthropic.AsyncAnthropic) -> Ask:
    """The official client of Anthropic."""

    async def ask(text: str, run_id: str) -> str:
        async with client.messages.stream(
            model="load",
            max_tokens=99,
            messages=[{"role": "user", "content": text}],
            extra_headers={"X-Run-Id": run_id},
        ) as stream:
            message = await stream.get_final_message()
        if message.stop_reason != "end_turn":
            raise Cut("the stream ended early")
        return "".join(block.text for block in message.content if block.type == "text")

    return ask


@define
class Tally:
    """What the clients saw."""

    taken: dict[str, float] = field(factory=dict)
    """Seconds from the first try of a run to its whole answer."""
    retries: Counter[str] = field(factory=Counter)
    """By what went wrong."""


async def client(ask: Ask, name: str, until: float, tally: Tally) -> None:
    """One run after the other, each until its answer is whole."""
    number = 0
    while time.monotonic() < until:
        run_id, text = f"{name}-{number}", f"question {number} of {name}"
        began = time.monotonic()
        said = await insist(ask, text, run_id, until, tally)
        assert said == expected(text), f"{run_id} was told {said!r}"
        tally.taken[run_id] = time.monotonic() - began
        number += 1


async def insist(ask: Ask, text: str, run_id: str, until: float, tally: Tally) -> str:
    """The answer, however many tries it takes."""
    while True:
        try:
            return await ask(text, run_id)
        except TRY_AGAIN as error:
            if time.monotonic() > until + PATIENCE:
                raise
            tally.retries[type(error).__name__] += 1
        await asyncio.sleep(random.uniform(0.05, 0.3))


async def load(home: Path, clients: int, seconds: float, kills: int) -> Tally:
    """The clients, and the killing."""
    tally = Tally()
    server = Server(home)
    await server.start()
    until = time.monotonic() + seconds
    # one connection a client, and as many as there are clients
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with (
        httpx2.AsyncClient(base_url=server.url, timeout=60, limits=limits) as http,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as theirs,
        anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as others,
        asyncio.TaskGroup() as group,
    ):
        kinds = [by_hand(http, "/v1/chat/completions"), by_hand(http, "/v1/messages")] * 3
        kinds += [of_openai(theirs), of_anthropic(others)]
        for number in range(clients):
            group.create_task(client(kinds[number % len(kinds)], f"c{number}", until, tally))
        for _ in range(kills):
            await asyncio.sleep(seconds / (kills + 1))
            await server.end(signal.SIGKILL)
            await server.start()
    await server.end(signal.SIGTERM)
    return tally


async def check(home: Path, runs: set[str]) -> int:
    """Hold what is in the store against what was done; gives how often an effect was repeated.

    Raises:
        AssertionError: a promise was broken.
    """
    done = Counter((home / "effects").read_text().splitlines())
    wanted = {f"{run_id} {part}" for run_id in runs for part in PARTS}
    assert done.keys() == wanted, f"effects that are missing or nobody's: {sorted(done.keys() ^ wanted)[:5]}"
    async with made(bb.FileStore(home / "state")) as app:
        kept = {run.run_id: run.status for run in await app.runs()}
        assert kept == dict.fromkeys(runs, "finished"), (
            f"left over: {set(kept.items()) - {(id, 'finished') for id in runs}}"
        )
        for run_id in runs:
            saved = Counter(event.flow for event in await app.events(run_id) if event.kind == "flow.end")
            assert all(saved[part] == 1 for part in PARTS), f"{run_id} recorded {dict(saved)}"
    return done.total() - len(wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--kills", type=int, default=3)
    given = parser.parse_args()
    with folder() as home:
        tally = asyncio.run(load(home, given.clients, given.seconds, given.kills))
        repeated = asyncio.run(check(home, set(tally.taken)))
        log = (home / "log").read_text()
    assert "Traceback" not in log, log[-5000:]
    times = sorted(tally.taken.values())
    print(f"{given.clients} clients, {given.seconds:g} s, killed {given.kills} times: every answer was whole")
    print(f"runs                {len(times)}, {len(times) / given.seconds:.0f} a second")
    print(
        f"retries             {tally.retries.total()} ({', '.join(f'{n} {kind}' for kind, n in tally.retries.items())})"
    )
    print(f"effects             {2 * len(times)}, each recorded once; {repeated} done again after a kill")
    print(f"answer, p50 and p99 {times[len(times) // 2]:.2f} s, {times[len(times) * 99 // 100]:.2f} s")


if __name__ == "__main__":
    main()
