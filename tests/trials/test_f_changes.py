"""Trials F: the graph or the code changed between two runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import bb
from bb.messages import assistant
from tests.trials.kit import Disk, Work, contents


async def test_trial_F1_a_replaced_branch_is_reported_and_nothing_of_the_old_one_is_used(
    disk: Disk, work: Work
) -> None:
    def graph(branch: str) -> bb.DurableFlow:
        return bb.All(work.flow("news"), work.flow(branch)).next(work.flow("sum")).with_id("job").durable()

    work.fail("sum", 1)
    with pytest.raises(bb.AgentFailed):
        await disk.app(graph("charts")).run("job", "hi", run_id="r")
    seen = bb.Recorder()

    outcome = await disk.app(graph("rumours"), trace=seen).run("job", "hi", run_id="r")

    assert outcome.replayed == () and work.heard["sum"] == ("hi", "news", "rumours")
    (report,) = [event.detail for event in seen.events if event.kind == "durable.discarded"]
    assert "charts" in report and "rumours" in report and "job/body~all.0/news" in report


Change = Callable[[Work], bb.AnyFlow]

ALLOWED: dict[str, tuple[Change, tuple[str, ...]]] = {
    "the same": (lambda w: w.flow("a").next(w.flow("b")).next(w.flow("end")), ("a", "b")),
    "renamed": (lambda w: w.flow("a2").next(w.flow("b")).next(w.flow("end")), ("b",)),
    "inserted before": (lambda w: w.flow("x").next(w.flow("a")).next(w.flow("b")).next(w.flow("end")), ("a", "b")),
    "inserted after": (lambda w: w.flow("a").next(w.flow("x")).next(w.flow("b")).next(w.flow("end")), ("a", "b")),
    "removed": (lambda w: w.flow("b").next(w.flow("end")), ("b",)),
    "reordered": (lambda w: w.flow("b").next(w.flow("a")).next(w.flow("end")), ("b", "a")),
    "wrapped in a group": (lambda w: bb.All(w.flow("a"), w.flow("b")).next(w.flow("end")), ("a", "b")),
    "wrapped in a name": (lambda w: w.flow("a").next(w.flow("b")).with_id("part").next(w.flow("end")), ()),
    "another agent": (
        lambda w: bb.Flow().with_agent(w.agent("other")).with_id("a").next(w.flow("b")).next(w.flow("end")),
        ("a", "b"),
    ),
}


@pytest.mark.parametrize("change", ALLOWED)
@pytest.mark.parametrize("compatible", [True, False])
async def test_trial_F2_the_table_of_changes_holds(disk: Disk, work: Work, change: str, compatible: bool) -> None:
    make, kept = ALLOWED[change]

    def durable(body: bb.AnyFlow) -> bb.DurableFlow:
        assert isinstance(body, bb.Chain)
        return body.with_id("job").durable(forward_compatible=compatible)

    work.fail("end", 1)
    with pytest.raises(bb.AgentFailed):
        await disk.app(durable(ALLOWED["the same"][0](work))).run("job", "hi", run_id="r")
    work.calls.clear()

    outcome = await disk.app(durable(make(work))).run("job", "hi", run_id="r")

    expected = kept if compatible or change == "the same" else ()
    assert tuple(path.rpartition("/")[2] for path in outcome.replayed) == expected
    assert set(work.calls).isdisjoint(expected) and work.calls[-1] == "end"
    again = await disk.app(durable(make(work))).run("job", "hi", run_id="r")
    assert again.messages == outcome.messages and len(again.replayed) == len(outcome.messages)


async def test_trial_F2_two_changes_in_a_row_keep_what_still_has_a_place(disk: Disk, work: Work) -> None:
    def graph(*names: str) -> bb.DurableFlow:
        body: bb.AnyFlow = work.flow("a")
        for name in names:
            body = body.next(work.flow(name))
        assert isinstance(body, bb.Chain)
        return body.with_id("job").durable(forward_compatible=True)

    work.fail("end", 2)
    for names in (("b", "end"), ("x", "b", "end")):
        with pytest.raises(bb.AgentFailed):
            await disk.app(graph(*names)).run("job", "hi", run_id="r")

    outcome = await disk.app(graph("y", "x", "b", "end")).run("job", "hi", run_id="r")

    assert outcome.messages == tuple(map(assistant, ("a", "y", "x", "b", "end")))
    assert outcome.replayed == ("job/a", "job/x", "job/b")


async def test_trial_F2_a_finished_run_under_a_changed_graph_is_run_again(disk: Disk, work: Work) -> None:
    old, new = work.flow("a").durable(), bb.Flow().with_agent(work.agent("a2")).with_id("a").durable()
    await disk.app(old).run("a", "hi", run_id="r")

    outcome = await disk.app(new).run("a", "hi", run_id="r")

    assert outcome.answer == "a2" and outcome.replayed == ()
    assert (await disk.app(new).run("a", "hi", run_id="r")).replayed == ("a",)
    assert [run.status for run in await disk.app(new).runs()] == ["finished"]


async def test_trial_F2_changed_prompts_models_and_options_are_no_change(disk: Disk, work: Work) -> None:
    def graph(role: str, model: bb.Model, retries: int) -> bb.DurableFlow:
        ask = bb.Flow().with_agent(bb.Agent("ask", role=bb.Role(role), model=model)).with_id("ask")
        return ask.next(work.flow("end")).with_id("job").durable(retries=retries)

    work.fail("end", 1)
    with pytest.raises(bb.AgentFailed):
        await disk.app(graph("be brief", bb.FixedModel("one"), 0)).run("job", "hi", run_id="r")

    outcome = await disk.app(graph("be kind", bb.FixedModel("two"), 3)).run("job", "hi", run_id="r")

    assert outcome.messages[0].content == "one"


@pytest.mark.parametrize("kind", ["chain", "all", "group", "one", "select", "nested", "respond"])
async def test_trial_F5_a_finished_run_replays_from_its_own_log_without_running_or_writing(
    disk: Disk, work: Work, kind: str
) -> None:
    a, b, c = work.flow("a"), work.flow("b"), work.flow("c")
    work.picks["router"] = "b"
    shapes: dict[str, bb.AnyFlow] = {
        "chain": a.next(b),
        "all": bb.All(a, b, c),
        "group": bb.Group(a, b.next(c).with_id("bc")),
        "one": bb.One(a, b).next(c),
        "select": work.flow("router").next(bb.Select(a, b)),
        "nested": a.next(b.next(c).with_id("inner").durable()),
        "respond": a.next(bb.Respond()).next(b).next(bb.Respond()),
    }
    shape = shapes[kind]
    assert not isinstance(shape, bb.NamedFlow | bb.DurableFlow | bb.Every | bb.At | bb.Webhook)
    flow = shape.with_id("job").durable()
    first = await disk.app(flow).run("job", "hi", run_id="r")
    app = disk.app(flow)
    work.calls.clear()
    before = await contents(app.store)

    again = await app.run("job", "hi", run_id="r")

    assert (again.answer, again.messages, again.value) == (first.answer, first.messages, first.value)
    assert work.calls == [] and await contents(app.store) == before and len(again.replayed) == len(first.messages)


GOLDEN = Path(__file__).parent.parent / "golden" / "run_v1.json"


def golden_flow(calls: list[str]) -> bb.DurableFlow:
    def leaf(name: str) -> bb.NamedFlow:
        async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
            calls.append(name)
            counted = await turn.step("count", lambda: {"n": (1, 2, len(calls))})
            turn.reply(name, value=[counted, turn.params["x"], turn.payload(dict)])

        return bb.Flow().with_agent(bb.Agent(name, "1").on_message(handler)).with_id(name)

    chain = leaf("a").next(bb.One(leaf("x"))).next(bb.Respond()).next(leaf("b"))
    return chain.with_id("job").durable()


async def test_trial_F4_a_run_begun_by_release_1_goes_on(disk: Disk) -> None:
    # the file is what format 1 wrote of a run that failed in its last step; once released it is never changed
    calls: list[str] = []
    store = disk.store()
    for stream, records in json.loads(GOLDEN.read_text()).items():
        await store.append(stream, 0, [record.encode() for record in records])
    await store.close()
    app = disk.app(golden_flow(calls), store=store)
    assert [(run.run_id, run.status) for run in await app.runs()] == [("r", "failed")]
    given = bb.Input((bb.Message("hi"),), payload={"p": b"\x00"})
    with pytest.raises(bb.InputConflict):
        await app.run("job", "hi", run_id="r")

    outcome = await app.run("job", given, params={"x": {1}}, run_id="r")

    assert calls == ["b"] and outcome.answer == "a\n\nx" and len(outcome.messages) == 3
    assert outcome.replayed == ("job/a", "job/body~one.1/x")
    assert outcome.value == [{"n": (1, 2)}, {1}, {"p": b"\x00"}]  # the step of b had been recorded, too
