"""`SessionMemory`: what a run shares with the others of its session."""

from __future__ import annotations

from asyncio import timeout
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Final, TypeAlias

from bb.clock import Clock
from bb.codec import Codec
from bb.engine.memory import mailbox
from bb.engine.memory.known import Streams
from bb.engine.memory.session_rows import LeaseOf, SessionRows
from bb.ids import fresh_id
from bb.log.mailbox import Event
from bb.log.rows import Arrived, Bound, Claimed, Finished, Freed, Gone, Kept, Named, Parked, Passed, Row, Stamped
from bb.log.session import Block, Claim, Done, Found, Point, dump_block, dump_symbols, load_block, load_symbols
from bb.log.streams import (
    memo_stream,
    millis,
    moment,
    once_stream,
    parked_stream,
    points_stream,
    rate_stream,
    run_stream,
    session_streams,
    symbols_stream,
)
from bb.log.tables import Memo, OnceTable, OpenRuns, Points, Rates, Symbols
from bb.redaction import redacted
from bb.stores.base import Store

_POLL: Final = 0.25  # seconds between looks at a once that another run is in
_COMPUTING: Final = 60.0  # seconds of real time to wait for another that computes the same memo

HolderOf: TypeAlias = Callable[[str], Awaitable[str | None]]
"""The living owner of a lease, by its name, if it has one."""


class SessionMemory:
    """What one run keeps for its session, and finds there.

    Every row is safe when its method returns, names the run and the place, and is written under the run's lease. A method
    that finds the row of an earlier call for the same place takes it as done, so that after a crash between this row and
    the run's own record nothing is lost and nothing is there twice. All of them raise `Fenced` or `StoreError` when the store
    fails, and `NotSavable` for a value that cannot be kept exactly.
    """

    def __init__(
        self,
        store: Store,
        codec: Codec,
        clock: Clock,
        session_id: str,
        run_id: str,
        lease: LeaseOf,
        holder: HolderOf,
        streams: Streams | None = None,
        life: str = "",
    ) -> None:
        self.rows = SessionRows(store, codec, clock, session_id, lease, streams)
        self.session_id = session_id
        self.run_id = run_id
        self.life = life
        self._codec = codec
        self._holder = holder
        self._looked_back: dict[str, int] = {}

    def wrote(self, found: Found | Done, path: str) -> bool:
        """Whether what was found is of this very run, at this place: a crash came before the run's own record."""
        return (found.run, found.life, found.path) == (self.run_id, self.life, path)

    # --- memo -------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def computing(self, key: str) -> AsyncIterator[None]:
        """Compute a memo while nobody else in this app does.

        Who has waited for a minute goes ahead: the other may be waiting for a run that needs the same memo.
        """
        turn = self.rows.streams.turn(self.rows.store, f"computing {memo_stream(self.session_id, key)}")
        ours = not turn.locked()
        if ours:
            await turn.acquire()  # at once
        else:
            with suppress(TimeoutError):
                async with timeout(_COMPUTING):
                    ours = await turn.acquire()
        try:
            yield
        finally:
            if ours:
                turn.release()

    async def recall_memo(self, key: str) -> Found | None:
        """The value of a memo, if a run of the session has computed it."""
        kept = (await self.rows.read(memo_stream(self.session_id, key), Memo)).kept
        return None if kept is None else Found(self._codec.load(kept.value), kept.run, kept.path, kept.life)

    async def keep_memo(self, key: str, value: object, path: str) -> object:
        """Keep the value of a memo, and give the one that counts: that of a rival, if it was first."""
        row = Kept(self.run_id, path, self.rows.now(), self._codec.dump(value, "value"), self.life)

        def missing(memo: Memo) -> list[Row]:
            return [] if memo.kept is not None else [row]

        memo = await self.rows.change(memo_stream(self.session_id, key), Memo, missing)
        assert memo.kept is not None  # nothing was missing any more
        return self._codec.load(memo.kept.value)

    # --- once -------------------------------------------------------------------------------------------------------

    async def once(self, key: str) -> Done | Claim | None:
        """What a once came to, or who is in its body; None: nobody is."""
        table = await self.rows.read(once_stream(self.session_id, key), OnceTable)
        if table.finished is not None:
            return self._done(table.finished)
        claim = table.claim
        return Claim(claim.run, claim.path) if claim is not None and await self._is_alive(claim) else None

    async def claim(self, key: str, label: str, path: str) -> Done | Claim | None:
        """Claim the body of a once for a place of this run. None: it is ours, to be finished or freed."""
        row = Claimed(self.run_id, path, self.rows.now(), await self._fence(), redacted(label))
        lapsed: Claimed | None = None

        def missing(table: OnceTable) -> list[Row]:
            return [row] if table.finished is None and table.claim in (None, lapsed) else []

        while True:
            table = await self.rows.change(once_stream(self.session_id, key), OnceTable, missing)
            if table.finished is not None:
                return self._done(table.finished)
            claim = table.claim
            assert claim is not None  # nothing was missing any more
            is_ours = (claim.run, claim.path) == (row.run, row.path)
            if is_ours and claim.fence == row.fence:
                return None
            if not is_ours and await self._is_alive(claim):
                return Claim(claim.run, claim.path)
            lapsed = claim  # of a run that died; or ours, from before a crash: then it is made anew

    async def finish(self, key: str, path: str, block: Block) -> Done:
        """Keep what the body of a once came to, and give what counts: that of a rival, if it was first."""
        row = Finished(self.run_id, path, self.rows.now(), dump_block(block, self._codec), self.life)

        def missing(table: OnceTable) -> list[Row]:
            return [] if table.finished is not None else [row]

        table = await self.rows.change(once_stream(self.session_id, key), OnceTable, missing)
        assert table.finished is not None  # nothing was missing any more
        return self._done(table.finished)

    async def free(self, key: str, path: str) -> None:
        """Give up a claim, since the body failed."""

        def missing(table: OnceTable) -> list[Row]:
            claim = table.claim
            is_ours = claim is not None and (claim.run, claim.path) == (self.run_id, path)
            return [Freed(self.run_id, path)] if is_ours and table.finished is None else []

        await self.rows.change(once_stream(self.session_id, key), OnceTable, missing)

    async def wait_for(self, key: str, seconds: float) -> Done | Claim | None:
        """As `once`, as soon as it is done or free, or else after so many seconds."""
        until = self.rows.clock.monotonic() + seconds
        while True:
            known = await self.once(key)
            left = until - self.rows.clock.monotonic()
            if not isinstance(known, Claim) or left <= 0:
                return known
            await self.rows.clock.sleep(min(_POLL, left))

    def _done(self, row: Finished) -> Done:
        return Done(load_block(row.block, self._codec), row.run, row.path, row.life)

    async def _is_alive(self, claim: Claimed) -> bool:
        """Whether the run that made a claim may still be in the body."""
        if claim.run == self.run_id:  # this run is alive, but it may have crashed since it made the claim
            return claim.fence == await self._fence()
        return await self._holder(run_stream(claim.run)) is not None

    async def _fence(self) -> int:
        lease = await self.rows.lease()
        return 0 if lease is None else lease.fence

    # --- checkpoints ------------------------------------------------------------------------------------------------

    async def points(self, flow: str) -> list[Point]:
        """The checkpoints of a flow that count: for each signature and input the furthest, of equal ones the latest."""
        table = await self.rows.read(points_stream(self.session_id, flow), Points)
        return [self._point(row) for row in table.furthest.values()]

    async def furthest(self, flow: str, signature: str, fingerprint: str) -> Point | None:
        """The furthest checkpoint that a run with this signature and input came past."""
        table = await self.rows.read(points_stream(self.session_id, flow), Points)
        row = table.furthest.get((signature, fingerprint))
        return None if row is None else self._point(row)

    async def point(self, flow: str, point: Point) -> None:
        """Keep a checkpoint, unless there is a further one."""
        row = Passed(
            point.run,
            point.path,
            self.rows.now(),
            point.signature,
            point.fingerprint,
            point.position,
            redacted(point.label),
            dump_block(point.block, self._codec),
            self.life,
        )

        def missing(table: Points) -> list[Row]:
            known = table.furthest.get((row.signature, row.fingerprint))
            is_needless = known is not None and (
                known.position > row.position or (known.run, known.life, known.path) == (row.run, row.life, row.path)
            )
            return [] if is_needless else [row]

        await self.rows.change(points_stream(self.session_id, flow), Points, missing)

    def _point(self, row: Passed) -> Point:
        block = load_block(row.block, self._codec)
        return Point(row.signature, row.fingerprint, row.position, row.label, row.run, row.path, block)

    # --- symbols ----------------------------------------------------------------------------------------------------

    async def symbols(self, *, others: bool = False) -> dict[str, object]:
        """What the runs of the session have bound; of each name the latest; with `others` only what this run did not."""
        table = await self.rows.read(symbols_stream(self.session_id), Symbols)
        return load_symbols(table.values(but=(self.run_id, self.life) if others else None), self._codec)

    async def keep_symbols(self, bound: Mapping[str, object], place: str) -> None:
        """Keep what this run bound; `place` names its leg, so that a second time changes nothing."""
        if not bound:
            return
        row = Bound(self.run_id, place, self.rows.now(), dump_symbols(bound, self._codec), self.life)

        def missing(table: Symbols) -> list[Row]:
            return [] if (row.run, row.life, row.place) in table.rows else [row]

        await self.rows.change(symbols_stream(self.session_id), Symbols, missing)

    # --- mail -------------------------------------------------------------------------------------------------------

    async def wait(self, source: str, path: str) -> Event | None:
        """The event for this run at a place, which queues up for one if it has not yet; None: there is none so far."""
        return await mailbox.wait(self.rows, source, self.run_id, path)

    async def leave(self, source: str, *, over: bool = False) -> None:
        """Wait no longer for events of a source; with `over` this run id starts from nothing (see `mailbox.leave`)."""
        await mailbox.leave(self.rows, source, self.run_id, over=over)

    # --- rates ------------------------------------------------------------------------------------------------------

    async def stamps(self, name: str, since: datetime) -> tuple[int, datetime | None]:
        """How many calls were made under the name of a throttle since then, and when the oldest of them was."""
        first = self._look_back(name, since)
        return _recent(await self.rows.read(rate_stream(self.session_id, name), Rates), first)

    async def stamp(self, name: str, count: int, path: str) -> None:
        """Count calls made under the name of a throttle.

        They are kept as long as anyone looks back, as `stamps` has shown. Each call counts anew, also from one place: who
        dispatches again after a failure has called again.
        """
        row = self._stamped(name, count, path)

        def missing(table: Rates) -> list[Row]:
            return [] if row.id in table.stamps else _named(table, name, row)

        await self.rows.change(rate_stream(self.session_id, name), Rates, missing)

    async def take_room(self, name: str, most: int, since: datetime, path: str) -> tuple[int, datetime | None] | None:
        """Count one call under the name of a throttle, unless there were `most` since then: gives what `stamps` does then.

        Looking and counting are one step, so that of many runs at once only as many pass as there is room for.
        """
        first = self._look_back(name, since)
        row = self._stamped(name, 1, path)
        full: tuple[int, datetime | None] | None = None

        def missing(table: Rates) -> list[Row]:
            nonlocal full
            if row.id in table.stamps:
                return []
            count, oldest = _recent(table, first)
            full = (count, oldest) if count >= most else None
            return [] if full is not None else _named(table, name, row)

        await self.rows.change(rate_stream(self.session_id, name), Rates, missing)
        return full

    def _look_back(self, name: str, since: datetime) -> int:
        """The moment since when calls count, as rows hold it; how far back it is says how long they are kept."""
        first = millis(since)
        self._looked_back[name] = max(self._looked_back.get(name, 0), self.rows.now() - first)
        return first

    def _stamped(self, name: str, count: int, path: str) -> Stamped:
        return Stamped(fresh_id()[:16], self.run_id, path, self.rows.now(), count, self._looked_back.get(name, 0))

    async def token(self, name: str, path: str) -> str:
        """Arrive at a debounce; gives what tells this arrival from others, the same when it is found again."""
        spot = (self.run_id, self.life, path)

        def missing(table: Rates) -> list[Row]:
            return (
                []
                if spot in table.arrivals
                else _named(table, name, Arrived(self.run_id, path, self.rows.now(), self.life))
            )

        await self.rows.change(rate_stream(self.session_id, name), Rates, missing)
        return "/".join(spot)  # neither a run id nor a life has a "/" in it

    async def is_last(self, name: str, token: str) -> bool:
        """Whether nobody has arrived at the debounce since."""
        table = await self.rows.read(rate_stream(self.session_id, name), Rates)
        return bool(table.arrivals) and "/".join(next(reversed(table.arrivals))) == token

    # --- parked runs ------------------------------------------------------------------------------------------------

    async def parked(self) -> list[Parked]:
        """The parked runs of the session, in the order they parked."""
        return await parked_runs(self.rows)

    async def park(self, flow: str, path: str, source: str) -> None:
        """List this run as parked, waiting for an event of `source` at `path`."""
        row = Parked(self.run_id, flow, path, redacted(source), self.rows.now())

        def missing(table: OpenRuns) -> list[Row]:
            known = table.parked.get(row.run)
            return [] if known is not None and known.path == row.path else [row]

        await self.rows.change(parked_stream(self.session_id), OpenRuns, missing)

    async def gone(self, run: str | None = None) -> None:
        """List a run (by default this one) as parked no longer."""
        await run_gone(self.rows, self.run_id if run is None else run)


async def parked_runs(rows: SessionRows) -> list[Parked]:
    """The parked runs of a session, in the order they parked."""
    table = await rows.read(parked_stream(rows.session_id), OpenRuns)
    return list(table.parked.values())


async def run_gone(rows: SessionRows, run: str) -> None:
    """List a run as parked no longer, if it is."""

    def missing(table: OpenRuns) -> list[Row]:
        return [Gone(run)] if run in table.parked else []

    await rows.change(parked_stream(rows.session_id), OpenRuns, missing)


async def drop_session(store: Store, session_id: str) -> None:
    """Delete all that the runs of a session shared. Their own streams stay.

    Raises:
        StoreError: the store failed; call it again.
    """
    for info in await store.list(session_streams(session_id)):
        await store.delete(info.name)


def _named(table: Rates, name: str, row: Row) -> list[Row]:
    return [row] if table.name is not None else [Named(redacted(name)), row]


def _recent(table: Rates, first: int) -> tuple[int, datetime | None]:
    count, oldest = 0, None
    for row in table.stamps.values():  # in one pass: there may be thousands
        if row.at > first:
            count += row.count
            if oldest is None or row.at < oldest:
                oldest = row.at
    return count, None if oldest is None else moment(oldest)
