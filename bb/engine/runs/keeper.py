"""The thread that keeps leases alive and looks for requests to their holders, so that a blocked event loop loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
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


@define(eq=False, repr=False)
class _Held:
    lease: Lease
    run_id: str
    until: float
    lost: Callable[[Fenced], None]
    cancel: Callable[[], None]
    dead: Callable[[], bool]


class _Process:
    """What one process keeps: a fork has no threads, its parent's leases are not its own, and its locks may be taken."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.held: dict[str, _Held] = {}
        self.thread: threading.Thread | None = None
        self.ended = threading.Event()


class Keeper:
    """Renews the leases of an app at a third of their time, from a thread of its own that starts and ends with need."""

    def __init__(self, store: Store, seconds: float) -> None:
        self._store = store
        self._seconds = seconds
        self._processes: dict[int, _Process] = {}

    def hold(
        self,
        lease: Lease,
        run_id: str,
        lost: Callable[[Fenced], None],
        cancel: Callable[[], None],
        dead: Callable[[], bool],
    ) -> None:
        """Keep a lease. From any thread.

        `lost` is called once if it goes to another, `cancel` when somebody asks for that; once `dead` says that the runner
        will never run again, the lease is given back and lost.
        """
        mine = self._mine()
        with mine.lock:
            mine.held[lease.name] = _Held(lease, run_id, time.monotonic() + self._seconds, lost, cancel, dead)
            if mine.thread is None or not mine.thread.is_alive():
                mine.ended = threading.Event()
                mine.thread = threading.Thread(target=self._main, args=(mine,), name="bb-keeper", daemon=True)
                mine.thread.start()

    def close(self) -> None:
        """Let the thread end; a later `hold` starts another."""
        mine = self._mine()
        with mine.lock:
            mine.thread = None
            mine.ended.set()

    def drop(self, lease: Lease) -> None:
        """Keep the lease no longer."""
        mine = self._mine()
        with mine.lock:
            mine.held.pop(lease.name, None)

    def _mine(self) -> _Process:
        pid = os.getpid()
        return self._processes.get(pid) or self._processes.setdefault(pid, _Process())

    def _main(self, mine: _Process) -> None:
        ended, runner = mine.ended, asyncio.Runner()  # without a loop, and its files, until there is something to ask
        renewed = idle = time.monotonic()
        try:
            while not ended.wait(LOOK):
                now = time.monotonic()
                with mine.lock:
                    held = list(mine.held.values())
                    if held:
                        idle = now
                    elif now - idle > IDLE:
                        mine.thread = None
                    if mine.thread is not threading.current_thread():
                        return
                if held:
                    due = now - renewed >= self._seconds / 3
                    renewed = now if due else renewed
                    runner.run(self._tend(held, due))
        finally:
            runner.close()

    async def _tend(self, held: list[_Held], due: bool) -> None:
        for one in [one for one in held if one.dead()]:
            held.remove(one)
            await self._give_back(one)
            one.lost(Fenced(f"the event loop of run {one.run_id} was closed", remedy="run it again with its run id"))
        await self._look(held)
        if due:
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
            mine = self._mine()
            with mine.lock:
                kept = mine.held.get(held.lease.name) is held
                if kept:
                    del mine.held[held.lease.name]
            if kept:
                held.lost(
                    Fenced(f"the lease of run {held.run_id} went to another runner", remedy="join it by its run id")
                )

    async def _give_back(self, held: _Held) -> None:
        self.drop(held.lease)
        with contextlib.suppress(BBError):  # then it runs out
            await self._store.release(held.lease)

    async def _look(self, held: list[_Held]) -> None:
        try:
            asked = {info.name for info in await self._store.list(CONTROLS)}
        except BBError as error:
            warning("control streams could not be read", error=str(error))
            return
        for one in held:
            if control_stream(one.run_id) in asked:
                one.cancel()
