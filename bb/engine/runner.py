"""Runs a plan under a run id: admission, the lease, the walk, and the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from datetime import timedelta
from typing import Literal

from attrs import evolve

from bb.clock import Clock
from bb.codec import Codec
from bb.engine.ask import Ask, expired, in_use, not_waiting, other_input, was_cancelled
from bb.engine.context import Context, Lane
from bb.engine.journal import Journal, LogJournal
from bb.engine.leases import LEASE_SECONDS, Leases, Tenure
from bb.engine.live import Live
from bb.engine.outcome import Outcome
from bb.engine.plan import Plan
from bb.engine.run import Run, State
from bb.engine.walk import perform
from bb.errors import (
    BBError,
    Conflict,
    Fenced,
    InputConflict,
    Interrupted,
    Interruption,
    RunBusy,
    StoreError,
    WiringError,
)
from bb.log import (
    Attempted,
    Ended,
    Failed,
    Given,
    History,
    Started,
    Stopped,
    Submitted,
    control_stream,
    dump_given,
    encode,
    load_given,
    millis,
    moment,
    run_stream,
)
from bb.messages import Input
from bb.models.base import Model
from bb.place import current_place
from bb.stores.base import Lease, Store
from bb.trace import Tracer


class _Process:
    """What one process runs: a fork must not wait for its parent's tasks, nor for a lock that nobody will free."""

    def __init__(self) -> None:
        self.live: dict[str, Live] = {}
        self.running: set[Live] = set()
        self.lock = threading.Lock()


class Runner:
    """Everything an app needs to run plans: the store, and the runs that are in memory."""

    def __init__(
        self,
        *,
        store: Store,
        codec: Codec,
        clock: Clock,
        tracer: Tracer | None,
        model: Model | None,
        owner_nonce: str,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self.store = store
        self.codec = codec
        self.clock = clock
        self._processes: dict[int, _Process] = {}
        self._tracer = tracer
        self._model = model
        self.leases = Leases(store, owner_nonce, lease_seconds)
        self._trees: set[str] = set()

    @property
    def live(self) -> dict[str, Live]:
        """The runs that are being run in this process, as they may be joined."""
        return self._mine().live

    @property
    def running(self) -> list[Live]:
        """All that is being run in this process: also what winds down while another of its id waits for the lease."""
        mine = self._mine()
        with mine.lock:
            return list(mine.running)

    def _mine(self) -> _Process:
        pid = os.getpid()
        return self._processes.get(pid) or self._processes.setdefault(pid, _Process())

    # --- callers ---

    async def outcome(self, ask: Ask) -> Outcome:
        """Run, or join the run that is going on, and wait for the outcome.

        Raises:
            BBError: the run failed, was refused or was interrupted.
        """
        if not ask.plan.durable:
            return await self._plain(Live(ask.run_id, ask.plan.name, None, ask.detach), ask)
        while True:
            live = self.join(ask)
            try:
                return await live.outcome()
            except (Interrupted, Fenced) as error:
                # the runner went away, this caller did not: take the run over, or wait for who has it now
                if live.stopping or (isinstance(error, Interrupted) and live.is_local):
                    raise
                ask = evolve(ask, known=True, replace=False)

    def join(self, ask: Ask) -> Live:
        """The live run of this id, started if there is none, with the caller counted in.

        Raises:
            RunIdInUse, InputConflict: it is another run.
            WiringError: a handler of the run itself asks.
        """
        print_ = self._fingerprint(ask) if ask.plan.durable else None
        mine = self._mine()
        with mine.lock:
            live = mine.live.get(ask.run_id) if ask.plan.durable else None
            if live is not None and not live.ended and not live.dead and not ask.replace:
                if live.flow != ask.plan.name:
                    raise in_use(ask, live.flow)
                place = current_place()
                if place is not None and place.run_id == ask.run_id:
                    raise WiringError(
                        f"run {ask.run_id} would wait for itself",
                        path=place.path,
                        remedy="give the inner run an id of its own",
                    )
                if print_ is not None and live.fingerprint is not None and print_ != live.fingerprint:
                    raise other_input(ask)
                # one whose input is not known yet, or that is winding down, is not joined: its lease orders the two
                if (print_ is None or live.fingerprint is not None) and live.enter():
                    live.detached = live.detached or ask.detach
                    return live
            live = Live(ask.run_id, ask.plan.name, print_, ask.detach)
            live.enter()
            if ask.plan.durable:
                mine.live[ask.run_id] = live
                mine.running.add(live)
            live.start(self._main(live, ask) if ask.plan.durable else self._plain(live, ask))
        return live

    async def record_job(self, ask: Ask) -> None:
        """Put a job on record, so that any later start finds it."""
        ask = evolve(ask, origin="job")
        fact = self._opening(ask, History(ask.run_id))
        try:
            await self.store.append(run_stream(ask.run_id), 0, [encode(fact, 0)])
        except Conflict:
            await self._hand_over(ask)

    async def _hand_over(self, ask: Ask) -> None:
        """Make a job of a run that is on record, unless it is one already or has finished."""
        history = History(ask.run_id)
        history.read(await self.store.read(run_stream(ask.run_id)))
        await self._admit(ask, history, None)
        if self.outlived(ask.plan, history):
            raise expired(ask)
        if history.finished or history.is_waiting_job:
            return
        lease = await self.leases.try_take(ask.run_id)
        if lease is None:
            raise RunBusy(
                f"run {ask.run_id} is being run by a caller",
                after=timedelta(seconds=1),
                flow=ask.plan.name,
                remedy="submit it again when that one has gone, or run it with detach=True",
            )
        try:
            history = await self._reread(ask, history, lease)
            if not (history.finished or history.is_waiting_job):
                fact = Submitted(millis(self.clock.now())) if history.started else self._opening(ask, history)
                await self.store.append(run_stream(ask.run_id), history.length, [encode(fact, lease.fence)], lease)
        finally:
            await self.leases.release(lease)

    async def _plain(self, live: Live, ask: Ask) -> Outcome:
        run = self._new_run(ask, live, ask.input or Input(), None)
        root, name = ask.plan.root.segment, ask.plan.name
        run.emit("run.start", root, name)
        how = "failed"
        try:
            outcome = await self._walk(run, live.lane)
            how = "finished"
            return outcome
        except asyncio.CancelledError:
            how = "cancelled"
            raise
        finally:
            run.emit("run.end", root, name, how, usage=run.usage)

    async def _main(self, live: Live, ask: Ask) -> Outcome:
        try:
            return await self._durable(live, ask)
        except asyncio.CancelledError:
            if live.cancel_asked:  # while it waited for a holder elsewhere, who is asked as well
                raise was_cancelled(ask.run_id, ask.plan.name) from None
            raise
        finally:
            mine = self._mine()
            with mine.lock:
                mine.running.discard(live)
                if mine.live.get(ask.run_id) is live:
                    del mine.live[ask.run_id]

    # --- one durable run ---

    async def _durable(self, live: Live, ask: Ask) -> Outcome:
        history = History(ask.run_id)
        if ask.known:
            history.read(await self.store.read(run_stream(ask.run_id)))
            if not ask.replace:
                await self._admit(ask, history, None)
        tenure = Tenure(self.leases, self.clock, live, ask)
        try:
            if ask.replace or not history.finished:
                lease = await tenure.take()
                if ask.known:
                    history = await self._reread(ask, history, lease)
            if history.finished:  # by now: replaying it changes nothing, and so needs no lease
                await tenure.end()
            return await self._attempt(live, ask, history, tenure)
        finally:
            await tenure.end()

    async def _reread(self, ask: Ask, history: History, lease: Lease) -> History:
        """What happened until the lease was ours."""
        stream = run_stream(ask.run_id)
        if ask.replace:
            await self.store.delete(stream, lease)
            await self.store.delete(control_stream(ask.run_id))
            return History(ask.run_id)
        if not await self.follow(history):
            history = History(ask.run_id)
            history.read(await self.store.read(stream))
        await self._admit(ask, history, lease)
        return history

    async def follow(self, history: History) -> bool:
        """Read on in a history; False when the run was started over since, and so is another one by now."""
        known = min(history.length, 1)
        records = await self.store.read(run_stream(history.run_id), history.length - known)
        if records[:known] != history.tail:
            return False
        history.read(records[known:])
        return True

    async def _attempt(self, live: Live, ask: Ask, history: History, tenure: Tenure) -> Outcome:
        journal = LogJournal(history, self.store, self.codec, self.clock, tenure.lease, tenure.claim)
        live.on_lost = journal.interrupt
        plan, root = ask.plan, ask.plan.root.segment
        new, was_over = history.started is None, history.ended is not None
        if tenure.lease is not None:
            await journal.record(self._opening(ask, history, live.fingerprint))
        started = history.started
        assert started is not None
        live.fingerprint = started.fingerprint
        given = load_given(started.given, self.codec)
        run = self._new_run(evolve(ask, params=given.params, session_id=started.session), live, given.input, journal)
        run.emit("run.start" if new else "run.resumed", root, plan.name)
        how = "interrupted"
        outcome: Outcome | None = None
        try:
            if ask.known and tenure.lease is not None and await self._cancel_is_pending(ask.run_id, was_over):
                live.cancel_asked = True
                raise asyncio.CancelledError
            outcome = await self._walk(run, live.lane)
            if history.ended is None:
                await journal.record(self._ended(run, started, "finished"))
            how = "finished"
            return outcome
        except asyncio.CancelledError:
            journal.check()
            if outcome is not None and history.finished:  # it came too late
                how = "finished"
                return outcome
            if not live.cancel_asked:
                if history.idle_attempts:
                    with contextlib.suppress(Interruption):
                        await journal.record(Stopped(millis(self.clock.now())))
                raise
            error = await self._cancelled(run, journal, started)
            how = "cancelled"
            raise error from None
        except StoreError as error:
            run.emit("store.error", error.path or root, plan.name, str(error))
            raise
        except Interruption:
            raise
        except Exception as error:
            how = "failed"
            await self._failed(run, journal, error)
            raise
        finally:
            run.emit("run.end", root, plan.name, how, usage=run.usage)

    def _opening(self, ask: Ask, history: History, print_: str | None = None) -> Started | Attempted:
        now = millis(self.clock.now())
        if history.started is not None:
            return Attempted(now, "recovery" if ask.recovery else "call")
        given = Given(ask.input or Input(), ask.params)
        return Started(
            flow=ask.plan.name,
            session=ask.session_id or ask.run_id,
            origin=ask.origin,
            at=now,
            fingerprint=print_ or given.fingerprint(self.codec),
            given=dump_given(given, self.codec),
        )

    async def _walk(self, run: Run, lane: Lane) -> Outcome:
        given = run.input.messages
        seed = len(given)
        context = Context(run, lane, self._model)
        state = await perform(run.plan.root, State(tuple(given), seed), run.plan.root.segment, context)
        run.delivery.complete(state.answer)
        return Outcome(
            answer=state.answer,
            messages=state.chat[seed:],
            value=state.value,
            usage=run.usage,
            run_id=run.run_id,
            session_id=run.session_id,
            replayed=tuple(dict.fromkeys(run.replayed)),
        )

    def _new_run(self, ask: Ask, live: Live, input: Input, journal: Journal | None) -> Run:
        return Run(
            run_id=ask.run_id,
            session_id=ask.session_id or ask.run_id,
            plan=ask.plan,
            input=input,
            params=ask.params,
            clock=self.clock,
            codec=self.codec,
            tracer=self._tracer,
            delivery=live.delivery,
            journal=journal,
            trees=self._trees,
        )

    # --- admission ---

    async def _admit(self, ask: Ask, history: History, lease: Lease | None) -> None:
        """Refuse what is not this run, and drop it if it outlived its ttl."""
        ended, started = history.ended, history.started
        flow = started.flow if started is not None else ended.flow if ended is not None else ask.plan.name
        if flow != ask.plan.name:
            raise in_use(ask, flow)
        if ended is not None and ended.status == "expired":
            raise expired(ask)
        if ask.turn and not (history.is_waiting_job or history.finished):
            raise not_waiting(ask)
        if started is None:
            return
        if self.outlived(ask.plan, history):
            if lease is not None:
                await self.expire(history, lease)
                raise expired(ask)
            return  # found again, and dropped, once the lease is ours
        if ask.session_id is not None and ask.session_id != started.session:
            raise InputConflict(
                f"run {ask.run_id} belongs to session {started.session}, not {ask.session_id}",
                flow=flow,
                remedy="use the run's own session, or another run id",
            )
        asked = self._fingerprint(ask)
        if asked is not None and asked != started.fingerprint:
            raise other_input(ask)

    def _fingerprint(self, ask: Ask) -> str | None:
        """What tells this input from another; None without one."""
        return None if ask.input is None else Given(ask.input, ask.params).fingerprint(self.codec)

    def outlived(self, plan: Plan, history: History) -> bool:
        """Whether an unfinished run made no progress for the ttl of its flow."""
        return plan.ttl is not None and history.ended is None and self.clock.now() - moment(history.progress) > plan.ttl

    async def expire(self, history: History, lease: Lease) -> None:
        """Drop a run as one unit; a tombstone stays."""
        started = history.started
        assert started is not None
        end = Ended("expired", millis(self.clock.now()), started.flow, started.at, history.attempts)
        await self.store.delete(run_stream(history.run_id), lease, leave=[encode(end, lease.fence)])
        await self.store.delete(control_stream(history.run_id))

    # --- endings ---

    def _ended(self, run: Run, started: Started, status: Literal["finished", "cancelled"]) -> Ended:
        assert run.journal is not None
        at = max(millis(self.clock.now()), run.journal.history.progress)  # a clock that went back must not age the run
        return Ended(status, at, started.flow, started.at, run.attempt)

    async def _failed(self, run: Run, journal: Journal, error: Exception) -> None:
        path = getattr(error, "path", "") or run.plan.root.segment
        with contextlib.suppress(Interruption):
            await journal.record(Failed.of(error, path, millis(self.clock.now()), final=True))

    async def _cancelled(self, run: Run, journal: Journal, started: Started) -> BBError:
        """Record that the run is over on request."""
        if journal.history.ended is None:
            await journal.record(self._ended(run, started, "cancelled"))
        await self.store.delete(control_stream(run.run_id))
        return was_cancelled(run.run_id, run.plan.name)

    async def _cancel_is_pending(self, run_id: str, was_over: bool) -> bool:
        """Whether a cancel came in while nobody looked; one that came when the run was over meant an earlier attempt."""
        asked = bool(await self.store.read(control_stream(run_id)))
        if asked and was_over:
            await self.store.delete(control_stream(run_id))
        return asked and not was_over
