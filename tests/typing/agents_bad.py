"""What mypy must refuse; each line says which error it is."""

from attrs import frozen

from bb.agents.agent import Agent
from bb.agents.chat import ModelChat
from bb.agents.turn import Turn


@frozen
class City:
    name: str


async def size(city: City) -> int:
    return len(city.name)


def not_async(turn: Turn, chat: ModelChat) -> None:
    turn.reply("hi")


async def of_text(turn: Turn, chat: ModelChat[str]) -> None:
    turn.reply("hi")


async def handler(turn: Turn, chat: ModelChat[City]) -> None:
    (await chat.ask()).value.size  # E: "City" has no attribute "size"
    await turn.step("size", size, "Rome")  # E: (incompatible type "str"|No overload)
    await turn.step("size", size)  # E: (Too few arguments|Missing positional|No overload)
    turn.with_model  # E: has no attribute "with_model"
    turn.select(1)  # E: incompatible type "int"
    chat.with_model  # E: has no attribute "with_model"


Agent().ask()  # E: has no attribute "ask"
Agent().on_message(not_async)  # E: incompatible type
Agent().with_schema(City).on_message(of_text)  # E: incompatible type
