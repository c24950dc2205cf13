"""Flows and values of every kind beside their JSON forms."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final, TypeAlias

from jsonschema import Draft202012Validator

from bb.agents.agent import Agent
from bb.flows.base import NamedFlow, Param
from bb.flows.calls import AiSegment, Call
from bb.flows.control import Assert, Bind, Each, Emit, Repeat, Retry, Return, Run, Timeout, Try, Unless, When, WithTools
from bb.flows.durability import Await, Checkpoint, Debounce, Memo, Once, Peek, Saga, Scope, Step, Throttle
from bb.flows.expressions import Expr, Field, Format, List_, Lit, Obj, Parse, Valued, Var
from bb.flows.groups import All, Flow, Group, Notify, One, Respond, Select
from bb.flows.tree import AnyFlow
from bb.flows.triggers import At, Every, Webhook
from bb.wire import schema

Json: TypeAlias = dict[str, object]


def lit(value: object, *, say: bool = False) -> Json:
    """A literal in JSON, or the statement that says it."""
    made: Json = {"kind": "lit", "value": value}
    return {"kind": "emit", "value": made} if say else made


def nested(levels: int) -> object:
    """Lists in lists."""
    value: object = []
    for _ in range(levels):
        value = [value]
    return value


SCHEMA: Final = Draft202012Validator(schema())
MS, SECOND = timedelta(milliseconds=1), timedelta(seconds=1)

SAY: Final = Emit("hi")
SAID: Final[Json] = {"kind": "emit", "value": {"kind": "lit", "value": "hi"}}
X: Final = Var("x")
X_: Final[Json] = {"kind": "var", "name": "x"}
READ: Final[Call[Any]] = Call("read", ("f",))
READ_: Final[Json] = {"kind": "call", "op": "read", "args": [{"kind": "lit", "value": "f"}]}
A: Final = SAY.with_id("a")
A_: Final[Json] = {**SAID, "id": "a"}

FLOWS: Final[list[tuple[AnyFlow, Json]]] = [
    (Flow(), {"kind": "agents"}),
    (
        Flow().with_agent(Agent("a"), Agent("b", "2").selects("x", "y")),
        {"kind": "agents", "agents": [{"name": "a"}, {"name": "b", "version": "2", "exits": ["x", "y"]}]},
    ),
    (SAY >> Respond(), {"kind": "chain", "steps": [SAID, {"kind": "respond"}]}),
    (Select(A), {"kind": "select", "members": [A_]}),
    (Select(A >> SAY), {"kind": "select", "members": [{"kind": "chain", "steps": [A_, SAID]}]}),
    (All(A, SAY), {"kind": "all", "members": [A_, SAID]}),
    (One(SAY), {"kind": "one", "members": [SAID]}),
    (Group(SAY), {"kind": "group", "members": [SAID]}),
    (Respond(), {"kind": "respond"}),
    (Notify(name="mail"), {"kind": "notify", "name": "mail"}),
    (Every(" */5  * * * * "), {"kind": "every", "cron": "*/5 * * * *"}),
    (
        Every("30 2 * * *", SAY, tz="Europe/Berlin"),
        {"kind": "every", "cron": "30 2 * * *", "body": [SAID], "tz": "Europe/Berlin"},
    ),
    (At(datetime(2026, 3, 1, 8, tzinfo=UTC)), {"kind": "at", "when": "2026-03-01T08:00:00Z"}),
    (
        At(datetime(2026, 3, 1, 8, 0, 0, 1, timezone(timedelta(hours=1))), SAY, A),
        {"kind": "at", "when": "2026-03-01T07:00:00.001000Z", "body": [SAID, A_]},
    ),
    (At(X), {"kind": "at", "when": X_}),
    (At("{x}T08:00Z", SAY), {"kind": "at", "when": lit("{x}T08:00Z"), "body": [SAID]}),
    (At(Format("{x}Z")), {"kind": "at", "when": {"kind": "fmt", "template": "{x}Z"}}),
    (At(Call("read")), {"kind": "at", "when": {"kind": "call", "op": "read"}}),
    (Webhook("orders"), {"kind": "webhook", "id": "orders"}),
    (Webhook("orders", SAY), {"kind": "webhook", "id": "orders", "body": [SAID]}),
    (Call("read"), {"kind": "call", "op": "read"}),
    (Call("f", (Obj({"a": 1}),)), {"kind": "call", "op": "f", "args": [{"kind": "obj", "fields": {"a": lit(1)}}]}),
    (AiSegment("go"), {"kind": "ai_segment", "goal": lit("go")}),
    (
        AiSegment("go", ["a.b"], 3, until="slot"),
        {"kind": "ai_segment", "goal": lit("go"), "tools": ["a.b"], "max_rounds": 3, "until": "slot"},
    ),
    (Bind("x", 1), {"kind": "bind", "name": "x", "value": lit(1)}),
    (
        Bind("x", READ, list[int], "read"),
        {"kind": "bind", "name": "x", "value": READ_, "type": "List<Number>", "effect": "read"},
    ),
    (SAY, SAID),
    (When(X, SAY), {"kind": "when", "cond": X_, "then": [SAID]}),
    (When(X, SAY, otherwise=A), {"kind": "when", "cond": X_, "then": [SAID], "otherwise": [A_]}),
    (Unless(Peek("x"), SAY, A), {"kind": "unless", "cond": {"kind": "peek", "name": "x"}, "body": [SAID, A_]}),
    (Each("i", X, SAY), {"kind": "each", "item": "i", "items": X_, "body": [SAID]}),
    (
        Each("i", X, SAY, collect="all", flat=True),
        {"kind": "each", "item": "i", "items": X_, "body": [SAID], "collect": "all", "flat": True},
    ),
    (Repeat(3, SAY), {"kind": "repeat", "max": 3, "body": [SAID]}),
    (
        Repeat(3, SAY, until=X, collect="all"),
        {"kind": "repeat", "max": 3, "body": [SAID], "until": X_, "collect": "all"},
    ),
    (Return(), {"kind": "return"}),
    (Return(X), {"kind": "return", "value": X_}),
    (Assert(X), {"kind": "assert", "cond": X_}),
    (Assert(X, "no x"), {"kind": "assert", "cond": X_, "message": "no x"}),
    (Try(SAY), {"kind": "try", "body": [SAID]}),
    (Try(SAY, catch="e", handler=A), {"kind": "try", "body": [SAID], "catch": "e", "handler": [A_]}),
    (Retry(2, SAY), {"kind": "retry", "max": 2, "body": [SAID]}),
    (
        Retry(2, SAY, backoff="none", delay=SECOND, bind="x"),
        {"kind": "retry", "max": 2, "body": [SAID], "backoff": "none", "delay": 1000, "bind": "x"},
    ),
    (Timeout(2 * MS, SAY), {"kind": "timeout", "after": 2, "body": [SAID]}),
    (WithTools(["a.b"], SAY, bind="x"), {"kind": "with_tools", "tools": ["a.b"], "body": [SAID], "bind": "x"}),
    (
        Throttle("api", SAY, max=5, per=SECOND),
        {"kind": "throttle", "name": "api", "max": 5, "per": 1000, "body": [SAID]},
    ),
    (Debounce("save", SAY, wait=MS), {"kind": "debounce", "name": "save", "wait": 1, "body": [SAID]}),
    (Run("remember", "reply"), {"kind": "run", "flow": "remember", "bind": "reply"}),
    (Memo("m", READ), {"kind": "memo", "name": "m", "call": READ_}),
    (
        Memo("m", AiSegment("go"), "Plan", "model"),
        {
            "kind": "memo",
            "name": "m",
            "call": {"kind": "ai_segment", "goal": lit("go")},
            "type": "Plan",
            "effect": "model",
        },
    ),
    (Peek("x"), {"kind": "peek", "name": "x"}),
    (Await("form"), {"kind": "await", "source": "form"}),
    (
        Await("form", "n", int, when=X),
        {"kind": "await", "source": "form", "bind": "n", "type": "Number", "when": X_},
    ),
    (Checkpoint("phase-1"), {"kind": "checkpoint", "label": "phase-1"}),
    (Once("charge", READ, bind="r"), {"kind": "once", "label": "charge", "body": [READ_], "bind": "r"}),
    (Scope(SAY), {"kind": "scope", "body": [SAID]}),
    (
        Scope(SAY, acquire=READ, bind="h", finally_=A),
        {"kind": "scope", "acquire": READ_, "bind": "h", "body": [SAID], "finally": [A_]},
    ),
    (
        Saga(Step(SAY, undo=READ), Step(READ)),
        {"kind": "saga", "steps": [{"body": [SAID], "undo": [READ_]}, {"body": [READ_]}]},
    ),
    (
        NamedFlow(SAY, "a", (Param("n", int), Param("x"))),
        {**SAID, "id": "a", "params": [{"name": "n", "type": "Number"}, {"name": "x"}]},
    ),
    (A.durable(), {**A_, "durable": {}}),
    (
        A.durable(retries=3, ttl=timedelta(days=1), forward_compatible=True, resume_on_reregister=True),
        {
            **A_,
            "durable": {"retries": 3, "ttl": 86_400_000, "forward_compatible": True, "resume_on_reregister": True},
        },
    ),
]

VALUES: Final[list[tuple[Valued, Json]]] = [
    (Lit({"a": [None, 1.0, True]}), {"kind": "lit", "value": {"a": [None, 1.0, True]}}),
    (X, X_),
    (Field(X, ("a", 0)), {"kind": "field", "value": X_, "path": ["a", 0]}),
    (Field(X, "a", optional=True), {"kind": "field", "value": X_, "path": ["a"], "optional": True}),
    (Format("hi {x}"), {"kind": "fmt", "template": "hi {x}"}),
    (Parse(X, "f64"), {"kind": "parse", "value": X_, "to": "f64"}),
    (Expr("!", (X,)), {"kind": "expr", "op": "!", "args": [X_]}),
    (Expr("<=", (X, 3)), {"kind": "expr", "op": "<=", "args": [X_, {"kind": "lit", "value": 3}]}),
    (Obj({"a b": X}), {"kind": "obj", "fields": {"a b": X_}}),
    (List_((X, READ)), {"kind": "list", "items": [X_, READ_]}),
]
