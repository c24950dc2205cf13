"""The reference of the language tells of every kind there is, and its examples mean the same in all three spellings."""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

import pytest

import bb
from bb.check.sites import sites
from bb.check.spots import spots
from bb.flows.expressions import EXPRESSIONS
from bb.flows.names import RESERVED
from bb.flows.tree import KINDS
from bb.flows.types import EFFECTS
from bb.ops import catalogue
from tests.project.test_documents import FENCE, ROOT, run

DOCUMENTS: Final = ("docs/language.md", "docs/choosing.md")
CONSTRUCTS: Final[Mapping[str, Any]] = {of.__name__: of for of in (*KINDS, *EXPRESSIONS)}

HEADING: Final = re.compile(r"^#{2,3} (?P<title>.+)$", re.MULTILINE)
ROW: Final = re.compile(
    r"^\| \[`(?P<name>\w+)`\]\(#(?P<anchor>\w+)\) \| `(?P<kind>\w+)` \| `(?P<rule>\w+)` \| [^|]+ \|$", re.MULTILINE
)
EXAMPLE: Final = re.compile(
    r"^```bb\n(?P<text>.*?)^```\n\n```python\n(?P<python>.*?)^```\n\n```json\n(?P<wire>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Example(NamedTuple):
    """A flow in three spellings; its Python binds `flow`."""

    document: str
    place: int
    section: str
    text: str
    wire: str

    @property
    def read(self) -> bb.NamedFlow | bb.DurableFlow:
        """The flow that the text is."""
        module = bb.text.parse(self.text)
        (id,) = module
        return module[id]

    @property
    def built(self) -> bb.NamedFlow | bb.DurableFlow:
        """The flow that the Python makes."""
        flow: bb.NamedFlow | bb.DurableFlow = bound(self.document)["examples"][self.place]
        return flow


@cache
def source(document: str) -> str:
    return (ROOT / document).read_text("utf-8")


@cache
def bound(document: str) -> Mapping[str, Any]:
    """What the Python of a document binds, and in `examples` the flows of its examples in order."""
    keeping = EXAMPLE.sub(r"```python\n\g<python>examples.append(flow)\n```", source(document))
    return run(document, f"```python\nexamples = []\n```\n{keeping}")


def sections(text: str) -> dict[str, str]:
    """The text under each heading by its title. What begins with # in a fenced block is no heading."""
    marks = [*HEADING.finditer(FENCE.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text))]
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return {mark["title"]: text[mark.end() : end] for mark, end in zip(marks, ends, strict=True)}


def examples() -> Iterator[Example]:
    for document in DOCUMENTS:
        place = 0
        for title, text in sections(source(document)).items():
            for found in EXAMPLE.finditer(text):
                yield Example(document, place, title, found["text"], found["wire"])
                place += 1


EXAMPLES: Final = tuple(examples())
REFERENCE: Final = source("docs/language.md")
each_example: Final = pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: f"{one.document}:{one.section}")
each_construct: Final = pytest.mark.parametrize("name", CONSTRUCTS)


def constructs(flow: bb.AnyFlow) -> set[type]:
    """The kinds of flows and of values in a tree."""
    found: set[type] = set()
    for site in sites(flow):
        found |= {type(site.body), *(type(spot.value) for spot in spots(site))}
    return found


def grammar() -> str:
    (block,) = (match["code"] for match in FENCE.finditer(REFERENCE) if match["language"] == "ebnf")
    return str(block)


def of_lark() -> str:
    return (files("bb.text") / "grammar.lark").read_text("utf-8")


# --- the reference is complete ---


def test_the_tables_list_every_construct_and_nothing_else() -> None:
    assert [row["name"] for row in ROW.finditer(REFERENCE)] == list(CONSTRUCTS)


@each_construct
def test_a_construct_has_a_row_a_rule_a_section_and_an_example(name: str) -> None:
    (row,) = (row for row in ROW.finditer(REFERENCE) if row["name"] == name)
    assert row["kind"] == CONSTRUCTS[name].kind
    assert row["anchor"] == name.lower()
    assert re.search(rf"^{row['rule']} +=", grammar(), re.MULTILINE)
    assert re.search(rf"^\??{row['rule']}_?:|-> {row['rule']}\b", of_lark(), re.MULTILINE)
    (example,) = (one for one in EXAMPLES if one.document == DOCUMENTS[0] and one.section == name)
    assert CONSTRUCTS[name] in constructs(example.read)
    assert f'"kind": "{row["kind"]}"' in example.wire


@pytest.mark.parametrize("name", [of.__name__ for of in KINDS])
def test_a_section_of_a_kind_tells_its_edges(name: str) -> None:
    told = sections(REFERENCE)[name]
    assert "- **Edges:** " in told or "otherwise." in told  # as the kind before it, otherwise


def test_the_grammar_has_every_word_that_begins_or_joins_a_statement() -> None:
    declared = {
        word.lower() for line in re.findall(r"^%declare (.+)$", of_lark(), re.MULTILINE) for word in line.split()
    }
    assert declared & RESERVED <= set(re.findall(r'"@?(\w+)"', grammar()))


def test_the_grammar_names_no_rule_that_it_does_not_have() -> None:
    bare = re.sub(r'"[^"]*"|\(\*.*?\*\)', "", grammar())
    assert set(re.findall(r"\b[a-z_]+\b", bare)) == set(re.findall(r"^(\w+) +=", bare, re.MULTILINE))


def test_the_words_of_the_language_and_the_tags_of_effects_are_listed() -> None:
    told = sections(REFERENCE)
    (words,) = re.findall(r"as names of arguments they are fine:(.*?)\n\n", told["Grammar"], re.DOTALL)
    assert set(re.findall(r"`(\w+)`", words)) == RESERVED
    (tags,) = re.findall(r"The tags are (.*?)\n\n", told["Calls and ops"], re.DOTALL)
    assert set(re.findall(r"`(\w+)`", tags)) == set(EFFECTS)


# --- the examples are right ---


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_text_stands_without_its_other_spellings(document: str) -> None:
    languages = [match["language"] for match in FENCE.finditer(source(document))]
    count = sum(one.document == document for one in EXAMPLES)
    assert (languages.count("bb"), languages.count("json")) == (count, count)
    assert len(bound(document)["examples"]) == count > 0


@each_example
def test_the_three_spellings_are_one_flow(example: Example) -> None:
    assert example.read == example.built
    assert bb.wire.from_wire(json.loads(example.wire)) == example.built
    assert bb.signature(example.read) == bb.signature(example.built)


@each_example
def test_an_example_shows_what_the_writers_write(example: Example) -> None:
    assert bb.text.format(example.built) == example.text
    assert bb.wire.to_wire(example.built) == json.loads(example.wire)


def registry(document: str) -> dict[str, Any]:
    """The ops, agents and senders of a document; an op that was made anew under its name is the later one."""
    names = bound(document)
    ops = {one.name: one for one in names.values() if isinstance(one, bb.Op)}
    agents = [one for one in names.values() if isinstance(one, bb.Agent)]
    return {"ops": [*ops.values()], "agents": agents, "senders": [names[name] for name in ("pager",) if name in names]}


def beside(document: str) -> list[bb.NamedFlow]:
    """The flows of a document that its examples run by name."""
    return [flow for name, flow in bound(document).items() if name == "remember"]


@each_example
def test_an_example_passes_the_check(example: Example) -> None:
    known = catalogue(**registry(example.document))
    flows = {flow.id: flow for flow in (*beside(example.document), example.read)}
    assert bb.check(example.read, model=bb.FixedModel("done"), catalogue=known, flows=flows) == ()


@each_example
def test_an_example_runs_to_its_end_or_parks_in_every_spelling_alike(example: Example) -> None:
    # no coroutine: whichever test is the first to look at a document runs it, in a loop of its own
    flows = (example.read, example.built, bb.wire.from_wire(json.loads(example.wire)))
    one, *others = [asyncio.run(_came_to(example, flow)) for flow in flows]
    assert all(other == one for other in others)


async def _came_to(example: Example, flow: bb.AnyFlow) -> tuple[str, object]:
    """What a flow of an example answers, and its value; once more if it is durable, and then it replays."""
    waits = [site.body.source for site in sites(example.read) if isinstance(site.body, bb.Await)]
    given = {param.name: _STUBS[param.type] for param in example.read.params}
    assert isinstance(flow, bb.NamedFlow | bb.DurableFlow)
    app = bb.App(model=bb.FixedModel("done"), **registry(example.document))
    app.register(*beside(example.document), flow)
    outcome = await app.run(flow.id, "hello", params=given, run_id="r")
    assert outcome.waiting_for == (waits[0] if waits else None)
    if isinstance(flow, bb.DurableFlow):
        again = await app.run(flow.id, run_id="r")
        assert (again.answer, again.value, again.waiting_for) == (outcome.answer, outcome.value, outcome.waiting_for)
    return outcome.answer, outcome.value


_STUBS: Final[Mapping[str, object]] = {"String": "text", "List<String>": ["a", "b"]}
"""What a parameter of a type is given."""
