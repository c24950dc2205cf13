"""What agents may be written like, and the types they have."""

from typing import assert_type

from attrs import frozen

from bb.agents.agent import Agent
from bb.agents.chat import ModelChat
from bb.agents.reply import ModelReply
from bb.agents.tool import Tool
from bb.agents.turn import Turn
from bb.messages import Message, ToolCall
from bb.models.fixed import FixedModel


@frozen
class City:
    name: str


@frozen
class Lookup:
    q: str


async def search(args: Lookup) -> str:
    return args.q


def count(args: Lookup) -> list[int]:
    return [len(args.q)]


async def size(city: City, unit: str) -> float:
    return len(city.name) / len(unit)


def shout(text: str) -> str:
    return text.upper()


plain = Agent()
assert_type(plain, Agent[str])
assert_type(plain.with_model(FixedModel("x")).with_role("be kind").selects("a", "b"), Agent[str])
cities = Agent(name="cities").with_schema(City)
assert_type(cities, Agent[City])
assert_type(cities.with_role(Message("be kind", "system")), Agent[City])

assert_type(Tool("search", "Search", Lookup).on_call(search), Tool)
assert_type(Tool("count", "Count", Lookup).on_call(count), Tool)


@cities.on_message
async def find(turn: Turn, chat: ModelChat[City]) -> None:
    reply = await chat.add(*turn.messages, "which city?").with_tools(Tool("search", "Search", Lookup)).ask()
    assert_type(reply, ModelReply[City])
    assert_type(reply.value, City)
    assert_type(reply.text, str)
    assert_type(reply.tool_calls, tuple[ToolCall, ...])
    assert_type(await chat.resolve(), ModelReply[City])
    assert_type(await chat.ask_with("once more"), ModelReply[City])
    assert_type(reply.extract(Lookup), Lookup)
    assert_type(await turn.step("size", size, reply.value, "km"), float)
    assert_type(await turn.step("shout", shout, "hi"), str)
    assert_type(turn.payload(City), City | None)
    assert_type(turn.metadata(Lookup), Lookup | None)
    turn.reply(reply)
    turn.reply(reply.text, value=reply.value)
    turn.select("next")


assert_type(find, Agent[City])


@plain.on_message
async def relay(turn: Turn, chat: ModelChat) -> None:
    reply = await chat.add(*turn.messages).ask()
    assert_type(reply, ModelReply[str])
    async with turn.stream() as out:
        async for piece in reply.stream():
            await out.write(piece)
    turn.call(*(await reply.done()).tool_calls)
