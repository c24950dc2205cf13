"""`Database`: what a `TurnStore` needs of the database under it."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import Protocol

from bb.stores.rows import Rows


class Busy(Exception):
    """Another process is in the way; try again."""


class Database(Protocol):
    """One connection to the database, used by whoever holds `lock`."""

    lock: threading.Lock
    home: str

    @property
    def ready(self) -> bool:
        """Whether it is open."""
        ...

    @property
    def rows(self) -> Rows | None:
        """For one statement, which is atomic by itself; None while it is not open. Its errors are raw."""
        ...

    def open(self) -> bool:
        """Connect; False when there is nothing to read yet.

        Raises:
            Busy: another process is in the way.
            StoreError: it cannot be opened.
        """
        ...

    def transaction(self) -> AbstractContextManager[Rows]:
        """One atomic step.

        Raises:
            Busy: another process is in the way.
            StoreError: the database failed; nothing was written.
        """
        ...

    def checkpoint(self) -> None:
        """Move what is committed out of the log."""
        ...

    def abandon(self) -> object:
        """Let go of the connection without closing it, and give it."""
        ...

    def close(self) -> None:
        """Close the connection; it may be opened again."""
        ...
