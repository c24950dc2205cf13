"""The JSON spelling: what each kind looks like, and that reading what was written is the identity."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any, Final, cast
from uuid import UUID

import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator

from bb.agents.agent import Agent
from bb.flows.control import Emit
from bb.flows.expressions import EXPRESSIONS, Lit
from bb.flows.groups import Flow, Notify
from bb.flows.tree import KINDS, AnyFlow, Body, body_of
from bb.identity import signature
from bb.wire import from_wire, schema, to_wire
from tests.language_flows import any_flow, flow_of
from tests.unit.wire_forms import A_, FLOWS, SAID, SCHEMA, VALUES, X_, A, Json, lit

# --- what it looks like ---


@pytest.mark.parametrize(("flow", "wire"), FLOWS, ids=[str(wire["kind"]) for _, wire in FLOWS])
def test_each_kind_of_flow_has_one_form(flow: AnyFlow, wire: Json) -> None:
    assert to_wire(flow) == wire
    assert from_wire(wire) == flow
    assert list(SCHEMA.iter_errors(wire)) == []


@pytest.mark.parametrize(("value", "wire"), VALUES, ids=[str(wire["kind"]) for _, wire in VALUES])
def test_each_kind_of_value_has_one_form(value: Any, wire: Json) -> None:
    test_each_kind_of_flow_has_one_form(Emit(value), {"kind": "emit", "value": wire})


def test_the_tables_above_hold_every_kind() -> None:
    assert {type(body_of(flow)) for flow, _ in FLOWS} == set(KINDS)
    assert {type(value) for value, _ in VALUES} == set(EXPRESSIONS)


def test_the_id_follows_the_kind() -> None:
    assert json.dumps(to_wire(A.durable())) == (
        '{"kind": "emit", "id": "a", "durable": {}, "value": {"kind": "lit", "value": "hi"}}'
    )


def test_models_and_functions_are_left_out() -> None:
    async def send(text: str) -> None:
        raise AssertionError(text)

    agent = Agent("a").with_role("a pirate").on_message(_handler)
    flow = Flow().with_agent(agent) >> Notify(send)
    assert to_wire(flow) == {
        "kind": "chain",
        "steps": [{"kind": "agents", "agents": [{"name": "a"}]}, {"kind": "notify", "name": "send"}],
    }
    assert from_wire(to_wire(flow)) == flow


async def _handler(turn: object, chat: object) -> None:
    raise AssertionError(turn, chat)


# --- there and back ---


@given(any_flow())
@settings(max_examples=200)
def test_reading_what_was_written_is_the_identity(flow: AnyFlow) -> None:
    wire = to_wire(flow)
    parsed = json.loads(json.dumps(wire))
    assert parsed == wire
    back = from_wire(parsed)
    assert back == flow
    assert hash(back) == hash(flow)
    assert signature(back) == signature(flow)
    assert to_wire(back) == wire


@pytest.mark.parametrize("kind", KINDS, ids=[kind.kind for kind in KINDS])
def test_so_it_is_for_each_kind(kind: type[Body]) -> None:
    @given(flow_of(kind))
    @settings(max_examples=15)
    def law(flow: Body) -> None:
        wire = to_wire(flow)
        assert from_wire(wire) == flow
        assert SCHEMA.is_valid(wire)

    law()


EXACT: Final = [
    2**53,
    -(10**40),
    float("inf"),
    float("-inf"),
    -0.0,
    b"\xff",
    (1, (2,)),
    {1, 2},
    frozenset({"a"}),
    {1: "a", "1": "b", None: 0},
    {"~": "int", "v": "0x1"},
    "\ud800",
    "\ud83d\ude00",
    "\ud83d" + "\ude00",
    datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
    date(2026, 1, 2),
    timedelta(microseconds=1),
    Decimal("1E+400"),
    UUID(int=7),
    PurePosixPath("a/b"),
]


@pytest.mark.parametrize("value", EXACT, ids=[ascii(value) for value in EXACT])
def test_literals_come_back_exactly(value: object) -> None:
    wire = json.loads(json.dumps(to_wire(Emit(value)), allow_nan=False))
    back = cast("Lit", cast("Emit", from_wire(wire)).value)
    assert back == Lit(value)
    assert type(back.value) is type(value)
    assert SCHEMA.is_valid(wire)


def test_a_literal_that_is_no_number_comes_back() -> None:
    back = from_wire(to_wire(Emit(float("nan"))))
    assert back == Emit(float("nan"))


def test_what_is_read_shares_nothing_with_the_data() -> None:
    wire = {"kind": "emit", "value": {"kind": "lit", "value": [1]}}
    flow = from_wire(wire)
    cast("Any", wire)["value"]["value"].append(2)
    assert flow == Emit([1])


@pytest.mark.parametrize(
    ("wire", "canonical"),
    [
        ({"kind": "return", "value": {"kind": "lit", "value": None}}, {"kind": "return"}),
        ({**A_, "params": [], "durable": {"retries": 0}}, {**A_, "durable": {}}),
        ({"kind": "each", "item": "i", "items": X_, "body": [], "flat": False}, None),
        (
            {"kind": "unless", "cond": X_, "body": [{"kind": "chain", "steps": [SAID, SAID]}, SAID]},
            {"kind": "unless", "cond": X_, "body": [SAID, SAID, SAID]},
        ),
        ({"kind": "timeout", "after": 5.0, "body": []}, {"kind": "timeout", "after": 5, "body": []}),
        (lit({"~": "dict", "v": [["a", 1]]}, say=True), lit({"a": 1}, say=True)),
    ],
    ids=["default", "options", "flag", "chain", "5.0", "tag"],
)
def test_what_is_written_is_the_short_form(wire: Json, canonical: Json | None) -> None:
    expected = canonical or {key: value for key, value in wire.items() if key != "flat"}
    assert to_wire(from_wire(wire)) == expected
    assert SCHEMA.is_valid(wire)


# --- the schema ---


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(schema())
    assert json.loads(json.dumps(schema())) == schema()
    assert set(cast("Any", schema())["$defs"]) >= {kind.kind for kind in (*KINDS, *EXPRESSIONS)}


def test_each_call_gives_a_schema_of_its_own() -> None:
    before = json.dumps(schema())
    for part in cast("Any", schema())["$defs"].values():
        part.clear()
    assert json.dumps(schema()) == before


# --- what it needs ---


def test_it_loads_nothing_heavy() -> None:
    code = "import sys, bb.wire; print(sorted({'cattrs', 'lark', 'jsonschema', 'diskcache'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
