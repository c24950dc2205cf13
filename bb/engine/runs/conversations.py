"""`Conversations`: the runs of a session that wait for somebody, and how each began."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

from attrs import define, frozen

from bb.codec import fingerprint
from bb.engine.memory.mailbox import leave
from bb.engine.memory.session_memory import run_gone
from bb.engine.memory.session_rows import SessionRows
from bb.engine.runs.archive import Archive
from bb.engine.runs.runner import Runner
from bb.errors import AlreadyParked, CorruptRecord, RunBusy, UnknownRun
from bb.log import History
from bb.log.rows import Began, Parked, Row
from bb.log.streams import parked_stream
from bb.log.tables import OpenRuns


def run_of(session_id: str, flow: str, turn_id: str) -> str:
    """The id of the run that the first turn of a conversation starts.

    A run that was begun without a session has one of its own id: it is itself the first turn there.
    """
    return turn_id if turn_id == session_id else fingerprint(["conversation", session_id, flow, turn_id])


@frozen
class Begun:
    """A conversation that was begun: its first turn, when, and how its run stands (None: it has not started)."""

    row: Began
    run_id: str
    history: History | None


@define(eq=False)
class Conversations:
    """The parked runs of every session, as one app sees them."""

    runner: Runner
    archive: Archive

    async def parked(self, session_id: str) -> list[Parked]:
        """The parked runs of a session, in the order they parked.

        Raises:
            CorruptRecord: the list of them cannot be read.
        """
        return list((await self._table(session_id)).parked.values())

    async def history(self, run_id: str) -> History | None:
        """The log of a run, or None if there is no such run.

        Raises:
            CorruptRecord: it cannot be read.
        """
        try:
            return await self.archive.history(run_id)
        except UnknownRun:
            return None
        except CorruptRecord as error:
            raise _unreadable(error) from error

    async def begun(self, session_id: str, flow: str) -> Begun | None:
        """The last conversation of a flow that began with a first turn in this session."""
        row = (await self._table(session_id)).begun.get(flow)
        if row is None:
            return None
        run_id = run_of(session_id, flow, row.turn)
        return Begun(row, run_id, await self.history(run_id))

    async def run_of_turn(self, session_id: str, turn: str) -> str | None:
        """The id of the run that a turn of a session belongs to; None: it is no turn, or of a run that is not known any more.

        Raises:
            CorruptRecord: it cannot be read.
        """
        table = await self._table(session_id)
        for flow in table.begun:
            if await self.history(first := run_of(session_id, flow, turn)) is not None:
                return first
        last = [run_of(session_id, flow, row.turn) for flow, row in table.begun.items()]
        for run_id in (*last, *(row.run for row in table.parked.values()), session_id):
            history = await self.history(run_id)
            if history is not None and turn in history.turns:
                return run_id
        return None

    async def begin(self, session_id: str, flow: str, turn: str, fingerprint: str, instead_of: Began | None) -> bool:
        """Put on record that a conversation begins; False: another began meanwhile, and `instead_of` is not the last one."""
        rows = self._rows(session_id)
        row = Began(flow, turn, fingerprint, rows.now())

        def missing(table: OpenRuns) -> list[Row]:
            return [row] if table.begun.get(flow) == instead_of else []

        table = await rows.change(parked_stream(session_id), OpenRuns, missing)
        return table.begun.get(flow) == row

    async def make_room(self, session_id: str, *, replace: bool) -> None:
        """See to it that no run of a session is parked, before another starts that may park.

        Raises:
            AlreadyParked: one is, and it is not to be replaced.
            CorruptRecord: whether one is cannot be read.
        """
        if replace:
            await self.abandon(session_id)
            return
        for row in await self.parked(session_id):
            history = await self.history(row.run)
            if history is not None and history.ended is None:
                raise AlreadyParked(
                    f"run {row.run} of flow {row.flow!r} is parked in session {session_id} and waits for {row.source!r}",
                    flow=row.flow,
                    path=row.path,
                    remedy="answer it, abandon it, or start with replace=True, which abandons it first",
                )

    async def abandon(self, session_id: str, flow: str | None = None) -> None:
        """Give up the parked runs of a session, or those of one flow, for good; what cannot be read is dropped.

        Raises:
            RunBusy: one that cannot be read is going on.
            StoreError: the store failed.
        """
        try:
            table = await self._table(session_id)
        except CorruptRecord:
            await self.runner.store.delete(parked_stream(session_id))
            return
        for row in list(table.parked.values()):
            if flow in (None, row.flow):
                await self._end(row.run)
                rows = self._rows(session_id)
                await leave(rows, row.source, row.run)
                await run_gone(rows, row.run)
        began = table.begun.get(flow) if flow is not None else None
        if began is not None:
            await self._end(run_of(session_id, began.flow, began.turn))

    async def drop(self, session_id: str) -> None:
        """Forget a session.

        Raises:
            RunBusy: a run of it is going on here.
        """
        self._refuse_while_live(session_id)
        with suppress(CorruptRecord):
            for row in await self.parked(session_id):
                await self._end(row.run)
        self._refuse_while_live(session_id)
        await self.runner.sessions.drop(session_id)

    def _refuse_while_live(self, session_id: str) -> None:
        for live in self.runner.running:
            if not live.ended and live.session_id == session_id:
                raise RunBusy(
                    f"run {live.run_id} of session {session_id} is going on",
                    after=timedelta(seconds=1),
                    flow=live.flow,
                    remedy="wait until it ends, or cancel it",
                )

    async def _end(self, run_id: str) -> None:
        try:
            await self.archive.cancel(run_id)
        except UnknownRun:
            pass
        except CorruptRecord:  # what cannot be read can still be given up
            await self.archive.discard(run_id)

    async def _table(self, session_id: str) -> OpenRuns:
        try:
            return await self._rows(session_id).read(parked_stream(session_id), OpenRuns)
        except CorruptRecord as error:
            raise _unreadable(error) from error

    def _rows(self, session_id: str) -> SessionRows:
        return self.runner.sessions.rows(session_id)


def _unreadable(error: CorruptRecord) -> CorruptRecord:
    return CorruptRecord(
        error.message,
        path=error.path,
        remedy="restore the store from a copy, or give the conversation up with app.session(...).abandon()",
    )
