"""Pure expressions: what they come to, and how they refuse."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import attrs
import pytest

from bb.engine.values.evaluation import calls_in, coerce, evaluate, is_true, parse
from bb.errors import InvalidValue, NotSavable, Unbound
from bb.flows.calls import AiSegment, Call
from bb.flows.durability import Peek
from bb.flows.expressions import Expr, Field, Format, List_, Lit, Obj, Parse, Var, as_value
from bb.flows.refs import negate, optional, ref


@attrs.frozen
class Address:
    zip: str
    _secret: str = "hidden"

    def letters(self) -> str:
        return self.zip

    @property
    def broken(self) -> str:
        raise OSError("no disk")


@attrs.frozen
class User:
    name: str
    address: Address | None = None
    tags: list[str] = attrs.field(factory=list)


USER = User("Ada", Address("1010"), ["a", "b"])


def come(value: Any, /, *results: object, **symbols: object) -> Any:
    return evaluate(as_value(value), symbols, results)


# --- symbols ---


def test_a_symbol_is_what_it_holds() -> None:
    held = [1]
    assert come(ref("x"), x=held) is held
    assert come(ref("x"), x=None) is None


def test_an_unbound_symbol_is_refused_and_a_peek_is_none() -> None:
    with pytest.raises(Unbound, match="nothing is bound to 'x'"):
        come(ref("x"))
    assert come(Peek("x")) is None
    assert come(Peek("x"), x=2) == 2


# --- literals and templates ---


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("hello {name}", "hello Ada"),
        ("hello {{name}}", "hello Ada"),
        ("{{{name}}}", "{Ada}"),
        ("{name}{name}", "AdaAda"),
        ("{nobody} and {{nobody}}", "{nobody} and {{nobody}}"),
        (r"\{name}", "{name}"),
        (r"\{{name}}", "{Ada}"),
        ("{ name }", "{ name }"),
        ('{"name": "{name}"}', '{"name": "Ada"}'),
        ("{user.name} {user.address.zip} {user.tags[1]}", "Ada 1010 b"),
        ("{{user.tags}}", '["a", "b"]'),
        ("{user.mail} {user.tags[7]} {name.x.y}", "{user.mail} {user.tags[7]} {name.x.y}"),
        ("{user.address._secret}{user.address.letters}", "{user.address._secret}{user.address.letters}"),
        ("{none}|{yes}|{one}", "|true|1"),
        ("{twice}", "{name}"),
        ("{}", "{}"),
        ("{", "{"),
        ("no holes", "no holes"),
        ("", ""),
    ],
)
def test_templates(template: str, text: str) -> None:
    symbols: Mapping[str, object] = {
        "name": "Ada",
        "user": USER,
        "none": None,
        "yes": True,
        "one": 1.0,
        "twice": "{name}",  # what was filled in is no template
    }
    assert evaluate(Format(template), symbols) == text
    assert evaluate(Lit(template), symbols) == text


def test_texts_deep_inside_literals_are_filled() -> None:
    literal = {"to": ["{name}", ("{name}",)], "n": 1, "{name}": {"x": "{nobody}"}}
    assert come(literal, name="Ada") == {"to": ["Ada", ("Ada",)], "n": 1, "{name}": {"x": "{nobody}"}}


def test_a_literal_is_a_copy_every_time() -> None:
    literal = Lit({"xs": [1, {2}], "user": User("Ada", None, ["t"])})
    first: Any = evaluate(literal, {})
    first["xs"][1].add(3)
    first["user"].tags.append("u")
    first["xs"].append(4)
    assert evaluate(literal, {}) == {"xs": [1, {2}], "user": User("Ada", None, ["t"])}


def test_a_literal_that_holds_itself_or_nests_too_deep_is_refused() -> None:
    looped: list[object] = []
    looped.append(looped)
    deep: object = None
    for _ in range(5000):
        deep = [deep]
    for value in (looped, deep, {"x": looped}):
        with pytest.raises(NotSavable):
            as_value(value)


def test_a_text_does_not_grow_without_end() -> None:
    with pytest.raises(InvalidValue, match="more than 16,777,216 characters"):
        evaluate(Format("{x}" * 20), {"x": "y" * 2**20})


# --- parts ---


def test_parts_of_objects_mappings_and_sequences() -> None:
    user = ref("user")
    assert come(user.address.zip, user=USER) == "1010"
    assert come(user.tags[1], user=USER) == "b"
    assert come(user.tags[-1], user=USER) == "b"
    assert come(user["items"][0], user={"items": (7,)}) == 7
    assert come(user[3], user={3: "three"}) == "three"
    assert come(user.year, user=dt.date(2024, 1, 1)) == 2024
    assert come(user[0], user="text") == "t"


def test_a_text_that_looks_like_json_stays_a_text() -> None:
    with pytest.raises(InvalidValue, match="x has no 'a'"):
        come(ref("x").a, x='{"a": 1}')


@pytest.mark.parametrize("part", ["mail", "letters", "_secret", "__class__", 0])
def test_what_is_no_part_is_refused_by_name(part: str | int) -> None:
    field = Field(Field(Var("user"), ("address",)), (part,))
    with pytest.raises(InvalidValue) as refused:
        evaluate(field, {"user": USER})
    assert f"user.address has no {part!r}: it is an Address" in refused.value.message
    assert evaluate(attrs.evolve(field, optional=True), {"user": USER}) is None


@pytest.mark.parametrize(
    ("held", "path"),
    [
        (None, ("a",)),
        ([1], (1,)),
        ([1], (10**30,)),
        ([1], ("0",)),
        ({"a": 1}, ("b",)),
        ({"a": 1}, ("keys",)),
        (5, (0,)),
        ({"a": None}, ("a", "b")),
    ],
)
def test_missing_parts(held: object, path: tuple[str | int, ...]) -> None:
    with pytest.raises(InvalidValue):
        evaluate(Field(Var("x"), path), {"x": held})
    assert evaluate(Field(Var("x"), path, optional=True), {"x": held}) is None


def test_a_part_that_raises_is_refused_even_if_it_is_optional() -> None:
    with pytest.raises(InvalidValue, match="'broken' of an Address cannot be read: OSError"):
        come(optional(ref("user").address.broken), user=USER)


def test_optional_does_not_excuse_an_unbound_symbol() -> None:
    with pytest.raises(Unbound):
        come(optional(ref("user").name))


# --- truth ---


@pytest.mark.parametrize(
    "value",
    [
        None,
        False,
        0,
        0.0,
        -0.0,
        Decimal(0),
        "",
        "  \n",
        "0",
        " 0 ",
        "false",
        "FALSE",
        " False\t",
        [],
        {},
        (),
        set(),
        b"",
    ],
)
def test_what_is_false(value: object) -> None:
    assert is_true(value) is False


@pytest.mark.parametrize(
    "value", [True, 1, -1, 0.1, math.nan, "no", "00", "0.0", "null", "[]", [0], {"": 0}, (None,), dt.timedelta(0), USER]
)
def test_what_is_true(value: object) -> None:
    assert is_true(value) is True


# --- operators ---


@pytest.mark.parametrize(
    ("op", "left", "right", "result"),
    [
        ("+", 1, 2, 3),
        ("+", 1, 2.5, 3.5),
        ("-", 5, 7, -2),
        ("*", 3, 4, 12),
        ("/", 6, 4, 1.5),
        ("/", 4, 2, 2.0),
        ("+", Decimal("0.1"), Decimal("0.2"), Decimal("0.3")),
        ("*", Decimal("10.00"), 0.1, Decimal("1.000")),
        ("-", 1.5, Decimal("0.5"), Decimal("1.0")),
        ("+", "a", "b", "ab"),
        ("+", [1], [2], [1, 2]),
        ("+", (1,), (2,), (1, 2)),
        ("<", 1, 1.5, True),
        (">=", Decimal(2), 2, True),
        ("<", Decimal("0.1"), 0.1, False),
        ("<", "a", "b", True),
        (">", [2], [1, 5], True),
        ("<=", dt.date(2024, 1, 1), dt.date(2024, 1, 2), True),
        ("==", 1, 1.0, True),
        ("==", True, 1, False),
        ("==", [True], [1], False),
        ("==", {"a": 0}, {"a": False}, False),
        ("==", {"a": [1]}, {"a": [1.0]}, True),
        ("==", "1", 1, False),
        ("==", None, None, True),
        ("==", Decimal("0.1"), 0.1, True),
        ("==", (1,), [1], False),
        ("==", USER, USER, True),
        ("!=", "a", "b", True),
        ("!=", math.nan, math.nan, True),
    ],
)
def test_operators(op: Any, left: object, right: object, result: object) -> None:
    made = evaluate(Expr(op, (Lit(left), Lit(right))), {})
    assert made == result
    assert type(made) is type(result)


@pytest.mark.parametrize(
    ("op", "left", "right", "says"),
    [
        ("+", "a", 1, "'a' + 1: only two numbers, two texts or two lists can be added"),
        ("+", [1], (2,), "a list of 1 + a tuple of 1"),
        ("+", True, 1, "True + 1"),
        ("+", None, None, "None + None"),
        ("-", "b", "a", "'b' - 'a': only numbers can be calculated with"),
        ("*", "ab", 3, "'ab' * 3"),
        ("*", 3, [0], "3 * a list of 1"),
        ("/", 1, 0, "1 / 0: division by zero"),
        ("/", Decimal(0), Decimal(0), "division by zero"),
        ("/", 1.0, 0.0, "division by zero"),
        ("*", 10**3000, 10**3000, "the result is too large"),
        pytest.param("+", 10**5000, 1, "the result is too large", id="+ too large"),
        ("*", 10**400, 1.0, "the result is no number, or too large"),
        ("+", Decimal("sNaN"), 1, "the result is no number, or too large"),
        ("<", 1, "2", "1 < '2': only values of one kind have an order"),
        ("<", None, None, "they have no order"),
        (">", True, 0, "only values of one kind have an order"),
        ("<", {}, {}, "they have no order"),
        ("<", [1], ["a"], "they have no order"),
    ],
)
def test_what_operators_refuse(op: Any, left: object, right: object, says: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        evaluate(Expr(op, (Var("l"), Var("r"))), {"l": left, "r": right})
    assert says in refused.value.message


def test_a_refusal_is_short_about_large_values() -> None:
    with pytest.raises(InvalidValue) as refused:
        come(ref("x") + 1, x="y" * 10**6)
    assert len(str(refused.value)) < 250


def test_a_comparison_that_raises_is_refused() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise KeyError("odd")

        __hash__ = None  # type: ignore[assignment]

    with pytest.raises(InvalidValue, match="KeyError") as refused:
        come(ref("x") == 1, x=Odd())
    assert isinstance(refused.value.__cause__, KeyError)


def test_texts_and_lists_do_not_grow_without_end() -> None:
    for half in ("x" * 2**23 + "x", [0] * (2**23 + 1)):
        with pytest.raises(InvalidValue, match="more than 16,777,216"):
            come(ref("x") + ref("x"), x=half)


def test_adding_lists_makes_a_new_one() -> None:
    held = [1]
    evaluate(Expr("+", (Var("x"), Lit([2]))), {"x": held}).append(3)  # type: ignore[attr-defined]  # it is a list
    assert held == [1]


@pytest.mark.parametrize(
    ("op", "left", "right", "result"),
    [("&&", 0, 5, 0), ("&&", 2, 5, 5), ("||", "", "x", "x"), ("||", [1], "x", [1]), ("&&", "false", 1, "false")],
)
def test_and_and_or_give_the_value_that_decided(op: Any, left: object, right: object, result: object) -> None:
    assert evaluate(Expr(op, (Lit(left), Lit(right))), {}) == result


def test_and_and_or_leave_the_rest_alone() -> None:
    assert come(ref("x") | ref("missing"), x=1) == 1
    assert come(ref("x") & ref("missing"), x=0) == 0


def test_not_and_negative() -> None:
    assert come(negate("false")) is True
    assert come(negate([0])) is False
    assert come(-ref("x"), x=Decimal(3)) == -3
    for refused in (True, "1", Decimal("sNaN"), None):
        with pytest.raises(InvalidValue, match="has no negative"):
            come(-ref("x"), x=refused)


def test_an_expression_nested_too_deep_is_refused() -> None:
    value: Any = Var("x")
    for _ in range(2000):
        value = Expr("!", (value,))
    with pytest.raises(InvalidValue, match="nested too deep"):
        evaluate(value, {"x": 1})


# --- records, lists and calls ---


def test_records_and_lists_keep_their_order() -> None:
    made = come({"b": ref("x"), "a": [ref("x"), 2]}, x=1)
    assert made == {"b": 1, "a": [1, 2]}
    assert list(made) == ["b", "a"]


def test_calls_are_found_in_order_and_their_own_arguments_are_theirs() -> None:
    inner = Call("inner")
    a, b, c = Call("a", (inner,)), AiSegment("goal"), Call("c")
    value = List_((Field(c, ("x",)), Obj({"z": a, "k": Parse(b, "json")}), Expr("+", (c, 1)), Peek("p"), Lit(1)))
    assert list(map(id, calls_in(value))) == list(map(id, (c, b, a, c)))
    assert calls_in(a) == (a,)
    assert calls_in(Var("x")) == ()


def test_results_are_taken_in_that_order() -> None:
    a, b = Call("a"), Call("b")
    assert evaluate(a, {}, [5]) == 5
    assert evaluate(Obj({"z": a, "k": b}), {}, ["of b", "of a"]) == {"z": "of a", "k": "of b"}
    assert evaluate(Expr("+", (a, a)), {}, [1, 2]) == 3  # one call at two places is made twice


def test_what_is_not_needed_does_not_shift_results() -> None:
    a, b, c = Call("a"), Call("b"), Call("c")
    value = List_((Expr("||", (a, List_((b, b)))), c))
    assert evaluate(value, {}, [1, 2, 3, 4]) == [1, 4]


def test_a_call_that_was_not_made_is_refused() -> None:
    with pytest.raises(InvalidValue, match="nobody has performed the call of pay"):
        evaluate(Call("pay"), {})
    with pytest.raises(InvalidValue, match="ai_segment"):
        evaluate(AiSegment("goal"), {})


# --- parse and coerce ---


@pytest.mark.parametrize(
    ("value", "to", "result"),
    [
        (" 4.5 ", "f64", 4.5),
        ("42", "f64", 42.0),
        ("-1e3", "f64", -1000.0),
        (".5", "f64", 0.5),
        (3, "f64", 3.0),
        (Decimal("1.5"), "f64", 1.5),
        (math.inf, "f64", math.inf),
        (" 42\n", "i64", 42),
        ("+7", "i64", 7),
        (-(2**63), "i64", -(2**63)),
        (4 / 2, "i64", 2),
        (" true ", "bool", True),
        (False, "bool", False),
        ('{"a": [1, 2.5, null, true]}', "json", {"a": [1, 2.5, None, True]}),
        ([1], "json", [1]),
        (None, "json", None),
        ("x", "string", "x"),
        (1.0, "string", "1"),
        (None, "string", ""),
        ("a=1&b=x+y%21&a=2&c=", "form", {"a": ["1", "2"], "b": "x y!", "c": ""}),
        ("", "form", {}),
        ({"a": 1}, "form", {"a": 1}),
    ],
)
def test_parse(value: object, to: Any, result: object) -> None:
    made = evaluate(Parse(Var("x"), to), {"x": value})
    assert made == result
    assert type(made) is type(result)


@pytest.mark.parametrize(
    ("value", "to"),
    [
        ("four", "f64"),
        ("inf", "f64"),
        ("NaN", "f64"),
        ("1e999", "f64"),
        ("1_000", "f64"),
        ("٣", "f64"),
        ("", "f64"),
        (True, "f64"),
        (None, "f64"),
        (10**400, "f64"),
        (Decimal("sNaN"), "f64"),
        ("4.5", "i64"),
        (str(2**63), "i64"),
        ("9" * 5000, "i64"),
        (2.5, "i64"),
        (math.nan, "i64"),
        (Decimal("NaN"), "i64"),
        (Decimal("1E+999999"), "i64"),
        ("True", "bool"),
        (1, "bool"),
        ("{", "json"),
        ("NaN", "json"),
        ("1e999", "json"),
        ("9" * 5000, "json"),
        ("[" * 100_000, "json"),
        (USER, "json"),
        (b"{}", "json"),
        (3, "form"),
    ],
)
def test_what_cannot_be_parsed(value: object, to: Any) -> None:
    with pytest.raises(InvalidValue, match=f"cannot be read as {to}") as refused:
        parse(value, to)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("value", "type_", "result"),
    [
        (" 42 ", "Number", 42),
        ("4.5", "Number", 4.5),
        ("1e3", "Number", 1000.0),
        ("inf", "Number", "inf"),
        ("nan", "Number", "nan"),
        ("1e999", "Number", "1e999"),
        ("9" * 5000, "Number", "9" * 5000),
        ("4 apples", "Number", "4 apples"),
        ("", "Number", ""),
        (" true\n", "Bool", True),
        ("false", "Bool", False),
        ("True", "Bool", "True"),
        ("yes", "Bool", "yes"),
        ("42", "String", "42"),
        ("42", "Any", "42"),
        ("42", None, "42"),
        ("[1]", "List<Number>", "[1]"),
        (True, "Number", True),
        (["1"], "Number", ["1"]),
        (1, "Bool", 1),
    ],
)
def test_coerce(value: object, type_: str | None, result: object) -> None:
    made = coerce(value, type_)
    assert made == result
    assert type(made) is type(result)
