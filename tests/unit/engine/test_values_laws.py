"""Laws of pure expressions, over generated ones."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bb.engine.values.evaluation import calls_in, coerce, evaluate, is_true, parse
from bb.errors import BBError, InvalidValue, Unbound
from bb.flows.calls import Call
from bb.flows.durability import Peek
from bb.flows.expressions import (
    OPERATORS,
    PARSE_AS,
    UNARY,
    Expr,
    Field,
    Format,
    List_,
    Lit,
    Obj,
    Parse,
    Valued,
    Var,
)
from bb.plain import text_of
from tests.unit.codec_values import VALUES, same

NAMES = st.sampled_from(["a", "b", "c", "d"])
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.decimals()
    | st.text(max_size=8)
    | st.sampled_from(["{a}", "{{b}}", r"\{c}", "{a.x}", "{b[0]}", "0", "false", '{"x": 1}', "1e5", "x=1&y"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["x", "y", "{a}"]), inner, max_size=3)
        | st.lists(inner, max_size=2).map(tuple)
    ),
    max_leaves=6,
)
HELD = PLAIN | st.sampled_from(VALUES)
SYMBOLS = st.dictionaries(NAMES, HELD)
PATHS = st.lists(st.sampled_from(["x", "y", "real", "name", "__class__", "append", 0, -1, 7]), min_size=1, max_size=2)


def _operated(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    two = [op for op in OPERATORS if op not in UNARY]
    return st.builds(lambda op, a, b: Expr(op, (a, b)), st.sampled_from(two), inner, inner) | st.builds(
        lambda op, a: Expr(op, (a,)), st.sampled_from(UNARY), inner
    )


EXPRESSIONS: st.SearchStrategy[Any] = st.recursive(
    st.builds(Lit, PLAIN)
    | st.builds(Var, NAMES)
    | st.builds(Peek, NAMES)
    | st.builds(Format, st.text("ab{}[]0.\\x", max_size=12))
    | st.builds(Call, NAMES),
    lambda inner: (
        _operated(inner)
        | st.builds(Field, inner, PATHS, optional=st.booleans())
        | st.builds(Parse, inner, st.sampled_from(PARSE_AS))
        | st.builds(Obj, st.dictionaries(NAMES, inner, max_size=3))
        | st.builds(List_, st.lists(inner, max_size=3))
    ),
    max_leaves=10,
)


@given(EXPRESSIONS, SYMBOLS, HELD)
def test_an_expression_comes_to_a_value_or_is_refused(value: Any, symbols: dict[str, object], result: object) -> None:
    before = copy.deepcopy(symbols)
    with contextlib.suppress(InvalidValue, Unbound):
        evaluate(value, symbols, [result] * len(calls_in(value)))
    assert same(symbols, before)


@given(EXPRESSIONS, SYMBOLS, HELD)
def test_the_same_expression_comes_to_the_same(value: Any, symbols: dict[str, object], result: object) -> None:
    results = [result] * len(calls_in(value))
    ends: list[object] = []
    for _ in range(2):
        try:
            ends.append(evaluate(value, symbols, results))
        except BBError as error:
            ends.append(str(error))
    assert same(ends[0], ends[1])


def _mutable(value: object, found: dict[int, object]) -> dict[int, object]:
    if isinstance(value, list | dict):
        found[id(value)] = value
        for part in value.values() if isinstance(value, dict) else value:
            _mutable(part, found)
    elif isinstance(value, tuple):
        for part in value:
            _mutable(part, found)
    return found


def _literals(value: Any) -> list[object]:
    """What all literals of a value hold."""
    match value:
        case Lit(value=literal):
            return [literal]
        case Field(value=inner) | Parse(value=inner):
            return _literals(inner)
        case Expr(args=parts) | List_(items=parts):
            return [literal for part in parts for literal in _literals(part)]
        case Obj(fields=fields):
            return [literal for part in fields.values() for literal in _literals(part)]
        case _:
            assert isinstance(value, Valued)
            return []


@given(EXPRESSIONS, SYMBOLS)
def test_nothing_mutable_is_shared_with_a_literal(value: Any, symbols: dict[str, object]) -> None:
    try:
        made = evaluate(value, symbols, [None] * len(calls_in(value)))
    except BBError:
        return
    assert not _mutable(made, {}).keys() & _mutable(_literals(value), {}).keys()


@given(HELD, st.sampled_from(PARSE_AS), st.sampled_from(["Number", "Bool", "String", "Any", "List<Number>", None]))
def test_readings_never_fail_otherwise(value: object, to: Any, type_: str | None) -> None:
    assert type(text_of(value)) is str
    assert type(is_true(value)) is bool
    made = coerce(value, type_)
    assert made is value or isinstance(value, str)
    with contextlib.suppress(InvalidValue):
        parse(value, to)


@given(PLAIN, PLAIN)
def test_equality_is_symmetric_and_inequality_its_opposite(left: object, right: object) -> None:
    def said(op: Any, a: object, b: object) -> object:
        try:
            return evaluate(Expr(op, (Var("a"), Var("b"))), {"a": a, "b": b})
        except InvalidValue:  # a decimal that signals nan
            return None

    assert said("==", left, right) == said("==", right, left)
    if said("==", left, right) is not None:
        assert said("!=", left, right) is not said("==", left, right)
