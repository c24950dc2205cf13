"""What people get to see: how a run came out, the list of runs, a turn of a conversation, what became of an event."""

from __future__ import annotations

from datetime import datetime

from attrs import evolve, frozen

from bb.log import Status
from bb.messages import Message, Usage
from bb.plain import own


@frozen
class Outcome:
    """How a run came out."""

    answer: str
    """All delivered stages joined by blank lines; without a `Respond`, the last message the run added.

    Of a parked run: the delivered stages, and then what it asks.
    """
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
    """The source of the event that a parked run waits for; None when it has finished."""

    def own(self) -> Outcome:
        """The same for one more caller: what it does to the value, the others do not see."""
        value = own(self.value)
        return self if value is self.value else evolve(self, value=value)


@frozen
class RunInfo:
    """One run as `App.runs()` lists it."""

    run_id: str
    flow: str
    status: Status
    """`queued` is a job that has not begun, `parked` waits for an event, `interrupted` may go on, `stuck` is left to people."""
    attempts: int
    started: datetime
    progress: datetime
    """When it last recorded progress."""
    waiting_for: str | None = None
    error: str = ""
    """The last failure, for people to read."""
    session_id: str = ""
    """The session that it belongs to; without one, its own id."""


@frozen
class SessionTurn:
    """One turn of a conversation: what the flow said, and whether it waits for a reply."""

    prompt: str
    """What to show or speak: the last view since the last reply; of a finished flow its answer."""
    waiting_for: str | None
    """The source that a reply is for; None when the flow has finished."""
    outcome: Outcome
    """How the run stood at the end of the turn."""
    turn_id: str

    @property
    def done(self) -> bool:
        """Whether the flow has finished."""
        return self.waiting_for is None


@frozen
class JobInfo:
    """What a trigger is to start, as `App.jobs()` lists it."""

    id: str
    flow: str
    """The registered flow that the trigger stands in."""
    kind: str
    """`every`, `at` or `webhook`."""
    path: str
    """Where in the flow the trigger stands."""
    next: datetime | None
    """When it comes due, in UTC; None for what is called."""


@frozen
class Fired:
    """What became of a call of a webhook."""

    run_id: str
    answer: str | None = None
    """What the body delivered; None: it answers nothing, and runs in the background."""


@frozen
class Delivery:
    """What became of an event."""

    delivery_id: str
    to: tuple[str, str] | None
    """The run and path that got it; None while it waits to be waited for, or when it was taken long ago."""

    @property
    def run_id(self) -> str | None:
        """The run that got it."""
        return None if self.to is None else self.to[0]
