"""Whatever is read as source text: it is a module, or it is refused as a text, and never anything else."""

import random
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bb.errors import InvalidText
from bb.flows.names import RESERVED
from bb.flows.tree import DurableFlow, NamedFlow
from bb.text import Module, format, parse
from tests.language_flows import named_flow

CORPUS = [path.read_text("utf-8") for path in sorted((Path(__file__).parent / "corpus").glob("*.flow"))]
SIGNS = r"""
    x _y goal $when $x f( a.b( read.when( ( ) [ ] { } , : = == != < <= > >= + - * / ! && || ? -> .a .when # | & % ' \
    "" "a" "\n" "\ud800" "\q" 0 1 -1 1.5 1e9 1e999 500ms 5s 24h 1_0 a: when: max: until:
    @durable @effect @json @other List<A> List<List<A>> List<
"""
PIECES = [*sorted(RESERVED), *SIGNS.split(), '"""', '"""a\n"""', "\t", "\x00", "é", "\ud800", "\u2028"]
LAYOUT = ["\n", "\n  ", "\n    ", "\n      ", "\n   ", " ", "  ", "\r\n", "\n\n", "\n\t", "\n# c\n", ""]


def check(source: str) -> None:
    """The source is refused at a place in it, or what it holds is written as text that reads the same."""
    refused: InvalidText | None = None
    module = Module()
    try:
        module = parse(source)
    except InvalidText as error:
        refused = error
    if refused:
        assert 1 <= refused.line <= source.count("\n") + 1
        assert refused.column >= 1
        assert refused.message
    text = format(module)
    assert parse(text) == module
    assert format(parse(text)) == text


def mutated(source: str, random: random.Random, times: int) -> str:
    """The source with some of its parts cut out, doubled, moved or replaced."""
    parts = re.findall(r"\w+|\s+|.", source)
    for _ in range(times):
        at, other = random.randrange(len(parts) + 1), random.randrange(len(parts) + 1)
        match random.randrange(5):
            case 0:
                del parts[at : at + random.randrange(1, 4)]
            case 1:
                parts.insert(at, random.choice(PIECES))
            case 2:
                parts.insert(at, random.choice(LAYOUT))
            case 3:
                parts[at : at + 1] = parts[other : other + random.randrange(1, 9)]
            case _:
                parts[at:at] = parts[other : other + 1]
    return "".join(parts)


@pytest.mark.parametrize("source", CORPUS)
def test_the_corpus_is_read(source: str) -> None:
    assert len(parse(source)) > 0
    check(source)
    check(source.replace("\n", "\r\n"))


@settings(max_examples=200)
@given(st.text())
@example("flow a\n  x = -")
@example("@json {}")
def test_any_text(source: str) -> None:
    check(source)
    check(f"flow a\n  {source}")
    check(f"flow a\n  x = {source}\n")


@settings(max_examples=200)
@given(st.lists(st.sampled_from(PIECES) | st.sampled_from(LAYOUT), max_size=30), st.sampled_from(["", " "]))
def test_any_words_and_margins(pieces: list[str], between: str) -> None:
    check(between.join(pieces))
    check("flow a\n  f()\n  " + between.join(pieces))


@settings(max_examples=200)
@given(st.sampled_from(CORPUS), st.randoms(use_true_random=False), st.integers(1, 6))
def test_a_text_with_something_wrong_in_it(source: str, random: random.Random, times: int) -> None:
    check(mutated(source, random, times))


@settings(max_examples=100)
@given(named_flow(1), st.randoms(use_true_random=False), st.integers(0, 3))
def test_a_written_flow_with_something_wrong_in_it(
    flow: NamedFlow | DurableFlow, random: random.Random, times: int
) -> None:
    check(mutated(format(flow), random, times))


@settings(max_examples=100)
@given(st.sampled_from(CORPUS), st.integers(0, 2000))
def test_a_text_cut_short(source: str, length: int) -> None:
    check(source[:length])
