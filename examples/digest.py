"""A digest of text files, written by a pipeline that may be killed anywhere and goes on where it was.

    python examples/digest.py                         # this project's README and docs, into ./digest.md
    python examples/digest.py notes/ --out notes.md   # any text files and folders
    python examples/digest.py --crash-after split     # die by SIGKILL there; the first line again resumes

Needs no key and no network. With OPENAI_API_KEY (and OPENAI_BASE_URL, OPENAI_MODEL) set and `bb-flow[openai]` installed, a
model writes the report from the facts. Exit codes: 0 done, 1 the run failed, 2 wrong usage.
"""

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
T = TypeVar("T")
Handler: TypeAlias = Callable[[bb.Turn, bb.ModelChat], Awaitable[None]]


@attrs.frozen
class Document:
    """A file as it was read."""

    name: str
    text: str


@attrs.frozen
class Sections:
    """A document taken apart: its headings, and the prose before, between and after them."""

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


def split_sections(document: Document) -> Sections:
    """Take Markdown or plain text apart; code and tables are left out."""
    text = re.sub(r"^ *(```|~~~).*?^ *\1|^ *\|.*?$", "", document.text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)|`|\*\*|<[^>\n]+>", r"\1", text)  # links to their words
    head, *rest = re.split(r"^#{1,6} +(.+?)\s*$", text, flags=re.MULTILINE)
    return Sections(document.name, rest[::2], [head, *rest[1::2]])


def words(text: str) -> list[str]:
    """The words of a text in lower case."""
    return re.findall(r"[^\W\d_][\w'-]*", text.lower())


COMMON: Final = frozenset(
    words("""about after also another because been before being both cannot could does done each either even every from have
    here into itself just like made make many more most must need never next nothing once only other over same should since
    some such than that their them then there these they this those through under until upon used uses very were what when
    where whether which while will with within without would your""")
)


def extract_facts(parts: Sections) -> Facts:
    """Count, and choose the three sentences that hold most of the document's own words."""
    blocks = [b for prose in parts.prose for b in re.split(r"(?m)\n\s*\n|^\s*(?:[-*+]|\d+\.)\s", prose)]
    sentences = [s for b in blocks for s in re.split(r"(?<=[.!?])\s+(?=\W*[^\W\d_a-z])", " ".join(b.split())) if s]
    terms = Counter(word for s in sentences for word in words(s) if len(word) > 3 and word not in COMMON)
    telling = {s for s in sentences if s[-1] in ".!?" and 8 <= len(words(s)) <= 40}
    weight = {s: sum(terms[word] for word in {*words(s)}) / len(words(s)) ** 0.5 for s in telling}
    best = sorted(sorted(telling, key=lambda s: (-weight[s], s))[:3], key=sentences.index)
    return Facts(parts.name, sum(len(words(s)) for s in sentences), parts.headings, dict(terms.most_common(40)), best)


def report(files: Sequence[Facts], *, full: bool) -> str:
    """A paragraph on everything and a line per file; in full also a section per file."""

    def top(terms: Mapping[str, int]) -> str:
        return ", ".join(f"{term} ({count})" for term, count in Counter(terms).most_common(10)) or "none"

    total, headings = sum(file.words for file in files), sum(len(file.headings) for file in files)
    out = f"# Digest of {files[0].name if len(files) == 1 else f'{len(files)} files'}\n\n"
    out += f"{total:,} words under {headings} heading{'s' * (headings != 1)}, {total // 230 + 1} min to read. "
    out += f"Most frequent: {top(sum((Counter(file.terms) for file in files), Counter()))}.\n"
    for file in files:
        out += f"\n- **{file.name}** ({file.words:,} words): {' '.join(file.sentences[:1]) or 'no prose.'}"
    for file in files if full else ():
        out += f"\n\n## {file.name}\n\n- Headings: {' / '.join(file.headings) or 'none'}"
        out += f"\n- Terms: {top(file.terms)}" + "".join(f"\n- {sentence}" for sentence in file.sentences)
    return out


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


def writer(id: str, model: bb.Model | None) -> bb.NamedFlow:
    """Writes a report: by rule, or by a model that is given what the rule made of the facts."""
    agent = bb.Agent(f"{id}-writer").with_role(f"Write a {id} digest in Markdown from these facts alone. No preamble.")

    async def write(turn: bb.Turn, chat: bb.ModelChat) -> None:
        draft = report(handed(turn, Facts), full=id == "long")
        turn.reply(draft if model is None else await chat.add(draft).ask())

    return stage(id, write, agent if model is None else agent.with_model(model))


def pipeline(files: Mapping[str, Path], out: Path, model: bb.Model | None) -> bb.NamedFlow:
    """Read, split, extract (each file on its own), choose a length, write, respond, store."""

    async def read(turn: bb.Turn, _: bb.ModelChat) -> None:
        for name, path in files.items():
            hand_on(turn, name, Document(name, await asyncio.to_thread(path.read_text, "utf-8", "replace")))

    async def split(turn: bb.Turn, _: bb.ModelChat) -> None:
        for document in handed(turn, Document):
            hand_on(turn, document.name, split_sections(document))

    def extractor(name: str) -> Handler:
        async def extract(turn: bb.Turn, _: bb.ModelChat) -> None:
            hand_on(turn, name, next(extract_facts(parts) for parts in handed(turn, Sections) if parts.name == name))

        return extract

    async def choose(turn: bb.Turn, _: bb.ModelChat) -> None:
        turn.select("long" if sum(file.words for file in handed(turn, Facts)) >= 1500 else "short")

    async def store(turn: bb.Turn, _: bb.ModelChat) -> None:
        await asyncio.to_thread(out.write_text, turn.last.content + "\n", "utf-8")

    durable = (
        stage("read", read)
        .next(stage("split", split))
        .next(bb.All(*(stage(id, extractor(name)) for id, name in part_ids(files).items())).with_id("extract"))
        .next(stage("choose", choose, bb.Agent().selects("short", "long")))
        .next(bb.Select(writer("short", model), writer("long", model)).with_id("write"))
        .next(bb.Respond())
    )
    # storing again does no harm, and brings back a file that was lost: the one stage that need not be durable
    return durable.with_id("report").durable(retries=2).next(stage("store", store)).with_id("digest")


def part_ids(names: Iterable[str]) -> dict[str, str]:
    """The files by ids made of their names: what no id may hold becomes `-`, and equals are numbered."""
    ids: dict[str, str] = {}
    for name in names:
        id = "facts:" + re.sub(r"[^A-Za-z0-9._-]+", "-", name)[-100:]
        ids[f"{id}:{len(ids)}" if id in ids else id] = name
    return ids


@attrs.define
class Parts:
    """A tracer that notes which parts ran and which replayed, and ends the process where it is told to."""

    crash_after: str | None
    seen: dict[str, str] = attrs.Factory(dict)

    def event(self, event: bb.Event, /) -> None:
        if event.kind in ("flow.end", "flow.cached"):
            self.seen.setdefault(event.path, "ran" if event.kind == "flow.end" else "replayed")
        if event.kind == "flow.end" and event.flow == self.crash_after:
            print(f"killed after {event.flow}: run it again without --crash-after", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


def find(paths: Sequence[Path], out: Path) -> dict[str, Path]:
    """The text files among paths and folders, by name below the folder they share; the digest itself is none."""
    found: set[Path] = set()
    for path in paths:
        if not path.is_dir() and (not path.is_file() or b"\0" in path.read_bytes()):
            raise ValueError(f"{path}: {'not a text file' if path.is_file() else 'no such file or folder'}")
        inside = [file.relative_to(path) for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file()]
        shown = [file for file in inside if not any(part.startswith(".") for part in file.parts)]
        found |= {(path / file).resolve() for file in (shown if path.is_dir() else [Path()])} - {out.resolve()}
    if not found:
        raise ValueError(f"no text files ({', '.join(SUFFIXES)}) in {', '.join(map(str, paths))}")
    base = os.path.commonpath([file.parent for file in found])
    return {file.relative_to(base).as_posix(): file for file in sorted(found)}


async def digest(flow: bb.NamedFlow, content: str, run_id: str, out: Path, parts: Parts) -> int:
    """Run the pipeline; show what it said, and which parts it did not have to do again."""
    try:
        async with bb.App(store=bb.FileStore(".bb"), trace=parts) as app:
            outcome = await app.run(flow, content, run_id=run_id)
    except bb.BBError as error:
        taken = isinstance(error, bb.InputConflict | bb.RunIdInUse | bb.RunExpired)
        kept = "" if isinstance(error, bb.Fatal) else "\nWhat was done is kept: the same command goes on from there."
        print(f"digest.py: {f'{error.message}: give another --run-id' if taken else error}{kept}", file=sys.stderr)
        return 1
    shown = "\n".join(f"  {how:8}  {path}" for path, how in parts.seen.items())
    print(f"{outcome.answer}\n\n{out} written by run {run_id}\n{shown}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Write a digest of text files, durably.")
    parser.add_argument("paths", nargs="*", type=Path, help="text files and folders (default: bb's README and docs)")
    parser.add_argument("--out", type=Path, default=Path("digest.md"), help="where it goes (default: %(default)s)")
    parser.add_argument("--run-id", help="the run to start or go on with (default: made of names and contents)")
    parser.add_argument("--crash-after", metavar="FLOW_ID", help="die by SIGKILL when that part is done")
    args = parser.parse_args()
    model = os.environ.get("OPENAI_MODEL", "gpt-4o-mini") if os.environ.get("OPENAI_API_KEY") else ""
    try:
        files = find(args.paths or [ROOT / "README.md", ROOT / "docs"], args.out)
        prints = [f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for name, path in files.items()]
    except (OSError, ValueError) as error:
        parser.error(str(error))
    known = ["read", "split", *part_ids(files), "choose", "short", "long", "store"]
    if args.crash_after not in (None, *known):
        parser.error(f"--crash-after {args.crash_after}: no such part; there are {', '.join(known)}")
    content = "\n".join([*prints, model])
    run_id = args.run_id or f"digest-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    flow = pipeline(files, args.out, bb.OpenAIModel(model) if model else None)
    return asyncio.run(digest(flow, content, run_id, args.out, Parts(args.crash_after)))


if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads it has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the rest is flushed to nowhere
        code = 1
    sys.exit(code)
