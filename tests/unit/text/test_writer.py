"""What is written: anything with a name, by a spelling or as JSON; and the laws of writing."""

import json
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings

from bb.agents.agent import Agent
from bb.errors import WiringError
from bb.flows.expressions import Field, List_, Lit, Obj, Parse, Var
from bb.flows.options import DurableOptions
from bb.flows.tree import (
    AiSegment,
    All,
    AnyFlow,
    Await,
    Bind,
    Call,
    Chain,
    DurableFlow,
    Each,
    Emit,
    Flow,
    NamedFlow,
    Notify,
    Param,
    Peek,
    Repeat,
    Return,
    Saga,
    Scope,
    Step,
    Timeout,
    Try,
    When,
)
from bb.redaction import redact
from bb.text import Module, format, parse
from tests.language_flows import any_flow, at_the_top, named_flow

F = Call("f")
MS = timedelta(milliseconds=1)


@settings(max_examples=150)
@given(any_flow(2))
def test_law_what_was_written_reads_as_what_it_was(flow: AnyFlow) -> None:
    named = at_the_top(flow)
    text = format(named)
    module = parse(text)
    assert module == Module({named.id: named})
    assert format(module) == text
    assert text.endswith("\n")
    assert "@json" not in text


@settings(max_examples=50)
@given(any_flow(1))
def test_law_a_flow_without_a_name_is_written_as_the_statements_under_one(flow: AnyFlow) -> None:
    named = at_the_top(flow)
    if named is not flow:
        lines = format(named).split("\n", 1)[1]
        if '"""' not in lines:
            assert lines == "".join(f"  {line}\n" for line in format(flow).rstrip("\n").split("\n"))
    assert format(named) == format(Module({named.id: named}))


@settings(max_examples=50)
@given(named_flow(1), named_flow(1))
def test_law_a_module_is_its_flows_one_after_another(
    one: NamedFlow | DurableFlow, other: NamedFlow | DurableFlow
) -> None:
    module = Module({one.id: one, other.id: other})
    assert parse(format(module)) == module
    assert format(Module()) == ""


@pytest.mark.parametrize(
    "flow",
    [
        All(),
        When(True),
        When(True, F, Each("x", [], collect=None)),
        Saga(),
        Saga(Step()),
        Scope(F, bind="h"),
        Scope(F, acquire=F),
        Await("form", None, "Number"),
        Each("x", [1], F, flat=True),
        Try(F, catch="e"),
        Bind("a b", 1),
        Bind("x", 1, "when"),
        Bind("x", 1, None, "when"),
        Bind("x", (1, 2)),
        Bind("x", {1: 2}),
        Bind("x", float("nan")),
        Bind("x", [b"bytes"]),
        Bind("x", Obj({"a": 1})),
        Bind("x", Obj({})),
        Bind("x", List_([Lit(1)])),
        Bind("x", Field(Var("x"), ())),
        Bind("x", Parse(Var("a b"), "json")),
        Emit(Peek("a b")),
        Call("when"),
        Call("a b"),
        Call("f", (Obj({}),)),
        Call("f", (Obj({"a b": 1}),)),
        NamedFlow(Chain(()), "empty"),
        NamedFlow(F, "a", (Param("a b"),)),
        NamedFlow(F, "a", (Param("a", "when"),)),
        NamedFlow(All(Chain(()), Chain((F,))), "chains"),
        NamedFlow(Chain((F,)), "one"),
        Bind("x", "a", None, "a b"),
        Call("f", (1, 2)),
        Timeout(-MS, F),
    ],
)
def test_what_has_no_spelling_is_written_as_json(flow: AnyFlow) -> None:
    named = NamedFlow(Chain((F, flow, F)), "t")
    text = format(named)
    assert "@json {" in text
    assert text.startswith("flow t\n  f()\n")
    assert text.endswith("\n  f()\n")
    assert parse(text)["t"] == named
    assert format(parse(text)) == text


@pytest.mark.parametrize("params", [(Param("a b"),), (Param("a", "when"),)])
def test_a_flow_at_the_margin_without_a_spelling_is_written_as_json(params: tuple[Param, ...]) -> None:
    flow = DurableFlow(F, "a", DurableOptions(retries=1), params)
    assert format(flow).startswith('@json {"')
    assert parse(format(flow))["a"] == flow


def test_only_the_statement_without_a_spelling_is_written_as_json() -> None:
    flow = NamedFlow(When(True, F, Bind("x", (1, 2)), otherwise=F), "t")
    lines = format(flow).splitlines()
    assert lines[:3] == ["flow t", "  when true", "    f()"]
    assert json.loads(lines[3].strip().removeprefix("@json "))["kind"] == "bind"
    assert lines[4:] == ["  else", "    f()"]


def test_an_odd_text_is_written_so_that_it_can_be_seen() -> None:
    for odd in ("\u202e", "\u2028", "\x7f", "\ud800", "\u200b", "\ufeff", "\x00"):
        text = format(NamedFlow(Return(f"a{odd}\nb"), "t"))
        assert odd not in text
        assert text.isprintable() or text.count("\n") == 2
        assert parse(text)["t"].body == Return(f"a{odd}\nb")
    assert format(Return("ä €")) == 'return "ä €"\n'


@pytest.mark.parametrize("text", ["\n", 'a\n"', 'a\n"""', '"\na', "a\r\nb", "a\n\tb", "\\\n", "#\n#", "a\n  b\n"])
def test_a_text_of_several_lines(text: str) -> None:
    module = Module({"t": NamedFlow(Chain((Return(text), F)), "t")})
    assert parse(format(module)) == module


async def send_mail(_: str) -> None:
    """Send nothing."""


async def answer(turn: Any, chat: Any) -> None:
    """Say nothing."""


def test_agents_and_senders_are_written_by_their_names() -> None:
    flow = NamedFlow(Chain((Flow((Agent().on_message(answer),)), Notify(send_mail))), "t")
    assert format(flow) == "flow t\n  agents answer\n  notify send_mail\n"
    assert parse(format(flow))["t"] == flow


@pytest.mark.parametrize(
    ("flow", "path"),
    [
        (NamedFlow(Flow((Agent(),)), "t"), "t"),
        (NamedFlow(When(True, NamedFlow(Chain((F, Flow((Agent(),)))), "in")), "t"), "t/in/body~agents.1"),
        (NamedFlow(Chain((F, Notify(partial(send_mail)))), "t"), "t/body~notify.1"),
        (DurableFlow(F, "t", DurableOptions(ttl=timedelta(microseconds=1))), "t"),
        (NamedFlow(Chain((F, Repeat(True, F))), "t"), "t/body~repeat.1"),
        (All(F, Flow((Agent(),))), "flow~all.0/branch~agents.1"),
    ],
)
def test_what_has_no_name_or_no_json_form_has_no_text(flow: AnyFlow, path: str) -> None:
    with pytest.raises(WiringError) as caught:
        format(flow)
    assert caught.value.path == path
    assert "no spelling" in caught.value.message


def test_a_registered_secret_is_not_written() -> None:
    redact("hunter2hunter2")
    for flow in (Return("x hunter2hunter2"), Return(["hunter2hunter2\n"]), Emit(AiSegment("\nhunter2hunter2"))):
        with pytest.raises(WiringError, match="secret"):
            format(NamedFlow(flow, "t"))
    assert parse(format(NamedFlow(Return("a\nb"), "t")))["t"].body == Return("a\nb")


def test_counts_and_times_in_their_shortest_words() -> None:
    spans = {1: "1ms", 1_000: "1s", 1_500: "1500ms", 60_000: "1m", 90_000: "90s", 3_600_000: "1h", 7 * 86_400_000: "7d"}
    for count, text in spans.items():
        assert format(Timeout(count * MS, F)) == f"timeout {text}\n  f()\n"
    assert format(Repeat(-1, F)) == "repeat -1\n  f()\n"
    assert format(AiSegment("x")) == 'ai_segment(goal: "x")\n'
