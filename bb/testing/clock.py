"""`ManualClock`: time that passes only when a test says so."""

from __future__ import annotations

import asyncio
import heapq
import threading
from datetime import UTC, datetime, timedelta

from attrs import field, frozen

START = datetime(2026, 1, 1, tzinfo=UTC)


@frozen(order=True)
class _Sleeper:
    until: float
    number: int
    loop: asyncio.AbstractEventLoop = field(order=False)
    woken: asyncio.Future[None] = field(order=False)

    def wake(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)


class ManualClock:
    """A clock that stands still until it is advanced. Safe from every thread, and over several event loops.

    With `auto` nobody needs to advance it: whoever sleeps moves it on at once, and only gives others a turn.
    `slept` lists every sleep asked for, in seconds; `jitter` is the random number, to be set at will.
    """

    def __init__(self, start: datetime = START, *, auto: bool = False, jitter: float = 0.5) -> None:
        """Args:
        start: the time of day to begin with, aware.
        auto: let every sleep advance the clock.
        jitter: what `random()` gives, in [0, 1).
        """
        self.auto = auto
        self.jitter = jitter
        self.slept: list[float] = []
        self._start = start.astimezone(UTC)
        self._passed = 0.0
        self._sleepers: list[_Sleeper] = []
        self._number = 0
        self._lock = threading.Lock()

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._passed)

    def monotonic(self) -> float:
        return self._passed

    def random(self) -> float:
        return self.jitter

    async def sleep(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            self.slept.append(seconds)
            until = self._passed + seconds
            if self.auto or seconds <= 0:
                self._passed = max(self._passed, until)
                sleeper = None
            else:
                self._number += 1
                sleeper = _Sleeper(until, self._number, loop, loop.create_future())
                heapq.heappush(self._sleepers, sleeper)
        if sleeper is None:
            await asyncio.sleep(0)
            return
        try:
            await sleeper.woken
        finally:
            with self._lock:
                if sleeper in self._sleepers:  # it was cancelled
                    self._sleepers.remove(sleeper)
                    heapq.heapify(self._sleepers)

    @property
    def sleepers(self) -> int:
        """How many sleep just now."""
        return len(self._sleepers)

    def advance(self, by: float | timedelta) -> None:
        """Let that much time pass (seconds, or a timedelta), and wake whose time has come, in order.

        They go on when the event loop next has its turn: `await asyncio.sleep(0)` before looking at what they did.

        Raises:
            ValueError: time does not go backwards.
        """
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        if seconds < 0:
            raise ValueError(f"cannot advance by {seconds} seconds: time does not go backwards")
        with self._lock:
            self._passed += seconds
            due: list[_Sleeper] = []
            while self._sleepers and self._sleepers[0].until <= self._passed:
                due.append(heapq.heappop(self._sleepers))
        for sleeper in due:
            sleeper.wake()
