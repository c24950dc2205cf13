"""Streams and leases as rows of diskcache's `Cache` table; every method runs inside the caller's transaction.

    key                       value
    "=" + name of a stream    nothing: its head, whose row stands for the name
    rowid of head << 24 | n   its n-th record
    "!" + name of a lease     fence, end and owner
    "#"                       the newest fence of the whole store, so that rows of leases can go

A record is found by a small integer, since the unique index stores each key a second time. Every value ends in a CRC-32 that
starts from its key, so a damaged or swapped row is noticed, and a gap too. A stream ends where its rows end: an append then
needs one statement and no second row, and a row deleted cleanly from the end was never written.
"""

from __future__ import annotations

import builtins
import sqlite3
import struct
import zlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from bb.errors import Conflict, CorruptRecord, Fenced, StoreFull
from bb.stores.base import Lease, StreamInfo
from bb.stores.owner import is_dead

Sql = Callable[..., sqlite3.Cursor]

_SHIFT: Final = 24
_MOST: Final = 1 << _SHIFT  # records in one stream
_ROWS: Final = 1 << 63 - _SHIFT  # a higher row cannot be the head of a stream
_RAW: Final = 1  # diskcache's mark of a key and a value that are not pickled
_LEASE: Final = struct.Struct("<Qd")
_FENCE: Final = struct.Struct("<Q")
_CRC: Final = struct.Struct("<I")
_LAST: Final = "\U0010ffff"  # sorts behind every printable character

_SELECT: Final = "SELECT key, raw, mode, value, rowid, store_time FROM Cache WHERE "
_INSERT: Final = "INSERT INTO Cache(key, raw, mode, value, store_time) VALUES (?, 1, 1, ?, ?)"
_UPDATE: Final = "UPDATE Cache SET value = ?, store_time = ? WHERE rowid = ?"

_NEWEST: Final = "key BETWEEN ? AND ? ORDER BY key DESC LIMIT 1"
_LENGTH: Final = "SELECT key FROM Cache WHERE key BETWEEN ? AND ? ORDER BY key DESC LIMIT 1"
_APPEND: Final = (
    "INSERT INTO Cache(key, raw, mode, value, store_time) SELECT ?, 1, 1, ?, ? "
    "WHERE EXISTS (SELECT 1 FROM Cache WHERE rowid = ? AND key = ?) "
    "AND EXISTS (SELECT 1 FROM Cache WHERE key = ? AND raw = 1) "
    "AND EXISTS (SELECT 1 FROM Cache WHERE key = ? AND raw = 1 AND mode = 1 AND substr(value, 1, 8) = ?)"
)
_KNOWN: Final = 10_000  # heads to remember

_Row = tuple[object, object, object, object, int, object]


class Head(NamedTuple):
    """The head of a stream: the row it is in, and how many records there are."""

    row: int
    length: int


class Rows:
    """What a store does, in SQL. `where` is the directory, for messages."""

    def __init__(self, sql: Sql, where: str) -> None:
        self._sql = sql
        self._where = where
        self._known: dict[str, Head] = {}
        """Heads as this connection wrote them last: guesses, checked by the very statement that uses them."""

    # --- streams ----------------------------------------------------------------------------------------------------

    def head(self, stream: str) -> Head | None:
        """The head of a stream, None if there is no such stream."""
        row = self._find("=" + stream, f"the head of stream {stream!r}")
        if row is None:
            return None
        value, rowid = row
        if value or rowid >= _ROWS:
            raise self._corrupt(f"the head of stream {stream!r}")
        return Head(rowid, self._length(rowid))

    def append(self, stream: str, expected: int, records: Sequence[bytes], lease: Lease | None, now: float) -> int:
        """As `Store.append`; nothing is written before everything is checked."""
        if len(records) == 1 and lease is not None and self.append_next(stream, expected, records[0], lease, now):
            return expected + 1
        if lease is not None:
            self._check(lease)
        head = self.head(stream)
        length = head.length if head is not None else 0
        if length != expected:
            raise Conflict(f"stream {stream!r} has {length} records, not {expected}", remedy="read it again")
        if not records:
            return length
        if length + len(records) > _MOST:
            raise StoreFull(f"stream {stream!r} has {length} records, and no stream has more than {_MOST}")
        self._write(stream, head, length, records, now)
        return length + len(records)

    def append_next(self, stream: str, expected: int, record: bytes, lease: Lease, now: float) -> bool:
        """The usual append in one statement, which needs no transaction around it; False changes nothing.

        It holds only where this connection wrote to the stream last: the statement itself checks that the stream is still
        that one, that it ends where it did, that the position is free and that the fence is the newest.
        """
        head = self._known.get(stream)
        if head is None or head.length != expected or not 0 < expected < _MOST:
            return False
        key = (head.row << _SHIFT) + expected
        values = (key, _sealed(key, record), now, head.row, "=" + stream, key - 1)
        fence = _FENCE.pack(lease.fence)
        try:
            done = self._sql(_APPEND, (*values, "!" + lease.name, fence)).rowcount == 1
        except sqlite3.IntegrityError:  # somebody else has the position
            done = False
        if done:
            self._known[stream] = Head(head.row, expected + 1)
        return done

    def size(self, head: Head, start: int) -> int:
        """How many bytes the records from `start` on have, without reading them."""
        keys = ((head.row << _SHIFT) + max(start, 0), (head.row << _SHIFT) + head.length)
        ((size,),) = self._sql("SELECT total(length(value)) FROM Cache WHERE key BETWEEN ? AND ?", keys).fetchall()
        return int(size)

    def read(self, stream: str, head: Head, start: int) -> list[bytes]:
        """The records of a stream from `start` on."""
        key = (head.row << _SHIFT) + max(start, 0)
        records = []
        for row in self._sql(_SELECT + "key BETWEEN ? AND ? ORDER BY key", (key, _last(head.row))):
            value = _payload(row) if row[0] == key else None
            if value is None:
                raise self._corrupt(f"record {key - (head.row << _SHIFT)} of stream {stream!r}")
            records.append(value)
            key += 1
        return records

    def list(self, prefix: str) -> builtins.list[StreamInfo]:
        """As `Store.list`."""
        infos = []
        sql = self._sql
        names = sql(_SELECT + "key >= ? AND key < ? ORDER BY key", ("=" + prefix, "=" + prefix + _LAST)).fetchall()
        for row in names:
            key, _, _, _, rowid, changed = row
            length, last = 0, None
            if _payload(row) == b"" and rowid < _ROWS:
                for end in sql(_SELECT + _NEWEST, (rowid << _SHIFT, _last(rowid))).fetchall():
                    length, last, changed = int(end[0]) - (rowid << _SHIFT) + 1, _payload(end), end[5]
            infos.append(StreamInfo(str(key)[1:], length, _moment(changed), last if last is not None else b""))
        return infos

    def delete(self, stream: str, lease: Lease | None, leave: Sequence[bytes], now: float) -> None:
        """As `Store.delete`."""
        if lease is not None:
            self._check(lease)
        self._known.pop(stream, None)
        # by row, not by head: giving up a stream must work when its head is damaged
        for (row,) in self._sql("SELECT rowid FROM Cache WHERE key = ?", ("=" + stream,)).fetchall():
            if row < _ROWS:
                self._sql("DELETE FROM Cache WHERE key BETWEEN ? AND ?", (row << _SHIFT, _last(row)))
            self._sql("DELETE FROM Cache WHERE rowid = ?", (row,))
        if leave:
            self._write(stream, None, 0, leave, now)

    def _write(self, stream: str, head: Head | None, length: int, records: Sequence[bytes], now: float) -> None:
        sql = self._sql
        if head is None:
            key: str | int = "=" + stream
            row = sql(_INSERT, (key, _sealed(key, b""), now)).lastrowid or 0
        else:
            row = head.row
        for key, record in enumerate(records, (row << _SHIFT) + length):
            sql(_INSERT, (key, _sealed(key, record), now))
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known[stream] = Head(row, length + len(records))

    def _length(self, row: int) -> int:
        newest = self._sql(_LENGTH, (row << _SHIFT, _last(row))).fetchall()
        return int(newest[0][0]) - (row << _SHIFT) + 1 if newest else 0

    # --- leases -----------------------------------------------------------------------------------------------------

    def acquire(self, name: str, owner: str, seconds: float, now: float) -> Lease | None:
        """As `Store.acquire`."""
        if self.holder(name, now) is not None:
            return None
        held = self._held(name)
        newest = self._find("#", "the counter of fences")
        fence = _FENCE.unpack(newest[0])[0] + 1 if newest is not None else 1
        self._put("#", newest and newest[1], _FENCE.pack(fence), now)
        lease = Lease(name, owner, fence)
        self._put("!" + name, held and held[0], _lease(lease, now + seconds), now)
        return lease

    def holder(self, name: str, now: float) -> str | None:
        """As `Store.holder`."""
        held = self._held(name)
        return held[3] if held is not None and held[2] > now and not is_dead(held[3]) else None

    def renew(self, lease: Lease, seconds: float, now: float) -> bool:
        """As `Store.renew`."""
        held = self._held(lease.name)
        if held is None or held[1] != lease.fence:
            return False
        self._put("!" + lease.name, held[0], _lease(lease, now + seconds), now)
        return True

    def release(self, lease: Lease) -> None:
        """As `Store.release`."""
        held = self._held(lease.name)
        if held is not None and held[1] == lease.fence:
            self._sql("DELETE FROM Cache WHERE rowid = ?", (held[0],))

    def _held(self, name: str) -> tuple[int, int, float, str] | None:
        row = self._find("!" + name, f"the lease of {name!r}")
        if row is None:
            return None
        value, rowid = row
        try:
            return (rowid, *_LEASE.unpack_from(value), value[_LEASE.size :].decode("utf-8", "surrogatepass"))
        except (struct.error, UnicodeDecodeError):
            raise self._corrupt(f"the lease of {name!r}") from None

    def _check(self, lease: Lease) -> None:
        held = self._held(lease.name)
        if held is None or held[1] != lease.fence:
            raise Fenced(f"the lease of {lease.name!r} went to another or was released")

    # --- rows -------------------------------------------------------------------------------------------------------

    def _find(self, key: str, what: str) -> tuple[bytes, int] | None:
        rows = self._sql(_SELECT + "key = ?", (key,)).fetchall()
        if not rows:
            return None
        value = _payload(rows[0])
        # a second row can only be there because somebody planted a pickled one; an index may point to a wrong row
        if len(rows) > 1 or value is None or rows[0][0] != key:
            raise self._corrupt(what)
        return value, rows[0][4]

    def _put(self, key: str, row: int | None, value: bytes, now: float) -> None:
        if row is None:
            self._sql(_INSERT, (key, _sealed(key, value), now))
        else:
            self._sql(_UPDATE, (_sealed(key, value), now, row))

    def _corrupt(self, what: str) -> CorruptRecord:
        return CorruptRecord(
            f"{what} in {self._where} is damaged or missing",
            remedy="restore the directory from a backup, or delete the stream to give it up",
        )


def _moment(time: object) -> datetime:
    """The moment of a time in a row, which no checksum guards."""
    try:
        return datetime.fromtimestamp(time if isinstance(time, int | float) else 0.0, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0.0, UTC)


def _last(row: int) -> int:
    """The last key that a record of the stream in this row may have."""
    return (row + 1 << _SHIFT) - 1


def _lease(lease: Lease, until: float) -> bytes:
    return _LEASE.pack(lease.fence, until) + lease.owner.encode("utf-8", "surrogatepass")


def _seed(key: str | int) -> int:
    return zlib.crc32(key.encode()) if isinstance(key, str) else (key ^ key >> 32) & 0xFFFFFFFF


def _sealed(key: str | int, value: bytes) -> bytes:
    return value + _CRC.pack(zlib.crc32(value, _seed(key)))


def _payload(row: _Row) -> bytes | None:
    """The value of a row without its checksum; None if it is not what was written. Never unpickles."""
    key, raw, mode, value = row[:4]
    if raw != _RAW or mode != _RAW or type(value) is not bytes or len(value) < _CRC.size:
        return None
    if not isinstance(key, str | int):
        return None
    payload = value[: -_CRC.size]
    return payload if _CRC.pack(zlib.crc32(payload, _seed(key))) == value[-_CRC.size :] else None
