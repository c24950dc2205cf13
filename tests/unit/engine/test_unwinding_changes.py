"""What is open in a run that has expired, or whose flow or policy has changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Literal

import pytest

import bb
from bb.errors import Denied, GraphChanged, OpFailed, RunExpired
from bb.flows.refs import ref
from bb.flows.tree import (
    AiSegment,
    Await,
    Bind,
    Emit,
    Memo,
    Return,
    Saga,
    Scope,
    Step,
)
from bb.policy import Policy
from bb.testing.clock import ManualClock
from bb.testing.mock_store import Crash, MockStore
from bb.testing.scripted_model import ScriptedModel
from tests.conformance.acts import Acts, durable
from tests.trials.kit import Disk, cut_off, mocked
from tests.unit.engine.unwound import UNDONE, open_flow, refunding, status

NOW = timedelta(0)


# --- ttl --------------------------------------------------------------------------------------------------------------


async def test_an_expired_run_is_undone_and_leaves_a_tombstone(acts: Acts) -> None:
    time = ManualClock()
    store = bb.MemStore(time)
    flow = open_flow(acts, ttl=timedelta(hours=1))
    app = bb.App(store=store, clock=time)
    app.register(flow)
    await cut_off(app, acts.hold("slow"), "f", run_id="r")
    acts.done.clear()
    time.advance(timedelta(hours=2))

    assert await app.prune() == 1

    assert acts.done == UNDONE and await status(app) == "expired"
    with pytest.raises(RunExpired):
        await app.run("f", run_id="r")
    assert acts.done == UNDONE


async def test_an_expired_run_whose_undo_fails_is_kept(acts: Acts) -> None:
    time = ManualClock()
    app = bb.App(store=bb.MemStore(time), clock=time)
    app.register(open_flow(acts, ttl=timedelta(hours=1)))
    await cut_off(app, acts.hold("slow"), "f", run_id="r")
    acts.breaks("undo a")
    time.advance(timedelta(hours=2))

    await app.prune()

    assert await status(app) != "expired"
    acts.mend("undo a")
    time.advance(timedelta(hours=2))
    await app.prune()
    assert await status(app) == "expired" and acts.done[-1] == "undo a"


async def test_an_expired_run_that_had_failed_says_of_what_when_it_is_undone(acts: Acts) -> None:
    time, seen = ManualClock(), bb.Recorder()
    app = bb.App(store=bb.MemStore(time), clock=time, trace=seen)
    app.register(refunding(acts, ttl=timedelta(hours=1)))
    acts.breaks("bad", "undo b")
    with pytest.raises(OpFailed):
        await app.run("f", run_id="r")
    acts.mend("undo b")
    time.advance(timedelta(hours=2))

    await app.prune()

    assert await status(app) == "expired"
    ends = [(event.detail, event.error) for event in seen.events if event.kind == "run.end"]
    assert ends == [("failed", "ConnectionError"), ("failed", "Unwound")]


@pytest.mark.parametrize("kind", ["open", "parked", "compensating"])
async def test_without_a_ttl_what_is_open_is_kept_for_good(acts: Acts, kind: str) -> None:
    time = ManualClock()
    app = bb.App(store=bb.MemStore(time), clock=time)
    if kind == "parked":
        await app.run(durable(Await("e"), Emit("x")), run_id="r")
    elif kind == "open":
        await cut_off(app, acts.hold("slow"), open_flow(acts), run_id="r")
    else:
        acts.breaks("bad", "undo b")
        with pytest.raises(OpFailed):
            await app.run(refunding(acts), run_id="r")
    await app.run(durable(acts("x"), id="g"), run_id="done")
    time.advance(timedelta(days=365))

    await app.prune()

    assert [run.run_id for run in await app.runs()] == ["r"]


# --- changed flows ----------------------------------------------------------------------------------------------------


async def test_a_changed_flow_undoes_what_is_open_by_the_stored_one(disk: Disk, acts: Acts) -> None:
    await cut_off(disk.app(open_flow(acts)), acts.hold("slow"), "f", run_id="r")
    acts.done.clear()
    seen = bb.Recorder()
    new = durable(acts("new"), Emit("end"))

    outcome = await disk.app(new, trace=seen).run("f", run_id="r")

    assert acts.done == [*UNDONE, "new"] and outcome.answer == "end"
    assert [event.kind for event in seen.events if event.kind == "durable.discarded"] == ["durable.discarded"]


async def test_a_changed_flow_with_nothing_open_just_starts_afresh(disk: Disk, acts: Acts) -> None:
    old = durable(acts.saga("a"), acts("slow"))
    await cut_off(disk.app(old), acts.hold("slow"), "f", run_id="r")
    acts.done.clear()

    await disk.app(durable(acts("new"))).run("f", run_id="r")

    assert acts.done == ["new"]


async def test_a_changed_flow_waits_for_a_failed_undo_of_the_old_one(disk: Disk, acts: Acts) -> None:
    await cut_off(disk.app(open_flow(acts)), acts.hold("slow"), "f", run_id="r")
    acts.breaks("undo a")
    acts.done.clear()
    with pytest.raises(GraphChanged, match="an undo of what it did failed"):
        await disk.app(durable(acts("new"))).run("f", run_id="r")
    assert acts.done == UNDONE
    acts.mend("undo a")

    await disk.app(durable(acts("new"))).run("f", run_id="r")

    assert acts.done == [*UNDONE, "undo a", "new"]


async def test_a_compatible_flow_that_kept_its_saga_goes_on_with_it(disk: Disk, acts: Acts) -> None:
    saga = acts.saga("a", "slow").with_id("saga")
    old = durable(acts("x").with_id("x"), saga, forward_compatible=True)
    new = durable(acts("fresh").with_id("fresh"), acts("x").with_id("x"), saga, forward_compatible=True)
    await cut_off(disk.app(old), acts.hold("slow"), "f", run_id="r")
    acts.done.clear()

    await disk.app(new).run("f", run_id="r")

    assert acts.done == ["fresh", "slow"]


async def test_a_compatible_flow_whose_saga_has_changed_undoes_the_old_one(disk: Disk, acts: Acts) -> None:
    old = durable(acts("x").with_id("x"), acts.saga("a", "slow").with_id("saga"), forward_compatible=True)
    new = durable(acts("x").with_id("x"), acts.saga("a", "b").with_id("saga"), forward_compatible=True)
    await cut_off(disk.app(old), acts.hold("slow"), "f", run_id="r")
    acts.done.clear()

    await disk.app(new).run("f", run_id="r")

    assert acts.done == ["undo a", "a", "b"]


async def test_what_was_undone_is_not_taken_over_by_a_compatible_flow(disk: Disk, acts: Acts) -> None:
    old = durable(acts("x").with_id("x"), acts.saga("a", "bad").with_id("saga"), forward_compatible=True)
    new = durable(acts("x").with_id("x"), acts.saga("a", "b").with_id("saga"), forward_compatible=True)
    acts.breaks("bad")
    with pytest.raises(OpFailed):
        await disk.app(old).run("f", run_id="r")

    await disk.app(new).run("f", run_id="r")

    assert acts.done == ["x", "a", "bad", "undo a", "a", "b"]


@pytest.mark.parametrize("when", ["before", "after", "during"])
async def test_a_crash_while_a_changed_flow_undoes_the_old_one(when: Literal["before", "after", "during"]) -> None:
    """It is undone, and then the new one begins: once, or a second time where its record was lost."""
    for strike in range(1, 30):
        acts, store = Acts(), MockStore()
        await cut_off(mocked(store, open_flow(acts)), acts.hold("slow"), "f", run_id="r")
        store.clear()
        acts.done.clear()
        new = durable(acts("new"), Emit("end"))
        store.crash_at(strike, when)
        with suppress(Crash):
            await mocked(store, new).run("f", run_id="r")
        if not store.crashed:
            assert strike > 6
            return
        store.revive()

        outcome = await mocked(store, new).run("f", run_id="r")

        counts = Counter(acts.done)
        assert outcome.answer == "end" and all(1 <= counts[what] <= 2 for what in (*UNDONE, "new")), (strike, acts.done)
        assert acts.done.index("new") > max(acts.done.index(undo) for undo in UNDONE)
    raise AssertionError("it never came to its end")


async def test_a_parked_run_goes_on_with_the_flow_it_was_parked_with(disk: Disk, acts: Acts) -> None:
    old = durable(acts("a"), Await("go", bind="x"), acts("old {x}"), Return("old"))
    new = durable(acts("a"), Await("go", bind="x"), acts("new {x}"), Return("new"))
    await disk.app(old).run("f", run_id="r", session_id="s")
    app = disk.app(new)

    await app.deliver("go", "now", session_id="s")
    parked = await app.run("f", run_id="r")
    fresh = await app.run("f", run_id="q", session_id="t")

    assert parked.value == "old" and fresh.waiting_for == "go"
    assert acts.done == ["a", "old now", "a"]


@pytest.mark.parametrize("state", ["parked", "open"])
async def test_names_that_are_gone_leave_it_to_people(disk: Disk, acts: Acts, state: str) -> None:
    gone = acts.named("gone")
    waits = durable(Await("go"), gone("never"))
    opened = durable(Saga(Step(acts("a"), undo=gone("never")), Step(acts("slow"))), Emit("x"))
    app = disk.app(waits if state == "parked" else opened)
    if state == "parked":
        await app.run("f", run_id="r", session_id="s")
    else:
        await cut_off(app, acts.hold("slow"), "f", run_id="r", session_id="s")
    acts.done.clear()
    app = disk.app(durable(acts("new")))

    with pytest.raises(GraphChanged, match="gone"):
        await app.run("f", run_id="r")
    assert acts.done == []

    await app.run("f", run_id="r", replace=True)
    assert acts.done == ["new"]


async def test_a_policy_that_changed_holds_for_undos_as_well(disk: Disk, acts: Acts) -> None:
    """What may not be undone any more is told, and waits for people."""
    refund = acts.named("refund")
    flow = durable(Saga(Step(acts("a"), undo=refund("b")), Step(acts("slow"))), Emit("x"))
    await cut_off(disk.app(flow), acts.hold("slow"), "f", run_id="r")
    acts.fail("slow", 1)

    with pytest.raises(OpFailed, match="slow fails") as raised:
        await disk.app(flow, policy=Policy(deny=("refund",))).run("f", run_id="r")
    assert "op refund was denied" in raised.value.__notes__[0]
    acts.done.clear()

    await disk.app(flow).run("f", run_id="r")
    assert acts.done == ["b", "a", "slow"]


async def test_what_was_done_is_undone_though_it_may_not_be_done_any_more(disk: Disk, acts: Acts) -> None:
    """A policy that changed says nothing about what was done before."""
    charge = acts.named("charge")
    flow = durable(Saga(Step(Bind("r", charge("a")), undo=acts("undo {r}")), Step(acts("slow"))), Emit("x"))
    await cut_off(disk.app(flow), acts.hold("slow"), "f", run_id="r")
    acts.fail("slow", 1)
    app = disk.app(flow, policy=Policy(deny=("charge",)))

    with pytest.raises(OpFailed, match="slow fails"):
        await app.run("f", run_id="r")
    assert acts.done == ["a", "slow", "slow", "undo a done"]
    with pytest.raises(Denied):
        await app.run("f", run_id="r")


STAGE = AiSegment("go", ["send"])


@pytest.mark.parametrize(
    "body",
    [
        lambda acts: Saga(Step(STAGE, undo=acts("undo")), Step(acts("slow"))),
        lambda acts: Saga(Step(Memo("m", STAGE), undo=acts("undo")), Step(acts("slow"))),
        lambda acts: Scope(acts("slow"), acquire=STAGE, bind="got", finally_=acts("undo")),
    ],
    ids=["step", "memo", "acquire"],
)
@pytest.mark.parametrize("then", ["cancel", "run"])
async def test_what_a_model_did_is_undone_though_it_may_not_do_it_any_more(
    disk: Disk, acts: Acts, body: Callable[[Acts], bb.AnyFlow], then: str
) -> None:
    send, flow = acts.named("send"), durable(body(acts))
    model = ScriptedModel(bb.ToolCall.new("send", {"what": "sent"}), "done")
    await cut_off(disk.app(flow, ops=[acts.op, send], model=model), acts.hold("slow"), "f", run_id="r")
    assert acts.done == ["sent", "slow"]
    acts.fail("slow", 1)
    app = disk.app(flow, ops=[acts.op, send], policy=Policy(deny=("send",)), model=ScriptedModel())

    if then == "cancel":
        await app.cancel("r")
        assert acts.done == ["sent", "slow", "undo"]
        assert await status(app) == "cancelled"
        return
    with pytest.raises(OpFailed, match="slow fails"):
        await app.run("f", run_id="r")
    assert acts.done == ["sent", "slow", "slow", "undo"]
    with pytest.raises(Denied):  # a new attempt, which nobody has allowed
        await app.run("f", run_id="r")
    assert acts.count("sent") == 1


async def test_what_a_memo_had_from_another_run_is_undone_though_it_may_not_be_made_any_more(
    disk: Disk, acts: Acts
) -> None:
    """What a run only looked up in its session is a step of it as well."""
    ops = [acts.op, acts.named("send")]
    model = ScriptedModel(bb.ToolCall.new("send", {"what": "sent"}), "done")
    await disk.app(durable(Memo("m", STAGE), id="g"), ops=ops, model=model).run("g", session_id="s")
    flow = durable(Saga(Step(Memo("m", STAGE), undo=acts("undo")), Step(acts("slow"))))
    await cut_off(disk.app(flow, ops=ops, model=model), acts.hold("slow"), "f", session_id="s", run_id="r")

    await disk.app(flow, ops=ops, policy=Policy(deny=("send",)), model=ScriptedModel()).cancel("r")

    assert acts.done == ["sent", "slow", "undo"]


async def test_a_stage_that_is_on_record_for_another_goal_is_asked_about(disk: Disk, acts: Acts) -> None:
    """What was done for one goal lets nothing be done for another."""
    send = acts.named("send")
    flow = durable(Bind("goal", acts("goal")), AiSegment(ref("goal", str), ["send"]), acts("slow"))
    model = ScriptedModel(bb.ToolCall.new("send", {"what": "sent"}), "done")
    await cut_off(disk.app(flow, ops=[acts.op, send], model=model), acts.hold("slow"), "f", run_id="r")
    app = disk.app(flow, ops=[acts.op, send], policy=Policy(deny=("send",)), model=ScriptedModel())
    acts.values["goal"] = "another"
    await app.forget("r", "f/body~bind.0")

    with pytest.raises(Denied, match="send"):
        await app.run("f", run_id="r")
    assert acts.count("sent") == 1


async def test_what_a_step_bound_is_there_for_the_undo_after_a_cancel_elsewhere(disk: Disk, acts: Acts) -> None:
    acts.values["charge"] = {"id": 7}
    flow = durable(Saga(Step(Bind("r", acts("charge")), undo=acts("refund {r.id}")), Step(acts("slow"))), Emit("x"))
    await cut_off(disk.app(flow), acts.hold("slow"), "f", run_id="r")

    await disk.app(flow).cancel("r")

    assert acts.done == ["charge", "slow", "refund 7"]


async def test_after_a_change_what_was_undone_is_done_again_under_another_key(disk: Disk, acts: Acts) -> None:
    keys: list[str] = []

    @bb.op()
    async def charge() -> None:
        keys.append(bb.idempotency_key())

    def sale(said: str) -> bb.DurableFlow:
        return durable(Saga(Step(charge(), undo=acts("refund")), Step(acts("slow"))), Emit(said))

    await cut_off(disk.app(sale("old")), acts.hold("slow"), "f", run_id="r")
    await disk.app(sale("new")).run("f", run_id="r")

    assert acts.done == ["slow", "refund", "slow"]
    assert len(set(keys)) == 2
