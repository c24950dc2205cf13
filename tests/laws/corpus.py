"""Flows of the language, each as a story to be told under crashes: every kind of node, alone and inside others.

A story is built over an `Effects` counter that every case sets back to zero, so what is to fail at first fails in each case.
Whatever fails does so by its arguments, its place or the count of its tries, never by chance: a story has one right end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from attrs import field, fields, frozen

import bb
from bb.flows.refs import negate, ref
from bb.flows.tree import (
    AiSegment,
    All,
    Assert,
    Await,
    Bind,
    Checkpoint,
    Debounce,
    Each,
    Emit,
    Memo,
    Once,
    Peek,
    Repeat,
    Retry,
    Return,
    Run,
    Saga,
    Scope,
    Step,
    Throttle,
    Timeout,
    Try,
    Unless,
    When,
    WithTools,
)
from bb.ops import Op, Viewed, op
from bb.place import current_place
from bb.policy import Approval, Decision, Policy
from bb.testing import Effects, ManualClock, ScriptedModel

SECOND: Final = timedelta(seconds=1)
DAY: Final = timedelta(days=1)


@frozen
class Story:
    """A flow, and what happens around it; the arguments of `crash_everywhere`."""

    flow: bb.AnyFlow
    params: Mapping[str, object] | None = None
    events: tuple[tuple[str, object], ...] = ()
    runs: int = 1
    fails: bool = False
    app: Callable[[bb.Store], bb.App] | None = None


class Clock(ManualClock):
    """Every sleep passes at once, but for those of a day: they last for ever."""

    def __init__(self) -> None:
        super().__init__(datetime.now(UTC), auto=True)

    async def sleep(self, seconds: float) -> None:
        if seconds >= DAY.total_seconds():
            await asyncio.Event().wait()
        await super().sleep(seconds)


@frozen
class Ops:
    """Operations that count what they do."""

    effects: Effects
    act: Op[..., str] = field(init=False)
    revert: Op[..., None] = field(init=False)
    boom: Op[..., str] = field(init=False)
    flaky: Op[..., str] = field(init=False)
    first: Op[..., str] = field(init=False)
    hang: Op[..., None] = field(init=False)
    number: Op[..., int] = field(init=False)
    plain: Op[..., str] = field(init=False)
    view: Op[..., str] = field(init=False)
    risky: Op[..., str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        effects = self.effects

        @op()
        async def act(what: str) -> str:
            """Do something that takes a turn of the loop."""
            effects.ran(f"act {what}")
            await asyncio.sleep(0)
            return f"{what} done"

        @op()
        async def revert(what: str) -> None:
            effects.ran(f"revert {what}")
            await asyncio.sleep(0)

        @op()
        async def boom(what: str = "boom") -> str:
            """Fail every time."""
            effects.ran(f"boom {what}")
            raise ConnectionError(what)

        @op()
        async def flaky(what: str, times: int = 1) -> str:
            """Fail the first times, however often that is."""
            if effects.ran(f"flaky {what}") <= times:
                raise ConnectionError(what)
            return f"{what} at last"

        @op()
        async def first(what: str) -> str:
            """Fail in the first attempt at its place, and in no other."""
            effects.ran(f"first {what}")
            place = current_place()
            if place is not None and "@" not in place.path:
                raise ConnectionError(what)
            return f"{what} again"

        @op()
        async def hang(what: str) -> None:
            """Take for ever."""
            effects.ran(f"hang {what}")
            await asyncio.Event().wait()

        @op(effects=["read"])
        async def number(of: str) -> int:
            effects.ran(f"number {of}")
            return len(of)

        @op()
        def plain(what: str) -> str:
            """Work in a thread."""
            effects.ran(f"plain {what}")
            return f"{what} in a thread"

        @op()
        async def view(what: str) -> Viewed[str]:
            effects.ran(f"view {what}")
            return Viewed(what, f"look: {what}")

        @op(risk="high")
        async def risky(what: str) -> str:
            effects.ran(f"risky {what}")
            return f"{what} dared"

        for made in (act, revert, boom, flaky, first, hang, number, plain, view, risky):
            object.__setattr__(self, made.name, made)


OPS: Final = frozenset((*(a.name for a in fields(Ops) if a.name != "effects"), "agents", AiSegment.kind))
"""How effects are called that the engine counts."""

Build: TypeAlias = Callable[[Ops], Story]
CORPUS: Final[dict[str, Build]] = {}
DOES: Final[dict[str, str]] = {}
"""What each story does outside when nothing goes wrong, in order: place by place, with the number of tries if several."""


def story(does: str) -> Callable[[Build], Build]:
    """Put a story into the corpus."""

    def keep(build: Build) -> Build:
        CORPUS[build.__name__], DOES[build.__name__] = build, does
        return build

    return keep


def speaking(ops: Ops, name: str) -> bb.Flow:
    """An agent that says what it heard last."""

    async def speak(turn: bb.Turn, _chat: bb.ModelChat[Any]) -> None:
        ops.effects.ran(name)
        await asyncio.sleep(0)
        turn.reply(f"{name} after {turn.last.content if turn.messages else 'nothing'}")

    return bb.Flow().with_agent(bb.Agent(name).on_message(speak))


def step(ops: Ops, name: str) -> Step:
    """A step of a saga, with what undoes it."""
    return Step(ops.act(name), undo=ops.revert(name))


def durable(*parts: bb.AnyFlow, retries: int = 0) -> bb.AnyFlow:
    """The parts in order, as the durable flow `r`."""
    flow = parts[0]
    for part in parts[1:]:
        flow = flow >> part
    return (flow >> Emit("the end")).with_id("r").durable(retries=retries)


# --- values and control ---------------------------------------------------------------------------------------------


@story("act inner, act inner done, act inner done done, number abc, number de, view said, plain aside")
def calls_in_values(ops: Ops) -> Story:
    """Calls as arguments, in records and in formulas; each has a place of its own."""
    nested = ops.act(ref(ops.act(ref(ops.act("inner")))))
    total = ref(ops.number("abc")) + ref(ops.number("de")) * 2
    return Story(
        durable(
            Bind("a", nested),
            Bind("total", total),
            Bind("both", {"x": ref("a"), "y": [ref("total"), 1]}),
            ops.view("said"),
            ops.plain("aside"),
            Emit("{a}, {total}, {both.x}"),
            Return([ref("a"), ref("total"), ref("both")]),
        )
    )


@story("number abc, act more, boom condition, act instead, number , act unless, number x, act plain condition, number ")
def branches(ops: Ops) -> Story:
    """Conditions that call: one true, one false, one failing, which counts as false."""
    return Story(
        durable(
            When(ref(ops.number("abc")) > 2, ops.act("more"), otherwise=ops.act("never")),
            When(ops.boom("condition"), ops.act("never"), otherwise=ops.act("instead")),
            Unless(ops.number(""), ops.act("unless")),
            When(ops.number("x"), ops.act("plain condition")),
            Assert(negate(ref(ops.number("")) > 0)),
        )
    )


@story("act a 1, act a 2, act b 1, act b 2, act again, flaky until")
def loops(ops: Ops) -> Story:
    """Nested loops with what they collect."""
    inner = Each("n", [1, 2], Bind("v", ops.act("{letter} {n}")), collect="row")
    return Story(
        durable(
            Each("letter", ["a", "b"], inner, collect="rows"),
            Each("letter", ["x", "y"], Bind("z", [ref("letter"), ref("letter")]), collect="all", flat=True),
            Repeat(5, Bind("k", ops.act("again")), until=ref(ops.flaky("until", times=0)), collect="ks"),
            Return([ref("rows"), ref("all"), ref("ks")]),
        )
    )


@story("act round 1, act round 2, act round 3")
def repeat_until_a_count(ops: Ops) -> Story:
    counted = (
        Bind("n", 0)
        >> Repeat(9, Bind("n", ref("n", int) + 1), ops.act("round {n}"), until=ref("n", int) >= 3)
        >> Return(ref("n"))
    )
    return Story(durable(counted))


@story("act in, act after")
def return_from_a_named_flow(ops: Ops) -> Story:
    inner = (ops.act("in") >> Return("home") >> ops.act("never")).with_id("inner")
    return Story(durable(inner, ops.act("after"), Return("done"), ops.act("never")))


@story("act me, act other")
def sub_flows(ops: Ops) -> Story:
    """A registered flow, run twice, with symbols of its own."""
    sub = (Bind("x", ops.act("{who}")) >> Return(ref("x"))).with_id("sub").with_params(who=str)

    def app(store: bb.Store) -> bb.App:
        made = bb.App(store=store, clock=Clock())
        made.register(sub)
        return made

    flow = Run("sub", bind="one") >> Bind("who", "other") >> Run("sub", bind="two") >> Return([ref("one"), ref("two")])
    return Story(flow.with_id("r").with_params(who=str).durable(), params={"who": "me"}, app=app)


@story("act before, number abc")
def a_failing_assert(ops: Ops) -> Story:
    return Story(
        durable(ops.act("before"), Assert(ref(ops.number("abc")) > 5, "too few"), ops.act("never")), fails=True
    )


@story("act a, revert a")
def a_denied_op_in_a_condition(ops: Ops) -> Story:
    """A denial is not false: the flow fails, and what it did is undone."""

    def app(store: bb.Store) -> bb.App:
        return bb.App(store=store, clock=Clock(), policy=Policy(deny=("number",)))

    saga = Saga(step(ops, "a"), Step(When(ops.number("x"), ops.act("never"), otherwise=ops.act("never"))))
    return Story(durable(saga, retries=1), fails=True, app=app)


@story("act in, revert outside")
def confined(ops: Ops) -> Story:
    """Inside, only some ops may run; the denial is caught by a `Try`."""
    inner = WithTools([ops.act], ops.act("in"), ops.revert("refused"))
    return Story(durable(Try(inner, catch="why", handler=Emit("caught")), ops.revert("outside")))


@story("act a, ask for risky x3, risky b, risky step, boom boom, risky undo")
def approved(ops: Ops) -> Story:
    """An approver is asked once per call, and its answer is kept."""

    class Asked:
        async def approve(self, request: Approval, /) -> Decision:
            ops.effects.ran(f"ask for {request.calls[0].op}")
            await asyncio.sleep(0)
            return Decision.allow()

    def app(store: bb.Store) -> bb.App:
        from bb.policy import ByRisk

        return bb.App(store=store, clock=Clock(), approver=ByRisk(consent=Asked()))

    saga = Saga(Step(ops.risky("step"), undo=ops.risky("undo")), Step(ops.boom()))
    return Story(durable(ops.act("a"), ops.risky("b"), Try(saga, handler=Emit("undone"))), app=app)


@story("model x3, act it, act between, model")
def model_stages(ops: Ops) -> Story:
    """A model works with ops; what it was told and what they gave is kept."""

    def call(name: str, what: str) -> bb.ToolCall:
        return bb.ToolCall(f"call-{what}", name, f'{{"what": "{what}"}}')

    stage = AiSegment("find out", [ops.number, ops.act], max_rounds=3)
    model = ScriptedModel(call("number", "abc"), [call("number", "de"), call("act", "it")], "found")
    again = AiSegment("{x.result}", [], max_rounds=1)
    return Story(
        durable(
            Bind("x", stage.with_model(model)),
            ops.act("between"),
            Memo("y", again.with_model(ScriptedModel("seen"))),
            Emit("{x.result} {y.result}"),
        )
    )


# --- beside others --------------------------------------------------------------------------------------------------


@story("act left, act right 1, act third, act left done, act right 2")
def beside(ops: Ops) -> Story:
    """Groups hold statements; what a named member came to is bound to its id."""
    left = (Bind("x", ops.act("left")) >> Bind("y", ops.act("{x}"))).with_id("left")
    right = Each("n", [1, 2], ops.act("right {n}"), collect="ns").with_id("right")
    return Story(durable(All(left, right, ops.act("third")), Return([ref("left"), ref("right")])))


@story("act a, act b, act c")
def beside_in_a_group(ops: Ops) -> Story:
    return Story(durable(bb.Group(ops.act("a") >> Emit("a"), ops.act("b") >> Emit("b")), ops.act("c")))


@story("hang slow, act fast, act after")
def raced(ops: Ops) -> Story:
    slow = ops.hang("slow") >> Emit("slow")
    return Story(durable(bb.One(slow, ops.act("fast") >> Emit("fast")), ops.act("after")))


@story("a, act x, number x, b, c, c, d")
def agents_and_statements(ops: Ops) -> Story:
    """Agents before, inside and after statements."""
    chosen = When(ref(ops.number("x")) == 1, speaking(ops, "b"), otherwise=speaking(ops, "never"))
    each = Each("n", [1, 2], Emit("item {n}"), speaking(ops, "c"))
    return Story(
        durable(speaking(ops, "a"), ops.act("x"), chosen, each, bb.Respond(), speaking(ops, "d"), bb.Respond())
    )


@story("act in 1, flaky in 2 x2, boom boom, revert inner, act after")
def durable_inside(ops: Ops) -> Story:
    """A durable flow in a step of a saga, which is undone all the same."""
    inner = (ops.act("in 1") >> ops.flaky("in 2", times=1)).with_id("inner").durable(retries=1)
    saga = Saga(Step(inner, undo=ops.revert("inner")), Step(ops.boom()))
    return Story(durable(Try(saga, handler=Emit("undone")), ops.act("after")))


# --- sagas, scopes and what catches ---------------------------------------------------------------------------------


@story("act a, act b, act c, act after")
def saga_that_succeeds(ops: Ops) -> Story:
    return Story(durable(Saga(step(ops, "a"), step(ops, "b"), Step(ops.act("c"))), ops.act("after")))


def failing_at(ops: Ops, at: int) -> Saga:
    """A saga of three steps, whose step number `at` fails."""
    names = ["a", "b", "c"]
    return Saga(
        *(
            Step(ops.act(name), ops.boom(name), undo=ops.revert(name)) if n == at else step(ops, name)
            for n, name in enumerate(names)
        )
    )


@story("act a, boom a")
def saga_failing_at_its_first_step(ops: Ops) -> Story:
    return Story(durable(failing_at(ops, 0)), fails=True)


@story("act a, act b, boom b, revert a")
def saga_failing_at_its_second_step(ops: Ops) -> Story:
    return Story(durable(failing_at(ops, 1)), fails=True)


@story("act a, act b, act c, boom c, revert b, revert a")
def saga_failing_at_its_last_step(ops: Ops) -> Story:
    return Story(durable(failing_at(ops, 2)), fails=True)


@story("act before, act a, act b, act c, boom c, revert b, revert a, act handled, act after")
def saga_in_a_try(ops: Ops) -> Story:
    caught = Try(failing_at(ops, 2), catch="why", handler=Emit("caught: {why}") >> ops.act("handled"))
    return Story(durable(ops.act("before"), caught, ops.act("after")))


@story("act a, act b, boom b x3, revert a")
def saga_failing_after_retries(ops: Ops) -> Story:
    """Between the retries of the durable flow nothing is undone."""
    return Story(durable(failing_at(ops, 1), retries=2), fails=True)


@story("act a, flaky b x2")
def saga_that_succeeds_at_last(ops: Ops) -> Story:
    return Story(durable(Saga(step(ops, "a"), Step(ops.flaky("b"), undo=ops.revert("b"))), retries=1))


@story("act a, act x, act y, boom boom, revert inner, revert a")
def saga_in_a_saga(ops: Ops) -> Story:
    """The inner one succeeds, and the outer one fails after it: the outer step says how to undo it."""
    inner = Saga(step(ops, "x"), step(ops, "y"))
    outer = Saga(step(ops, "a"), Step(inner, undo=ops.revert("inner")), Step(ops.boom()))
    return Story(durable(Try(outer, handler=Emit("undone"))))


@story("act a, act a, act b, boom b, revert a, revert a")
def saga_in_a_failing_step(ops: Ops) -> Story:
    """The inner one fails: it is undone first, and then the steps before it."""
    return Story(durable(Saga(step(ops, "a"), Step(failing_at(ops, 1), undo=ops.revert("never")))), fails=True)


@story("act charge, act b, act after")
def once_in_a_saga(ops: Ops) -> Story:
    saga = Saga(Step(Once("charge", Bind("c", ops.act("charge"))), undo=ops.revert("charge")), step(ops, "b"))
    return Story(durable(saga, Once("charge", Bind("c", ops.act("charge"))), ops.act("after")))


@story("act charge, boom boom, revert charge, act charge, boom boom, revert charge")
def once_in_a_saga_that_fails(ops: Ops) -> Story:
    """After the refund, another run charges again."""
    saga = Saga(Step(Once("charge", ops.act("charge")), undo=ops.revert("charge")), Step(ops.boom()))
    return Story(durable(Try(saga, handler=Emit("refunded"))), runs=2)


@story("act a, act b, boom boom, flaky undo b x2, revert a")
def undo_that_fails_at_first(ops: Ops) -> Story:
    saga = Saga(step(ops, "a"), Step(ops.act("b"), undo=ops.flaky("undo b", times=1)), Step(ops.boom()))
    return Story(durable(Try(saga, handler=Emit("undone")), retries=1))


@story("act a, act b, act c, boom boom, revert c, boom undo b, revert a")
def undo_that_fails(ops: Ops) -> Story:
    """The next undo begins all the same."""
    saga = Saga(step(ops, "a"), Step(ops.act("b"), undo=ops.boom("undo b")), step(ops, "c"), Step(ops.boom()))
    return Story(durable(saga), fails=True)


@story("act a, boom boom, revert a 1, revert a 2 1, revert a 2 2")
def undo_of_several_statements(ops: Ops) -> Story:
    undo = (ops.revert("a 1"), Each("n", [1, 2], ops.revert("a 2 {n}")), Emit("undone"))
    return Story(durable(Try(Saga(Step(ops.act("a"), undo=undo), Step(ops.boom())), handler=Emit("caught"))))


@story("act acquire, act acquire done, revert acquire done, act after")
def scope_that_ends_well(ops: Ops) -> Story:
    return Story(
        durable(
            Scope(ops.act("{h}"), acquire=ops.act("acquire"), bind="h", finally_=ops.revert("{h}")), ops.act("after")
        )
    )


@story("act acquire, act acquire done, boom boom, revert acquire done")
def scope_that_fails(ops: Ops) -> Story:
    inner = Scope(ops.act("{h}"), ops.boom(), acquire=ops.act("acquire"), bind="h", finally_=ops.revert("{h}"))
    return Story(durable(inner), fails=True)


@story("act body, revert body, act after")
def scope_that_returns(ops: Ops) -> Story:
    inner = Scope(ops.act("body"), Return("early"), ops.act("never"), finally_=ops.revert("body"))
    return Story(durable(inner.with_id("inner"), ops.act("after")))


@story("boom acquire")
def scope_whose_acquire_fails(ops: Ops) -> Story:
    """What was not acquired is not cleaned up."""
    inner = Scope(ops.act("never"), acquire=ops.boom("acquire"), bind="h", finally_=ops.revert("never"))
    return Story(durable(Try(inner, handler=Emit("no"))))


@story("act body, boom body, revert one, boom finally")
def scope_whose_finally_fails(ops: Ops) -> Story:
    """The body's failure is the one that is told."""
    inner = Scope(
        ops.act("body"), ops.boom("body"), finally_=(ops.revert("one"), ops.boom("finally"), ops.revert("never"))
    )
    return Story(durable(inner), fails=True)


@story("act a, act acquire, act body, boom boom, revert acquire done, revert a")
def scope_in_a_saga(ops: Ops) -> Story:
    inner = Scope(ops.act("body"), ops.boom(), acquire=ops.act("acquire"), bind="h", finally_=ops.revert("{h}"))
    return Story(durable(Try(Saga(step(ops, "a"), Step(inner, undo=ops.revert("never"))), handler=Emit("undone"))))


@story("act acquire, act a, act b, boom b, revert a, revert acquire done")
def saga_in_a_scope(ops: Ops) -> Story:
    inner = Scope(failing_at(ops, 1), acquire=ops.act("acquire"), bind="h", finally_=ops.revert("{h}"))
    return Story(durable(inner), fails=True)


@story("act out, act in, boom boom, revert in, revert out")
def scopes_in_scopes(ops: Ops) -> Story:
    inner = Scope(ops.act("in"), ops.boom(), finally_=ops.revert("in"))
    return Story(durable(Try(Scope(ops.act("out"), inner, finally_=ops.revert("out")), handler=Emit("both"))))


@story("act a, act x, act b, act y, boom b, revert a")
def sagas_beside_each_other(ops: Ops) -> Story:
    """One fails, the other has succeeded and stays."""
    other = Saga(step(ops, "x"), step(ops, "y"))
    return Story(durable(Try(All(failing_at(ops, 1), other), handler=Emit("caught"))))


@story("act a, first b, revert a, act a, first b, act end")
def retry_around_a_saga(ops: Ops) -> Story:
    """The first attempt is undone before the second begins."""
    saga = Saga(step(ops, "a"), Step(ops.first("b")))
    return Story(durable(Retry(3, saga, ops.act("end"), backoff="none", bind="x"), Return(ref("x"))))


@story("act acquire, first body, revert acquire done, act acquire, first body, revert acquire done")
def retry_around_a_scope(ops: Ops) -> Story:
    inner = Scope(ops.first("body"), acquire=ops.act("acquire"), bind="h", finally_=ops.revert("{h}"))
    return Story(durable(Retry(2, inner, backoff="linear")))


@story("boom boom, boom boom, boom boom, act after")
def retry_that_gives_up(ops: Ops) -> Story:
    return Story(durable(Try(Retry(3, ops.boom(), delay=SECOND), catch="why", handler=Emit("{why}")), ops.act("after")))


@story("act in time, act in time done")
def timeout_that_is_kept(ops: Ops) -> Story:
    flow = durable(Timeout(DAY, Bind("x", ops.act("in time")), ops.act("{x}"), bind="y"), Emit("{y}"))
    return Story(flow, app=lambda store: bb.App(store=store, clock=Clock()))


@story("act a, hang b, revert a, act after")
def timeout_that_passes(ops: Ops) -> Story:
    """What is open is unwound, and the failure is caught."""
    saga = Saga(step(ops, "a"), Step(ops.hang("b"), undo=ops.revert("never")))
    return Story(
        durable(Try(Timeout(SECOND * 9, saga), catch="why", handler=Emit("late")), ops.act("after")), app=patient
    )


def patient(store: bb.Store) -> bb.App:
    """An app whose clock lets the work that is under way come to its end before time passes."""
    return bb.App(store=store, clock=Slow())


class Slow(ManualClock):
    """A sleep takes a good many turns of the loop."""

    def __init__(self) -> None:
        super().__init__(datetime.now(UTC), auto=True)

    async def sleep(self, seconds: float) -> None:
        for _ in range(60 if seconds >= 5 else 1):
            await asyncio.sleep(0)
        await super().sleep(seconds)


# --- what is kept for the session -----------------------------------------------------------------------------------


@story("act a, act b")
def memo_twice(ops: Ops) -> Story:
    """Equal calls are made once, in this run and the next."""
    return Story(
        durable(Memo("x", ops.act("a")), Memo("y", ops.act("a")), Memo("z", ops.act("b")), Emit("{x} {y} {z}")), runs=2
    )


@story("act a, act b")
def memo_in_a_loop(ops: Ops) -> Story:
    return Story(durable(Each("n", ["a", "b", "a"], Memo("m", ops.act(ref("n"))), collect="ms"), Return(ref("ms"))))


@story("view a, act a, act a")
def memo_that_says_something(ops: Ops) -> Story:
    return Story(durable(Memo("x", ops.view("a")), ops.act("{x}")), runs=2)


@story("act charge, act charged charge done, act charged charge done")
def once_over_two_runs(ops: Ops) -> Story:
    body = (Bind("x", ops.act("charge")), Emit("charged {x}"))
    return Story(durable(Once("charge", *body, bind="receipt"), ops.act("{receipt}")), runs=2)


@story("act a, act b")
def once_per_item(ops: Ops) -> Story:
    return Story(durable(Each("n", ["a", "b", "a"], Once("mail", ops.act("{n}"), bind="m"), collect="ms")), runs=2)


@story("act charge")
def once_in_two_places(ops: Ops) -> Story:
    body = ops.act("charge")
    both = All(Once("charge", body), Once("charge", body))
    return Story(durable(both, Once("charge", body, bind="x"), Return(ref("x"))))


@story("act a, flaky b x2, act after")
def once_that_fails_at_first(ops: Ops) -> Story:
    """Its claim is given up, and the retry runs it."""
    return Story(durable(Once("charge", ops.act("a"), ops.flaky("b")), ops.act("after"), retries=1))


@story("act a, act after, act after")
def once_that_returns(ops: Ops) -> Story:
    inner = (Once("charge", ops.act("a"), Return("early")) >> ops.act("never")).with_id("inner")
    return Story(durable(inner, ops.act("after")), runs=2)


@story("act a, act b, act a done b done, act a done b done")
def checkpoints(ops: Ops) -> Story:
    """The second run begins after the last one, with what the first had bound and said."""
    flow = (
        Bind("a", ops.act("a"))
        >> Emit("first {a}")
        >> Checkpoint("one")
        >> Bind("b", ops.act("b"))
        >> Checkpoint("two")
        >> ops.act("{a} {b}")
        >> Emit("{a} {b}")
    )
    return Story(flow.with_id("r").durable(), runs=2)


@story("act x, act x done, act x done")
def symbols_of_the_session(ops: Ops) -> Story:
    """What the first run bound, the second reads."""
    flow = When(Peek("x"), Emit("seen {x}"), otherwise=Bind("x", ops.act("x"))) >> ops.act("{x}")
    return Story(flow.with_id("r").durable(), runs=2)


@story('act a, act 7, act 7 done {"k": [1]}')
def awaits(ops: Ops) -> Story:
    """Events between effects."""
    flow = (
        Bind("x", ops.act("a"))
        >> Emit("what is it?")
        >> Await("reply", bind="y", type="Number")
        >> Bind("z", ops.act("{y}"))
        >> Await("other", bind="w", when=ref("y", int) > 2)
        >> Await("never", when=ref("y", int) > 9)
        >> ops.act("{z} {w}")
        >> Return([ref("y"), ref("w")])
    )
    return Story(flow.with_id("r").durable(), events=(("reply", 7), ("other", {"k": [1]})))


@story("act 1, act 2")
def awaits_one_after_another(ops: Ops) -> Story:
    """Equal events are told apart: each is consumed once."""
    flow = Await("e", bind="a") >> ops.act("{a}") >> Await("e", bind="b") >> ops.act("{b}") >> Await("e", bind="c")
    return Story(flow.with_id("r").durable(), events=(("e", 1), ("e", 2), ("e", 3)))


@story("act a")
def awaits_for_ever(ops: Ops) -> Story:
    return Story(durable(ops.act("a"), Emit("and?"), Await("never", bind="x"), ops.act("never")))


@story("act a, act mail one, act a")
def awaits_in_two_runs(ops: Ops) -> Story:
    flow = (
        Bind("n", ops.act("a"))
        >> Await("e", bind="x")
        >> Once("mail", ops.act("mail {x}"), bind="m")
        >> Emit("{x} {m}")
    )
    return Story(flow.with_id("r").durable(), events=(("e", "one"), ("e", "two")), runs=2)


@story("act a, act b, act c, act a, act b, act c")
def throttled(ops: Ops) -> Story:
    """Room for all; what was dispatched counts."""
    return Story(
        durable(Throttle("t", ops.act("a"), ops.act("b"), max=50, per=timedelta(hours=1)), ops.act("c")), runs=2
    )


@story("act a, act b, act a, act b")
def debounced(ops: Ops) -> Story:
    return Story(durable(Debounce("d", ops.act("a"), wait=SECOND), ops.act("b")), runs=2)
