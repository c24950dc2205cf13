"""`Ask`: what a caller wants to have run, and the errors that refuse it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta

from attrs import field, frozen

from bb.engine.plan import Plan
from bb.errors import InputConflict, Interrupted, RunCancelled, RunExpired, RunIdInUse
from bb.ids import session_of
from bb.log import History, Origin, tenant_of
from bb.messages import Input


@frozen(kw_only=True, eq=False, repr=False)
class Ask:
    """What a caller wants to have run; `input` None means: go on with the run."""

    plan: Plan
    input: Input | None
    params: Mapping[str, object] = field(factory=dict)
    symbols: Mapping[str, object] = field(factory=dict)
    """What symbols held where a trigger was reached, whose body this is."""
    depth: int = 0
    """How many triggers led to it, one started by the other."""
    tenant: str | None = None
    """Whose run it is; empty: nobody's. None, for who acts on runs of all: whose it was begun as."""
    starting: bool = False
    """Whether it is run because the app starts."""
    run_id: str
    known: bool = True
    """Whether the id may be known to the store; False for one made up just now."""
    turn: bool = False
    """Whether it is a job whose turn has come: one that was cancelled or dropped meanwhile is not to be run any more."""
    session_id: str | None = None
    origin: Origin = "caller"
    recovery: bool = False
    detach: bool = False
    replace: bool = False
    fresh: bool = False
    opening: Callable[[], Awaitable[None]] | None = None
    """What is to be done before a run of this id starts, if there is none yet; it may refuse it."""
    wait: timedelta = timedelta(seconds=60)
    """How long to wait for another process that runs it."""

    @property
    def session(self) -> str:
        """The session of a run that starts so; by default one of its own."""
        return self.session_id or session_of(self.tenant or "", self.run_id)


def was_cancelled(run_id: str, flow: str) -> RunCancelled:
    """What the callers of a cancelled run get."""
    return RunCancelled(f"run {run_id} was cancelled", flow=flow, remedy="run it again to go on from what it saved")


def in_use(ask: Ask, flow: str) -> RunIdInUse:
    """The run id belongs to another flow."""
    return RunIdInUse(
        f"run id {ask.run_id} belongs to flow {flow!r}, not {ask.plan.name!r}",
        flow=ask.plan.name,
        remedy="use another run id, or give the old run up with replace=True",
    )


def of_another(ask: Ask) -> RunIdInUse:
    """The run belongs to another tenant, of which no more is told."""
    return RunIdInUse(f"run id {ask.run_id} belongs to another tenant", flow=ask.plan.name, remedy="use another run id")


def check_tenant_of(ask: Ask, history: History) -> None:
    """Refuse a run of another tenant, before anything of it shows.

    Raises:
        RunIdInUse: it is one.
    """
    started = history.started
    if started is not None and ask.tenant not in (None, tenant_of(started.given)):
        raise of_another(ask)


def other_input(ask: Ask) -> InputConflict:
    """The run is known with another input."""
    return InputConflict(
        f"run {ask.run_id} was started with another input",
        flow=ask.plan.name,
        remedy="leave the input out to go on with it, use another run id, or give the old run up with replace=True",
    )


def expired(ask: Ask) -> RunExpired:
    """The run outlived its ttl."""
    return RunExpired(
        f"run {ask.run_id} made no progress within its ttl and was dropped",
        flow=ask.plan.name,
        remedy="use another run id, or start over with replace=True",
    )


def not_waiting(ask: Ask) -> Interrupted:
    """The job was cancelled, failed or dropped before its turn came."""
    return Interrupted(
        f"run {ask.run_id} does not wait for its turn any more", flow=ask.plan.name, remedy="run it with its run id"
    )
