"""Margins, comments, blank lines and line breaks."""

import pytest

from bb.errors import InvalidText
from bb.flows.expressions import Obj
from bb.flows.tree import Bind, Call, Chain, NamedFlow, When
from bb.text import parse

F, G = Call("f"), Call("g")
WHEN = NamedFlow(Chain((When(True, F, otherwise=G), F)), "a")


@pytest.mark.parametrize(
    "source",
    [
        "flow a\n  when true\n    f()\n  else\n    g()\n  f()\n",
        "flow a\n when true\n      f()\n else\n   g()\n f()",
        "flow a\r\n  when true\r\n    f()\r\n  else\r\n    g()\r\n  f()\r\n",
        "\ufeffflow a\n  when true\n    f()\n  else\n    g()\n  f()\n",
        "\n\n# c\n   # c\nflow a # c\n\n# c\n  when true # c\n        # c\n    f() # c\n# c\n\n  else\n    g()\n \n\t\n  f()\n  # c\n#c",
        "flow a\n  when true\n    f()\n\n    # c\n  # c\n\n  else\n    g()\n  f()\n        ",
    ],
)
def test_margins_may_be_of_any_width_and_comments_and_blank_lines_anywhere(source: str) -> None:
    assert parse(source)["a"] == WHEN


def test_inside_brackets_line_breaks_and_margins_are_free() -> None:
    source = "flow a\n  x = f(\n# c\na: [ 1,\n\n      2 , ], # c\n  b: {\n}\n,)\n  g()\n"
    call = Call("f", (Obj({"a": [1, 2], "b": {}}),))
    assert parse(source)["a"] == NamedFlow(Chain((Bind("x", call), G)), "a")


def test_a_text_over_several_lines_is_taken_as_it_stands() -> None:
    source = 'flow a\r\n  x = """one\r\n  "two" \\n # no comment\r\n"""\r\n  f()\r\n'
    assert parse(source)["a"].body == Chain((Bind("x", 'one\n  "two" \\n # no comment\n'), F))


def test_lines_after_a_text_over_several_lines_are_counted() -> None:
    with pytest.raises(InvalidText) as caught:
        parse('flow a\n  x = f("""\n\n""", b ; c)\n')
    assert (caught.value.line, caught.value.column) == (4, 8)


def test_sources_with_nothing_in_them() -> None:
    assert [len(parse(source)) for source in ("", "\n", "   ", "# c", "\t\n", "\n # c\n")] == [0] * 6


@pytest.mark.parametrize(
    ("source", "line", "column", "message", "remedy"),
    [
        ("flow a\n\tf()\n", 2, 1, "a tab in the margin", "spaces"),
        ("flow a\n  \tf()\n", 2, 3, "a tab in the margin", "spaces"),
        ("flow a\n    f()\n  g()\n", 3, 3, "no depth that is open", "0 spaces"),
        ("flow a\n  when x\n      f()\n    g()\n", 4, 5, "no depth that is open", "0, 2 spaces"),
        ("flow a\n  f()\n    g()\n", 3, 5, "deeper than the one above", "one margin"),
        ("  flow a\n    f()\n", 1, 3, "deeper than the one above", "one margin"),
        ("flow a\n  when x\n    f()\n else\n    g()\n", 4, 2, "no depth that is open", "0 spaces"),
        ("flow a\n  when x\n    f()\n    else\n      g()\n", 4, 5, "not 'else'", "as deep as that when"),
        ("flow a\nf()\n", 2, 1, "expected an indented block, not 'f'", ""),
    ],
)
def test_a_margin_that_fits_nothing(source: str, line: int, column: int, message: str, remedy: str) -> None:
    with pytest.raises(InvalidText) as caught:
        parse(source)
    error = caught.value
    assert (error.line, error.column) == (line, column)
    assert message in error.message
    assert remedy in error.remedy
