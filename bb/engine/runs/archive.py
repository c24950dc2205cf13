"""The runs that a store keeps: listing them, looking into them, ending and dropping them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from bb.engine.outcome import RunInfo
from bb.engine.plan import Plan
from bb.engine.runs.bodies import plan_of
from bb.engine.runs.runner import Runner
from bb.errors import BBError, Conflict, CorruptRecord, Fenced, RunBusy, UnknownFlow, UnknownRun
from bb.log import (
    RUNS,
    Ended,
    Forgotten,
    History,
    control_stream,
    decode,
    encode,
    millis,
    moment,
    run_stream,
)
from bb.logs import error, warning
from bb.stores.base import Lease, StreamInfo
from bb.trace import Event

if TYPE_CHECKING:
    from bb.engine.runs.trail import Trail

_CANCEL: Final = b'"cancel"'


class Archive:
    """The kept runs of one store, as one app sees them."""

    def __init__(self, runner: Runner, plans: Mapping[str, Plan], retention: timedelta) -> None:
        self._runner = runner
        self._store = runner.store
        self._plans = plans
        self.retention = retention

    async def history(self, run_id: str) -> History:
        """The folded log of a run.

        Raises:
            UnknownRun: there is none.
            CorruptRecord: it cannot be read.
        """
        history = History(run_id)
        history.read(await self._store.read(run_stream(run_id)))
        if not history.length:
            raise UnknownRun(f"no run {run_id} is kept", remedy="App.runs() lists those that are")
        if history.started is None and history.ended is None:
            raise CorruptRecord(f"run {run_id} has no beginning", remedy="restore the store from a copy")
        return history

    async def runs(self) -> list[RunInfo]:
        """Every kept run, by id; one that cannot be read is logged and left out."""
        out: list[RunInfo] = []
        for info in await self._store.list(RUNS):
            try:
                out.append(await self.info(info))
            except UnknownRun:
                pass  # dropped since the list was made
            except CorruptRecord as problem:
                error("a run cannot be read", run=info.name, error=str(problem))
        return out

    async def info(self, info: StreamInfo) -> RunInfo:
        """One run, of which nothing but the last record is read if it is over.

        Raises:
            UnknownRun: it is no longer kept.
            CorruptRecord: it cannot be read.
        """
        run_id = info.name.removeprefix(RUNS)
        last = decode(info.last, f"the last record of run {run_id}")
        if isinstance(last, Ended):
            return RunInfo(
                run_id,
                last.flow,
                last.status,
                last.attempts,
                moment(last.started),
                moment(last.at),
                session_id=last.session or run_id,
            )
        history = await self.history(run_id)
        return self.told(history, held=await self._store.holder(run_stream(run_id)) is not None)

    @staticmethod
    def told(history: History, *, held: bool) -> RunInfo:
        """A run as it is listed; `held` says whether somebody runs it."""
        run_id, started, ended = history.run_id, history.started, history.ended
        failure = history.last_failure
        if ended is not None:
            return RunInfo(
                run_id,
                ended.flow,
                ended.status,
                ended.attempts,
                moment(ended.started),
                moment(ended.at),
                session_id=ended.session or run_id,
            )
        assert started is not None  # a run that has not ended has begun
        return RunInfo(
            run_id,
            started.flow,
            history.status(held),
            history.attempts,
            moment(started.at),
            moment(history.progress),
            waiting_for=history.parked.source if history.parked is not None else None,
            error=f"{failure.path}: {failure.detail}" if failure is not None else "",
            session_id=started.session,
        )

    def trail(self, run_id: str) -> Trail:
        """The log of a run as events, to be read on while it grows."""
        from bb.engine.runs.trail import Trail

        return Trail(self._runner, run_id)

    async def events(self, run_id: str) -> list[Event]:
        """The log of a run as events."""
        return [event for _, event in await self.trail(run_id).more()]

    async def cancel(self, run_id: str) -> None:
        """End a run for good, here or wherever it is held."""
        live = self._runner.live.get(run_id)
        if live is not None and not live.ended:
            live.ask_cancel()
            await live.wait_done(5.0)  # and then look: it may only have been waiting for a holder elsewhere
        history = await self.history(run_id)
        if history.ended is not None:
            return
        lease = await self._runner.leases.try_take(run_id)
        if lease is None:
            with contextlib.suppress(Conflict):  # somebody has asked already
                await self._store.append(control_stream(run_id), 0, [_CANCEL])
            return
        async with self._released(lease):
            history = await self.history(run_id)
            if history.ended is not None or history.started is None:
                return
            await self._settle(history, lease)
            await self._runner.sessions.close(history, lease, over=False)
            end = encode(history.end("cancelled", self._now()), lease.fence)
            await self._store.append(run_stream(run_id), history.length, [end], lease)

    async def _settle(self, history: History, lease: Lease) -> None:
        """Undo what a run has open that is ended.

        Raises:
            UnknownFlow: its flow is not registered, and only that could undo it.
        """
        if not await self._runner.settler.is_open(history):
            return
        started = history.started
        assert started is not None
        plan = plan_of(self._plans, history)
        if plan is None:
            raise UnknownFlow(
                f"run {history.run_id} has something to undo, and its flow {started.flow!r} is not registered",
                remedy="register the flow, and cancel the run then",
            )
        if not await self._held(plan, history, lease, self._runner.settler.settle):
            error("an undo failed; the run is ended all the same", run_id=history.run_id, flow=started.flow)

    async def _held(
        self,
        plan: Plan,
        history: History,
        lease: Lease,
        work: Callable[[Plan, History, Lease], Awaitable[bool]],
    ) -> bool:
        """Do something that may take longer than a lease lasts."""
        lost: list[Fenced] = []
        keeper = self._runner.leases.keeper
        keeper.hold(lease, history.run_id, lost.append, lambda: None, lambda: False)
        try:
            return await work(plan, history, lease)
        finally:
            keeper.drop(lease)

    async def forget(self, run_id: str, path: str) -> None:
        """Drop what a run remembers at a path and below it."""
        async with self._leased(run_id) as lease:
            history = await self.history(run_id)
            below = path + "/"
            known = {place for scope in history.scopes.values() for place in scope.remembered()}
            if not any(place == path or place.startswith(below) for place in known):
                raise UnknownRun(
                    f"run {run_id} remembers nothing at {path!r}",
                    remedy=f"its paths are {', '.join(sorted(known)) or 'none'}",
                )
            await self._store.append(run_stream(run_id), history.length, [encode(Forgotten(path), lease.fence)], lease)

    async def rewrite(
        self, history: History, gone: Sequence[Forgotten], first: Callable[[], Awaitable[object]]
    ) -> None:
        """Drop what a run remembers at some places, after doing something `first`, unless the run has gone on meanwhile.

        Raises:
            RunBusy: it is going on, or it has.
        """
        async with self._leased(history.run_id) as lease:
            if (await self.history(history.run_id)).length != history.length:
                raise RunBusy(
                    f"run {history.run_id} has gone on", after=timedelta(0), remedy="look at it, and try again"
                )
            await first()
            records = [encode(fact, lease.fence) for fact in gone]
            if records:
                await self._store.append(run_stream(history.run_id), history.length, records, lease)

    async def discard(self, run_id: str) -> None:
        """Drop a run that cannot be read.

        Raises:
            RunBusy: it is going on.
        """
        async with self._leased(run_id) as lease:
            await self._store.delete(run_stream(run_id), lease)
            await self._store.delete(control_stream(run_id))

    async def prune(self) -> int:
        """Drop runs that are over their retention, and expire those over their ttl; one in use is left alone."""
        gone = 0
        for info in await self._store.list(RUNS):
            run_id = info.name.removeprefix(RUNS)
            try:
                gone += await self._prune(run_id, info)
            except (UnknownRun, RunBusy):
                pass  # dropped since the list was made, or in use
            except BBError as problem:
                warning("a run could not be pruned", run_id=run_id, error=str(problem))
        return gone

    async def _prune(self, run_id: str, info: StreamInfo) -> bool:
        last = decode(info.last, f"the last record of run {run_id}")
        now = self._runner.clock.now()
        if isinstance(last, Ended):
            if now - moment(last.at) <= self.retention:
                return False
            return await self._drop(run_id, info.length)
        history = await self.history(run_id)
        plan = plan_of(self._plans, history)
        outlived = plan is not None and self._runner.settler.outlived(plan, history)
        # a job that still waits for its turn is accepted work, however long no app was started
        waiting = history.is_waiting_job and not history.is_stuck
        # a ttl says how long it is kept; nothing does for a flow that nobody registered
        kept = waiting or history.parked is not None or (plan is not None and plan.ttl is not None)
        abandoned = not kept and now - moment(history.progress) > self.retention
        if outlived and plan is not None:
            async with self._leased(run_id) as lease:
                if (await self.history(run_id)).length == history.length:
                    return await self._held(plan, history, lease, self._runner.settler.expire)
            return False
        return (
            abandoned and not await self._runner.settler.is_open(history) and await self._drop(run_id, history.length)
        )

    async def _drop(self, run_id: str, length: int) -> bool:
        async with self._leased(run_id) as lease:
            history = await self.history(run_id)
            if history.length != length:
                return False
            await self._runner.sessions.close(history, lease, over=True)
            await self._store.delete(run_stream(run_id), lease)
            await self._store.delete(control_stream(run_id))
        return True

    @asynccontextmanager
    async def _leased(self, run_id: str) -> AsyncIterator[Lease]:
        """The lease of a run that nobody runs.

        Raises:
            RunBusy: somebody does.
        """
        lease = await self._runner.leases.try_take(run_id)
        if lease is None:
            raise RunBusy(
                f"run {run_id} is going on", after=timedelta(seconds=1), remedy="wait until it ends, or cancel it"
            )
        async with self._released(lease):
            yield lease

    @asynccontextmanager
    async def _released(self, lease: Lease) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self._runner.leases.release(lease)

    def _now(self) -> int:
        return millis(self._runner.clock.now())
