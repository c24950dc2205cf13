"""The rules of the language: each with a flow that breaks it, and its neighbours that do not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

import bb
from bb.check import agents, agents_of, names, operations, placement, refuse, runs, shapes, triggers
from bb.flows.expressions import Expr, Field, Format, List_, Lit, Obj, Parse, Value, Var
from bb.flows.refs import ref
from bb.flows.tree import (
    AiSegment,
    All,
    AnyFlow,
    Assert,
    At,
    Await,
    Bind,
    Call,
    Checkpoint,
    Debounce,
    Each,
    Emit,
    Flow,
    Group,
    Memo,
    Notify,
    Once,
    One,
    Param,
    Peek,
    Repeat,
    Respond,
    Retry,
    Return,
    Run,
    Saga,
    Scope,
    Select,
    Step,
    Throttle,
    Timeout,
    Try,
    Unless,
    When,
    WithTools,
)
from bb.ops import catalogue, op

SECOND = timedelta(seconds=1)
ZERO = timedelta(0)
ASK = Await("form", bind="x")


@op(effects=["money"])
async def charge(amount: int, to: str = "us") -> str:
    return f"{amount} {to}"


@op()
async def ping() -> None:
    pass


@op()
async def pair(one: int, two: int) -> int:
    return one + two


@op()
async def other() -> None:
    pass


async def post(text: str) -> None:
    pass


KNOWN = catalogue(ops=[charge, ping, pair], senders=[post])
PING = ping()
MODEL = bb.FixedModel("m")


def named(*steps: AnyFlow, id: str = "f") -> bb.NamedFlow:
    flow, *rest = steps
    for step in rest:
        flow = flow >> step
    return bb.NamedFlow(flow, id)  # type: ignore[arg-type]  # no test names a named flow


def codes(flow: AnyFlow, **given: object) -> list[tuple[str, str]]:
    return [(problem.code, problem.path) for problem in bb.check(flow, **given)]  # type: ignore[arg-type]


def durable(*steps: AnyFlow) -> bb.DurableFlow:
    return named(*steps).durable()


BROKEN: list[tuple[str, AnyFlow, str]] = [
    # where things may stand
    ("await-nested", durable(When(Lit(True), ASK)), "f/then~await.0"),
    ("await-nested", durable(PING, named(ASK, id="g")), "f/g"),
    ("await-nested", durable(PING, named(PING, ASK, id="g")), "f/g/body~await.1"),
    ("await-nested", durable(All(ASK)), "f/branch~await.0"),
    ("await-nested", named(named(PING, ASK, id="g").durable(), PING), "f/g/body~await.1"),
    ("await-not-durable", named(PING, ASK), "f/body~await.1"),
    ("await-not-durable", ASK, "flow~await.0"),
    ("await-cond-impure", durable(Await("form", when=PING)), "f.when"),
    ("await-cond-impure", durable(PING, Await("form", when=Expr("!", (PING,)))), "f/body~await.1.when"),
    ("checkpoint-nested", durable(Once("a", Checkpoint("b"))), "f/body~checkpoint.0"),
    ("cleanup-racy", One(Saga(Step(PING))), "flow~one.0/branch~saga.0"),
    ("cleanup-racy", One(named(When(Lit(1), Scope(PING, finally_=PING)), id="g")), "flow~one.0/g/then~scope.0"),
    ("cap-parallel", All(WithTools(["ping"], PING)), "flow~all.0/branch~with_tools.0"),
    ("cap-parallel", Group(named(WithTools(["ping"], PING), id="g")), "flow~group.0/g"),
    ("return-parallel", All(When(Lit(1), Return(1))), "flow~all.0/branch~when.0/then~return.0"),
    ("return-parallel", named(One(Return(1))), "f/branch~return.0"),
    ("return-in-cleanup", Scope(PING, finally_=Return(1)), "flow~scope.0/finally~return.0"),
    ("return-in-cleanup", Saga(Step(PING, undo=When(Lit(1), Return(1)))), "flow~saga.0/undo0~when.0/then~return.0"),
    ("respond-in-once", durable(Once("a", PING, named(Respond(), id="g"))), "f/g"),
    ("respond-aside", All(PING >> Respond()), "flow~all.0/branch~chain.0/body~respond.1"),
    ("inner-option", durable(PING, named(PING, id="g").durable(ttl=SECOND)), "f/g"),
    ("not-durable", Once("a", PING), "flow~once.0"),
    ("not-durable", named(Checkpoint("a"), PING), "f/body~checkpoint.0"),
    ("unreachable", Return(1) >> PING, "flow~chain.0/body~call.1"),
    ("unreachable", When(Lit(1), Return(1), PING), "flow~when.0/then~call.1"),
    # one statement by itself
    ("await-source", durable(Await(" ")), "f"),
    ("checkpoint-label", durable(PING, Checkpoint("")), "f/body~checkpoint.1"),
    ("once-label", durable(Once(" ", PING)), "f"),
    ("scope-bind", Scope(PING, bind="h"), "flow~scope.0"),
    ("saga-empty", Saga(), "flow~saga.0"),
    ("empty-body", Each("x", [1]), "flow~each.0"),
    ("empty-body", Repeat(1), "flow~repeat.0"),
    ("empty-body", When(Lit(1), otherwise=PING), "flow~when.0"),
    ("empty-body", Scope(acquire=PING, finally_=PING), "flow~scope.0"),
    ("empty-body", Saga(Step(undo=PING)), "flow~saga.0"),
    ("empty-body", All(), "flow~all.0"),
    ("empty-body", PING >> One(), "flow~chain.0/body~one.1"),
    ("empty-body", Group(), "flow~group.0"),
    ("empty-body", named(Select()), "f"),
    ("each-items", Each("x", 7, PING), "flow~each.0"),
    ("each-items", Each("x", {"a": 1}, PING), "flow~each.0"),
    ("each-items", Each("x", "{names}", PING), "flow~each.0"),
    ("each-items", Each("x", Obj({"a": Lit(1)}), PING), "flow~each.0"),
    ("each-items", Each("x", Parse(Lit("1"), "i64"), PING), "flow~each.0"),
    ("each-items", Each("x", Expr("==", (Lit([1]), Lit([1]))), PING), "flow~each.0"),
    ("each-items", Each("x", Expr("+", (Lit([1]), Lit(2))), PING), "flow~each.0"),
    ("each-items", Each("x", Expr("||", (Lit(0), Lit("a"))), PING), "flow~each.0"),
    ("each-items", Each("x", AiSegment("name some").with_model(MODEL), PING), "flow~each.0"),
    ("repeat-max", Repeat(0, PING), "flow~repeat.0"),
    ("repeat-max", Repeat(100_001, PING), "flow~repeat.0"),
    ("repeat-max", Repeat(True, PING), "flow~repeat.0"),
    ("retry-max", Retry(0, PING), "flow~retry.0"),
    ("retry-delay", Retry(1, PING, delay=-SECOND), "flow~retry.0"),
    ("timeout-after", Timeout(ZERO, PING), "flow~timeout.0"),
    ("throttle-name", Throttle("", PING, max=1, per=SECOND), "flow~throttle.0"),
    ("throttle-max", Throttle("t", PING, max=0, per=SECOND), "flow~throttle.0"),
    ("throttle-per", Throttle("t", PING, max=1, per=ZERO), "flow~throttle.0"),
    ("debounce-name", Debounce("", PING, wait=SECOND), "flow~debounce.0"),
    ("debounce-wait", Debounce("d", PING, wait=ZERO), "flow~debounce.0"),
    ("label-braces", durable(Once("pay {name}", PING)), "f"),
    ("label-braces", durable(PING, Checkpoint("{{ n }}")), "f/body~checkpoint.1"),
    ("once-dup", durable(Once("a", PING), When(Lit(1), Once("a", PING))), "f/body~when.1/then~once.0"),
    # triggers
    ("starts-nothing", named(PING, At("2026-03-01T08:00Z")), "f"),
    ("at-when", At(Format("tomorrow"), PING), "flow~at.0"),
    ("at-when", At("{day}T08:00Z", PING), "flow~at.0"),
    ("at-when", At(Format("{{day}}T08:00Z"), PING), "flow~at.0"),
    ("at-when", Bind("now", "x") >> At(ref("now") + 10, PING), "flow~chain.0/body~at.1"),
    ("at-when", Bind("now", "x") >> At(Expr("+", (Lit(" "), Expr("-", (Var("now"), 1)))), PING), "flow~chain.0/body~at.1"),
    ("at-when", At(Expr("||", (Lit("now"), Lit(0))), PING), "flow~at.0"),
    ("at-when", At(Expr("&&", (Obj({}), Parse("1", "i64"))), PING), "flow~at.0"),
    ("at-when", At(Expr("+", (Expr("||", (1, 2)), "Z")), PING), "flow~at.0"),
    ("at-when", At(List_([Lit(1)]), PING), "flow~at.0"),
    ("at-when", named(At(Parse("1", "f64"), PING), PING), "f/body~at.0"),
    ("unbound", At(Var("x"), PING), "flow~at.0.when"),
    ("unbound", named(PING, At(Field(Var("x"), ("due",))), PING), "f/body~at.1.when.value"),
    ("op-unknown", At(Call("nobody"), PING), "flow~at.0.when"),
    ("leaf-kind", At(Field(Obj({"a": PING}), ("a",)), PING), "flow~at.0.when.value.a"),
    ("at-when", At(AiSegment("find out when").with_model(MODEL), PING), "flow~at.0"),
    ("no-model", At(Field(AiSegment("find out when"), "result"), PING), "flow~at.0.when.value"),
    # names
    ("name", Bind("two words", 1), "flow~bind.0"),
    ("name", Bind("when", 1), "flow~bind.0"),
    ("name", Each("1", [1], PING), "flow~each.0"),
    ("name", Each("x", [1], PING, collect="-"), "flow~each.0"),
    ("name", Try(PING, catch="a.b", handler=PING), "flow~try.0"),
    ("name", durable(PING).body >> named(PING).with_params(**{"a-b": int}), "flow~chain.0/f"),
    ("param-dup", bb.NamedFlow(PING, "f", (Param("a"), Param("a"))), "f"),
    ("unbound", Emit(Var("x")), "flow~emit.0.value"),
    ("unbound", When(Expr(">", (Var("x"), 1)), PING), "flow~when.0.cond.args.0"),
    ("unbound", Bind("y", charge(amount=ref("x", int))), "flow~bind.0.value.args.amount"),
    ("unbound", Return([Field(Var("x"), "a")]), "flow~return.0.value.0.value"),
    ("unbound", Emit({"a": Parse(Var("x"), "f64")}), "flow~emit.0.value.a.value"),
    ("branch-binds", All(Bind("x", 1), Bind("x", 2)), "flow~all.0"),
    ("branch-binds", Group(Bind("x", 1), named(When(Lit(1), Memo("x", PING)), id="g")), "flow~group.0"),
    ("branch-binds", All(Bind("x", 1), named(PING, id="x")), "flow~all.0"),
    ("effect", Bind("x", 1, effect="harmless"), "flow~bind.0"),
    ("type-clash", Bind("x", "1", type=int), "flow~bind.0"),
    ("type-clash", Bind("x", 1, type=bool), "flow~bind.0"),
    ("type-clash", Bind("x", True, type=int), "flow~bind.0"),
    ("type-clash", Bind("x", 1, type=list[int]), "flow~bind.0"),
    ("type-clash", Bind("x", (1, "a"), type=tuple[int, ...]), "flow~bind.0"),
    ("type-clash", Bind("x", [1], type=str), "flow~bind.0"),
    ("type-clash", Bind("x", [[1], ["a"]], type="List<List<Number>>"), "flow~bind.0"),
    ("type-clash", Bind("x", [Peek("y"), "a"], type=list[int]), "flow~bind.0"),
    # operations
    ("op-name", Call("a-b"), "flow~call.0"),
    ("op-name", Call("when.x"), "flow~call.0"),
    ("op-name", WithTools(["a b"], PING), "flow~with_tools.0"),
    ("op-unknown", Emit(Call("nobody")), "flow~emit.0.value"),
    ("tools-unknown", WithTools(["nobody"], PING), "flow~with_tools.0"),
    ("arg-count", Call("pair", (1, 2)), "flow~call.0"),
    ("arg-count", Call("pair", (1,)), "flow~call.0"),
    ("arg-count", Call("ping", (Lit("x"),)), "flow~call.0"),
    ("arg-missing", Call("charge"), "flow~call.0"),
    ("arg-missing", Call("pair", (Obj({"one": 1}),)), "flow~call.0"),
    ("arg-missing", Call("pair", ({"one": 1},)), "flow~call.0"),
    ("arg-unknown", Call("charge", (Obj({"amount": 1, "tip": 2}),)), "flow~call.0"),
    ("leaf-kind", Emit([PING]), "flow~emit.0.value.0"),
    ("leaf-kind", Emit({"a": Expr("!", (PING,))}), "flow~emit.0.value.a.args.0"),
    ("leaf-kind", Call("charge", (Obj({"amount": 1, "to": [ref(PING)]}),)), "flow~call.0.args.to.0"),
    ("cond-kind", When(Format("x"), PING), "flow~when.0.cond"),
    ("cond-kind", Unless(Obj({"a": 1}), PING), "flow~unless.0.cond"),
    ("cond-kind", Assert(List_([1])), "flow~assert.0.cond"),
    ("cond-kind", Repeat(1, PING, until=AiSegment("find").with_model(MODEL)), "flow~repeat.0.until"),
    ("segment-goal", AiSegment(" ").with_model(MODEL), "flow~ai_segment.0"),
    ("segment-goal", Bind("x", AiSegment(3).with_model(MODEL)), "flow~bind.0.value"),
    ("segment-tools", AiSegment("find", ["nobody"]).with_model(MODEL), "flow~ai_segment.0"),
    ("segment-tools", AiSegment("find", ["ai_segment"]).with_model(MODEL), "flow~ai_segment.0"),
    ("segment-tools", AiSegment("find", ["finalize"]).with_model(MODEL), "flow~ai_segment.0"),
    ("segment-rounds", Memo("x", AiSegment("find", max_rounds=0).with_model(MODEL)), "flow~memo.0.call"),
    ("segment-until", AiSegment("find", until="a-b").with_model(MODEL), "flow~ai_segment.0"),
    ("no-model", Bind("x", AiSegment("find")), "flow~bind.0.value"),
    # who speaks
    ("no-model", Each("x", [1], Flow().with_agent(bb.Agent("a"))), "flow~each.0/body~agents.0"),
    ("unknown-exit", Once("a", Flow().with_agent(bb.Agent("a").selects("z")).with_model(MODEL), Select(PING.with_id("x"))),
     "flow~once.0/body~agents.0"),
    ("sender-unknown", Notify(name="nobody"), "flow~notify.0"),
    # sub-flows
    ("run-unknown", Run("nobody"), "flow~run.0"),
    ("run-cycle", named(PING, When(Lit(1), Run("f"))), "f/body~when.1/then~run.0"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "flow", "path"), BROKEN, ids=[f"{code} {path}" for code, _, path in BROKEN])
def test_a_broken_rule_is_told_with_its_place_and_a_remedy(code: str, flow: AnyFlow, path: str) -> None:
    problems = bb.check(flow, catalogue=KNOWN, flows={})
    assert (code, path) in [(problem.code, problem.path) for problem in problems]
    assert [problem.code for problem in problems if problem.code not in {code, "not-durable"}] == []
    (first, *_) = [problem for problem in problems if problem.code == code]
    assert ";" in first.message or ":" in first.message, "a message says what to do"


def test_every_rule_has_a_case() -> None:
    tables = (agents.SITES, names.SITES, names.SPOTS, operations.SITES, operations.SPOTS, placement.SITES, shapes.SITES)
    known = {rule.code for table in (*tables, runs.SITES, triggers.SITES) for rule in table}
    assert known == {code for code, _, _ in BROKEN}


def test_only_what_may_be_meant_is_a_warning() -> None:
    problems = [problem for _, flow, _ in BROKEN for problem in bb.check(flow, catalogue=KNOWN, flows={})]
    assert {problem.code for problem in problems if problem.warning} == {
        "inner-option", "label-braces", "not-durable", "once-dup", "respond-aside", "starts-nothing", "tools-unknown",
        "unreachable",
    }  # fmt: skip


SOUND: list[AnyFlow] = [
    durable(ASK, PING, Await("form", when=Expr("==", (Peek("x"), 1))), Checkpoint("a"), Return(Var("x"))),
    durable(Await("form")),
    durable(Once("a", PING), Once("a", pair(one=1, two=2)), Once("b", PING)),  # one label, two bodies; one body, two labels
    durable(Each("x", [1, 2], Once("a", charge(amount=ref("x", int))))),
    durable(Memo("m", charge(amount=ref("n", int))), Bind("n", 1)),
    durable(Try(PING, catch="e", handler=Emit(Var("e")))),
    Bind("y", Var("x")) >> Bind("x", 1),  # the order is no matter of the check
    Emit(Format("hello {nobody} {{nobody}}")) >> Emit("{nobody}") >> Unless(Peek("nobody"), PING),
    charge(amount=ref(pair(one=1, two=2)), to=ref(Peek("x"))),
    Emit([Peek("x"), {"a": Peek("y")}]),
    charge(ref("x", int)) >> Bind("x", pair(one=1, two=2)),
    Call("charge", ({"amount": 1},)),
    When(Expr("&&", (PING, Peek("x"))), PING, otherwise=Return(1)),
    When(Field(Peek("x"), "a"), PING) >> When(PING, PING) >> Assert(Lit("yes"), "why"),
    All(Bind("x", 1), Bind("y", 2), named(PING, id="z")) >> Emit([Var("x"), Var("y"), Var("z")]),
    All(Each("i", [1], PING), Each("i", [2], PING)),  # a loop gives its symbol back
    All(named(PING, Return(1), id="a"), named(When(Lit(1), Return(2)), id="b")),
    Each("i", Expr("+", (List_([1]), Peek("more"))), PING) >> Each("i", Expr("||", (Peek("some"), Lit([]))), PING),
    Each("i", Parse(Lit("[1]"), "json"), PING) >> Each("i", (1, 2), PING),
    One(Scope(PING, acquire=PING, bind="h"), PING),
    Timeout(SECOND, Saga(Step(PING, undo=PING)), Scope(PING, finally_=PING)),
    Scope(PING, finally_=named(PING, Return(1), id="g")),
    WithTools(["ping", "charge"], All(PING, charge(amount=1))),
    Repeat(100_000, PING, until=PING, collect="all") >> Emit(Var("all")),
    Bind("a", 1, type="Any") >> Bind("b", [1], type=list[int]) >> Bind("c", 1, type="User") >> Bind("d", None, type=int),
    Bind("a", PING, type=int, effect="pure") >> Bind("b", {"a": 1}, type=str) >> Bind("c", 2.5, type=float),
    Bind("a", (1, "a"), type=tuple[int, str]) >> Bind("b", {"a": 1}, type=dict[str, int]) >> Bind("c", 1, type=int | str),
    AiSegment("find {x}", ["ping", other], until="slot").with_model(MODEL) >> Emit(Var("slot")),
    bb.NamedFlow(Bind("x", AiSegment("find")), "f").with_model(MODEL),
    Notify(name="post") >> Notify(post, name="mine"),
    named(Emit(Var("a")), id="g").with_params(a=int) >> named(PING, id="h").with_params(b="User"),
    named(Return(1), id="g") >> PING,  # it leaves the named flow only
    Emit(Call("ping")) >> Call("pair", (Obj({"two": 1, "one": 2}),)),
    Bind("day", "x") >> At("{day.date}T08:00Z", At(Format("{{day}}"), At(Peek("due"), At(charge(1), PING)))),
    named(PING, At(ref("due", datetime), Emit("{due}"))).with_params(due=datetime),
    At(Expr("||", (Peek("due"), Lit("2026-03-01T08:00Z"))), PING) >> At(Format("2026-03-01T08:00Z"), PING),
    At(Parse(Peek("due"), "json"), At(Expr("+", (Peek("day"), Lit("T08:00Z"))), PING)),
    At(Field(AiSegment("find out when").with_model(MODEL), "result"), PING),
]  # fmt: skip


@pytest.mark.parametrize("flow", SOUND)
def test_a_sound_flow_has_no_problems(flow: AnyFlow) -> None:
    assert bb.check(flow, catalogue=KNOWN, flows={}) == ()


def test_what_nobody_told_is_not_looked_up() -> None:
    flow = Call("nobody", (1,)) >> Run("nobody") >> Notify(name="nobody") >> WithTools(["nobody"], PING)
    assert bb.check(flow) == ()
    # but an op that a call carries is known, with any catalogue and with none
    for given in (None, catalogue(), KNOWN):
        assert codes(Call("other", (), bound=charge), catalogue=given) == [("arg-missing", "flow~call.0")]
    assert codes(Call("ping"), catalogue=catalogue()) == [("op-unknown", "flow~call.0")]


def test_symbols_of_the_session_are_bound() -> None:
    flow = Emit(Var("x"))
    assert codes(flow) == [("unbound", "flow~emit.0.value")]
    assert bb.check(flow, symbols=["x"]) == ()


def test_a_name_stands_for_an_agent_of_the_catalogue() -> None:
    async def answer(turn: bb.Turn, chat: bb.ModelChat) -> None:
        pass

    flow = named(Flow().with_agent(bb.Agent("a")))
    whole = bb.Agent("a").on_message(answer)
    assert codes(flow) == [("no-model", "f")]
    assert bb.check(flow, catalogue=catalogue(agents=[whole])) == ()
    assert codes(flow, catalogue=catalogue(agents=[bb.Agent("a", "2").on_message(answer)])) == [("no-model", "f")]
    # the name and what it stands for are one agent
    assert bb.check(flow, catalogue=catalogue(agents=[whole]), beside=[Flow().with_agent(whole)]) == ()
    assert codes(flow.with_model(MODEL), beside=[Flow().with_agent(whole)]) == [("agent-name", "f")]


def test_every_agent_is_found_wherever_it_stands() -> None:
    def speaks(name: str) -> Flow:
        return Flow().with_agent(bb.Agent(name))

    flow = named(
        When(Lit(1), speaks("a"), otherwise=speaks("b")),
        Try(speaks("c"), handler=speaks("d")),
        Saga(Step(speaks("e"), undo=speaks("f")), Step(All(speaks("g")))),
        Scope(Once("x", speaks("h")), finally_=speaks("i")),
    )
    assert "".join(str(agent.name) for agent in agents_of(flow)) == "abcdefghi"


# --- flows that are run by others ---


def test_a_flow_that_is_run_is_placed_where_its_run_stands() -> None:
    asks, undoes = durable(ASK), named(Saga(Step(PING)), id="u")
    flows: dict[str, AnyFlow] = {"f": asks, "u": undoes, "v": named(PING, Run("u"), id="v")}
    assert codes(named(Run("f"), id="r"), flows=flows) == [("await-nested", "r/f")]
    assert codes(named(Run("u"), Run("v"), id="r"), flows=flows) == []
    assert codes(One(Run("v")), flows=flows) == [
        ("cleanup-racy", "flow~one.0/branch~run.0/v/body~run.1/u"),
    ]
    assert codes(durable(Once("a", Run("s"))), flows={"s": named(PING, Respond(), id="s")}) == [
        ("respond-in-once", "f/body~run.0/s/body~respond.1")
    ]


def test_circles_of_runs_are_told_once_for_each_run_that_enters_one() -> None:
    flows: dict[str, AnyFlow] = {
        "a": named(Each("x", [1], Run("b")), id="a"),
        "b": named(Run("c"), Run("c"), id="b"),
        "c": named(Run("a"), id="c"),
    }
    (problem,) = bb.check(flows["a"], flows=flows)
    assert (problem.code, problem.path) == ("run-cycle", "a/body~run.0")
    assert "b -> c -> a -> b" in problem.message
    assert codes(named(Run("a"), id="d"), flows=flows) == [("run-cycle", "d")]
    flows["c"] = named(PING, id="c")
    assert bb.check(flows["a"], flows=flows) == ()
    assert codes(named(Run("f"))) == [("run-cycle", "f")]  # its own name is known always


def test_a_flow_is_checked_by_its_own_new_form() -> None:
    old: dict[str, AnyFlow] = {"f": named(Run("f"))}
    assert bb.check(named(PING), flows=old) == ()


# --- depth and size ---


def deep(levels: int, wrap: Callable[[AnyFlow], AnyFlow]) -> AnyFlow:
    flow: AnyFlow = PING
    for _ in range(levels - 1):
        flow = wrap(flow)
    return flow


@pytest.mark.parametrize(
    "wrap",
    [lambda flow: When(Lit(1), flow), lambda flow: Saga(Step(PING, undo=flow)), lambda flow: All(flow, flow)],
    ids=["when", "undo", "shared"],
)
def test_statements_nest_to_a_limit_and_no_flow_is_too_deep_to_be_told_so(wrap: Callable[[AnyFlow], AnyFlow]) -> None:
    (problem,) = bb.check(deep(129, wrap))
    assert (problem.code, problem.warning) == ("too-deep", False)
    (problem,) = bb.check(deep(5000, wrap))
    with pytest.raises(bb.WiringError, match="too-deep"):
        refuse(PING, (problem,))
    # in a row, nothing is deep
    assert bb.check(deep(128, lambda flow: When(Lit(1), flow))) == ()


def test_values_nest_to_the_same_limit() -> None:
    value: Value = Peek("x")
    for _ in range(126):
        value = Expr("!", (value,))
    assert bb.check(Bind("y", value)) == ()  # the statement is one level, the Peek another
    assert codes(named(PING, Bind("y", value))) == [("too-deep", "f")]
    for _ in range(5000):
        value = List_((value,))
    assert codes(Call("charge", (value,))) == [("too-deep", "flow~call.0")]


def test_the_data_of_a_literal_counts() -> None:
    data: list[object] = []
    for _ in range(125):
        data = [data]
    assert bb.check(Emit(data)) == ()
    assert codes(Emit([data])) == [("too-deep", "flow~emit.0")]


def test_the_time_is_linear_in_the_number_of_statements() -> None:
    flow = bb.Chain(tuple(Bind(f"x{i}", [i, Peek("y")]) for i in range(5000)))
    assert bb.check(flow) == ()  # quadratic, it would take minutes
