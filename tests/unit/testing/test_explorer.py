"""`crash_everywhere` and `race_everywhere` on the flows of a user: what they tell, and what they refuse."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

import bb
from bb.testing import CrashReport, Effects, NotCrashSafe, Recorder, crash_everywhere, race_everywhere
from bb.testing.scripted_model import ScriptedModel


def flow_of(*handlers: Any, **options: Any) -> bb.DurableFlow:
    flow: Any = None
    for handler in handlers:
        leaf = bb.Flow().with_agent(bb.Agent().on_message(handler)).with_id(handler.__name__)
        flow = leaf if flow is None else flow.next(leaf)
    durable: bb.DurableFlow = flow.with_id("shop").durable(**options)
    return durable


def shop(effects: Effects) -> bb.DurableFlow:
    async def charge(turn: bb.Turn, _chat: bb.ModelChat) -> None:
        effects.ran("charge")
        turn.reply("charged")

    async def ship(turn: bb.Turn, _chat: bb.ModelChat) -> None:
        effects.ran("ship")
        turn.reply("shipped")

    return flow_of(charge, ship)


async def test_the_report_shows_what_would_run_twice() -> None:
    effects = Effects()
    report = await crash_everywhere(shop(effects), "a book", effects=effects)
    assert isinstance(report, CrashReport)
    assert report.appends == (
        "start",
        "tree",
        "enter shop + save shop/charge",
        "save shop/ship",
        "end: finished",
    )
    rows = {(row.path, row.effect): row for row in report.twice}
    assert (rows["shop/ship", "ship"].runs, rows["shop/ship", "ship"].most) == (1, 2)
    assert rows["shop/ship", "ship"].when == "before 4: save shop/ship"
    lines = [line.split() for line in str(report).splitlines()]
    assert ["place", "effect", "runs", "at", "most", "when"] in lines
    assert ["shop/ship", "ship", "1", "2", "before", "4:", "save", "shop/ship"] in lines
    assert not report.findings


async def test_the_counter_begins_each_case_at_zero() -> None:
    effects = Effects()
    effects.ran("charge")
    await crash_everywhere(shop(effects), "a book", effects=effects)
    assert effects["charge"] <= 2


async def test_a_flow_that_answers_differently_is_seen() -> None:
    numbers = count()

    async def draw(turn: bb.Turn, _chat: bb.ModelChat) -> None:
        turn.reply(f"number {next(numbers)}")

    with pytest.raises(NotCrashSafe, match=r"the answer is 'number \d+', not 'number 0'") as caught:
        await crash_everywhere(flow_of(draw), "go")
    assert isinstance(caught.value, AssertionError)
    assert {finding.what[:13] for finding in caught.value.report.findings} == {"the answer is"}
    assert "what came out wrong" in str(caught.value)


async def test_a_flow_that_does_more_when_it_resumes_is_seen() -> None:
    effects = Effects()

    async def greedy(turn: bb.Turn, _chat: bb.ModelChat) -> None:
        for _ in range(effects.ran("look") * 3 - 2):  # once at first, four times after a crash
            effects.ran("charge")
        turn.reply("done")

    with pytest.raises(NotCrashSafe, match="charge at shop ran 5 times, not at most 2"):
        await crash_everywhere(flow_of(greedy), "go", effects=effects)


async def test_a_flow_that_fails_after_a_crash_is_seen() -> None:
    effects = Effects()

    async def once_only(turn: bb.Turn, _chat: bb.ModelChat) -> None:
        if effects.ran("insert") > 1:
            raise KeyError("there is such a row already")
        turn.reply("done")

    with pytest.raises(NotCrashSafe, match=r"it failed with AgentFailed: .*there is such a row already"):
        await crash_everywhere(flow_of(once_only), "go", effects=effects)


async def test_a_flow_that_fails_by_itself_raises_its_own_error() -> None:
    async def broken(_turn: bb.Turn, _chat: bb.ModelChat) -> None:
        raise ValueError("no luck")

    with pytest.raises(bb.AgentFailed, match="no luck"):
        await crash_everywhere(flow_of(broken), "go")
    with pytest.raises(bb.AgentFailed, match="no luck"):
        await race_everywhere(flow_of(broken), "go")


async def test_a_flow_that_hangs_is_seen() -> None:
    async def stuck(_turn: bb.Turn, _chat: bb.ModelChat) -> None:
        await asyncio.Event().wait()

    with pytest.raises(NotCrashSafe, match=r"it did not end within 0\.05 seconds"):
        await crash_everywhere(flow_of(stuck), "go", patience=0.05)


async def test_a_flow_that_is_not_durable_has_nothing_to_explore() -> None:
    flow = bb.Flow().with_agent(bb.Agent().with_model(bb.FixedModel("hi"))).with_id("plain")
    with pytest.raises(bb.WiringError, match=r"durable"):
        await crash_everywhere(flow, "go")


async def test_the_app_is_the_users_own() -> None:
    recorder = Recorder()
    apps: list[bb.App] = []

    async def relay(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.reply(await chat.add(f"{turn.last.content} {turn.params['n']}").ask())

    def app(store: bb.Store) -> bb.App:
        apps.append(bb.App(store=store, trace=recorder, model=bb.FixedModel("hello"), retention=timedelta(days=1)))
        return apps[-1]

    report = await crash_everywhere(flow_of(relay), "go", app=app, params={"n": 1}, stream=False)
    assert len(apps) > report.cases
    assert recorder.kinds().count("run.end") >= report.cases
    assert any(row.effect == "model" for row in report.rows)


async def test_a_model_is_asked_once_and_answers_every_case_alike() -> None:
    asked: list[bb.ModelRequest] = []

    class Moody:
        async def stream(self, request: bb.ModelRequest, /) -> Any:
            asked.append(request)
            yield f"mood {len(asked)}"

    agents = (bb.Agent("a"), bb.Agent("b"))
    flow = bb.Flow().with_agent(*agents).with_model(Moody()).next(bb.Respond()).with_id("r").durable()
    report = await crash_everywhere(flow, "go")
    assert len(asked) == 2
    assert report.cases > 10


async def test_effects_outside_a_handler_have_no_place() -> None:
    effects = Effects()
    assert effects.ran("x") == 1
    assert effects.ran("x") == 2
    assert (effects["x"], effects["y"]) == (2, 0)
    assert repr(effects) == "Effects({'x': 2})"
    effects.reset()
    assert effects["x"] == 0


async def test_what_a_dead_process_still_does_does_not_count() -> None:
    """A handler that insists on cleaning up gets as far as its first effect."""
    effects = Effects()
    cleaned: list[int] = []

    async def tidy(turn: bb.Turn, _chat: bb.ModelChat) -> None:
        try:
            await turn.step("work", lambda: effects.ran("work") > 0)
        finally:
            effects.ran("clean")
            cleaned.append(1)
        turn.reply("done")

    report = await crash_everywhere(flow_of(tidy), "go", effects=effects)
    most = {row.effect: row.most for row in report.rows}
    assert most == {"agents": 2, "work": 2, "clean": 2}
    assert len(cleaned) < 3 * report.cases


async def test_a_flow_may_race() -> None:
    effects = Effects()
    report = await race_everywhere(shop(effects), "a book", effects=effects)
    held = [row for row in report.rows if row.when.startswith("held")]
    assert not held
    assert {row.when.split()[0] for row in report.twice} == {"lapsed"}


async def test_the_ops_of_a_model_stage_and_the_tools_of_a_handler_are_effects() -> None:
    @bb.op()
    async def look(what: str) -> str:
        return f"saw {what}"

    @bb.op(effects=["money"], risk="high")
    async def pay(amount: float) -> str:
        return "paid"

    async def weigh(arguments: dict[str, object]) -> str:
        return "heavy"

    async def weighs(turn: bb.Turn, chat: bb.ModelChat) -> None:
        scales = bb.Tool("weigh", "Weigh it.", {"type": "object"}).on_call(weigh)
        turn.reply((await chat.with_tools(scales).resolve()).text)

    stage = bb.AiSegment("do it", [look, pay]).with_model(
        ScriptedModel(bb.ToolCall("c1", "look", '{"what": "it"}'), bb.ToolCall("c2", "pay", '{"amount": 1}'), "done")
    )
    agent = bb.Agent("scales", model=ScriptedModel(bb.ToolCall("c3", "weigh", "{}"), "heavy")).on_message(weighs)
    report = await crash_everywhere((stage >> bb.Flow().with_agent(agent)).with_id("f").durable())
    most = {row.effect: (row.runs, row.most) for row in report.rows if row.effect in {"look", "pay", "weigh"}}
    assert most == {"look": (1, 2), "pay": (1, 2), "weigh": (1, 2)}


async def test_a_flow_that_needs_no_input_gets_none() -> None:
    flow = (bb.Emit("hi {name}") >> bb.Return("done")).with_id("f").durable()
    for explore in (crash_everywhere, race_everywhere):
        assert (await explore(flow, params={"name": "Ada"})).cases > 3


async def test_a_flow_that_is_meant_to_fail_and_does_not_is_seen() -> None:
    saga = bb.Saga(bb.Step(bb.Emit("paid"), undo=bb.Emit("paid back"))).with_id("f").durable()
    with pytest.raises(NotCrashSafe, match="it is meant to fail, and finished") as seen:
        await crash_everywhere(saga, fails=True)
    assert str(seen.value).startswith("1 finding\n")


async def test_where_a_flow_still_waits_is_told() -> None:
    flow = (bb.Await("go", bind="x") >> bb.Emit("{x}")).with_id("f").durable()
    report = await crash_everywhere(flow)
    assert report.waits_for == "go" and "It waits for 'go', and nothing comes: events=[('go', ...)]" in str(report)
    report = await crash_everywhere(flow, events=[("go", "on")])
    assert report.waits_for is None and "waits" not in str(report)


async def test_an_app_instead_of_how_to_make_one_is_refused() -> None:
    made: Any = bb.App()
    for explore in (crash_everywhere, race_everywhere):
        with pytest.raises(bb.WiringError, match="app=lambda store"):
            await explore(shop(Effects()), "hi", app=made)
