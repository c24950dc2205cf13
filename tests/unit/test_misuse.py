"""What newcomers write by mistake, and the message that each of them gets."""

from __future__ import annotations

import asyncio
import gc
import pickle
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from structlog.testing import capture_logs

import bb
import bb.testing
from bb.testing.report import CrashReport, Finding

Body = Callable[[Any, Any], Awaitable[object]]


@frozen
class City:
    name: str


class Grade(StrEnum):
    GOOD = "good"


async def idle(turn: bb.Turn, chat: bb.ModelChat) -> None:
    """Says nothing."""


async def send(text: str) -> None:
    """Sends nothing."""


async def fetch() -> str:
    return "fetched"


def helper(text: str) -> str:
    return text


class NotAsync:
    def approve(self, request: bb.Approval) -> bb.Decision:
        return bb.Decision.allow()


OP = bb.op()(fetch)
AGENT = bb.Agent("a").on_message(idle)
FLOW: Any = bb.Flow().with_agent(AGENT)
NAMED: Any = FLOW.with_id("named")
DURABLE: Any = NAMED.durable()
REF: Any = bb.ref("n")
ANY: Any = bb
"""bb as Python sees it: the type checker refuses most of what stands below."""


async def cause(body: Body, model: bb.Model | None = None) -> BaseException:
    """What a handler with this body fails with; the run must not retry it."""
    tries: list[int] = []

    async def handler(turn: Any, chat: Any) -> Any:
        tries.append(1)
        return await body(turn, chat)

    flow = bb.Flow().with_agent(bb.Agent("helper").on_message(handler)).with_id("f").durable(retries=2)
    with pytest.raises(bb.AgentFailed) as failed:
        await bb.run(flow, "hi", model=model or bb.FixedModel("ok"))
    assert len(tries) == 1
    assert failed.value.__cause__ is not None
    return failed.value.__cause__


# --- while composing ---


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ANY.App(store="state"), r"'state' is no store: .*bb\.FileStore\('state'\)"),
        (lambda: ANY.App(store=Path("state")), r"bb\.FileStore\('state'\)"),
        (lambda: ANY.App(store=bb.MemStore), r"is no store"),
        (lambda: ANY.App(model="gpt-4o"), r"'gpt-4o' is no model: .*bb\.OpenAIModel\('gpt-4o'\)"),
        (lambda: ANY.App(trace=print), r"^print is no tracer: give an object with event\(event\)"),
        (lambda: ANY.App(trace=bb.Recorder), r"^Recorder is no tracer"),
        (lambda: ANY.run_sync(FLOW, "hi", trace=print), r"print is no tracer"),
        (lambda: ANY.Tee(bb.Recorder(), print), r"print is no tracer"),
        (lambda: ANY.App(clock=1), r"^1 is no clock: give an object with now\(\), monotonic\(\), sleep\(seconds\) and"),
        (lambda: ANY.App(clock=bb.SystemClock), r"SystemClock is no clock"),
        (lambda: ANY.MemStore(time), r"time is no clock"),
        (lambda: ANY.App(policy=1), r"^1 is no policy: give bb\.Policy\("),
        (lambda: ANY.App(policy=bb.Policy), r"is no policy"),
        (lambda: ANY.App(approver=1), r"^1 is no approver: give an object with async def approve\(request\)"),
        (lambda: ANY.App(approver=bb.DenyAll), r"DenyAll is no approver"),
        (lambda: ANY.App(approver=NotAsync()), r"is no async method of one argument: .*async def approve\(request\)"),
        (lambda: ANY.App(ops=OP), r"ops is .*: give a list, such as ops=\[\.\.\.\]"),
        (lambda: ANY.App(agents=AGENT), r"agents is .*: give a list"),
        (lambda: ANY.App(senders=send), r"senders is .*: give a list"),
        (lambda: ANY.App(workers="3"), r"workers is '3': give a whole number"),
        (lambda: ANY.App(value_limit=1.5), r"value_limit is 1\.5: give a whole number"),
        (lambda: ANY.App(retention=7), r"retention is 7: give a timedelta"),
        (lambda: ANY.App(lease=30), r"lease is 30: give a timedelta"),
        (lambda: ANY.run_sync(FLOW, "hi", model="gpt-4o"), r"bb\.OpenAIModel\('gpt-4o'\)"),
        (lambda: ANY.Agent().with_model("claude-x"), r"bb\.AnthropicModel\('claude-x'\)"),
        (lambda: ANY.Agent().with_model(bb.FixedModel), r"is no model"),
        (lambda: ANY.Agent(model="gpt-4o"), r"bb\.OpenAIModel\('gpt-4o'\)"),
        (lambda: FLOW.with_model("gpt-4o"), r"bb\.OpenAIModel\('gpt-4o'\)"),
        (lambda: NAMED.with_model("gpt-4o"), r"bb\.OpenAIModel\('gpt-4o'\)"),
        (lambda: (FLOW >> NAMED).with_model("gpt-4o"), r"bb\.OpenAIModel\('gpt-4o'\)"),
        (lambda: ANY.All(FLOW).with_model("gpt-4o"), r"bb\.OpenAIModel\('gpt-4o'\)"),
        (lambda: ANY.All(FLOW, model="gpt-4o"), r"bb\.OpenAIModel\('gpt-4o'\)"),
        (lambda: NAMED.durable(ttl=60), r"ttl is 60: .*timedelta\(seconds=60\)"),
        (lambda: NAMED.durable(retries="3"), r"retries is '3': give a whole number"),
        (lambda: NAMED.durable(retries=1.5), r"retries is 1\.5: give a whole number"),
        (lambda: NAMED.durable(retries=True), r"retries is True: give a whole number"),
        (lambda: ANY.Agent(idle), r"'idle' .*: call it first: @bb\.Agent\(\)\.on_message"),
        (lambda: ANY.Flow(AGENT), r"bb\.Flow\(\)\.with_agent\(agent\)"),
        (lambda: ANY.Flow(idle), r"bb\.Flow\(\)\.with_agent\(agent\)"),
        (lambda: FLOW.with_agent(idle), r"is no Agent: pass bb\.Agent"),
        (lambda: ANY.Agent().on_message(fetch), r"two arguments: write async def handler\(turn, chat\)"),
        (lambda: ANY.Agent().on_message(send), r"two arguments"),
        (lambda: ANY.Agent().on_message(helper), r"not async: write async def handler\(turn, chat\)"),
        (lambda: ANY.Notify(print), r"no async function of one argument: write async def send\(text\)"),
        (lambda: ANY.Notify(fetch), r"no async function of one argument"),
        (lambda: ANY.Notify("https://example.org"), r"no async function of one argument"),
        (lambda: ANY.Agent().with_schema({"a": int}), r"has no JSON schema: use an attrs class"),
        (lambda: ANY.Agent().with_schema([City]), r"has no JSON schema: use an attrs class"),
        (lambda: ANY.FixedModel({"a": 1}), r"given something of type dict: give text, JSON by json\.dumps"),
        (
            lambda: ANY.testing.ScriptedModel("x", {"a": 1}),
            r"answer 2 of the script holds something of type dict: .*json\.dumps",
        ),
        (lambda: ANY.testing.ScriptedModel(["x", 5]), r"answer 1 of the script holds something of type int"),
        (lambda: ANY.testing.ScriptedModel(None), r"answer 1 of the script holds something of type NoneType"),
        (
            lambda: bb.Return({1: REF, "1": 5}),
            r"the key 1 stands beside a reference .*: use a text as the key, or bind",
        ),
        (lambda: bb.Return([{"a": {None: REF}}]), r"the key None stands beside"),
        (lambda: bb.Return({Grade.GOOD: REF}), r"the key <Grade\.GOOD: 'good'> stands beside"),
        (lambda: ANY.Obj({1: 2}), r"the key 1 stands beside"),
        (
            lambda: REF[1:],
            r"a slice is no part of a value that only a run will have: give a name or key as text, or a pos",
        ),
        (
            lambda: bb.Emit(f"{REF}"),
            r"a reference has no text .*: write the name in a plain text, such as \"\{name\}\"",
        ),
        (lambda: bb.Emit(str(REF.part)), r"a reference has no text"),
        (lambda: bb.Emit("%s" % REF), r"a reference has no text"),  # noqa: UP031 - as older code writes it
        (lambda: bb.Emit("".join(map(str, [REF]))), r"a reference has no text"),
        (lambda: REF["a"][REF], r"a Ref is no part"),
        (lambda: REF[True], r"True is no part"),
        (lambda: REF[1.0], r"1\.0 is no part"),
        (lambda: REF[None], r"None is no part"),
        (lambda: ANY.Field(REF, ("a", slice(2))), r"a slice is no part"),
        (lambda: ANY.Field(REF, False), r"False is no part"),
        (lambda: bb.Emit((REF, 2)), r"a tuple holds a reference .*: give a list, or bind the tuple from an op"),
        (lambda: bb.Bind("x", {"a": [(1, {"b": REF})]}), r"a tuple holds a reference"),
    ],
)
def test_what_is_put_together_wrongly_is_refused_at_once(build: Callable[[], object], message: str) -> None:
    with pytest.raises(bb.WiringError, match=message):
        build()


def test_what_is_right_is_accepted() -> None:
    class Sender:
        async def __call__(self, text: str) -> None:
            """Sends nothing."""

    async def spread(*given: object) -> None:
        """Takes as many as there are."""

    assert bb.Notify(Sender()).with_id("n").id == "n"
    assert bb.Notify(spread).name == "spread"
    assert bb.Agent().on_message(spread).name == "spread"
    assert bb.App(store=bb.MemStore(), model=bb.FixedModel("x"), retention=timedelta(0)).store is not None
    assert ANY.Agent().with_model(None).model is None
    assert repr(REF) == "ref(Var(name='n'))"
    assert bb.Return(REF["a"][Grade.GOOD][-1]) == bb.Return(bb.Field(bb.Var("n"), ["a", "good", -1]))
    assert bb.Return({1: (2, 3), "1": None}) == bb.Return(bb.Lit({1: (2, 3), "1": None}))
    assert bb.Return({"a": [REF, (1, 2)]}) != bb.Return({"a": [REF, [1, 2]]})


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda: FLOW.durable, r"without a name has no durable\(\): name it first, \.with_id\(id\)\.durable\(\)"),
        (lambda: (FLOW >> NAMED).durable, r"without a name has no durable\(\)"),
        (lambda: ANY.All(FLOW).durable, r"without a name has no durable\(\)"),
        (lambda: (FLOW >> NAMED).with_agent, r"only a bare Flow has with_agent\(\)"),
        (lambda: NAMED.with_agent, r"named flow has no with_agent\(\): .*\.with_agent\(agent\)\.with_id\(id\)"),
        (lambda: DURABLE.with_agent, r"durable flow has no with_agent\(\)"),
        (lambda: DURABLE.with_id, r"durable flow has no with_id\(\): name it first"),
        (lambda: DURABLE.with_model, r"durable flow has no with_model\(\)"),
        (lambda: DURABLE.durable, r"durable flow has no durable\(\): give all options at once"),
        (lambda: FLOW.then, r"'Flow' object has no attribute 'then'"),
    ],
)
def test_a_missing_builder_says_what_to_write(misuse: Callable[[], object], message: str) -> None:
    with pytest.raises(AttributeError, match=message):
        misuse()


@pytest.mark.parametrize("flow", [FLOW, NAMED, DURABLE, FLOW >> NAMED])
def test_what_is_missing_is_missing_for_all_who_ask(flow: Any) -> None:
    offered = {name for name in ("durable", "with_id", "with_agent", "with_model") if hasattr(type(flow), name)}
    assert offered == {name for name in ("durable", "with_id", "with_agent", "with_model") if hasattr(flow, name)}
    assert getattr(flow, "anything", 5) == 5
    assert pickle.loads(pickle.dumps(bb.Respond())) == bb.Respond()


# --- calls and answers of a model ---


@pytest.mark.parametrize("input", [{"name": "Oslo"}, None, ["Oslo"], 5])
def test_the_input_of_a_call_is_text(input: Any) -> None:
    with pytest.raises(
        bb.InvalidInput, match=r"tool call 'look' is of type \w+: arguments are JSON text: ToolCall\.new"
    ):
        bb.ToolCall("c1", "look", input)
    assert bb.ToolCall.new("look", {"name": "Oslo"}).extract(City) == City("Oslo")


async def test_a_script_function_that_gives_no_answer_is_named() -> None:
    model = ANY.testing.ScriptedModel(lambda request: {"a": 1})
    error = await cause(lambda turn, chat: chat.ask(), model)
    assert isinstance(error, bb.WiringError) and "answer 1 of the script holds something of type dict" in str(error)


LOOK = bb.Tool("look", "Looks", City).on_call(lambda city: f"{city.name} found")
FIND = bb.Tool("find", "Finds", City).on_call(lambda city: "nothing")
THEIRS = bb.ToolSpec("theirs", "The client's", {"type": "object"})


def calling(*names: str) -> list[bb.Chunk | Exception]:
    return [bb.ToolCall(f"c{i}", name, '{"name": "x"}') for i, name in enumerate(names)]


async def resolved(model: bb.Model, *tools: bb.Tool | bb.ToolSpec, rounds: int = 8) -> bb.Outcome:
    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        reply = await chat.add(*turn.messages).with_tools(*tools).with_max_rounds(rounds).resolve()
        turn.reply(reply)

    flow = bb.Flow().with_agent(bb.Agent("helper").on_message(handler)).with_id("f").durable()
    return await bb.run(flow, "hi", model=model)


async def test_the_call_of_a_tool_that_was_not_offered_is_an_error_that_the_model_sees() -> None:
    model = bb.testing.ScriptedModel(calling("other", "look"), "done")
    assert (await resolved(model, LOOK, FIND)).answer == "done"
    first, second = model.requests[1].messages[-1].results
    assert (first.content, first.is_error) == ("no tool 'other'; there are look, find", True)
    assert (second.content, second.is_error) == ("x found", False)


async def test_calls_where_no_tool_was_offered_go_on_too() -> None:
    model = bb.testing.ScriptedModel(calling("other"), "done")
    assert (await resolved(model)).answer == "done"
    assert model.requests[1].messages[-1].results[0].content == "no tool 'other'; there are none"


async def test_calls_of_tools_that_do_not_exist_are_capped() -> None:
    model = bb.testing.ScriptedModel(*[calling("other")] * 3)
    with pytest.raises(bb.AgentFailed) as failed:
        await resolved(model, LOOK, rounds=3)
    assert isinstance(failed.value.__cause__, bb.MaxRounds)


@pytest.mark.parametrize("also", ["look", "other"])
async def test_an_offered_tool_without_a_function_is_handed_back_with_the_whole_round(also: str) -> None:
    model = bb.testing.ScriptedModel(calling(also, "theirs"))
    outcome = await resolved(model, LOOK, THEIRS)
    assert [call.name for call in outcome.messages[-1].calls] == [also, "theirs"]
    assert len(model.requests) == 1


async def test_an_answer_that_only_calls_names_the_tools() -> None:
    async def handler(turn: bb.Turn, chat: bb.ModelChat[City]) -> None:
        _ = (await chat.with_tools(LOOK, FIND).ask()).value

    flow = bb.Flow().with_agent(bb.Agent("helper").with_schema(City).on_message(handler))
    with pytest.raises(bb.AgentFailed, match=r"the model called tools \(look, find\) and gave no answer.*resolve\(\)"):
        await bb.run(flow, "hi", model=bb.testing.ScriptedModel(calling("look", "find", "look")))


# --- inside a handler ---


async def returns_text(turn: Any, chat: Any) -> str:
    return "hello"


async def returns_the_reply(turn: Any, chat: Any) -> Any:
    return await chat.add("hi").ask()


async def replies(turn: Any, said: object) -> None:
    turn.reply(said)


async def adds(chat: Any, *said: object) -> None:
    chat.add(*said)


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (returns_text, bb.WiringError, r"agent helper returned 'hello': a handler answers with turn\.reply"),
        (returns_the_reply, bb.WiringError, r"agent helper returned ModelReply\('ok'\)"),
        (lambda turn, chat: replies(turn, None), bb.InvalidInput, r"reply takes text, .* not None"),
        (lambda turn, chat: replies(turn, 5), bb.InvalidInput, r"not an int .*turn\.reply\(text, value=\.\.\.\)"),
        (lambda turn, chat: replies(turn, fetch()), bb.InvalidInput, r"a ModelReply, not a coroutine .*forgot await\?"),
        (lambda turn, chat: replies(turn, chat.add("x").ask()), bb.InvalidInput, r"not a coroutine .*forgot await\?"),
        (
            lambda turn, chat: replies(turn, asyncio.ensure_future(fetch())),
            bb.InvalidInput,
            r"not a Task .*forgot await\?",
        ),
        (lambda turn, chat: adds(chat, turn.messages), bb.InvalidInput, r"one by one: chat\.add\(\*turn\.messages\)"),
        (lambda turn, chat: adds(chat, fetch()), bb.InvalidInput, r"not a coroutine: forgot await\?"),
        (lambda turn, chat: adds(chat, None), bb.InvalidInput, r"not None: bb\.Message\(text, role\)"),
        (lambda turn, chat: chat.ask_with(turn.messages), bb.InvalidInput, r"one by one"),
        (lambda turn, chat: turn.step(helper), bb.WiringError, r"step was given .*turn\.step\(name, fn, \*args\)"),
        (lambda turn, chat: turn.step(helper, "x"), bb.WiringError, r"a function where a name .*turn\.step\(name, fn"),
        (lambda turn, chat: turn.step("name"), bb.WiringError, r"None where a function"),
        (lambda turn, chat: turn.step("fetch", fetch()), bb.WiringError, r"a coroutine where a function .*awaits fn"),
        (lambda turn, chat: chat.with_tools(helper).ask(), bb.WiringError, r"pass bb\.Tool\(name, description, schema"),
        (lambda turn, chat: chat.with_tools([LOOK]).ask(), bb.WiringError, r"chat\.with_tools\(\*tools\)"),
        (lambda turn, chat: chat.with_tools("look").ask(), bb.WiringError, r"not a str .*pass bb\.Tool"),
    ],
)
async def test_a_handler_is_told_what_it_did(body: Body, kind: type[BaseException], message: str) -> None:
    error = await cause(body)
    assert type(error) is kind
    with pytest.raises(kind, match=message):
        raise error
    gc.collect()  # a coroutine that nobody awaited would warn here, and the warning fails the test


async def test_the_answer_of_a_model_is_added_as_its_message() -> None:
    async def body(turn: bb.Turn, chat: Any) -> None:
        chat.add(await chat.add("x").ask())

    assert "chat.add(reply.message)" in str(await cause(body))


# --- streams ---


def test_a_stream_outside_a_loop_is_refused_without_a_warning() -> None:
    app = bb.App()
    with pytest.raises(bb.WiringError, match=r"outside a running .*async with app\.stream\(\.\.\.\)"):
        app.stream(FLOW, "hi")
    gc.collect()


async def awaits(app: Any, flow: bb.AnyFlow) -> None:
    await app.stream(flow, "hi")


async def enters(app: Any, flow: bb.AnyFlow) -> None:
    with app.stream(flow, "hi"):
        pass


@pytest.mark.parametrize(
    ("misuse", "message"), [(awaits, "a stream was awaited"), (enters, "a stream was entered by a plain with")]
)
async def test_a_stream_used_wrongly_is_left(misuse: Body, message: str) -> None:
    left = asyncio.Event()

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    with pytest.raises(bb.WiringError, match=message + r": .*async with app\.stream\(\.\.\.\)"):
        await misuse(bb.App(), bb.Flow().with_agent(bb.Agent().on_message(handler)))
    await asyncio.wait_for(left.wait(), 5)


async def test_a_stream_left_at_once_interrupts_its_run() -> None:
    left = asyncio.Event()

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    async with bb.App().stream(bb.Flow().with_agent(bb.Agent().on_message(handler)), "hi"):
        pass
    await asyncio.wait_for(left.wait(), 5)


# --- a changed flow is heard of ---


def job(*ids: str, forward_compatible: bool = False) -> bb.DurableFlow:
    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        if turn.flow == "last" and len(ids) < 3:
            raise RuntimeError("not yet")
        turn.reply(turn.flow)

    parts = [bb.Flow().with_agent(bb.Agent("says").on_message(handler)).with_id(id) for id in ids]
    chain: Any = parts[0]
    for part in parts[1:]:
        chain = chain >> part
    durable: bb.DurableFlow = chain.with_id("job").durable(forward_compatible=forward_compatible)
    return durable


@pytest.mark.parametrize("forward_compatible", [False, True])
async def test_a_changed_flow_is_logged_and_among_the_events_of_the_run(*, forward_compatible: bool) -> None:
    clock, heard = bb.testing.ManualClock(auto=True), bb.Recorder()
    app = bb.App(clock=clock, trace=heard)
    with pytest.raises(bb.AgentFailed):
        await app.run(job("first", "last"), "hi", run_id="r")
    assert "durable.discarded" not in [event.kind for event in await app.events("r")]
    clock.advance(60)
    with capture_logs() as logs:
        await app.run(job("first", "more", "last", forward_compatible=forward_compatible), "hi", run_id="r")

    (told,) = [event for event in heard.events if event.kind == "durable.discarded"]
    (entry,) = logs
    assert entry["log_level"] == "warning"
    assert (entry["run_id"], entry["path"], entry["differences"]) == ("r", "job", told.detail)
    events = await app.events("r")
    (kept,) = [event for event in events if event.kind == "durable.discarded"]
    assert (kept.path, kept.flow, kept.attempt) == ("job", "job", told.attempt)
    assert "added job/more (agents says)" in kept.detail and kept.detail in told.detail
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert [event.kind for event in events][3:] == [
        "run.resumed",
        "durable.discarded",
        *["flow.end"] * (3 - forward_compatible),
        "run.end",
    ]


# --- what is no flow, and what is not durable ---

DOORS: dict[str, Callable[[Any], object]] = {
    "run_sync": lambda what: bb.run_sync(what, "x"),
    "run": lambda what: asyncio.run(bb.App().run(what, "x")),
    "submit": lambda what: asyncio.run(bb.App().submit(what, "x")),
    "session": lambda what: bb.App().session(what, "s"),
    "register": lambda what: bb.App().register(what),
    "check": bb.check,
    "crash_everywhere": lambda what: asyncio.run(bb.testing.crash_everywhere(what, "x")),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "what", [AGENT, OP, None, [FLOW], bb.text.parse('flow f\n  emit "a"\n')], ids=lambda one: type(one).__name__
)
def test_what_is_no_flow_is_told_so_at_every_door(door: str, what: object) -> None:
    with pytest.raises(bb.WiringError, match="is no flow: pass flows") as refused:
        DOORS[door](what)
    assert "Flow().with_agent(agent)" in str(refused.value) and "module['id']" in str(refused.value)


async def test_an_op_as_a_step_is_told_where_its_function_is() -> None:
    for body in (lambda turn, _: turn.step("x", OP), lambda turn, _: turn.step("x", ANY.op()(helper), "a")):
        error = await cause(body)
        assert isinstance(error, bb.NotSavable) and "the function of an op is op.fn" in str(error)


async def test_a_run_id_for_what_is_not_durable_is_warned_of_once(tmp_path: Path) -> None:
    with capture_logs() as logs:
        app = bb.App(store=bb.FileStore(tmp_path))
        for _ in range(2):
            await app.run(NAMED, "hi", run_id="r")
        await app.run(NAMED, "hi")
        await bb.App().run(NAMED, "hi", run_id="r")
        await app.run(DURABLE, "hi", run_id="r")
        await app.stop()
    [(level, flow, said)] = [(entry["log_level"], entry["flow"], entry["event"]) for entry in logs]
    assert (level, flow) == ("warning", "named") and "no part of the flow is durable" in said


# --- reports ---


def test_the_path_of_a_refused_flow_is_that_of_its_first_error() -> None:
    flow = (
        bb.Flow().with_agent(bb.Agent("x")).with_id("a") >> bb.Flow().with_agent(bb.Agent("y")).with_id("b")
    ).with_id("f")
    with pytest.raises(bb.WiringError, match=r"agent x .*; .*agent y") as refused:
        bb.App().register(flow)
    assert refused.value.path == bb.check(flow)[0].path == "f/a"


def test_dice_in_answers_make_one_row_and_a_hint() -> None:
    drawn = iter(range(1000))

    async def roll(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.reply(f"rolled {next(drawn)}")

    flow = bb.Flow().with_agent(bb.Agent().on_message(roll)).with_id("dice").durable()
    with pytest.raises(bb.testing.NotCrashSafe, match="no dice or clock in answers") as failed:
        asyncio.run(bb.testing.crash_everywhere(flow, "go"))
    lines = str(failed.value).splitlines()
    assert len([line for line in lines if "the answer is" in line]) == 1
    assert len(failed.value.report.findings) > 2


def test_findings_of_one_kind_stay_apart_by_place() -> None:
    found = [Finding("c1", "agent x at f/a ran 3 times, not at most 2"), Finding("c2", "agent x at f/b never ran")]
    text = str(CrashReport("f", (), 2, (), tuple(found)))
    assert all(finding.what in text for finding in found)
    assert "dice" not in text
