"""What is wrong with a text: where, what was expected, and what to do."""

from typing import Any

import pytest

from bb.errors import Fatal, InvalidInput, InvalidText
from bb.text import parse


def fault(source: str) -> InvalidText:
    with pytest.raises(InvalidText) as caught:
        parse(source)
    return caught.value


def check(statement: str, line: int, column: int, message: str, remedy: str = "") -> None:
    """A statement of a flow is refused; its own lines count from 1, columns are those of the source."""
    error = fault("flow t\n" + "".join(f"  {one}\n" for one in statement.split("\n")))
    assert (error.line - 1, error.column) == (line, column)
    assert message in error.message
    assert remedy in error.remedy


@pytest.mark.parametrize(
    ("statement", "line", "column", "message", "remedy"),
    [
        ("saga\n  undo\n    f()", 2, 5, "no step above", "right after"),
        ("scope x =\n  f()", 1, 12, "expected a value, not the end of the line", ""),
        ('checkpoint "a" b', 1, 18, "expected the end of the line, not 'b'", ""),
    ],
)
def test_case_77_an_arm_without_a_step_a_scope_without_a_value_a_label_with_more(
    statement: str, line: int, column: int, message: str, remedy: str
) -> None:
    check(statement, line, column, message, remedy)


@pytest.mark.parametrize(
    ("statement", "line", "column", "message", "remedy"),
    [
        # arguments
        ("f(a: 1, a: 2)", 1, 11, "a: is given twice", ""),
        ("f(x, x)", 1, 8, "x: is given twice", ""),
        ("f(a: 1, b)", 1, 11, "mixed", "its name"),
        ("f(x, 1)", 1, 8, "no name", "name: value"),
        ("f (x)", 1, 5, "not '('", "no space"),
        ('f({"a": 1, "a": x})', 1, 14, "'a' twice", ""),
        ("f({a: 1})", 1, 6, "expected '}' or a quoted text, not 'a'", '"a"'),
        ('f({"a": 1 "b"})', 1, 13, "expected an operator, ',' or '}', not a quoted text", ""),
        ("f(]", 1, 5, "not ']'", ""),
        ("f(1))", 1, 7, "not ')'", ""),
        ("f(", 1, 4, "never closed", ""),
        ("f(5s)", 1, 5, "not '5s'", "length of time"),
        # values that do nothing alone
        ('"x"', 1, 3, "does nothing", "emit"),
        ("1", 1, 3, "does nothing", "emit"),
        ("x", 1, 3, "does nothing", "emit"),
        ("($x)", 1, 4, "does nothing", "emit"),
        ('{"a": x}', 1, 3, "does nothing", "emit"),
        ("[1]", 1, 3, "does nothing", "emit"),
        # words
        ("when = 3", 1, 8, "expected a value, not '='", "$"),
        ("each when in x\n  f()", 1, 8, "expected a name, not 'when'", "$when"),
        ("notify when", 1, 10, "not 'when'", '"..."'),
        ("x.y = 1", 1, 7, "not '='", "== compares"),
        ("y = x z", 1, 9, "expected an operator or the end of the line, not 'z'", ""),
        ("y = x $z", 1, 9, "not '$z'", ""),
        ("y = x == ", 1, 12, "expected a value, not the end of the line", ""),
        ("flow b", 1, 3, "expected a statement, not 'flow'", "at the margin"),
        ("every x", 1, 9, "not 'x'", ""),
        ('every "never"', 1, 9, "has not five fields", "minute hour"),
        ('every "0 0 30 2 *"', 1, 9, "is no cron expression", "minute hour"),
        ('every "* * * * *", zone: "UTC"', 1, 22, "zone", "tz"),
        ('at "tomorrow"', 1, 6, "is no time", "ISO 8601"),
        ('at "2026-03-01T08:00:00"', 1, 6, "is no time", "ISO 8601"),
        ('webhook "a b"', 1, 11, "is no webhook id", "128"),
        ('emti "a"', 1, 8, "not a quoted text", "perhaps emit is meant"),
        ("retrun 1", 1, 10, "not '1'", "perhaps return is meant"),
        ("if x == 1\n  f()", 1, 6, "not 'x'", "no statement begins with if; perhaps when is meant"),
        ("for x in y\n  f()", 1, 7, "not 'x'", "perhaps each is meant"),
        ("while true\n  f()", 1, 9, "not 'true'", "perhaps repeat is meant"),
        ("quux 1", 1, 8, "not '1'", ""),
        ("let x = 1", 1, 7, "not 'x'", "x = 1"),
        ("not x", 1, 7, "not 'x'", "!"),
        ('call f("x")', 1, 8, "not 'f'", "a call stands alone"),
        ("elif x\n  f()", 1, 8, "not 'x'", "in the block of the else"),
        # clauses
        ("else\n  f()", 1, 3, "expected a statement, not 'else'", "its when"),
        ("catch e\n  f()", 1, 3, "not 'catch'", "its try"),
        ("finally\n  f()", 1, 3, "not 'finally'", "its scope"),
        ("branch a\n  f()", 1, 3, "not 'branch'", "select"),
        ("step\n  f()", 1, 3, "not 'step'", "saga"),
        ("@effect(read)\nf()", 2, 3, "not 'f'", ""),
        ("@durable\nf()", 2, 3, "expected 'named', not 'f'", ""),
        ("@other", 1, 3, "@other is unknown", "@durable"),
        ("when x\nf()", 2, 3, "expected an indented block, not 'f'", ""),
        ("saga x\n  step\n    f()", 1, 8, "expected the end of the line", ""),
        ("saga\n  step x\n    f()", 2, 10, "expected the end of the line", ""),
        ("saga\n  step\n    f()\n  undo x\n    f()", 4, 10, "expected the end of the line", ""),
        ("saga\n  step\n    f()\n  undo\n    f()\n  undo\n    f()", 6, 5, "a step has one undo", "right after"),
        ("select\n  branch\n    f()", 2, 5, "needs a name", "pick"),
        ("parallel\n  @durable\n  branch\n    f()", 2, 5, "only a branch with a name", "name it"),
        ("parallel\n  branch a\n    f()\n  branch a\n    f()", 1, 3, "'a'", "another id"),
        # settings
        ("repeat x\n  f()", 1, 10, "expected a number, not 'x'", ""),
        ("repeat 1.5\n  f()", 1, 10, "expected a whole number", ""),
        ("repeat 3, max: 1\n  f()", 1, 13, "repeat takes no max:", "until:"),
        ("repeat 3, until: x, until: y\n  f()", 1, 23, "until: is given twice", ""),
        ('throttle "x", max: 1\n  f()', 1, 3, "throttle needs per:", ""),
        ('throttle "x", max: 1, per: "a"\n  f()', 1, 30, "expected a length of time", "500ms"),
        ("retry 3, backoff: slow\n  f()", 1, 3, "'slow' is no backoff", "linear"),
        ('retry 3, backoff: "x"\n  f()', 1, 21, "without quotes", ""),
        ("timeout 99999999999999d\n  f()", 1, 11, "too long", ""),
        ("timeout 5x\n  f()", 1, 11, "no length of time", "500ms"),
        ("with_tools [a]\n  f()", 1, 14, "a list of quoted texts", "calendar.read"),
        ("with_tools [1]\n  f()", 1, 14, "a list of quoted texts", "calendar.read"),
        ("ai_segment(tools: [])", 1, 3, "needs goal:", ""),
        ('ai_segment("go")', 1, 14, "named arguments only", "goal:"),
        ('ai_segment(goal: "go", until: slot)', 1, 33, "expected a quoted text", ""),
        ('parse(x, as: "int")', 1, 16, "what to read it as", "json"),
        ('parse(x, to: "json")', 1, 12, "what to read it as", "json"),
        ("memo x = 1", 1, 12, "what a call comes to", "without memo"),
        ('agents "a b"', 1, 10, "'a b' is no agent name", "characters"),
        ('agents a(selects: "b")', 1, 21, "a list of quoted texts", ""),
        ("@durable(ttl: 0s)\nnamed x\n  f()", 1, 3, "ttl", "positive"),
        ('@durable(retries: "3")\nnamed x\n  f()', 1, 21, "a whole number", ""),
        ("x: List<List<A> = 1", 1, 3, "is no type", "List<...>"),
        # characters, texts, numbers
        ('x = "abc', 1, 7, "does not end on its line", '"""'),
        ('x = "a\\q"', 1, 9, "wrong escape", "JSON"),
        ('x = "a\tb"', 1, 9, "control character", "\\t"),
        ('x = """a', 1, 7, "never closed", ""),
        ("x = 'a'", 1, 7, "double quotes", ""),
        ("x = 3q", 1, 7, "no number", ""),
        ("x = 1e999", 1, 7, "too large", ""),
        (f"x = {'1' * 5000}", 1, 7, "too long", ""),
        ("x = a % b", 1, 9, "'%' means nothing", "remainder"),
        ("x = a | b", 1, 9, "'|' means nothing", "||"),
        ("x =\tb", 1, 6, "a tab", "spaces"),
        # raw statements
        ('@json {"kind": "nope"}', 1, 3, "'nope'", "known kinds"),
        ('@json {"kind": "when", "cond": {"kind": "var"}, "then": []}', 1, 3, "cond", ""),
        ('@json {"kind": x}', 1, 9, "plain JSON", ""),
        ("@json [1]", 1, 9, "expected '{', not '['", ""),
    ],
)
def test_a_wrong_statement(statement: str, line: int, column: int, message: str, remedy: str) -> None:
    check(statement, line, column, message, remedy)


@pytest.mark.parametrize(
    ("source", "line", "column", "message", "remedy"),
    [
        ("flow a\n  f()\nflow a\n  f()\n", 3, 6, "two flows are named 'a'", "another name"),
        ("flow\n", 1, 5, "expected a call, a name or a quoted text, not the end of the line", ""),
        ("flow a b\n", 1, 8, "expected '(', '->' or the end of the line, not 'b'", ""),
        ("flow a.b\n", 1, 7, "not '.b'", ""),
        ("flow a.b(x: T)\n  f()\n", 1, 6, "stands in quotes", '"a.b"'),
        ('flow "a b"\n  f()\n', 1, 6, "'a b' is no flow id", "characters"),
        ("flow a(1)\n  f()\n", 1, 8, "expected ')' or name:, not '1'", ""),
        ("flow a\n", 2, 1, "expected an indented block, not the end of the text", ""),
        ("@durable\n", 2, 1, "expected 'flow', not the end of the text", ""),
        ("x = 1\n", 1, 1, "expected 'flow', @durable, @json or the end of the text, not 'x'", ""),
        ('@json {"kind": "return"}\n', 1, 1, "only a flow with a name", ""),
        ('flow a\n  f()\n  goal "late"\n', 3, 8, "not a quoted text", ""),
        ("flow a\n  try\n    f()\nfinally\n  f()\n", 4, 1, "not 'finally'", "its scope"),
        ("flow a\n  f(\n  g()\n  x = 1\n", 4, 3, "not 'x'", "the ( of line 2 is still open"),
    ],
)
def test_a_wrong_module(source: str, line: int, column: int, message: str, remedy: str) -> None:
    error = fault(source)
    assert (error.line, error.column) == (line, column)
    assert message in error.message
    assert remedy in error.remedy


def test_an_error_shows_the_line_under_a_caret() -> None:
    error = fault("flow a\n  x = a b\n")
    assert error.shown == "    x = a b\n          ^"
    assert str(error).startswith(
        "line 2, column 9: expected an operator or the end of the line, not 'b'\n    x = a b\n"
    )
    assert isinstance(error, Fatal)
    assert isinstance(error, ValueError)


def test_of_a_long_line_only_the_part_around_is_shown() -> None:
    error = fault(f"flow a\n  x = [{'1, ' * 1000}; {'1, ' * 1000}]\n")
    line, caret = error.shown.split("\n")
    assert error.column == 3008
    assert len(line) < 120
    assert line[caret.index("^")] == ";"


def test_no_error_names_what_only_the_grammar_knows() -> None:
    for source in (
        "flow a\n  f(",
        "flow a\n  when",
        "flow a\n  x = ",
        "flow a\n  select\n    x",
        "flow a\n  saga\n  x",
        "flow a(",
        "f",
    ):
        message = fault(source).message.split("\n")[0]
        assert "_" not in message
        assert message == message.replace("LPAR", "").replace("NAME", "").replace("INDENT", "")


def test_what_is_no_text_is_refused() -> None:
    source: Any = b"flow a\n  f()\n"
    with pytest.raises(InvalidInput, match="bytes is no source text: give text"):
        parse(source)
