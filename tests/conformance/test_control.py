"""Control statements, rates and values: cases 52 to 56 and 58 of the language, and the nodes of section 3.13."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TypeAlias, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bb
from bb.engine.steps import control
from bb.errors import InvalidValue, OpFailed, Throttled, TimedOut, TooManyIterations, WiringError
from bb.flows.expressions import Expr, Operator, Value
from bb.flows.refs import negate, ref
from bb.flows.tree import (
    All,
    AnyFlow,
    Bind,
    Debounce,
    Each,
    Emit,
    Repeat,
    Retry,
    Return,
    Run,
    Throttle,
    Timeout,
    Try,
    Unless,
    When,
)
from bb.testing.clock import ManualClock
from tests.conformance.acts import Acts, durable, plain, reached
from tests.trials.kit import until

SECOND = timedelta(seconds=1)


@pytest.fixture(params=["durable", "plain"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def made(kind: str, *steps: AnyFlow) -> bb.NamedFlow | bb.DurableFlow:
    return durable(*steps) if kind == "durable" else plain(*steps)


# --- results ----------------------------------------------------------------------------------------------------------


async def test_case_54_an_empty_return_is_not_the_last_thing_said(kind: str, acts: Acts) -> None:
    """Regression 'stale return'."""
    for empty in (Return(), Return(""), Return(None)):
        outcome = await bb.run(made(kind, Emit("stale"), acts("a"), empty))
        assert outcome.answer == "" and outcome.value in (None, "")


async def test_a_run_that_ends_by_running_out_gives_what_was_said_last(kind: str, acts: Acts) -> None:
    outcome = await bb.run(made(kind, Emit("first"), Emit("last"), acts("a"), When(False, Emit("never"))))

    assert outcome.answer == "last"


async def test_a_return_leaves_the_nearest_named_flow(kind: str, acts: Acts) -> None:
    inner = (When(True, Each("i", [1, 2], acts("in"), Return("home"))) >> acts("never")).with_id("inner")

    outcome = await bb.run(made(kind, inner, acts("after"), Return("done")))

    assert acts.done == ["in", "after"] and outcome.value == "done"


# --- loops ------------------------------------------------------------------------------------------------------------


async def test_case_55_the_loop_gives_the_outer_symbol_back(kind: str, acts: Acts) -> None:
    """Regression F20: elsewhere the item of a loop stayed in the outer symbol."""
    flow = made(kind, Bind("i", "outer"), Each("i", [1, 2], acts("do {i}")), Return(ref("i")))

    assert (await bb.run(flow)).value == "outer" and acts.done == ["do 1", "do 2"]


async def test_case_55_on_every_exit(kind: str, acts: Acts) -> None:
    """Elsewhere an error or a return left the loop's value in place."""
    acts.breaks("do 1")
    failed = Try(Each("i", [1], acts("do {i}")), handler=Emit("caught"))
    returned = Each("i", [1], Return("home")).with_id("inner")
    flow = made(kind, Bind("i", "outer"), failed, Bind("a", ref("i")), returned, Return([ref("a"), ref("i")]))

    assert (await bb.run(flow)).value == ["outer", "outer"]


async def test_what_was_not_bound_before_the_loop_is_not_bound_after_it(kind: str) -> None:
    flow = made(kind, Each("i", [1], Emit("x")), Return(ref("i")))

    with pytest.raises(bb.BBError, match="'i'"):
        await bb.run(flow)


async def test_loops_collect_what_their_rounds_come_to(kind: str, acts: Acts) -> None:
    flow = made(
        kind,
        Each("i", [1, 2], Bind("x", [ref("i"), ref("i")]), collect="rows"),
        Each("i", [1, 2], Bind("x", [ref("i"), ref("i")]), collect="all", flat=True),
        Bind("n", 0),
        Repeat(9, Bind("n", ref("n", int) + 1), until=ref("n", int) >= 3, collect="ns"),
        Return([ref("rows"), ref("all"), ref("ns")]),
    )

    assert (await bb.run(flow)).value == [[[1, 1], [2, 2]], [1, 1, 2, 2], [1, 2, 3]]


async def test_each_needs_a_list(kind: str) -> None:
    for value in ("abc", {"a": 1}, 3, None):
        with pytest.raises(InvalidValue, match="not a list"):
            await bb.run(made(kind, Bind("x", value), Each("i", ref("x"), Emit("never"))))


async def test_all_loops_of_a_run_share_one_allowance(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression 'runaway loops': nested ones multiply."""
    monkeypatch.setattr(control, "MAX_ITERATIONS", 50)
    inner = Repeat(10, Bind("x", 1))
    await bb.run(made(kind, Repeat(4, inner)))

    with pytest.raises(TooManyIterations):
        await bb.run(made(kind, Try(Retry(9, Repeat(5, inner)), handler=Repeat(5, inner))))


# --- conditions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, False, 0, 0.0, "", "  ", "0", " FALSE ", [], {}], ids=repr)
async def test_what_counts_as_false(kind: str, acts: Acts, value: object) -> None:
    acts.values["q"] = value

    await bb.run(made(kind, When(acts("q"), acts("then"), otherwise=acts("else")), Unless(acts("q"), acts("unless"))))

    assert acts.done == ["q", "else", "q", "unless"]


async def test_a_call_that_fails_counts_as_false(kind: str, acts: Acts) -> None:
    acts.breaks("q")
    flow = made(kind, When(acts("q"), acts("never"), otherwise=acts("else")), Repeat(2, acts("r"), until=acts("q")))

    await bb.run(flow)

    assert acts.done == ["q", "else", "r", "q", "r", "q"]


async def test_inside_a_formula_it_is_a_failure(kind: str, acts: Acts) -> None:
    acts.breaks("q")

    with pytest.raises(OpFailed):
        await bb.run(made(kind, When(negate(ref(acts("q"))), acts("never"))))


async def test_a_call_that_cannot_be_made_is_no_false(kind: str, acts: Acts) -> None:
    """A symbol that nothing has bound is a mistake, not an answer."""
    flow = made(kind, When(False, Bind("x", 1)), When(acts(ref("x")), acts("never"), otherwise=acts("never")))

    with pytest.raises(bb.Fatal, match="'x'"):
        await bb.run(flow)

    assert acts.done == []


# --- try, retry, timeout ----------------------------------------------------------------------------------------------


async def test_try_binds_what_went_wrong(kind: str, acts: Acts) -> None:
    acts.breaks("a")

    outcome = await bb.run(made(kind, Try(acts("a"), acts("never"), catch="why", handler=Return(ref("why")))))

    assert outcome.value == "op act failed: ConnectionError: a is broken"


async def test_try_without_a_handler_goes_on(kind: str, acts: Acts) -> None:
    acts.breaks("a")

    await bb.run(made(kind, Try(acts("a")), acts("after")))

    assert acts.done == ["a", "after"]


@pytest.mark.parametrize(("backoff", "slept"), [("none", [2, 2, 2]), ("linear", [2, 4, 6]), ("exponential", [2, 4, 8])])
async def test_retry_waits_longer_and_longer(kind: str, acts: Acts, backoff: str, slept: list[float]) -> None:
    acts.fail("a", 3)
    clock = ManualClock(auto=True)
    retry = Retry(5, acts("a"), backoff=backoff, delay=2 * SECOND, bind="x")  # type: ignore[arg-type]  # one of them

    outcome = await bb.App(clock=clock).run(made(kind, retry, Return(ref("x"))))

    assert outcome.value == "a done" and acts.count("a") == 4 and clock.slept == slept


async def test_retry_gives_up_and_says_so(kind: str, acts: Acts) -> None:
    acts.breaks("a")

    with pytest.raises(OpFailed) as raised:
        await bb.App(clock=ManualClock(auto=True)).run(made(kind, Retry(3, acts("a")), acts("never")))

    assert acts.count("a") == 3 and raised.value.__notes__ == ["attempt 3 of 3 at f/body~retry.0"]


async def test_each_attempt_starts_with_the_symbols_of_before(kind: str, acts: Acts) -> None:
    acts.fail("bad", 1)
    body = (Bind("n", ref("n", int) + 1), acts("bad"), Bind("m", ref("n")))
    flow = made(kind, Bind("n", 0), Retry(3, *body, backoff="none", delay=timedelta(0)), Return(ref("m")))

    assert (await bb.run(flow)).value == 1


async def test_a_timeout_that_is_kept_binds_what_its_body_came_to(kind: str, acts: Acts) -> None:
    outcome = await bb.run(made(kind, Timeout(10 * SECOND, acts("a"), bind="x"), Return(ref("x"))))

    assert outcome.value == "a done"


async def test_a_timeout_that_passes_is_a_failure_like_others(kind: str, acts: Acts) -> None:
    acts.hold("a")
    late = Timeout(timedelta(milliseconds=30), acts("a"))

    outcome = await bb.run(made(kind, Try(late, catch="why", handler=Return(ref("why")))))

    assert "took longer than" in str(outcome.value)
    acts.hold("a")
    with pytest.raises(TimedOut):
        await bb.run(made(kind, late))


# --- throttle and debounce --------------------------------------------------------------------------------------------


async def test_case_56_throttle_counts_dispatches_within_its_window(kind: str, acts: Acts) -> None:
    """Regression 'throttle': elsewhere it counted how often its body was entered."""
    clock = ManualClock(auto=True)
    app = bb.App(clock=clock)
    flow = made(kind, Throttle("api", acts("a"), Bind("x", 1), acts("b"), acts("c"), max=2, per=60 * SECOND))

    with pytest.raises(Throttled) as raised:
        await app.run(flow, session_id="s")

    assert acts.done == ["a", "b"]  # the window is full before the third is made
    assert timedelta(0) < raised.value.after <= 60 * SECOND
    with pytest.raises(Throttled):
        await app.run(flow, session_id="s")
    assert acts.done == ["a", "b"]
    clock.advance(61)
    with pytest.raises(Throttled):
        await app.run(flow, session_id="s")
    await app.run(made(kind, Throttle("other", acts("d"), max=2, per=60 * SECOND)), session_id="s")
    await app.run(made(kind, Throttle("api", acts("e"), max=2, per=60 * SECOND)), session_id="t")
    assert acts.done == ["a", "b", "a", "b", "d", "e"]


async def test_case_56_what_dispatches_nothing_costs_nothing_and_a_statement_may_go_over(kind: str, acts: Acts) -> None:
    app = bb.App(clock=ManualClock(auto=True))
    loop = Each("i", [1, 2, 3], acts("{i}"))

    await app.run(made(kind, Throttle("api", Bind("x", 1), loop, Emit("x"), max=1, per=SECOND)), session_id="s")

    assert acts.done == ["1", "2", "3"]


async def test_a_throttled_condition_is_no_false(kind: str, acts: Acts) -> None:
    app = bb.App(clock=ManualClock(auto=True))
    flow = made(kind, Throttle("t", acts("a"), When(acts("q"), acts("never"), otherwise=Emit("no")), max=1, per=SECOND))

    with pytest.raises(Throttled):
        await app.run(flow, session_id="s")

    assert acts.done == ["a"]


async def test_what_a_replay_does_not_dispatch_does_not_count(acts: Acts) -> None:
    app = bb.App(clock=ManualClock(auto=True))
    flow = durable(Throttle("api", acts("a"), acts("b"), max=2, per=3600 * SECOND), acts("c"))
    acts.fail("c", 2)
    for _ in range(2):
        with pytest.raises(OpFailed):
            await app.run(flow, run_id="r", session_id="s")

    await app.run(flow, run_id="r")

    assert acts.done == ["a", "b", "c", "c", "c"]


async def test_of_many_runs_at_once_a_throttle_lets_through_as_many_as_there_is_room_for(kind: str, acts: Acts) -> None:
    app = bb.App(clock=ManualClock(auto=True))
    flow = made(kind, Throttle("api", acts("a"), max=3, per=60 * SECOND))

    ends = await asyncio.gather(*(app.run(flow, session_id="s") for _ in range(10)), return_exceptions=True)

    assert acts.done == ["a"] * 3
    assert sum(isinstance(end, Throttled) for end in ends) == 7


async def test_members_of_one_statement_share_the_look_at_a_throttle(kind: str, acts: Acts) -> None:
    app = bb.App(clock=ManualClock(auto=True))
    flow = made(kind, Throttle("api", bb.All(acts("a"), acts("b"), acts("c")), acts("d"), max=1, per=60 * SECOND))

    with pytest.raises(Throttled, match="made 3 of 1"):
        await app.run(flow, session_id="s")

    assert sorted(acts.done) == ["a", "b", "c"]


async def test_a_call_that_an_inner_throttle_refuses_does_not_count_in_the_outer(kind: str, acts: Acts) -> None:
    app = bb.App(clock=ManualClock(auto=True))
    inner = Throttle("inner", acts("a"), max=1, per=60 * SECOND)
    flow = made(kind, Throttle("outer", inner, max=2, per=60 * SECOND))
    await app.run(flow, session_id="s")
    for _ in range(3):
        with pytest.raises(Throttled, match="'inner'"):
            await app.run(flow, session_id="s")

    await app.run(made(kind, Throttle("outer", acts("b"), max=2, per=60 * SECOND)), session_id="s")

    assert acts.done == ["a", "b"]


async def test_case_56_debounce_lets_only_the_last_arrival_through(kind: str, acts: Acts) -> None:
    """Regression 'debounce': elsewhere it was only a pause."""
    clock = ManualClock()
    app = bb.App(clock=clock)
    flow = made(kind, Debounce("save", acts("save"), wait=10 * SECOND), acts("after"))
    tasks = []
    for count in range(3):
        tasks.append(asyncio.create_task(app.run(flow, session_id="s")))
        await until(lambda count=count: clock.sleepers > count)
        clock.advance(1)

    clock.advance(60)
    await asyncio.gather(*tasks)

    assert sorted(acts.done) == ["after"] * 3 + ["save"]


async def test_one_alone_passes_the_debounce(kind: str, acts: Acts) -> None:
    app = bb.App(clock=ManualClock(auto=True))
    flow = made(kind, Debounce("save", acts("save"), wait=10 * SECOND))

    for session in ("s", "s", "t"):
        await app.run(flow, session_id=session)

    assert acts.done == ["save"] * 3


# --- beside each other, and sub-flows ---------------------------------------------------------------------------------


async def test_members_bind_what_they_came_to(kind: str, acts: Acts) -> None:
    """Regression 'parallel'."""
    left = (Bind("a", acts("left")) >> Emit("said")).with_id("left")
    right = acts("right").with_id("right")

    outcome = await bb.run(made(kind, All(left, right), Return([ref("left"), ref("right"), ref("a")])))

    assert outcome.value == ["said", "right done", "left done"]


async def test_a_durable_retry_runs_only_the_member_that_failed(acts: Acts) -> None:
    """Regression 'parallel': a failing sibling dropped what finished ones had come to."""
    acts.fail("bad", 1)
    flow = durable(All(acts("good").with_id("g"), acts("bad").with_id("b")), Return([ref("g"), ref("b")]), retries=1)

    outcome = await bb.App(clock=ManualClock(auto=True)).run(flow)

    assert outcome.value == ["good done", "bad done"] and sorted(acts.done) == ["bad", "bad", "good"]


async def test_a_sub_flow_has_symbols_of_its_own(kind: str, acts: Acts) -> None:
    app = bb.App()
    app.register(plain(Bind("x", "{who} inside"), Return(ref("x")), id="sub").with_params(who=str))
    flow = made(kind, Bind("who", "me"), Bind("x", "outer"), Run("sub", bind="y"), Return([ref("x"), ref("y")]))

    assert (await app.run(flow)).value == ["outer", "me inside"]


# --- what is refused before anything runs -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flow", "code"),
    [
        (Emit(ref("nothing")), "unbound"),
        (Bind("no name", 1), "name"),
        (All(Bind("x", 1), Bind("x", 2)), "branch-binds"),
        (Repeat(0, Emit("x")), "repeat-max"),
        (Throttle(" ", Emit("x"), max=1, per=SECOND), "throttle-name"),
    ],
    ids=["unbound", "name", "two members", "repeat", "throttle"],
)
async def test_case_58_static_errors(flow: AnyFlow, code: str) -> None:
    problems = [problem for problem in bb.check(plain(flow)) if not problem.warning]

    assert [problem.code for problem in problems] == [code]
    with pytest.raises(WiringError, match=code):
        await bb.run(plain(flow))


async def test_nobody_runs_beside_a_hold(acts: Acts) -> None:
    """The kit itself: a run that never comes to a hold is told at once."""
    task = asyncio.create_task(bb.run(plain(acts("a"))))

    with pytest.raises(AssertionError, match="did not come to the hold"):
        await reached(acts.hold("b"), task)


# --- formulas ---------------------------------------------------------------------------------------------------------

Formula: TypeAlias = "str | tuple[str, Formula, Formula]"
"""A call of that name, or an operator over two formulas."""

FORMULAS: st.SearchStrategy[Formula] = st.recursive(
    st.sampled_from(["yes", "no", "one", "zero"]),
    lambda inner: st.tuples(st.sampled_from(["&&", "||", "=="]), inner, inner),
    max_leaves=8,
)
COMES_TO = {"yes": True, "no": False, "one": 1, "zero": 0}


def spelled(formula: Formula, acts: Acts) -> object:
    """The formula as a value of the tree."""
    if isinstance(formula, str):
        return acts(formula)
    op, left, right = formula
    return Expr(cast(Operator, op), (cast(Value, spelled(left, acts)), cast(Value, spelled(right, acts))))


def played(formula: Formula, made: list[str]) -> object:
    """What Python makes of the same, and the calls it makes for it."""
    if isinstance(formula, str):
        made.append(formula)
        return COMES_TO[formula]
    op, left, right = formula
    first = played(left, made)
    if op == "&&":
        return first and played(right, made)
    if op == "||":
        return first or played(right, made)
    second = played(right, made)
    return first == second and isinstance(first, bool) is isinstance(second, bool)  # here true does not equal 1


@given(formula=FORMULAS)
def test_only_the_calls_that_a_formula_needs_are_made(formula: Formula) -> None:
    acts = Acts()
    acts.values.update(COMES_TO)
    made: list[str] = []
    value = played(formula, made)
    app = bb.App()

    flow = durable(Return(spelled(formula, acts)))

    async def twice() -> list[object]:
        return [(await app.run(flow, run_id="r")).value for _ in range(2)]

    values = asyncio.run(twice())

    assert values == [value, value] and list(map(type, values)) == [type(value)] * 2
    assert acts.done == made  # once: what was made is replayed, and nothing else


async def test_a_call_keeps_its_place_when_one_before_it_is_not_needed(acts: Acts) -> None:
    """A place in a formula counts the calls written before it, not those that were made."""
    acts.values.update({"a": False, "c": True})
    recorder = bb.Recorder()
    flow = durable(When((ref(acts("a")) & ref(acts("b"))) | ref(acts("c")), Emit("yes")))

    outcome = await bb.App(trace=recorder).run(flow)

    assert outcome.answer == "yes" and acts.done == ["a", "c"]
    paths = [
        event.path.rpartition("/")[2] for event in recorder.events if event.kind == "flow.end" and "call" in event.path
    ]
    assert paths == ["cond~call.0", "cond~call.2"]


async def test_what_is_left_of_an_operator_is_known_before_the_call_right_of_it(acts: Acts) -> None:
    with pytest.raises(InvalidValue):
        await bb.run(plain(Bind("n", 0), Return((ref("n", int) / ref("n", int) > 1) & ref(acts("a")))))

    assert acts.done == []
