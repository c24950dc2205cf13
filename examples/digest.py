"""A digest of text files, written by a pipeline that may be killed anywhere and goes on where it was.

    python examples/digest.py                           # this project's README and docs, into ./digest.md
    python examples/digest.py notes/ --out notes.md     # any text files and folders
    python examples/digest.py --crash-after split       # die with SIGKILL there; the first line again resumes

Needs no key and no network. With OPENAI_API_KEY set (OPENAI_BASE_URL and OPENAI_MODEL too, if you like) and the extra
`bb-flow[openai]` installed, a model writes the report from the facts. Exit codes: 0 done, 1 the run failed, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import attrs

import bb

ROOT: Final = Path(__file__).resolve().parents[1]
SUFFIXES: Final = (".md", ".markdown", ".txt")
LONG: Final = 1500  # words; from here on a full report is worth its length
COMMON: Final = frozenset(
    re.findall(
        r"\w+",
        """about after again also another because been before being between both cannot could does done each either even every
        from have here into itself just like made make many more most must need needs never next nothing once only other over
        same should since some such than that their them then there these they this those through under until upon used uses
        very were what when where whether which while will with within without would your""",
    )
)

T = TypeVar("T")
Handler: TypeAlias = Callable[[bb.Turn, bb.ModelChat], Awaitable[None]]


@attrs.frozen
class Document:
    """A file as it was read."""

    name: str
    text: str


@attrs.frozen
class Sections:
    """A document taken apart: its headings, and the prose below each."""

    name: str
    headings: list[str]
    prose: list[str]


@attrs.frozen
class Facts:
    """What a digest needs to know of a file: terms with their counts, and the sentences that say most."""

    name: str
    words: int
    headings: list[str]
    terms: dict[str, int]
    sentences: list[str]


# --- the work, in plain functions ---


def split_sections(document: Document) -> Sections:
    """Take Markdown or plain text apart; code and tables are left out."""
    text = re.sub(r"^\s*(```|~~~).*?^\s*\1.*?$|^\s*\|.*?$", "", document.text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)|`|\*\*|<[^>\n]+>", r"\1", text)  # links to their words
    head, *rest = re.split(r"^#{1,6}\s+(.+?)\s*$", text, flags=re.MULTILINE)
    return Sections(document.name, rest[::2], [head, *rest[1::2]])


def words(text: str) -> list[str]:
    """The words of a text in lower case."""
    return re.findall(r"[^\W\d_][\w'-]*", text.lower())


def extract_facts(sections: Sections) -> Facts:
    """Count, and choose the three sentences that hold most of the document's own words."""
    blocks = [b for prose in sections.prose for b in re.split(r"\n\s*\n|(?:\n|^)\s*(?:[-*+]|\d+\.)\s", prose)]
    sentences = [s for b in blocks for s in re.split(r"(?<=[.!?])\s+(?=\W*[^\W\d_a-z])", " ".join(b.split())) if s]
    terms = Counter(word for s in sentences for word in words(s) if len(word) > 3 and word not in COMMON)
    telling = {s for s in sentences if s[-1] in ".!?" and 8 <= len(words(s)) <= 40}
    weight = {s: sum(terms[word] for word in {*words(s)}) / len(words(s)) for s in telling}
    return Facts(
        name=sections.name,
        words=sum(len(words(s)) for s in sentences),
        headings=sections.headings,
        terms=dict(sorted(terms.items(), key=lambda term: (-term[1], term[0]))[:40]),
        sentences=sorted(sorted(telling, key=lambda s: (-weight[s], s))[:3], key=sentences.index),
    )


def short_report(files: Sequence[Facts]) -> str:
    """A paragraph on everything, and a line per file."""
    total, terms = sum(file.words for file in files), sum((Counter(file.terms) for file in files), Counter[str]())
    title = files[0].name if len(files) == 1 else f"{len(files)} files"
    lines = [f"- **{f.name}** ({f.words:,} words): {' '.join(f.sentences[:1]) or 'no prose.'}" for f in files]
    size = f"{total:,} words under {sum(len(f.headings) for f in files)} headings, {total // 230 + 1} min to read."
    return "\n".join(
        [f"# Digest of {title}\n", f"{size} Most frequent: {listed(dict(terms.most_common(10)))}.\n", *lines]
    )


def long_report(files: Sequence[Facts]) -> str:
    """The short report, and a section per file."""
    report = short_report(files)
    for file in files:
        report += f"\n\n## {file.name}\n\n- **Headings:** {' / '.join(file.headings) or 'none'}"
        report += f"\n- **Terms:** {listed(file.terms)}" + "".join(f"\n- {sentence}" for sentence in file.sentences)
    return report


def listed(terms: Mapping[str, int]) -> str:
    """The first ten terms with their counts."""
    return ", ".join(f"{term} ({count})" for term, count in list(terms.items())[:10]) or "none"


# --- the pipeline ---


def hand_on(turn: bb.Turn, name: str, value: attrs.AttrsInstance) -> None:
    """Pass a value to later stages: as a tool result it is in the chat, and no part of what the client is told."""
    call = bb.ToolCall(f"{type(value).__name__}:{name}", type(value).__name__)
    turn.reply(bb.Message(calls=[call], results=[call.result(json.dumps(attrs.asdict(value)))]))


def handed(turn: bb.Turn, kind: type[T]) -> list[T]:
    """The values of a class that earlier stages passed on, in order."""
    return [bb.Schema(kind).parse(done.content) for done in turn.tool_results if done.call.name == kind.__name__]


def stage(id: str, handler: Handler, agent: bb.Agent | None = None) -> bb.NamedFlow:
    """One agent under an id of its own: the id is where its savepoint belongs."""
    return bb.Flow().with_agent((agent or bb.Agent()).on_message(handler)).with_id(id)


def writer(id: str, compose: Callable[[Sequence[Facts]], str], model: bb.Model | None) -> bb.NamedFlow:
    """Writes a report: composed by rule, or by a model that is given the composed one as its facts."""
    agent = bb.Agent(f"{id}-writer").with_role(
        f"You are an editor. Write a {id} digest in Markdown from these facts alone, with a title and no preamble."
    )

    async def write(turn: bb.Turn, chat: bb.ModelChat) -> None:
        draft = compose(handed(turn, Facts))
        turn.reply(draft if model is None else await chat.add(draft).ask())

    return stage(id, write, agent if model is None else agent.with_model(model))


def pipeline(files: Mapping[str, Path], out: Path, model: bb.Model | None) -> bb.NamedFlow:
    """Read, split, extract (each file on its own), choose a length, write, respond, store."""

    async def read(turn: bb.Turn, _: bb.ModelChat) -> None:
        for name, path in files.items():
            text = await asyncio.to_thread(path.read_text, "utf-8", "replace")
            hand_on(turn, name, Document(name, text))

    async def split(turn: bb.Turn, _: bb.ModelChat) -> None:
        for document in handed(turn, Document):
            hand_on(turn, document.name, split_sections(document))

    def extractor(name: str) -> Handler:
        async def extract(turn: bb.Turn, _: bb.ModelChat) -> None:
            parts = next(parts for parts in handed(turn, Sections) if parts.name == name)
            hand_on(turn, name, extract_facts(parts))

        return extract

    async def choose(turn: bb.Turn, _: bb.ModelChat) -> None:
        turn.select("long" if sum(file.words for file in handed(turn, Facts)) >= LONG else "short")

    async def store(turn: bb.Turn, _: bb.ModelChat) -> None:
        part = out.with_name(f".{out.name}.part")
        await asyncio.to_thread(part.write_text, turn.last.content + "\n", "utf-8")
        part.replace(out)  # never half a report

    report = (
        stage("read", read)
        .next(stage("split", split))
        .next(bb.All(*(stage(id, extractor(name)) for id, name in part_ids(files).items())).with_id("extract"))
        .next(stage("choose", choose, bb.Agent().selects("short", "long")))
        .next(bb.Select(writer("short", short_report, model), writer("long", long_report, model)).with_id("write"))
        .next(bb.Respond())
    )
    # writing the file again does no harm and mends a lost one: the one part that need not be durable
    return report.with_id("report").durable(retries=2).next(stage("store", store)).with_id("digest")


def part_ids(names: Iterable[str]) -> dict[str, str]:
    """For each file an id made of its name: what an id may not hold becomes `-`, what is then the same is numbered."""
    ids: dict[str, str] = {}
    for name in names:
        base = id = "facts:" + re.sub(r"[^A-Za-z0-9._-]+", "-", name)[-100:]
        while id in ids:
            id = f"{base}:{len(ids)}"
        ids[id] = name
    return ids


class Parts:
    """A tracer that notes which parts ran and which replayed, and ends the process where it is told to."""

    def __init__(self, crash_after: str | None) -> None:
        self.seen: dict[str, str] = {}
        self._crash_after = crash_after

    def event(self, event: bb.Event, /) -> None:
        if event.kind in ("flow.end", "flow.cached"):
            self.seen.setdefault(event.path, "ran" if event.kind == "flow.end" else "replayed")
        if event.kind == "flow.end" and event.flow == self._crash_after:
            print(f"killed after {event.flow}; run it again without --crash-after", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)  # no handler, no finally, no flush: as a crash is


# --- the command ---


def find(given: Sequence[Path], out: Path) -> dict[str, Path]:
    """The text files among paths and folders, by name below the folder they share; the digest itself is none.

    Raises:
        ValueError: a path is missing or is no text, or there is no file.
    """
    found: set[Path] = set()
    for path in given:
        if path.is_dir():
            inside = [file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file()]
            found |= {f.resolve() for f in inside if not any(p.startswith(".") for p in f.relative_to(path).parts)}
        elif not path.is_file():
            raise ValueError(f"{path}: no such file or folder")
        elif b"\0" in path.read_bytes():
            raise ValueError(f"{path}: not a text file")
        else:
            found.add(path.resolve())
    found.discard(out.resolve())
    if not found:
        raise ValueError(f"no text files ({', '.join(SUFFIXES)}) in {', '.join(map(str, given))}")
    base = os.path.commonpath([file.parent for file in found])
    return {file.relative_to(base).as_posix(): file for file in sorted(found)}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Write a digest of text files, durably.")
    parser.add_argument("paths", nargs="*", type=Path, help="text files and folders (default: bb's README and docs)")
    parser.add_argument(
        "--out", type=Path, default=Path("digest.md"), help="where the digest goes (default: %(default)s)"
    )
    parser.add_argument("--run-id", help="the run to start or go on with (default: made from names and contents)")
    parser.add_argument("--crash-after", metavar="FLOW_ID", help="die with SIGKILL when that part is done")
    args = parser.parse_args()
    named_model = os.environ.get("OPENAI_MODEL", "gpt-4o-mini") if os.environ.get("OPENAI_API_KEY") else None
    try:
        files = find(args.paths or [ROOT / "README.md", ROOT / "docs"], args.out)
        content = [
            named_model or "",
            *(f"{name}:{hashlib.sha256(p.read_bytes()).hexdigest()}" for name, p in files.items()),
        ]
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if args.out.is_dir() or not args.out.parent.is_dir():
        parser.error(f"{args.out}: {'is a folder' if args.out.is_dir() else 'its folder does not exist'}")
    known = ["read", "split", *part_ids(files), "choose", "short", "long", "store"]
    if args.crash_after not in (None, *known):
        parser.error(f"--crash-after {args.crash_after}: no such part; there are {', '.join(known)}")
    run_id = args.run_id or "digest-" + hashlib.sha256("\n".join(content).encode()).hexdigest()[:16]
    flow = pipeline(files, args.out, bb.OpenAIModel(named_model) if named_model else None)
    return asyncio.run(digest(flow, "\n".join(content), run_id, args.out, Parts(args.crash_after)))


async def digest(flow: bb.NamedFlow, content: str, run_id: str, out: Path, parts: Parts) -> int:
    """Run the pipeline, and show what it said and which parts it did not have to do again."""
    app = bb.App(store=bb.FileStore(".bb"), trace=parts)
    try:
        outcome = await app.run(flow, content, run_id=run_id)
    except bb.BBError as error:
        print(f"digest.py: {error}\nWhat was finished is kept: the same command goes on from there.", file=sys.stderr)
        return 1
    finally:
        await app.stop()
    print(outcome.answer)
    print(f"\n{out} written by run {run_id}")
    for path, how in parts.seen.items():
        print(f"  {how:8}  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
