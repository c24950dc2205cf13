"""`Bells`: who watches a run of this process hears at once that something was recorded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bb.engine.frame.delivery import setter


class Bells:
    """One bell per watcher, by the id of the run. What other processes record rings none here."""

    def __init__(self) -> None:
        self._hung: dict[str, list[Callable[[], None]]] = {}
        self._lock = threading.Lock()

    def ring(self, run_id: str) -> None:
        """Something was recorded; from any thread."""
        if self._hung:  # nobody watches, as a rule
            with self._lock:
                bells = list(self._hung.get(run_id, ()))
            for bell in bells:
                bell()

    @contextmanager
    def hung(self, run_id: str) -> Iterator[asyncio.Event]:
        """An event of the running loop that is set whenever something was recorded, for the length of the block."""
        event = asyncio.Event()
        bell = setter(event)
        with self._lock:
            self._hung.setdefault(run_id, []).append(bell)
        try:
            yield event
        finally:
            with self._lock:
                self._hung[run_id].remove(bell)
                if not self._hung[run_id]:
                    del self._hung[run_id]
