"""`Schema`: JSON schema out, strict values in."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Literal, NewType, Optional

import attrs
import pytest
from typing_extensions import TypeAliasType

from bb.errors import SchemaMismatch, WiringError
from bb.redaction import forget_secrets, redact
from bb.schema import Doc, Schema, same_shape, structure


class Tone(Enum):
    WARM = "warm"
    COLD = "cold"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Shade(StrEnum):
    DARK = "dark"


Name = NewType("Name", str)


@attrs.frozen
class Source:
    url: str
    score: float = 0.0


@attrs.frozen
class Report:
    title: str = attrs.field(metadata={"doc": "One line"})
    stars: Annotated[int, Doc("1 to 5")]
    tone: Tone
    kind: Literal["short", "long"]
    sources: list[Source]
    note: str | None
    tags: tuple[str, ...] = ()
    extra: Mapping[str, int] = attrs.field(factory=dict)
    done: bool = False


@attrs.frozen
class Text:
    text: str
    type: Literal["text"] = "text"


@attrs.frozen
class Image:
    url: str
    text: str = ""
    type: Literal["image"] = "image"


@attrs.frozen
class Aliased:
    body: str
    kind_: Literal["aliased"] = attrs.field(default="aliased", metadata={"name": "type"})


@attrs.frozen
class Tree:
    value: int
    children: list[Tree] = attrs.field(factory=list)


@attrs.frozen
class Leaf:
    kind: Literal["leaf"]


@attrs.frozen
class Node:
    kind: Literal["node"]
    parts: list[Leaf | Node]


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: int = 0
    norm: float = dataclasses.field(init=False, default=0.0)


@attrs.frozen
class Checked:
    size: int = attrs.field(validator=attrs.validators.ge(0))


@attrs.frozen
class Lone:
    other: Missing  # type: ignore[name-defined]  # noqa: F821


GOOD = {"title": "t", "stars": 3, "tone": "warm", "kind": "long", "sources": [{"url": "u"}], "note": None}


def test_the_schema_of_a_class() -> None:
    assert Schema(Report).json_schema == {
        "type": "object",
        "properties": {
            "title": {"type": "string", "description": "One line"},
            "stars": {"type": "integer", "description": "1 to 5"},
            "tone": {"type": "string", "enum": ["warm", "cold"]},
            "kind": {"type": "string", "enum": ["short", "long"]},
            "sources": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"url": {"type": "string"}, "score": {"type": "number"}},
                    "required": ["url"],
                    "additionalProperties": False,
                },
            },
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "extra": {"type": "object", "additionalProperties": {"type": "integer"}},
            "done": {"type": "boolean"},
        },
        "required": ["title", "stars", "tone", "kind", "sources"],
        "additionalProperties": False,
    }


def test_what_parsing_gives() -> None:
    report = Schema(Report).parse(json.dumps(GOOD | {"tags": ["a"], "extra": {"n": 1}}))
    assert report == Report("t", 3, Tone.WARM, "long", [Source("u", 0.0)], None, ("a",), {"n": 1}, False)
    assert report.tone is Tone.WARM


def test_an_optional_field_may_be_left_out() -> None:
    assert Schema(Report).structure({k: v for k, v in GOOD.items() if k != "note"}).note is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stars": "3"}, "stars: expected integer, got string '3'"),
        ({"stars": True}, "stars: expected integer, got boolean True"),
        ({"stars": 3.0}, "stars: expected integer, got number 3.0"),
        ({"title": 1}, "title: expected string, got integer 1"),
        ({"done": 1}, "done: expected boolean"),
        ({"tone": "hot"}, "tone: expected one of 'warm', 'cold', got string 'hot'"),
        ({"kind": ["long"]}, "kind: expected one of"),
        ({"sources": "ab"}, "sources: expected array"),
        ({"sources": [{"url": "u"}, {"url": 2}]}, "sources[1].url: expected string"),
        ({"sources": [{}]}, "sources[0].url: is missing"),
        ({"sources": [{"url": "u", "score": "1"}]}, "sources[0].score: expected number"),
        ({"note": 4}, "note: expected null or string"),
        ({"extra": {"n": "1"}}, "extra['n']: expected integer"),
        ({"extra": []}, "extra: expected object"),
        ({"bogus": 1}, "unknown field 'bogus'"),
    ],
)
def test_a_misfit_names_its_field(change: dict[str, Any], said: str) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        Schema(Report).structure(GOOD | change)
    assert said in str(caught.value)


def test_every_misfit_is_named_at_once() -> None:
    with pytest.raises(SchemaMismatch) as caught:
        Schema(Report).structure({"stars": "3", "tone": "warm", "kind": "long", "sources": []})
    assert "stars: expected" in str(caught.value)
    assert "title: is missing" in str(caught.value)


@pytest.mark.parametrize("value", [None, 3, "x", [], [["title", "t"]]])
def test_only_an_object_is_a_class(value: object) -> None:
    with pytest.raises(SchemaMismatch, match="expected object"):
        Schema(Source).structure(value)


@pytest.mark.parametrize("text", ["", "{", "nope", '{"url": NaN}', "[" * 100_000, "1" * 5000])
def test_text_that_is_no_json(text: str) -> None:
    with pytest.raises(SchemaMismatch, match="not JSON"):
        Schema(Source).parse(text)


@pytest.mark.parametrize("fence", ["```json\n{}\n```", "```\n{}\n```", "\n ```JSON\r\n{}\r\n```\n", "{}", " {} "])
def test_a_fence_is_no_part_of_the_answer(fence: str) -> None:
    assert Schema(Source).parse(fence.replace("{}", '{"url": "u"}')) == Source("u")


def test_structure_takes_json_only() -> None:
    assert structure('{"url": "u", "score": 2}', Source) == Source("u", 2.0)
    with pytest.raises(SchemaMismatch):
        structure('```json\n{"url": "u"}\n```', Source)


def test_a_whole_number_fits_a_float_field_as_a_float() -> None:
    score = structure('{"url": "u", "score": 2}', Source).score
    assert type(score) is float
    with pytest.raises(SchemaMismatch):
        structure('{"url": "u", "score": true}', Source)


@pytest.mark.parametrize(
    ("type_", "schema", "good", "value", "bad"),
    [
        (str, {"type": "string"}, "a", "a", 1),
        (int, {"type": "integer"}, 1, 1, "1"),
        (bool, {"type": "boolean"}, True, True, 1),
        (type(None), {"type": "null"}, None, None, 0),
        (Name, {"type": "string"}, "a", "a", 1),
        (TypeAliasType("Names", list[str]), {"type": "array", "items": {"type": "string"}}, ["a"], ["a"], ["a", 1]),
        (list[int], {"type": "array", "items": {"type": "integer"}}, [1], [1], [True]),
        (Sequence[int], {"type": "array", "items": {"type": "integer"}}, [1], (1,), "12"),
        (list, {"type": "array", "items": {}}, [1, "a"], [1, "a"], {}),
        (set[int], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, [1, 2], {1, 2}, [1, 1]),
        (
            tuple[int, str],
            {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
                "items": False,
                "minItems": 2,
            },
            [1, "a"],
            (1, "a"),
            [1],
        ),
        (dict, {"type": "object"}, {"a": 1}, {"a": 1}, []),
        (dict[str, Any], {"type": "object"}, {"a": [1]}, {"a": [1]}, {1: 2}),
        (Level, {"type": "integer", "enum": [1, 2]}, 2, Level.HIGH, True),
        (Shade, {"type": "string", "enum": ["dark"]}, "dark", Shade.DARK, "DARK"),
        (Literal["a", 1], {"enum": ["a", 1]}, 1, 1, True),
        (Literal[Tone.WARM], {"type": "string", "enum": ["warm"]}, "warm", Tone.WARM, "cold"),
        (
            Optional[int],
            {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            None,
            None,
            "1",
        ),
        (int | float, {"anyOf": [{"type": "integer"}, {"type": "number"}]}, 1, 1, True),
        (Literal["auto"] | int, {"anyOf": [{"type": "string", "enum": ["auto"]}, {"type": "integer"}]}, 3, 3, "x"),
    ],
)
def test_plain_types(type_: Any, schema: object, good: object, value: object, bad: object) -> None:
    made: Schema[Any] = Schema(type_)
    assert made.json_schema == schema
    got = made.structure(good)
    assert got == value
    assert type(got) is type(value)
    with pytest.raises(SchemaMismatch):
        made.structure(bad)


def test_a_dataclass() -> None:
    made = Schema(Point)
    assert made.structure({"x": 1}) == Point(1, 0)
    assert made.json_schema["required"] == ["x"]
    with pytest.raises(SchemaMismatch, match="unknown field 'norm'"):
        made.structure({"x": 1, "norm": 2.0})


def test_a_validator_of_the_class_counts() -> None:
    with pytest.raises(SchemaMismatch, match="size"):
        Schema(Checked).structure({"size": -1})


@pytest.mark.parametrize("union", [Text | Image, Image | Text])
def test_trials_a17_a19_classes_of_a_union_are_told_apart_by_their_tag(union: Any) -> None:
    made: Schema[Any] = Schema(union)
    assert made.structure({"type": "text", "text": "a"}) == Text("a")
    assert made.structure({"type": "image", "url": "u"}) == Image("u")
    assert made.structure({"type": "image", "url": "u", "text": "a"}).type == "image"
    with pytest.raises(SchemaMismatch, match="field 'type' is missing"):
        made.structure({"text": "a"})  # a default does not help to tell
    with pytest.raises(SchemaMismatch, match="'image', 'text'"):
        made.structure({"type": "sound"})
    with pytest.raises(SchemaMismatch, match="unknown field 'url'"):
        made.structure({"type": "text", "text": "a", "url": "u"})
    for part in made.json_schema["anyOf"]:  # type: ignore[attr-defined]
        assert "type" in part["required"]


def test_trial_a17_the_order_of_a_union_does_not_count() -> None:
    one: Any = Text | Image
    other: Any = Image | Text
    assert same_shape(Schema(one).json_schema, Schema(other).json_schema)


def test_trial_a20_a_tag_may_have_another_name_in_json() -> None:
    union: Any = Aliased | Text
    made: Schema[Any] = Schema(union)
    assert made.structure({"type": "aliased", "body": "b"}) == Aliased("b")
    assert made.structure({"type": "text", "text": "a"}) == Text("a")


def test_classes_that_contain_themselves() -> None:
    made = Schema(Tree)
    assert made.structure({"value": 1, "children": [{"value": 2}]}) == Tree(1, [Tree(2)])
    schema = made.json_schema
    assert schema["$ref"] == "#/$defs/Tree"
    assert schema["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}  # type: ignore[index]
    deep = Schema(Node).structure({"kind": "node", "parts": [{"kind": "leaf"}, {"kind": "node", "parts": []}]})
    assert deep == Node("node", [Leaf("leaf"), Node("node", [])])


def test_data_nested_too_deeply_is_a_mismatch() -> None:
    data: dict[str, Any] = {"value": 0}
    for _ in range(5000):
        data = {"value": 1, "children": [data]}
    with pytest.raises(SchemaMismatch):
        Schema(Tree).structure(data)


@pytest.mark.parametrize(
    "type_",
    [
        Source | Tree,
        Text | dict[str, int],
        list[int] | tuple[str, ...],
        Tone | str,
        object | int,
    ],
)
def test_an_ambiguous_union_is_a_wiring_error(type_: Any) -> None:
    with pytest.raises(WiringError):
        Schema(type_)


@pytest.mark.parametrize(
    "type_", [bytes, complex, object(), dict[int, str], Lone, Literal[b"x"], list[bytes], "Report"]
)
def test_a_type_without_a_schema_is_a_wiring_error(type_: Any) -> None:
    with pytest.raises(WiringError, match="no JSON schema"):
        Schema(type_)


def test_a_schema_is_a_value() -> None:
    assert Schema(Report) == Schema(Report)
    assert hash(Schema(Report)) == hash(Schema(Report))
    assert Schema[Any](Report) != Schema[Any](Source)
    Schema(Report).json_schema["type"] = "changed"
    assert Schema(Report).json_schema["type"] == "object"


@pytest.mark.parametrize(
    ("type_", "name"),
    [(Report, "Report"), (list[Report], "list_Report"), (str, "str"), (Tone | None, "Tone_None"), (Name, "Name")],
)
def test_a_name_is_fit_for_a_provider(type_: Any, name: str) -> None:
    made: Schema[Any] = Schema(type_)
    assert made.name == name


def test_same_shape() -> None:
    a = {
        "type": "object",
        "title": "A",
        "properties": {"title": {"type": "string", "description": "x"}, "b": {"type": "integer"}},
        "required": ["title", "b"],
    }
    b = {
        "type": "object",
        "properties": {"b": {"type": "integer"}, "title": {"type": "string"}},
        "required": ["b", "title"],
    }
    assert same_shape(a, b)
    assert not same_shape(a, b | {"required": ["b"]})
    assert not same_shape(a, b | {"properties": {"b": {"type": "integer"}}})
    assert not same_shape({"enum": [1]}, {"enum": [True]})
    assert same_shape({"type": "object"}, {"type": "object", "required": []})


def test_cattrs_is_loaded_on_first_use_only() -> None:
    code = "import sys, bb.schema; assert 'cattrs' not in sys.modules; bb.schema.structure('1', int); assert 'cattrs' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_global_converter_changes_nothing() -> None:
    code = (
        "import cattrs, bb.schema, bb.errors\n"
        "cattrs.global_converter.register_structure_hook(int, lambda v, t: 7)\n"
        "assert bb.schema.structure('1', int) == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("text", ["1e999", "-1e999", "[1.0, 1e999]"])
def test_a_number_beyond_all_floats_is_no_infinity(text: str) -> None:
    with pytest.raises(SchemaMismatch, match="out of range"):
        structure(text, list[float] if text.startswith("[") else float)


def test_a_key_error_of_the_class_is_not_a_missing_field() -> None:
    @attrs.frozen
    class Looked:
        key: str

        def __attrs_post_init__(self) -> None:
            raise KeyError(self.key)

    with pytest.raises(SchemaMismatch) as caught:
        Schema(Looked).structure({"key": "nowhere"})
    assert "nowhere" in str(caught.value)
    assert "is missing" not in str(caught.value)


def test_a_secret_is_masked_before_a_value_is_cut() -> None:
    redact("s3cret-s3cret-s3cret")
    try:
        with pytest.raises(SchemaMismatch) as caught:
            Schema(int).structure("x" * 45 + "s3cret-s3cret-s3cret")
    finally:
        forget_secrets()
    assert "s3cret" not in str(caught.value)
