"""What tests of durable runs need: steps that count and fail on demand, and a disk that outlives the app."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import bb
from bb.testing.clock import ManualClock
from bb.testing.mock_store import MockStore


class Hold:
    """Where a step waits until the test lets it go on, to fail if there is an `error`."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go = asyncio.Event()
        self.error: Exception | None = None


class Work:
    """Steps that note each time they run."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._fails: dict[str, list[Exception]] = {}
        self._holds: dict[str, Hold] = {}
        self.picks: dict[str, str] = {}
        self.values: dict[str, object] = {}
        self.heard: dict[str, tuple[str, ...]] = {}

    def count(self, name: str) -> int:
        """How often a step ran."""
        return self.calls.count(name)

    def fail(self, name: str, *errors: Exception | int) -> None:
        """Let the next runs of a step fail, with these errors or so many times."""
        for error in errors:
            said = [ValueError(f"{name} fails")] * error if isinstance(error, int) else [error]
            self._fails.setdefault(name, []).extend(said)

    def hold(self, name: str) -> Hold:
        """Let the next run of a step wait."""
        self._holds[name] = Hold()
        return self._holds[name]

    def agent(self, name: str, text: str | None = None, *, version: str | None = None) -> bb.Agent[str]:
        """An agent that says its name, or `text`."""

        async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
            self.calls.append(name)
            self.heard[name] = tuple(message.content for message in turn.messages)
            if self._fails.get(name):
                raise self._fails[name].pop(0)
            hold = self._holds.pop(name, None)
            if hold is not None:
                hold.reached.set()
                await hold.go.wait()
                if hold.error is not None:
                    raise hold.error
            if name in self.picks:
                turn.select(self.picks[name])
            turn.reply(name if text is None else text, value=self.values.get(name))

        return bb.Agent(name, version).on_message(handler)

    def flow(self, name: str, text: str | None = None, *, version: str | None = None) -> bb.NamedFlow:
        """A named flow of one such agent."""
        return bb.Flow().with_agent(self.agent(name, text, version=version)).with_id(name)


class Disk:
    """What is there for the next process: every app it makes finds what the ones before have stored."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self._memory = bb.MemStore()
        self._apps: list[bb.App] = []

    def store(self) -> bb.Store:
        """A store over it."""
        return self._memory if self.directory is None else bb.FileStore(self.directory)

    def app(self, *flows: bb.NamedFlow | bb.DurableFlow, **options: Any) -> bb.App:
        """An app as a new process would make it."""
        app = bb.App(**{"store": self.store()} | options)
        app.register(*flows)
        self._apps.append(app)
        return app

    async def close(self) -> None:
        """End every app."""
        for app in self._apps:
            await app.stop(timedelta(0))


@asynccontextmanager
async def disk_of(kind: str, directory: Path) -> AsyncIterator[Disk]:
    """A disk of a kind: "memory" or "file"."""
    disk = Disk(directory / "state" if kind == "file" else None)
    try:
        yield disk
    finally:
        await disk.close()


async def cut_off(app: bb.App, hold: Hold, flow: bb.AnyFlow | str, *args: Any, **kwargs: Any) -> None:
    """Run until the hold is reached, and let the caller go away there."""
    task = asyncio.create_task(app.run(flow, *args, **kwargs))
    waiting = asyncio.create_task(hold.reached.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED, timeout=10)
    waiting.cancel()
    assert hold.reached.is_set(), "the run ended before it came to the hold"
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def until(condition: Any, seconds: float = 10.0) -> None:
    """Wait until a condition holds (a function, plain or async)."""
    end = asyncio.get_running_loop().time() + seconds
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        assert asyncio.get_running_loop().time() < end, "it did not come true"
        await asyncio.sleep(0.01)


async def contents(store: bb.Store) -> dict[str, list[bytes]]:
    """Everything in a store."""
    return {info.name: await store.read(info.name) for info in await store.list("")}


def mocked(store: MockStore, *flows: bb.NamedFlow | bb.DurableFlow, **options: Any) -> bb.App:
    """An app over a store with faults, on a clock that does not wait."""
    options.setdefault("clock", ManualClock(auto=True))
    app = bb.App(store=store, **options)
    app.register(*flows)
    return app
