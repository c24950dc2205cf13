"""The `Store` protocol: named streams of byte records, compare-and-append, and leases with fencing tokens."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, TypeVar

from attrs import frozen

T = TypeVar("T")


class Written(Future[T]):
    """The future of a write: it cannot be cancelled. Whoever is cancelled while waiting learns it when the write is done."""

    def cancel(self, msg: object = None) -> bool:
        return False


@frozen
class Lease:
    """The right to be the only writer; `fence` grows with every new holder of `name` and never repeats."""

    name: str
    owner: str
    fence: int


@frozen
class StreamInfo:
    """A stream at a glance: its name, number of records, last change (UTC) and last record.

    What is damaged is 0 or empty here, so that one stream does not hide the others; `read` says what is wrong with it.
    """

    name: str
    length: int
    changed: datetime
    last: bytes


class Store(Protocol):
    """Where facts are kept. Bytes in, bytes out, so that every store accepts and refuses the same values.

    Every method may be called from any thread and any event loop. Stream names are 1 to 400 printable characters; names that
    differ only in case are different. All errors raised are `StoreError` or one of its subclasses.
    """

    def append(self, stream: str, expected: int, records: Sequence[bytes], lease: Lease | None = None) -> Future[int]:
        """Append all records or none, and give the new length of the stream.

        The future belongs to the running loop and is completed by the store: cancelling who waits does not cancel the write
        (best a `Written`, which costs its waiter least).
        Appends of one loop are carried out in the order they were made.

        Raises (through the future):
            Conflict: the stream has not exactly `expected` records.
            Fenced: `lease` is not the newest of its name, or has been released (checked in the same atomic step).
            StoreFull: there is no room.
        """
        ...

    async def read(self, stream: str, start: int = 0) -> list[bytes]:
        """The records from `start` on; an unknown stream is empty.

        Raises:
            CorruptRecord: a record was damaged in the store; the message names the stream and its position.
        """
        ...

    async def list(self, prefix: str) -> list[StreamInfo]:
        """The streams whose name begins with `prefix`, by name, in time proportional to their number."""
        ...

    async def delete(self, stream: str, lease: Lease | None = None, *, leave: Sequence[bytes] = ()) -> None:
        """Replace the records of a stream, in one atomic step, by `leave` (none: the stream is gone). Idempotent.

        Raises:
            Fenced: as for `append`.
        """
        ...

    async def acquire(self, name: str, owner: str, seconds: float) -> Lease | None:
        """Take the lease of `name` for that long, or None while a living holder has it.

        A lease is free when it was never taken, was released, ran out, or belongs to a process that died on this machine
        (`bb.stores.owner`). A second acquire by the same owner string is refused like any other. A caller that is cancelled
        meanwhile holds nothing.
        """
        ...

    async def renew(self, lease: Lease, seconds: float) -> bool:
        """Hold the lease for that long from now; False when it went to another or was released."""
        ...

    async def release(self, lease: Lease) -> None:
        """Give the lease back; does nothing if it went to another. Its fence stays burnt."""
        ...

    async def holder(self, name: str) -> str | None:
        """The owner that has the lease of `name`, or None when the lease is free. Changes nothing."""
        ...

    async def close(self) -> None:
        """Flush and let go of every handle. A later call opens again."""
        ...
