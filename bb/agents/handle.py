"""What an agent does with its turn."""

from __future__ import annotations

from bb.agents.agent import Agent, T
from bb.agents.chat import ModelChat
from bb.agents.turn import Turn


async def handle(agent: Agent[T], turn: Turn, chat: ModelChat[T]) -> None:
    """Run the agent's handler, or the default one, and wait for the replies it left arriving."""
    chat.live_while(lambda: turn.streaming)
    await (agent.handler(turn, chat) if agent.handler is not None else answer(turn, chat))
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
