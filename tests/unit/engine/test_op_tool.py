"""An op as a model sees it."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

import attrs
import pytest

import bb
from bb.engine.frame.envelope import OpResult
from bb.engine.steps.op_tool import RESULT_LIMIT, arguments_in, json_in, shown, spec_of
from bb.errors import ToolArgs
from bb.messages import ToolCall
from bb.ops import Op, op


@attrs.frozen
class Tree:
    name: str
    parts: list[Tree] = attrs.field(factory=list)


@op("garden.plant")
def plant(
    day: Annotated[str, bb.Doc("in ISO form")],
    tree: Tree,
    price: Decimal = Decimal(0),
    note: str | None = None,
    *,
    extra: Any = (),
) -> None:
    """Plant a tree.

    Nobody reads this.
    """


@op()
def bare(x, y=1):  # type: ignore[no-untyped-def]  # as users may write one
    return x


def call(of: Op[Any, Any], text: str) -> ToolCall:
    return ToolCall("1", of.name, text)


def test_the_schema_of_an_op() -> None:
    spec = spec_of(plant)
    assert (spec.name, spec.description) == ("garden.plant", "Plant a tree.")
    assert spec.schema == {
        "type": "object",
        "properties": {
            "day": {"type": "string", "description": "in ISO form"},
            "tree": {"$ref": "#/$defs/Tree"},
            "price": {},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "extra": {},
        },
        "required": ["day", "tree"],
        "additionalProperties": False,
        "$defs": {
            "Tree": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "parts": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
                },
                "required": ["name"],
                "additionalProperties": False,
            }
        },
    }


def test_an_op_without_words_or_types() -> None:
    spec = spec_of(bare)
    assert spec.description == ""
    assert spec.schema == {
        "type": "object",
        "properties": {"x": {}, "y": {}},
        "required": ["x"],
        "additionalProperties": False,
    }
    assert arguments_in(bare, call(bare, '{"x": [1, null]}')) == {"x": [1, None]}


def test_annotations_that_do_not_resolve_are_no_hindrance() -> None:
    @op("lost")
    def lost(a: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821 - that is the point
        """Lost."""

    assert spec_of(lost).schema["properties"] == {"a": {}}


def test_arguments_are_made_what_the_op_takes() -> None:
    text = '{"day": "mon", "tree": {"name": "a", "parts": [{"name": "b"}]}, "extra": {"k": 1}}'
    assert arguments_in(plant, call(plant, text)) == {
        "day": "mon",
        "tree": Tree("a", [Tree("b")]),
        "extra": {"k": 1},
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "arguments of garden.plant: 'day', 'tree' must be given"),
        ("[]", "arguments of garden.plant: they are no JSON object"),
        ("{", "not JSON"),
        ('{"day": NaN}', "not JSON"),
        ('{"day": "x", "tree": {"name": "a"}, "when": 1}', "there is no 'when'"),
        ('{"day": 3, "tree": {"name": "a"}}', "day: the answer does not fit str: expected string, got integer 3"),
        ('{"day": "x", "tree": {"name": 1}}', "tree: the answer does not fit Tree"),
    ],
)
def test_arguments_that_do_not_fit(text: str, says: str) -> None:
    with pytest.raises(ToolArgs) as caught:
        arguments_in(plant, call(plant, text))
    assert says in caught.value.message


def test_a_deep_call_is_no_json() -> None:
    with pytest.raises(ToolArgs):
        json_in(ToolCall("1", "x", "[" * 100_000))


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (OpResult(None), ""),
        (OpResult("as it is"), "as it is"),
        (OpResult(["a", {"b": 1.0}]), '["a", {"b": 1}]'),
        (OpResult(Tree("a")), '{"name": "a", "parts": []}'),
        (OpResult({"long": "value"}, "the view"), "the view"),
        (OpResult("x" * RESULT_LIMIT), "x" * RESULT_LIMIT),
    ],
)
def test_what_a_model_is_told(result: OpResult, says: str) -> None:
    assert shown(result) == says


def test_a_long_result_is_cut_with_a_note() -> None:
    text = shown(OpResult("é" * RESULT_LIMIT))
    assert RESULT_LIMIT - 2 <= len(text.encode()) <= RESULT_LIMIT
    kept, _, note = text.partition("\n")
    assert set(kept) == {"é"} and note.startswith("[cut: ") and "131,072" in note
