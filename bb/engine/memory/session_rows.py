"""`SessionRows`: reading the streams of a session, appending to them, and rewriting those that have grown long."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Final, TypeAlias, TypeVar

from bb.clock import Clock
from bb.codec import Codec
from bb.engine.memory.known import Known, Streams
from bb.errors import Conflict, CorruptRecord, Fenced, StoreError, StoreFull, TooLarge
from bb.ids import fresh_id
from bb.log.rows import Fold, Mark, Row, Sealed, encode_row, fold_rows
from bb.log.streams import millis
from bb.stores.base import Lease, Store
from bb.stores.owner import owner

T = TypeVar("T")
F = TypeVar("F", bound=Fold)

LONG: Final = 64  # records; a stream that would be less than half as long is rewritten from there on
_PAUSES: Final = (0.05, 0.2, 1.0)  # seconds between tries; the effect behind a row is never tried again
_REWRITE_SECONDS: Final = 10.0
_LOOK: Final = 0.05  # seconds between looks at a stream that another is rewriting

LeaseOf: TypeAlias = Callable[[], Awaitable[Lease | None] | Lease | None]


def no_lease() -> None:
    """The lease of whoever is no run."""


class SessionRows:
    """The streams of one session, for one writer: a run under its lease, or anybody else without one."""

    def __init__(
        self,
        store: Store,
        codec: Codec,
        clock: Clock,
        session_id: str,
        lease: LeaseOf = no_lease,
        streams: Streams | None = None,
    ) -> None:
        self.store = store
        self.codec = codec
        self.clock = clock
        self.session_id = session_id
        self._lease = lease
        self.streams = Streams() if streams is None else streams

    def now(self) -> int:
        """The time as rows hold it."""
        return millis(self.clock.now())

    async def lease(self) -> Lease | None:
        """The lease that rows are written under."""
        given = self._lease()
        return await given if isawaitable(given) else given

    async def read(self, stream: str, fold: Callable[[], F]) -> F:
        """What a stream has come to. It goes on changing: look at it before you wait for anything else.

        Raises:
            CorruptRecord: a record is none of its rows.
        """
        return (await self._look(stream, fold, None)).state

    async def change(self, stream: str, fold: Callable[[], F], missing: Callable[[F], Sequence[Row]]) -> F:
        """Append what is `missing` from a stream until nothing is; gives what the stream has come to then.

        After each append it is read again: others write too, and only what the store holds counts. `missing` may raise.

        Raises:
            TooLarge: a row is over the limit of a value; nothing was written.
            Fenced: the lease went to another.
            StoreError: the store failed, again and again.
        """
        async with self.streams.turn(self.store, stream):
            return await self._change(stream, fold, missing)

    async def _look(self, stream: str, fold: Callable[[], F], known: Known[F] | None) -> Known[F]:
        """What there is to know of a stream; read is only what came after what is `known`, to the caller or to the app."""
        while True:
            known = self.streams.known(self.store, stream, fold) or known or Known(stream, fold)
            start = known.start
            records = await self._insist(lambda: self.store.read(stream, start))  # noqa: B023
            if self.streams.learn(self.store, known, start, records):
                return known
            known = None  # it was rewritten

    async def _change(self, stream: str, fold: Callable[[], F], missing: Callable[[F], Sequence[Row]]) -> F:
        wrote = False
        known: Known[F] | None = None
        while True:
            known = await self._look(stream, fold, known)
            rows = missing(known.state)
            if known.sealed and (rows or wrote):  # what stands behind a seal may not last
                await self._unseal(stream, fold)
                continue
            if not rows:
                if wrote and known.is_long(LONG):
                    with contextlib.suppress(StoreError, Fenced):  # it is as right as before, only longer
                        await self._rewrite(stream, fold, begin=True)
                return known.state
            encoded = [self.encoded(row) for row in rows]
            if len(known.records) >= LONG:
                encoded.insert(0, encode_row(Mark(fresh_id()[:16])))
            with contextlib.suppress(Conflict):
                await self._append(stream, known.length, encoded)
                wrote = True

    def encoded(self, row: Row) -> bytes:
        """A row as a record.

        Raises:
            TooLarge: it is over the limit of a value.
        """
        record = encode_row(row)
        if len(record) > self.codec.limit:
            raise TooLarge(
                f"a record of {len(record):,} bytes is over the limit of {self.codec.limit:,}",
                path=getattr(row, "path", ""),
                remedy="keep large data elsewhere and pass a reference, or raise App(value_limit=...)",
            )
        return record

    async def _append(self, stream: str, expected: int, records: Sequence[bytes]) -> None:
        lease = await self.lease()
        await self._insist(lambda: self.store.append(stream, expected, records, lease))

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Try again what may fail for a moment. An append whose reply was lost gets a `Conflict` the second time."""
        for pause in _PAUSES:
            try:
                return await call()
            except (Conflict, StoreFull, CorruptRecord):
                raise
            except StoreError:
                await self.clock.sleep(pause)
        return await call()

    async def _unseal(self, stream: str, fold: Callable[[], Fold]) -> None:
        """Someone began to rewrite a stream: wait for it, or do it if that one died."""
        with contextlib.suppress(Fenced):
            if not await self._rewrite(stream, fold, begin=False):
                await self.clock.sleep(_LOOK)

    async def _rewrite(self, stream: str, fold: Callable[[], Fold], *, begin: bool) -> bool:
        """Replace a stream by the fewest rows that come to the same; False: another is at it.

        The seal stops every append until the stream is replaced, and a lease of the stream's own name stops every other
        rewriter, so no row is lost between reading and replacing. A death in between leaves the seal to whoever comes next.
        """
        lease = await self.store.acquire(stream, owner(fresh_id()), _REWRITE_SECONDS)
        if lease is None:
            return False
        try:
            if begin:
                length = len(await self.store.read(stream))
                await self.store.append(stream, length, [encode_row(Sealed())], lease)
            state = fold()
            if fold_rows(state, await self.store.read(stream), stream):
                await self.store.delete(stream, lease, leave=[encode_row(row) for row in state.shortest() or ()])
        finally:
            with contextlib.suppress(StoreError):  # it runs out by itself
                await self.store.release(lease)
        return True
