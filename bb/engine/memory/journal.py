"""The part of the engine that remembers: the one writer of a run's stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

from bb.clock import Clock
from bb.codec import Codec
from bb.engine.memory.trees import kept_form, tree_records
from bb.errors import Conflict, Fenced, Interruption, StoreError, StoreFull, TooLarge
from bb.identity import Tree
from bb.log import Fact, History, encode, run_stream
from bb.stores.base import Lease, Store, Written

T = TypeVar("T")

_PAUSES: Final = (0.05, 0.2, 1.0)  # seconds between tries of an append; the effect behind it is never tried again


_Waiting: TypeAlias = tuple[Sequence[Fact], list[bytes], asyncio.Future[None]]


class Journal(Protocol):
    """What a run needs in order to remember. An engine that brings its own journal can stand in for the log."""

    history: History
    """What is remembered so far."""
    codec: Codec
    lease: Lease | None
    """What it is written under; None while a finished run is only replayed."""

    async def record(self, *facts: Fact) -> None:
        """Keep facts, all or none; they are safe when this returns, and it returns even when the caller is cancelled.

        Raises:
            Interruption: they could not be kept; every later call raises the same.
        """
        ...

    def check(self) -> None:
        """Raise what made it impossible to remember more, if anything did."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait, unless the run is interrupted."""
        ...

    def next_scope(self) -> int:
        """A number for a durable flow entered now."""
        ...

    async def keep_tree(self, stream: str, form: Tree, wire: object) -> bool:
        """Keep the flow behind a signature, as its canonical form and on the wire; False: not before anything is recorded."""
        ...

    async def tree(self, signature: str) -> Tree | None:
        """The canonical form behind a signature, if it is kept."""
        ...


class LogJournal:
    """A journal on a stream of a store, under a lease.

    Facts recorded while an append is under way go together into the next one, so a run has one append in flight, and
    parallel branches share a transaction.
    """

    def __init__(
        self,
        history: History,
        store: Store,
        codec: Codec,
        clock: Clock,
        lease: Lease | None,
        claim: Callable[[], Awaitable[tuple[Lease, Fact]]],
        ring: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.history = history
        self.codec = codec
        self.lease = lease
        self.broken: Interruption | None = None
        self._store = store
        self._clock = clock
        self._claim = claim
        self._ring = ring
        self._stream = run_stream(history.run_id)
        self._length = history.length
        self._queue: list[_Waiting] = []
        self._trees: dict[str, tuple[Tree, object]] = {}
        self._busy = False

    async def record(self, *facts: Fact) -> None:
        if self.broken is not None:
            raise self.broken
        fence = self.lease.fence if self.lease is not None else 0
        records = [self._encoded(fact, fence) for fact in facts]
        if self._busy or self.lease is None:
            await self._enqueue(facts, records)
            return
        self._busy = True
        try:
            future = self._store.append(self._stream, self._length, records, self.lease)
            cancelled = None if future.done() else await outlasted(future)
            try:
                future.result()
            except StoreError as error:
                # a branch that is given up (who lost in a `One`) must not take the run with it
                insisting = asyncio.ensure_future(self._insist(records, error))
                cancelled = await outlasted(insisting) or cancelled
                insisting.result()
            self._landed(facts, len(records))
        except Interruption as error:
            self._break(error)
            raise
        except asyncio.CancelledError:
            self._break(StoreError("the run was cancelled while the store was failing"))
            raise
        finally:
            self._busy = False
            if self._queue:
                self._drain_later()
        if cancelled is not None:
            raise cancelled

    def next_scope(self) -> int:
        """A number for a durable flow entered now."""
        return max(self.history.scopes, default=-1) + 1

    async def keep_tree(self, stream: str, form: Tree, wire: object) -> bool:
        """Keep the flow behind a signature, once for all runs; False: not before anything is recorded.

        Replaying a finished run writes nothing.
        """
        if self.lease is None:
            self._trees[stream] = (form, wire)
            return False
        records = tree_records(form, wire)
        with contextlib.suppress(Conflict):  # some run has kept it before, or an earlier try had landed
            for pause in _PAUSES:  # effects may be under way beside this: a store that fails for a moment stops none
                try:
                    await self._store.append(stream, 0, records)
                    return True
                except (Conflict, StoreFull):
                    raise
                except StoreError:
                    await self._clock.sleep(pause)
            await self._store.append(stream, 0, records)
        return True

    async def tree(self, signature: str) -> Tree | None:
        """The canonical form behind a signature, if it is kept."""
        return await kept_form(self._store, signature)

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)

    def check(self) -> None:
        """Raise what broke the journal, however much a handler swallowed it."""
        if self.broken is not None:
            raise self.broken

    def interrupt(self, error: Interruption) -> None:
        """Refuse everything from now on."""
        self._break(error)

    def _encoded(self, fact: Fact, fence: int) -> bytes:
        record = encode(fact, fence)
        if len(record) > self.codec.limit:
            path = getattr(fact, "path", "")
            raise TooLarge(
                f"a record of {len(record):,} bytes is over the limit of {self.codec.limit:,}",
                path=path,
                remedy="keep large data elsewhere and return a reference, or raise App(value_limit=...)",
            )
        return record

    async def _enqueue(self, facts: Sequence[Fact], records: list[bytes]) -> None:
        future: asyncio.Future[None] = Written(loop=asyncio.get_running_loop())
        self._queue.append((facts, records, future))
        if not self._busy:
            self._drain_later()
        cancelled = await outlasted(future)
        future.result()
        if cancelled is not None:
            raise cancelled

    def _drain_later(self) -> None:
        self._busy = True
        self._drainer = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        while self._queue:
            batch, self._queue = self._queue, []
            try:
                self.check()
                if self.lease is None:
                    batch = await self._reopen(batch)
                records = [record for _, group, _ in batch for record in group]
                try:
                    await self._store.append(self._stream, self._length, records, self.lease)
                except StoreError as error:
                    await self._insist(records, error)
            except BaseException as error:
                failure = self._failure(error)
                for _, _, future in batch:
                    if not future.done():
                        future.set_exception(failure)
                        future.exception()  # whoever waited may be gone
                if isinstance(error, asyncio.CancelledError):
                    self._busy = False
                    raise
                continue
            for facts, group, future in batch:
                self._landed(facts, len(group))
                if not future.done():
                    future.set_result(None)
        self._busy = False

    async def _reopen(self, batch: list[_Waiting]) -> list[_Waiting]:
        """A finished run was replayed without a lease, and now there is something new: it is taken up again."""
        self.lease, opening = await self._claim()
        if await self._store.read(self._stream, self._length - 1) != self.history.tail:
            raise self._fenced()  # it was started over meanwhile, and this is another run's stream by now
        for stream, (form, wire) in self._trees.items():
            await self.keep_tree(stream, form, wire)
        fence = self.lease.fence
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return [
            ((opening,), [encode(opening, fence)], done),
            *((facts, [self._encoded(fact, fence) for fact in facts], future) for facts, _, future in batch),
        ]

    def _failure(self, error: BaseException) -> BaseException:
        """What those who wait are told; anything but a refused value breaks the journal."""
        if isinstance(error, Interruption):
            self._break(error)
            return error
        if isinstance(error, asyncio.CancelledError):
            self._break(StoreError("the run was cancelled while its journal was being written"))
            return cast(StoreError, self.broken)
        return error

    async def _insist(self, records: list[bytes], error: StoreError) -> None:
        """Try an append again: the effect behind it has happened and must not be lost."""
        if isinstance(error, Conflict):
            raise self._fenced() from error
        for pause in _PAUSES:
            await self._clock.sleep(pause)
            try:
                await self._store.append(self._stream, self._length, records, self.lease)
                return
            except Conflict as conflict:
                if await self._store.read(self._stream, self._length) == records:
                    return  # an earlier try had landed and only its reply was lost: the fence makes the bytes ours
                raise self._fenced() from conflict
            except StoreFull:
                raise
            except StoreError as again:
                error = again
        raise error

    def _fenced(self) -> Fenced:
        return Fenced(
            f"another runner wrote to run {self.history.run_id}", remedy="nothing is lost; join it with the same run id"
        )

    def _break(self, error: Interruption) -> None:
        if self.broken is None:
            self.broken = error

    def _landed(self, facts: Sequence[Fact], count: int) -> None:
        self._length += count
        for fact in facts:
            self.history.add(fact)
        self._ring(self.history.run_id)


async def outlasted(future: asyncio.Future[T]) -> asyncio.CancelledError | None:
    """Wait until the future is done, even if the caller is cancelled meanwhile; that cancellation is given back."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await (future if isinstance(future, Written) else asyncio.shield(future))
        except asyncio.CancelledError as error:
            if future.cancelled():
                raise
            cancelled = error
        except BaseException:
            break  # the future's own error, for `future.result()` to raise
    if cancelled is not None and not future.cancelled():
        future.exception()  # seen, even if nobody asks for it
    return cancelled


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """The result of work that a cancellation must not cut short: what was done is kept first, and the caller stops then."""
    task = asyncio.ensure_future(work)
    cancelled = await outlasted(task)
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result
