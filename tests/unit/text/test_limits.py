"""Texts that are too long or too deep end before they are parsed; nothing crashes, and nothing takes more than its length."""

import subprocess
import sys
import threading
import time

import pytest

from bb.errors import InvalidText, WiringError
from bb.flows.expressions import Expr, Lit, Value, Var
from bb.flows.tree import Call, NamedFlow, Return, When
from bb.text import Module, format, parse

DEPTH = 128


def nested(blocks: int) -> str:
    """A flow of so many blocks in one another."""
    return "flow a\n" + "".join(f"{' ' * i}when x\n" for i in range(1, blocks)) + " " * blocks + "f()\n"


def fault(source: str, **limit: int) -> InvalidText:
    with pytest.raises(InvalidText) as caught:
        parse(source, **limit)
    return caught.value


def test_the_length_counts_in_bytes() -> None:
    source = "# ä\n"
    assert len(parse(source, limit=5)) == 0
    assert "longer than 4 bytes" in fault(source, limit=4).message
    assert "longer than 3 bytes" in fault(source, limit=3).message


def test_a_mebibyte_is_read_and_no_more() -> None:
    assert len(parse("#" * 2**20)) == 0
    error = fault("#" * (2**20 + 1))
    assert (error.line, error.column) == (1, 1)
    assert "limit=" in error.remedy


def test_words_and_signs_count_as_well_since_they_are_what_takes_time() -> None:
    line = "  x = 1\n"  # four of them, with the end of the line
    source = "flow a\n" + line * 248
    most = "flow a\n" + line * 249  # 1,000 with those of the first line, and the two around the block
    assert len(parse(source)["a"].body.steps) == 248  # type: ignore[union-attr]  # a chain
    assert len(parse(most, limit=4 * 1001)) == 1
    error = fault("flow a\n" + line * 400, limit=3900)
    assert "more than 1,000 words and signs" in error.message and "limit=" in error.remedy
    assert (error.line, error.column) == (251, 3)


def test_what_is_heaviest_to_read_ends_at_the_limit() -> None:
    heaviest = "flow a\n" + "  x=1+1+1+1+1\n" * 74_000
    assert 0.95 * 2**20 < len(heaviest) < 2**20
    error = fault(heaviest)
    assert "more than 262,144 words and signs" in error.message and error.line < 25_000


def test_blocks_nest_as_deep_as_the_limit() -> None:
    module = parse(nested(DEPTH - 1))
    assert parse(format(module)) == module
    error = fault(nested(DEPTH + 1))
    assert (error.line, error.column) == (DEPTH + 2, DEPTH + 2)
    assert "nested more than 128 deep" in error.message


def test_brackets_nest_as_deep_as_the_limit() -> None:
    assert parse(f"flow a\n  x = {'(' * 127}y{')' * 127}\n") == parse("flow a\n  x = y\n")
    error = fault(f"flow a\n  x = {'(' * 128}y{')' * 128}\n")
    assert (error.line, error.column) == (2, 7 + 127)
    module = parse(f"flow a\n  x = {'[' * 125}1{']' * 125}\n")
    assert parse(format(module)) == module
    assert "nested" in fault(f"flow a\n  x = {'[' * 127}y{']' * 127}\n").message


def test_blocks_and_brackets_count_together() -> None:
    blocks = nested(100).replace("f()", f"x = {'[' * 24}y{']' * 24}")
    assert parse(format(parse(blocks))) == parse(blocks)
    assert "nested" in fault(nested(100).replace("f()", f"x = {'[' * 40}y{']' * 40}")).message


@pytest.mark.parametrize(
    "formula",
    [
        "x + " * 200 + "x",
        "!" * 200 + "x",
        "- " * 200 + "x",
        "x || " * 20_000 + "x",
        "f(" * 200 + ")" * 200,
        "x" + ".a" * 9 + "?" * 200,
    ],
)
def test_a_formula_too_deep_for_the_stack_is_refused(formula: str) -> None:
    assert fault(f"flow a\n  y = {formula}\n").line == 2


def test_what_can_be_read_can_be_written() -> None:
    for terms in (100, 125, 126):
        module = parse(f"flow a\n  y = {'x + ' * (terms - 1)}x\n")
        assert parse(format(module)) == module


def deep_value() -> Value:
    value: Value = Var("x")
    for _ in range(200):
        value = Expr("!", (value,))
    return value


def deep_literal() -> Lit:
    value: object = 1
    for _ in range(90):
        value = [value]
    return Lit(value)


def deep_flow() -> When:
    flow = When(True, Call("f"))
    for _ in range(200):
        flow = When(True, flow)
    return flow


def test_what_could_not_be_read_is_not_written() -> None:
    deep: tuple[Return | When, ...] = (Return(deep_value()), deep_flow(), When(deep_value(), Call("f")))
    for flow in deep:
        with pytest.raises(WiringError, match="nested more than 128 deep") as caught:
            format(NamedFlow(flow, "a"))
        assert caught.value.path.startswith("a")
        assert caught.value.remedy
    assert parse(format(NamedFlow(Return(deep_literal()), "a")))["a"].body == Return(deep_literal())


LONG = {
    "an open bracket": "flow a\n  x = " + "(" * 2**19,
    "open types": "flow a\n  x: " + "List<" * 2**15,
    "open types as values": "flow a\n  x = " + "List<" * 2**15,
    "quotes": "flow a\n  x = " + '"' * 2**19,
    "an open text": "flow a\n  x = " + '"' + "\\\\" * 2**18,
    "digits": "flow a\n  x = " + "1" * 2**19,
    "digits and a letter": "flow a\n  x = -" + "1" * 2**19 + "x",
    "blank lines": "\n" * 2**19,
    "tabs": "flow a\n" + "\t" * 2**19,
    "spaces": "flow a\n  f(" + "a  " * 2**17,
    "comments": "flow a\n" + "  # c\n\n" * 2**16,
    "marks": "@durable\n" * 2**16,
    "a record": "flow a\n  @json " + '{"a": ' * 2**16,
    "one long word": "flow a\n  " + "a" * 2**19,
    "a long word out of place": "flow a " + "a" * 2**19,
    "a long key twice": "flow a\n  f(" + ("a" * 2**18 + ": 1, ") * 2,
}


@pytest.mark.parametrize("source", LONG.values(), ids=LONG)
def test_a_long_source_is_refused_or_read_in_no_time(source: str) -> None:
    began = time.process_time()
    shown = ""
    try:
        parse(source)
    except InvalidText as error:
        shown = str(error)
    assert len(shown) < 2_000
    assert time.process_time() - began < 5


def test_values_in_a_long_nested_literal_are_copied_once() -> None:
    def taken(depth: int) -> float:
        source = f"flow a\n  x = {'[' * depth}{'1, ' * 2_000}{']' * depth}\n"
        began = time.process_time()
        parse(source)
        return time.process_time() - began

    parse("")
    assert min(taken(100) for _ in range(3)) < 5 * min(taken(1) for _ in range(3))


def test_the_parser_serves_many_threads() -> None:
    source = "flow a\n" + "  x = f(a: 1, b: [x])\n" * 50
    modules: list[Module] = []
    threads = [threading.Thread(target=lambda: modules.append(parse(source))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert modules == [parse(source)] * 8


def test_neither_bb_nor_writing_loads_the_parser() -> None:
    probe = "import sys, bb, bb.text; bb.text.format(bb.Respond()); assert 'lark' not in sys.modules; bb.text.parse(''); assert 'lark' in sys.modules"
    subprocess.run([sys.executable, "-c", probe], check=True)


@pytest.mark.parametrize(("said", "most"), [('at "2026-03-01T08:00:00Z"', 126), ("at x", 125), ("at -(-x)", 123)])
def test_the_time_of_a_trigger_ends_at_one_depth_for_reader_and_writer(said: str, most: int) -> None:
    source = nested(most + 1).replace("f()", said)
    flow = parse(source)["a"]
    assert parse(format(flow))["a"] == flow
    assert "deep" in fault(nested(most + 2).replace("f()", said)).message
