"""Sagas: cases 36 to 40 of the language, and how they and others stand in each other, durable and not."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import bb
from bb.errors import Denied, OpFailed
from bb.flows.refs import ref
from bb.flows.tree import All, AnyFlow, Bind, Each, Emit, Once, Retry, Return, Saga, Step, Try, WithTools
from bb.policy import Policy
from bb.testing.clock import ManualClock
from tests.conformance.acts import Acts, durable, plain, reached
from tests.trials.kit import Disk, cut_off


@pytest.fixture(params=["durable", "plain"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def made(kind: str, *steps: AnyFlow) -> bb.NamedFlow | bb.DurableFlow:
    return durable(*steps) if kind == "durable" else plain(*steps)


async def failing(kind: str, *steps: AnyFlow) -> BaseException:
    with pytest.raises(OpFailed) as raised:
        await bb.run(made(kind, *steps))
    return raised.value


async def test_case_36_finished_steps_are_undone_the_last_first(kind: str, acts: Acts) -> None:
    """Trial Q2. The failing step's own undo is not run: what it had half done is not compensated."""
    acts.breaks("d")

    error = await failing(kind, acts.saga("a", "b!", "c", "d", "e"))

    assert acts.done == ["a", "b", "c", "d", "undo c", "undo a"]
    assert str(error.__cause__) == "d is broken"


async def test_case_36_a_success_undoes_nothing(kind: str, acts: Acts) -> None:
    outcome = await bb.run(made(kind, Once("o", acts.saga("a", "b", "c!"), bind="x"), Return(ref("x"))))

    assert acts.done == ["a", "b", "c"] and outcome.value == "c done"  # of the last step


async def test_case_37_a_failed_undo_does_not_stop_the_others(kind: str, acts: Acts) -> None:
    """Trap 7.1.5: it is a record and a note on the error."""
    acts.breaks("undo b", "d")

    error = await failing(kind, acts.saga("a", "b", "c", "d"))

    assert acts.done == ["a", "b", "c", "d", "undo c", "undo b", "undo a"]
    (note,) = error.__notes__
    assert "undo of step 1 failed" in note and "undo b is broken" in note


async def test_case_37_an_undo_ends_at_its_first_failure(kind: str, acts: Acts) -> None:
    acts.breaks("x", "bad")

    await failing(kind, Saga(Step(acts("a"), undo=(acts("one"), acts("x"), acts("never"))), Step(acts("bad"))))

    assert acts.done == ["a", "bad", "one", "x"]


async def test_case_38_a_return_undoes_nothing(kind: str, acts: Acts) -> None:
    saga = Saga(acts.step("a"), Step(acts("b"), Return("early"), acts("never"), undo=acts("never")), acts.step("never"))

    outcome = await bb.run(made(kind, saga, acts("never")))

    assert outcome.value == "early" and acts.done == ["a", "b"]


async def test_case_40_running_it_again_is_a_new_attempt(disk: Disk, acts: Acts) -> None:
    """Decided by DESIGN: what failed and was undone is over, and the new attempt shares nothing with it (case 39)."""
    flow = durable(acts("before"), acts.saga("a", "b"), acts("after"))
    acts.fail("b", 2)
    for _ in range(2):
        with pytest.raises(OpFailed):
            await disk.app(flow).run("f", run_id="r")

    outcome = await disk.app(flow).run("f", run_id="r")

    assert acts.done == ["before", *["a", "b", "undo a"] * 2, "a", "b", "after"]
    assert outcome.replayed == ("f/body~call.0",)
    paths = [event.path for event in await disk.app(flow).events("r") if event.kind == "flow.end"]
    assert [path for path in paths if "step0" in path] == [
        "f/body~saga.1/step0~call.0",
        "f/body~saga.1@1/step0~call.0",
        "f/body~saga.1@2/step0~call.0",
    ]


async def test_case_40_a_durable_retry_resumes_in_place_instead(disk: Disk, acts: Acts) -> None:
    flow = durable(acts.saga("a", "b", "c"), retries=2)
    acts.fail("b", 2)

    await disk.app(flow, clock=ManualClock(auto=True)).run("f", run_id="r")

    assert acts.done == ["a", "b", "b", "b", "c"]


async def test_undos_see_what_the_steps_have_bound(kind: str, acts: Acts) -> None:
    """Trial Q1."""
    acts.values["charge"] = "receipt 7"
    acts.breaks("bad")
    saga = Saga(
        Step(Bind("r", acts("charge")), undo=acts("refund {r} {y}")),
        Step(Bind("y", "later")),
        Step(Bind("z", 1), acts("bad")),
    )

    await failing(kind, saga)

    assert acts.done == ["charge", "bad", "refund receipt 7 later"]


async def test_undos_see_it_in_another_process_as_well(disk: Disk, acts: Acts) -> None:
    """Trial Q1."""
    acts.values["charge"] = {"id": 7}
    acts.fail("bad", 1)
    flow = durable(Saga(Step(Bind("r", acts("charge")), undo=acts("refund {r.id}")), Step(acts("bad"))))
    await cut_off(disk.app(flow), acts.hold("refund 7"), "f", run_id="r")

    with pytest.raises(bb.BBError, match="bad fails"):
        await disk.app(flow).run("f", run_id="r")

    assert acts.done == ["charge", "bad", "refund 7", "refund 7"]


async def test_an_undo_is_denied_like_any_other_call(kind: str, acts: Acts) -> None:
    refund = acts.named("refund")
    acts.breaks("bad")
    app = bb.App(policy=Policy(deny=("refund",)))
    saga = Saga(acts.step("a"), Step(acts("b"), undo=refund("never")), Step(acts("bad")))

    with pytest.raises(OpFailed, match="bad is broken") as raised:
        await app.run(made(kind, saga))

    assert acts.done == ["a", "b", "bad", "undo a"] and "op refund was denied" in raised.value.__notes__[0]


async def test_a_fatal_error_is_compensated_and_stays_fatal(kind: str, acts: Acts) -> None:
    secret = acts.named("secret")
    app = bb.App(policy=Policy(deny=("secret",)))
    flow = made(kind, Retry(3, Saga(acts.step("a"), Step(secret("never")))))

    with pytest.raises(Denied):
        await app.run(flow)

    assert acts.done == ["a", "undo a"]


async def test_an_undo_is_confined_like_its_step(kind: str, acts: Acts) -> None:
    acts.breaks("bad")
    other = acts.named("other")

    error = await failing(kind, WithTools(["act"], Saga(Step(acts("a"), undo=other("never")), Step(acts("bad")))))

    assert acts.done == ["a", "bad"] and "only some ops may run here" in error.__notes__[0]


# --- sagas and others in each other -----------------------------------------------------------------------------------


async def test_saga_in_once_leaves_no_completion_when_it_fails(disk: Disk, acts: Acts) -> None:
    flow = durable(Once("o", acts.saga("a", "b")))
    acts.fail("b", 1)
    with pytest.raises(OpFailed):
        await disk.app(flow).run("f", session_id="s")

    for _ in range(2):
        await disk.app(flow).run("f", session_id="s")

    assert acts.done == ["a", "b", "undo a", "a", "b"]


async def test_saga_in_a_step_that_fails_is_undone_first(kind: str, acts: Acts) -> None:
    acts.breaks("y")

    await failing(kind, Saga(acts.step("a"), Step(acts.saga("x", "y"), undo=acts("never"))))

    assert acts.done == ["a", "x", "y", "undo x", "undo a"]


async def test_saga_in_a_step_that_succeeded_is_not_undone_by_itself(kind: str, acts: Acts) -> None:
    """The outer step's undo answers for it."""
    acts.breaks("bad")
    inner = acts.saga("x", "y")

    await failing(kind, Saga(Step(inner, undo=acts("undo inner")), Step(inner), Step(acts("bad"))))

    assert acts.done == ["x", "y", "x", "y", "bad", "undo inner"]


async def test_saga_in_retry_is_compensated_in_each_attempt(kind: str, acts: Acts) -> None:
    acts.fail("b", 1)

    await bb.run(made(kind, Retry(3, acts.saga("a", "b", "c"), backoff="none", delay=timedelta(0))))

    assert acts.done == ["a", "b", "undo a", "a", "b", "c"]


async def test_saga_in_each_is_one_per_item(kind: str, acts: Acts) -> None:
    acts.breaks("ship 2")
    saga = Saga(Step(acts("charge {i}"), undo=acts("refund {i}")), Step(acts("ship {i}")))

    await failing(kind, Each("i", [1, 2, 3], saga))

    assert acts.done == ["charge 1", "ship 1", "charge 2", "ship 2", "refund 2"]


async def test_saga_beside_a_failing_member(kind: str, acts: Acts) -> None:
    """A branch that fails does not undo a sibling that has finished, and a durable one runs to its end."""
    acts.breaks("bad")
    members = All(acts.saga("x", "bad"), acts.saga("a", "b"))

    await failing(kind, members)

    if kind == "durable":
        assert sorted(acts.done) == ["a", "b", "bad", "undo x", "x"]
    else:  # cancelled at once, and compensated for what it had done
        assert "undo x" in acts.done and ("b" in acts.done) is not ("undo a" in acts.done)


async def test_saga_caught_by_a_try_is_undone_before_the_handler(kind: str, acts: Acts) -> None:
    acts.breaks("b")

    await bb.run(made(kind, Try(acts.saga("a", "b"), handler=acts("handler")), acts("after")))

    assert acts.done == ["a", "b", "undo a", "handler", "after"]


async def test_saga_given_up_with_its_flow_is_undone(kind: str, acts: Acts) -> None:
    """What fails after a saga that succeeded undoes nothing of it."""
    acts.breaks("bad")

    await failing(kind, acts.saga("a", "b"), Emit("said"), acts("bad"))

    assert acts.done == ["a", "b", "bad"]


async def test_cancelling_a_flow_that_is_not_durable_compensates(acts: Acts) -> None:
    """Node 5: it has no later; the undos are shielded from the cancellation."""
    slow, undoing = acts.hold("slow"), acts.hold("undo b")
    task = asyncio.create_task(bb.run(plain(acts.saga("a", "b", "slow"))))
    await reached(slow, task)
    task.cancel()
    await reached(undoing, task)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    undoing.go.set()

    with pytest.raises(asyncio.CancelledError):
        await task

    assert acts.done == ["a", "b", "slow", "undo b", "undo a"]
