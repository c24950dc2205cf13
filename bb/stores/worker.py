"""`Worker`: a thread that does jobs in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

Job = Callable[[], Callable[[], None]]
"""What to do, and gives what to do when it counts as done: telling who waits, who may then find the worker idle."""

_LINGER: Final = 1.0  # seconds that an idle thread stays
_TICK: Final = 0.05


class Worker:
    """Does jobs one after another in a thread that starts on demand and ends when there is nothing to do.

    The thread is no daemon, so that what was asked for before the program ends is still done; it waits for no more then.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._open = 0
        self._dismissed = False

    @property
    def idle(self) -> bool:
        """Whether every job handed in has been done."""
        return self._open == 0

    def submit(self, job: Job) -> None:
        """Do `job` after all others; it must not raise.

        Raises:
            RuntimeError: there is no thread to be had.
        """
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name=self._name)
                thread.start()
                self._thread = thread
            self._dismissed = False
            self._open += 1
            self._jobs.append(job)
            self._changed.notify()

    def dismiss(self) -> None:
        """Let the thread end as soon as it has nothing to do."""
        with self._changed:
            self._dismissed = True
            self._changed.notify()

    def _work(self) -> None:
        main = threading.main_thread()
        waited = 0.0
        while True:
            with self._changed:
                if not self._jobs:
                    if waited >= _LINGER or self._dismissed or not main.is_alive():
                        self._thread = None
                        return
                    waited = 0.0 if self._changed.wait(_TICK) else waited + _TICK
                    continue
                job = self._jobs.popleft()
            waited = 0.0
            try:
                tell = job()
            finally:
                with self._changed:
                    self._open -= 1
            tell()
            del job, tell  # an idle thread must not keep a batch, and with it a loop, alive
