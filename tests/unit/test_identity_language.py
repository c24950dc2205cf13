"""Identity of statements and values: what counts, in words, and which savepoints outlive a change."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from types import MappingProxyType

import pytest

import bb
from bb.codec import Codec, Types
from bb.flows.expressions import Expr, Field, Format, Lit, Obj, Parse, Var
from bb.flows.refs import optional, ref
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
    Memo,
    Notify,
    Once,
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
from bb.identity import body_key, call_key, canonical, parts_of, tree, value_form
from bb.identity.match import match_paths
from bb.ops import catalogue, op

SECOND = timedelta(seconds=1)


@op()
async def charge(amount: int, to: str = "us") -> str:
    return f"{amount} {to}"


@op("charge", version="2")
async def charge2(amount: int, to: str | None = "us") -> str:
    return f"{amount} {to}"


@op()
async def ping() -> None:
    pass


PING = ping()
A = Flow().with_agent(bb.Agent("a"))


def same(one: AnyFlow, two: AnyFlow) -> bool:
    assert (bb.signature(one) == bb.signature(two)) == (bb.structural_diff(one, two) == ())
    return bb.signature(one) == bb.signature(two)


# --- what counts ---

PAIRS: list[tuple[AnyFlow, AnyFlow]] = [
    (charge(amount=1), charge(amount=2)),
    (charge(amount=1), charge(amount=1, to="us")),
    (Call("charge", ({"amount": 1},)), Call("charge", (Obj({"amount": 1}),))),
    (Call("a"), Call("b")),
    (charge(amount=1), charge2(amount=1)),
    (Emit(1), Emit(1.0)),
    (Emit(1), Emit(True)),
    (Emit(1), Emit("1")),
    (Emit([1]), Emit((1,))),
    (Emit(Var("x")), Emit("x")),
    (Emit(Var("x")), Emit(Peek("x"))),
    (Emit(Format("x")), Emit("x")),
    (Emit(Field(Var("x"), (1,))), Emit(Field(Var("x"), ("1",)))),
    (Emit(Field(Var("x"), ("a",))), Emit(Field(Var("x"), ("a",), optional=True))),
    (Emit(Parse(Var("x"), "f64")), Emit(Parse(Var("x"), "i64"))),
    (Emit(Expr("-", (1, 2))), Emit(Expr("-", (2, 1)))),
    (Emit([Var("x"), Var("y")]), Emit([Var("y"), Var("x")])),
    (Emit(1), Return(1)),
    (Bind("x", 1), Bind("y", 1)),
    (Bind("x", 1), Bind("x", 1, type=int)),
    (Bind("x", 1), Bind("x", 1, effect="pure")),
    (Memo("x", PING), Memo("x", Call("pong"))),
    (Memo("x", PING), Bind("x", PING)),
    (When(Var("x"), PING), Unless(Var("x"), PING)),
    (When(Var("x"), PING, A), When(Var("x"), PING, otherwise=A)),
    (When(Var("x"), PING), When(Var("y"), PING)),
    (Each("i", [1], PING), Each("j", [1], PING)),
    (Each("i", [1], PING), Each("i", [2], PING)),
    (Each("i", [1], PING, collect="c"), Each("i", [1], PING, collect="c", flat=True)),
    (Repeat(1, PING), Repeat(2, PING)),
    (Repeat(1, PING), Repeat(1, PING, until=Var("x"))),
    (Try(PING, A), Try(PING, handler=A)),
    (Try(PING, handler=A), Try(PING, catch="e", handler=A)),
    (Retry(2, PING), Retry(2, PING, backoff="linear")),
    (Retry(2, PING), Retry(2, PING, delay=SECOND)),
    (Timeout(SECOND, PING), Timeout(2 * SECOND, PING)),
    (Timeout(SECOND, PING), Timeout(SECOND, PING, bind="x")),
    (WithTools(["a", "b"], PING), WithTools(["a"], PING)),
    (Throttle("t", PING, max=1, per=SECOND), Throttle("t", PING, max=2, per=SECOND)),
    (Throttle("t", PING, max=1, per=SECOND), Throttle("t", PING, max=1, per=2 * SECOND)),
    (Debounce("t", PING, wait=SECOND), Debounce("u", PING, wait=SECOND)),
    (Run("a"), Run("b")),
    (Run("a"), Run("a", bind="x")),
    (Await("a"), Await("b")),
    (Await("a"), Await("a", type=int)),
    (Await("a"), Await("a", when=Peek("x"))),
    (Checkpoint("a"), Checkpoint("b")),
    (Once("a", PING), Once("b", PING)),
    (Once("a", PING), Once("a", PING, bind="x")),
    (Once("a", PING), Once("a", PING, PING)),
    (Scope(PING, finally_=A), Scope(PING, A)),
    (Scope(PING, acquire=PING), Scope(PING, acquire=PING, bind="h")),
    (Scope(PING, acquire=PING), Scope(PING)),
    (At(Var("x"), PING), At(Var("y"), PING)),
    (At(Var("x"), PING), At(Peek("x"), PING)),
    (At("{x}", PING), At(Format("{x}"), PING)),
    (At("2026-03-01T08:00Z", PING), At(Format("2026-03-01T08:00Z"), PING)),
    (At("2026-03-01T08:00Z", PING), At("2026-03-01T09:00Z", PING)),
    (Saga(Step(PING, A)), Saga(Step(PING, undo=A))),
    (Saga(Step(PING), Step(A)), Saga(Step(PING, A))),
    (Saga(Step(PING)), Saga(Step(PING), Step())),
    (Assert(Var("x")), Assert(Var("x"), "why")),
    (AiSegment("a"), AiSegment("b")),
    (AiSegment("a"), AiSegment("a", ["ping"])),
    (AiSegment("a"), AiSegment("a", max_rounds=1)),
    (AiSegment("a"), AiSegment("a", until="x")),
]  # fmt: skip


@pytest.mark.parametrize(("one", "two"), PAIRS, ids=[f"{one} {two}" for one, two in PAIRS])
def test_what_counts(one: AnyFlow, two: AnyFlow) -> None:
    assert one != two or one == charge(amount=1)  # a version is no part of equality
    assert not same(one, two)
    assert len(bb.structural_diff(one, two)) > 1, "a change of signature without a sentence that tells it"


def test_what_does_not_count() -> None:
    model = bb.FixedModel("m")
    assert same(Once("a", PING), Once("a", PING).with_model(model))
    assert same(AiSegment("a"), AiSegment("a").with_model(model))
    assert same(charge(amount=1), Call("charge", (Obj({"amount": 1}),)))  # made by the op, or read from a text
    assert same(charge(amount=1, to="x"), charge(to="x", amount=1))
    assert same(PING.with_id("f"), PING.with_id("f").with_params(x=int))
    assert same(PING.with_id("f").with_params(x=int).durable(retries=2), PING.with_id("f"))
    assert same(Each("i", [1], PING >> A), Each("i", [1], PING, A))


def whole() -> AnyFlow:
    """Every kind of statement and value."""
    send: list[AnyFlow] = [
        Await("form", bind="n", type=int, when=Expr("!", (Peek("n"),))),
        Checkpoint("asked"),
        Memo("page", charge2(amount=ref("n", int), to=optional(ref("who").name[0])), type=str),
        When(Expr(">", (Var("n"), 3)), Emit(Format("{n}")), otherwise=Return({"a": [Var("n"), Decimal("1.50")]})),
        Unless(PING, Assert(Var("n"), "why")),
        Each("i", [1, 2.0, "\ud800"], Once("pay", charge(amount=ref("i", int)), bind="paid"), collect="all", flat=True),
        Repeat(3, PING, until=Peek("done"), collect="each"),
        Try(Retry(2, PING, backoff="linear", bind="r"), catch="e", handler=Timeout(SECOND, PING, bind="t")),
        WithTools(["ping"], Throttle("t", Debounce("d", PING, wait=SECOND), max=2, per=SECOND), bind="w"),
        Scope(PING, acquire=charge(amount=1), bind="h", finally_=PING),
        Saga(Step(PING, undo=PING), Step(Run("other", bind="o"))),
        Bind("s", AiSegment(Format("find {n}"), ["ping"], max_rounds=2, until="slot"), effect="model"),
        Bind("p", Parse(Peek("page"), "json")),
    ]
    return bb.NamedFlow(bb.Chain(tuple(send)), "whole")


GOLDEN = "bf6e6a5bc10da19949c9edc53281dd8615f261527d46b6dccf15f3eafdef67e9"


def test_the_signature_of_every_kind_stays_what_it_was() -> None:
    """Stored runs hold signatures: changing how they are made starts every run of every user afresh."""
    assert bb.signature(whole()) == GOLDEN


def test_a_canonical_form_is_plain_data_that_outlives_a_store() -> None:
    from bb.codec import dumps, loads

    form = tree(whole())
    assert loads(dumps(form)) == form
    assert len({path for path, _ in parts_of(form)}) == len(list(parts_of(form)))


def test_the_version_of_an_op_that_is_only_named_comes_from_the_catalogue() -> None:
    read = Call("charge", (Obj({"amount": 1}),))
    known = catalogue(ops=[charge2])
    assert bb.signature(read) == bb.signature(charge(amount=1))
    assert bb.signature(read, catalogue=known) == bb.signature(charge2(amount=1))
    assert bb.signature(charge(amount=1), catalogue=known) == bb.signature(charge(amount=1))  # it carries its own
    assert bb.signature(Bind("x", read), catalogue=known) != bb.signature(Bind("x", read))
    assert bb.signature(AiSegment("find", [charge2])) == bb.signature(AiSegment("find", ["charge"]), catalogue=known)
    segment = AiSegment("find", ["charge"])
    assert bb.signature(segment, catalogue=known) != bb.signature(segment)
    assert value_form(read, known) == value_form(charge2(amount=1))


def test_what_a_run_runs_counts_where_it_is_known() -> None:
    def flow(*steps: AnyFlow, id: str) -> bb.NamedFlow:
        return bb.NamedFlow(bb.Chain(steps), id)

    main = flow(Run("a"), Run("a"), id="main")
    flows: dict[str, AnyFlow] = {"a": flow(PING, Run("b"), id="a"), "b": flow(PING, A, id="b"), "main": main}
    before = bb.signature(main, flows)
    assert before != bb.signature(main)
    assert before == bb.signature(main, {**flows, "b": flow(PING, A, id="b").durable(retries=1)})
    assert before != bb.signature(main, {**flows, "b": flow(A, PING, id="b")})
    assert bb.signature(main, {}) == bb.signature(main)
    with pytest.raises(bb.WiringError, match="main -> a -> b -> main"):
        bb.signature(main, {**flows, "b": flow(PING, Run("main"), id="b")})
    with pytest.raises(bb.WiringError, match="a -> a"):
        body_key(Run("a"), {"a": flow(PING, Run("a"), id="a")})


# --- keys ---


def test_a_body_is_its_statements() -> None:
    assert body_key(PING) == body_key((PING,)) == body_key([PING])
    assert body_key(PING >> A) == body_key((PING, A))
    assert body_key(PING) != body_key((PING, PING))
    assert body_key((PING, A)) != body_key((A, PING))
    assert body_key(Bind("x", 1)) != body_key(Bind("y", 1))
    assert body_key(PING) != body_key(PING.with_id("p"))
    assert body_key(Call("charge"), catalogue=catalogue(ops=[charge2])) != body_key(Call("charge"))
    assert body_key(Once("a", PING, A).body) == body_key(Once("b", PING, A, bind="x").body)
    assert len(body_key(())) == 64
    flows: dict[str, AnyFlow] = {"r": PING.with_id("r")}
    assert body_key(Run("r"), flows) != body_key(Run("r"), {"r": A.with_id("r")})


def test_a_call_is_its_op_and_the_values_of_its_arguments() -> None:
    codec = Codec(Types())

    def key(op: str, version: str | None, arguments: object) -> str:
        return call_key(op, version, arguments, codec)

    base = key("charge", None, {"amount": 1, "to": "x"})
    assert len(base) == 32
    assert base == key("charge", None, {"to": "x", "amount": 1})
    assert base == key("charge", None, MappingProxyType({"amount": 1, "to": "x"}))
    others = [
        key("refund", None, {"amount": 1, "to": "x"}),
        key("charge", "2", {"amount": 1, "to": "x"}),
        key("charge", None, {"amount": 1.0, "to": "x"}),
        key("charge", None, {"amount": 1}),
        key("charge", None, 1),
        key("charge", None, [1]),
    ]
    assert len({base, *others}) == 7
    with pytest.raises(bb.NotSavable):
        key("charge", None, {"amount": object()})


# --- in words ---


def named(*steps: AnyFlow, id: str = "f") -> bb.NamedFlow:
    return bb.NamedFlow(bb.Chain(steps), id)


def said(old: AnyFlow, new: AnyFlow) -> tuple[str, ...]:
    return bb.structural_diff(old, new)[:-1]


def valid(old: AnyFlow, new: AnyFlow) -> str:
    return bb.structural_diff(old, new)[-1].partition(": ")[2]


def test_statements_are_called_by_what_they_name() -> None:
    steps = (
        charge(amount=1),
        charge2(amount=1),
        Bind("x", 1),
        Once("pay", PING),
        Await("form"),
        Run("r"),
        When(Peek("x"), PING),
        At("2026-03-01T08:00Z"),
        At(Var("x")),
    )
    assert said(named(PING), named(PING, *steps)) == (
        "added f/body~call.1 (call charge)",
        "added f/body~call.2 (call charge version 2)",
        "added f/body~bind.3 (bind x)",
        "added f/body~once.4 (once pay)",
        "added f/body~once.4/body~call.0 (call ping)",
        "added f/body~await.5 (await form)",
        "added f/body~run.6 (run r)",
        "added f/body~when.7 (when)",
        "added f/body~when.7/then~call.0 (call ping)",
        "added f/body~at.8 (at 2026-03-01T08:00:00Z)",
        "added f/body~at.9 (at)",
    )


def test_a_statement_that_changed_is_told_by_its_fields() -> None:
    assert said(charge(amount=1), charge(amount=2)) == ("changed flow~call.0 (call charge): args",)
    assert said(charge(amount=1), Call("refund")) == ("replaced flow~call.0: call charge became call refund",)
    assert said(charge(amount=1), charge2(amount=1)) == (
        "replaced flow~call.0: call charge became call charge version 2",
    )
    assert said(Repeat(1, PING), Repeat(2, PING, until=Peek("x"))) == ("changed flow~repeat.0 (repeat): max, until",)
    assert said(Saga(Step(PING)), Saga(Step(PING), Step())) == ("changed flow~saga.0 (saga): how many bodies",)
    assert said(When(Peek("x"), PING, A), When(Peek("x"), PING, otherwise=A)) == (
        "removed flow~when.0/then~agents.1 (agents a)",
        "added flow~when.0/otherwise~agents.0 (agents a)",
    )


def test_a_change_inside_is_a_change_of_that_part_only() -> None:
    for wrap in (
        lambda inner: Once("a", inner),
        lambda inner: Saga(Step(inner, undo=PING)),
        lambda inner: Scope(PING, acquire=PING, finally_=inner),
    ):
        old, new = named(PING, wrap(charge(amount=1)), A), named(PING, wrap(charge(amount=2)), A)
        (sentence,) = said(old, new)
        assert sentence.endswith("(call charge): args")
        assert "f/body~call.0" in valid(old, new)
        assert "f/body~agents.2" in valid(old, new)


def test_only_what_leaves_a_savepoint_is_said_to_stay_valid() -> None:
    steps = (
        Emit("x"),
        Respond(),
        Bind("x", 1),
        Bind("y", charge(amount=1)),
        Peek("x"),
        Notify(name="n"),
        Memo("m", PING),
    )
    assert valid(named(*steps), named(*steps, PING)) == "f/body~bind.3, f/body~memo.6, f/body~notify.5"


# --- which savepoints outlive a change ---


def kept(old: AnyFlow, new: AnyFlow, *remembered: str) -> dict[str, str]:
    match = match_paths(tree(old), tree(new), set(remembered))
    assert set(match.lost) == set(remembered) - set(match.kept.values())
    return dict(match.kept)


def test_rounds_attempts_and_values_belong_to_their_statement() -> None:
    loop = Each("i", [1, 2], charge(amount=ref("i", int)), When(PING, A), collect="all")
    paths = (
        "f/body~each.0",
        "f/body~each.0/items~call.0",
        "f/body~each.0/body~call.0#2",
        "f/body~each.0#1/body~call.0",
        "f/body~each.0#1/body~when.1/cond~call.0",
        "f/body~each.0/body~when.1#2@1/then~agents.0",
    )
    assert kept(named(loop), named(loop, PING), *paths) == {path: path for path in paths}
    # another body: what is elsewhere stays, what goes round does too where it is the same itself
    edited = Each("i", [1, 2], charge(amount=ref("i", int)), When(PING, A, PING), collect="all")
    assert set(kept(named(loop), named(edited), *paths)) == {paths[2], paths[3], paths[5]}
    # a place that neither tree has
    assert kept(named(loop), named(loop, PING), "g/body~call.0", "f/other~call.0") == {}


def test_a_value_stays_valid_as_long_as_its_statement_does() -> None:
    old = named(Scope(PING, acquire=charge(amount=1), bind="h"), Bind("x", charge(amount=1)))
    paths = ("f/body~scope.0/acquire~call.0", "f/body~bind.1/value~call.0", "f/body~bind.1/value~call.0/arg~call.1")
    assert set(kept(old, named(*old.body.steps, A), *paths)) == set(paths)  # type: ignore[union-attr]
    new = named(Scope(PING, acquire=charge(amount=2), bind="h"), Bind("x", charge(amount=1)))
    assert set(kept(old, new, *paths)) == set(paths[1:])


def test_a_named_agent_flow_is_found_by_its_ids_in_every_round() -> None:
    x = A.with_id("x")
    old, new = named(Each("i", [1], x, PING)), named(PING, Each("i", [1, 2], PING, x))
    assert kept(old, new, "f/body~each.0#3/x", "f/body~each.0/x@2", "f/body~each.0#1/body~call.1") == {
        "f/body~each.1#3/x": "f/body~each.0#3/x",
        "f/body~each.1/x@2": "f/body~each.0/x@2",
    }
    assert kept(old, named(x), "f/body~each.0/x") == {"f/x": "f/body~each.0/x"}
    assert kept(old, named(x), "f/body~each.0#3/x") == {}  # there are no rounds any more
    assert kept(old, named(Repeat(2, x)), "f/body~each.0#3/x") == {}  # and these are others
    assert kept(old, named(All(x), Each("i", [1], x)), "f/body~each.0/x") == {}  # which one?


def test_a_run_stays_valid_as_long_as_what_it_runs_does() -> None:
    old = named(Run("r"))
    flows: dict[str, AnyFlow] = {"r": named(PING, id="r")}
    paths = {"f/body~run.0/r/body~call.0"}
    same = match_paths(tree(old, flows=flows), tree(named(Run("r"), A), flows=flows), paths)
    assert set(same.kept) == paths
    other: dict[str, AnyFlow] = {"r": named(PING, PING, id="r")}
    assert match_paths(tree(old, flows=flows), tree(old, flows=other), paths).kept == {}


def test_a_select_and_an_agent_keep_the_form_they_always_had() -> None:
    assert canonical(tree(Select(A.with_id("x")))) == (
        '{"in":[{"id":"x","kind":"agents","of":[["a",null,[]]]}],"kind":"select"}'
    )
    assert canonical(tree(Emit(Lit("é")))) == '{"kind":"emit","of":{"value":["lit","\\"\\u00e9\\""]}}'
