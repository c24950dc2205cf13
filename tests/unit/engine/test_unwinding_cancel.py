"""A run that is cancelled undoes what it has open, wherever that stands and whoever runs it."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Literal

import pytest

import bb
from bb.errors import RunCancelled
from bb.flows.tree import (
    All,
    AnyFlow,
    Each,
    Emit,
    Once,
    Repeat,
    Retry,
    Run,
    Saga,
    Scope,
    Step,
    Throttle,
    Timeout,
    Try,
    When,
)
from bb.log import run_stream
from bb.log.facts import Unwinding
from bb.testing.mock_store import Crash, MockStore
from tests.conformance.acts import Acts, durable, plain, reached
from tests.trials.kit import Disk, cut_off, mocked
from tests.unit.engine.unwound import UNDONE, facts, open_flow, status

NOW = timedelta(0)


# --- cancelling -------------------------------------------------------------------------------------------------------


async def test_cancelling_a_run_undoes_it(disk: Disk, acts: Acts) -> None:
    app = disk.app(open_flow(acts))
    hold = acts.hold("slow")
    task = asyncio.create_task(app.run("f", run_id="r"))
    await reached(hold, task)

    await app.cancel("r")

    with pytest.raises(RunCancelled):
        await task
    assert acts.done == ["a", "acquire", "body", "slow", *UNDONE] and await status(app) == "cancelled"


async def test_after_a_cancel_it_is_a_new_attempt(disk: Disk, acts: Acts) -> None:
    app = disk.app(open_flow(acts))
    hold = acts.hold("slow")
    task = asyncio.create_task(app.run("f", run_id="r"))
    await reached(hold, task)
    await app.cancel("r")
    with pytest.raises(RunCancelled):
        await task
    acts.done.clear()

    await disk.app(open_flow(acts)).run("f", run_id="r")

    assert acts.done == ["a", "acquire", "body", "slow", "acquire done"]


async def test_cancelling_a_run_that_no_process_runs_undoes_it(disk: Disk, acts: Acts) -> None:
    await cut_off(disk.app(open_flow(acts)), acts.hold("slow"), "f", run_id="r")
    acts.done.clear()
    app = disk.app(open_flow(acts))

    await app.cancel("r")

    assert acts.done == UNDONE and await status(app) == "cancelled"
    await app.cancel("r")
    assert acts.done == UNDONE


async def test_a_cancel_reaches_a_run_that_another_app_holds(disk: Disk, acts: Acts) -> None:
    hold = acts.hold("slow")
    task = asyncio.create_task(disk.app(open_flow(acts)).run("f", run_id="r"))
    await reached(hold, task)

    await disk.app(open_flow(acts)).cancel("r")

    with pytest.raises(RunCancelled):
        await task
    assert acts.done[-2:] == UNDONE


async def test_cancelling_twice_undoes_once(disk: Disk, acts: Acts) -> None:
    app = disk.app(open_flow(acts))
    slow, undoing = acts.hold("slow"), acts.hold("undo a")
    task = asyncio.create_task(app.run("f", run_id="r"))
    await reached(slow, task)
    first = asyncio.create_task(app.cancel("r"))
    await reached(undoing, task)
    second = asyncio.create_task(app.cancel("r"))
    await asyncio.sleep(0.01)
    undoing.go.set()
    await asyncio.gather(first, second)

    with pytest.raises(RunCancelled):
        await task
    assert acts.done[-2:] == UNDONE


async def test_a_cancel_while_a_failure_is_undone_changes_nothing_of_that(disk: Disk, acts: Acts) -> None:
    acts.fail("slow", 1)
    app = disk.app(durable(Try(acts.saga("a", "slow"), handler=acts("never")), acts("never")))
    undoing = acts.hold("undo a")
    task = asyncio.create_task(app.run("f", run_id="r"))
    await reached(undoing, task)
    cancel = asyncio.create_task(app.cancel("r"))
    await asyncio.sleep(0.01)
    undoing.go.set()
    await cancel

    with pytest.raises(RunCancelled):
        await task
    assert acts.done == ["a", "slow", "undo a"] and await status(app) == "cancelled"


async def test_a_crash_while_a_cancel_undoes_ends_as_cancelled(acts: Acts) -> None:
    """It goes on undoing, and does not go forward as if nobody had cancelled it."""
    store = MockStore()
    app = mocked(store, open_flow(acts))
    slow = acts.hold("slow")
    task = asyncio.create_task(app.run("f", run_id="r"))
    await reached(slow, task)
    store.crash_at(lambda _, records: b"acquire done" in b"".join(records) or b"finally~call" in records[-1])
    with suppress(Crash, bb.BBError):
        await app.cancel("r")
    with suppress(Crash, bb.BBError, asyncio.CancelledError):
        await task
    store.revive()
    assert acts.done[-1] == "acquire done"

    app = mocked(store, open_flow(acts))
    with pytest.raises(RunCancelled):
        await app.run("f", run_id="r")

    assert acts.done == ["a", "acquire", "body", "slow", "acquire done", *UNDONE] and await status(app) == "cancelled"


@pytest.mark.parametrize("when", ["before", "after", "during"])
@pytest.mark.parametrize("held", [True, False])
async def test_a_crash_at_any_append_of_a_cancel(when: Literal["before", "after", "during"], held: bool) -> None:
    """Once its undoing has begun it never goes forward again, whoever runs it next."""
    for strike in range(1, 20):
        acts, store = Acts(), MockStore()
        app = mocked(store, open_flow(acts))
        hold = acts.hold("slow")
        task = asyncio.create_task(app.run("f", run_id="r"))
        await reached(hold, task)
        if not held:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            app = mocked(store, open_flow(acts))
        store.clear()
        store.crash_at(strike, when)
        with suppress(Crash, bb.BBError):
            await app.cancel("r")
        with suppress(Crash, bb.BBError, asyncio.CancelledError):
            await task
        if not store.crashed:
            assert strike > 4
            return
        store.revive()
        begun = any(isinstance(fact, Unwinding) for fact in await facts(store))
        if b'"end"' in (await store.read(run_stream("r")))[-1]:
            continue  # it had ended: running it again is a new attempt
        before = Counter(acts.done)

        if not begun:
            await mocked(store, open_flow(acts)).run("f", run_id="r")
            continue
        with pytest.raises(RunCancelled):
            await mocked(store, open_flow(acts)).run("f", run_id="r")
        counts = Counter(acts.done)
        assert all(1 <= counts[undo] <= 2 for undo in UNDONE), f"crash {when} append {strike}: {acts.done}"
        assert all(counts[step] == before[step] for step in ("a", "acquire", "body", "slow"))
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("kind", ["members", "group", "loop", "inner durable", "sub-flow"])
async def test_a_cancel_undoes_what_is_open_wherever_it_stands(disk: Disk, acts: Acts, kind: str) -> None:
    saga = acts.saga("a", "slow")
    flows: dict[str, AnyFlow] = {
        "members": All(saga, acts.saga("b", "slow b")),
        "group": bb.Group(saga, acts.saga("b", "slow b")),
        "loop": Repeat(1, Each("i", [1], When(True, saga))),
        "inner durable": Saga(acts.step("b"), Step(saga.with_id("inner").durable(retries=3))),
        "sub-flow": Saga(acts.step("b"), Step(Run("sub"))),
    }
    app = disk.app(plain(saga, Emit("x"), id="sub"), durable(flows[kind], Emit("end"), retries=3))
    holds = [acts.hold("slow"), *([acts.hold("slow b")] if kind in ("members", "group") else [])]
    task = asyncio.create_task(app.run("f", run_id="r"))
    for hold in holds:
        await reached(hold, task)

    await app.cancel("r")

    with pytest.raises(RunCancelled):
        await task
    undone = [what for what in acts.done if what.startswith("undo")]
    assert sorted(undone) == (["undo a"] if kind == "loop" else ["undo a", "undo b"])


@pytest.mark.parametrize(
    "kind", ["scope", "acquired", "once", "timeout", "throttle", "retry", "each", "members", "deep"]
)
async def test_a_cancel_finds_what_is_open_in_a_run_that_no_process_runs(disk: Disk, acts: Acts, kind: str) -> None:
    """Though nothing inside has come to an end yet, and whatever it stands in."""
    scope = Scope(acts("slow"), finally_=acts("finally"))
    flows: dict[str, AnyFlow] = {
        "scope": scope,
        "acquired": Scope(acts("slow"), acquire=[1, 2], bind="h", finally_=(acts("finally"),)),
        "once": Once("o", scope),
        "timeout": Timeout(timedelta(hours=1), scope),
        "throttle": Throttle("t", scope, max=9, per=timedelta(hours=1)),
        "retry": Retry(3, scope),
        "each": Each("i", [1], scope),
        "members": All(scope, acts("other")),
        "deep": Once("o", Try(Retry(2, Once("p", Saga(acts.step("a"), Step(scope)))))),
    }
    flow = durable(flows[kind], Emit("end"))
    await cut_off(disk.app(flow), acts.hold("slow"), "f", run_id="r", session_id="s")
    begun = len(acts.done)

    await disk.app(flow).cancel("r")

    assert acts.done[begun:] == ["finally", "undo a"] if kind == "deep" else ["finally"]


async def test_a_scope_that_was_never_entered_owes_nothing(disk: Disk, acts: Acts) -> None:
    flow = durable(acts("slow"), Scope(acts("body"), finally_=acts("finally")))
    await cut_off(disk.app(flow), acts.hold("slow"), "f", run_id="r")

    await disk.app(flow).cancel("r")

    assert acts.done == ["slow"]


async def test_what_another_run_has_finished_is_given_up_and_undone(disk: Disk, acts: Acts) -> None:
    """The claim of a dead run has lapsed, and another ran the body: what the dead one had open is not just dropped."""
    flow = durable(Once("o", Saga(acts.step("a"), Step(acts("slow")))), Emit("end"))
    await cut_off(disk.app(flow), acts.hold("slow"), "f", run_id="dead", session_id="s")
    await disk.app(flow).run("f", session_id="s")
    assert acts.done == ["a", "slow", "a", "slow"]

    await disk.app(flow).run("f", run_id="dead")

    assert acts.done == ["a", "slow", "a", "slow", "undo a"]


async def test_a_crash_while_a_timeout_undoes_inside_a_once(acts: Acts) -> None:
    store = MockStore()
    acts.hold("slow")
    late = Timeout(timedelta(milliseconds=60), Once("o", acts.saga("a", "slow")))
    flow = durable(Try(late, handler=acts("handler")), Emit("end"))
    store.crash_at(lambda _, records: b'"TimedOut"' in records[-1], "after")
    with pytest.raises(Crash):
        await bb.App(store=store).run(flow, run_id="r")
    store.revive()

    await bb.App(store=store).run(flow, run_id="r")

    assert acts.done == ["a", "slow", "undo a", "handler"]


async def test_what_was_done_when_nothing_is_open_stays(disk: Disk, acts: Acts) -> None:
    app = disk.app(durable(acts.saga("a"), Scope(acts("b"), finally_=acts("finally")), acts("slow")))
    hold = acts.hold("slow")
    task = asyncio.create_task(app.run("f", run_id="r"))
    await reached(hold, task)

    await app.cancel("r")

    with pytest.raises(RunCancelled):
        await task
    assert acts.done == ["a", "b", "finally", "slow"]


async def test_a_cancel_lets_a_finally_come_to_its_end(disk: Disk, acts: Acts) -> None:
    app = disk.app(durable(Scope(acts("body"), finally_=(acts("one"), acts("two"))), acts("never")))
    hold = acts.hold("one")
    task = asyncio.create_task(app.run("f", run_id="r"))
    await reached(hold, task)
    cancel = asyncio.create_task(app.cancel("r"))
    await asyncio.sleep(0.01)
    hold.go.set()
    await cancel

    with pytest.raises(RunCancelled):
        await task
    assert acts.done == ["body", "one", "two"]
