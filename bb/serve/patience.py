"""`Patience`: how long the server waits, which ends for all at once when it shuts down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bb.errors import Interrupted


class Patience:
    """Waits with a limit of their own or none, which are all over when the server cannot wait any longer."""

    def __init__(self) -> None:
        self.over = False
        """Whether `end` was called."""
        self._waits: set[asyncio.Timeout] = set()

    def end(self) -> None:
        """Nobody waits any longer."""
        self.over = True
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(0)

    @asynccontextmanager
    async def within(self, seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
        """Wait in here, for so many seconds.

        Raises:
            TimeoutError: they are over, or the server cannot wait any longer.
        """
        async with asyncio.timeout(0 if self.over else seconds) as wait:
            self._waits.add(wait)
            try:
                yield wait
            finally:
                self._waits.discard(wait)

    @asynccontextmanager
    async def for_run(self, run_id: str) -> AsyncIterator[None]:
        """Wait in here for what comes of a run.

        Raises:
            Interrupted: the server cannot wait any longer.
        """
        wait: asyncio.Timeout | None = None
        try:
            async with self.within(None) as wait:
                yield
        except TimeoutError:
            if wait is None or not wait.expired():
                raise
            raise Interrupted(
                f"run {run_id} did not end before the server did", remedy="run it again with its run id"
            ) from None
