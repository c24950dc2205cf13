"""One durable flow while it runs: what it may replay, and where its facts go."""

from __future__ import annotations

from attrs import define

from bb.engine.frame.run import Run
from bb.engine.memory.journal import Journal
from bb.errors import BBError, CorruptRecord, NotSavable, WiringError
from bb.flows.options import DurableOptions
from bb.flows.tree import DurableFlow
from bb.identity import Tree
from bb.log import (
    Block,
    Decided,
    Delta,
    Entered,
    Entry,
    Fact,
    Forgotten,
    Saved,
    Scope,
    dump_block,
    dump_delta,
    load_block,
    load_delta,
    millis,
    tree_stream,
)
from bb.logs import warning


@define(eq=False, repr=False)
class ActiveScope:
    """The nearest durable flow around a step."""

    run: Run
    journal: Journal
    path: str
    flow: str
    options: DurableOptions
    memory: Scope

    def recall(self, path: str) -> Delta | None:
        """The savepoint of a step.

        Raises:
            CorruptRecord: it is there and cannot be read; that never means running the step again.
        """
        if path not in self.memory.saved:
            return None
        try:
            return load_delta(self.memory.saved[path], self.journal.codec)
        except CorruptRecord as error:
            error.path, error.flow = path, self.flow
            raise

    def recall_block(self, path: str) -> Block | None:
        """What is kept of a body that is not run again.

        Raises:
            CorruptRecord: it is there and cannot be read.
        """
        if path not in self.memory.saved:
            return None
        try:
            return load_block(self.memory.saved[path], self.journal.codec)
        except CorruptRecord as error:
            error.path, error.flow = path, self.flow
            raise

    async def save_block(self, path: str, block: Block, choice: str | None = None) -> None:
        """Keep what a body said and bound, so that it is not run again; and with it what was decided there.

        Raises:
            NotSavable: a value cannot be kept exactly.
            Interruption: the store or the lease failed.
        """
        try:
            plain = dump_block(block, self.journal.codec)
        except NotSavable as error:
            error.path, error.flow = path, self.flow
            raise
        saved = Saved(self.memory.number, path, self._now(), 0, plain)
        decided = () if choice is None else (Decided(self.memory.number, path, self._now(), choice),)
        await self.record(*decided, saved)

    async def save(self, path: str, delta: Delta, seconds: float, *others: Fact) -> Delta:
        """Keep the savepoint of a step, and give it back as a replay will see it; `others` are kept together with it.

        Raises:
            NotSavable: the step's value cannot be kept exactly.
            Interruption: the store or the lease failed.
        """
        try:
            plain = dump_delta(delta, self.journal.codec, "value")
        except NotSavable as error:
            error.path, error.flow = path, self.flow
            raise
        saved = Saved(self.memory.number, path, self._now(), int(seconds * 1000), plain)
        await self.record(saved, *others)
        return load_delta(plain, self.journal.codec)

    def decision(self, path: str) -> str | None:
        """What was decided at a place."""
        return self.memory.decided.get(path)

    async def decide(self, path: str, choice: str) -> None:
        """Keep a decision from outside the run."""
        await self.record(Decided(self.memory.number, path, self._now(), choice))

    def entry(self, path: str, key: str) -> tuple[bool, object]:
        """Whether a journal entry is there, and its value in codec form."""
        entries = self.memory.entries.get(path)
        return (True, entries[key]) if entries is not None and key in entries else (False, None)

    async def enter(self, path: str, key: str, value: object) -> None:
        """Keep a journal entry, its value in codec form."""
        await self.record(Entry(self.memory.number, path, self._now(), key, value))

    async def forget(self, path: str, key: str = "") -> None:
        """Drop a journal entry, or all that is remembered at a place."""
        await self.record(Forgotten(path, key))

    async def record(self, *facts: Fact) -> None:
        """Keep facts of this flow, all or none; the first ones bring the fact that it was entered."""
        entered = self.memory.entered
        if entered is None:
            await self.journal.record(*facts)
            return
        self.memory.entered = None
        try:
            await self.journal.record(entered, *facts)
        except BBError:  # refused before anything was written: the next fact still has to bring it
            self.memory.entered = entered
            raise

    def _now(self) -> int:
        return millis(self.run.clock.now())


async def enter_scope(run: Run, path: str, flow: DurableFlow, signature: str, form: Tree) -> ActiveScope:
    """Enter a durable flow: pick up what it may replay, and report what it may not.

    Raises:
        Interruption: the store failed.
    """
    journal = run.journal
    assert journal is not None  # a plan with a durable part is always run with a journal
    history = journal.history
    known = history.scope(path)
    if known is not None and known.signature == signature:
        return ActiveScope(run, journal, path, flow.id, flow.options, known)
    if signature not in run.trees and await journal.keep_tree(tree_stream(signature), form, _wire(flow)):
        run.trees.add(signature)
    adopted: tuple[tuple[int, str, str], ...] = ()
    if known is not None:
        adopted = await _adopt(run, journal, known, path, flow.id, flow.options, form)
    entered = Entered(journal.next_scope(), path, signature, adopted)
    memory = history.enter(entered)
    memory.entered = entered
    return ActiveScope(run, journal, path, flow.id, flow.options, memory)


async def _adopt(
    run: Run, journal: Journal, known: Scope, path: str, flow: str, options: DurableOptions, form: Tree
) -> tuple[tuple[int, str, str], ...]:
    """What of an older signature goes on to count, and the report of the rest."""
    from bb.identity.diff import changes
    from bb.identity.match import match_paths

    old = await journal.tree(known.signature)
    said = list(changes(old, form, known.signature))
    adopted: tuple[tuple[int, str, str], ...] = ()
    if options.forward_compatible and old is not None:
        prefix = path[: len(path) - len(str(form["at"]))]
        remembered = {place[len(prefix) :] for place in known.remembered() if not known.is_undone(place)}
        match = match_paths(old, form, remembered)
        adopted = tuple((known.number, prefix + before, prefix + now) for now, before in match.kept.items())
        if match.lost:
            said.append(f"savepoints without a place: {', '.join(match.lost)}")
    differences = "; ".join(said)
    run.emit("durable.discarded", path, flow, differences)
    # it costs the work that was done: who has no tracer must hear of it as well
    warning("a durable flow has changed since it was last run", run_id=run.run_id, path=path, differences=differences)
    return adopted


def _wire(flow: DurableFlow) -> object:
    """What an open run of the flow goes on with when the program has another by then; None if a part has no name."""
    from bb.wire import to_wire  # of a program that only imports bb, nothing is written

    try:
        return to_wire(flow)
    except WiringError:
        return None
