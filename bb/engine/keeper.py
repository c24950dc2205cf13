"""The thread that keeps leases alive and looks for requests to their holders, so that a blocked event loop loses nothing."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Final

from attrs import define

from bb.errors import BBError, Fenced
from bb.log import CONTROLS, control_stream
from bb.logs import warning
from bb.stores.base import Lease, Store

LOOK: Final = 0.25  # seconds between looks at the control streams
IDLE: Final = 5.0  # seconds the thread outlives the last lease


@define(eq=False)
class _Held:
    lease: Lease
    run_id: str
    until: float
    lost: Callable[[Fenced], None]
    cancel: Callable[[], None]


class Keeper:
    """Renews the leases of an app at a third of their time, from a thread of its own that starts and ends with need."""

    def __init__(self, store: Store, seconds: float) -> None:
        self._store = store
        self._seconds = seconds
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}
        self._thread: threading.Thread | None = None
        self._pid = 0

    def hold(self, lease: Lease, run_id: str, lost: Callable[[Fenced], None], cancel: Callable[[], None]) -> None:
        """Keep a lease; `lost` is called once if it goes to another, `cancel` when somebody asks for that. From any thread."""
        with self._lock:
            if self._pid != os.getpid():  # a fork has no threads, and its parent's leases are not its own
                self._held, self._thread, self._pid = {}, None, os.getpid()
            self._held[lease.name] = _Held(lease, run_id, time.monotonic() + self._seconds, lost, cancel)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._main, name="bb-keeper", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Let the thread end at its next look; a later `hold` starts another."""
        with self._lock:
            self._thread = None

    def drop(self, lease: Lease) -> None:
        """Keep the lease no longer."""
        with self._lock:
            self._held.pop(lease.name, None)

    def _main(self) -> None:
        asyncio.run(self._keep())

    async def _keep(self) -> None:
        renewed = idle = time.monotonic()
        while True:
            await asyncio.sleep(LOOK)
            now = time.monotonic()
            with self._lock:
                held = list(self._held.values())
                if held:
                    idle = now
                elif now - idle > IDLE:
                    self._thread = None
                if self._thread is not threading.current_thread():
                    return
            if not held:
                continue
            await self._look(held)
            if now - renewed >= self._seconds / 3:
                renewed = now
                for one in held:
                    await self._renew(one)

    async def _renew(self, held: _Held) -> None:
        try:
            alive = await self._store.renew(held.lease, self._seconds)
        except BBError as error:
            warning("a lease could not be renewed", run_id=held.run_id, error=str(error))
            alive = time.monotonic() < held.until  # the store may come back before the lease runs out
        else:
            held.until = time.monotonic() + self._seconds
        if not alive:
            with self._lock:
                mine = self._held.get(held.lease.name) is held
                self._held.pop(held.lease.name, None) if mine else None
            if mine:
                held.lost(
                    Fenced(f"the lease of run {held.run_id} went to another runner", remedy="join it by its run id")
                )

    async def _look(self, held: list[_Held]) -> None:
        try:
            asked = {info.name for info in await self._store.list(CONTROLS)}
        except BBError as error:
            warning("control streams could not be read", error=str(error))
            return
        for one in held:
            if control_stream(one.run_id) in asked:
                one.cancel()
