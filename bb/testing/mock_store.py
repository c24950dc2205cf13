"""`MockStore`: a `MemStore` that fails, hangs and crashes where a test says so."""

from __future__ import annotations

import builtins
from asyncio import Future, get_running_loop
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from attrs import define, frozen

from bb.clock import Clock
from bb.errors import Fenced, StoreError
from bb.stores.base import Lease, StreamInfo
from bb.stores.memory import STRETCH, MemStore

At = int | str | Callable[[str, Sequence[bytes]], bool]
"""Where a fault strikes: from the n-th append on (from 1), at a stream of that name, or where a function says so."""

When = Literal["before", "after", "during"]


class Crash(BaseException):
    """The process died here. No handler for `Exception` stops it, as none would stop the real thing."""


@frozen
class Appended:
    """An append that was carried out: `number` counts from 1 over all that were asked for."""

    number: int
    stream: str
    records: tuple[bytes, ...]


class Hold:
    """An append or read that hangs until it is let go."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []
        self._released = False

    @property
    def reached(self) -> bool:
        """Whether something hangs here."""
        return bool(self._waiting)

    def release(self) -> None:
        """Carry out what hangs, and hold no more."""
        self._released = True
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()

    def _keep(self, go_on: Callable[[], None]) -> None:
        if self._released:
            go_on()
        else:
            self._waiting.append(go_on)


@define(eq=False)
class _Fault:
    at: At
    when: When
    error: BaseException | None = None
    hold: Hold | None = None
    left: int = 1

    def strikes(self, number: int, stream: str, records: Sequence[bytes]) -> bool:
        match self.at:
            case int():
                hit = self.at <= number
            case str():
                hit = self.at == stream
            case _:
                hit = self.at(stream, records)
        if not hit or not self.left:
            return False
        self.left -= 1
        return True


class MockStore(MemStore):
    """For tests: keeps everything in memory, notes what was appended, and plays a script of faults.

    `appends` is how many appends were asked for, `appended` those that were carried out, in order. After a crash every call
    raises `Crash`, until `revive` makes the store what the next process would find.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.appends = 0
        self.appended: builtins.list[Appended] = []
        self._reads = 0
        self._dead = False
        self._faults: builtins.list[_Fault] = []
        self._read_faults: builtins.list[_Fault] = []

    # --- the script -------------------------------------------------------------------------------------------------

    @property
    def crashed(self) -> bool:
        """Whether a crash has struck since the store was made or revived."""
        return self._dead

    def fail_append(self, at: At, error: BaseException | None = None, *, after: bool = False, times: int = 1) -> None:
        """Let so many appends fail with `error` (a `StoreError`); `after`: they are carried out, only the reply is lost."""
        self._faults.append(_Fault(at, "after" if after else "before", error or _scripted(), left=times))

    def hang_append(self, at: At, *, after: bool = False) -> Hold:
        """Let an append hang; `after`: it is carried out at once, and only the reply hangs."""
        hold = Hold()
        self._faults.append(_Fault(at, "after" if after else "before", hold=hold))
        return hold

    def crash_at(self, at: At, when: When = "before") -> None:
        """Let the process die at an append.

        before: nothing is written. after: all is written, and nobody learns of it. during: all is written, and the process
        dies only in the next turn of the loop, so that what runs beside it is carried out or cut off, as it comes.
        """
        self._faults.append(_Fault(at, when))

    def fail_read(self, at: At, error: BaseException | None = None, *, times: int = 1) -> None:
        """Let a read of a stream fail; a number counts reads from 1, a function is given no records."""
        self._read_faults.append(_Fault(at, "before", error or _scripted(), left=times))

    def crash(self) -> None:
        """Let the process die now."""
        self._dead = True

    def revive(self) -> None:
        """Be the store that the next process finds: what was written is there, the dead process's leases are free.

        Faults that have not struck stay in the script, and appends are counted on; `clear` forgets both.
        """
        self._dead = False
        with self._locked():
            self._leases.clear()

    def clear(self) -> None:
        """Forget the script, and count and note appends from the start."""
        self._faults.clear()
        self._read_faults.clear()
        self._reads = 0
        self.appends = 0
        self.appended.clear()

    # --- the store --------------------------------------------------------------------------------------------------

    def append(self, stream: str, expected: int, records: Sequence[bytes], lease: Lease | None = None) -> Future[int]:
        loop = get_running_loop()
        self.appends += 1
        number = self.appends
        future: Future[int] = loop.create_future()

        def carry_out() -> bool:
            """Append, into `outcome`; whether it was done."""
            try:
                outcome.append(self._append(stream, expected, records, lease))
            except (StoreError, Fenced) as error:
                outcome.append(error)
                return False
            self.appended.append(Appended(number, stream, tuple(records)))
            return True

        def reply() -> None:
            given = _died() if self._dead else outcome[0]
            if isinstance(given, BaseException):
                fail(future, given)
            elif number % STRETCH:
                give(future, given)
            else:  # as a `MemStore` does
                loop.call_soon(give, future, given)

        def go_on() -> None:
            if not self._dead and not outcome:
                carry_out()
            reply()

        outcome: list[int | Exception] = []
        fault = None
        if not self._dead:
            fault = next((fault for fault in self._faults if fault.strikes(number, stream, records)), None)
        if fault is None:
            go_on()
            return future
        if fault.when != "before" and not carry_out():
            reply()  # refused: there is no reply to lose
        elif fault.hold is not None:
            fault.hold._keep(go_on)
        elif fault.error is not None:
            fail(future, fault.error)
        elif fault.when == "during":
            loop.call_soon(partial(self._die, future))
        else:
            self._die(future)
        return future

    async def read(self, stream: str, start: int = 0) -> builtins.list[bytes]:
        self._alive()
        self._reads += 1
        for fault in self._read_faults:
            if fault.strikes(self._reads, stream, ()) and fault.error is not None:
                raise fault.error
        return await super().read(stream, start)

    async def list(self, prefix: str) -> builtins.list[StreamInfo]:
        self._alive()
        return await super().list(prefix)

    async def delete(self, stream: str, lease: Lease | None = None, *, leave: Sequence[bytes] = ()) -> None:
        self._alive()
        await super().delete(stream, lease, leave=leave)

    async def acquire(self, name: str, owner: str, seconds: float) -> Lease | None:
        self._alive()
        return await super().acquire(name, owner, seconds)

    async def renew(self, lease: Lease, seconds: float) -> bool:
        self._alive()
        return await super().renew(lease, seconds)

    async def release(self, lease: Lease) -> None:
        self._alive()
        await super().release(lease)

    async def holder(self, name: str) -> str | None:
        self._alive()
        return await super().holder(name)

    def _alive(self) -> None:
        if self._dead:
            raise _died()

    def _die(self, future: Future[int]) -> None:
        self.crash()
        fail(future, _died())


def _scripted() -> StoreError:
    return StoreError("the store failed, as scripted", remedy="this is a test")


def _died() -> Crash:
    return Crash("the process died, as scripted")


def give(future: Future[int], value: int) -> None:
    """Answer, unless nobody waits any more."""
    if not future.done():
        future.set_result(value)


def fail(future: Future[int], error: BaseException) -> None:
    """Answer with an error, unless nobody waits any more."""
    if not future.done():
        future.set_exception(error)
        if isinstance(error, Crash):
            future.exception()  # a dead process does not complain that nobody looked
