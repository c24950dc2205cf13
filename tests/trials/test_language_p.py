"""Trials P that concern the nodes: what is tried again, how often, and what no node may swallow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

import bb
from bb.errors import AssertionFailed, Denied, OpFailed, RunCancelled
from bb.flows.refs import ref
from bb.flows.tree import (
    AnyFlow,
    Assert,
    Await,
    Bind,
    Each,
    Emit,
    Memo,
    Once,
    Retry,
    Saga,
    Scope,
    Step,
    Timeout,
    Try,
    When,
)
from bb.ops import op
from bb.policy import Approval, Decision
from bb.testing.clock import ManualClock
from bb.testing.mock_store import MockStore
from tests.conformance.acts import Acts, durable, plain, reached
from tests.trials.kit import Disk, cut_off, mocked

FATAL: dict[str, BaseException] = {
    "fatal": bb.Fatal("no"),
    "wiring": bb.WiringError("no"),
    "denied": Denied("no"),
    "in a group": ExceptionGroup("several", [ValueError("x"), bb.Fatal("no")]),
    "input": bb.InvalidInput("no"),
}


@pytest.fixture
def acts() -> Acts:
    return Acts()


def clock() -> ManualClock:
    return ManualClock(auto=True)


@pytest.mark.parametrize("kind", FATAL)
async def test_trial_P1_what_cannot_help_is_not_tried_again(acts: Acts, kind: str) -> None:
    acts.fail("a", *[FATAL[kind]] * 9)
    time = clock()

    with pytest.raises(bb.BBError):
        await bb.App(clock=time).run(durable(Retry(5, acts("a")), Emit("x"), retries=5))

    assert acts.done == ["a"] and time.slept == []


@pytest.mark.parametrize("kind", ["unbound", "no list", "sum", "argument", "unsavable"])
async def test_trial_P1_mistakes_of_the_flow_fail_at_once(acts: Acts, kind: str) -> None:
    acts.values |= {"text": "x", "handle": object()}
    bodies: dict[str, AnyFlow] = {
        "unbound": Emit(ref("missing")),
        "no list": Each("i", acts("text"), Emit("x")),
        "sum": Emit(ref(acts("text")) - 1),
        "argument": Each("i", [1], acts(ref("i")["part"])),
        "unsavable": acts("handle"),
    }
    flow = durable(When(False, Bind("missing", 1)), Retry(5, acts("tried"), bodies[kind]), retries=5)

    with pytest.raises(bb.Fatal):
        await bb.App(clock=clock()).run(flow)

    assert acts.count("tried") <= 1


async def test_trial_P2_an_approval_under_a_retry_is_asked_for_once(acts: Acts) -> None:
    asked: list[str] = []

    class Noting:
        async def approve(self, request: Approval, /) -> Decision:
            asked.append(request.path)
            return Decision.allow()

    flow = durable(Retry(3, Once("o", acts("pay")), acts("flaky"), backoff="none", delay=timedelta(0)), Emit("x"))
    acts.fail("flaky", 1)

    await bb.App(approver=Noting(), clock=clock()).run(flow)

    assert acts.done == ["pay", "flaky", "flaky"] and len([path for path in asked if "once" in path]) == 1


@pytest.mark.parametrize("around", ["retry", "try", "saga", "scope", "once", "timeout", "group"])
async def test_trial_P2_an_await_under_what_tries_again_is_refused(around: str) -> None:
    """Trial L7: suspension is a value of the top level, and nothing can retry or swallow it."""
    wait = Await("e")
    flows: dict[str, AnyFlow] = {
        "retry": Retry(2, wait),
        "try": Try(wait),
        "saga": Saga(Step(wait)),
        "scope": Scope(wait),
        "once": Once("o", wait),
        "timeout": Timeout(timedelta(seconds=1), wait),
        "group": bb.Group(wait, Emit("x")),
    }

    with pytest.raises(bb.WiringError, match="await-nested"):
        await bb.App().run(durable(flows[around], Emit("x")))


CATCHERS: dict[str, Callable[[Acts, AnyFlow], AnyFlow]] = {
    "try": lambda acts, body: Try(body, handler=acts("never")),
    "retry": lambda acts, body: Retry(5, body),
    "timeout": lambda acts, body: Try(Timeout(timedelta(seconds=60), body), handler=acts("never")),
    "condition": lambda acts, _: When(acts("inner"), Emit("x"), otherwise=acts("never")),
    "saga": lambda acts, body: Try(Saga(Step(acts("s"), undo=acts("never")), Step(body)), handler=acts("never")),
}


@pytest.mark.parametrize("name", CATCHERS)
async def test_trial_P4_no_node_swallows_a_failing_store(acts: Acts, name: str) -> None:
    store = MockStore()
    store.fail_append(lambda _, records: b"inner done" in records[-1], times=99)
    flow = durable(CATCHERS[name](acts, acts("inner") >> Emit("x")), Emit("end"), retries=3)

    with pytest.raises(bb.StoreError):
        await mocked(store, flow).run("f", run_id="r")

    assert acts.count("inner") == 1 and "never" not in acts.done
    store.clear()
    await mocked(store, flow).run("f", run_id="r")
    assert "never" not in acts.done


@pytest.mark.parametrize("name", CATCHERS)
@pytest.mark.parametrize("how", ["caller", "cancel", "stop"])
async def test_trial_P4_no_node_swallows_that_the_run_stops(acts: Acts, name: str, how: str) -> None:
    app = bb.App()
    flow = durable(CATCHERS[name](acts, acts("inner") >> Emit("x")), acts("never"), retries=3)
    app.register(flow)
    hold = acts.hold("inner")
    task = asyncio.create_task(app.run("f", run_id="r"))
    await reached(hold, task)
    if how == "caller":
        task.cancel()
    elif how == "cancel":
        await app.cancel("r")
    else:
        await app.stop(timedelta(0))

    with pytest.raises((asyncio.CancelledError, RunCancelled, bb.Interrupted)):
        await task

    undone = ["never"] if (name, how) == ("saga", "cancel") else []  # there it is the undo
    assert [what for what in acts.done if what == "never"] == undone


async def test_trial_P4_an_op_that_swallows_its_cancellation_does_not_go_on(acts: Acts) -> None:
    started = asyncio.Event()

    @op()
    async def stubborn() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "as if nothing had happened"
        return ""

    app = bb.App()
    flow = durable(Saga(acts.step("a"), Step(stubborn(), acts("never"))), acts("never"))
    app.register(flow)
    task = asyncio.create_task(app.run("f", run_id="r"))
    await started.wait()

    await app.cancel("r")

    with pytest.raises(RunCancelled):
        await task
    assert acts.done == ["a", "undo a"]


async def test_trial_P5_what_was_killed_cancelled_or_failed_can_all_go_on(disk: Disk, acts: Acts) -> None:
    flow = durable(acts("before"), Saga(acts.step("a"), Step(acts("b"))), Emit("end"))
    await cut_off(disk.app(flow), acts.hold("b"), "f", run_id="r")
    acts.fail("b", 1)
    with pytest.raises(OpFailed):
        await disk.app(flow).run("f", run_id="r")
    app, hold = disk.app(flow), acts.hold("b")
    task = asyncio.create_task(app.run("f", run_id="r"))
    await reached(hold, task)
    await app.cancel("r")
    with pytest.raises(RunCancelled):
        await task

    assert (await disk.app(flow).run("f", run_id="r")).answer == "end"

    assert acts.done == ["before", "a", "b", "b", "undo a", "a", "b", "undo a", "a", "b"]


async def test_trial_P8_retries_multiply_and_each_is_on_record(acts: Acts) -> None:
    acts.breaks("a")
    app = bb.App(clock=clock())
    inner = Retry(3, acts("a"), backoff="none", delay=timedelta(0)).with_id("inner").durable(retries=2)

    with pytest.raises(OpFailed):
        await app.run(durable(inner, Emit("x"), retries=1), run_id="r")

    # 3 attempts, the last of them resumed twice; and the outer retry resumes that last one with a new budget
    assert acts.count("a") == 3 + 2 + 1 + 2
    kinds = [event.kind for event in await app.events("r")]
    assert kinds.count("run.retry") == 5 and kinds.count("run.end") == 1


async def test_memo_and_assert_under_a_retry(acts: Acts) -> None:
    """What is remembered costs nothing in the next attempt, and what is fatal ends them."""
    acts.fail("flaky", 2)
    body = (Memo("x", acts("dear")), acts("flaky"), Assert(ref("x") == "something else", "not that"))

    with pytest.raises(AssertionFailed, match="not that"):
        await bb.App(clock=clock()).run(plain(Retry(9, *body)), session_id="s")

    assert acts.done == ["dear", "flaky", "flaky", "flaky"]
