"""The keeper of leases: how often it looks and renews, by a clock that only its own waiting moves."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

import bb
from bb.engine.runs.keeper import Keeper, _Held
from bb.log import CONTROLS, run_stream
from bb.stores.base import Lease, StreamInfo


class Passing(threading.Event):
    """Nobody sets it: whoever waits for it lets time pass at once, and is told to end when `until` is over."""

    def __init__(self, until: float) -> None:
        super().__init__()
        self.now = 0.0
        self.until = until

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now += timeout
        return self.now > self.until


class Watched(bb.MemStore):
    """Notes when it is asked for requests to cancel, and when to renew."""

    def __init__(self, time: Passing) -> None:
        super().__init__()
        self._time = time
        self.looks: list[float] = []
        self.renewals: list[float] = []

    async def list(self, prefix: str) -> list[StreamInfo]:
        assert prefix == CONTROLS
        self.looks.append(self._time.now)
        return await super().list(prefix)

    async def renew(self, lease: Lease, seconds: float) -> bool:
        self.renewals.append(self._time.now)
        return await super().renew(lease, seconds)


def watched(monkeypatch: pytest.MonkeyPatch, lease: float, until: float) -> Watched:
    """A store after a keeper of leases of so many seconds has kept one for so long."""
    time = Passing(until)
    monkeypatch.setattr("bb.engine.runs.keeper.time", SimpleNamespace(monotonic=lambda: time.now))
    store = Watched(time)
    held = asyncio.run(store.acquire(run_stream("r"), "me", lease))
    assert held is not None
    keeper = Keeper(store, lease)
    mine = keeper._mine()
    mine.ended, mine.thread = time, threading.current_thread()
    mine.held[held.name] = _Held(held, "r", lease, lambda lost: None, lambda: None, lambda: False)
    keeper._main(mine)
    return store


def test_it_looks_for_requests_every_250_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(monkeypatch, lease=30, until=2).looks == [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0]


def test_it_renews_at_a_third_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that two may fail before the lease runs out."""
    assert watched(monkeypatch, lease=30, until=30).renewals == [10.0, 20.0, 30.0]
