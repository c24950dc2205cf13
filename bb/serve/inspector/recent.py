"""`Recent`: the last events of this process."""

from __future__ import annotations

from collections import deque
from typing import Final

from bb.trace import Event

_KEPT: Final = 2000


class Recent:
    """A tracer that keeps the last events, and forgets those before."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=_KEPT)

    def event(self, event: Event, /) -> None:
        self._events.append(event)

    def events(self, run_id: str = "") -> list[Event]:
        """What is kept, oldest first: of one run, or of all."""
        events = list(self._events)  # at once: runs of other threads go on adding
        return [event for event in events if not run_id or event.run_id == run_id]
