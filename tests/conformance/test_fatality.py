"""What is never tried again and never false: cases 51 to 53 of the language, and the envelope around every op."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from itertools import count
from typing import Literal

import pytest

import bb
from bb.errors import ApproverFailed, AssertionFailed, Denied, OpFailed
from bb.flows.refs import negate, ref
from bb.flows.tree import (
    AnyFlow,
    Assert,
    Bind,
    Call,
    Each,
    Emit,
    Memo,
    Once,
    Repeat,
    Retry,
    Return,
    Saga,
    Scope,
    Step,
    Try,
    Unless,
    When,
    WithTools,
)
from bb.ops import op
from bb.policy import Approval, ByRisk, Decision, DenyAll, Policy
from bb.testing.clock import ManualClock
from bb.testing.mock_store import Crash, MockStore
from tests.conformance.acts import Acts, durable, plain
from tests.trials.kit import mocked


@pytest.fixture(params=["durable", "plain"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def made(kind: str, *steps: AnyFlow) -> bb.NamedFlow | bb.DurableFlow:
    return durable(*steps, retries=3) if kind == "durable" else plain(*steps)


def strict(**options: object) -> bb.App:
    """An app that denies `secret`, on a clock that does not wait."""
    return bb.App(clock=ManualClock(auto=True), policy=Policy(deny=("secret",)), **options)  # type: ignore[arg-type]


class Asked:
    """An approver that notes what it was asked."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.paths: list[str] = []

    async def approve(self, request: Approval, /) -> Decision:
        self.paths.append(request.path)
        self.asked += [call.op for call in request.calls]
        return Decision.allow() if not self.answers or self.answers.pop(0) else Decision.deny("somebody said no")


# --- fatal errors -----------------------------------------------------------------------------------------------------


async def test_case_51_a_refusal_inside_a_loop_inside_a_retry_is_asked_for_once(kind: str, acts: Acts) -> None:
    """Regression 'fatality erased': elsewhere the refused op was asked for again and again."""
    asked = Asked(False)
    app = bb.App(clock=ManualClock(auto=True), approver=asked)

    with pytest.raises(Denied, match="somebody said no"):
        await app.run(made(kind, Retry(5, Repeat(5, acts("never")))))

    assert asked.asked == ["act"] and acts.done == []


async def test_case_52_a_failed_assert_is_not_tried_again(kind: str, acts: Acts) -> None:
    flow = made(kind, Retry(5, Each("i", [1, 2], acts("{i}"), Assert(ref("i", int) > 1, "too small"))))

    with pytest.raises(AssertionFailed, match="too small"):
        await strict().run(flow)

    assert acts.done == ["1"]


async def test_case_52_neither_is_a_denied_op(kind: str, acts: Acts) -> None:
    secret = acts.named("secret")

    with pytest.raises(Denied, match="the policy denies secret"):
        await strict().run(made(kind, Repeat(5, Retry(5, acts("a"), secret("never")))))

    assert acts.done == ["a"]


async def test_case_53_a_denial_in_a_condition_is_not_false(kind: str, acts: Acts) -> None:
    """Regression 'denial as false'."""
    secret = acts.named("secret")
    conditions: list[AnyFlow] = [
        When(secret("never"), acts("then"), otherwise=acts("else")),
        Unless(secret("never"), acts("body")),
        Assert(secret("never")),
        Repeat(3, Emit("x"), until=secret("never")),
        When(negate(ref(secret("never"))), acts("then")),
    ]
    for flow in conditions:
        with pytest.raises(Denied):
            await strict().run(made(kind, flow))

    assert acts.done == []


async def test_a_refusal_in_a_condition_is_not_false_either(kind: str, acts: Acts) -> None:
    app = bb.App(approver=DenyAll())

    with pytest.raises(Denied):
        await app.run(made(kind, When(acts("never"), acts("then"), otherwise=acts("else"))))


async def test_a_denial_raised_inside_an_op_is_one(kind: str, acts: Acts) -> None:
    acts.fail("q", Denied("not for you"))

    with pytest.raises(Denied, match="not for you"):
        await strict().run(made(kind, Retry(3, When(acts("q"), acts("never"), otherwise=acts("never")))))

    assert acts.done == ["q"]


async def test_only_try_catches_what_is_fatal(kind: str, acts: Acts) -> None:
    secret = acts.named("secret")
    denied = Try(secret("never"), catch="why", handler=Bind("a", ref("why")))
    failed = Try(Assert(False, "no"), catch="why", handler=Bind("b", ref("why")))

    outcome = await strict().run(made(kind, denied, failed, Return([ref("a"), ref("b")])))

    assert outcome.value == ["op secret was denied: the policy denies secret", "no"]


async def test_a_denied_call_leaves_nothing_behind(acts: Acts) -> None:
    """Neither a memo nor a once: allowed later, it runs."""
    secret = acts.named("secret")
    app, other = strict(), bb.App()
    for flow in (durable(Memo("x", secret("a"))), durable(Once("o", secret("b")), id="g")):
        with pytest.raises(Denied):
            await app.run(flow, session_id="s")
        app._runner.walker.envelope, kept = other._runner.walker.envelope, app._runner.walker.envelope
        await app.run(flow, session_id="s")
        app._runner.walker.envelope = kept

    assert acts.done == ["a", "b"]


async def test_an_op_that_is_fatal_itself_is_not_tried_again(kind: str, acts: Acts) -> None:
    acts.fail("a", *[bb.Fatal("pointless")] * 9)

    with pytest.raises(OpFailed, match="pointless"):
        await strict().run(made(kind, Retry(5, acts("a"))))

    assert acts.done == ["a"]


async def test_an_op_that_nobody_knows_is_denied(kind: str) -> None:
    """An unknown op in a flow is found before it runs; one that slips through is a denial, not a soft failure."""
    flow = made(kind, When(Call("nowhere"), Emit("then"), otherwise=Emit("else")))
    with pytest.raises(bb.WiringError, match="op-unknown"):
        await bb.run(flow)

    app = bb.App(ops=[op("nowhere")(lambda: True)])
    app.register(flow)
    app._flows.known.catalogue.ops.clear()  # type: ignore[attr-defined]  # it went away after the check
    with pytest.raises(Denied, match="there is no op of that name"):
        await app.run("f")


# --- confinement ------------------------------------------------------------------------------------------------------


async def test_inside_with_tools_only_those_may_run(kind: str, acts: Acts) -> None:
    other = acts.named("other")
    flow = made(kind, WithTools(["act"], acts("in"), Try(other("never"), handler=acts("refused"))), other("out"))

    await bb.run(flow)

    assert acts.done == ["in", "refused", "out"]


async def test_nested_with_tools_intersect(kind: str, acts: Acts) -> None:
    other = acts.named("other")
    inner = WithTools(["act", "other"], acts("a"), other("never"), bind="x")

    with pytest.raises(Denied, match="only some ops may run here: act"):
        await bb.run(made(kind, WithTools(["act", "third"], inner)))

    assert acts.done == ["a"]


@pytest.mark.parametrize("where", ["condition", "argument", "undo", "finally", "until", "memo", "acquire"])
async def test_the_policy_holds_wherever_an_op_is_called(kind: str, acts: Acts, where: str) -> None:
    secret = acts.named("secret")("never")
    acts.breaks("bad")
    flows: dict[str, AnyFlow] = {
        "condition": When(secret, Emit("x")),
        "argument": acts(ref(acts(ref(secret)))),
        "undo": Saga(Step(acts("a"), undo=secret), Step(acts("bad"))),
        "finally": Scope(acts("a"), finally_=secret),
        "until": Repeat(2, acts("a"), until=secret),
        "memo": Memo("x", secret),
        "acquire": Scope(acts("a"), acquire=secret, bind="h", finally_=acts("b")),
    }

    with pytest.raises((Denied, OpFailed)) as raised:
        await strict().run(made(kind, flows[where]))

    assert "never" not in acts.done
    told = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
    assert "op secret was denied" in told


# --- approval ---------------------------------------------------------------------------------------------------------


async def test_only_risky_calls_are_asked_about(kind: str) -> None:
    done: list[str] = []

    @op(risk="high")
    async def pay() -> None:
        done.append("pay")

    @op(risk="medium")
    async def look() -> None:
        done.append("look")

    asked = Asked(True)
    await bb.App(approver=ByRisk(consent=asked)).run(made(kind, look(), pay()))
    assert asked.asked == ["pay"] and done == ["look", "pay"]

    with pytest.raises(Denied):
        await bb.App(approver=ByRisk()).run(made(kind, look(), pay()))
    assert done == ["look", "pay", "look"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(4))
async def test_an_answer_that_was_given_is_not_asked_for_again_after_a_crash(
    acts: Acts, number: int, when: Literal["before", "after"]
) -> None:
    """Only one that the crash swallowed is asked for again. Undos are asked about as well."""
    store, asked, answers = MockStore(), Asked(), count()
    flow = durable(acts("a"), Saga(Step(acts("b"), undo=acts("undo")), Step(acts("bad"))))
    acts.breaks("bad")
    store.crash_at(lambda _, records: b'/approval"' in records[-1] and next(answers) == number, when)
    with pytest.raises(Crash):
        await mocked(store, flow, approver=asked).run("f", run_id="r")
    store.revive()

    with pytest.raises(bb.BBError, match="bad is broken"):
        await mocked(store, flow, approver=asked).run("f", run_id="r")

    times = list(Counter(asked.paths).values())
    assert times == [2 if when == "before" and place == number else 1 for place in range(4)]


async def test_a_refusal_is_not_kept_when_somebody_runs_it_again(acts: Acts) -> None:
    asked = Asked(False, True)
    app = bb.App(approver=asked)
    flow = durable(acts("a"), retries=3)
    with pytest.raises(Denied):
        await app.run(flow, run_id="r")

    await app.run(flow, run_id="r")

    assert acts.done == ["a"] and asked.asked == ["act", "act"]


async def test_a_policy_that_changed_holds_for_other_arguments_of_the_same_place(acts: Acts) -> None:
    """What was done replays; what would be done anew is asked about."""
    secret, told = acts.named("secret"), iter(["one", "one", "two"])

    @op()
    async def tell() -> str:
        return next(told)

    store = bb.MemStore()
    flow = durable(secret(ref(tell())), acts("slow"))
    acts.fail("slow", 2)
    for _ in range(2):
        with pytest.raises(OpFailed):
            await bb.App(store=store).run(flow, run_id="r")
    app = strict(store=store)
    await app.run(flow, run_id="r")
    assert acts.done == ["one", "slow", "slow", "slow"]

    await app.forget("r", "f/body~call.0/arg~call.0")
    next(told)
    with pytest.raises(Denied):
        await app.run(flow, run_id="r")
    assert acts.done == ["one", "slow", "slow", "slow"]


class Broken:
    """An approver that fails as often as it is told to, and then says yes."""

    def __init__(self, times: int, error: type[Exception] = ConnectionError) -> None:
        self.times = times
        self.error = error
        self.asked = 0

    async def approve(self, _request: Approval, /) -> Decision:
        self.asked += 1
        if self.asked <= self.times:
            raise self.error("nobody there")
        return Decision.allow()


async def test_nothing_runs_while_the_approver_fails(kind: str, acts: Acts) -> None:
    broken = Broken(100)

    with pytest.raises(ApproverFailed, match="the approver failed: ConnectionError: nobody there"):
        await bb.App(approver=broken, clock=ManualClock(auto=True)).run(made(kind, Retry(3, acts("never"))))

    assert acts.done == []
    assert broken.asked == (6 if kind == "durable" else 3)  # each retry of the run tries the last attempt again


async def test_an_approver_that_failed_is_asked_again(kind: str, acts: Acts) -> None:
    await bb.App(approver=Broken(2), clock=ManualClock(auto=True)).run(made(kind, Retry(3, acts("a"))))

    assert acts.done == ["a"]


async def test_an_approver_that_fails_for_good_is_asked_again_by_the_same_run_id(acts: Acts) -> None:
    broken = Broken(1, bb.Fatal)
    app = bb.App(approver=broken, clock=ManualClock(auto=True))
    flow = durable(acts("a"), retries=3)
    with pytest.raises(ApproverFailed):
        await app.run(flow, run_id="r")
    assert broken.asked == 1 and acts.done == []

    await app.run(flow, run_id="r")

    assert acts.done == ["a"]


async def test_a_failing_approver_in_a_condition_is_not_false(kind: str, acts: Acts) -> None:
    for flow in (When(acts("q"), acts("then"), otherwise=acts("else")), Unless(acts("q"), acts("then"))):
        with pytest.raises(ApproverFailed):
            await bb.App(approver=Broken(100), clock=ManualClock(auto=True)).run(made(kind, flow))

    assert acts.done == []


async def test_an_undo_that_nobody_could_be_asked_about_is_tried_again(acts: Acts) -> None:
    class Down(Broken):
        async def approve(self, request: Approval, /) -> Decision:
            return await super().approve(request) if "/undo" in request.path else Decision.allow()

    acts.fail("bad", bb.Fatal("it is bad"))
    flow = durable(Saga(Step(acts("a"), undo=acts("undo")), Step(acts("bad"))), retries=3)

    with pytest.raises(OpFailed, match="it is bad") as failed:
        await bb.App(approver=Down(2), clock=ManualClock(auto=True)).run(flow)

    assert acts.done == ["a", "bad", "undo"] and not hasattr(failed.value, "__notes__")


async def test_it_stands_still_while_it_is_asked(acts: Acts) -> None:
    asking, answer = asyncio.Event(), asyncio.Event()

    class Slow:
        async def approve(self, _request: Approval, /) -> Decision:
            asking.set()
            await answer.wait()
            return Decision.allow()

    app = bb.App(approver=Slow())
    task = asyncio.create_task(app.run(durable(acts("a")), run_id="r"))
    await asking.wait()
    assert acts.done == []
    await asyncio.sleep(0.01)
    answer.set()

    await asyncio.wait_for(task, timedelta(seconds=10).total_seconds())
    assert acts.done == ["a"]
