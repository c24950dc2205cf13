"""The leases of runs: taking one, waiting for one, keeping it alive and giving it back."""

from __future__ import annotations

import asyncio
import contextlib
import os
from datetime import timedelta
from typing import Final

from attrs import evolve

from bb.clock import Clock
from bb.engine.runs.ask import Ask
from bb.engine.runs.keeper import Keeper
from bb.engine.runs.live import Live
from bb.errors import BBError, RunBusy
from bb.log import Attempted, Fact, millis, run_stream
from bb.stores.base import Lease, Store
from bb.stores.owner import owner

LEASE_SECONDS: Final = 30.0
POLL: Final = (0.02, 1.0)  # seconds between looks at a lease held elsewhere: the first, and the longest


class Leases:
    """The leases of one app: `nonce` tells it from other apps of its process."""

    def __init__(self, store: Store, nonce: str, seconds: float) -> None:
        self.keeper = Keeper(store, seconds)
        self._store = store
        self._nonce = nonce
        self._seconds = seconds
        self._owner = (0, "")

    async def try_take(self, run_id: str) -> Lease | None:
        """The run's lease, if nobody has it."""
        pid = os.getpid()
        if self._owner[0] != pid:  # a fork is another owner
            self._owner = (pid, owner(self._nonce))
        return await self._store.acquire(run_stream(run_id), self._owner[1], self._seconds)

    async def release(self, lease: Lease) -> None:
        """Give a lease back; one that cannot be given back runs out by itself."""
        with contextlib.suppress(BBError):
            await self._store.release(lease)


class Tenure:
    """The time that one attempt holds the lease of its run."""

    def __init__(self, leases: Leases, clock: Clock, live: Live, ask: Ask) -> None:
        self.lease: Lease | None = None
        self._leases = leases
        self._clock = clock
        self._live = live
        self._ask = ask

    async def take(self) -> Lease:
        """The lease, waiting for another process as long as the caller wants.

        Raises:
            RunBusy: it did not end in that time.
        """
        # real time, not the app's clock: another process does not run on it
        loop = asyncio.get_running_loop()
        until = loop.time() + self._ask.wait.total_seconds()
        live = self._live
        pause, longest = POLL
        while True:
            self.lease = await self._leases.try_take(self._ask.run_id)
            if self.lease is not None:
                self._leases.keeper.hold(self.lease, self._ask.run_id, live.lose, live.ask_cancel, lambda: live.dead)
                return self.lease
            left = until - loop.time()
            if left <= 0:
                raise RunBusy(
                    f"run {self._ask.run_id} is being run by another process",
                    after=timedelta(seconds=longest),
                    flow=self._ask.plan.name,
                    remedy="try again later with the same run id",
                )
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 2, longest)

    async def claim(self) -> tuple[Lease, Fact]:
        """The lease after all, when the replay of a finished run meets something new."""
        self._ask = evolve(self._ask, wait=timedelta(0))
        return await self.take(), Attempted(millis(self._clock.now()), "call")

    async def end(self) -> None:
        """Give the lease back."""
        if self.lease is None or self._live.dead:  # without its loop nothing can be awaited; the keeper sees to it
            return
        lease, self.lease = self.lease, None
        self._leases.keeper.drop(lease)
        await self._leases.release(lease)
