"""What an agent does with its turn."""

from __future__ import annotations

from collections.abc import Awaitable

from bb.agents.agent import Agent, T
from bb.agents.chat import ModelChat
from bb.agents.turn import Turn
from bb.errors import WiringError
from bb.redaction import redacted


async def handle(agent: Agent[T], turn: Turn, chat: ModelChat[T]) -> None:
    """Run the agent's handler, or the default one, and wait for the replies it left arriving.

    Raises:
        WiringError: the handler returned a value, which nobody would get.
    """
    chat.live_in(turn)
    work: Awaitable[object] = agent.handler(turn, chat) if agent.handler is not None else answer(turn, chat)
    returned = await work
    if returned is not None:
        raise WiringError(
            f"agent {agent.name or '(unnamed)'} returned {redacted(repr(returned))[:80]}",
            remedy="a handler answers with turn.reply(...) and returns nothing",
        )
    await turn.settle()


async def answer(turn: Turn, chat: ModelChat[T]) -> None:
    """The default: ask with the chat, the client's tools and its choice; relay text, live if possible, and calls."""
    if not turn.in_group:  # a chat in a Group sends the shared chat, and the incoming one with it
        chat.add(*turn.messages)
    async with turn.stream() as out:
        reply = await chat.forward_tools().ask()
        async for piece in reply.stream():
            await out.write(piece)
        if not reply.tool_calls:
            out.value = reply.value
    if out.text:
        turn.call(*reply.tool_calls)
    else:
        turn.reply(reply)
