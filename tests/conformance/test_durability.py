"""What a durable flow remembers, and what it forgets: cases 27 to 41 of the builder contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import bb
from bb.messages import assistant
from bb.testing.mock_store import MockStore
from bb.testing.scripted_model import ScriptedModel
from tests.trials.kit import Disk, Work, contents, cut_off, disk_of, mocked


@pytest.fixture(params=["memory", "file"])
async def disk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Disk]:
    async with disk_of(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def work() -> Work:
    return Work()


def said(*texts: str) -> tuple[bb.Message, ...]:
    return tuple(map(assistant, texts))


# --- 27 to 30: replay -------------------------------------------------------------------------------------------------


async def test_case_027_a_flow_that_is_not_durable_leaves_the_store_alone(disk: Disk, work: Work) -> None:
    flow = work.flow("a").next(work.flow("b")).with_id("plain")
    app = disk.app(flow)

    for _ in range(2):
        assert (await app.run("plain", "hi", run_id="r")).replayed == ()

    assert work.calls == ["a", "b", "a", "b"]
    assert await contents(app.store) == {} and await app.runs() == []


async def test_case_027_not_even_a_broken_store_is_noticed(work: Work) -> None:
    store = MockStore()
    store.crash()

    outcome = await mocked(store).run(work.flow("a"), "hi", run_id="r")

    assert outcome.answer == "a" and store.appends == 0


async def test_case_028_a_durable_flow_replays_with_an_equal_result(disk: Disk, work: Work) -> None:
    work.values["a"] = {"count": [1, 2], "pair": (1, 2)}
    seen = bb.Recorder()
    flow = work.flow("a").durable()
    first = await disk.app(flow).run("a", "hi", run_id="r")

    second = await disk.app(flow, trace=seen).run("a", "hi", run_id="r")

    assert work.calls == ["a"]
    assert (second.answer, second.messages, second.value) == (first.answer, first.messages, first.value)
    assert second.value == {"count": [1, 2], "pair": (1, 2)} and second.replayed == ("a",)
    assert seen.paths("flow.cached") == ["a"] and seen.paths("flow.start") == []


async def test_case_029_runs_do_not_share_savepoints(disk: Disk, work: Work) -> None:
    app = disk.app(work.flow("a").durable())

    for run_id in ("one", "two", "ONE"):
        assert (await app.run("a", "hi", run_id=run_id)).replayed == ()

    assert work.count("a") == 3 and [run.run_id for run in await app.runs()] == ["ONE", "one", "two"]


async def test_case_030_a_retry_runs_only_what_is_missing(disk: Disk, work: Work) -> None:
    flow = work.flow("a").next(work.flow("b")).with_id("pair").durable()
    work.fail("b", 1)
    with pytest.raises(bb.AgentFailed, match=r"b fails"):
        await disk.app(flow).run("pair", "hi", run_id="r")

    outcome = await disk.app(flow).run("pair", "hi", run_id="r")

    assert (work.count("a"), work.count("b")) == (1, 2)
    assert outcome.messages == said("a", "b") and work.heard["b"] == ("hi", "a")


# --- 31 to 33: a changed graph ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("compatible", [False, True])
async def test_case_031_a_changed_graph_starts_afresh_unless_it_is_compatible(
    disk: Disk, work: Work, compatible: bool
) -> None:
    def graph(*names: str) -> bb.DurableFlow:
        lead = bb.Flow().with_agent(*map(work.agent, names)).with_id("lead")
        return lead.next(work.flow("tail")).with_id("job").durable(forward_compatible=compatible)

    work.fail("tail", 1)
    with pytest.raises(bb.AgentFailed):
        await disk.app(graph("x")).run("job", "hi", run_id="r")
    seen = bb.Recorder()

    outcome = await disk.app(graph("x", "y"), trace=seen).run("job", "hi", run_id="r")

    (report,) = [event for event in seen.events if event.kind == "durable.discarded"]
    assert "replaced job/lead: agents x became agents x, y" in report.detail and report.flow == "job"
    if compatible:
        assert outcome.messages == said("x", "tail") and work.calls == ["x", "tail", "tail"]
    else:
        assert outcome.messages == said("x", "y", "tail") and work.calls == ["x", "tail", "x", "y", "tail"]


async def test_case_031_the_report_names_savepoints_that_have_no_place_any_more(disk: Disk, work: Work) -> None:
    old = work.flow("a").next(work.flow("gone")).next(work.flow("tail")).with_id("job").durable(forward_compatible=True)
    new = work.flow("a").next(work.flow("tail")).with_id("job").durable(forward_compatible=True)
    work.fail("tail", 1)
    with pytest.raises(bb.AgentFailed):
        await disk.app(old).run("job", "hi", run_id="r")
    seen = bb.Recorder()

    outcome = await disk.app(new, trace=seen).run("job", "hi", run_id="r")

    assert outcome.replayed == ("job/a",)
    (report,) = [event for event in seen.events if event.kind == "durable.discarded"]
    assert "savepoints without a place: job/gone" in report.detail


async def test_case_032_no_savepoint_of_an_old_graph_is_ever_replayed(disk: Disk, work: Work) -> None:
    old = work.flow("a", "old a").next(work.flow("b", "old b")).next(work.flow("c")).with_id("job").durable()
    new = work.flow("a", "new a", version="2").next(work.flow("b", "new b", version="2")).next(work.flow("c"))
    changed = new.with_id("job").durable()
    work.fail("c", 1)
    with pytest.raises(bb.AgentFailed):
        await disk.app(old).run("job", "hi", run_id="r")
    await cut_off(disk.app(changed), work.hold("b"), "job", "hi", run_id="r")  # a is saved anew, b is not

    outcome = await disk.app(changed).run("job", "hi", run_id="r")

    assert outcome.messages == said("new a", "new b", "c") and outcome.replayed == ("job/a",)


async def test_case_032_going_back_to_the_old_graph_is_another_change(disk: Disk, work: Work) -> None:
    old = work.flow("a").next(work.flow("b")).with_id("job").durable()
    new = work.flow("a").next(work.flow("x")).next(work.flow("b")).with_id("job").durable()
    work.fail("b", 2)
    for flow in (old, new):
        with pytest.raises(bb.AgentFailed):
            await disk.app(flow).run("job", "hi", run_id="r")

    outcome = await disk.app(old).run("job", "hi", run_id="r")

    assert outcome.replayed == () and work.calls == ["a", "b", "a", "x", "b", "a", "b"]


async def test_case_033_a_named_leaf_replays_where_a_step_was_inserted_before_it(disk: Disk, work: Work) -> None:
    tail = work.flow("tail")
    old = work.flow("a").next(tail).with_id("job").durable(forward_compatible=True)
    new = work.flow("fresh").next(work.flow("a")).next(tail).with_id("job").durable(forward_compatible=True)
    work.fail("tail", 1)
    with pytest.raises(bb.AgentFailed):
        await disk.app(old).run("job", "hi", run_id="r")

    outcome = await disk.app(new).run("job", "hi", run_id="r")

    assert outcome.replayed == ("job/a",) and outcome.messages == said("fresh", "a", "tail")
    assert work.calls == ["a", "tail", "fresh", "tail"]


async def test_case_033_a_leaf_without_a_name_replays_only_where_it_stood(disk: Disk, work: Work) -> None:
    unnamed = bb.Flow().with_agent(work.agent("u"))
    old = work.flow("a").next(unnamed).next(work.flow("b")).with_id("job").durable(forward_compatible=True)
    new = work.flow("x").next(work.flow("a")).next(unnamed).next(work.flow("b"))
    moved = new.with_id("job").durable(forward_compatible=True)
    work.fail("b", 1)
    with pytest.raises(bb.AgentFailed):
        await disk.app(old).run("job", "hi", run_id="r")

    outcome = await disk.app(moved).run("job", "hi", run_id="r")

    assert outcome.replayed == ("job/a",) and work.count("u") == 2


# --- 34 to 40: kinds of flow ------------------------------------------------------------------------------------------


async def test_case_034_what_is_replayed_costs_nothing(disk: Disk, work: Work) -> None:
    model = ScriptedModel("dear", "cheap", usage=bb.Usage(10, 5))
    dear = bb.Flow().with_agent(bb.Agent("dear", model=model)).with_id("dear")
    cheap = bb.Flow().with_agent(bb.Agent("cheap", model=model)).with_id("cheap")
    flow = dear.next(work.flow("door")).next(cheap).with_id("job").durable()
    work.fail("door", 1)
    seen = bb.Recorder()
    with pytest.raises(bb.AgentFailed):
        await disk.app(flow).run("job", "hi", run_id="r")

    outcome = await disk.app(flow, trace=seen).run("job", "hi", run_id="r")

    assert outcome.usage == bb.Usage(10, 5) and len(model.requests) == 2
    assert [event.usage for event in seen.events if event.kind == "run.end"] == [bb.Usage(10, 5)]
    assert (await disk.app(flow).run("job", "hi", run_id="r")).usage == bb.Usage()


async def test_case_035_a_selection_replays_and_the_same_branch_is_entered(disk: Disk, work: Work) -> None:
    branches = bb.Select(work.flow("left"), work.flow("right"))
    flow = work.flow("router").next(branches).with_id("job").durable()
    work.picks["router"] = "left"
    work.fail("left", 1)
    with pytest.raises(bb.AgentFailed):
        await disk.app(flow).run("job", "hi", run_id="r")
    work.picks["router"] = "right"  # what it would pick if it were asked again

    outcome = await disk.app(flow).run("job", "hi", run_id="r")

    assert outcome.messages == said("router", "left") and work.calls == ["router", "left", "left"]


async def test_case_035_a_selection_that_cannot_be_entered_is_not_saved(disk: Disk, work: Work) -> None:
    flow = work.flow("router").next(bb.Respond()).next(bb.Select(work.flow("left"))).with_id("job").durable(retries=3)
    work.picks["router"] = "nowhere"
    with pytest.raises(bb.UnknownSelect):
        await disk.app(flow).run("job", "hi", run_id="r")
    work.picks["router"] = "left"

    outcome = await disk.app(flow).run("job", "hi", run_id="r")

    assert outcome.messages == said("router", "left") and work.count("router") == 2  # fatal: none of the retries


async def test_case_035_a_model_that_picked_wrongly_is_asked_anew(disk: Disk, work: Work) -> None:
    model = ScriptedModel("first thoughts", "nowhere", "left")

    async def route(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await chat.ask_with("think")
        turn.select((await chat.ask_with("where to?")).text)

    router = bb.Flow().with_agent(bb.Agent("router", model=model).on_message(route)).with_id("router")
    flow = router.next(bb.Select(work.flow("left"), work.flow("right"))).with_id("job").durable(retries=3)
    with pytest.raises(bb.UnknownSelect):
        await disk.app(flow).run("job", "hi", run_id="r")
    assert model.left == 1  # no retry

    outcome = await disk.app(flow).run("job", "hi", run_id="r")

    assert outcome.answer == "left" and model.left == 0  # and only the last answer was asked for again


async def test_case_035_models_that_picked_differently_are_asked_anew(disk: Disk, work: Work) -> None:
    def router(name: str, model: ScriptedModel) -> bb.Agent[str]:
        async def route(turn: bb.Turn, chat: bb.ModelChat) -> None:
            turn.select((await chat.ask_with("where to?")).text)

        return bb.Agent(name, model=model).on_message(route)

    x, y = ScriptedModel("left", "left"), ScriptedModel("right", "left")
    both = bb.Flow().with_agent(router("x", x), router("y", y)).with_id("both")
    flow = both.next(bb.Select(work.flow("left"), work.flow("right"))).with_id("job").durable()
    with pytest.raises(bb.SelectConflict):
        await disk.app(flow).run("job", "hi", run_id="r")

    assert (await disk.app(flow).run("job", "hi", run_id="r")).answer == "left"


@pytest.mark.parametrize("kind", [bb.All, bb.Group])
@pytest.mark.parametrize("durable", ["whole", "members"])
async def test_case_019_members_that_conflicted_pick_again(
    disk: Disk, work: Work, kind: type[bb.All | bb.Group], durable: str
) -> None:
    # what would conflict on every retry is not kept; what picked nothing, or the inner routers, stays
    inner = work.flow("inner").next(bb.Select(work.flow("p"))).with_id("routed")
    x, y = work.flow("x"), work.flow("y")
    members = (x, y) if durable == "whole" else (x.durable(), y.durable())
    side = kind(*members, work.flow("quiet"), inner)
    body = side.next(bb.Select(work.flow("left"), work.flow("right"))).with_id("job")
    flow = body.durable() if durable == "whole" else body
    work.picks |= {"x": "left", "y": "right", "inner": "p"}
    with pytest.raises(bb.SelectConflict):
        await disk.app(flow).run("job", "hi", run_id="r")
    work.picks["y"] = "left"

    outcome = await disk.app(flow).run("job", "hi", run_id="r")

    assert outcome.answer == "left" and (work.count("x"), work.count("y")) == (2, 2)
    if durable == "whole":
        assert (work.count("quiet"), work.count("inner"), work.count("p")) == (1, 1, 1)
    assert (await disk.app(flow).run("job", "hi", run_id="r")).messages == outcome.messages


@pytest.mark.parametrize("inside", [True, False])
async def test_case_035_a_selection_whose_member_is_gone_is_made_again(disk: Disk, work: Work, inside: bool) -> None:
    def graph(*members: str) -> bb.NamedFlow | bb.DurableFlow:
        target = bb.Select(*(work.flow(member) for member in members))
        if inside:
            return work.flow("router").next(target).next(work.flow("z")).with_id("job").durable(forward_compatible=True)
        return work.flow("router").durable().next(target).next(work.flow("z")).with_id("job")

    seen = bb.Recorder()
    work.picks["router"] = "left"
    work.fail("z", 1)
    with pytest.raises(bb.AgentFailed):
        await disk.app(graph("left", "right")).run("job", "hi", run_id="r")
    work.picks["router"] = "right"

    outcome = await disk.app(graph("middle", "right"), trace=seen).run("job", "hi", run_id="r")

    assert outcome.messages == said("router", "right", "z") and outcome.replayed == ()
    assert any("'left'" in event.detail for event in seen.events if event.kind == "durable.discarded")
    again = await disk.app(graph("middle", "right")).run("job", "hi", run_id="r")
    assert again.messages == outcome.messages and "job/router" in again.replayed


async def test_case_036_a_router_outside_the_scope_decides_anew(disk: Disk, work: Work) -> None:
    def branch(name: str) -> bb.DurableFlow:
        return work.flow(f"{name}1").next(work.flow(f"{name}2")).with_id(name).durable()

    flow = work.flow("router").next(bb.Select(branch("left"), branch("right"))).with_id("job")
    work.picks["router"] = "left"
    work.fail("left2", 1)
    with pytest.raises(bb.AgentFailed):
        await disk.app(flow).run("job", "hi", run_id="r")
    work.picks["router"] = "right"

    outcome = await disk.app(flow).run("job", "hi", run_id="r")

    assert outcome.messages == said("router", "right1", "right2") and outcome.replayed == ()
    work.picks["router"] = "left"
    again = await disk.app(flow).run("job", "hi", run_id="r")
    assert again.replayed == ("job/body~select.1/left/left1",)  # and what the first branch had saved is still its own


async def test_case_037_members_of_all_run_to_their_end_and_keep_their_order(disk: Disk, work: Work) -> None:
    flow = bb.All(work.flow("a"), work.flow("b"), work.flow("c")).with_id("job").durable()
    work.fail("b", 1)
    slow = work.hold("c")
    task = asyncio.create_task(disk.app(flow).run("job", "hi", run_id="r"))
    await slow.reached.wait()
    await asyncio.sleep(0.02)
    assert not task.done()  # b has failed, and c goes on
    slow.go.set()
    with pytest.raises(bb.AgentFailed, match="b fails"):
        await task

    outcome = await disk.app(flow).run("job", "hi", run_id="r")

    assert outcome.messages == said("a", "b", "c")
    assert (work.count("a"), work.count("b"), work.count("c")) == (1, 2, 1)


async def test_case_037_the_first_error_in_declaration_order_is_raised(disk: Disk, work: Work) -> None:
    flow = bb.All(work.flow("a"), work.flow("b"), work.flow("c")).with_id("job").durable()
    first = work.hold("a")
    first.error = ValueError("a fails last")
    work.fail("c", 1)
    task = asyncio.create_task(disk.app(flow).run("job", "hi", run_id="r"))
    await first.reached.wait()
    first.go.set()

    with pytest.raises(bb.AgentFailed, match="a fails last"):
        await task

    assert (await disk.app(flow).run("job", "hi", run_id="r")).replayed == ("job/b",)


@pytest.mark.parametrize("failing", [None, "a", "b", "c"])
async def test_case_038_replies_of_replayed_members_are_in_the_group(
    disk: Disk, work: Work, failing: str | None
) -> None:
    group = bb.Group(work.flow("a"), work.flow("b"), work.flow("c"))
    flow = group.next(work.flow("tail")).with_id("job").durable()
    work.fail(failing or "tail", 1)
    with pytest.raises(bb.AgentFailed):
        await disk.app(flow).run("job", "hi", run_id="r")

    outcome = await disk.app(flow).run("job", "hi", run_id="r")

    assert outcome.messages == said("a", "b", "c", "tail") and work.heard["tail"] == ("hi", "a", "b", "c")
    assert [work.count(name) for name in "abc"] == [2 if name == failing else 1 for name in "abc"]


async def test_case_038_a_member_that_runs_again_hears_those_that_replay(disk: Disk, work: Work) -> None:
    heard: list[list[str]] = []

    async def listen(turn: bb.Turn, chat: bb.ModelChat) -> None:
        heard.append([message.content for message in chat.messages])
        if len(heard) == 1:
            raise ValueError("not yet")
        turn.reply("c")

    ears = bb.Flow().with_agent(bb.Agent("ears").on_message(listen)).with_id("ears")
    flow = bb.Group(ears, work.flow("a"), work.flow("b")).with_id("job").durable()
    with pytest.raises(bb.AgentFailed):
        await disk.app(flow).run("job", "hi", run_id="r")

    outcome = await disk.app(flow).run("job", "hi", run_id="r")

    assert heard[-1] == ["hi", "a", "b"] and outcome.messages == said("c", "a", "b")


async def test_case_039_the_winner_is_recorded_and_only_it_replays(disk: Disk, work: Work) -> None:
    # `quick` has finished its first step when `winner` wins, so both have savepoints
    late = work.flow("quick").next(work.flow("late")).with_id("loser")
    race = bb.One(late, work.flow("winner"))
    flow = race.next(work.flow("tail")).with_id("job").durable()
    stuck, gate = work.hold("late"), work.hold("winner")
    work.fail("tail", 1)
    task = asyncio.create_task(disk.app(flow).run("job", "hi", run_id="r"))
    await stuck.reached.wait()
    await gate.reached.wait()
    gate.go.set()
    with pytest.raises(bb.AgentFailed, match="tail"):
        await task

    outcome = await disk.app(flow).run("job", "hi", run_id="r")

    assert outcome.messages == said("winner", "tail")
    assert outcome.replayed == ("job/body~one.0/winner",)
    assert work.calls.count("late") == 1 and work.calls.count("quick") == 1


async def test_case_039_without_a_winner_the_members_race_again(disk: Disk, work: Work) -> None:
    flow = bb.One(work.flow("a"), work.flow("b")).with_id("job").durable()
    work.fail("a", 1)
    work.fail("b", 1)
    with pytest.raises(bb.AgentFailed) as raised:
        await disk.app(flow).run("job", "hi", run_id="r")
    assert isinstance(raised.value.__cause__, ExceptionGroup) and len(raised.value.__cause__.exceptions) == 2

    outcome = await disk.app(flow).run("job", "hi", run_id="r")

    assert outcome.answer == "a" and outcome.replayed == ()


async def test_case_040_when_one_agent_of_a_leaf_fails_all_run_again(disk: Disk, work: Work) -> None:
    both = bb.Flow().with_agent(work.agent("x"), work.agent("y")).with_id("both")
    flow = both.durable()
    work.fail("x", 1)
    with pytest.raises(bb.AgentFailed):
        await disk.app(flow).run("both", "hi", run_id="r")
    assert work.calls == ["x", "y"]  # the other one ran to its end

    outcome = await disk.app(flow).run("both", "hi", run_id="r")

    assert outcome.messages == said("x", "y") and work.calls == ["x", "y", "x", "y"]


# --- 41: durable inside durable ---------------------------------------------------------------------------------------


async def test_case_041_an_unchanged_inner_flow_replays_in_a_changed_outer_one(disk: Disk, work: Work) -> None:
    inner = work.flow("i1").next(work.flow("i2")).with_id("inner").durable()
    old = work.flow("a").next(inner).next(work.flow("z")).with_id("outer").durable()
    new = work.flow("a").next(work.flow("extra")).next(inner).next(work.flow("z")).with_id("outer").durable()
    work.fail("z", 1)
    with pytest.raises(bb.AgentFailed):
        await disk.app(old).run("outer", "hi", run_id="r")

    outcome = await disk.app(new).run("outer", "hi", run_id="r")

    assert outcome.replayed == ("outer/inner/i1", "outer/inner/i2")
    assert work.calls == ["a", "i1", "i2", "z", "a", "extra", "z"]


async def test_case_041_a_changed_inner_flow_starts_afresh_inside_a_changed_outer_one(disk: Disk, work: Work) -> None:
    def graph(version: str) -> bb.DurableFlow:
        inner = work.flow("i1").next(work.flow("i2", version=version)).with_id("inner").durable()
        # an outer that is compatible does not make the inner one so
        return work.flow("a").next(inner).next(work.flow("z")).with_id("outer").durable(forward_compatible=True)

    work.fail("z", 1)
    with pytest.raises(bb.AgentFailed):
        await disk.app(graph("1")).run("outer", "hi", run_id="r")

    outcome = await disk.app(graph("2")).run("outer", "hi", run_id="r")

    assert outcome.replayed == ("outer/a",) and work.count("i1") == 2


async def test_case_041_the_innermost_retries_count(disk: Disk, work: Work) -> None:
    inner = work.flow("i").durable(retries=2)
    flow = work.flow("a").next(inner).with_id("outer").durable(retries=1)
    work.fail("i", 6)

    with pytest.raises(bb.AgentFailed):
        await mocked(MockStore(), flow).run("outer", "hi", run_id="r")

    assert (
        work.count("i") == 6 and work.count("a") == 1
    )  # (1 + 2 tries) twice: an outer retry starts the inner ones anew


async def test_case_041_an_inner_flow_without_retries_is_retried_by_the_outer_one(work: Work) -> None:
    store = MockStore()
    flow = work.flow("a").next(work.flow("i").durable()).next(work.flow("z")).with_id("outer").durable(retries=2)
    work.fail("i", 2)
    outcome = await mocked(store, flow).run("outer", "hi", run_id="r")
    assert outcome.answer == "z" and work.calls == ["a", "i", "i", "i", "z"]

    again = await mocked(store, flow).run("outer", "hi", run_id="r")  # what was written under retries reads back

    assert again.messages == outcome.messages and work.calls == ["a", "i", "i", "i", "z"]
    assert again.replayed == ("outer/a", "outer/i", "outer/z")
