"""Cases 8 to 17: agent flows, chains, selection, gates and the model ladder."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import bb
from bb.testing.scripted_model import ScriptedModel

Handler = Callable[[bb.Turn, bb.ModelChat], Awaitable[None]]


def says(text: str) -> Handler:
    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.reply(text)

    return handler


def picks(*ids: str) -> Handler:
    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        for id in ids:
            turn.select(id)

    return handler


def leaf(*handlers: Handler) -> bb.Flow:
    return bb.Flow().with_agent(*(bb.Agent().on_message(handler) for handler in handlers))


def contents(outcome: bb.Outcome) -> list[str]:
    return [message.content for message in outcome.messages]


async def test_case_008_the_default_agent_adds_one_message_with_the_joined_chunks() -> None:
    model = ScriptedModel(["so", "lar ", "panels"])
    outcome = await bb.run(bb.Flow().with_agent(bb.Agent("a")), "hi", model=model)
    assert outcome.messages == (bb.Message("solar panels", "assistant"),)
    assert outcome.answer == "solar panels"
    assert outcome.value == "solar panels"
    assert model.requests[0].messages == (bb.Message("hi"),)


async def test_case_008_a_flow_without_agents_adds_nothing() -> None:
    outcome = await bb.run(bb.Flow(), "hi")
    assert outcome.messages == ()
    assert outcome.answer == ""
    assert outcome.value is None


async def test_case_009_a_chain_runs_in_order() -> None:
    heard: list[list[str]] = []

    def listens(text: str) -> Handler:
        async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
            heard.append([message.content for message in turn.messages])
            turn.reply(text)

        return handler

    trace = bb.Recorder()
    flow = leaf(listens("1")).with_id("a").next(leaf(listens("2")).with_id("b")).next(leaf(listens("3")).with_id("c"))
    outcome = await bb.run(flow, "hi", trace=trace)
    assert contents(outcome) == ["1", "2", "3"]
    assert heard == [["hi"], ["hi", "1"], ["hi", "1", "2"]]
    assert trace.flows("flow.start") == trace.flows("flow.end") == ["a", "b", "c"]


async def test_case_010_agents_of_one_flow_run_at_once_and_reply_in_declaration_order() -> None:
    seen: list[tuple[str, ...]] = []

    async def slow(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await turn.gate("fast is done").wait()
        seen.append(tuple(message.content for message in turn.messages))
        turn.reply("slow")

    async def fast(turn: bb.Turn, chat: bb.ModelChat) -> None:
        seen.append(tuple(message.content for message in turn.messages))
        turn.reply("fast", value=7)
        turn.gate("fast is done").open()

    outcome = await bb.run(leaf(slow, fast), "hi")
    assert contents(outcome) == ["slow", "fast"]
    assert seen == [("hi",), ("hi",)]
    assert outcome.value == 7  # of the last reply, in declaration order


@pytest.mark.parametrize("durable", [False, True])
async def test_case_011_agents_may_agree_on_a_selection_but_not_differ(durable: bool) -> None:
    target = bb.Select(leaf(says("A")).with_id("a"), leaf(says("B")).with_id("b"))

    def routed(*handlers: Handler) -> bb.AnyFlow:
        named = (leaf(*handlers) >> target).with_id("f")
        return named.durable() if durable else named

    assert (await bb.run(routed(picks("b"), picks("b"), says("-")), "hi")).answer == "B"
    with pytest.raises(bb.SelectConflict, match="'a' and 'b'"):
        await bb.run(routed(picks("a"), picks("b")), "hi")


async def test_case_011_the_last_pick_of_one_agent_counts() -> None:
    target = bb.Select(leaf(says("A")).with_id("a"), leaf(says("B")).with_id("b"))
    assert (await bb.run(leaf(picks("a", "b")) >> target, "hi")).answer == "B"


async def test_case_012_an_agents_exception_is_agent_failed_with_its_cause() -> None:
    class OutOfPaper(Exception):
        pass

    async def prints(turn: bb.Turn, chat: bb.ModelChat) -> None:
        raise OutOfPaper("tray 2")

    trace = bb.Recorder()
    with pytest.raises(bb.AgentFailed, match="OutOfPaper: tray 2") as caught:
        await bb.run((bb.Flow() >> leaf(prints).with_id("print")).with_id("office"), "hi", trace=trace)
    assert isinstance(caught.value.__cause__, OutOfPaper)
    assert (caught.value.flow, caught.value.path) == ("print", "office/print")
    assert trace.flows("flow.error") == ["print"]
    assert trace.kinds()[-1] == "run.end"
    assert trace.events[-1].detail == "failed"


async def test_case_012_a_models_refusal_too() -> None:
    model = ScriptedModel(bb.UpstreamRejected("no such model", status=404))
    with pytest.raises(bb.AgentFailed) as caught:
        await bb.run(bb.Flow().with_agent(bb.Agent("a")), "hi", model=model)
    assert isinstance(caught.value.__cause__, bb.UpstreamRejected)


async def test_case_013_outside_a_durable_flow_the_first_failure_cancels_the_others() -> None:
    went: list[str] = []

    async def hangs(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.gate("here").open()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            went.append("cancelled")
            raise

    async def breaks(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await turn.gate("here").wait()
        raise ValueError("broken")

    async with asyncio.timeout(5):
        with pytest.raises(bb.AgentFailed, match="broken"):
            await bb.run(leaf(hangs, breaks), "hi")
    assert went == ["cancelled"]


async def test_case_013_inside_one_the_others_run_to_their_end() -> None:
    went: list[str] = []

    async def slow(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await turn.gate("broken").wait()
        await asyncio.sleep(0.01)
        went.append("done")

    async def breaks(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.gate("broken").open()
        raise ValueError("broken")

    with pytest.raises(bb.AgentFailed, match="broken"):
        await bb.run(leaf(slow, breaks).with_id("f").durable(), "hi")
    assert went == ["done"]


async def test_case_014_a_gate_lets_through_once_it_is_open() -> None:
    order: list[str] = []

    async def waits(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await turn.gate("go").wait()
        order.append("went")

    async def opens(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await asyncio.sleep(0)
        order.append("opened")
        turn.gate("go").open()
        turn.gate("go").open()

    for _ in range(2):  # gates are the run's: the second run waits again
        await bb.run(leaf(waits, opens), "hi")
        assert order == ["opened", "went"]
        order.clear()
    # it stays open for the steps that come later, and for members of groups
    await bb.run(leaf(opens) >> bb.All(leaf(waits)) >> leaf(waits), "hi")
    assert order == ["opened", "went", "went"]


async def test_case_014_waiting_at_a_gate_of_a_cancelled_run_ends() -> None:
    ended: list[str] = []

    async def waits(turn: bb.Turn, chat: bb.ModelChat) -> None:
        try:
            await turn.gate("never").wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    task = asyncio.ensure_future(bb.run(leaf(waits), "hi"))
    await asyncio.sleep(0.01)
    task.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert ended == ["cancelled"]


async def test_case_015_select_enters_the_picked_member() -> None:
    trace = bb.Recorder()
    target = bb.Select(leaf(says("A")).with_id("a"), leaf(says("B")).with_id("b"))
    assert (await bb.run(leaf(picks("a")).with_id("router") >> target, "hi", trace=trace)).answer == "A"
    assert [(event.flow, event.detail) for event in trace.events if event.kind == "select"] == [("router", "a")]
    assert [event.detail for event in trace.events if event.kind == "select.enter"] == ["a"]


async def test_case_015_an_unknown_pick_is_refused() -> None:
    target = bb.Select(leaf(says("A")).with_id("a"))
    with pytest.raises(bb.UnknownSelect, match="select one of a"):
        await bb.run(leaf(picks("nowhere")) >> target, "hi")
    with pytest.raises(bb.UnknownSelect):  # a selection made in a group goes on to what follows it
        await bb.run(bb.All(leaf(picks("nowhere"))) >> target, "hi")


async def test_case_015_an_unknown_pick_is_not_kept() -> None:
    """A run that saved it would fail on every retry."""
    ids = iter(["nowhere", "a"])
    app = bb.App()

    async def wavers(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.select(next(ids))

    flow = (leaf(wavers) >> bb.Respond() >> bb.Select(leaf(says("A")).with_id("a"))).with_id("f").durable()
    with pytest.raises(bb.UnknownSelect):
        await app.run(flow, "hi", run_id="r-1")
    assert (await app.run(flow, run_id="r-1")).messages[-1].content == "A"


async def test_case_015_without_a_pick_the_state_passes_through() -> None:
    trace = bb.Recorder()
    target = bb.Select(leaf(says("A")).with_id("a"))
    outcome = await bb.run(leaf(says("-")) >> target >> leaf(says("on")), "hi", trace=trace)
    assert contents(outcome) == ["-", "on"]
    assert "select.none" in trace.kinds()
    assert "select.enter" not in trace.kinds()


async def test_case_015_a_member_without_an_id_is_ignored_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="can never be picked"):
        target = bb.Select(leaf(says("?")), leaf(says("A")).with_id("a"))
    assert (await bb.run(leaf(picks("a")) >> target, "hi")).answer == "A"


async def test_case_016_a_pick_survives_what_says_nothing_and_is_dropped_by_a_flow_between() -> None:
    async def send(text: str) -> None:
        pass

    target = bb.Select(leaf(says("A")).with_id("a"))
    assert contents(await bb.run(leaf(picks("a")) >> bb.Respond() >> target, "hi")) == ["A"]
    assert contents(await bb.run(leaf(picks("a")) >> bb.Notify(send) >> bb.Respond() >> target, "hi")) == ["A"]
    assert contents(await bb.run(leaf(picks("a")) >> leaf(says("-")) >> target, "hi")) == ["-"]
    assert contents(await bb.run(leaf(picks("a")) >> bb.Flow() >> target, "hi")) == []
    # entering a member uses the pick up
    assert contents(await bb.run(leaf(picks("a")) >> target >> target, "hi")) == ["A"]


async def test_case_016_a_pick_is_used_up_by_the_select_that_enters_it() -> None:
    trace = bb.Recorder()
    first, second = bb.Select(bb.Respond().with_id("a")), bb.Select(leaf(says("A")).with_id("a"))

    outcome = await bb.run(leaf(picks("a")) >> first >> second >> leaf(says("end")), "hi", trace=trace)

    assert contents(outcome) == ["end"]
    assert [kind for kind in trace.kinds() if kind.startswith("select")] == ["select", "select.enter", "select.none"]


async def test_case_016_members_of_a_group_start_without_a_pick() -> None:
    target = bb.Select(leaf(says("A")).with_id("a"))
    for kind in (bb.All, bb.One, bb.Group):
        assert contents(await bb.run(leaf(picks("a")) >> kind(target), "hi")) == []
        assert contents(await bb.run(kind(leaf(picks("a"))) >> target, "hi")) == ["A"]


async def test_case_017_the_nearest_model_answers() -> None:
    ask = bb.Agent("a")
    default = bb.FixedModel("default")
    outer, inner = bb.FixedModel("outer"), bb.FixedModel("inner")
    own, agents = bb.FixedModel("flow"), bb.FixedModel("agent")

    async def answer(flow: bb.AnyFlow) -> str:
        return (await bb.run(flow, "hi", model=default)).answer

    bare = bb.Flow().with_agent(ask)
    assert await answer(bare) == "default"
    assert await answer(bb.All(bare).with_model(outer)) == "outer"
    assert await answer((bb.Flow() >> bb.Group(bare).with_model(inner)).with_model(outer)) == "inner"
    assert await answer((bb.Flow() >> bb.Group(bare)).with_id("x").with_model(outer)) == "outer"
    assert await answer(bb.One(bare.with_model(own)).with_model(inner)) == "flow"
    assert await answer(bb.One(bb.Flow().with_agent(ask.with_model(agents)).with_model(own))) == "agent"
    # a model reaches no further than the flow it was given to
    assert await answer(bb.All(bb.Flow()).with_model(outer) >> bare) == "default"
    assert await answer((bb.Flow() >> bb.Flow()).with_model(outer) >> bare) == "default"
    assert await answer(bb.Flow() >> (bare >> bb.Flow()).with_model(outer)) == "outer"


async def test_case_017_without_any_model_the_flow_is_refused_before_it_runs() -> None:
    with pytest.raises(bb.WiringError, match="no-model"):
        await bb.run(bb.Flow().with_agent(bb.Agent("a")), "hi")
    with pytest.raises(bb.WiringError, match="no-model"):
        bb.App().register(bb.Flow().with_agent(bb.Agent("a")).with_id("f"))
