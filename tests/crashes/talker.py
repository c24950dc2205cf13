"""Processes that have a conversation over a `FileStore`, and die where the test says. Each line of input is a job."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio import Future
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from attrs import asdict, define

import bb
from bb.flows.refs import ref
from bb.flows.tree import Await, Bind, Emit
from bb.ops import op
from bb.stores.base import Lease
from tests.crashes.pipeline import SideFile
from tests.crashes.worker import die

TURNS = ("", "monday", "2")
PROMPTS = ["Which day?", "monday: found. How many?", "For 2: booked."]


@define
class Talk:
    """What a process is to say: the turns from `first` to `last`, and where it dies, if at all."""

    home: str
    first: int = 0
    last: int = 2
    at: int = 0
    point: Literal["", "before", "after", "end"] = ""
    """Before or after the `at`-th append, or when the last turn is over."""

    def text(self) -> str:
        """As a line."""
        return json.dumps(asdict(self))


class Store(bb.FileStore):
    """Dies at an append."""

    def __init__(self, talk: Talk) -> None:
        super().__init__(Path(talk.home) / "store")
        self._talk = talk
        self._appends = 0

    def append(self, stream: str, expected: int, records: Sequence[bytes], lease: Lease | None = None) -> Future[int]:
        self._appends += 1
        doomed = self._appends == self._talk.at
        if doomed and self._talk.point == "before":
            die()
        future = super().append(stream, expected, records, lease)
        if doomed and self._talk.point == "after":
            if future.done():
                die()
            future.add_done_callback(lambda _: die())
        return future


def conversation(side: SideFile) -> bb.DurableFlow:
    """Asks for a day and a number of people, and does something after each."""

    @op()
    def find(day: str) -> str:
        side.add("find")
        return "found"

    @op()
    def book(count: float) -> str:
        side.add("book")
        return "booked"

    flow = (
        (Emit("Which day?") >> Await("user", bind="day"))
        >> Bind("found", find(ref("day", str)))
        >> Emit("{day}: {found}. How many?")
        >> Await("user", bind="count", type="Number")
        >> Bind("booked", book(ref("count", float)))
        >> Emit("For {count}: {booked}.")
    )
    return flow.with_id("table").durable()


async def perform(talk: Talk) -> None:
    """Have a part of the conversation, and write down what was shown."""
    app = bb.App(store=Store(talk))
    session = app.session(conversation(SideFile(Path(talk.home) / "side")), "s")
    for number in range(talk.first, talk.last + 1):
        turn_id = f"t{number}"
        turn = await (session.send(TURNS[number], turn_id=turn_id) if number else session.start(turn_id=turn_id))
        with (Path(talk.home) / "shown").open("a") as shown:
            shown.write(json.dumps([number, turn.prompt, turn.done]) + "\n")
    if talk.point == "end":
        die()
    await app.stop()


def main() -> None:
    """Have each job done by a fork, and tell how that ended."""
    for line in iter(sys.stdin.readline, ""):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                asyncio.run(perform(Talk(**json.loads(line))))
                code = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stderr.flush()
                os._exit(code)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
