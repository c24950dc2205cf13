"""`Settler`: open runs that do not simply go on: whose flow has changed, that are ended, or that are looked back on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from attrs import evolve

from bb.engine.frame.tasks import is_cancelled
from bb.engine.memory.journal import LogJournal
from bb.engine.outcome import Outcome
from bb.engine.plan import Known, Plan
from bb.engine.runs.ask import Ask
from bb.engine.runs.live import Live
from bb.engine.runs.restoring import form_of, is_kept, may_be_open, plan_begun_with
from bb.engine.runs.walker import Walker
from bb.engine.steps.walk import perform
from bb.errors import GraphChanged, Interruption
from bb.flows.tree import DurableFlow
from bb.log import Fact, History, control_stream, encode, load_given, millis, moment, run_stream
from bb.logs import error
from bb.stores.base import Lease


class Settler:
    """Undoes what runs have open before they are ended or begun anew."""

    def __init__(self, walker: Walker, known: Callable[[], Known]) -> None:
        self._walker = walker
        self._store = walker.store
        self._clock = walker.clock
        self._known = known

    async def as_begun(self, plan: Plan, history: History, lease: Lease | None) -> Plan:
        """The flow that an open run goes on with: one that is parked keeps the flow it was parked with.

        Any other goes on with the present one, which may start afresh; before, what it has open is undone by the old.

        Raises:
            GraphChanged: the old flow is needed, and cannot be restored.
        """
        known = history.scope(plan.root.segment)
        if known is None or known.signature == plan.root.signature or lease is None:
            return plan
        if history.parked is not None and not history.failed:
            return await self._begun_with(plan, history)
        if history.failed and not known.unwinding:
            return plan  # what failed was unwound then
        form = await form_of(self._store, known)
        options = plan.root.flow.options if isinstance(plan.root.flow, DurableFlow) else None
        if form is not None and options is not None and options.forward_compatible and is_kept(form, plan.root.form):
            return plan
        if not await self.settle(plan, history, lease):
            raise GraphChanged(
                f"run {history.run_id} is open in a flow that has changed, and an undo of what it did failed",
                flow=plan.name,
                path=known.path,
                remedy="mend it and run it again, settle it with app.forget, or give the run up with replace=True",
            )
        return plan

    async def _begun_with(self, plan: Plan, history: History) -> Plan:
        known = history.scope(plan.root.segment)
        if known is None or known.signature == plan.root.signature:
            return plan
        return await plan_begun_with(self._store, history, known, plan, self._known())

    async def settle(self, plan: Plan, history: History, lease: Lease) -> bool:
        """Undo what an unfinished run has open, before it is ended or begun anew; False when an undo failed.

        It is undone by the flow that the run was begun with; `plan` is the present one of that name.

        Raises:
            GraphChanged: that flow cannot be restored.
            Interruption: the store or the lease failed; nothing is lost.
        """
        if not await self.is_open(history):
            return True
        walker, plan = self._walker, await self._begun_with(plan, history)
        started = history.started
        assert started is not None
        live = Live(history.run_id, plan.name, started.fingerprint, True)
        live.lane.halt()
        journal = LogJournal(history, self._store, walker.codec, self._clock, lease, _never, walker.bells.ring)
        live.on_lost = journal.interrupt
        given = load_given(started.given, walker.codec)
        ask = Ask(
            plan=plan,
            input=None,
            run_id=history.run_id,
            params=given.params,
            symbols=given.symbols,
            depth=given.depth,
            tenant=given.tenant,
            session_id=started.session,
            recovery=True,
        )
        await journal.record(walker.opening(ask, history))
        run = walker.new_run(ask, live, given.input, journal)
        try:
            state, context = await walker.begin(run, live.lane)
            await perform(plan.root, state, plan.root.segment, context)
        except Interruption:
            raise
        except asyncio.CancelledError:
            if is_cancelled():
                raise  # any other is what a halted run ends with
        except Exception:
            run.end("failed")  # undone; the log tells why
        return not any(scope.unwinding for scope in history.scopes.values())

    async def is_open(self, history: History) -> bool:
        """Whether an unfinished run may have something to undo."""
        if history.ended is not None:
            return False
        for scope in history.scopes.values():
            if scope.unwinding:
                return True
            form = await form_of(self._store, scope)
            if form is not None and not history.failed and may_be_open(form, scope):
                return True
        return False

    def outlived(self, plan: Plan, history: History) -> bool:
        """Whether an unfinished run made no progress for the ttl of its flow."""
        return (
            plan.ttl is not None and history.ended is None and self._clock.now() - moment(history.progress) > plan.ttl
        )

    async def expire(self, plan: Plan, history: History, lease: Lease) -> bool:
        """Drop a run as one unit, after undoing what it has open; a tombstone stays. False: an undo failed, and it stays."""
        started = history.started
        assert started is not None
        if not await self.settle(plan, history, lease):
            error("an expired run cannot be dropped: an undo failed", run_id=history.run_id, flow=started.flow)
            return False
        end = history.end("expired", millis(self._clock.now()))
        await self._walker.sessions.close(history, lease, over=True)
        await self._store.delete(run_stream(history.run_id), lease, leave=[encode(end, lease.fence)])
        await self._store.delete(control_stream(history.run_id))
        return True

    async def look_back(self, ask: Ask, until: str) -> Outcome | None:
        """The outcome that a run had when it parked at `until`; nothing runs or is recorded for it.

        None: what came before cannot be replayed any more.
        """
        walker, history = self._walker, History(ask.run_id)
        history.read(await self._store.read(run_stream(ask.run_id)))
        known, started = history.scope(ask.plan.root.segment), history.started
        if known is None or started is None or known.signature != ask.plan.root.signature:
            return None
        live = Live(ask.run_id, ask.plan.name, started.fingerprint, True)
        live.lane.halt()
        journal = LogJournal(history, self._store, walker.codec, self._clock, None, _never, walker.bells.ring)
        given = load_given(started.given, walker.codec)
        run = walker.new_run(evolve(ask, params=given.params, session_id=started.session), live, given.input, journal)
        run.tracer, run.until = None, until
        try:
            return await walker.walk(run, live.lane)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return None  # something was forgotten, and would have run anew
        finally:
            live.delivery.close()


async def _never() -> tuple[Lease, Fact]:
    raise AssertionError("who settles a run holds its lease")
