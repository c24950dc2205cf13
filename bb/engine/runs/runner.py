"""Runs a plan under a run id: admission, the lease, the walk, and the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from datetime import timedelta

from attrs import evolve

from bb.clock import Clock
from bb.codec import Codec
from bb.engine.frame.envelope import Envelope
from bb.engine.outcome import Outcome
from bb.engine.plan import Known
from bb.engine.runs.ask import (
    Ask,
    check_tenant_of,
    expired,
    in_use,
    not_waiting,
    of_another,
    other_input,
    was_cancelled,
)
from bb.engine.runs.attempt import Attempts
from bb.engine.runs.leases import LEASE_SECONDS, Leases, Tenure
from bb.engine.runs.live import Live
from bb.engine.runs.settler import Settler
from bb.engine.runs.walker import Walker
from bb.errors import (
    Conflict,
    CorruptRecord,
    Fenced,
    InputConflict,
    Interrupted,
    Interruption,
    RunBusy,
    WiringError,
)
from bb.log import (
    Given,
    History,
    Submitted,
    control_stream,
    encode,
    millis,
    run_stream,
)
from bb.messages import NO_USAGE, Input
from bb.models.base import Model
from bb.place import current_place
from bb.stores.base import Lease, Store
from bb.trace import Tee, Tracer


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
        envelope: Envelope,
        known: Callable[[], Known],
        owner_nonce: str,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self.store = store
        self.codec = codec
        self.clock = clock
        self._processes: dict[int, _Process] = {}
        self.walker = Walker(store=store, codec=codec, clock=clock, tracer=tracer, model=model, envelope=envelope)
        self._attempts = Attempts(self.walker)
        self.settler = Settler(self.walker, known)
        self.sessions = self.walker.sessions
        self.bells = self.walker.bells
        self.leases = Leases(store, owner_nonce, lease_seconds)
        self.wake: Callable[[Ask], None] = lambda _: None
        """Goes on with a run, in the background of the running loop; the app's jobs see to it."""

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

    def watch(self, tracer: Tracer) -> None:
        """Hand every event of runs that begin from now on to one more tracer."""
        known = self.walker.tracer
        self.walker.tracer = tracer if known is None else Tee(known, tracer)

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

    async def go_on(self, ask: Ask) -> Outcome:
        """As `outcome`, as long as the run parks where its event has come already.

        Who joins a run that is just parking gets an outcome without the event; who parked has not seen it either.

        Raises:
            BBError: the run failed, was refused or was interrupted.
        """
        while True:
            outcome = await self.outcome(ask)
            if not await self._has_come(outcome):
                return outcome
            ask = evolve(ask, known=True, replace=False)

    async def _has_come(self, outcome: Outcome) -> bool:
        source = outcome.waiting_for
        return source is not None and await self.sessions.has_come(outcome.session_id, source, outcome.run_id)

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
            going = live is not None and not live.ended and not live.dead
            theirs = live is not None and ask.tenant not in (None, live.tenant)
            if live is not None and going and theirs and live.has_begun:
                raise of_another(ask)
            if live is not None and going and not ask.replace:
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
                # one of which it is not known yet whose it is or with what input, or that is winding down, is not
                # joined: its lease orders the two
                if not theirs and (print_ is None or live.fingerprint is not None) and live.enter():
                    live.detached = live.detached or ask.detach
                    return live
            live = Live(ask.run_id, ask.plan.name, print_, ask.detach)
            live.session_id, live.tenant = ask.session_id, ask.tenant
            live.enter()
            if ask.plan.durable:
                mine.live[ask.run_id] = live
                mine.running.add(live)
            live.start(self._main(live, ask) if ask.plan.durable else self._plain(live, ask))
        return live

    async def record_job(self, ask: Ask) -> None:
        """Put a job on record, so that any later start finds it."""
        ask = evolve(ask, origin="job")
        fact = self.walker.opening(ask, History(ask.run_id))
        if ask.opening is not None and not await self.store.read(run_stream(ask.run_id)):
            await ask.opening()
        try:
            await self.store.append(run_stream(ask.run_id), 0, [encode(fact, 0)])
        except Conflict:
            await self.hand_over(ask)

    async def record_new(self, ask: Ask) -> bool:
        """Put a job on record whose run id nobody else could have; False when it is there already."""
        try:
            await self.store.append(
                run_stream(ask.run_id), 0, [encode(self.walker.opening(ask, History(ask.run_id)), 0)]
            )
        except Conflict:
            return False
        return True

    async def hand_over(self, ask: Ask, *, stuck: bool = False) -> bool:
        """Make a job of a run that is on record, unless it is one already or has finished; whether it is to be run now.

        `stuck` also takes up a job that ended its process again and again.

        Raises:
            RunBusy: a caller runs it.
        """

        def stays(history: History) -> bool:
            return history.finished or (history.is_waiting_job and not (stuck and history.is_stuck))

        history = History(ask.run_id)
        history.read(await self.store.read(run_stream(ask.run_id)))
        await self._admit(ask, history, None)
        if self.settler.outlived(ask.plan, history):
            raise expired(ask)
        if stays(history):
            return history.is_waiting_job
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
            if not stays(history):
                fact = Submitted(millis(self.clock.now())) if history.started else self.walker.opening(ask, history)
                await self.store.append(run_stream(ask.run_id), history.length, [encode(fact, lease.fence)], lease)
            return not history.finished
        finally:
            await self.leases.release(lease)

    async def _plain(self, live: Live, ask: Ask) -> Outcome:
        run = self.walker.new_run(ask, live, ask.input or Input(), None)
        live.begin()
        run.emit("run.start", ask.plan.root.segment, ask.plan.name)
        how = "failed"
        try:
            outcome = await self.walker.walk(run, live.lane)
            how = "finished"
            return outcome
        except asyncio.CancelledError:
            how = "cancelled"
            raise
        finally:
            run.end(how)
            await self.sessions.end(run)

    async def _main(self, live: Live, ask: Ask) -> Outcome:
        try:
            outcome = await self._durable(live, ask)
            with contextlib.suppress(Interruption):  # it is on record that it parked: a later look finds the event
                if await self._has_come(outcome):  # it came after the run's last look, while its lease was still held
                    self.wake(ask)
            return outcome
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
            self.bells.ring(ask.run_id)  # its lease is free, so who watches a parked run may look whether it is over

    # --- one durable run ---

    async def _durable(self, live: Live, ask: Ask) -> Outcome:
        history = History(ask.run_id)
        if ask.known and not ask.replace:
            history.read(await self.store.read(run_stream(ask.run_id)))
            await self._admit(ask, history, None)
        tenure = Tenure(self.leases, self.clock, live, ask)
        try:
            if ask.replace or not (history.finished or await self._only_waits(ask, history)):
                lease = await tenure.take()
                if ask.replace:
                    ask = await self._given_up(ask, lease)
                elif ask.known:
                    history = await self._reread(ask, history, lease)
            if history.finished:  # by now: replaying it changes nothing, and so needs no lease
                await tenure.end()
                if ask.plan.cause is not None and (history.answer is not None or not ask.plan.responds):
                    return _answered(live, history)
            else:
                ask = evolve(ask, plan=await self.settler.as_begun(ask.plan, history, tenure.lease))
            if history.started is None and ask.opening is not None:
                await ask.opening()
            return await self._attempts.make(live, ask, history, tenure)
        finally:
            await tenure.end()

    async def _only_waits(self, ask: Ask, history: History) -> bool:
        """Whether a run is parked and nothing has happened since: going on with it records nothing, and needs no lease."""
        parked = history.parked
        if parked is None or not history.still or self.settler.outlived(ask.plan, history):
            return False
        known = history.scope(ask.plan.root.segment)
        if known is None or known.signature != ask.plan.root.signature:
            return False
        if await self.store.read(control_stream(ask.run_id)):
            return False
        return not await self.sessions.has_come(parked.session, parked.source, ask.run_id)

    async def _given_up(self, ask: Ask, lease: Lease) -> Ask:
        """Drop all that is known of a run id; the run that begins anew stays in the session of the old."""
        stream, old = run_stream(ask.run_id), History(ask.run_id)
        with contextlib.suppress(CorruptRecord):  # what cannot be read can still be given up
            old.read(await self.store.read(stream))
        check_tenant_of(ask, old)
        await self.sessions.close(old, lease, over=True)
        await self.store.delete(stream, lease)
        await self.store.delete(control_stream(ask.run_id))
        if ask.session_id is not None or old.started is None:
            return ask
        return evolve(ask, session_id=old.started.session)

    async def _reread(self, ask: Ask, history: History, lease: Lease) -> History:
        """What happened until the lease was ours."""
        if not await self.follow(history):
            history = History(ask.run_id)
            history.read(await self.store.read(run_stream(ask.run_id)))
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

    # --- admission ---

    async def _admit(self, ask: Ask, history: History, lease: Lease | None) -> None:
        """Refuse what is not this run, and drop it if it outlived its ttl."""
        check_tenant_of(ask, history)
        ended, started = history.ended, history.started
        flow = started.flow if started is not None else ended.flow if ended is not None else ask.plan.name
        if flow != ask.plan.name:
            raise in_use(ask, flow)
        if ended is not None and ended.status == "expired":
            raise expired(ask)
        if ask.turn and not (history.resumes or history.finished):
            raise not_waiting(ask)
        if started is None:
            return
        if self.settler.outlived(ask.plan, history):
            if lease is not None:
                await self.settler.expire(ask.plan, history, lease)
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


def _answered(live: Live, history: History) -> Outcome:
    """What the body of a trigger came to, as it is on record: walked again, what is not durable in it would run twice."""
    started, answer = history.started, history.answer or ""
    live.session_id = started.session if started is not None else live.run_id
    live.begin()
    live.delivery.complete(answer)
    return Outcome(answer, (), None, NO_USAGE, live.run_id, live.session_id)
