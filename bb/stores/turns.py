"""`TurnStore`: a store over one SQL database, where what a turn of the event loop writes is one transaction."""

from __future__ import annotations

import asyncio
import builtins
import ctypes
import os
import threading
import time
import weakref
from asyncio import AbstractEventLoop, Future, get_running_loop
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from attrs import define, field

from bb.errors import CorruptRecord, Fenced, StoreError
from bb.stores.base import Lease, StreamInfo, Written
from bb.stores.database import Busy, Database
from bb.stores.names import check_name, check_records
from bb.stores.rows import Rows
from bb.stores.worker import Worker

_T = TypeVar("_T")

_PATIENCE: Final = 60.0  # seconds to wait for a locked database
_SLOW: Final = 0.005  # seconds; a commit that took longer sends the next ones to the thread
_STRETCH: Final = 0.002  # seconds that one task may write without a turn of the loop
_DETOUR: Final = 16  # batches that then go there
_FEW: Final = 128  # writes of one turn that are still made inline
_LIGHT: Final = 256 * 1024  # bytes that are still written or read inline
_SHORT: Final = 256  # records that are still read inline
_PAGES: Final = 1000  # pages of log between checkpoints
_PAGE: Final = 1024  # bytes


@define(eq=False)
class _Write:
    """One write and who waits for it."""

    work: Callable[[Rows], object]
    future: Future[Any]
    size: int = 0
    value: object = None
    error: BaseException | None = None


@define(eq=False)
class _Turn:
    """What one turn of a loop writes."""

    loop: AbstractEventLoop
    writes: list[_Write] = field(factory=list)
    size: int = 0
    closed: bool = False


class TurnStore:
    """Carries the store protocol out over `Database`s: one that writes, one that reads.

    Writes are committed on the loop while that is quick. A batch that is large, a disk that is slow and a database that
    another process has locked are left to a thread.
    """

    _writes: Database
    _reads: Database
    _detour: int  # batches that still go to the thread
    _log: int  # pages of log since the last checkpoint, about

    def __init__(self, connect: Callable[[bool], Database]) -> None:
        """`connect(reads)` makes a connection, not yet open, to read or to write."""
        self._connect = connect
        self._unguarded = [True]
        self._start()

    def append(self, stream: str, expected: int, records: Sequence[bytes], lease: Lease | None = None) -> Future[int]:
        try:
            check_name(stream)
            new = check_records(records)
        except StoreError as error:
            refused: Future[int] = Written(loop=get_running_loop())
            refused.set_exception(error)
            return refused
        future: Future[int] = Written(loop=get_running_loop())
        if len(new) == 1 and lease is not None and self._append_at_once(stream, expected, new[0], lease):
            future.set_result(expected + 1)
        else:
            work = partial(_append, stream, expected, new, lease)
            self._enter(_Write(work, future, sum(map(len, new))))
        return future

    async def read(self, stream: str, start: int = 0) -> builtins.list[bytes]:
        check_name(stream)
        records = await self._look(partial(_read, stream, start, short=True), None)
        if records is None:
            records = await self._ask(partial(_read, stream, start), None)
        return records if records is not None else []

    async def list(self, prefix: str) -> builtins.list[StreamInfo]:
        if prefix and not prefix.isprintable():
            return []
        return await self._ask(lambda rows: rows.list(prefix), [])

    async def delete(self, stream: str, lease: Lease | None = None, *, leave: Sequence[bytes] = ()) -> None:
        check_name(stream)
        left = check_records(leave)
        try:
            head = await self._look(lambda rows: rows.head(stream), None)
            long = head is not None and head.length > _SHORT
        except CorruptRecord:  # no reason to keep it
            long = True
        size = _LIGHT if long else sum(map(len, left))
        await self._write(lambda rows: rows.delete(stream, lease, left, time.time()), size)

    async def acquire(self, name: str, owner: str, seconds: float) -> Lease | None:
        check_name(name)
        taken = self._write(lambda rows: rows.acquire(name, owner, seconds, time.time()), 0)
        try:
            return await taken
        except asyncio.CancelledError:
            taken.add_done_callback(self._give_back)  # nobody else will
            raise

    async def renew(self, lease: Lease, seconds: float) -> bool:
        return await self._write(lambda rows: rows.renew(lease, seconds, time.time()), 0)

    async def release(self, lease: Lease) -> None:
        await self._write(lambda rows: rows.release(lease), 0)

    async def holder(self, name: str) -> str | None:
        check_name(name)
        return await self._look(lambda rows: rows.holder(name, time.time()), None)

    async def close(self) -> None:
        turn = self._turn()
        if turn is not None:
            self._flush(turn)
        # the writer last: who closes last tidies up
        for worker, database in ((self._reader, self._reads), (self._writer, self._writes)):
            if database.ready or not worker.idle:
                await _in(worker, partial(_close, database))
                worker.dismiss()

    # --- writing ----------------------------------------------------------------------------------------------------

    def _write(self, work: Callable[[Rows], _T], size: int) -> Future[_T]:
        future: Future[_T] = Written(loop=get_running_loop())
        self._enter(_Write(work, future, size))
        return future

    def _enter(self, write: _Write) -> None:
        turn = self._turn()
        if turn is None:
            turn = self._here.turn = _Turn(get_running_loop())
            turn.loop.call_soon(self._flush, turn)
        turn.writes.append(write)
        turn.size += write.size

    def _append_at_once(self, stream: str, expected: int, record: bytes, lease: Lease) -> bool:
        """Append by a statement that is its own transaction; False when that cannot be now, and nothing was written."""
        writes = self._writes
        if not self._is_alone() or self._detour or len(record) > _LIGHT or self._turn() is not None:
            return False
        if not self._writer.idle or not writes.lock.acquire(blocking=False):
            return False
        began = time.perf_counter()
        try:
            rows = writes.rows
            done = rows is not None and rows.append_next(stream, expected, record, lease, time.time())
        except Exception:  # the transaction that follows meets it again, and tells
            return False
        finally:
            writes.lock.release()
        if done:
            self._wrote(1, len(record), began)
        return done

    def _is_alone(self) -> bool:
        """Whether the task that writes is the one that wrote last; it then need not wait for others to join its turn.

        Now and then it does all the same, so that it does not keep the loop to itself.
        """
        here = self._here
        task, now = id(asyncio.current_task()), time.perf_counter()
        alone = task == getattr(here, "writer", 0) and now - here.turned < _STRETCH
        here.writer = task
        if not alone:
            here.turned = now
        return alone

    def _turn(self) -> _Turn | None:
        """The open turn of the running loop."""
        turn: _Turn | None = getattr(self._here, "turn", None)
        return turn if turn is not None and not turn.closed and turn.loop is get_running_loop() else None

    def _flush(self, turn: _Turn) -> None:
        if turn.closed:
            return
        turn.closed = True
        self._here.turn = None
        quick = turn.size < _LIGHT and len(turn.writes) <= _FEW and not self._detour
        if not (quick and self._writes.ready and self._writer.idle and self._commit_here(turn)):
            self._guard()
            try:
                self._writer.submit(partial(self._commit_there, turn))
            except RuntimeError as error:
                for write in turn.writes:
                    write.error = _as_store_error(error)
                _settle(turn.writes)

    def _commit_here(self, turn: _Turn) -> bool:
        """Commit on the loop; False when that did not work at once, and nothing was written."""
        writes = self._writes
        if not writes.lock.acquire(blocking=False):
            return False
        try:
            if not writes.ready:
                return False
            self._commit(turn.writes)
        except Exception:  # whatever it was, the thread has the time to deal with it
            return False
        finally:
            writes.lock.release()
        _settle(turn.writes)
        return True

    def _commit_there(self, turn: _Turn) -> Callable[[], None]:
        """Commit in the thread, then tell the loop."""
        end = time.monotonic() + _PATIENCE  # for the whole turn, or each of its writes would wait as long
        try:
            self._persist(turn.writes, end)
        except Exception:
            for write in turn.writes:  # what does not fit must not fail the others
                try:
                    self._persist([write], end)
                except Exception as error:
                    write.error = _as_store_error(error)
        return partial(_tell, turn.loop, turn.writes)

    def _persist(self, writes: Sequence[_Write], end: float) -> None:
        """Open the database if need be and commit, waiting till `end` for whoever holds it."""
        database = self._writes

        def commit() -> None:
            database.open()
            self._commit(writes)

        _patiently(database, commit, end)

    def _commit(self, writes: Sequence[_Write]) -> None:
        began = time.perf_counter()
        with self._writes.transaction() as rows:
            for write in writes:
                write.error = None
                try:
                    write.value = write.work(rows)
                except (StoreError, Fenced) as error:  # refused before it wrote anything
                    write.error = error
        self._wrote(len(writes), sum(write.size for write in writes), began)

    def _wrote(self, count: int, size: int, began: float) -> None:
        """Keep count of the log, and of whether the disk is quick enough for the loop."""
        self._log += 4 + count + size // _PAGE  # writes of one commit share most of their pages
        if time.perf_counter() - began > _SLOW * (1 + count / _FEW):
            self._detour = _DETOUR
        elif self._detour:
            self._detour -= 1
        if self._log > _PAGES:
            self._log = 0
            with suppress(RuntimeError):  # without a thread the log grows on; what was written stands
                self._writer.submit(self._checkpoint)

    def _checkpoint(self) -> Callable[[], None]:
        with self._writes.lock:
            if self._writes.ready:
                self._writes.checkpoint()
        return _nothing

    def _give_back(self, taken: Future[Lease | None]) -> None:
        lease = None if taken.cancelled() or taken.exception() else taken.result()
        if lease is not None:
            self._write(lambda rows: rows.release(lease), 0).add_done_callback(_ignored)

    # --- reading ----------------------------------------------------------------------------------------------------

    async def _look(self, question: Callable[[Rows], _T], nothing: _T) -> _T:
        """Read on the loop if that can be done at once, else in the thread."""
        reads = self._reads
        if reads.ready and reads.lock.acquire(blocking=False):
            try:
                with suppress(Busy), reads.transaction() as rows:
                    return question(rows)
            finally:
                reads.lock.release()
        return await self._ask(question, nothing)

    async def _ask(self, question: Callable[[Rows], _T], nothing: _T) -> _T:
        """Read in the thread; `nothing` when there is no database."""
        self._guard()
        database = self._reads

        def ask() -> _T:
            if not database.open():
                return nothing
            with database.transaction() as rows:
                return question(rows)

        return await _in(self._reader, partial(_patiently, database, ask))

    # --- life -------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Nothing open, nothing asked for."""
        self._writes = self._connect(False)
        self._reads = self._connect(True)
        self._writer = Worker("bb-store-writer")
        self._reader = Worker("bb-store-reader")
        self._here = threading.local()
        self._detour = 0
        self._log = 0

    def _guard(self) -> None:
        """Let forks wait until no thread of ours is inside the database, and let the child start anew."""
        if not self._unguarded or not hasattr(os, "register_at_fork"):
            return
        with suppress(IndexError):  # another thread was first
            self._unguarded.pop()
            store = weakref.ref(self)
            os.register_at_fork(
                before=partial(_of, store, TurnStore._hold),
                after_in_parent=partial(_of, store, TurnStore._go_on),
                after_in_child=partial(_of, store, TurnStore._start_anew),
            )

    def _hold(self) -> None:
        self._writes.lock.acquire()
        self._reads.lock.acquire()

    def _go_on(self) -> None:
        self._writes.lock.release()
        self._reads.lock.release()

    def _start_anew(self) -> None:
        # SQLite forbids to use a connection carried over a fork, or to close it, even at exit: it is leaked on purpose.
        for database in (self._writes, self._reads):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(database.abandon()))
        self._start()


def _append(stream: str, expected: int, records: Sequence[bytes], lease: Lease | None, rows: Rows) -> int:
    return rows.append(stream, expected, records, lease, time.time())


def _read(stream: str, start: int, rows: Rows, *, short: bool = False) -> list[bytes] | None:
    """The records from `start` on; None if they are to be short and are not."""
    head = rows.head(stream)
    if head is None or head.length <= start:
        return []
    if short and (head.length - start > _SHORT or rows.size(head, start) > _LIGHT):
        return None
    return rows.read(stream, head, start)


def _patiently(database: Database, act: Callable[[], _T], end: float | None = None) -> _T:
    """Do it under the lock of the database, again and again while another process is in the way."""
    if end is None:
        end = time.monotonic() + _PATIENCE
    pause = 0.0005
    while True:
        with database.lock:
            try:
                return act()
            except Busy as busy:
                if time.monotonic() > end:
                    raise StoreError(
                        f"the store in {database.home} was locked for {_PATIENCE:.0f} s",
                        remedy="find the process that holds it, and run it again",
                    ) from busy
        time.sleep(pause)  # outside the lock, which a fork may be waiting for
        pause = min(pause * 2, 0.02)


def _in(worker: Worker, act: Callable[[], _T]) -> Future[_T]:
    """Do it in a thread, for the running loop."""
    loop = get_running_loop()
    future: Future[_T] = loop.create_future()

    def job() -> Callable[[], None]:
        write = _Write(lambda _: None, future)
        try:
            write.value = act()
        except Exception as error:
            write.error = _as_store_error(error)
        return partial(_tell, loop, [write])

    try:
        worker.submit(job)
    except RuntimeError as error:
        future.set_exception(_as_store_error(error))
    return future


def _settle(writes: Sequence[_Write]) -> None:
    for write in writes:
        if write.future.done():  # who waited was cancelled; what was written stands
            continue
        if write.error is not None:
            write.future.set_exception(write.error)
        else:
            write.future.set_result(write.value)


def _tell(loop: AbstractEventLoop, writes: Sequence[_Write]) -> None:
    with suppress(RuntimeError):  # the loop has ended, and with it whoever waited
        loop.call_soon_threadsafe(_settle, writes)


def _nothing() -> None:
    """Nobody waits."""


def _close(database: Database) -> None:
    with database.lock:
        database.close()


def _as_store_error(error: Exception) -> Exception:
    if isinstance(error, StoreError | Fenced):
        return error
    wrapped = StoreError(f"the store failed ({type(error).__name__}: {error})")
    wrapped.__cause__ = error
    return wrapped


def _ignored(future: Future[None]) -> None:
    if not future.cancelled():
        future.exception()


def _of(store: weakref.ref[TurnStore], act: Callable[[TurnStore], None]) -> None:
    alive = store()
    if alive is not None:
        act(alive)
