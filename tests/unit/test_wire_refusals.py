"""What is no flow, and what has no JSON form: refused, with the place and a remedy."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, cast

import pytest
from attrs import frozen

from bb.agents.agent import Agent
from bb.errors import InvalidWire, WiringError
from bb.flows.base import DurableFlow
from bb.flows.calls import Call
from bb.flows.control import Emit, Repeat, Unless, When
from bb.flows.durability import Checkpoint, Memo, Saga, Step
from bb.flows.expressions import Expr, Field, Obj
from bb.flows.groups import Flow, Notify
from bb.flows.options import DurableOptions
from bb.flows.tree import AnyFlow
from bb.messages import Usage
from bb.redaction import redact
from bb.wire import from_wire, to_wire
from tests.unit.wire_forms import A_, READ, READ_, SAID, SAY, SCHEMA, X_, Json, X, lit, nested

# --- what is refused ---

NO_FLOW: Final[list[tuple[object, str, str]]] = [
    (None, "", "null stands where a flow belongs"),
    ([], "", "a list stands where a flow belongs"),
    ({}, "", "lacks the key 'kind'"),
    ({"kind": "emitt"}, "kind", "'emitt' is no kind of flow"),
    ({"kind": ["emit"]}, "kind", "a list is no kind of flow"),
    (X_, "kind", "'var' is no kind of flow"),
    ({"kind": "emit", "value": SAID}, "value.kind", "'emit' is no kind of value"),
    ({"kind": "emit", "value": "hi"}, "value", "'hi' stands where a value belongs"),
    ({"kind": "emit", "value": {"name": "x"}}, "value", "lacks the key 'kind'"),
    ({"kind": "emit"}, "", "emit lacks the key 'value'"),
    ({**SAID, "vaule": 1}, "vaule", "unknown key 'vaule'"),
    ({**SAID, "a b": 1}, "['a b']", "unknown key"),
    ({**SAID, "model": None}, "model", "unknown key 'model'"),
    ({"kind": "scope", "body": [], "finally_": []}, "finally_", "unknown key 'finally_'"),
    ({"kind": "peek", "name": None}, "name", "null stands where a text belongs"),
    ({"kind": "when", "cond": X_, "then": SAID}, "then", "an object stands where a list belongs"),
    ({"kind": "when", "cond": {**READ_, "id": "a"}, "then": []}, "cond.id", "unknown key 'id'"),
    (
        {"kind": "unless", "cond": X_, "body": [SAID, SAID, {"kind": "when", "cond": X_, "then": [{"kind": "call"}]}]},
        "body[2].then[0]",
        "call lacks the key 'op'",
    ),
    (
        {"kind": "unless", "cond": X_, "body": [{"kind": "when", "cond": X_, "then": [{"kind": "call", "op": 1}]}]},
        "body[0].then[0].op",
        "1 stands where a text belongs",
    ),
    ({"kind": "at", "when": 5}, "when", "5 stands where a time or an object belongs"),
    ({"kind": "at", "when": ["x"]}, "when", "a list stands where a time or an object belongs"),
    ({"kind": "at", "when": "{x}"}, "when", "'{x}' is no time"),
    ({"kind": "at", "when": SAID}, "when.kind", "'emit' is no kind of value"),
    ({"kind": "at", "when": {"kind": "var"}}, "when", "var lacks the key 'name'"),
    ({"kind": "repeat", "max": True, "body": []}, "max", "true stands where a whole number belongs"),
    ({"kind": "repeat", "max": 1.5, "body": []}, "max", "1.5 stands where a whole number belongs"),
    ({"kind": "repeat", "max": "3", "body": []}, "max", "'3' stands where a whole number belongs"),
    ({"kind": "each", "item": "i", "items": X_, "body": [], "flat": 0}, "flat", "0 stands where true or false belongs"),
    ({"kind": "timeout", "after": "5s", "body": []}, "after", "'5s' stands where a whole number belongs"),
    ({"kind": "timeout", "after": 10**18, "body": []}, "after", "is out of range"),
    ({"kind": "retry", "max": 1, "body": [], "backoff": "cubic"}, "backoff", "'cubic' is none of the words"),
    ({"kind": "bind", "name": "x", "value": X_, "type": "List<>"}, "type", "stands where a type"),
    ({"kind": "bind", "name": "x", "value": X_, "type": "Any\n"}, "type", "stands where a type"),
    ({"kind": "memo", "name": "m", "call": X_}, "call.kind", "'var' is no call"),
    ({"kind": "notify", "name": ""}, "name", "a name is empty"),
    ({"kind": "agents", "agents": ["a"]}, "agents[0]", "'a' stands where an object belongs"),
    ({"kind": "agents", "agents": [{"version": "1"}]}, "agents[0]", "lacks the key 'name'"),
    ({"kind": "agents", "agents": [{"name": "a b"}]}, "agents[0].name", "'a b' is no id"),
    ({"kind": "agents", "agents": [{"name": "a", "exits": [""]}]}, "agents[0].exits[0]", "'' is no id"),
    ({"kind": "agents", "agents": [{"name": "a", "role": "x"}]}, "agents[0].role", "unknown key 'role'"),
    ({"kind": "saga", "steps": [{"undo": []}]}, "steps[0]", "lacks the key 'body'"),
    ({"kind": "saga", "steps": [{"body": [], "kind": "step"}]}, "steps[0].kind", "unknown key 'kind'"),
    ({**SAID, "id": 7}, "id", "7 stands where an id belongs"),
    ({**SAID, "id": "a\n"}, "id", "is no id"),
    ({**SAID, "id": "a" * 129}, "id", "is no id"),
    ({**SAID, "params": []}, "", "the flow has params, but no id"),
    ({**SAID, "durable": {}}, "", "the flow has durable, but no id"),
    ({**A_, "params": [{"name": "n", "type": "?"}]}, "params[0].type", "stands where a type"),
    ({**A_, "durable": True}, "durable", "true stands where an object belongs"),
    ({**A_, "durable": {"retries": -1}}, "durable.retries", "-1 is out of range"),
    ({**A_, "durable": {"ttl": 0}}, "durable.ttl", "0 is out of range"),
    ({**A_, "durable": {"ttl": None}}, "durable.ttl", "null stands where a whole number belongs"),
    ({**A_, "durable": {"retry": 1}}, "durable.retry", "unknown key 'retry'"),
    ({"kind": "select", "members": [A_, SAID]}, "members[1]", "has no id"),
    (
        {"kind": "select", "members": [{"kind": "chain", "steps": [A_, {**A_, "id": "b"}]}]},
        "members[0]",
        "has no id",
    ),
    (
        {
            "kind": "select",
            "members": [{"kind": "chain", "steps": [{"kind": "chain", "steps": [A_]}, {**A_, "id": "b"}]}],
        },
        "members[0]",
        "has no id",
    ),
    ({"kind": "emit", "value": {"kind": "expr", "op": "+", "args": [X_]}}, "value", "1 operands"),
    ({"kind": "emit", "value": {"kind": "expr", "op": "!", "args": [X_, X_]}}, "value", "2 operands"),
    ({"kind": "emit", "value": {"kind": "expr", "op": "%", "args": [X_, X_]}}, "value.op", "'%' is none of the words"),
    ({"kind": "emit", "value": {"kind": "parse", "value": X_, "to": "int"}}, "value.to", "is none of the words"),
    ({"kind": "emit", "value": {"kind": "field", "value": X_, "path": [True]}}, "value.path[0]", "true stands where"),
    ({"kind": "emit", "value": {"kind": "obj", "fields": {"a b": 1}}}, "value.fields['a b']", "1 stands where"),
    ({"kind": "emit", "value": {"kind": "obj", "fields": []}}, "value.fields", "a list stands where an object"),
    ({"kind": "emit", "value": {"kind": "list", "items": [X_, 1]}}, "value.items[1]", "1 stands where a value"),
    (lit({"~": "pickle", "v": ""}, say=True), "value.value", "has the tag 'pickle'"),
    (lit({"~": "bytes"}, say=True), "value.value", "has the tag 'bytes'"),
    (lit({"~": "bytes", "v": "", "x": 1}, say=True), "value.value", "has the tag 'bytes'"),
    (lit({"~": ["bytes"], "v": ""}, say=True), "value.value", "has the tag a list"),
    (lit({"~": "tuple", "v": "ab"}, say=True), "value.value", "'ab' stands where a list belongs"),
    (lit({"~": "dict", "v": [["a"]]}, say=True), "value.value", "a list of pairs"),
    (lit({"~": "fields", "c": "os:environ", "v": {}}, say=True), "value.value", "an object of the class 'os:environ'"),
]


@pytest.mark.parametrize(("data", "path", "message"), NO_FLOW)
def test_what_is_no_flow_is_refused_where_it_is_wrong(data: object, path: str, message: str) -> None:
    with pytest.raises(InvalidWire, match=re.escape(message)) as caught:
        from_wire(data)
    assert caught.value.path == path
    assert caught.value.remedy
    assert not SCHEMA.is_valid(data)


TWIN: Final[Json] = {"kind": "unless", "cond": X_, "body": [A_, A_]}
DEEP: Final = "is nested deeper than 128"
BEYOND_THE_SCHEMA: Final[list[tuple[object, str, str]]] = [
    ({"kind": "chain", "steps": [TWIN]}, "steps[0]", "two parts with the id 'a'"),
    ({"kind": "all", "members": [A_, A_]}, "", "two parts with the id 'a'"),
    ({"kind": "chain", "steps": [A_, {"kind": "chain", "steps": [A_]}]}, "", "two parts with the id 'a'"),
    (lit({"~": "date", "v": "yesterday"}, say=True), "value.value", "a literal cannot be read"),
    (lit({"~": "set", "v": [[]]}, say=True), "value.value", "a literal cannot be read"),
    (lit(float("nan"), say=True), "value.value", "nan is no JSON number"),
    (lit(nested(128), say=True), "value.value", DEEP),
    ({"kind": "at", "when": lit("tomorrow")}, "when", "'tomorrow' is no time"),
    ({"kind": "at", "when": lit(5)}, "when", "5 is no aware time"),
    ({"kind": "checkpoint", "label": "\ud83d" + "\ude00"}, "label", "lone surrogates"),
]


@pytest.mark.parametrize(("data", "path", "message"), BEYOND_THE_SCHEMA)
def test_what_a_schema_cannot_say_is_refused_all_the_same(data: object, path: str, message: str) -> None:
    with pytest.raises(InvalidWire, match=re.escape(message)) as caught:
        from_wire(data)
    assert caught.value.path == path
    assert SCHEMA.is_valid(data)


@pytest.mark.parametrize(
    "data", [{1: 2}, {1: 2, "kind": "respond"}, lit({1: 2}, say=True), lit(object(), say=True), lit((), say=True)]
)
def test_what_no_json_parser_gives_is_refused(data: object) -> None:
    with pytest.raises(InvalidWire):
        from_wire(data)


def test_a_refusal_never_shows_more_than_a_little() -> None:
    with pytest.raises(InvalidWire) as caught:
        from_wire({"kind": "checkpoint", "label": ["x" * 10_000], "x" * 10_000: 1})
    assert len(caught.value.message) < 120
    assert len(caught.value.path) < 120
    with pytest.raises(InvalidWire, match="a long number is out of range"):  # Python would not write it out
        from_wire({"kind": "timeout", "after": -(10**5000), "body": []})


@frozen
class Point:
    x: int = 0


def _partial() -> Notify:
    from functools import partial

    async def send(to: str, text: str) -> None:
        raise AssertionError(to, text)

    return Notify(partial(send, "me"))


NO_FORM: Final[list[tuple[Callable[[], AnyFlow], str, str]]] = [
    (lambda: Flow().with_agent(Agent("a"), Agent()), "body[0].agents[1].name", "an agent has no name"),
    (_partial, "body[0].name", "a name is empty"),
    (lambda: Emit(Point()), "body[0].value.value", "Point"),
    (lambda: Emit([Usage()]), "body[0].value.value", "an object of the class"),
    (lambda: Emit(nested(150)), "body[0].value.value", DEEP),
    (
        lambda: DurableFlow(SAY, "a", DurableOptions(ttl=timedelta(microseconds=1))),
        "body[0].durable.ttl",
        "whole milli",
    ),
    (lambda: Repeat(cast("Any", "3"), SAY), "body[0].max", "'3' stands where a whole number belongs"),
    (lambda: Checkpoint("\ud83d" + "\ude00"), "body[0].label", "lone surrogates"),
]


@pytest.mark.parametrize(("make", "path", "message"), NO_FORM)
def test_what_has_no_form_says_so(make: Callable[[], AnyFlow], path: str, message: str) -> None:
    with pytest.raises(WiringError, match=re.escape(message)) as caught:
        to_wire(Unless(X, make()))
    assert caught.value.path == path
    assert caught.value.remedy


def test_what_is_no_flow_is_not_written() -> None:
    with pytest.raises(WiringError, match="a str stands where a flow belongs"):
        to_wire(cast("Any", "hi"))


@pytest.mark.parametrize(
    "flow",
    [Emit(["sesame open"]), Emit(b"sesame"), Checkpoint("sesame"), Emit(Obj({"sesame": X})), Emit(Field(X, "sesame"))],
)
def test_a_secret_is_not_written(flow: AnyFlow) -> None:
    wire = to_wire(flow)
    redact("sesame")
    with pytest.raises(WiringError, match="a registered secret"):
        to_wire(flow)
    assert from_wire(wire) == flow
    assert to_wire(SAY) == SAID


# --- depth ---


def _whens(levels: int) -> AnyFlow:
    flow: AnyFlow = SAY
    for _ in range(levels - 1):
        flow = When(X, flow)
    return flow


def _sagas(levels: int) -> AnyFlow:
    flow: AnyFlow = SAY
    for _ in range(levels - 1):
        flow = Saga(Step(SAY, undo=flow))
    return flow


def _nots(levels: int) -> AnyFlow:
    value: Any = X
    for _ in range(levels - 1):
        value = Expr("!", (value,))
    return Emit(value)


def _calls(levels: int) -> AnyFlow:
    call: Call[Any] = READ
    for _ in range(levels - 2):
        call = Call("f", (call,))
    return Memo("m", call)


@pytest.mark.parametrize("deep", [_whens, _sagas, _nots, _calls])
def test_flows_and_values_nest_128_levels_deep(deep: Callable[[int], AnyFlow]) -> None:
    flow = deep(128)
    assert from_wire(to_wire(flow)) == flow
    with pytest.raises(WiringError, match=DEEP):
        to_wire(deep(130))


def test_values_may_nest_in_the_deepest_flow() -> None:
    flow = _nots(100)
    for _ in range(127):
        flow = When(X, flow)
    assert from_wire(to_wire(flow)) == flow


@pytest.mark.parametrize("levels", [129, 100_000])
def test_what_is_too_deep_is_refused_before_it_is_walked(levels: int) -> None:
    flow: object = {"kind": "respond"}
    value: object = X_
    for _ in range(levels - 1):
        flow = {"kind": "unless", "cond": X_, "body": [flow]}
        value = {"kind": "expr", "op": "!", "args": [value]}
    for data in (flow, {"kind": "emit", "value": value}, lit(nested(levels), say=True)):
        with pytest.raises(InvalidWire, match=DEEP):
            from_wire(data)


def test_a_stack_that_is_full_already_is_no_crash() -> None:
    flow = _sagas(128)
    wire = to_wire(flow)

    def at_the_end(act: Callable[[], object], room: int) -> None:
        if room:
            at_the_end(act, room - 1)
        else:
            act()

    room = sys.getrecursionlimit() - 300
    with pytest.raises(InvalidWire, match="than the stack has room for"):
        at_the_end(lambda: from_wire(wire), room)
    with pytest.raises(WiringError, match="than the stack has room for"):
        at_the_end(lambda: to_wire(flow), room)
