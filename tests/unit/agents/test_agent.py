"""Agents as values."""

from __future__ import annotations

from typing import Any, cast

import attrs
import pytest

from bb.agents.agent import Agent
from bb.errors import InvalidId, WiringError
from bb.messages import Message, Role
from bb.models.fixed import FixedModel
from bb.schema import Schema


@attrs.frozen
class City:
    name: str


async def greet(turn: Any, chat: Any) -> None:
    turn.reply("hi")


def test_every_builder_call_gives_a_new_value() -> None:
    plain, model = Agent(), FixedModel("x")
    built = (
        plain.with_model(model).with_role("be kind").with_schema(City).selects("a").selects("b", "c").on_message(greet)
    )
    assert plain == Agent() and plain.handler is None
    assert (built.model, built.role, built.schema) == (model, Role("be kind"), Schema(City))
    assert (built.exits, built.handler, built.name) == (("a", "b", "c"), greet, "greet")
    assert plain.with_role(Message("x", "developer")).role == Message("x", "developer")
    assert plain.with_schema(Schema(City)).schema == Schema(City)


def test_name_version_and_exits_are_what_makes_agents_equal() -> None:
    assert Agent(name="a").with_role("x").with_model(FixedModel("y")) == Agent(name="a")
    assert Agent(name="a", version="1") != Agent(name="a", version="2")
    assert Agent(name="a").selects("x") != Agent(name="a")
    assert Agent(name="mine").on_message(greet).name == "mine"


def test_a_handler_is_async_and_may_be_any_object() -> None:
    class Greeter:
        async def __call__(self, turn: Any, chat: Any) -> None:
            turn.reply("hi")

    greeter: Any = Greeter()
    assert Agent().on_message(greeter).name is None
    with pytest.raises(WiringError, match="not async"):
        Agent().on_message(cast(Any, print))


def test_ids_are_checked_at_once() -> None:
    with pytest.raises(InvalidId):
        Agent(name="no id")
    with pytest.raises(InvalidId):
        Agent().selects("no id")
    with pytest.raises(WiringError):
        Agent().with_schema(complex)
