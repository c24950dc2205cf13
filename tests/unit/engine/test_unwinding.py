"""When what was done is undone, and when it is not: retries, cancellations, interruptions and new attempts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

import bb
from bb.engine.steps import unwinding
from bb.errors import OpFailed, TimedOut
from bb.flows.tree import (
    AnyFlow,
    Emit,
    Once,
    Repeat,
    Retry,
    Saga,
    Scope,
    Step,
    Timeout,
    Try,
)
from bb.testing.mock_store import Crash, MockStore
from tests.conformance.acts import Acts, durable, plain, reached
from tests.trials.kit import Disk, cut_off, mocked
from tests.unit.engine.unwound import clock, open_flow, status

NOW = timedelta(0)


# --- between durable retries nothing is undone ------------------------------------------------------------------------


async def test_durable_retries_resume_in_place(acts: Acts) -> None:
    scope = Scope(
        Once("o", acts.saga("a", "b")), acts("c"), acquire=acts("acquire"), bind="h", finally_=acts("finally")
    )
    flow = durable(scope, retries=3)
    acts.fail("b", 1)
    acts.fail("c", 1)
    acts.fail("finally", 1)

    await bb.App(clock=clock()).run(flow, run_id="r")

    assert acts.done == ["acquire", "a", "b", "b", "c", "c", "finally", "finally"]


async def test_the_last_failure_is_unwound(acts: Acts) -> None:
    flow = durable(Scope(acts.saga("a", "b"), finally_=acts("finally")), retries=2)
    acts.breaks("b")

    with pytest.raises(OpFailed):
        await bb.App(clock=clock()).run(flow, run_id="r")

    assert acts.done == ["a", "b", "b", "b", "undo a", "finally"]


async def test_a_catcher_inside_makes_a_failure_final(acts: Acts) -> None:
    """A retry that no durable try follows: what it caught is over, though the flow around has retries left."""
    flow = durable(Retry(2, acts.saga("a", "b"), backoff="none", delay=NOW), Emit("end"), retries=3)
    acts.fail("b", 1)

    await bb.App(clock=clock()).run(flow, run_id="r")

    assert acts.done == ["a", "b", "undo a", "a", "b"]


async def test_the_retries_of_every_flow_around_count(acts: Acts) -> None:
    inner = acts.saga("a", "b").with_id("inner").durable(retries=1)
    acts.breaks("b")

    with pytest.raises(OpFailed):
        await bb.App(clock=clock()).run(durable(inner, acts("never"), retries=1), run_id="r")

    assert acts.done == ["a", *["b"] * 4, "undo a"]  # the outer retry gives the inner a new budget


async def test_what_is_fatal_is_unwound_at_once(acts: Acts) -> None:
    flow = durable(acts.saga("a", "b"), retries=5)
    acts.fail("b", bb.Fatal("pointless"))

    with pytest.raises(OpFailed):
        await bb.App(clock=clock()).run(flow, run_id="r")

    assert acts.done == ["a", "b", "undo a"]


# --- an interruption is a crash ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["caller", "stop"])
async def test_an_interruption_undoes_nothing(disk: Disk, acts: Acts, how: str) -> None:
    app = disk.app(open_flow(acts))
    hold = acts.hold("slow")
    task = asyncio.create_task(app.run("f", run_id="r"))
    await reached(hold, task)
    if how == "caller":
        task.cancel()
    else:
        await app.stop(NOW)
    with pytest.raises((asyncio.CancelledError, bb.Interrupted)):
        await task
    assert acts.done == ["a", "acquire", "body", "slow"]
    app = disk.app(open_flow(acts))
    assert await status(app) == "interrupted"

    await app.run("f", run_id="r")

    assert acts.done == ["a", "acquire", "body", "slow", "slow", "acquire done"]


async def test_an_interruption_cuts_a_cleanup_short_and_the_next_run_goes_on_with_it(disk: Disk, acts: Acts) -> None:
    flow = durable(Saga(acts.step("a"), acts.step("b"), Step(acts("c"))))
    acts.fail("c", 1)
    await asyncio.wait_for(cut_off(disk.app(flow), acts.hold("undo a"), "f", run_id="r"), 3)
    assert acts.done == ["a", "b", "c", "undo b", "undo a"]

    with pytest.raises(bb.BBError, match="c fails"):
        await disk.app(flow).run("f", run_id="r")

    assert acts.done == ["a", "b", "c", "undo b", "undo a", "undo a"]


async def test_an_interruption_in_finally_leaves_the_rest_to_the_next_run(disk: Disk, acts: Acts) -> None:
    flow = durable(Scope(acts("body"), finally_=(acts("one"), acts("two"))), acts("after"))
    await asyncio.wait_for(cut_off(disk.app(flow), acts.hold("two"), "f", run_id="r"), 3)

    await disk.app(flow).run("f", run_id="r")

    assert acts.done == ["body", "one", "two", "two", "after"]


async def test_a_failing_store_undoes_nothing(acts: Acts) -> None:
    store = MockStore()
    store.fail_append(lambda _, records: b"slow done" in records[-1], times=99)
    with pytest.raises(bb.StoreError):
        await mocked(store, open_flow(acts)).run("f", run_id="r")
    assert acts.done == ["a", "acquire", "body", "slow"]
    store.clear()

    await mocked(store, open_flow(acts)).run("f", run_id="r")

    assert acts.done == ["a", "acquire", "body", "slow", "slow", "acquire done"]


async def test_a_part_that_is_not_durable_is_undone_with_its_run(acts: Acts) -> None:
    """It has no later, though the flow beside it has."""
    flow = plain(acts("a").with_id("kept").durable(), acts.saga("b", "slow"))
    app = bb.App()
    await cut_off(app, acts.hold("slow"), flow, run_id="r")

    assert acts.done == ["a", "b", "slow", "undo b"]


# --- new attempts -----------------------------------------------------------------------------------------------------


async def test_a_new_attempt_shares_nothing_with_the_old_one(disk: Disk, acts: Acts) -> None:
    """Not even the handlers' idempotency keys."""
    keys: list[str] = []

    async def speak(turn: bb.Turn, _chat: bb.ModelChat) -> None:
        keys.append(bb.idempotency_key())
        turn.reply("said")

    speaker = bb.Flow().with_agent(bb.Agent("speaker").on_message(speak))
    flow = durable(Saga(Step(speaker, undo=acts("undo")), Step(acts("bad"))), Emit("x"))
    acts.fail("bad", 1)
    with pytest.raises(OpFailed):
        await disk.app(flow).run("f", run_id="r")

    outcome = await disk.app(flow).run("f", run_id="r")

    assert len(set(keys)) == 2 and [m.content for m in outcome.messages] == ["said", "x"]


async def test_a_saga_in_a_loop_counts_its_attempts_per_round(disk: Disk, acts: Acts) -> None:
    flow = durable(Repeat(2, acts.saga("a", "b")), Emit("x"))
    acts.fail("b", ConnectionError("first"))
    with pytest.raises(OpFailed):
        await disk.app(flow).run("f", run_id="r")

    await disk.app(flow).run("f", run_id="r")

    paths = [
        event.path for event in await disk.app(flow).events("r") if event.kind == "flow.end" and "step1" in event.path
    ]
    assert paths == ["f/body~repeat.0#0/body~saga.0@1/step1~call.0", "f/body~repeat.0#1/body~saga.0/step1~call.0"]
    assert acts.done == ["a", "b", "undo a", "a", "b", "a", "b"]


# --- timeouts ---------------------------------------------------------------------------------------------------------


def late_flow(acts: Acts, **options: Any) -> bb.DurableFlow:
    scope = Scope(acts("body"), acts("slow"), finally_=acts("finally"))
    late = Timeout(timedelta(milliseconds=60), Saga(acts.step("a"), Step(scope)))
    return durable(Try(late, catch="why", handler=acts("handler")), **options)


async def test_a_timeout_undoes_what_it_gives_up_before_it_is_caught(disk: Disk, acts: Acts) -> None:
    acts.hold("slow")

    await disk.app(late_flow(acts)).run("f", run_id="r")

    assert acts.done == ["a", "body", "slow", "finally", "undo a", "handler"]


@pytest.mark.parametrize("place", ["Timeout", "finally~call", "step1~scope", "undo0~call", "undone"])
async def test_a_crash_while_a_timeout_undoes_goes_on_undoing(acts: Acts, place: str) -> None:
    store = MockStore()
    acts.hold("slow")
    sign = b'"TimedOut"' if place == "Timeout" else place.encode()
    store.crash_at(lambda _, records: sign in records[-1] and b"slow" not in records[-1], "after")
    with pytest.raises(Crash):
        await bb.App(store=store).run(late_flow(acts), run_id="r")
    store.revive()

    await bb.App(store=store).run(late_flow(acts), run_id="r")

    counts = Counter(acts.done)
    assert (counts["a"], counts["body"], counts["slow"], counts["handler"]) == (1, 1, 1, 1)
    assert counts["undo a"] in (1, 2) and counts["finally"] in (1, 2)
    assert acts.done[-1] == "handler"


async def test_an_interrupted_timeout_undoes_nothing(disk: Disk, acts: Acts) -> None:
    body = Timeout(timedelta(seconds=60), acts.saga("a", "slow"))
    await cut_off(disk.app(durable(body, Emit("x"))), acts.hold("slow"), "f", run_id="r")
    assert acts.done == ["a", "slow"]

    await disk.app(durable(body, Emit("x"))).run("f", run_id="r")

    assert acts.done == ["a", "slow", "slow"]


async def test_a_durable_retry_after_a_timeout_is_a_new_attempt_at_it(acts: Acts) -> None:
    acts.hold("slow")
    flow = durable(Timeout(timedelta(milliseconds=60), acts.saga("a", "slow")), Emit("x"), retries=1)

    await bb.App().run(flow, run_id="r")

    assert acts.done == ["a", "slow", "undo a", "a", "slow"]


async def test_a_timeout_waits_for_the_cleanup(disk: Disk, acts: Acts) -> None:
    acts.hold("slow")
    undoing = acts.hold("undo a")
    flow = durable(Timeout(timedelta(milliseconds=20), acts.saga("a", "slow")), Emit("x"))
    task = asyncio.create_task(disk.app(flow).run("f", run_id="r"))
    await reached(undoing, task)
    await asyncio.sleep(0.1)
    assert not task.done()
    undoing.go.set()

    with pytest.raises(TimedOut):
        await task


async def test_an_outer_timeout_lets_the_cleanup_of_an_inner_one_end(disk: Disk, acts: Acts) -> None:
    acts.hold("slow")
    undoing = acts.hold("undo a")
    inner = Timeout(timedelta(milliseconds=20), acts.saga("a", "slow"))
    outer = Timeout(timedelta(milliseconds=60), Saga(acts.step("b"), Step(inner)))
    task = asyncio.create_task(disk.app(durable(Try(outer, handler=acts("handler")))).run("f", run_id="r"))
    await reached(undoing, task)
    await asyncio.sleep(0.1)
    undoing.go.set()

    await asyncio.wait_for(task, 10)

    assert acts.done == ["b", "a", "slow", "undo a", "undo b", "handler"]


@pytest.mark.parametrize("around", [lambda late: late, lambda late: Scope(Emit("x"), acquire=1, finally_=late)])
async def test_a_body_that_ignores_its_cancellation_is_left_behind(
    acts: Acts, monkeypatch: pytest.MonkeyPatch, around: Callable[[AnyFlow], AnyFlow]
) -> None:
    """Also where a cleanup around it is under way: what counts are those of the body."""
    monkeypatch.setattr(unwinding, "LOSER_GRACE", 0.05)
    over = asyncio.Event()

    @bb.op()
    async def deaf() -> None:
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()

    late = Try(Timeout(timedelta(milliseconds=20), deaf()), handler=acts("handler"))
    await asyncio.wait_for(bb.run(plain(around(late))), 10)
    over.set()

    assert acts.done == ["handler"]


async def test_a_body_is_not_left_behind_while_it_undoes(acts: Acts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unwinding, "LOSER_GRACE", 0.01)
    acts.hold("slow")
    undoing = acts.hold("undo a")
    late = Timeout(timedelta(milliseconds=20), acts.saga("a", "slow"))
    task = asyncio.create_task(bb.run(plain(Try(late, handler=acts("handler")))))
    await reached(undoing, task)
    await asyncio.sleep(0.1)
    undoing.go.set()

    await asyncio.wait_for(task, 10)

    assert acts.done == ["a", "slow", "undo a", "handler"]


async def test_cancelling_twice_a_flow_that_is_not_durable_still_waits_for_its_timeout(acts: Acts) -> None:
    """The body of the timeout must not be left behind at work."""
    slow, undoing = acts.hold("slow"), acts.hold("undo a")
    task = asyncio.create_task(bb.run(plain(Timeout(timedelta(seconds=60), acts.saga("a", "slow")), acts("never"))))
    await reached(slow, task)
    task.cancel()
    await reached(undoing, task)
    task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done()
    undoing.go.set()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert acts.done == ["a", "slow", "undo a"]


async def test_a_cancellation_during_an_undo_is_not_lost(acts: Acts) -> None:
    """The cleanup ends, and then the flow that is not durable stops: it does not go on with its handler."""
    acts.breaks("bad")
    undoing = acts.hold("undo a")
    flow = plain(Try(acts.saga("a", "bad"), handler=acts("never")), acts("never"))
    task = asyncio.create_task(bb.run(flow))
    await reached(undoing, task)
    task.cancel()
    await asyncio.sleep(0.01)
    undoing.go.set()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert acts.done == ["a", "bad", "undo a"]
