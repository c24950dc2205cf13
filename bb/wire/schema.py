"""The JSON Schema of the wire form, from the table that reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Final

from bb.flows.base import Chain
from bb.flows.expressions import UNARY, Expr
from bb.flows.tree import TRIGGERS, Webhook
from bb.wire.literals import LITERAL_SCHEMA
from bb.wire.records import FLOWS, VALUES, WRAPPING, Record
from bb.wire.shapes import Schema

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, object]:
    """A JSON Schema (2020-12) that accepts what `from_wire` accepts, and nothing else.

    What JSON Schema has no words for, `from_wire` refuses all the same: nesting over 128, two siblings with one id, a literal
    whose tagged part says nothing sensible (`{"~": "date", "v": "yesterday"}`), a timetable, time zone or time that is none,
    numbers that are not JSON (`NaN`), and a pair of lone surrogates in a text.
    """
    shared = FLOWS.keys() & VALUES.keys()
    made: Schema = {
        "$schema": _DIALECT,
        "title": "A flow",
        "$ref": "#/$defs/flow",
        "$defs": {
            "flow": _one_of(FLOWS, {}),
            "value": _one_of(VALUES, dict.fromkeys(WRAPPING, False)),
            "literal": LITERAL_SCHEMA,
            "answering": _answering(),
            "silent": _silent(),
            **{kind: _flow(record) for kind, record in FLOWS.items()},
            **{kind: record.schema for kind, record in VALUES.items() if kind not in shared},
            Expr.kind: _arity(VALUES[Expr.kind].schema),
        },
    }
    return deepcopy(made)  # the parts are those of the table


def _one_of(records: Iterable[str], closed: Mapping[str, object]) -> Schema:
    """An object of one of these kinds. The kind is looked at first, so that a validator takes no time over the others."""
    return {
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"enum": list(records)}, **closed},
        "allOf": [
            {
                "if": {"required": ["kind"], "properties": {"kind": {"const": kind}}},
                "then": {"$ref": f"#/$defs/{kind}"},
            }
            for kind in records
        ],
    }


def _flow(record: Record) -> Schema:
    """The fields of a kind, and what makes it a named or durable flow."""
    if record.cls in TRIGGERS:
        return record.schema
    wrapping = {name: shape.schema for name, shape in WRAPPING.items()}
    return {
        **record.schema,
        "properties": {**record.properties, **wrapping},
        "dependentRequired": {name: ["id"] for name in wrapping if name != "id"},
    }


def _arity(operators: Schema) -> Schema:
    """One operand for the operators that take one, two for the others."""

    def just(count: int) -> Schema:
        return {"properties": {"args": {"minItems": count, "maxItems": count}}}

    return {**operators, "if": {"properties": {"op": {"enum": list(UNARY)}}}, "then": just(1), "else": just(2)}


_NAMED: Final[Schema] = {"required": ["id"], "properties": {"kind": {"not": {"const": Webhook.kind}}}}
"""A flow that has an id; the one of a webhook is not that of a flow."""


def _answering() -> Schema:
    """What a `Select` can offer: a flow with an id, or a chain of which one step alone has one, chains in it taken apart."""
    answering, silent = {"$ref": "#/$defs/answering"}, {"$ref": "#/$defs/silent"}
    steps = {"items": {"anyOf": [answering, silent]}, "contains": answering, "minContains": 1, "maxContains": 1}
    chain = {"required": ["steps"], "properties": {"kind": {"const": Chain.kind}, "steps": steps}}
    return {"anyOf": [_NAMED, chain]}


def _silent() -> Schema:
    """A flow without an id, and if it is a chain, without one in it."""
    steps = {"items": {"$ref": "#/$defs/silent"}}
    single = {"properties": {"kind": {"not": {"const": Chain.kind}}}}
    return {"not": _NAMED, "anyOf": [single, {"properties": {"steps": steps}}]}
