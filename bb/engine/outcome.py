"""What people get to see of runs: how one came out, and the list of them."""

from __future__ import annotations

from copy import deepcopy
from datetime import datetime
from types import NoneType
from typing import Final

from attrs import evolve, frozen

from bb.log import Status
from bb.messages import Message, Usage


@frozen
class Outcome:
    """How a run came out."""

    answer: str
    """All delivered stages joined by blank lines; without a `Respond`, the last message the run added."""
    messages: tuple[Message, ...]
    """What the run added to the chat."""
    value: object
    """The value of the last reply: what its agent's schema made of it, else its text."""
    usage: Usage
    """Tokens billed in this attempt; what was replayed costs nothing."""
    run_id: str
    session_id: str
    replayed: tuple[str, ...] = ()
    """The paths that were replayed from savepoints, in order."""
    waiting_for: str | None = None
    """What a parked run waits for; None when it has finished."""

    def own(self) -> Outcome:
        """The same for one more caller: what it does to the value, the others do not see."""
        return self if isinstance(self.value, _PLAIN) else evolve(self, value=deepcopy(self.value))


_PLAIN: Final = (str, bytes, int, float, bool, NoneType)


@frozen
class RunInfo:
    """One run as `App.runs()` lists it."""

    run_id: str
    flow: str
    status: Status
    attempts: int
    started: datetime
    progress: datetime
    """When it last recorded progress."""
    waiting_for: str | None = None
    error: str = ""
    """The last failure, for people to read."""
