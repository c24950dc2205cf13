"""A site that is called by webhooks, for tests to serve in a process of its own: `bb serve tests.serve.hooked:app`."""

from __future__ import annotations

import asyncio

import bb
from tests.serve.kit import agent
from tests.serve.site import HOME, gate, note


def _gated(name: str) -> bb.NamedFlow:
    """Waits at its gate, and then writes down what came."""

    async def say(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await gate(f"{name}.{turn.run_id}")
        body, headers = turn.payload(bytes) or b"", turn.metadata(dict) or {}
        note(f"{name} {turn.run_id} {body.decode()} {headers.get('X-Kind')}")
        turn.reply(name)

    return agent(say, name).with_id(name)


async def _first(turn: bb.Turn, chat: bb.ModelChat) -> None:
    note(f"first {turn.run_id}")
    turn.reply("first")


async def _tidy(turn: bb.Turn, chat: bb.ModelChat) -> None:
    """Waits at its gate, and tidies up for long."""
    try:
        await gate(f"tidy.{turn.run_id}")
    finally:
        await asyncio.sleep(4)


def made() -> bb.App:
    """The site."""
    app = bb.App(store=bb.FileStore(HOME / "state"))

    @bb.op()
    async def wake(session: str) -> None:
        """Tell a run that waits."""
        await app.deliver("bell", "rung", session_id=session, delivery_id=session)

    async def who(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await turn.step("wake", wake.fn, (turn.payload(bytes) or b"").decode())

    answering = (agent(_first, "first").with_id("first") >> bb.Respond() >> _gated("last") >> bb.Respond()).with_id("x")
    hooks = (
        bb.Webhook("quiet", _gated("quiet")),
        bb.Webhook("answers", answering.durable()),
        bb.Webhook("bell", agent(who, "who")),
        bb.Webhook("tidy", agent(_tidy, "tidy"), bb.Respond()),
    )
    app.on_start(bb.Chain(hooks).with_id("hooks"))
    waits = bb.Await("bell", bind="x").next(bb.Emit("The bell was {x}."))
    app.register(waits.with_id("waits").durable())
    return app


if HOME.exists():
    app = made()
