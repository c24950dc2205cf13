"""The JSON spelling under data that nobody meant as a flow: refused as `InvalidWire`, and the schema gives the same verdict."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any, Final, TypeAlias, cast

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from bb.errors import InvalidWire
from bb.flows.control import Emit
from bb.wire import from_wire, schema, to_wire
from tests.language_flows import LITERALS, SYMBOLS, Draw, any_flow, any_value

Json: TypeAlias = Any
SCHEMA: Final = Draft202012Validator(schema())
DEFS: Final = cast("dict[str, Any]", schema()["$defs"])

BEYOND_THE_SCHEMA: Final = (
    "two parts with the id",
    "a literal cannot be read",
    "nested deeper",
    "lone surrogates",
    "has not five fields",
    "is no cron expression",
    "is no time",
    "is no aware time",
)
"""What only `from_wire` refuses, as the docstring of `schema` lists it."""

WORDS: Final = sorted(
    {"kind", "id", "params", "durable", "~", "v"} | {key for d in DEFS.values() for key in d.get("properties", ())}
)
KINDS: Final = sorted(DEFS)

SCRAPS: Final = (
    LITERALS
    | st.sampled_from(
        [0, 1, -1, 5.0, 1.5, True, False, None, "", "a", "a b", "x\n", [], {}, "pure", "linear", "!", "+", "i64"]
    )
    | st.sampled_from(KINDS)
    | st.sampled_from(["List<Any>", "List<List<x>>", "List<>", "List<A", "Any "])
    | st.sampled_from(["tuple", "set", "dict", "int", "bytes"]).flatmap(
        lambda tag: LITERALS.map(lambda value: {"~": tag, "v": value})
    )
    | any_flow(depth=0).map(to_wire)
    | any_value(depth=1).map(lambda value: to_wire(Emit(cast("Any", value)))["value"])
)
"""What a part of a wire form is replaced by."""


def places(data: Json) -> Iterator[tuple[Json, Any]]:
    """Every key and index in the data, with what holds it."""
    for at in data if type(data) is dict else range(len(data)) if type(data) is list else ():
        yield data, at
        yield from places(data[at])


def mutate(draw: Draw, data: Json) -> Json:
    """One thing changed somewhere in the data."""
    spots = [
        spot for spot in places(data) if spot[1] != "kind" or draw(st.integers(0, 3)) == 0
    ]  # or little else is tried
    if not spots:
        return draw(SCRAPS)
    holder, at = spots[draw(st.integers(0, len(spots) - 1))]
    match draw(st.sampled_from(["drop", "replace", "replace", "rename", "add", "copy", "repeat"])):
        case "drop":
            del holder[at]
        case "replace":
            holder[at] = draw(SCRAPS)
        case "rename" if type(holder) is dict:
            holder[draw(st.sampled_from(WORDS) | SYMBOLS)] = holder.pop(at)
        case "add" if type(holder) is dict:
            holder[draw(st.sampled_from(WORDS) | SYMBOLS)] = draw(SCRAPS)
        case "copy":
            other, part = spots[draw(st.integers(0, len(spots) - 1))]
            holder[at] = json.loads(json.dumps(other[part]))
        case _ if type(holder) is list:
            holder.insert(at, json.loads(json.dumps(holder[at])))
        case _:
            holder[at] = [holder[at]]
    return data


@st.composite
def mutated(draw: Draw) -> Json:
    """The wire form of a flow, with some things changed in it."""
    data = json.loads(json.dumps(to_wire(draw(any_flow(depth=1)))))
    for _ in range(draw(st.integers(1, 3))):
        data = mutate(draw, data)
    return data


def refusal(data: Json) -> InvalidWire | None:
    """Why the data is no flow; None where it is one, and then reading what is written of it is the identity."""
    try:
        flow = from_wire(data)
    except InvalidWire as error:
        refused = error
    else:
        wire = to_wire(flow)
        assert from_wire(wire) == flow
        assert to_wire(from_wire(wire)) == wire
        assert SCHEMA.is_valid(wire)
        return None
    assert refused.remedy
    follow(data, refused.path)
    return refused


STEP: Final = re.compile(
    r"""\.?(?P<name>[A-Za-z_]\w*)|\[(?P<index>\d+)\]|\[(?P<key>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?P<cut>\.\.\.)?\]"""
)
"""One step of a path: a name, an index, or a key that is no name, of which a long one is cut."""


def follow(data: Json, path: str) -> None:
    """Go where a path leads, which fails where it leads nowhere."""
    at = 0
    while at < len(path):
        step = STEP.match(path, at)
        assert step is not None, path[at:]
        at = step.end()
        if step["cut"]:
            start = ast.literal_eval(step["key"])
            [data] = [data[key] for key in data if key.startswith(start) and len(key) > len(start)][:1]
        else:
            data = data[step["name"] or (int(step["index"]) if step["index"] else ast.literal_eval(step["key"]))]


def test_a_path_is_followed_through_keys_of_any_spelling() -> None:
    keys = ["A'", '"', "'\"", "\\", "a]", "a.b", "", "\n", "é", "x" * 70, "'" * 70, "v[0]"]
    for name in keys:
        refused = refusal({"kind": "respond", "id": "a", "durable": {name: None}})
        assert refused is not None
        assert refused.path.startswith("durable"), name


@given(mutated())
@settings(max_examples=400)
def test_the_schema_and_the_reader_give_one_verdict(data: Json) -> None:
    refused = refusal(data)
    if refused is None:
        assert list(SCHEMA.iter_errors(data)) == []
    elif not any(reason in refused.message for reason in BEYOND_THE_SCHEMA):
        assert not SCHEMA.is_valid(data), refused


ANY_JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([*KINDS, *WORDS]),
    lambda part: (
        st.lists(part, max_size=3) | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=3), part, max_size=4)
    ),
    max_leaves=12,
)


@given(ANY_JSON)
@settings(max_examples=200)
def test_any_json_is_a_flow_or_refused(data: Json) -> None:
    refusal(data)


@given(st.sampled_from([kind for kind in KINDS if kind not in {"flow", "value"}]), st.data())
@settings(max_examples=200)
def test_objects_with_the_right_keys_are_flows_or_refused(kind: str, data: st.DataObject) -> None:
    keys = list(DEFS[kind].get("properties", ()))
    made = {
        key: data.draw(SCRAPS | st.lists(SCRAPS, max_size=2), label=key) for key in keys if data.draw(st.booleans())
    }
    refusal({**made, "kind": kind})


@given(
    st.recursive(
        st.sampled_from(
            [
                b"a",
                (),
                object(),
                1j,
                {1: 2},
                {None: None},
                {"kind": ("emit",)},
                {1, 2},
                float("nan"),
                "\ud83d" + "\ude00",
            ]
        ),
        lambda part: st.lists(part, max_size=2) | st.fixed_dictionaries({"kind": st.just("emit"), "value": part}),
        max_leaves=4,
    )
)
def test_what_no_json_parser_gives_is_refused_too(data: object) -> None:
    try:
        from_wire(data)
    except InvalidWire:
        return
    raise AssertionError(data)
