"""Cases 18 to 26: flows side by side (case 22 needs triggers), and trials D: members that end apart from one another."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

import bb
from bb.testing.scripted_model import ScriptedModel
from tests.trials.kit import Disk

Handler = Callable[[bb.Turn, bb.ModelChat], Awaitable[None]]
KINDS: list[type[bb.All | bb.One | bb.Group]] = [bb.All, bb.One, bb.Group]


def leaf(*handlers: Handler) -> bb.Flow:
    return bb.Flow().with_agent(*(bb.Agent().on_message(handler) for handler in handlers))


def says(text: str, *, after: str = "", opens: str = "") -> Handler:
    """Says a text, behind one gate and before it opens another."""

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        if after:
            await turn.gate(after).wait()
        turn.reply(text)
        if opens:
            turn.gate(opens).open()

    return handler


def breaks(error: Exception, *, after: str = "", opens: str = "") -> Handler:
    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        if after:
            await turn.gate(after).wait()
        if opens:
            turn.gate(opens).open()
        raise error

    return handler


def hangs(went: list[str], *, opens: str = "") -> Handler:
    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        if opens:
            turn.gate(opens).open()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            went.append("cancelled")
            raise

    return handler


def picks(id: str) -> Handler:
    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.select(id)

    return handler


def contents(outcome: bb.Outcome) -> list[str]:
    return [message.content for message in outcome.messages]


@pytest.mark.parametrize("durable", [False, True])
async def test_case_018_all_merges_every_reply_in_declaration_order(durable: bool) -> None:
    heard: list[int] = []

    async def listens(turn: bb.Turn, chat: bb.ModelChat) -> None:
        heard.append(len(turn.messages))

    trace = bb.Recorder()
    members = (
        leaf(says("slow", after="fast")) >> leaf(listens),
        leaf(says("fast", opens="fast"), says("and more")),
        leaf(listens),
    )
    named = bb.All(*members).with_id("f")
    outcome = await bb.run(named.durable() if durable else named, "hi", trace=trace)
    assert contents(outcome) == ["slow", "fast", "and more"]
    assert outcome.value == "and more"
    assert sorted(heard) == [1, 2]  # private chats: nobody hears another member
    assert trace.paths("all.start") == ["f"]


async def test_case_019_outside_a_durable_flow_a_members_failure_cancels_the_rest_at_once() -> None:
    for kind in (bb.All, bb.Group):
        went: list[str] = []
        members = leaf(hangs(went, opens="here")), leaf(breaks(ValueError("broken"), after="here"))
        with pytest.raises(bb.AgentFailed, match="ValueError: broken"):
            await bb.run(kind(*members), "hi")
        assert went == ["cancelled"]


@pytest.mark.parametrize("kind", [bb.All, bb.Group])
async def test_case_019_inside_one_members_run_to_their_end_and_are_kept(kind: type[bb.All | bb.Group]) -> None:
    calls: Counter[str] = Counter()
    broken = [True]

    async def first(turn: bb.Turn, chat: bb.ModelChat) -> None:
        calls["first"] += 1
        if broken[0]:
            turn.gate("broken").open()
            raise ValueError("the first")
        turn.reply("first")

    async def second(turn: bb.Turn, chat: bb.ModelChat) -> None:
        calls["second"] += 1
        if broken[0]:
            await turn.gate("broken").wait()
            raise KeyError("the second")
        turn.reply("second")

    async def slow(turn: bb.Turn, chat: bb.ModelChat) -> None:
        calls["slow"] += 1
        await turn.gate("broken").wait()
        await asyncio.sleep(0.01)
        turn.reply("slow")

    app = bb.App()
    flow = kind(leaf(second), leaf(first), leaf(slow)).with_id("f").durable()
    with pytest.raises(bb.AgentFailed, match="the second"):  # in declaration order, though it broke later
        await app.run(flow, "hi", run_id="r-1")
    broken[0] = False
    outcome = await app.run(flow, "hi", run_id="r-1")
    assert contents(outcome) == ["second", "first", "slow"]
    assert calls == {"first": 2, "second": 2, "slow": 1}
    assert outcome.replayed == ("f/branch~agents.2",)


@pytest.mark.parametrize("kind", [bb.All, bb.Group])
async def test_case_019_members_that_select_differently_conflict(kind: type[bb.All | bb.Group]) -> None:
    target = bb.Select(leaf(says("A")).with_id("a"), leaf(says("B")).with_id("b"))
    assert contents(await bb.run(kind(leaf(picks("b")), leaf(picks("b")), leaf()) >> target, "hi")) == ["B"]
    with pytest.raises(bb.SelectConflict, match="'a' and 'b'"):
        await bb.run(kind(leaf(picks("a")), leaf(picks("b"))) >> target, "hi")


@pytest.mark.parametrize("kind", KINDS)
async def test_case_019_a_pick_that_cannot_be_entered_is_not_kept(kind: type[bb.All | bb.One | bb.Group]) -> None:
    """However far the selection travels to its `Select`: a run that saved it would fail on every retry."""
    target = bb.Select(leaf(says("A")).with_id("a"))
    for after in (target, (bb.Respond() >> target >> bb.Flow()).with_id("later")):
        ids = iter(["nowhere", "a"])

        async def wavers(turn: bb.Turn, chat: bb.ModelChat) -> None:
            turn.select(next(ids))  # noqa: B023 - runs within the loop

        app = bb.App()
        inner = (bb.Flow() >> leaf(wavers)).with_id("inner")
        flow = (kind(inner) >> after).with_id("f").durable()
        with pytest.raises(bb.UnknownSelect if kind is not bb.One else bb.AgentFailed):
            await app.run(flow, "hi", run_id="r-1")
        assert contents(await app.run(flow, run_id="r-1")) == ["A"]


async def test_case_020_one_keeps_the_fast_member_and_cancels_the_slow_one() -> None:
    went: list[str] = []
    trace = bb.Recorder()
    members = (
        leaf(says("half")) >> leaf(hangs(went, opens="late")),
        leaf(says("fast", after="late")).with_id("fast"),
    )
    outcome = await bb.run(bb.One(*members) >> leaf(says("next")), "hi", trace=trace)
    assert contents(outcome) == ["fast", "next"]
    assert went == ["cancelled"]
    assert len(trace.paths("one.start")) == 1


@pytest.mark.parametrize("durable", [False, True])
async def test_case_021_an_early_failure_does_not_defeat_a_later_success(durable: bool) -> None:
    members = leaf(breaks(ValueError("early"), opens="broken")), leaf(says("late", after="broken"))
    named = bb.One(*members).with_id("f")
    assert contents(await bb.run(named.durable() if durable else named, "hi")) == ["late"]


async def test_case_021_when_all_fail_one_error_holds_all_causes() -> None:
    members = leaf(breaks(ValueError("one"))), leaf(breaks(KeyError("two")))
    with pytest.raises(bb.AgentFailed, match=r"no member of One succeeded \(2 failed\)") as caught:
        await bb.run(bb.One(*members).with_id("f"), "hi")
    group = caught.value.__cause__
    assert isinstance(group, ExceptionGroup)
    assert [type(error.__cause__) for error in group.exceptions] == [ValueError, KeyError]
    assert (caught.value.flow, caught.value.path) == ("f", "f")


async def test_case_021_a_loser_that_ignores_its_cancellation_leaves_nothing() -> None:
    async def stubborn(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.gate("late").open()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        turn.reply("all the same")

    app = bb.App()
    losers = leaf(stubborn).with_id("loser")
    flow = bb.One(losers, leaf(says("fast", after="late")).with_id("winner")).with_id("f").durable()
    for _ in range(2):
        assert contents(await app.run(flow, "hi", run_id="r-1")) == ["fast"]
    saved = [event.path for event in await app.events("r-1") if event.kind == "flow.end"]
    assert saved == ["f/winner"]


async def test_case_023_group_members_hear_each_other_live() -> None:
    async def asks(turn: bb.Turn, chat: bb.ModelChat) -> None:
        assert turn.in_group
        turn.reply("anyone?")
        turn.gate("asked").open()
        await turn.gate("answered").wait()
        assert turn.last.content == "yes: anyone?"
        turn.reply("good")

    async def answers(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await turn.gate("asked").wait()
        turn.reply(f"yes: {turn.last.content}")
        turn.gate("answered").open()

    outcome = await bb.run(bb.Group(leaf(answers), leaf(asks)), "hi")
    assert contents(outcome) == ["yes: anyone?", "anyone?", "good"]  # declaration order, as a replay would give


async def test_case_023_a_group_in_a_durable_flow_replays_what_it_said_live() -> None:
    app = bb.App()
    broken = [True]

    async def answers(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await turn.gate("asked").wait()
        assert turn.last.content == "anyone?"
        if broken[0]:
            raise ValueError("not yet")
        turn.reply("yes")

    flow = bb.Group(leaf(answers), leaf(says("anyone?", opens="asked"))).with_id("f").durable()
    with pytest.raises(bb.AgentFailed, match="not yet"):
        await app.run(flow, "hi", run_id="r-1")
    broken[0] = False
    outcome = await app.run(flow, "hi", run_id="r-1")
    assert contents(outcome) == ["yes", "anyone?"]
    assert outcome.replayed == ("f/branch~agents.1",)


async def test_case_024_a_group_in_a_group_reaches_the_outer_chat() -> None:
    async def outer(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await turn.gate("inner").wait()
        turn.reply(f"heard {turn.last.content}")

    inner = bb.Group(leaf(says("inside", opens="inner")))
    assert contents(await bb.run(bb.Group(leaf(outer), inner), "hi")) == ["heard inside", "inside"]
    nested = bb.Group(bb.Group(leaf(outer), bb.Flow()), bb.Group(inner) >> bb.Flow())
    assert contents(await bb.run(nested, "hi")) == ["heard inside", "inside"]


async def test_case_024_an_all_in_a_group_speaks_when_it_has_ended() -> None:
    heard: list[str] = []

    async def listens(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await turn.gate("said").wait()
        heard.append(turn.last.content)
        turn.gate("heard").open()
        await turn.gate("over").wait()
        heard.append(turn.last.content)

    apart = bb.All(leaf(says("one", opens="said")) >> leaf(says("two", after="heard")))
    outcome = await bb.run(bb.Group(leaf(listens), apart >> leaf(says("", opens="over"))), "hi")
    assert heard == ["hi", ""]
    assert contents(outcome) == ["one", "two", ""]


async def test_case_024_of_a_one_in_a_group_only_the_winner_is_heard() -> None:
    async def outer(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await turn.gate("over").wait()
        turn.reply(" ".join(message.content for message in chat.messages if message.role == "assistant"))

    went: list[str] = []
    race = bb.One(leaf(says("loser")) >> leaf(hangs(went, opens="late")), leaf(says("winner", after="late")))
    outcome = await bb.run(bb.Group(leaf(outer), race >> leaf(says("next", opens="over"))), "hi")
    assert contents(outcome) == ["winner next", "winner", "next"]
    assert went == ["cancelled"]


async def test_case_025_nobody_beside_others_streams_to_the_client() -> None:
    granted: list[bool] = []

    async def streams(turn: bb.Turn, chat: bb.ModelChat) -> None:
        async with turn.stream() as out:
            granted.append(bool(out))
            await out.write("he")
            await out.write("llo")

    async def text(flow: bb.AnyFlow) -> list[str]:
        async with bb.App().stream(flow, "hi") as stream:
            return [chunk async for chunk in stream]

    flows: list[bb.AnyFlow] = [*(kind(leaf(streams)) for kind in KINDS), leaf(streams, streams)]
    for flow in flows:
        said = "hello\n\nhello" if isinstance(flow, bb.Flow) else "hello"
        assert await text(flow >> bb.Respond()) == [said]
        assert await text(flow) == ["hello"]
    assert granted == [False] * 10
    assert await text(leaf(streams) >> bb.Respond()) == ["he", "llo"]
    assert granted[-1] is True


@pytest.mark.parametrize("kind", [bb.All, bb.Group])
async def test_case_025_a_respond_beside_others_delivers_nothing_by_itself(kind: type[bb.All | bb.Group]) -> None:
    async def read(flow: bb.AnyFlow) -> list[str]:
        async with bb.App().stream(flow, "hi") as stream:
            chunks = [chunk async for chunk in stream]
            assert "".join(chunks) == (await stream.outcome()).answer
            return chunks

    first = leaf(says("one", opens="one")) >> bb.Respond() >> leaf(says("two", after="other"))
    beside = kind(first, leaf(says("three", after="one", opens="other")))
    assert await read(beside >> bb.Respond()) == ["one\n\ntwo\n\nthree"]
    assert await read(beside) == ["three"]  # nothing was delivered, so the last message is the answer


async def test_case_026_tokens_add_up() -> None:
    def asks(tokens: int) -> bb.Flow:
        model = ScriptedModel("x", usage=bb.Usage(input=tokens, output=1))
        return bb.Flow().with_agent(bb.Agent(f"m{tokens}").with_model(model))

    trace = bb.Recorder()
    flow = (asks(1).with_id("one") >> bb.Group(asks(10), asks(100)) >> bb.All(asks(1000))).with_id("f")
    outcome = await bb.run(flow, "hi", trace=trace)
    assert outcome.usage == bb.Usage(input=1111, output=4)
    own = {event.path: event.usage.input for event in trace.events if event.kind == "flow.end" and event.usage}
    assert own["f/one"] == 1
    assert sorted(own.values()) == [1, 10, 100, 1000]
    assert trace.events[-1].usage == outcome.usage


async def test_case_026_a_cancelled_losers_tokens_count() -> None:
    spent: list[int] = []

    async def loses(turn: bb.Turn, chat: bb.ModelChat) -> None:
        chat.add(bb.Message("?"))
        await chat.ask()
        spent.append(bb.spent().input)
        turn.gate("asked").open()
        await asyncio.Event().wait()

    model = ScriptedModel("x", usage=bb.Usage(input=5))
    loser = bb.Flow().with_agent(bb.Agent("loser").with_model(model).on_message(loses))
    outcome = await bb.run(bb.One(loser, leaf(says("fast", after="asked"))), "hi")
    assert outcome.usage == bb.Usage(input=5)
    assert spent == [5]
    assert contents(outcome) == ["fast"]


async def test_trial_d5_fifty_members_give_fifty_savepoints(disk: Disk) -> None:
    barrier = asyncio.Barrier(50)

    def meets(number: int) -> Handler:
        async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
            await barrier.wait()
            turn.reply(str(number))

        return handler

    flow = bb.All(*(leaf(meets(number)) for number in range(50))).with_id("f").durable()
    outcome = await disk.app(flow).run("f", "hi", run_id="r-1")
    assert contents(outcome) == [str(i) for i in range(50)]
    again = await disk.app(flow).run("f", "hi", run_id="r-1")
    assert again.messages == outcome.messages
    assert set(again.replayed) == {f"f/branch~agents.{i}" for i in range(50)}


async def test_trial_d8_only_what_failed_runs_again() -> None:
    calls: Counter[int] = Counter()
    broken = {1, 3}

    def counts(i: int) -> Handler:
        async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
            calls[i] += 1
            if i in broken:
                raise ValueError(f"member {i}")
            await asyncio.sleep(0.001 * i)
            turn.reply(str(i))

        return handler

    app = bb.App()
    flow = (bb.All(*(leaf(counts(i)) for i in range(5))) >> leaf(counts(9))).with_id("f").durable()
    for first in ("member 1", "member 3"):
        with pytest.raises(bb.AgentFailed, match=first):
            await app.run(flow, "hi", run_id="r-1")
        broken.discard(1 if first == "member 1" else 3)
    outcome = await app.run(flow, "hi", run_id="r-1")
    assert contents(outcome) == ["0", "1", "2", "3", "4", "9"]
    assert calls == {0: 1, 1: 2, 2: 1, 3: 3, 4: 1, 9: 1}


async def test_trial_d10_members_start_in_declaration_order() -> None:
    order: list[int] = []

    def starts(i: int) -> Handler:
        async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
            order.append(i)

        return handler

    for kind in (bb.All, bb.Group):
        order.clear()
        await bb.run(kind(*(leaf(starts(i)) for i in range(20))), "hi")
        assert order == list(range(20))


async def test_trial_c11_what_joins_runs_once_and_with_everything() -> None:
    heard: list[list[str]] = []
    broken = [True]

    async def slow(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await asyncio.sleep(0.01)
        if broken[0]:
            raise ValueError("cut off")
        turn.reply("slow")

    async def joins(turn: bb.Turn, chat: bb.ModelChat) -> None:
        heard.append([message.content for message in turn.messages])

    app = bb.App()
    flow = (bb.All(leaf(says("quick")), leaf(slow)) >> leaf(joins)).with_id("f").durable()
    with pytest.raises(bb.AgentFailed):
        await app.run(flow, "hi", run_id="r-1")
    broken[0] = False
    await app.run(flow, "hi", run_id="r-1")
    await app.run(flow, "hi", run_id="r-1")
    assert heard == [["hi", "quick", "slow"]]


@bb.op(name="writes")
def writes() -> bb.Viewed[str]:
    return bb.Viewed("sent", "I wrote")


@bb.op(name="echo")
def echo(first: str, second: str) -> str:
    return first + second


@bb.op(name="looks_at")
def looks_at(letter: str) -> bool:
    raise ValueError("cannot look")


@bb.op(name="gives_up")
def gives_up() -> None:
    raise ValueError("gave up")


@bb.op(name="settles")
def settles() -> bb.Viewed[None]:
    return bb.Viewed(None, "settled")


NO_DELAY = timedelta(0)
FAILS = bb.Emit("lost") >> gives_up()
SPOKEN: dict[str, tuple[bb.AnyFlow, list[str]]] = {
    "call": (writes(), ["I wrote"]),
    "arguments": (bb.Bind("y", echo(bb.ref(writes()), bb.ref(writes()))), ["I wrote", "I wrote"]),
    "memo": (bb.Memo("m", writes()), ["I wrote"]),
    "memo hit": (bb.Memo("m", writes()) >> bb.Memo("m", writes()), ["I wrote"]),
    "once": (bb.Once("o", bb.Emit("once"), writes()), ["once", "I wrote"]),
    "once hit": (bb.Once("o", bb.Emit("once")) >> bb.Once("o", bb.Emit("once")), ["once", "once"]),
    "scope": (bb.Scope(bb.Emit("in"), acquire=writes(), finally_=[bb.Emit("out")]), ["I wrote", "in", "out"]),
    "try": (bb.Try(FAILS), []),
    "try of an agent": (bb.Try(leaf(says("lost")) >> gives_up(), handler=bb.Emit("caught")), ["caught"]),
    "try, kept": (bb.Try(bb.Emit("kept")), ["kept"]),
    "try in a try": (bb.Try(bb.Try(FAILS) >> bb.Emit("too") >> gives_up(), handler=bb.Emit("caught")), ["caught"]),
    "retry": (bb.Try(bb.Retry(3, FAILS, delay=NO_DELAY)), []),
    "durable": (bb.Try(FAILS.with_id("inner").durable()), []),
    "once that failed": (bb.Try(bb.Once("o", FAILS)), []),
    "saga": (bb.Try(bb.Saga(bb.Step(bb.Emit("lost"), undo=settles()), bb.Step(gives_up()))), []),
    "group": (bb.Try(bb.Group(FAILS)), []),
    "condition": (bb.When(looks_at(letter=bb.ref(writes())), bb.Emit("seen"), otherwise=bb.Emit("unseen")), ["unseen"]),
}


@pytest.mark.parametrize("what", SPOKEN)
@pytest.mark.parametrize("kind", [bb.All, bb.Group])
async def test_a_resumed_agent_sees_the_chat_that_it_saw_first(what: str, kind: type[bb.All | bb.Group]) -> None:
    """However it was said: live, by a call, by something that replays; and never what a caught failure took back."""
    part, expected = SPOKEN[what]
    heard: list[list[str]] = []

    async def listens(turn: bb.Turn, chat: bb.ModelChat) -> None:
        heard.append([message.content for message in turn.messages])
        if len(heard) == 1:
            raise ValueError("not yet")
        turn.reply("over")

    app = bb.App()
    flow = kind(part >> leaf(listens)).with_id("f").durable()
    with pytest.raises(bb.AgentFailed, match="not yet"):
        await app.run(flow, "hi", run_id="r-1", session_id="s-1")
    outcome = await app.run(flow, run_id="r-1", session_id="s-1")
    assert heard == [["hi", *expected]] * 2
    assert contents(outcome) == [*expected, "over"]  # and it is what becomes of it


async def test_a_once_that_another_run_finished_is_heard_in_a_group() -> None:
    heard: list[list[str]] = []

    async def listens(turn: bb.Turn, chat: bb.ModelChat) -> None:
        heard.append([message.content for message in turn.messages])

    app = bb.App()
    flow = bb.Group(bb.Once("o", bb.Emit("once")) >> leaf(listens)).with_id("f").durable()
    for run in ("r-1", "r-2"):
        await app.run(flow, "hi", session_id="s-1", run_id=run)
    assert heard == [["hi", "once"]] * 2


@pytest.mark.parametrize("durable", [False, True])
async def test_other_members_hear_calls_live_and_no_more_of_what_was_taken_back(durable: bool) -> None:
    heard: list[list[str]] = []

    async def listens(turn: bb.Turn, chat: bb.ModelChat) -> None:
        for gate in ("called", "caught"):
            await turn.gate(gate).wait()
            heard.append([message.content for message in chat.messages if message.role == "assistant"])
            turn.gate(f"{gate}, heard").open()

    async def breaks_when_heard(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.gate("called").open()
        await turn.gate("called, heard").wait()
        raise ValueError("broken")

    part = bb.Try(writes() >> leaf(breaks_when_heard), handler=leaf(says("caught", opens="caught")))
    named = bb.Group(leaf(listens), part).with_id("f")
    outcome = await bb.run(named.durable() if durable else named, "hi")
    assert heard == [["I wrote"], ["caught"]]
    assert contents(outcome) == ["caught"]
