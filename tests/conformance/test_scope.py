"""Scopes: cases 32 to 35 of the language, and the table of their outcomes, durable and not."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import bb
from bb.errors import AssertionFailed, Denied, OpFailed, TimedOut, WiringError
from bb.flows.refs import ref
from bb.flows.tree import (
    All,
    AnyFlow,
    Assert,
    Bind,
    Each,
    Emit,
    Once,
    One,
    Retry,
    Return,
    Saga,
    Scope,
    Step,
    Timeout,
    Try,
)
from bb.policy import Policy
from tests.conformance.acts import Acts, durable, plain
from tests.trials.kit import Disk


@pytest.fixture(params=["durable", "plain"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def made(kind: str, *steps: AnyFlow) -> bb.NamedFlow | bb.DurableFlow:
    return durable(*steps) if kind == "durable" else plain(*steps)


def whole(acts: Acts, *body: AnyFlow, acquire: str = "acquire") -> Scope:
    """A scope with all its parts."""
    return Scope(*body, acquire=acts(acquire), bind="h", finally_=acts(ref("h")))


async def test_case_32_finally_runs_on_a_normal_end(kind: str, acts: Acts) -> None:
    outcome = await bb.run(made(kind, whole(acts, acts("body")), acts("after"), Return("done")))

    assert outcome.value == "done" and acts.done == ["acquire", "body", "acquire done", "after"]


async def test_case_32_on_a_return(kind: str, acts: Acts) -> None:
    outcome = await bb.run(made(kind, whole(acts, acts("body"), Return("early"), acts("never")), acts("never")))

    assert outcome.value == "early" and acts.done == ["acquire", "body", "acquire done"]


async def test_case_32_on_an_error(kind: str, acts: Acts) -> None:
    acts.breaks("body")

    with pytest.raises(OpFailed, match="body is broken"):
        await bb.run(made(kind, whole(acts, acts("body")), acts("never")))

    assert acts.done == ["acquire", "body", "acquire done"]


async def test_case_33_what_was_not_acquired_is_not_cleaned_up(kind: str, acts: Acts) -> None:
    acts.breaks("acquire")

    with pytest.raises(OpFailed, match="acquire is broken"):
        await bb.run(made(kind, whole(acts, acts("never"))))

    assert acts.done == ["acquire"]


async def test_case_33_the_resource_is_bound_for_body_and_finally(kind: str, acts: Acts) -> None:
    acts.values["acquire"] = "lock 7"

    await bb.run(made(kind, whole(acts, acts("use {h}"))))

    assert acts.done == ["acquire", "use lock 7", "lock 7"]


async def test_case_34_a_failing_finally_surfaces_after_a_good_body(kind: str, acts: Acts) -> None:
    acts.breaks("acquire done")

    with pytest.raises(OpFailed, match="acquire done is broken"):
        await bb.run(made(kind, whole(acts, acts("body")), acts("never")))


async def test_case_34_after_a_bad_body_the_errors_of_both_are_told(kind: str, acts: Acts) -> None:
    """Node 5, trap 7.1.6: elsewhere the failure of `finally` vanished without a trace."""
    acts.breaks("body", "acquire done")

    with pytest.raises(OpFailed, match="body is broken") as raised:
        await bb.run(made(kind, whole(acts, acts("body"))))

    (note,) = raised.value.__notes__
    assert "finally failed" in note and "acquire done is broken" in note


async def test_case_35_only_a_race_refuses_cleanup(acts: Acts) -> None:
    """Inverted by DESIGN: a timeout unwinds what it gives up, so it may hold scopes and sagas."""
    scope, bare = Scope(acts("x"), finally_=acts("y")), Scope(acts("x"))
    for body in (scope, acts.saga("a"), Try(scope), Each("i", [1], acts.saga("a")), scope.with_id("named")):
        codes = [problem.code for problem in bb.check(plain(One(body, acts("other")))) if not problem.warning]
        assert codes == ["cleanup-racy"]
        assert not bb.check(plain(Timeout(timedelta(seconds=1), body)))
    assert not bb.check(plain(One(bare, acts("other"))))
    with pytest.raises(WiringError, match="cleanup-racy"):
        await bb.run(plain(One(scope, acts("other"))))


async def test_case_35_a_timeout_unwinds_what_it_gives_up(kind: str, acts: Acts) -> None:
    acts.hold("slow")
    body = Saga(acts.step("a"), Step(whole(acts, acts("slow"))))

    with pytest.raises(TimedOut):
        await bb.run(made(kind, Timeout(timedelta(milliseconds=50), body), acts("never")))

    assert acts.done == ["a", "acquire", "slow", "acquire done", "undo a"]


# --- the table of outcomes --------------------------------------------------------------------------------------------

OUTCOMES = [
    # acquire, body, finally, what comes of it, whether finally ran
    ("error", "ok", "ok", "acquire is broken", False),
    ("ok", "ok", "ok", "body's value", True),
    ("ok", "ok", "error", "finally is broken", True),
    ("ok", "return", "ok", "returned", True),
    ("ok", "return", "error", "finally is broken", True),
    ("ok", "error", "ok", "body is broken", True),
    ("ok", "error", "error", "body is broken", True),
    ("ok", "denied", "ok", "op secret was denied", True),
    ("ok", "denied", "error", "op secret was denied", True),
    ("ok", "assert", "ok", "it does not hold", True),
]


@pytest.mark.parametrize(("acquire", "body", "cleanup", "outcome", "cleaned"), OUTCOMES)
async def test_the_outcomes_of_a_scope(
    kind: str, acts: Acts, acquire: str, body: str, cleanup: str, outcome: str, cleaned: bool
) -> None:
    bodies: dict[str, tuple[AnyFlow, ...]] = {
        "ok": (acts("body"),),
        "return": (acts("body"), Return("returned")),
        "error": (acts("body"),),
        "denied": (acts("body"), acts.named("secret")("never")),
        "assert": (acts("body"), Assert(False, "it does not hold")),
    }
    acts.values["body"] = "body's value"
    acts.breaks(*(what for what, how in (("acquire", acquire), ("body", body), ("finally", cleanup)) if how == "error"))
    scope = Scope(*bodies[body], acquire=acts("acquire"), bind="h", finally_=(acts("finally"), acts("last")))
    app = bb.App(policy=Policy(deny=("secret",)))
    steps = (Once("o", scope, bind="x"), Return(ref("x")))  # what a once binds is what the scope came to

    if "broken" in outcome or "denied" in outcome or "hold" in outcome:
        with pytest.raises((OpFailed, Denied, AssertionFailed), match=outcome) as raised:
            await app.run(made(kind, *steps))
        masked = body in ("error", "denied") and cleanup == "error"
        assert ["finally failed" in note for note in getattr(raised.value, "__notes__", [])] == [True] * masked
    else:
        assert (await app.run(made(kind, *steps))).value == outcome

    assert ("finally" in acts.done) is cleaned
    assert ("last" in acts.done) is (cleaned and cleanup == "ok")  # it stops at its first failure
    assert ("body" in acts.done) is (acquire == "ok")


async def test_a_return_in_finally_is_a_static_error(acts: Acts) -> None:
    """Trap 7.2.18: elsewhere it was ignored in silence."""
    for flow in (Scope(acts("a"), finally_=Return(1)), Saga(Step(acts("a"), undo=Return(1)))):
        with pytest.raises(WiringError, match="return-in-cleanup"):
            await bb.run(plain(flow))


async def test_what_finally_comes_to_is_not_the_result(kind: str, acts: Acts) -> None:
    scope = Scope(Bind("x", acts("body")), finally_=Bind("y", acts("finally")))

    outcome = await bb.run(made(kind, Once("o", scope, bind="z"), Return([ref("z"), ref("x")])))

    assert outcome.value == ["body done", "body done"]


async def test_finally_sees_what_the_body_has_bound(kind: str, acts: Acts) -> None:
    """Also where the body failed: what was made before the failure is what has to be cleaned up."""
    acts.breaks("bad")
    scope = Scope(Bind("x", "made"), acts("bad"), Bind("y", "never"), finally_=acts("drop {x} {y}"))

    with pytest.raises(OpFailed):
        await bb.run(made(kind, scope))

    assert acts.done == ["bad", "drop made {y}"]


async def test_nested_scopes_unwind_the_inner_first(kind: str, acts: Acts) -> None:
    acts.breaks("bad")
    inner = Scope(acts("bad"), finally_=acts("inner"))

    with pytest.raises(OpFailed):
        await bb.run(made(kind, Scope(acts("a"), inner, finally_=acts("outer"))))

    assert acts.done == ["a", "bad", "inner", "outer"]


# --- how scopes and others stand in each other ------------------------------------------------------------------------


async def test_scope_in_once_is_cleaned_up_before_the_once_is_recorded(disk: Disk, acts: Acts) -> None:
    flow = durable(Once("o", Scope(acts("body"), finally_=acts("finally"))))
    acts.fail("finally", 1)
    with pytest.raises(OpFailed):
        await disk.app(flow).run("f", session_id="s")

    await disk.app(flow).run("f", session_id="s")
    await disk.app(flow).run("f", session_id="s")

    assert acts.done == ["body", "finally", "body", "finally"]


async def test_once_in_scope_is_recorded_before_finally(disk: Disk, acts: Acts) -> None:
    flow = durable(Scope(Once("o", acts("body")), acts("more"), finally_=acts("finally")))
    acts.fail("more", 1)
    with pytest.raises(OpFailed):
        await disk.app(flow).run("f", session_id="s")

    await disk.app(flow).run("f", session_id="s")

    assert acts.done == ["body", "more", "finally", "more", "finally"]


async def test_saga_in_scope_is_undone_before_finally(kind: str, acts: Acts) -> None:
    acts.breaks("bad")

    with pytest.raises(OpFailed):
        await bb.run(made(kind, Scope(acts.saga("a", "bad"), finally_=acts("finally"))))

    assert acts.done == ["a", "bad", "undo a", "finally"]


async def test_scope_in_a_step_is_cleaned_up_before_earlier_steps_are_undone(kind: str, acts: Acts) -> None:
    acts.breaks("bad")

    with pytest.raises(OpFailed):
        await bb.run(made(kind, Saga(acts.step("a"), Step(Scope(acts("bad"), finally_=acts("finally"))))))

    assert acts.done == ["a", "bad", "finally", "undo a"]


async def test_scope_in_retry_acquires_and_cleans_up_in_each_attempt(kind: str, acts: Acts) -> None:
    acts.fail("body", 1)

    await bb.run(made(kind, Retry(3, whole(acts, acts("body")), backoff="none", delay=timedelta(0))))

    assert acts.done == ["acquire", "body", "acquire done"] * 2


async def test_scope_in_each_is_one_per_item(kind: str, acts: Acts) -> None:
    await bb.run(made(kind, Each("i", ["a", "b"], Scope(acts(ref("i")), finally_=acts("finally {i}")))))

    assert acts.done == ["a", "finally a", "b", "finally b"]


async def test_scopes_beside_each_other_are_their_own(kind: str, acts: Acts) -> None:
    """A member that fails is cleaned up, and so is one that was cancelled for it."""
    acts.breaks("bad")
    other = Scope(acts("good"), finally_=acts("finally good"))

    with pytest.raises(OpFailed, match="bad"):
        await bb.run(made(kind, All(Scope(acts("bad"), finally_=acts("finally bad")), other)))

    assert "finally bad" in acts.done and acts.count("good") == acts.count("finally good")


async def test_a_caught_failure_is_cleaned_up_before_the_handler(kind: str, acts: Acts) -> None:
    acts.breaks("bad")
    caught = Try(Scope(acts("bad"), finally_=acts("finally")), catch="why", handler=Emit("caught: {why}"))

    outcome = await bb.run(made(kind, caught, acts("after")))

    assert acts.done == ["bad", "finally", "after"]
    assert outcome.answer == "caught: op act failed: ConnectionError: bad is broken"


async def test_cancelling_a_flow_that_is_not_durable_cleans_up(acts: Acts) -> None:
    """Node 5, trap 7.1.7: it has no later, so its cleanup is shielded from the cancellation."""
    body, cleanup = acts.hold("body"), acts.hold("finally")
    task = asyncio.create_task(bb.run(plain(Scope(acts("body"), finally_=(acts("finally"), acts("last"))))))
    await body.reached.wait()
    task.cancel()
    await cleanup.reached.wait()
    task.cancel()
    await asyncio.sleep(0)
    cleanup.go.set()

    with pytest.raises(asyncio.CancelledError):
        await task

    assert acts.done == ["body", "finally", "last"]
