"""Every construct: its text is the flow that the builder makes, and what is written for that flow reads as it."""

from datetime import UTC, datetime, timedelta

import pytest

from bb.agents.agent import Agent
from bb.flows.expressions import Expr, Field, Format, List_, Lit, Obj, Parse, Var
from bb.flows.options import DurableOptions
from bb.flows.refs import negate, optional, ref
from bb.flows.tree import (
    KINDS,
    AiSegment,
    All,
    AnyFlow,
    Assert,
    At,
    Await,
    Bind,
    Call,
    Chain,
    Checkpoint,
    Debounce,
    DurableFlow,
    Each,
    Emit,
    Every,
    Flow,
    Group,
    Memo,
    NamedFlow,
    Notify,
    Once,
    One,
    Param,
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
    Webhook,
    When,
    WithTools,
    body_of,
    walk,
)
from bb.text import format, parse

F, G = Call("f"), Call("g")
X, Y = Var("x"), Var("y")
MS = timedelta(milliseconds=1)


def indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.strip("\n").split("\n"))


def read(statement: str) -> AnyFlow:
    """The flow that one statement is."""
    body = parse(f"flow t\n{indented(statement)}  last()")["t"].body
    assert isinstance(body, Chain)
    flow, last = body.steps
    assert last == Call("last")
    return flow


def check(statement: str, flow: AnyFlow) -> None:
    assert read(statement) == flow
    assert format(Chain((flow, Call("last")))) == f"{statement}\nlast()\n"


STATEMENTS: dict[str, AnyFlow] = {
    # who speaks
    "agents": Flow(),
    "agents researcher, router": Flow((Agent("researcher"), Agent("router"))),
    'agents router(version: "2", selects: ["a", "b"]), "re:x.y"': Flow(
        (Agent("router", "2").selects("a", "b"), Agent("re:x.y"))
    ),
    "select\n  branch short\n    agents writer\n  branch long\n    f()": Select(
        NamedFlow(Flow((Agent("writer"),)), "short"), NamedFlow(F, "long")
    ),
    "select\n  branch\n    named a\n      f()\n    g()": Select(Chain((NamedFlow(F, "a"), G))),
    "parallel\n  branch\n    f()\n  branch\n    f()\n    g()": All(F, Chain((F, G))),
    "race\n  branch\n    f()": One(F),
    'group\n  branch "a.b"\n    f()\n    g()': Group(NamedFlow(Chain((F, G)), "a.b")),
    "parallel\n  @durable(retries: 1)\n  branch a(n: Number)\n    f()": All(
        DurableFlow(F, "a", DurableOptions(retries=1), (Param("n", "Number"),))
    ),
    "respond": Respond(),
    "notify send_mail": Notify(name="send_mail"),
    'notify "send mail"': Notify(name="send mail"),
    "run remember -> reply": Run("remember", "reply"),
    'run "re-member"': Run("re-member"),
    # calls
    "f()": F,
    "charge.card(amount: 1, to: user.mail)": Call("charge.card", (Obj({"amount": 1, "to": ref("user").mail}),)),
    'read("f")': Call("read", (Lit("f"),)),
    "read(x)": Call("read", (X,)),
    "read(x, y)": Call("read", (Obj({"x": X, "y": Y}),)),
    "read(x: x)": Call("read", (Obj({"x": X}),)),
    "read(when: 1, max: 2)": Call("read", (Obj({"when": 1, "max": 2}),)),
    'read({"a": 1})': Call("read", (Lit({"a": 1}),)),
    "read(f(g()))": Call("read", (Call("f", (G,)),)),
    'read({"a b": x})': Call("read", (Obj({"a b": X}),)),
    'ai_segment(goal: "go")': AiSegment("go"),
    'slot = ai_segment(goal: "go", tools: ["a"], max_rounds: 3, until: "slot")': Bind(
        "slot", AiSegment("go", ["a"], 3, "slot")
    ),
    'read(ai_segment(goal: fmt("{x}")))': Call("read", (AiSegment(Format("{x}")),)),
    "peek x": Peek("x"),
    # names and words
    "x = 1": Bind("x", 1),
    "x: Number = 1": Bind("x", 1, "Number"),
    "x: List<List<Order>> = f()": Bind("x", F, "List<List<Order>>"),
    '@effect(read)\nx: Number = read("f")': Bind("x", Call("read", (Lit("f"),)), "Number", "read"),
    "x = peek y": Bind("x", Peek("y")),
    "$when = $step": Bind("when", Var("step")),
    "goal = 1": Bind("goal", 1),
    "emit x": Emit(X),
    'emit "x"': Emit("x"),
    "emit f()": Emit(F),
    "emit peek x": Emit(Peek("x")),
    'emit fmt("hello {x}")': Emit(Format("hello {x}")),
    "return": Return(),
    "return x": Return(X),
    # control
    "when x\n  f()": When(X, F),
    "when f()\n  f()\nelse\n  g()\n  g()": When(F, F, otherwise=(G, G)),
    "unless peek x\n  f()": Unless(Peek("x"), F),
    "each item in xs\n  f(item)": Each("item", Var("xs"), Call("f", (Var("item"),))),
    "each item in [1, 2] -> ys\n  f()": Each("item", [1, 2], F, collect="ys"),
    "each item in xs -> flat ys\n  f()": Each("item", Var("xs"), F, collect="ys", flat=True),
    "repeat 3\n  f()": Repeat(3, F),
    "repeat 3, until: done -> ys\n  f()": Repeat(3, F, until=Var("done"), collect="ys"),
    "assert x": Assert(X),
    'assert x == 1, "why"': Assert(Expr("==", (X, 1)), "why"),
    "try\n  f()": Try(F),
    "try\n  f()\ncatch\n  g()": Try(F, handler=G),
    "try\n  f()\ncatch err\n  g()": Try(F, catch="err", handler=G),
    "retry 3\n  f()": Retry(3, F),
    "retry 3, backoff: linear, delay: 250ms -> x\n  f()": Retry(3, F, backoff="linear", delay=250 * MS, bind="x"),
    "timeout 5s -> x\n  f()": Timeout(timedelta(seconds=5), F, bind="x"),
    "timeout 0ms\n  f()": Timeout(timedelta(0), F),
    'with_tools ["a.b", "c"] -> x\n  f()': WithTools(["a.b", "c"], F, bind="x"),
    "with_tools []\n  f()": WithTools([], F),
    'throttle "api", max: 5, per: 1m\n  f()': Throttle("api", F, max=5, per=timedelta(minutes=1)),
    'debounce "save", wait: 500ms\n  f()': Debounce("save", F, wait=500 * MS),
    # durability
    'memo x = read("f")': Memo("x", Call("read", (Lit("f"),))),
    "named x\n  named y\n    f()": NamedFlow(Chain((NamedFlow(F, "y"),)), "x"),
    '@durable(retries: 3, ttl: 7d)\nnamed "a-b"(n: Number)\n  f()\n  g()': DurableFlow(
        Chain((F, G)), "a-b", DurableOptions(retries=3, ttl=timedelta(days=7)), (Param("n", "Number"),)
    ),
    "scope\n  f()": Scope(F),
    "saga\n  step\n    f()": Saga(Step(F)),
}

CASE_76: dict[str, AnyFlow] = {
    'scope h = lock.get("x")\n  f()\nfinally\n  g(h)': Scope(
        F, acquire=Call("lock.get", (Lit("x"),)), bind="h", finally_=Call("g", (Var("h"),))
    ),
    "scope h = f()\n  f()": Scope(F, acquire=F, bind="h"),
    "scope\n  f()\nfinally\n  g()": Scope(F, finally_=G),
    "saga\n  step\n    f()\n  undo\n    g()\n  step\n    g()": Saga(Step(F, undo=G), Step(G)),
    "saga\n  step\n    f()\n    f()": Saga(Step(F, F)),
    'await "form"': Await("form"),
    'await x = "form"': Await("form", "x"),
    'await x: Number = "form"': Await("form", "x", "Number"),
    'await x: Number = "form", when: needed': Await("form", "x", "Number", Var("needed")),
    'await "form", when: !done': Await("form", when=Expr("!", (Var("done"),))),
    'once "charge"\n  f()': Once("charge", F),
    'once "charge" -> receipt\n  f()': Once("charge", F, bind="receipt"),
    'memo x: String = read("f")': Memo("x", Call("read", (Lit("f"),)), "String"),
    '@effect(read)\nmemo x: String = read("f")': Memo("x", Call("read", (Lit("f"),)), "String", "read"),
    'memo x = ai_segment(goal: "go")': Memo("x", AiSegment("go")),
    'checkpoint "phase-1"': Checkpoint("phase-1"),
}

TRIGGERS: dict[str, AnyFlow] = {
    'every "*/5 * * * *"': Every("*/5 * * * *"),
    'every "30 2 * * *", tz: "Europe/Berlin"\n  f()\n  g()': Every("30 2 * * *", F, G, tz="Europe/Berlin"),
    'at "2026-03-01T08:00:00Z"': At(datetime(2026, 3, 1, 8, tzinfo=UTC)),
    'at "2026-03-01T08:00:00.250000Z"\n  f()': At(datetime(2026, 3, 1, 8, 0, 0, 250_000, tzinfo=UTC), F),
    "at x": At(Var("x")),
    "at $when\n  f()": At(Var("when"), F),
    'at "{x}T08:00Z"\n  f()': At("{x}T08:00Z", F),
    'at fmt("{x}Z")': At(Format("{x}Z")),
    'at x + "Z"\n  f()\n  g()': At(Expr("+", (Var("x"), Lit("Z"))), F, G),
    "at x.due?": At(Field(Var("x"), ("due",), optional=True)),
    "at soon(10)\n  f()": At(Call("soon", (Lit(10),)), F),
    'webhook "orders:new"': Webhook("orders:new"),
    'webhook "orders"\n  every "* * * * *"\n    f()': Webhook("orders", Every("* * * * *", F)),
    'parallel\n  branch\n    webhook "orders"\n      f()\n  branch\n    g()': All(Webhook("orders", F), G),
}

CASE_78: dict[str, AnyFlow] = {
    'once "a -> b"\n  f("c -> d")': Once("a -> b", Call("f", (Lit("c -> d"),))),
    'once "a -> b" -> x\n  f()': Once("a -> b", F, bind="x"),
    'checkpoint "-> x"': Checkpoint("-> x"),
    'each x in "->" -> ys\n  f()': Each("x", "->", F, collect="ys"),
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_is_what_the_builder_makes(statement: str) -> None:
    check(statement, STATEMENTS[statement])


@pytest.mark.parametrize("statement", TRIGGERS)
def test_a_trigger_is_read_and_written_as_it_stands(statement: str) -> None:
    check(statement, TRIGGERS[statement])


def test_a_flow_of_one_trigger_is_a_chain_of_it() -> None:
    flow = NamedFlow(Chain([Webhook("orders", F)]), "intake")
    text = 'flow intake\n  webhook "orders"\n    f()\n'
    assert parse(text)["intake"] == flow
    assert format(flow) == text


@pytest.mark.parametrize("statement", CASE_76)
def test_case_76_a_durability_node_is_read_and_written_as_it_stands(statement: str) -> None:
    check(statement, CASE_76[statement])


@pytest.mark.parametrize("statement", CASE_78)
def test_case_78_an_arrow_in_a_text_is_no_arrow(statement: str) -> None:
    check(statement, CASE_78[statement])


def test_every_kind_of_flow_has_a_spelling_here() -> None:
    flows = [*STATEMENTS.values(), *TRIGGERS.values(), *CASE_76.values()]
    seen = {type(body_of(part)) for flow in flows for _, part in walk(flow)}
    assert seen == set(KINDS)


VALUES: dict[str, object] = {
    "null": None,
    "true": True,
    "1": 1,
    "-1": -1,
    "1.0": 1.0,
    "-0.5": -0.5,
    "1e+300": 1e300,
    '"a \\"b\\" ä"': 'a "b" ä',
    '["a", {"b": [1, null]}, -1]': ["a", {"b": [1, None]}, -1],
    "[]": [],
    "{}": {},
    "x": X,
    "$when": Var("when"),
    "x.a.b": Field(X, ("a", "b")),
    'x[0]["k y"].when?': Field(X, (0, "k y", "when"), optional=True),
    "x[-1]": Field(X, (-1,)),
    "(x.a).b": Field(Field(X, ("a",)), ("b",)),
    "(x.a?).b": Field(optional(ref("x").a), ("b",)),
    "f().a": Field(F, ("a",)),
    "peek x.a": Field(Peek("x"), ("a",)),
    '"x".a': Field(Lit("x"), ("a",)),
    "(1).a": Field(Lit(1), ("a",)),
    "[x][0]": Field(List_((X,)), (0,)),
    "(x + 1).a": Field(Expr("+", (X, 1)), ("a",)),
    'fmt("a {x}")': Format("a {x}"),
    'parse(x.a, as: "f64")': Parse(Field(X, ("a",)), "f64"),
    '[x, {"a": 1}]': List_((X, Lit({"a": 1}))),
    '{"a": x, "b": [1]}': Obj({"a": X, "b": [1]}),
    "x + 1 > 3": ref("x") + 1 > 3,
    "x - 1 - 1": ref("x") - 1 - 1,
    "x - (1 - 1)": Expr("-", (X, Expr("-", (Lit(1), Lit(1))))),
    "(x + 1) * 2": (ref("x") + 1) * 2,
    "x + 1 * 2": ref("x") + Expr("*", (Lit(1), Lit(2))),
    "x - -1": ref("x") - -1,
    "-1 + x": -1 + ref("x"),
    "-x": -ref("x"),
    "-(1)": Expr("neg", (Lit(1),)),
    "-(-1)": Expr("neg", (Lit(-1),)),
    "-(1).a": Expr("neg", (Field(Lit(1), ("a",)),)),
    "--x": Expr("neg", (-ref("x"),)),
    "!x": negate(ref("x")),
    "!(x == 1)": negate(ref("x") == 1),
    "!x == y": Expr("==", (Expr("!", (X,)), Y)),
    "x || y && x == y": ref("x") | (ref("y") & (ref("x") == ref("y"))),
    "(x || y) && x": (ref("x") | ref("y")) & ref("x"),
    "x == y == x": (ref("x") == ref("y")) == ref("x"),
    "x < (y < x)": ref("x") < (ref("y") < ref("x")),
    "x / y * x": ref("x") / ref("y") * ref("x"),
    "f() + peek x": Expr("+", (F, Peek("x"))),
}


@pytest.mark.parametrize("text", VALUES)
def test_a_value_is_what_the_builder_makes(text: str) -> None:
    check(f"y = {text}", Bind("y", VALUES[text]))


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("$x + $y >= 3", "emit x + y >= 3"),
        ("x.y", "emit x.y"),
        ('fmt("a")', 'emit fmt("a")'),
        ('parse(x, as: "json",)', 'emit parse(x, as: "json")'),
        ("!x", "emit !x"),
        ("(f())", "f()"),
        ("y = ((x))", "y = x"),
        ("y = (x == y) == x", "y = x == y == x"),
        ("y = x -1", "y = x - 1"),
        ("y = - 1", "y = -(1)"),
        ("y = 1_000", "y = 1000"),
        ("y = 1E3", "y = 1000.0"),
        ('y = """a\\n"""', 'y = "a\\\\n"'),
        ("f(x: x, y: y)", "f(x, y)"),
        ("f($x, $when)", "f(x, $when)"),
        ('f({"a": x})', "f(a: x)"),
        ('agents "a"', "agents a"),
        ('notify "when"', 'notify "when"'),
        ("return null", "return"),
        ("timeout 5000\n  f()", "timeout 5s\n  f()"),
        ("timeout 1_500ms\n  f()", "timeout 1500ms\n  f()"),
        ("timeout 24h\n  f()", "timeout 1d\n  f()"),
        ("retry 3, delay: 500ms, backoff: exponential\n  f()", "retry 3\n  f()"),
        ('assert x, ""', "assert x"),
        ('@json {"kind": "return"}', "return"),
        ("@durable()\nnamed x\n  f()", "@durable\nnamed x\n  f()"),
    ],
)
def test_another_spelling_is_written_in_the_canonical_one(written: str, canonical: str) -> None:
    source = parse(f"flow t\n{indented(written)}")
    assert format(source) == f"flow t\n{indented(canonical)}"
    assert parse(format(source)) == source


def test_a_goal_a_return_type_and_comments_are_dropped() -> None:
    source = '# about\nflow a -> List<String> # is a\n  goal "to be documented" # here\n  f() # and there\n'
    assert format(parse(source)) == "flow a\n  f()\n"


def test_a_module_keeps_the_order_of_its_flows() -> None:
    module = parse('flow b\n  f()\n\n@durable\nflow "a:1"(name: String)\n  g()\n')
    assert list(module) == ["b", "a:1"]
    assert len(module) == 2
    assert module["b"] == NamedFlow(F, "b")
    assert module["a:1"] == DurableFlow(G, "a:1", DurableOptions(), (Param("name", "String"),))
    with pytest.raises(KeyError, match="there is no flow 'c'; there is b, a:1"):
        module["c"]
    assert module != parse('@durable\nflow "a:1"(name: String)\n  g()\nflow b\n  f()\n')


def test_a_text_of_several_lines_is_written_as_it_stands() -> None:
    text = 'two\n  lines, "quoted" \\n\n'
    flow = NamedFlow(Bind("x", text), "t")
    assert format(flow) == f'flow t\n  x = """{text}"""\n'
    assert parse(format(flow))["t"] == flow
