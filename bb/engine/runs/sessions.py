"""The sessions of one app: their memory in the store, and that of flows that are not durable in the process.

What keeps and finds the rows of a session is loaded when the first one is needed; most programs never do.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Final

from bb.clock import Clock
from bb.codec import Codec
from bb.ids import session_of
from bb.log import History, tenant_of
from bb.stores.base import Lease, Store
from bb.stores.memory import MemStore

if TYPE_CHECKING:
    from bb.engine.frame.run import Run
    from bb.engine.memory.known import Streams
    from bb.engine.memory.session_memory import SessionMemory
    from bb.engine.memory.session_rows import SessionRows

IN_PROCESS: Final = 1_000  # sessions of which a process remembers what runs that are not durable computed


class Sessions:
    """Opens what runs share; nobody holds anything for a session of which no run is in memory."""

    def __init__(self, store: Store, codec: Codec, clock: Clock) -> None:
        self._store = store
        self._codec = codec
        self._clock = clock
        self._process = MemStore()
        self._ended: OrderedDict[str, None] = OrderedDict()
        """The sessions of which there is something in the process, the one that ended a run last at the end."""
        self.delivered: Callable[[str], None] = lambda _: None
        """Told of a run that got what another gave back."""

    @cached_property
    def _streams(self) -> Streams:
        from bb.engine.memory.known import Streams

        return Streams()

    def rows(self, session_id: str) -> SessionRows:
        """The rows of a session, for who is no run."""
        from bb.engine.memory.session_rows import SessionRows

        return SessionRows(self._store, self._codec, self._clock, session_id, streams=self._streams)

    def open(self, run: Run, durable: bool) -> SessionMemory:
        """The memory of a run's session: in the store for what is durable, else for as long as the process lives."""
        from bb.engine.memory.session_memory import SessionMemory
        from bb.engine.memory.session_rows import no_lease

        store = self._store if durable else self._process
        lease = run.lease if durable else no_lease
        return SessionMemory(
            store, self._codec, self._clock, run.session_id, run.run_id, lease, store.holder, self._streams, run.life
        )

    async def end(self, run: Run) -> None:
        """A run that is not durable is over: what it kept in the process for itself alone goes with it.

        So does the session that was used longest ago, when there are too many. Clients choose their ids; and what a session
        forgets is computed once more.
        """
        if not run.used_process_memory:
            return
        gone = run.session_id
        if run.has_session:
            self._ended[gone] = None
            self._ended.move_to_end(gone)
            if len(self._ended) <= IN_PROCESS:
                return
            gone, _ = self._ended.popitem(last=False)
        from bb.engine.memory.session_memory import drop_session

        await drop_session(self._process, gone)

    async def close(self, history: History, lease: Lease | None, *, over: bool, waits: bool = False) -> None:
        """A run waits no longer; with `over` it is dropped, and a session of its own with it.

        What was delivered to it and it has not taken goes to the next who waits. `waits` says that its flow can wait: its
        event may have been there already, so that it took it and never parked.
        """
        if history.started is None or not (history.legs or over or waits):
            return
        from bb.engine.memory.mailbox import leave_all
        from bb.engine.memory.session_memory import drop_session, run_gone
        from bb.engine.memory.session_rows import SessionRows

        session_id = history.started.session
        dropped = over and session_id == session_of(tenant_of(history.started.given), history.run_id)
        rows = SessionRows(self._store, self._codec, self._clock, session_id, lambda: lease, self._streams)
        if not dropped:
            parked = history.parked.path if history.parked is not None and not history.failed else None
            for taker in await leave_all(rows, history.run_id, over=over, parked=parked):
                self.delivered(taker)
        if history.legs:
            await run_gone(rows, history.run_id)
        if dropped:
            await drop_session(self._store, session_id)

    async def has_come(self, session_id: str, source: str, run_id: str) -> bool:
        """Whether the event that a parked run waits for is here."""
        from bb.engine.memory.mailbox import has_come

        return await has_come(self.rows(session_id), source, run_id)

    async def drop(self, session_id: str) -> None:
        """Forget everything that runs shared in a session."""
        from bb.engine.memory.session_memory import drop_session

        await drop_session(self._store, session_id)
        await drop_session(self._process, session_id)
