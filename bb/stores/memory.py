"""`MemStore`: streams in this process, gone with it."""

from __future__ import annotations

import builtins
import os
import threading
import time
from asyncio import Future, get_running_loop
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from attrs import define

from bb.clock import Clock
from bb.errors import Conflict, Fenced, StoreError
from bb.ports import check_clock
from bb.record import Record
from bb.stores.base import Lease, StreamInfo, Written
from bb.stores.names import check_name, check_records
from bb.stores.owner import is_dead

STRETCH: Final = 64  # appends without a turn of the loop


@define(eq=False, repr=False)
class _Stream(Record):
    records: list[bytes]
    changed: float


@define(eq=False, repr=False)
class _Held(Record):
    lease: Lease
    until: float


class MemStore:
    """The default store: fast, safe from every thread and loop, and nothing survives the process.

    `clock` is where changes and leases get their time from; by default the clock of the machine.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        check_clock(clock)
        self._clock = clock
        self._locks: dict[int, threading.Lock] = {}  # by process: in a forked child nobody would free its parent's
        self._streams: dict[str, _Stream] = {}
        self._leases: dict[str, _Held] = {}
        self._fence = 0
        self._appends = 0

    def append(self, stream: str, expected: int, records: Sequence[bytes], lease: Lease | None = None) -> Future[int]:
        loop = get_running_loop()
        future: Future[int] = Written(loop=loop)
        try:
            length = self._append(stream, expected, records, lease)
        except (StoreError, Fenced) as error:
            future.set_exception(error)
            return future
        self._appends += 1
        if self._appends % STRETCH:
            future.set_result(length)
        else:  # who only ever writes would keep the loop to itself, and could not be cancelled
            loop.call_soon(future.set_result, length)
        return future

    async def read(self, stream: str, start: int = 0) -> builtins.list[bytes]:
        check_name(stream)
        with self._locked():
            kept = self._streams.get(stream)
            return kept.records[max(start, 0) :] if kept is not None else []

    async def list(self, prefix: str) -> builtins.list[StreamInfo]:
        with self._locked():
            return [
                StreamInfo(name, len(kept.records), datetime.fromtimestamp(kept.changed, UTC), kept.records[-1])
                for name, kept in sorted(self._streams.items())
                if name.startswith(prefix)
            ]

    async def delete(self, stream: str, lease: Lease | None = None, *, leave: Sequence[bytes] = ()) -> None:
        check_name(stream)
        left = check_records(leave)
        with self._locked():
            self._check(lease)
            if left:
                self._streams[stream] = _Stream([*left], self._now())
            else:
                self._streams.pop(stream, None)

    async def acquire(self, name: str, owner: str, seconds: float) -> Lease | None:
        check_name(name)
        with self._locked():
            held = self._leases.get(name)
            now = self._monotonic()
            if held is not None and held.until > now and not is_dead(held.lease.owner):
                return None
            self._fence += 1
            lease = Lease(name, owner, self._fence)
            self._leases[name] = _Held(lease, now + seconds)
            return lease

    async def renew(self, lease: Lease, seconds: float) -> bool:
        with self._locked():
            held = self._leases.get(lease.name)
            if held is None or held.lease.fence != lease.fence:
                return False
            held.until = self._monotonic() + seconds
            return True

    async def release(self, lease: Lease) -> None:
        with self._locked():
            held = self._leases.get(lease.name)
            if held is not None and held.lease.fence == lease.fence:
                del self._leases[lease.name]

    async def holder(self, name: str) -> str | None:
        check_name(name)
        with self._locked():
            held = self._leases.get(name)
            if held is None or held.until <= self._monotonic() or is_dead(held.lease.owner):
                return None
            return held.lease.owner

    async def close(self) -> None:
        """Nothing to let go of: the streams live as long as the store."""

    def _append(self, stream: str, expected: int, records: Sequence[bytes], lease: Lease | None) -> int:
        new = check_records(records)
        with self._locked():
            self._check(lease)
            kept = self._streams.get(stream)
            if kept is None:
                kept = _Stream([], 0.0)
                check_name(stream)
            if len(kept.records) != expected:
                raise Conflict(f"{stream!r} has {len(kept.records)} records, not {expected}", remedy="read it again")
            if new:
                kept.records += new
                kept.changed = self._now()
                self._streams[stream] = kept
            return len(kept.records)

    def _check(self, lease: Lease | None) -> None:
        if lease is not None:
            held = self._leases.get(lease.name)
            if held is None or held.lease.fence != lease.fence:
                raise Fenced(f"the lease of {lease.name!r} went to another or was released")

    def _now(self) -> float:
        return time.time() if self._clock is None else self._clock.now().timestamp()

    def _monotonic(self) -> float:
        return time.monotonic() if self._clock is None else self._clock.monotonic()

    def _locked(self) -> threading.Lock:
        pid = os.getpid()
        return self._locks.get(pid) or self._locks.setdefault(pid, threading.Lock())
