"""Every error bb raises, one tree.

BBError
├── Interruption             the run stopped, nothing is lost, run it again
│   ├── Interrupted          the runner was cancelled or shut down
│   ├── Fenced               another runner holds the lease now
│   └── StoreError           the store failed
│       ├── Conflict         the stream is not where the caller thought
│       ├── StoreFull        no room left
│       └── CorruptRecord    a stored record cannot be read
├── Fatal                    never retried: the same call would fail again
│   ├── WiringError          a flow, agent or app put together or used wrongly
│   │   └── InvalidCron      a timetable, time or time zone that is none
│   ├── InvalidId            an id outside the one rule for ids
│   ├── InvalidInput         a value of another kind where a message, text, `Input` or JSON text belongs
│   ├── UnknownFlow          no flow of that name is registered
│   ├── UnknownRun           no run of that id is kept
│   ├── UnknownWebhook       no webhook of that id waits to be called
│   ├── TriggerCycle         triggers that start each other, more than eight deep
│   ├── UnknownSelect        a selected id has no member
│   ├── SelectConflict       concurrent agents selected different members
│   ├── InputConflict        a known run id with another input
│   ├── RunIdInUse           a run id that belongs to another flow
│   ├── RunExpired           the run outlived its ttl
│   ├── NotSavable           a value the codec does not keep exactly
│   │   └── TooLarge         a value over the size limit
│   ├── NoModel              nothing on the model ladder
│   ├── InvalidTool          a tool that would be sent is broken
│   ├── InvalidText          a source text that is no module of flows
│   ├── InvalidWire          a JSON form that is no flow
│   ├── Denied               an op that is unknown, or that the policy, an approver or a `WithTools` refused
│   ├── AssertionFailed      an `Assert` that did not hold
│   ├── Unbound              a symbol that nothing has bound
│   ├── InvalidValue         a value that an expression or a statement cannot use
│   ├── TooManyIterations    loops of one run went round too often
│   ├── GraphChanged         an open run whose stored flow can no longer be resolved
│   ├── AlreadyParked        a flow started over a parked one of the same session
│   ├── NotWaiting           a reply to a question that is not, or no longer, asked
│   └── Closed               a turn or chat used after its handler returned
├── AgentFailed              an agent of a flow raised; the cause is chained
│   └── NobodyWon            every member of a `One` failed; their errors are chained as a group
├── NotifyFailed             the sender of a `Notify` raised; the cause is chained
├── OpFailed                 an op raised; the cause is chained
├── ApproverFailed           an approver raised, so that nobody said yes or no; the cause is chained
├── Unwound                  a failure that was undone, told again after a crash; fatal if the failure was
├── TimedOut                 a `Timeout` ran out
├── Throttled                a `Throttle` had no room
├── OnceBusy                 another run holds the claim of a `Once`
├── UpstreamError            a model provider failed
│   └── UpstreamRejected     … and will refuse the same request again (also Fatal)
├── SchemaMismatch           an answer does not fit its schema
├── ToolArgs                 a tool call's arguments do not fit
├── MaxRounds                `resolve` reached its cap
├── RunBusy                  another process runs it still; try again
├── RunCancelled             the run was cancelled on request
└── StreamBroken             streamed text became void; reconnect with the run id
"""

from __future__ import annotations

from datetime import timedelta

from bb.redaction import redacted


class BBError(Exception):
    """The root of bb's errors: what happened, where, and what to do about it.

    `flow` is the id of the flow and `path` the place in the tree (either may be empty), `remedy` one sentence of advice.
    Registered secrets are cut out of all of them.
    """

    flow: str
    path: str
    remedy: str

    def __init__(self, message: str, *, flow: str = "", path: str = "", remedy: str = "") -> None:
        super().__init__(redacted(message))
        self.flow = flow
        self.path = path
        self.remedy = redacted(remedy)

    @property
    def message(self) -> str:
        """What happened, without place and advice."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        where = self.path or self.flow
        text = f"{self.message} (at {where})" if where else self.message
        return f"{text}: {self.remedy}" if self.remedy else text


class Fatal(BBError):
    """Stop here: no durable retry follows. Raise it in a handler when trying again cannot help."""


class WiringError(Fatal):
    """A flow, agent or app was put together wrongly, before anything ran, or a handler used bb in a way that cannot work."""


class InvalidCron(WiringError, ValueError):
    """A timetable that is no cron expression or never comes due, a time without a zone, or a time zone that is not known."""


class InvalidId(Fatal, ValueError):
    """An id of a flow, run or session outside 1 to 128 characters of `[A-Za-z0-9._:-]`."""


class InvalidInput(Fatal, TypeError):
    """A value of another kind than asked for: the input of a run, what a handler replies or adds, the input of a call."""


class UnknownFlow(Fatal, LookupError):
    """No flow of that id is registered with the app."""


class UnknownRun(Fatal, LookupError):
    """No run of that id is kept in the store."""


class UnknownWebhook(Fatal, LookupError):
    """No webhook of that id waits to be called: no run has reached it, it was unscheduled, or no registered flow has it."""


class TriggerCycle(Fatal):
    """A body that a trigger started reached a trigger, and so on, more than eight times over."""


class UnknownSelect(Fatal):
    """An agent selected an id that no member of the `Select` has."""


class SelectConflict(Fatal):
    """Concurrent agents or members selected different ids."""


class InputConflict(Fatal):
    """The run id is known with another input; the old answer is never presented as a new one."""


class RunIdInUse(Fatal):
    """The run id belongs to another flow."""


class RunExpired(Fatal):
    """The run made no progress for the ttl of its flow and was dropped."""


class NotSavable(Fatal, TypeError):
    """A value that the codec does not keep exactly; `part` is where in the value (`result["x"].client`)."""

    def __init__(self, message: str, *, part: str = "", flow: str = "", path: str = "", remedy: str = "") -> None:
        super().__init__(message, flow=flow, path=path, remedy=remedy)
        self.part = part


class TooLarge(NotSavable):
    """A value whose encoding is over the size limit of the app."""


class NoModel(Fatal):
    """The agent, its flow, the flows around it and the app name no model."""


class InvalidTool(Fatal):
    """A tool that would be sent to a model is broken; the model was not asked."""


class InvalidText(Fatal, ValueError):
    """A source text that is no module of flows; `line` and `column` count from 1, `shown` is the line under a caret."""

    def __init__(self, message: str, *, line: int = 0, column: int = 0, shown: str = "", remedy: str = "") -> None:
        place = f"line {line}, column {column}: " if line else ""
        super().__init__(f"{place}{message}" + (f"\n{shown}" if shown else ""), remedy=remedy)
        self.line = line
        self.column = column
        self.shown = redacted(shown)


class InvalidWire(Fatal, ValueError):
    """A JSON form that is no flow; `path` is where in it, such as `body[2].then[0].op`."""


class Denied(Fatal):
    """An op is unknown, or was refused by the policy, an approver or a `WithTools` around it.

    Never retried, never false in a condition.
    """


class AssertionFailed(Fatal):
    """The condition of an `Assert` did not hold."""


class Unbound(Fatal, LookupError):
    """A symbol was used that nothing has bound."""


class InvalidValue(Fatal, ValueError):
    """A value of a kind that an expression or a statement cannot use, such as a text in a sum."""


class TooManyIterations(Fatal):
    """The loops of one run went round more often than a run may."""


class GraphChanged(Fatal):
    """An open run has to go on with the flow it was stored with, and a name in that can no longer be resolved."""


class AlreadyParked(Fatal):
    """A flow was started over a parked one of the same session."""


class NotWaiting(Fatal):
    """Nothing waits for this reply: the question was answered already, or never asked."""


class Closed(Fatal):
    """A turn, chat or journal was used after the handler it belongs to had returned."""


class AgentFailed(BBError):
    """An agent raised inside a flow; the original error is `__cause__`."""


class NobodyWon(AgentFailed):
    """Every member of a `One` failed; their errors are a group in `__cause__`. Fatal only if each of them is."""


class NotifyFailed(BBError):
    """The function of a `Notify` raised; the original error is `__cause__`."""


class OpFailed(BBError):
    """An op raised; the original error is `__cause__`."""


class ApproverFailed(BBError):
    """An approver raised, or gave no `Decision`; the original error is `__cause__`. What it was asked about has not run.

    Nobody said no either: it is asked again. Never false in a condition.
    """


class Unwound(BBError):
    """What failed was unwound, with a crash in between that the error itself did not survive; the message is the error's."""

    def __init__(self, message: str, *, fatal: bool, flow: str = "", path: str = "", remedy: str = "") -> None:
        super().__init__(message, flow=flow, path=path, remedy=remedy)
        self.fatal = fatal


class TimedOut(BBError):
    """The body of a `Timeout` took longer than it may."""


class Throttled(BBError):
    """As many calls as a `Throttle` allows were made within its time; `after` is when there is room again."""

    def __init__(self, message: str, *, after: timedelta, flow: str = "", path: str = "", remedy: str = "") -> None:
        super().__init__(message, flow=flow, path=path, remedy=remedy)
        self.after = after


class OnceBusy(BBError):
    """Another run is in the body of the same `Once`, and this one holds a claim itself, so waiting could be for ever."""


class UpstreamError(BBError):
    """A model provider failed or could not be reached.

    `status` is its HTTP status (0 when there was none); `retry_after` what it asked for, in seconds, or None.
    """

    def __init__(self, message: str, *, status: int = 0, retry_after: float | None = None, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.status = status
        self.retry_after = retry_after


class UpstreamRejected(UpstreamError, Fatal):
    """The provider refused the request itself (HTTP 4xx other than 408, 409, 425 and 429)."""


class SchemaMismatch(BBError, ValueError):
    """A model's answer does not fit the schema of its agent; the message names the field."""


class ToolArgs(BBError, ValueError):
    """The arguments of a tool call do not fit the tool's handler."""


class MaxRounds(BBError):
    """`resolve`, or a model stage that is to fail then, asked as often as it may and the model still calls tools."""


class RunBusy(BBError):
    """Another process runs this run and did not finish while the caller waited; `after` is when to try again."""

    def __init__(self, message: str, *, after: timedelta, flow: str = "", remedy: str = "") -> None:
        super().__init__(message, flow=flow, remedy=remedy)
        self.after = after


class RunCancelled(BBError):
    """The run was cancelled by `app.cancel`; what it finished stays saved."""


class StreamBroken(BBError):
    """Text that was already streamed became void, because its step failed and is tried again.

    The run goes on by itself: stream `run_id` again for the text from the start.
    """

    def __init__(self, message: str, *, run_id: str, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.run_id = run_id


class Interruption(BBError):
    """The run stopped without failing: nothing is unwound, nothing is lost, running it again resumes it."""


class Interrupted(Interruption):
    """The runner of the run was cancelled or shut down."""


class Fenced(Interruption):
    """The lease went to another runner; what this one still tried to write was refused."""


class StoreError(Interruption):
    """The store failed. A durable flow never carries on without it."""


class Conflict(StoreError):
    """The stream has another length than the append expected."""


class StoreFull(StoreError):
    """The store has no room left."""


class CorruptRecord(StoreError):
    """A stored record cannot be read; it is neither skipped nor run again silently."""


def is_fatal(error: BaseException) -> bool:
    """Whether a durable retry is pointless: the error, its cause in the user's code or any part of its group is `Fatal`."""
    if isinstance(error, NobodyWon) and isinstance(error.__cause__, BaseExceptionGroup):
        return all(is_fatal(part) for part in error.__cause__.exceptions)  # one that may yet succeed is enough
    if isinstance(error, BaseExceptionGroup):
        return any(is_fatal(part) for part in error.exceptions)
    if isinstance(error, AgentFailed | NotifyFailed | OpFailed | ApproverFailed) and error.__cause__ is not None:
        return is_fatal(error.__cause__)
    return isinstance(error, Fatal) or (isinstance(error, Unwound) and error.fatal)


def root_of(error: BaseException) -> BaseException:
    """The error that failed; of one that bb only puts a place to, its cause in the user's code."""
    while type(error) in (AgentFailed, NotifyFailed, OpFailed, ApproverFailed) and error.__cause__ is not None:
        error = error.__cause__
    return error


def words_of(error: BaseException) -> str:
    """What an error says. The `__str__` of one that is not bb's may fail itself, and must not hide it."""
    try:
        return str(error)
    except Exception:  # as a traceback has it
        return "<exception str() failed>"
