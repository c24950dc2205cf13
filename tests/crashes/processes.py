"""Processes to kill, and a look at what they left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from attrs import frozen

from bb.log import Decided, Entry, Fact, Saved, decode, run_stream
from bb.stores.file import FileStore
from tests.crashes.pipeline import SideFile
from tests.crashes.worker import Job, Point

ROOT = Path(__file__).parents[2]


class Workers:
    """Starts processes: forks of a warm one, or with an interpreter of their own."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [*_PYTHON, "serve"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def fork(self, job: Job) -> int:
        """Start a job in a fork; gives its pid."""
        return self._ask(f"fork {job.text()}")

    def wait(self, pid: int) -> int:
        """Wait for a fork: its exit code, negative for a signal."""
        return self._ask(f"wait {pid}")

    def close(self) -> None:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(10)
        self._server.stdout.close()

    def _ask(self, line: str) -> int:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(line + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())


_PYTHON = (sys.executable, "-m", "tests.crashes.worker")


def cold(job: Job) -> subprocess.Popen[str]:
    """Start a job in an interpreter of its own."""
    return subprocess.Popen(
        [*_PYTHON, "run", job.text()], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@frozen
class Memory:
    """What the log of a run remembers."""

    saved: frozenset[str]
    entries: frozenset[tuple[str, str]]

    def safe(self, side: SideFile) -> dict[str, int]:
        """The effects that must not be repeated, and how often they were done."""
        counts = side.counts()
        return {
            effect.what: counts[effect.what]
            for effect in side.effects()
            if effect.path in self.saved or (effect.path, effect.entry) in self.entries
        }


class Place:
    """One directory with a store and the side files of its runs."""

    def __init__(self, home: Path, workers: Workers) -> None:
        self.home = home
        self.store = FileStore(home / "store")
        self._workers = workers

    def side(self, run_id: str) -> SideFile:
        """The effects of a run."""
        return SideFile(self.home / f"{run_id}.side")

    def job(
        self,
        run_id: str,
        name: str = "out",
        *,
        point: Point = "",
        at: int = 0,
        lease: float = 30.0,
        wait: float = 60.0,
        hook: str = "",
        seconds: float = 0.0,
        callers: int = 0,
        start: float = 0.0,
        deaf: bool = False,
        sigterm: bool = False,
    ) -> Job:
        """A job of this place; `name` tells apart what several processes of one run say."""
        out = str(self.home / f"{run_id}.{name}")
        return Job(str(self.home), run_id, out, point, at, lease, wait, hook, seconds, callers, start, deaf, sigterm)

    def said(self, job: Job) -> list[object]:
        """What a process told of its outcomes; it must not have complained."""
        err = Path(job.out + ".err")
        assert not err.exists() or err.read_text() == ""
        return list(json.loads(Path(job.out).read_text()))

    def word(self, job: Job) -> tuple[str, int, int]:
        """The append at which a process died: stream, expected length, number of records."""
        stream, expected, records = json.loads(Path(job.out + ".will").read_text())
        return stream, expected, records

    def finish(self, job: Job) -> object:
        """Run a job in a fork to its end; gives the one outcome."""
        assert self._workers.wait(self._workers.fork(job)) == 0, Path(job.out + ".err").read_text()
        (outcome,) = self.said(job)
        return outcome

    async def facts(self, run_id: str) -> list[Fact]:
        """The log of a run."""
        return [decode(record, run_id) for record in await self.store.read(run_stream(run_id))]

    async def fences(self, run_id: str) -> list[int]:
        """The fence of each record of a run."""
        return [json.loads(record)[1] for record in await self.store.read(run_stream(run_id))]

    async def memory(self, run_id: str) -> Memory:
        """What a run remembers."""
        facts = await self.facts(run_id)
        return Memory(
            frozenset(fact.path for fact in facts if isinstance(fact, Saved)),
            frozenset((fact.path, fact.key) for fact in facts if isinstance(fact, Entry)),
        )

    async def no_place_was_saved_twice(self, run_id: str) -> None:
        """Each place has one savepoint, one entry per key, and one decision."""
        facts = await self.facts(run_id)
        places = [
            (type(fact), fact.scope, fact.path, fact.key if isinstance(fact, Entry) else "")
            for fact in facts
            if isinstance(fact, Saved | Entry | Decided)
        ]
        assert len(places) == len(set(places))


async def appears(path: Path) -> None:
    """Wait until a file is there."""
    await until(path.exists)


async def until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until something is the case."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"it did not come to pass in {seconds} s"
        await asyncio.sleep(0.005)


def kill(pid: int) -> None:
    """As the kernel does it when memory runs out."""
    os.kill(pid, signal.SIGKILL)
