"""The processes that the crash tests kill. `serve` stays warm and forks one per job; `run` is one of its own.

A job is a JSON object; see `Job`. What comes out is written to its `out`, whole or not at all.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from asyncio import Future
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Literal
from unittest import mock

from attrs import asdict, define

import bb
from bb.engine.runs.keeper import Keeper
from bb.stores.base import Lease
from bb.stores.file import FileStore
from bb.stores.rows import Rows
from tests.crashes.pipeline import Extra, Lookup, SideFile, pipeline, told

Point = Literal["", "before", "mid", "after", "event"]
"""Where to die: before an append, inside its transaction, when it is committed and nobody knows, or in an event's wake."""


@define
class Job:
    """What a process is to do."""

    home: str
    """Holds the store, the side file, and whatever the process and the test tell each other."""
    run_id: str
    out: str
    point: Point = ""
    at: int = 0
    """Which append, or which `flow.end`, from 1."""
    lease: float = 30.0
    wait: float = 60.0
    hook: str = ""
    """What the step "last" does beside: `blocks` the loop, or `holds` until the test lets it go on."""
    seconds: float = 0.0
    callers: int = 0
    """So many tasks and so many threads ask for the run at once, when `start` (time.time) has come."""
    start: float = 0.0
    deaf: bool = False
    """Whether nothing keeps its leases, so that it learns from the store alone that one is lost."""
    sigterm: bool = False
    """Whether SIGTERM cancels the run, as servers do it."""

    def text(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))


def die() -> None:
    """The real thing: nothing runs after it."""
    os.kill(os.getpid(), signal.SIGKILL)


class Store(FileStore):
    """A `FileStore` that notes refused appends, and dies at one of them if the job says so."""

    def __init__(self, job: Job) -> None:
        super().__init__(Path(job.home) / "store")
        self._job = job
        self._appends = 0

    def append(self, stream: str, expected: int, records: Sequence[bytes], lease: Lease | None = None) -> Future[int]:
        self._appends += 1
        doomed = self._appends == self._job.at
        if doomed and self._job.point == "before":
            will(self._job, stream, expected, len(records))
            die()
        future = super().append(stream, expected, records, lease)
        if doomed and self._job.point == "after":
            will(self._job, stream, expected, len(records))
            if future.done():
                die()
            future.add_done_callback(lambda _: die())
        future.add_done_callback(self._note)
        return future

    def _note(self, future: Future[int]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            with (Path(self._job.home) / f"{self._job.run_id}.refused").open("a") as file:
                file.write(f"{type(error).__name__}\n")


class Dying:
    """A tracer that dies when the at-th step has told of its end."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._ends = 0

    def event(self, event: bb.Event, /) -> None:
        if event.kind == "flow.end" and self._job.point == "event":
            self._ends += 1
            if self._ends == self._job.at:
                die()


def will(job: Job, stream: str, expected: int, records: int) -> None:
    """Leave word of the append at which the process is about to die."""
    Path(job.out + ".will").write_text(json.dumps([stream, expected, records]))


def dying_inside(job: Job) -> Callable[..., int]:
    """`Rows.append` that dies when the rows are written and the transaction is still open."""
    real, calls = Rows.append, iter(range(1, 10**6))

    def append(
        self: Rows, stream: str, expected: int, records: Sequence[bytes], lease: Lease | None, now: float
    ) -> int:
        length = real(self, stream, expected, records, lease, now)
        if next(calls) == job.at:
            will(job, stream, expected, len(records))
            die()
        return length

    return append


def hooks(job: Job) -> dict[str, Extra]:
    """What happens inside the step "last"."""
    home = Path(job.home)

    async def blocks(turn: bb.Turn) -> None:
        (home / "reached").touch()
        time.sleep(job.seconds)  # noqa: ASYNC251 - the point of it

    async def holds(turn: bb.Turn) -> None:
        (home / "reached").touch()
        while not (home / "go").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)

    known: dict[str, Extra] = {"blocks": blocks, "holds": holds}
    return {"last": known[job.hook]} if job.hook else {}


async def perform(job: Job) -> None:
    """Run the pipeline as the job says, and tell how it came out."""
    app = bb.App(store=Store(job), trace=Dying(job), lease=timedelta(seconds=job.lease))
    app.register(pipeline(SideFile(Path(job.home) / f"{job.run_id}.side"), hooks(job)))
    wait = timedelta(seconds=job.wait)
    outcomes: list[bb.Outcome] = []

    async def call() -> None:
        await asyncio.sleep(max(0.0, job.start - time.time()))
        outcomes.append(await app.run("pipeline", "hi", run_id=job.run_id, wait=wait))

    threads = [threading.Thread(target=lambda: asyncio.run(call())) for _ in range(job.callers)]
    for thread in threads:
        thread.start()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(max(1, job.callers)):
                group.create_task(call())
    except* bb.RunBusy:
        answer: list[object] = ["busy"]
    else:
        answer = []
    for thread in threads:
        await asyncio.to_thread(thread.join)
    answer += [told(outcome) for outcome in outcomes]
    await app.stop()
    tell(job, answer)


def tell(job: Job, answer: list[object]) -> None:
    """Write the answer of a job, whole or not at all."""
    new = Path(job.out + ".new")
    new.write_text(json.dumps(answer))
    new.rename(job.out)


async def until_told(job: Job) -> None:
    """`perform`, cancelled by SIGTERM."""
    task = asyncio.current_task()
    assert task is not None
    if job.sigterm:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await perform(job)


def run(job: Job) -> None:
    """Do a job."""
    with ExitStack() as changed:
        if job.point == "mid":
            # an append of one statement has no middle, so all of them are made in a transaction
            changed.enter_context(mock.patch.object(Rows, "append_next", return_value=False, create=True))
            changed.enter_context(mock.patch.object(Rows, "append", dying_inside(job)))
        if job.deaf:
            changed.enter_context(mock.patch.object(Keeper, "hold"))
        asyncio.run(until_told(job))


def child(job: Job) -> None:
    """Do a job in a fork; what it says goes to a file."""
    code = 1
    try:
        said = os.open(job.out + ".err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os.dup2(said, 2)
        run(job)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    """Fork a process per line `fork JOB`, answering its pid; `wait PID` answers how it ended."""
    bb.Schema(Lookup).parse("{}")  # loads what a fork would load anew each time
    for line in iter(sys.stdin.readline, ""):
        word, _, rest = line.partition(" ")
        if word == "fork":
            answer = os.fork()
            if answer == 0:
                child(Job(**json.loads(rest)))
        else:
            answer = os.waitstatus_to_exitcode(os.waitpid(int(rest), 0)[1])
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        run(Job(**json.loads(sys.argv[2])))
