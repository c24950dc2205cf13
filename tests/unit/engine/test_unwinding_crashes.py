"""Crashes while something is undone, and undos that fail."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any, Literal

import pytest

import bb
from bb.errors import OpFailed
from bb.flows.refs import ref
from bb.flows.tree import (
    All,
    Emit,
    Retry,
    Return,
    Saga,
    Scope,
    Step,
    Try,
)
from bb.log import run_stream
from bb.log.facts import UndoFailed, Unwinding, Unwound
from bb.testing.mock_store import Crash, MockStore
from tests.conformance.acts import Acts, durable
from tests.trials.kit import Disk, cut_off, mocked, until
from tests.unit.engine.unwound import clock, facts, open_flow, refunding, status

NOW = timedelta(0)


# --- crashes while undoing --------------------------------------------------------------------------------------------

STEPS = ["a", "acquire", "b", "c"]
UNDOS = ["finally", "undo b", "undo a"]


def compensating(acts: Acts, **options: Any) -> bb.DurableFlow:
    scope = Scope(acts("c"), acts("bad"), acquire=acts("acquire"), bind="h", finally_=acts("finally"))
    return durable(Saga(acts.step("a"), acts.step("b"), Step(scope)), Emit("end"), **options)


@pytest.mark.parametrize("when", ["before", "after", "during"])
async def test_a_crash_while_undoing_goes_on_undoing(when: Literal["before", "after", "during"]) -> None:
    """Trial Q4: at whatever append the process dies, each undo has run once, or twice where its record was lost."""
    acts, store = Acts(), MockStore()
    acts.breaks("bad")
    with pytest.raises(OpFailed):
        await mocked(store, compensating(acts)).run("f", run_id="r")
    log = await facts(store)
    begun = next(index for index, fact in enumerate(log) if isinstance(fact, Unwinding))

    for strike in range(1, store.appends + 1):
        acts, store = Acts(), MockStore()
        acts.breaks("bad")
        store.crash_at(strike, when)
        with pytest.raises((Crash, OpFailed)):
            await mocked(store, compensating(acts)).run("f", run_id="r")
        if not store.crashed:
            continue
        store.revive()
        undoing = len(await facts(store)) > begun and not await is_over(store)
        before = Counter(acts.done)
        if await is_over(store):
            continue  # the failure was recorded: running it again is a new attempt
        with pytest.raises(bb.BBError, match="bad is broken"):
            await mocked(store, compensating(acts)).run("f", run_id="r")

        counts = Counter(acts.done)
        assert all(1 <= counts[undo] <= 2 for undo in UNDOS), f"crash {when} append {strike}: {acts.done}"
        assert sum(counts[undo] - 1 for undo in UNDOS) <= 1
        if undoing:
            assert all(counts[step] == before[step] for step in [*STEPS, "bad"]), f"crash {when} append {strike}"


async def is_over(store: bb.Store) -> bool:
    """Whether the failure of the run is on record."""
    return any(b'"fail"' in record for record in await store.read(run_stream("r")))


async def test_a_compensating_run_goes_on_by_itself_when_an_app_starts(disk: Disk, acts: Acts) -> None:
    """Recovery: also one that a caller had started, since nobody may come back for it."""
    acts.fail("bad", 1)
    await cut_off(disk.app(compensating(acts)), acts.hold("undo b"), "f", run_id="r")
    app = disk.app(compensating(acts))

    await app.start()
    await until(lambda: "undo a" in acts.done)
    await until(lambda: is_failed(app))

    assert [what for what in acts.done if what in UNDOS] == ["finally", "undo b", "undo b", "undo a"]
    assert acts.count("bad") == 1


async def is_failed(app: bb.App) -> bool:
    return await status(app) == "failed"


async def test_an_open_run_that_only_was_cut_off_waits_for_its_caller(disk: Disk, acts: Acts) -> None:
    await cut_off(disk.app(open_flow(acts)), acts.hold("slow"), "f", run_id="r")
    app = disk.app(open_flow(acts))

    await app.start()
    await asyncio.sleep(0.05)

    assert acts.done == ["a", "acquire", "body", "slow"] and await status(app) == "interrupted"


async def test_the_failure_stays_fatal_over_a_crash(acts: Acts) -> None:
    """Told again after a crash it is still no reason to try again."""
    store = MockStore()
    acts.fail("bad", bb.Fatal("pointless"))
    flow = durable(Retry(3, acts.saga("a", "bad"), backoff="none", delay=NOW), Emit("x"), retries=3)
    store.crash_at(lambda _, records: b"undo0" in records[-1])
    with pytest.raises(Crash):
        await mocked(store, flow).run("f", run_id="r")
    store.revive()

    with pytest.raises(bb.BBError, match="pointless"):
        await mocked(store, flow).run("f", run_id="r")

    assert acts.done == ["a", "bad", "undo a", "undo a"]


async def test_a_caught_failure_reads_the_same_after_a_crash(acts: Acts) -> None:
    def flow() -> bb.DurableFlow:
        return durable(Try(acts.saga("a", "bad"), catch="why", handler=Return(ref("why"))))

    acts.fail("bad", 2)
    plainly = await bb.App().run(flow())
    store = MockStore()
    store.crash_at(lambda _, records: b"undo0" in records[-1])
    with pytest.raises(Crash):
        await mocked(store, flow()).run("f", run_id="r")
    store.revive()

    assert (await mocked(store, flow()).run("f", run_id="r")).value == plainly.value


# --- undos that fail --------------------------------------------------------------------------------------------------


async def test_a_failed_undo_is_on_record(disk: Disk, acts: Acts) -> None:
    """Node 5."""
    acts.breaks("undo b", "bad")
    app = disk.app(refunding(acts))
    with pytest.raises(OpFailed) as raised:
        await app.run("f", run_id="r")

    assert "undo of step 1 failed" in raised.value.__notes__[0]
    (failed,) = [fact for fact in await facts(app.store) if isinstance(fact, UndoFailed)]
    assert failed.path == "f/body~saga.1/undo1" and "undo b is broken" in failed.detail
    (event,) = [event for event in await app.events("r") if event.kind == "cleanup.failed"]
    assert event.path == failed.path


async def test_a_failed_undo_blocks_a_new_attempt_until_it_has_succeeded(disk: Disk, acts: Acts) -> None:
    """Node 6."""
    acts.breaks("undo b")
    acts.fail("bad", 1)
    with pytest.raises(OpFailed):
        await disk.app(refunding(acts)).run("f", run_id="r")
    for _ in range(2):
        acts.done.clear()
        with pytest.raises(bb.BBError, match="bad fails") as raised:
            await disk.app(refunding(acts)).run("f", run_id="r")
        assert acts.done == ["undo b"]  # tried first, and alone: the other one has succeeded
        assert "undo of step 1 failed" in raised.value.__notes__[0]
    acts.mend("undo b")
    acts.done.clear()

    await disk.app(refunding(acts)).run("f", run_id="r")

    assert acts.done == ["undo b", "a", "b", "bad"]


async def test_a_failed_undo_can_be_settled_by_people(disk: Disk, acts: Acts) -> None:
    acts.breaks("undo b")
    acts.fail("bad", 1)
    app = disk.app(refunding(acts))
    with pytest.raises(OpFailed):
        await app.run("f", run_id="r")
    acts.done.clear()

    await app.forget("r", "f/body~saga.1/undo1")
    await disk.app(refunding(acts)).run("f", run_id="r")

    assert acts.done == ["a", "b", "bad"]


async def test_undos_get_the_retries_of_their_flow(acts: Acts) -> None:
    """And the next one begins when the last has ended."""
    acts.fail("bad", 9)
    acts.fail("undo b", 2)
    acts.breaks("undo a")
    with pytest.raises(OpFailed) as raised:
        await bb.App(clock=clock()).run(refunding(acts, retries=2), run_id="r")

    assert acts.done == ["before", "a", "b", *["bad"] * 3, *["undo b"] * 3, *["undo a"] * 3]
    assert "undo of step 0 failed" in raised.value.__notes__[0] and len(raised.value.__notes__) == 1


async def test_what_an_undo_still_owes_is_not_told_to_be_undone(disk: Disk, acts: Acts) -> None:
    acts.breaks("undo a", "bad")
    flow = durable(acts.saga("a", "bad"))
    with pytest.raises(OpFailed):
        await disk.app(flow).run("f", run_id="r")

    with pytest.raises(bb.Unwound) as raised:
        await disk.app(flow).run("f", run_id="r")

    assert "app.forget" in raised.value.remedy
    assert "is undone" not in str(raised.value)
    assert "undo of step 0 failed" in raised.value.__notes__[0]


async def test_nothing_is_tried_again_while_an_undo_is_open(acts: Acts) -> None:
    acts.breaks("undo a", "bad")
    flow = durable(Retry(5, acts.saga("a", "bad"), backoff="none", delay=NOW), Emit("x"))

    with pytest.raises(OpFailed):
        await bb.App().run(flow, run_id="r")

    assert acts.done == ["a", "bad", "undo a"]


async def test_nor_while_one_is_open_in_a_member_whose_error_is_not_told(acts: Acts) -> None:
    """Members run to their end, and only the first error is raised; the undo that failed beside it counts as well."""
    acts.breaks("undo a", "bad", "other")
    members = All(acts("other"), acts.saga("a", "bad"))

    with pytest.raises(OpFailed, match="other"):
        await bb.App().run(durable(Retry(5, members, backoff="none", delay=NOW), Emit("x")), run_id="r")

    assert sorted(acts.done) == ["a", "bad", "other", "undo a"]


async def test_an_undo_that_failed_inside_a_try_is_tried_when_the_run_is_run_again(disk: Disk, acts: Acts) -> None:
    """The handler has taken over, but what is owed is still owed."""
    flow = durable(Try(acts.saga("a", "bad"), handler=acts("handler")), acts("later"))
    acts.breaks("undo a", "bad")
    acts.fail("later", 1)
    with pytest.raises(OpFailed, match="later"):
        await disk.app(flow).run("f", run_id="r")
    acts.mend("undo a")
    acts.done.clear()

    await disk.app(flow).run("f", run_id="r")

    assert acts.done == ["undo a", "later"]


async def test_a_masked_failure_of_finally_is_on_record_and_blocks_nothing(disk: Disk, acts: Acts) -> None:
    acts.fail("body", 1)
    acts.fail("finally", 1)
    flow = durable(Scope(acts("body"), finally_=acts("finally")), Emit("x"))
    app = disk.app(flow)
    with pytest.raises(OpFailed, match="body") as raised:
        await app.run("f", run_id="r")
    assert "finally failed" in raised.value.__notes__[0]
    assert [type(fact) for fact in await facts(app.store)][-4:-1] == [Unwinding, UndoFailed, Unwound]
    acts.done.clear()

    await disk.app(flow).run("f", run_id="r")

    assert acts.done == ["body", "finally"]


async def test_cancelling_a_run_with_a_failed_undo_tries_it_once_more(disk: Disk, acts: Acts) -> None:
    acts.breaks("undo b", "bad")
    app = disk.app(refunding(acts))
    with pytest.raises(OpFailed):
        await app.run("f", run_id="r")
    acts.mend("undo b")
    acts.done.clear()

    await app.cancel("r")

    assert acts.done == ["undo b"] and await status(app) == "cancelled"
