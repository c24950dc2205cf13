"""A site as a user would write one, for tests to serve in a process of its own: `bb serve tests.serve.site:app`.

Where its state is comes from the environment. A handler that is to wait does so until the test has made a file.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

from attrs import asdict

import bb
from bb.flows.refs import ref
from bb.flows.tree import Await, Bind, Emit
from bb.models.base import Chunk, ModelRequest
from bb.ops import op
from tests.crashes.processes import until

HOME = Path(os.environ.get("SITE_HOME", "/nonexistent"))


def note(what: str) -> None:
    """Write down an effect."""
    with (HOME / "notes").open("a") as notes:
        notes.write(what + "\n")


async def gate(name: str) -> None:
    """Wait until the test opens a gate, having told it that somebody waits."""
    (HOME / f"{name}.waits").touch()
    await until((HOME / f"{name}.open").exists)


class Says:
    """A model that says its chunks, writes down that it was asked, and bills."""

    def __init__(self, *chunks: Chunk, name: str = "model") -> None:
        self._chunks = chunks
        self._name = name

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[Chunk]:
        note(f"asked {self._name}")
        for chunk in self._chunks:
            yield chunk
        yield bb.Usage(input=10, output=5, cache_read=3, cache_write=2, reasoning=1)


class Relay:
    """A model that calls the first tool it is offered, until it is given a result."""

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[Chunk]:
        results = [result for message in request.messages for result in message.results]
        if results:
            yield f"it says {results[-1].content}"
        else:
            yield "Let "
            yield "me look."
            yield bb.ToolCall("call_1", request.tools[0].name, '{"city": "Oslo"}')
            yield bb.ToolCall("call_2", request.tools[0].name)


def speaker(name: str, *chunks: str) -> bb.NamedFlow:
    """Streams its chunks, and writes down that it did."""

    async def say(turn: bb.Turn, chat: bb.ModelChat) -> None:
        note(f"{name} {turn.run_id}")
        async with turn.stream() as out:
            for chunk in chunks:
                await out.write(chunk)

    return bb.Flow().with_agent(bb.Agent(name).on_message(say)).with_id(name)


def replier(name: str, *texts: str) -> bb.NamedFlow:
    """Replies its texts."""

    async def say(turn: bb.Turn, chat: bb.ModelChat) -> None:
        note(f"{name} {turn.run_id}")
        for text in texts:
            turn.reply(text)

    return bb.Flow().with_agent(bb.Agent(name).on_message(say)).with_id(name)


def chooser(name: str, member: str) -> bb.NamedFlow:
    """Says nothing, and selects."""

    async def pick(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.select(member)

    return bb.Flow().with_agent(bb.Agent(name).on_message(pick)).with_id(name)


def flaky(name: str, *chunks: str) -> bb.NamedFlow:
    """Streams its chunks, and fails then, unless it did so for this run before."""

    async def say(turn: bb.Turn, chat: bb.ModelChat) -> None:
        failed = HOME / f"{name}.{turn.run_id}.failed"
        async with turn.stream() as out:
            for chunk in chunks:
                await out.write(chunk)
        if not failed.exists():
            failed.touch()
            raise RuntimeError("the secret of the house")

    return bb.Flow().with_agent(bb.Agent(name).on_message(say)).with_id(name)


def _failing(name: str, *chunks: str) -> bb.NamedFlow:
    async def say(turn: bb.Turn, chat: bb.ModelChat) -> None:
        async with turn.stream() as out:
            for chunk in chunks:
                await out.write(chunk)
        raise RuntimeError("the secret of the house")

    return bb.Flow().with_agent(bb.Agent(name).on_message(say)).with_id(name)


def _gated(name: str, tidies: float = 0) -> bb.NamedFlow:
    """Says one half, and the other when it may; whatever becomes of it, it tidies up for so many seconds."""

    async def say(turn: bb.Turn, chat: bb.ModelChat) -> None:
        note(f"{name} {turn.run_id}")
        try:
            async with turn.stream() as out:
                await out.write("half ")
                await gate(f"{name}.{turn.run_id}")
                await out.write("whole")
        finally:
            await asyncio.sleep(tidies)

    return bb.Flow().with_agent(bb.Agent(name).on_message(say)).with_id(name)


async def _told(turn: bb.Turn, chat: bb.ModelChat) -> None:
    turn.reply(json.dumps([asdict(turn.request), [asdict(message) for message in turn.messages]]))


async def _silent(turn: bb.Turn, chat: bb.ModelChat) -> None:
    """Says nothing."""


@op()
def find(day: str) -> str:
    """Looks for a table."""
    note(f"find {day}")
    return f"free on {day}"


def _agent(name: str, model: bb.Model | None = None) -> bb.Flow:
    return bb.Flow().with_agent(bb.Agent(name) if model is None else bb.Agent(name).with_model(model))


def _flow(name: str, handler: bb.Handler) -> bb.Flow:
    return bb.Flow().with_agent(bb.Agent(name).on_message(handler))


SHAPES: list[bb.NamedFlow | bb.DurableFlow] = [
    (speaker("s1", "one ", "stage")).with_id("single").durable(),
    (
        speaker("t1", "o", "ne")
        >> bb.Respond()
        >> _flow("t2", _silent)
        >> bb.Respond()
        >> speaker("t3", "th", "ree")
        >> bb.Respond()
    )
    .with_id("three")
    .durable(),
    (replier("m1", "first", "second") >> speaker("m2", "la", "st") >> bb.Respond()).with_id("leaves").durable(),
    (
        chooser("c1", "inner")
        >> bb.Select((speaker("x1", "in", "side") >> bb.Respond()).with_id("inner"))
        >> speaker("x2", "after")
    )
    .with_id("selected")
    .durable(),
    (bb.All(speaker("a1", "left"), speaker("a2", "right")) >> bb.Respond() >> replier("a3", "then") >> bb.Respond())
    .with_id("parallel")
    .durable(),
    (speaker("f1", "sure ") >> bb.Respond() >> flaky("f2", "may", "be") >> bb.Respond()).with_id("resumed").durable(),
    (replier("g1", "kept") >> flaky("g2", "may", "be") >> bb.Respond() >> speaker("g3", "end"))
    .with_id("mixed")
    .durable(),
    (speaker("n1", "not ", "durable") >> bb.Respond()).with_id("plain"),
]


def made() -> bb.App:
    """The site."""
    app = bb.App(store=bb.FileStore(HOME / "state"))
    table = (
        (Emit("Which day?") >> Await("user", bind="day"))
        >> Bind("found", find(ref("day", str)))
        >> Emit("{day}: {found}. How many?")
        >> Await("user", bind="count", type="Number")
        >> Emit("A table for {count}.")
    )
    app.register(
        *SHAPES,
        _agent("chat", Says("Hel", "lo")).with_id("chat").durable(),
        _agent("relay", Relay()).with_id("relay").durable(),
        _failing("broken").with_id("fails"),
        _failing("breaks", "so far").with_id("breaks"),
        (speaker("before", "done. ") >> bb.Respond() >> _gated("slow") >> bb.Respond()).with_id("slow").durable(),
        _gated("fleeting", tidies=4).with_id("fleeting-flow"),
        (_gated("tidy", tidies=4) >> bb.Respond()).with_id("tidy-flow").durable(),
        _flow("told", _told).with_id("told"),
        (_flow("mute", _silent) >> bb.Respond()).with_id("silent"),
        table.with_id("table").durable(),
    )
    return app


if HOME.exists():
    app = made()
