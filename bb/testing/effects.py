"""`Effects`: counts what a program does to the outside world."""

from __future__ import annotations

import threading
from collections import Counter

from bb.place import current_place
from bb.testing.process import current


class Effects:
    """A counter for a test's own handlers: `effects.ran("charge")` stands for the charge.

    While `crash_everywhere` explores, it knows the place each effect ran at, and each case starts from zero. Safe from every
    thread.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def ran(self, what: str) -> int:
        """Count an effect; gives how often it has run by now. A process that has crashed does nothing any more."""
        process = current.get()
        if process is not None:
            process.ran(what, current_place())
        with self._lock:
            self._counts[what] += 1
            return self._counts[what]

    def __getitem__(self, what: str) -> int:
        """How often it ran."""
        return self._counts[what]

    def reset(self) -> None:
        """Begin again at zero."""
        with self._lock:
            self._counts.clear()

    def __repr__(self) -> str:
        return f"Effects({dict(self._counts)})"
