"""`Patience`: how long clients wait for their runs when the server shuts down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bb.errors import Interrupted


class Patience:
    """Ends for all who wait at once: they are told then, while they can be, whatever their runs are still cleaning up."""

    def __init__(self) -> None:
        self._over = False
        self._waiting: set[asyncio.Timeout] = set()

    def end(self) -> None:
        """Nobody waits any longer."""
        self._over = True
        now = asyncio.get_running_loop().time()
        for wait in self._waiting:
            if not wait.expired():
                wait.reschedule(now)

    @asynccontextmanager
    async def waiting(self, run_id: str) -> AsyncIterator[None]:
        """Wait in here for what comes of a run.

        Raises:
            Interrupted: it has not come in time.
        """
        wait = asyncio.timeout(0 if self._over else None)
        try:
            async with wait:
                self._waiting.add(wait)
                try:
                    yield
                finally:
                    self._waiting.discard(wait)
        except TimeoutError:
            if not wait.expired():
                raise
            raise Interrupted(
                f"run {run_id} did not end before the server did", remedy="run it again with its run id"
            ) from None
