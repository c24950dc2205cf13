"""`Known`: a stream of a session as far as it was read; `Streams`: what the writers of one app know together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

from bb.log.rows import Fold, fold_rows, is_mark
from bb.stores.base import Store

F = TypeVar("F", bound=Fold)

REMEMBERED: Final = 64  # long streams of which an app remembers what they had come to


class Known(Generic[F]):
    """What a stream had come to, and its last records: from its last mark on, or all of them where it has none."""

    def __init__(self, stream: str, fold: Callable[[], F]) -> None:
        self.stream = stream
        self.state: F = fold()
        self.start = 0
        """The position of the first of `records`."""
        self.records: list[bytes] = []
        self.sealed = False
        self._next_count = 0

    @property
    def length(self) -> int:
        """How many records the stream had."""
        return self.start + len(self.records)

    def read_on(self, start: int, records: Sequence[bytes]) -> bool:
        """Fold in what is new among the records from `start` on; False: they do not go on from what is known.

        Then the stream was rewritten. Records that are known all of them are an older look, and no news.

        Raises:
            CorruptRecord: one of them does not fit; what is known is of no use then.
        """
        records = records[self.start - start :]  # another reader may have come further while these were on their way
        new = len(self.records)
        if records[:new] != self.records:  # without a mark among them fewer of the same may be those of another stream
            return self.start > 0 and len(records) > 0 and records == self.records[: len(records)]
        fresh = records[new:]
        self.sealed |= fold_rows(self.state, fresh, self.stream, self.length)
        self.records += fresh
        for index in range(len(self.records) - 1, max(new, 1) - 1, -1):
            if is_mark(self.records[index]):
                self.start += index
                del self.records[:index]
                break
        return True

    def is_long(self, least: int) -> bool:
        """Whether the fewest rows would be at most half as many. As that is dear to tell, it is told only now and then."""
        if self.length < max(least, self._next_count):
            return False
        rows = self.state.shortest()
        if rows is None:
            return False
        self._next_count = self.length + len(rows) // 4
        return 2 * len(rows) <= self.length


class Streams:
    """Who appends to a stream, and what the long ones had come to; by loop, since only one loop may use the same state."""

    def __init__(self) -> None:
        self._turns: WeakValueDictionary[tuple[int, int, str], asyncio.Lock] = WeakValueDictionary()
        self._known: dict[tuple[int, int, str], Known[Any]] = {}

    def turn(self, store: Store, stream: str) -> asyncio.Lock:
        """Who appends to a stream in this app waits in line: a hundred rivals would read it anew for each other's rows."""
        key = _key(store, stream)
        if (lock := self._turns.get(key)) is None:
            lock = self._turns[key] = asyncio.Lock()  # it is here as long as somebody has it or waits for it
        return lock

    def known(self, store: Store, stream: str, fold: Callable[[], F]) -> Known[F] | None:
        """What is remembered of a stream, whose state is a `fold`."""
        return self._known.get(_key(store, stream))

    def learn(self, store: Store, known: Known[Any], start: int, records: Sequence[bytes]) -> bool:
        """As `Known.read_on`; what is known of a long stream is remembered."""
        key = _key(store, known.stream)
        self._known.pop(key, None)  # half folded in, it would be wrong
        if not known.read_on(start, records):
            return False
        if known.start:
            self._known[key] = known
            if len(self._known) > REMEMBERED:
                self._known.pop(next(iter(self._known)), None)
        return True


def _key(store: Store, stream: str) -> tuple[int, int, str]:
    return (id(asyncio.get_running_loop()), id(store), stream)
