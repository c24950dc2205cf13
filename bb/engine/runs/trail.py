"""`Trail`: the log of a run as events, followed while it grows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Final, cast

from attrs import evolve

from bb.agents.answer import Answer
from bb.engine.frame.ledger import entry_of
from bb.engine.memory.trees import kept_form
from bb.engine.runs.runner import Runner
from bb.errors import UnknownRun
from bb.identity import Tree
from bb.identity.diff import changes
from bb.log import (
    Answered,
    Attempted,
    Decided,
    Ended,
    Entered,
    Entry,
    Fact,
    Failed,
    Forgotten,
    History,
    Parked,
    Saved,
    Seen,
    Started,
    Stopped,
    Submitted,
    UndoFailed,
    Unwinding,
    Unwound,
    load_delta,
    moment,
    run_stream,
    tenant_of,
)
from bb.redaction import redacted
from bb.trace import Event

_AT_ONCE: Final = 64  # records told before others get a turn: a log may be very long
_LOOK: Final = 0.25  # seconds between looks for what another process recorded


class Trail:
    """What the log of one run tells, read on from where the last look ended.

    Each event comes with the position of its record, so that a reader who knows the last position it saw goes on exactly
    there, in any process.
    """

    def __init__(self, runner: Runner, run_id: str) -> None:
        self._runner = runner
        self._history = History(run_id)
        self._changed = False

    async def more(self) -> list[tuple[int, Event]]:
        """What was recorded since the last look.

        Raises:
            UnknownRun: there is no such run, or it was dropped or started over meanwhile.
            CorruptRecord: the log cannot be read.
        """
        history = self._history
        known = min(history.length, 1)
        records = await self._runner.store.read(run_stream(history.run_id), history.length - known)
        if not records or records[:known] != history.tail:
            what = "no longer kept, or was started over" if known else "not kept"
            raise UnknownRun(f"run {history.run_id} is {what}", remedy="App.runs() lists those that are kept")
        out: list[tuple[int, Event]] = []
        for number, record in enumerate(records[known:], 1):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            (fact,) = history.read([record])
            if self._changed and (at := getattr(fact, "at", None)) is not None:
                position, event = out.pop()
                out.append((position, evolve(event, at=moment(at))))  # an entry is recorded with the first fact inside
            told = await self._discarded(history, fact) if isinstance(fact, Entered) else self._event(history, fact)
            if told is not None:
                out.append((history.length - 1, told))
            self._changed = told is not None and told.kind == "durable.discarded"
        self._changed = False
        return out

    @property
    def tenant(self) -> str | None:
        """Whose run it is, once it was looked at; None: what is left of it does not tell."""
        started = self._history.started
        return None if started is None else tenant_of(started.given)

    async def is_over(self) -> bool:
        """Whether the run has ended, failed or parked, and nobody goes on with it."""
        history = self._history
        if history.ended is not None:
            return True
        rests = history.failed or history.parked is not None
        return rests and await self._runner.store.holder(run_stream(history.run_id)) is None

    async def follow(self) -> AsyncGenerator[list[tuple[int, Event]], None]:
        """What is recorded from here on, look by look, until the run is over; a look may bring nothing.

        Raises: as `more`.
        """
        with self._runner.bells.hung(self._history.run_id) as rung:
            while True:
                rung.clear()
                over = await self.is_over()
                news = await self.more()
                yield news
                if over and not news:
                    return
                if not news:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(rung.wait(), _LOOK)

    async def _discarded(self, history: History, fact: Entered) -> Event | None:
        """What became of savepoints when a durable flow was entered that had another signature before."""
        before = [scope for scope in history.scopes.values() if scope.path == fact.path and scope.number < fact.number]
        if not before:
            return None
        was = before[-1].signature
        root = history.started.flow if history.started is not None else ""
        now = await self._tree(fact.signature)
        told = changes(await self._tree(was), now, was) if now is not None else ()
        flow = fact.path.rpartition("/")[2] or root
        at = moment(history.progress)
        return Event("durable.discarded", history.run_id, fact.path, at, flow, history.attempts, "; ".join(told))

    async def _tree(self, signature: str) -> Tree | None:
        return await kept_form(self._runner.store, signature)

    def _event(self, history: History, fact: Fact) -> Event | None:
        root = history.started.flow if history.started is not None else ""
        run_id, attempt = history.run_id, history.attempts
        match fact:
            case Started(at=at):
                return Event("run.start", run_id, root, moment(at), root, attempt)
            case Attempted(at=at, reason=reason):
                return Event("run.resumed", run_id, root, moment(at), root, attempt, reason)
            case Saved(path=path, at=at, took=took, delta=plain):
                usage = load_delta(plain, self._runner.codec).usage
                flow = path.rpartition("/")[2]
                return Event("flow.end", run_id, path, moment(at), flow, attempt, dur_ns=took * 10**6, usage=usage)
            case Entry(path=path, at=at, key=key, value=plain):
                kind, name = entry_of(key)
                flow = path.rpartition("/")[2]
                if kind != "model.end":
                    return Event(kind, run_id, path, moment(at), flow, attempt, redacted(name), entry=redacted(key))
                usage = cast(Answer, self._runner.codec.load(plain)).usage  # the record does not say which model
                return Event(kind, run_id, path, moment(at), flow, attempt, usage=usage, entry=redacted(key))
            case Failed(path=path, at=at, final=final, error=named, detail=detail):
                kind = "run.end" if final else "run.retry"
                return Event(kind, run_id, path, moment(at), root, attempt, detail, error=named)
            case Ended(status=status, at=at, flow=flow):
                return Event("run.end", run_id, flow, moment(at), flow, attempt, status)
            case Unwinding(path=path, at=at, error=named):
                return Event("unwind.start", run_id, path, moment(at), root, attempt, named)
            case UndoFailed(path=path, at=at, detail=detail):
                return Event("cleanup.failed", run_id, path, moment(at), root, attempt, detail)
            case Unwound(path=path, at=at):
                return Event("unwind.end", run_id, path, moment(at), root, attempt)
            case Parked(path=path, at=at, source=source):
                return Event("run.parked", run_id, path, moment(at), root, attempt, source)
            case Seen() | Entered() | Decided() | Forgotten() | Submitted() | Stopped() | Answered():
                return None  # what these led to shows in the savepoints
