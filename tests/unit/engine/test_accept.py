"""`Session.accept`: what somebody says is an answer or a start, whichever it is time for."""

from __future__ import annotations

import pytest

import bb
from bb.engine.runs.session import Session
from bb.flows.refs import ref
from bb.flows.tree import Await, Bind, Emit
from bb.ops import op
from tests.trials.kit import Disk


@pytest.fixture
def found() -> list[str]:
    return []


@pytest.fixture
def table(found: list[str]) -> bb.DurableFlow:
    @op()
    def find(day: str) -> str:
        found.append(day)
        return "free"

    flow = (
        (Emit("Which day?") >> Await("user", bind="day"))
        >> Bind("found", find(ref("day", str)))
        >> Emit("{day}: {found}. How many?")
        >> Await("user", bind="count")
        >> Emit("For {count}.")
    )
    return flow.with_id("table").durable()


async def say(session: Session, said: bb.Message | str | list[bb.Message], turn_id: str | None = None) -> str:
    accepted = await session.accept(said, turn_id=turn_id)
    turn = await accepted.run()
    assert turn.turn_id == accepted.turn_id and turn_id in (None, turn.turn_id)
    return turn.prompt


async def test_a_conversation_goes_from_start_to_end(disk: Disk, table: bb.DurableFlow) -> None:
    for round_ in range(2):  # and then begins again
        for said, heard in (
            ("hello", "Which day?"),
            ("monday", "monday: free. How many?"),
            (str(round_), f"For {round_}."),
        ):
            assert await say(disk.app(table).session("table", "s"), said) == heard


async def test_a_turn_that_comes_again_is_the_same(disk: Disk, table: bb.DurableFlow, found: list[str]) -> None:
    said = [("hello", "t1", "Which day?"), ("monday", "t2", "monday: free. How many?"), ("2", "t3", "For 2.")]
    for upto in range(len(said)):
        for text, turn, heard in said[: upto + 1]:
            assert await say(disk.app(table).session("table", "s"), text, turn) == heard
    assert found == ["monday"]

    for _, turn, _ in said:
        with pytest.raises(bb.InputConflict):
            await say(disk.app(table).session("table", "s"), "something else", turn)


async def test_a_reply_that_is_on_record_and_not_heard_yet_is_not_replaced(disk: Disk, table: bb.DurableFlow) -> None:
    session = disk.app(table).session("table", "s")
    await say(session, "hello", "t1")
    await session.accept("monday", turn_id="t2")  # and before it ran, the process died

    with pytest.raises(bb.InputConflict):
        await disk.app(table).session("table", "s").accept("friday", turn_id="t2")
    assert await say(disk.app(table).session("table", "s"), "monday", "t2") == "monday: free. How many?"


async def test_the_last_message_of_the_user_is_the_answer(disk: Disk, table: bb.DurableFlow) -> None:
    session = disk.app(table).session("table", "s")
    chat = [bb.Message("be brief", "system"), bb.Message("hello")]
    await say(session, chat)
    chat += [bb.Message("Which day?", "assistant"), bb.Message("monday"), bb.Message("", "assistant")]
    assert await say(session, chat) == "monday: free. How many?"

    with pytest.raises(bb.InvalidInput):
        await session.accept([bb.Message("Well?", "assistant")])


async def test_a_conversation_that_a_run_began_goes_on(disk: Disk, table: bb.DurableFlow) -> None:
    app = disk.app(table)
    await app.run("table", "hello", run_id="r")
    assert await say(app.session("table", "r"), "monday") == "monday: free. How many?"
