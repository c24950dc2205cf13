"""The numbered cases of agents and tools (99 to 105)."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Annotated, Any, Literal

import attrs
import pytest

from bb.agents.agent import Agent
from bb.agents.handle import handle
from bb.agents.links import Linked, call_of, linked, result_of
from bb.agents.tool import Tool
from bb.errors import (
    Fatal,
    InvalidTool,
    MaxRounds,
    NoModel,
    SchemaMismatch,
    StoreError,
    ToolArgs,
    UpstreamError,
    WiringError,
)
from bb.messages import Message, Request, Role, ToolCall, ToolResult, ToolSpec, Usage, assistant, unresolved
from bb.models.base import ModelRequest
from bb.schema import Doc
from bb.testing.scripted_model import ScriptedModel
from tests.unit.agents.doubles import Live, Memory, Table, chat, turn


@attrs.frozen
class Args:
    q: str = "nothing"
    n: int = 1


@attrs.frozen
class Other:
    z: str


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


@attrs.frozen
class Report:
    mood: Mood
    score: Annotated[int, Doc("from 1 to 10")]
    kind: Literal["short", "long"] = "short"


SEARCH = Tool("search", "Search for a thing", Args)
CALL = ToolCall("c1", "search", '{"q": "x"}')
AGAIN = ToolCall("c2", "search", '{"q": "y"}')


def answering(seen: list[Args]) -> Tool:
    async def search(args: Args) -> str:
        seen.append(args)
        return f"found {args.q}"

    return SEARCH.on_call(search)


print_: Any = type("NoSignature", (), {"__call__": print, "__signature__": "none"})()


def mismatched(args: Other) -> str:
    return args.z


# --- 99: what an ask sends ---


async def test_case_099_ask_sends_role_then_what_was_added() -> None:
    model = ScriptedModel("hello")
    talk = chat(model, Agent(name="helper").with_role("be kind"))
    reply = await talk.add("hi", assistant("yes?")).add(Message("help")).ask()
    assert model.requests == [ModelRequest([Role("be kind"), Message("hi"), assistant("yes?"), Message("help")])]
    assert (reply.text, reply.value, reply.message) == ("hello", "hello", assistant("hello"))


async def test_case_099_in_a_group_the_live_shared_chat_comes_between() -> None:
    model, table = ScriptedModel("a", "b"), Table(Message("topic"))
    talk = chat(model, Agent(name="helper").with_role("be kind"), shared=table).add("mine")
    await talk.ask()
    table.append(assistant("theirs"))
    await talk.ask()
    assert model.requests[1].messages == (Role("be kind"), Message("topic"), assistant("theirs"), Message("mine"))


async def test_case_099_tools_and_choice_are_for_one_ask_and_stack() -> None:
    model = ScriptedModel("a", "b")
    client = ToolSpec("theirs", "of the client", {"type": "object"})
    talk = chat(model, request=Request(tools=(client,), tool_choice="theirs"))
    await talk.with_tools(SEARCH).with_tools(Tool("other", "another", {"type": "object"})).forward_tools().ask()
    await talk.ask()
    assert [tool.name for tool in model.requests[0].tools] == ["search", "other", "theirs"]
    assert model.requests[0].tool_choice == "theirs"
    assert (model.requests[1].tools, model.requests[1].tool_choice) == ((), "")


async def test_case_099_ask_with_sends_more_this_once() -> None:
    model = ScriptedModel("a", "b")
    talk = chat(model).add("hi")
    await talk.ask_with("only now")
    await talk.ask()
    assert [len(request.messages) for request in model.requests] == [2, 1]


async def test_case_099_ask_never_runs_a_handler() -> None:
    seen: list[Args] = []
    reply = await chat(ScriptedModel(CALL)).with_tools(answering(seen)).ask()
    assert (reply.tool_calls, seen) == ((CALL,), [])


@pytest.mark.parametrize("how", ["ask", "resolve"])
async def test_case_099_a_broken_tool_never_reaches_a_provider(how: str) -> None:
    model = ScriptedModel("never")
    talk = chat(model).with_tools(SEARCH.on_call(mismatched))
    with pytest.raises(InvalidTool, match="'search' is broken: its handler takes Other"):
        await getattr(talk, how)()
    assert model.requests == []


@pytest.mark.parametrize(
    ("tools", "choice", "why"),
    [
        ((SEARCH, Tool("search", "another", Other)), "", "two tools are named 'search'"),
        ((SEARCH,), "find", "'find' names no tool"),
        ((Tool("", "nameless", Args),), "", "no name"),
    ],
)
async def test_case_099_tools_that_cannot_be_sent(tools: tuple[Tool, ...], choice: str, why: str) -> None:
    with pytest.raises(InvalidTool, match=why):
        await chat(ScriptedModel()).with_tools(*tools).with_tool_choice(choice).ask()


async def test_case_099_no_model_comes_before_a_broken_tool() -> None:
    talk = chat(None).with_tools(SEARCH.on_call(mismatched))
    with pytest.raises(NoModel, match=r"agent helper of flow talk has no model.*with_model") as caught:
        await talk.ask()
    assert isinstance(caught.value, Fatal)


async def test_case_099_asks_are_entries_and_replayed_ones_bill_nothing() -> None:
    memory = Memory()
    model = ScriptedModel("one", "two", usage=Usage(3, 4))
    talk = chat(model, ledger=memory).add("hi")
    assert [(await talk.ask()).text, (await talk.ask()).text] == ["one", "two"]
    assert memory.kinds() == ["ask/helper", "ask/helper"]
    later = Memory(memory.known)
    again = chat(ScriptedModel(), ledger=later).add("hi")
    reply = await again.ask()
    assert [reply.text, (await again.ask()).text] == ["one", "two"]
    assert (memory.spent, later.spent, reply.usage) == ([Usage(3, 4)] * 2, [], Usage(3, 4))


# --- 100: resolve ---


async def test_case_100_calls_of_a_round_run_in_order_and_answer_in_one_message() -> None:
    model, memory, seen = ScriptedModel([CALL, AGAIN], "done", usage=Usage(1, 2)), Memory(), list[Args]()
    talk = chat(model, ledger=memory).add("hi")
    reply = await talk.with_tools(answering(seen)).resolve()
    results = Message(role="tool", results=[CALL.result("found x"), AGAIN.result("found y")])
    assert seen == [Args("x"), Args("y")]
    assert model.requests[1].messages == (Message("hi"), assistant("").with_calls(CALL, AGAIN), results)
    assert (reply.text, reply.usage) == ("done", Usage(2, 4))
    assert memory.kinds() == ["ask/helper", "tool/search", "tool/search", "ask/helper"]
    assert unresolved(talk.messages) == ()


async def test_case_100_an_error_is_a_result_that_says_so() -> None:
    async def failing(args: Args) -> str:
        raise ValueError(f"no {args.q}")

    bad = ToolCall("c3", "search", "{no json")
    model = ScriptedModel([CALL, bad], "sorry")
    await chat(model).with_tools(SEARCH.on_call(failing)).resolve()
    first, second = model.requests[1].messages[-1].results
    assert first == CALL.result("no x", is_error=True)
    assert second.is_error and "arguments of tool 'search'" in second.content


@pytest.mark.parametrize(
    "error", [Fatal("stop"), StoreError("gone"), ExceptionGroup("two", [ValueError(), Fatal("stop")])]
)
async def test_case_100_what_must_stop_the_handler_is_no_result(error: Exception) -> None:
    async def failing(_args: Args) -> str:
        raise error

    memory = Memory()
    with pytest.raises(type(error)):
        await chat(ScriptedModel(CALL), ledger=memory).with_tools(SEARCH.on_call(failing)).resolve()
    assert memory.kinds() == ["ask/helper"]


async def test_case_100_a_mixed_round_is_handed_back_unrun() -> None:
    seen: list[Args] = []
    theirs = ToolCall("c9", "theirs")
    talk = chat(ScriptedModel(["look", CALL, theirs]), request=Request(tools=(ToolSpec("theirs", "", {}),)))
    reply = await talk.with_tools(answering(seen)).forward_tools().resolve()
    assert (reply.text, reply.tool_calls, seen) == ("look", (CALL, theirs), [])


async def test_case_100_the_cap_counts_asks_and_keeps_the_finished_rounds() -> None:
    seen: list[Args] = []
    talk = chat(model := ScriptedModel(*[CALL] * 3, "in short")).with_tools(answering(seen))
    with pytest.raises(MaxRounds, match="after 3 asks"):
        await talk.with_max_rounds(3).resolve()
    assert (len(model.requests), len(seen)) == (3, 2)
    assert (await talk.ask()).text == "in short"
    assert len(model.requests[3].messages) == 4


async def test_case_100_the_default_cap_is_eight() -> None:
    model = ScriptedModel(*[CALL] * 9)
    with pytest.raises(MaxRounds):
        await chat(model).with_tools(answering([])).resolve()
    assert len(model.requests) == 8
    with pytest.raises(WiringError):
        chat(model).with_max_rounds(0)


async def test_case_100_a_forced_choice_holds_for_the_first_round() -> None:
    model = ScriptedModel(CALL, "done")
    await chat(model).with_tools(answering([])).with_tool_choice("any").resolve()
    assert [request.tool_choice for request in model.requests] == ["any", ""]


async def test_case_100_cancellation_stops_it() -> None:
    started = asyncio.Event()

    async def waiting(_args: Args) -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    model = ScriptedModel(CALL, "never")
    task = asyncio.create_task(_resolve(chat(model).with_tools(SEARCH.on_call(waiting))))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(model.requests) == 1


async def _resolve(talk: Any) -> None:
    await talk.resolve()


async def test_case_100_a_handler_that_died_goes_on_where_it_was() -> None:
    seen: list[Args] = []
    memory = Memory()
    model = ScriptedModel(CALL, AGAIN, UpstreamError("down"))
    with pytest.raises(UpstreamError):
        await chat(model, ledger=memory).with_tools(answering(seen)).resolve()
    later = ScriptedModel("done")
    reply = await chat(later, ledger=Memory(memory.known)).with_tools(answering(seen)).resolve()
    assert (reply.text, len(later.requests), seen) == ("done", 1, [Args("x"), Args("y")])


# --- 101: readers of a reply ---


async def test_case_101_every_reader_gets_everything_late_ones_too() -> None:
    hold = asyncio.Event()
    talk = chat(Slow("a", hold, "b"), live=True).add("hi")
    reply = await talk.ask()
    early = asyncio.create_task(_pieces(reply))
    whole = asyncio.create_task(reply.read_all())
    await asyncio.sleep(0.01)
    assert not reply.ended
    with pytest.raises(WiringError, match="still arriving"):
        _ = reply.text
    hold.set()
    assert (await early, await whole, await _pieces(reply)) == (["a", "b"], "ab", ["a", "b"])
    assert (await reply.read_all(), reply.text, reply.value, reply.usage) == ("ab", "ab", "ab", Usage(1, 2))
    await talk.aclose()


class Slow:
    """A model that waits between its two pieces, then bills and perhaps fails."""

    def __init__(self, first: str, hold: asyncio.Event, last: str | Exception) -> None:
        self._first, self._hold, self._last = first, hold, last

    async def stream(self, _request: ModelRequest) -> Any:
        yield self._first
        await self._hold.wait()
        yield Usage(1, 2)
        if isinstance(self._last, Exception):
            raise self._last
        yield self._last


async def _pieces(reply: Any) -> list[str]:
    return [piece async for piece in reply.stream()]


async def test_case_101_usage_waits_for_the_end_and_is_partial_on_error() -> None:
    memory, hold = Memory(), asyncio.Event()
    reply = await chat(Slow("a", hold, UpstreamError("broke")), live=True, ledger=memory).ask()
    with pytest.raises(WiringError):
        _ = reply.usage
    hold.set()
    with pytest.raises(UpstreamError):
        await reply.done()
    assert (reply.usage, memory.spent) == (Usage(1, 2), [Usage(1, 2)])


async def test_case_101_a_replayed_answer_streams_as_one_piece() -> None:
    memory = Memory()
    await chat(ScriptedModel(["a", "b"]), ledger=memory).ask()
    reply = await chat(ScriptedModel(), ledger=Memory(memory.known), live=True).ask()
    assert await _pieces(reply) == ["ab"]


async def test_case_101_a_reply_left_arriving_is_cancelled_with_its_handler() -> None:
    hold = asyncio.Event()
    talk = chat(Slow("a", hold, "b"), live=True)
    reply = await talk.ask()
    await asyncio.sleep(0)
    await talk.aclose()
    from bb.errors import Closed

    for read in (reply.read_all, reply.done, talk.ask, talk.resolve):
        with pytest.raises(Closed):
            await read()


# --- 102: a provider that fails midway ---


async def test_case_102_no_reader_takes_cut_off_text_for_whole() -> None:
    memory = Memory()
    reply = await chat(ScriptedModel(["par", UpstreamError("broke")]), live=True, ledger=memory).ask()
    for read in (reply.read_all, reply.done):
        with pytest.raises(UpstreamError):
            await read()
    pieces = aiter(reply.stream())
    assert await anext(pieces) == "par"
    with pytest.raises(UpstreamError):
        await anext(pieces)
    for part in ("text", "value", "tool_calls", "message"):
        with pytest.raises(UpstreamError):
            getattr(reply, part)
    assert memory.known == {}


async def test_case_102_the_default_agent_fails_too_and_so_does_resolve() -> None:
    model = ScriptedModel(["par", UpstreamError("broke")], [CALL, UpstreamError("broke")])
    talk = chat(model, live=True)
    with pytest.raises(UpstreamError):
        await handle(Agent(), turn("hi", floor=Live()), talk)
    with pytest.raises(UpstreamError):
        await talk.resolve()


# --- 103: the schema of an answer ---


async def test_case_103_the_schema_is_sent_and_the_value_is_of_its_type() -> None:
    model = ScriptedModel('{"mood": "good", "score": 3}')
    reply = await chat(model, Agent(name="helper").with_schema(Report), live=True).ask()
    assert reply.value == Report(Mood.GOOD, 3)
    assert model.requests[0].schema_name == "Report"
    properties: Any = (model.requests[0].schema or {})["properties"]
    assert properties["mood"]["enum"] == ["good", "bad"]
    assert properties["score"]["description"] == "from 1 to 10"


@pytest.mark.parametrize("text", ['{"mood": "odd", "score": 3}', '{"mood": "good"}', "fine, thanks"])
async def test_case_103_an_answer_that_does_not_fit_is_raised_billed_and_not_recorded(text: str) -> None:
    memory = Memory()
    model = ScriptedModel(text, '{"mood": "bad", "score": 1}', usage=Usage(1, 1))
    talk = chat(model, Agent(name="helper").with_schema(Report), ledger=memory)
    with pytest.raises(SchemaMismatch):
        await talk.ask()
    assert (memory.known, memory.spent) == ({}, [Usage(1, 1)])
    assert (await talk.ask()).value == Report(Mood.BAD, 1)


async def test_case_103_an_answer_that_calls_tools_has_no_value_yet() -> None:
    reply = await chat(ScriptedModel(CALL), Agent(name="helper").with_schema(Report)).with_tools(SEARCH).ask()
    assert reply.tool_calls == (CALL,)
    with pytest.raises(SchemaMismatch, match="called tools"):
        _ = reply.value


async def test_case_103_a_reply_can_be_read_as_another_type() -> None:
    reply = await chat(ScriptedModel('{"z": "y"}')).ask()
    assert reply.extract(Other) == Other("y")
    with pytest.raises(SchemaMismatch):
        reply.extract(Report)


# --- 104: on_call ---


async def test_case_104_on_call_copies() -> None:
    bound = answering([])
    assert SEARCH.handler is None and bound.handler is not None
    assert bound == SEARCH and bound.spec == SEARCH.spec
    with pytest.raises(InvalidTool, match="no handler"):
        await SEARCH.run(CALL)


async def test_case_104_it_decodes_and_no_input_means_the_defaults() -> None:
    seen: list[Args] = []
    bound = answering(seen)
    assert await bound.run(ToolCall("c", "search", '{"q": "x", "n": 2}')) == "found x"
    assert await bound.run(ToolCall("c", "search")) == "found nothing"
    assert seen == [Args("x", 2), Args()]


@pytest.mark.parametrize("raw", ["{no json", '{"n": "two"}', '{"more": 1}', "[]"])
async def test_case_104_what_does_not_fit_is_tool_args(raw: str) -> None:
    with pytest.raises(ToolArgs, match="arguments of tool 'search'"):
        await answering([]).run(ToolCall("c", "search", raw))


def test_case_104_the_schema_is_compared_by_its_structure() -> None:
    shape = {
        "type": "object",
        "description": "written by hand",
        "properties": {"n": {"type": "integer"}, "q": {"type": "string", "description": "what"}},
    }
    by_hand = Tool("search", "Search", shape)
    assert by_hand.on_call(answering([]).handler or mismatched).error == ""
    needed = Tool("search", "Search", shape | {"required": ["q"]})
    assert "whose schema is not the tool's" in needed.on_call(answering([]).handler or mismatched).error


async def test_case_104_handlers_are_plain_or_async_and_answer_data() -> None:
    def plain(args: Args) -> Args:
        return args

    class Callable_:  # noqa: N801 - stands for any object with a call
        async def __call__(self, args: Args) -> list[object]:
            return [args.q, {1, 2}, Mood.GOOD, None]

    def untyped(args):  # type: ignore[no-untyped-def]
        return type(args).__name__

    assert await SEARCH.on_call(plain).run(CALL) == '{"q": "x", "n": 1}'
    assert await SEARCH.on_call(Callable_()).run(CALL) == '["x", [1, 2], "good", null]'
    assert await SEARCH.on_call(untyped).run(CALL) == "Args"
    assert await Tool("search", "Search", {"type": "object"}).on_call(untyped).run(CALL) == "dict"


async def test_case_104_handlers_that_cannot_be_bound() -> None:
    async def nothing() -> str:
        return "x"

    async def unknown(args: Nowhere) -> str:  # type: ignore[name-defined]  # noqa: F821 - on purpose
        return str(args)

    async def shapeless(args: object, more: complex = 0j) -> object:
        return more

    async def imaginary(args: complex) -> str:
        return str(args)

    async def mapping(args: dict[str, object]) -> object:
        return args["q"]

    @attrs.frozen
    class Here:
        q: str

    async def local(args: Here) -> str:
        return args.q

    assert await SEARCH.on_call(mapping).run(CALL) == "x"
    assert await Tool("search", "Search", Here).on_call(local).run(CALL) == "x"
    assert "has no signature" in SEARCH.on_call(print_).error
    assert "takes no argument" in SEARCH.on_call(nothing).error  # type: ignore[arg-type]
    assert "does not resolve" in SEARCH.on_call(unknown).error
    assert "no JSON schema" in SEARCH.on_call(imaginary).error
    with pytest.raises(TypeError, match="complex, which has no JSON form"):
        await SEARCH.on_call(shapeless).run(CALL)


# --- 105: calls and results ---


def test_case_105_results_and_calls_find_each_other_or_get_a_stub() -> None:
    messages = [
        assistant("").with_calls(CALL, AGAIN),
        Message(role="tool").with_results(CALL.result("x"), ToolResult("c9")),
    ]
    assert call_of(CALL.result(""), messages) == CALL
    assert call_of(ToolResult("c9"), messages) == ToolCall("c9", "")
    assert result_of(CALL, messages) == CALL.result("x")
    assert result_of(AGAIN, messages) == ToolResult("c2")
    assert linked(messages) == (Linked(CALL.result("x"), CALL), Linked(ToolResult("c9"), ToolCall("c9", "")))
    assert turn(*messages).tool_results == linked(messages)
    first = turn(*messages).tool_results[0]
    assert (first.content, first.is_error) == ("x", False)


def test_case_105_unresolved_is_what_no_result_anywhere_answers() -> None:
    late = [assistant("").with_calls(CALL), Message("wait"), Message(role="tool").with_results(CALL.result("x"))]
    assert unresolved(late) == ()
    assert unresolved([*late, assistant("").with_calls(AGAIN)]) == (AGAIN,)


async def test_a_model_that_yields_something_else_is_no_empty_answer() -> None:
    class Stray:
        async def stream(self, _: ModelRequest, /) -> Any:
            yield b"bytes"

    with pytest.raises(WiringError, match=r"Stray\.stream yielded something of type bytes"):
        await chat(Stray()).ask()
