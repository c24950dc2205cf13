"""How a handler faces the client."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import Any

import attrs
import pytest

from bb.agents.agent import Agent
from bb.agents.handle import handle
from bb.agents.tool import Tool
from bb.errors import Closed, InvalidId, StoreError, WiringError
from bb.messages import Message, Request, ToolCall, ToolSpec, assistant
from bb.models.base import ModelRequest
from bb.testing.scripted_model import ScriptedModel
from tests.unit.agents.doubles import Doors, Live, Memory, Table, chat, turn

CALL = ToolCall("c1", "lookup")
OTHER = ToolCall("c2", "lookup")

user: ContextVar[str] = ContextVar("user", default="nobody")


@attrs.frozen
class Order:
    item: str
    count: int = 1


# --- what the client sent ---


def test_messages_and_last() -> None:
    assert (turn().messages, turn().last) == ((), Message())
    assert turn("a", "b").last == Message("b")


def test_in_a_group_last_and_results_are_live_and_messages_is_the_start() -> None:
    table = Table(Message("topic"))
    now = turn("topic", shared=table)
    table.append(Message("more", role="tool").with_results(CALL.result("x")))
    assert (now.messages, now.last.content, now.tool_results[0].content) == ((Message("topic"),), "more", "x")


@pytest.mark.parametrize(
    ("payload", "order"),
    [
        ({"item": "tea"}, Order("tea")),
        (Order("tea", 2), Order("tea", 2)),
        ({"item": "tea", "count": "two"}, None),
        ("tea", None),
        (None, None),
    ],
)
def test_payload_and_metadata_fit_or_are_none(payload: object, order: Order | None) -> None:
    assert turn(payload=payload).payload(Order) == order
    if isinstance(payload, dict):
        assert turn(metadata=payload).metadata(Order) == order
    assert turn().metadata(Order) is None


def test_bytes_are_given_as_they_are_and_read_as_json_by_any_other_type() -> None:
    sent = b'{"item": "tea", "count": 2}'
    assert turn(payload=sent).payload(bytes) == sent
    assert turn(payload=sent).payload(Order) == Order("tea", 2)
    assert turn(payload=b"[" * 100_000).payload(Order) is None
    assert turn(payload=b"\xff").payload(Order) is None
    assert turn(payload={"item": "tea"}).payload(bytes) is None
    assert turn(payload=None).payload(bytes) is None


def test_a_type_without_schema_is_no_missing_payload() -> None:
    with pytest.raises(WiringError):
        turn(payload={}).payload(complex)


def test_request_params_and_run() -> None:
    now = turn(request=Request("m"), params={"n": 1}, run_id="r-1")
    assert (now.request.model, now.params, now.run_id) == ("m", {"n": 1}, "r-1")
    with pytest.raises(TypeError):
        now.params["n"] = 2  # type: ignore[index]


# --- answering ---


async def test_replies_are_the_assistants_in_order_and_the_last_is_the_value() -> None:
    now = turn()
    assert (now.replies, now.value, now.selected) == ([], None, None)
    now.reply("one")
    now.reply(Message("two"))
    assert (now.replies, now.value) == ([assistant("one"), assistant("two")], "two")
    now.reply(await chat(ScriptedModel('{"item": "tea"}'), Agent(name="a").with_schema(Order)).ask())
    assert now.value == Order("tea")
    now.reply("three", value=3)
    assert now.replies[-1] == assistant("three")
    value: object = now.value
    assert value == 3


async def test_a_model_reply_is_said_with_its_calls_which_are_not_made_twice() -> None:
    now = turn()
    reply = (
        await chat(ScriptedModel(["look", CALL]), Agent(name="a").with_schema(Order))
        .with_tools(Tool("lookup", "", Order))
        .ask()
    )
    now.reply(reply)
    now.call(*reply.tool_calls, OTHER)
    assert (now.replies, now.value) == ([assistant("look").with_calls(CALL, OTHER)], "look")


async def test_a_reply_still_arriving_is_said_when_it_is_whole() -> None:
    hold = asyncio.Event()

    async def slowly(_request: ModelRequest) -> list[Any]:
        await hold.wait()
        return ["late", CALL]

    talk, now = chat(ScriptedModel(slowly), live=True), turn()
    now.reply(await talk.ask())
    now.call(OTHER)
    now.reply("after")
    with pytest.raises(WiringError, match="still arriving"):
        _ = now.replies
    hold.set()
    await now.settle()
    assert now.replies == [assistant("late").with_calls(CALL, OTHER), assistant("after")]
    await talk.aclose()


def test_calls_join_the_last_reply_or_an_empty_one() -> None:
    now = turn()
    now.call()
    assert now.replies == []
    now.call(CALL)
    now.call(OTHER, CALL)
    assert now.replies == [assistant("").with_calls(CALL, OTHER)]
    now.reply("wait")
    now.call(CALL)
    assert now.replies[1] == assistant("wait").with_calls(CALL)


def test_in_a_group_all_is_said_at_once_and_calls_are_messages_of_their_own() -> None:
    table = Table()
    now = turn(shared=table)
    now.reply("hear")
    now.call(CALL)
    assert table.chat == now.replies == [assistant("hear"), assistant("").with_calls(CALL)]


def test_the_last_selection_counts_and_must_be_an_id() -> None:
    now = turn()
    now.select("a")
    now.select("b")
    with pytest.raises(InvalidId):
        now.select("no id")
    assert now.selected == "b"


# --- streaming ---


async def test_a_stream_goes_out_live_and_becomes_one_reply() -> None:
    live = Live()
    now = turn(floor=live)
    now.reply("before")
    async with now.stream() as out:
        assert out
        await out.write("a")
        await out.write("")
        await out.write("b")
    assert (live.text, live.said) == (["a", "b"], [(assistant("before"),)])
    assert now.replies == [assistant("before"), assistant("ab")]
    with pytest.raises(Closed, match="stream has ended"):
        await out.write("c")


async def test_a_stream_that_is_not_granted_is_false_and_still_a_reply() -> None:
    now = turn()
    async with now.stream() as out:
        assert not out
        await out.write("a")
    async with now.stream():
        pass
    assert now.replies == [assistant("a")]


async def test_in_a_group_nothing_is_granted() -> None:
    live, table = Live(), Table()
    now = turn(floor=live, shared=table)
    async with now.stream() as out:
        assert not out
        await out.write("a")
    assert (live.said, table.chat) == ([], [assistant("a")])


async def test_however_the_block_is_left_what_was_written_is_a_reply() -> None:
    now = turn(floor=Live())

    async def failing() -> None:
        async with now.stream() as out:
            await out.write("half")
            raise ValueError("oops")

    with pytest.raises(ValueError, match="oops"):
        await failing()
    assert now.replies == [assistant("half")]

    async def cancelled() -> None:
        async with now.stream() as out:
            await out.write("more")
            await asyncio.Event().wait()

    task = asyncio.create_task(cancelled())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert now.replies == [assistant("half"), assistant("more")]


async def test_a_client_that_went_away_is_no_error_but_a_lost_store_is() -> None:
    now = turn(floor=Live(error=ConnectionError()))
    async with now.stream() as out:
        await out.write("a")
        await out.write("b")
    assert now.replies == [assistant("ab")]
    with pytest.raises(StoreError):
        async with turn(floor=Live(error=StoreError("gone"))).stream() as out:
            await out.write("a")


# --- working ---


async def test_a_step_is_an_entry_with_its_arguments() -> None:
    memory, ran = Memory(), list[int]()

    async def double(n: int) -> int:
        ran.append(n)
        return 2 * n

    def add(a: int, b: int = 1) -> int:
        return a + b

    assert await turn(ledger=memory).step("double", double, 4) == 8
    again = turn(ledger=Memory(memory.known))
    assert [await again.step("double", double, 4), await again.step("double", double, 5)] == [8, 10]
    assert await again.step("add", add, 1, b=2) == 3
    assert await again.step("lambda", lambda: double(1)) == 2
    assert ran == [4, 5, 1]


async def test_plain_steps_and_tools_run_in_a_thread_with_the_context() -> None:
    def where(_order: Order = Order("")) -> str:
        return f"{user.get()} {threading.current_thread() is threading.main_thread()}"

    async def one(name: str) -> tuple[str, str]:
        user.set(name)
        tool = Tool("where", "", Order).on_call(where)
        return await turn().step("where", where), await tool.run(ToolCall("c", "where", '{"item": ""}'))

    names = [f"u{i}" for i in range(50)]
    assert await asyncio.gather(*map(one, names)) == [(f"{name} False", f"{name} False") for name in names]


async def test_gates() -> None:
    doors = Doors()
    first, second = turn(gates=doors), turn(gates=doors)
    waiting = asyncio.create_task(first.gate("ready").wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    second.gate("ready").open()
    second.gate("ready").open()
    await waiting
    await first.gate("ready").wait()


async def test_a_closed_turn_acts_no_more() -> None:
    now = turn("hi", floor=Live(), flow="talk")
    gate = now.gate("g")
    stream = now.stream()
    out = await stream.__aenter__()
    await out.write("a")
    now.reply("said")
    now.close()
    now.close()
    acts = [lambda: now.reply("x"), now.call, lambda: now.select("x"), lambda: now.gate("x"), gate.open]
    for act in acts:
        with pytest.raises(Closed, match="at talk"):
            act()
    for coroutine in (now.step("x", int), gate.wait(), out.write("b"), now.stream().__aenter__()):
        with pytest.raises(Closed):
            await coroutine
    await stream.__aexit__(None, None, None)
    assert (now.replies, now.last) == ([assistant("said")], Message("hi"))


async def test_a_closed_chat_acts_no_more() -> None:
    talk = chat(ScriptedModel())
    await talk.aclose()
    for act in (lambda: talk.add("x"), talk.with_tools, talk.forward_tools, lambda: talk.messages):
        with pytest.raises(Closed):
            act()


# --- agents without a handler ---

TOOLS = Request(tools=(ToolSpec("lookup", "", {"type": "object"}),), tool_choice="any")


async def test_the_default_agent_relays_text_and_calls_whole() -> None:
    model = ScriptedModel(["look", CALL])
    now = turn("hi", request=TOOLS)
    await handle(Agent(), now, chat(model, request=TOOLS))
    assert now.replies == [assistant("look").with_calls(CALL)]
    assert model.requests == [ModelRequest([Message("hi")], TOOLS.tools, "any")]


async def test_the_default_agent_streams_chunk_by_chunk_where_it_may() -> None:
    live = Live()
    now = turn("hi", floor=live)
    await handle(Agent(), now, chat(ScriptedModel(["a", "b", CALL]), live=True))
    assert (live.text, now.replies) == (["a", "b"], [assistant("ab").with_calls(CALL)])


async def test_the_default_agent_of_a_group_sends_the_shared_chat_once() -> None:
    table, model = Table(Message("topic")), ScriptedModel("mine")
    await handle(Agent(), turn("topic", shared=table), chat(model, shared=table))
    assert model.requests[0].messages == (Message("topic"),)
    assert table.chat == [Message("topic"), assistant("mine")]


async def test_the_default_agent_with_a_schema_says_a_value() -> None:
    agent = Agent(name="a").with_schema(Order)
    live = Live()
    now = turn("hi", floor=live)
    await handle(agent, now, chat(ScriptedModel('{"item": "tea"}'), agent, live=True))
    assert now.value == Order("tea")


async def test_the_default_agent_says_even_nothing() -> None:
    for live in (False, True):
        now = turn("hi", floor=Live(grants=live))
        await handle(Agent(), now, chat(ScriptedModel("", CALL), live=live))
        assert (now.replies, now.value) == ([assistant("")], "")


async def test_outside_a_granted_stream_answers_are_whole_whoever_watches() -> None:
    ended = []

    async def speak(now: Any, talk: Any) -> None:
        ended.append((await talk.ask()).text)
        async with now.stream() as out:
            reply = await talk.ask()
            ended.append(reply.ended)
            async for piece in reply.stream():
                await out.write(piece)
        ended.append((await talk.ask()).text)

    for live in (True, False):
        now = turn("hi", floor=Live(grants=live))
        talk = chat(ScriptedModel("one", ["t", "wo"], "three"), live=True)
        await handle(Agent().on_message(speak), now, talk)
        assert now.replies == [assistant("two")]
    assert ended == ["one", False, "three", "one", True, "three"]


async def test_a_handler_may_leave_its_reply_arriving() -> None:
    async def relay(now: Any, talk: Any) -> None:
        async with now.stream():
            reply = await talk.add(*now.messages).ask()
        assert not reply.ended
        now.reply(reply)

    now, talk = turn("hi", floor=Live()), chat(ScriptedModel(["a", "b"]), live=True)
    await handle(Agent().on_message(relay), now, talk)
    await talk.aclose()
    assert now.replies == [assistant("ab")]


async def test_the_repr_of_a_reply_shows_its_text() -> None:
    hold = asyncio.Event()

    async def held(_request: ModelRequest) -> str:
        await hold.wait()
        return "x"

    talk = chat(ScriptedModel("hello", held), live=True)
    assert repr(await (await talk.ask()).done()) == "ModelReply('hello')"
    assert repr(await talk.ask()) == "ModelReply(ended=False)"
    await talk.aclose()
