"""What `load.py` serves: a flow of two agents. Each does something to the world, and then says something slowly.

LOAD_HOME=folder bb serve load_app:app
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import bb

HOME = Path(os.environ.get("LOAD_HOME", "/nonexistent"))
PARTS = ("first", "second")
PIECES = 4
PAUSE = 0.02  # seconds between two pieces


def expected(asked: str) -> str:
    """What the flow answers."""
    return "\n\n".join("".join(pieces(part, asked)) for part in PARTS)


def pieces(part: str, asked: str) -> list[str]:
    """What one agent says."""
    return [f"{part} of {asked}: {number}. " for number in range(PIECES)]


def effect(part: str, run_id: str) -> None:
    """Do something to the world: whoever dies right after it does it again."""
    with (HOME / "effects").open("a") as effects:
        effects.write(f"{run_id} {part}\n")


def _agent(part: str) -> bb.Flow:
    async def work(turn: bb.Turn, chat: bb.ModelChat) -> None:
        asked = next(message.content for message in turn.messages if message.role == "user")
        effect(part, turn.run_id)
        async with turn.stream() as out:
            for piece in pieces(part, asked):
                await out.write(piece)
                await asyncio.sleep(PAUSE)

    return bb.Flow().with_agent(bb.Agent(part).on_message(work))


def made(store: bb.Store) -> bb.App:
    """The app over a store."""
    app = bb.App(store=store)
    first, second = (_agent(part).with_id(part) >> bb.Respond() for part in PARTS)
    app.register((first >> second).with_id("load").durable())
    return app


if HOME.exists():
    app = made(bb.FileStore(HOME / "state"))
