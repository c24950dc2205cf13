"""Runs that nobody waits for: submitted ones, and those that an earlier process left unfinished."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Coroutine, Mapping
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve

from bb.engine.frame.run import Reached
from bb.engine.plan import Plan
from bb.engine.runs.archive import Archive
from bb.engine.runs.ask import Ask
from bb.engine.runs.bodies import plan_of
from bb.engine.runs.live import Live
from bb.engine.runs.runner import Runner
from bb.errors import (
    BBError,
    CorruptRecord,
    Interruption,
    RunBusy,
    RunCancelled,
    UnknownFlow,
    UnknownRun,
    WiringError,
)
from bb.ids import fresh_id
from bb.log import RUNS, Ended, Given, History, Parked, decode, run_stream
from bb.logs import error, warning

if TYPE_CHECKING:
    from bb.engine.runs.scheduler import Scheduler

SWEEP: Final = 30.0  # seconds between looks for runs whose holder died elsewhere
PRUNE: Final = 3600.0  # seconds between prunings
_PATIENCE: Final = timedelta(seconds=5)  # for who holds a run that got something, and may be about to leave


class Jobs:
    """The background work of one started app."""

    def __init__(
        self,
        runner: Runner,
        archive: Archive,
        plans: Mapping[str, Plan],
        bodies: Mapping[str, Plan],
        workers: int,
    ) -> None:
        self._runner = runner
        self._archive = archive
        self._plans = plans
        self._workers = workers
        self._bodies = bodies
        self.starters: dict[str, Given] = {}
        """The flows that are run when the app starts, in their order, and what each is given."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._slots = asyncio.Semaphore(workers)
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: set[str] = set()
        self._parked: set[str] = set()
        self._stopping = False
        self._pruned = time.monotonic()
        runner.wake = self.wake
        runner.sessions.delivered = self.delivered
        runner.walker.schedule = self._schedule

    @cached_property
    def scheduler(self) -> Scheduler:
        """What triggers are to start."""
        from bb.engine.runs.scheduler import Scheduler  # most programs have none

        return Scheduler(self._runner, self._bodies, self.take)

    async def _schedule(self, reached: Reached) -> str:
        return await self.scheduler.schedule(reached)

    @property
    def started(self) -> bool:
        """Whether jobs are being run; not in a fork, which has its parent's loop but nothing that runs it."""
        return self._loop is not None and not self._loop.is_closed() and self._pid == os.getpid()

    async def submit(self, ask: Ask) -> None:
        """Record a run as a job, and run it if the app is started."""
        await self._runner.record_job(ask)
        self.take(ask)

    async def retry(self, run_id: str) -> None:
        """Make a job of a run that nobody runs, and run it if the app is started."""
        history = await self._archive.history(run_id)
        if history.finished or (history.parked is not None and not history.failed and history.ended is None):
            return
        if await self._runner.store.holder(run_stream(run_id)) is not None:
            raise RunBusy(
                f"run {run_id} is going on", after=timedelta(seconds=1), remedy="wait until it ends, or cancel it"
            )
        plan = plan_of(self._plans, history)
        if plan is None:
            started, ended = history.started, history.ended
            flow = started.flow if started is not None else ended.flow if ended is not None else ""
            raise UnknownFlow(
                f"run {run_id} is of flow {flow!r}, which is not registered", remedy="register the flow, and retry then"
            )
        ask = Ask(plan=plan, input=None, run_id=run_id, detach=True)
        if await self._runner.hand_over(ask, stuck=True):
            self.take(ask)

    def take(self, ask: Ask) -> None:
        """Run a job that is on record when its turn comes, if the app is started; else the next start finds it."""
        if self.started:
            self._from_any_thread(lambda: self._resume(evolve(ask, input=None, known=True, turn=True)))

    async def start(self) -> None:
        """Resume what is unfinished, and keep looking."""
        if self.started:
            return
        self._loop, self._pid = asyncio.get_running_loop(), os.getpid()
        self._stopping = False
        self._slots = asyncio.Semaphore(self._workers)
        self._tasks = {task for task in self._tasks if task.get_loop() is self._loop}
        self._busy = set()
        try:
            for flow, given in list(self.starters.items()):
                await self._start_with(self._plans[flow], given)
            await self._sweep(None)
        except BaseException:
            self._loop = None  # not started: another start tries again
            raise
        self._spawn(self._keep_sweeping())
        self._spawn(self.scheduler.keep())
        self._pruned = time.monotonic()
        self._spawn(self._prune())  # a program that never lives for an hour has old runs too

    async def _start_with(self, plan: Plan, given: Given) -> None:
        """Run what the app starts with: to its end, since what comes after may rely on it."""
        prefix = f"start:{hashlib.blake2b(plan.name.encode(), digest_size=16).hexdigest()}:"
        left = await self._left_over(plan, prefix) if plan.durable else None
        ask = Ask(
            plan=plan,
            input=given.input if left is None else None,  # what was begun goes on with what it was begun with
            params=given.params,
            run_id=left or prefix + fresh_id(),
            origin="job",
            recovery=True,
            starting=True,
        )
        await self._runner.outcome(ask)

    async def _left_over(self, plan: Plan, prefix: str) -> str | None:
        """What an earlier start has begun, and nobody has ended or is running, unless it is too old to go on with."""
        for info in await self._runner.store.list(run_stream(prefix)):
            run_id = info.name.removeprefix(RUNS)
            try:
                history = await self._archive.history(run_id)
            except (UnknownRun, CorruptRecord) as problem:
                warning("what an earlier start has begun cannot be read", run_id=run_id, error=str(problem))
                continue
            goes_on = history.is_waiting_job and not history.is_stuck
            if not goes_on or self._runner.settler.outlived(plan, history):
                continue
            if await self._runner.store.holder(info.name) is None:
                return run_id
        return None

    async def stop(self, grace: timedelta) -> None:
        """Take no more jobs, let runs end for a while, then interrupt them."""
        self._stopping = True
        live = self._live()
        if live and grace > timedelta(0):
            await asyncio.wait([run.wait_done(grace.total_seconds()) for run in live])
        live = self._live()
        for run in live:
            run.stopping = True
            run.interrupt()
        if live:
            await asyncio.wait([run.wait_done(grace.total_seconds() + 1) for run in live])
        self._loop = None
        here = asyncio.get_running_loop()
        tasks = [task for task in list(self._tasks) if task.get_loop() is here]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        self._stopping = False

    def delivered(self, run_id: str) -> None:
        """Go on, in the background of the running loop, with a run that an event was delivered to, if its flow is known."""
        self._spawn(self._delivered(run_id))

    async def _delivered(self, run_id: str) -> None:
        try:
            history = await self._archive.history(run_id)
        except UnknownRun:
            return  # it has not begun yet
        except BBError as problem:
            error("a run that something was delivered to cannot be read", run_id=run_id, error=str(problem))
            return
        plan = plan_of(self._plans, history)
        if plan is not None and history.resumes:
            await self._run(_by_itself(plan, run_id, _PATIENCE))

    def wake(self, ask: Ask) -> None:
        """Go on with a run whose event came just when it had parked."""
        if not self._stopping:
            self._spawn(self._run(_by_itself(ask.plan, ask.run_id, _PATIENCE)))

    def _live(self) -> list[Live]:
        return [run for run in self._runner.running if not run.ended]

    def registered(self, flow: str) -> None:
        """A flow was registered; if the app is started, its waiting runs resume."""
        if self.started:
            self._from_any_thread(lambda: self._spawn(self._sweep(flow)))
            self.scheduler.wake()

    def prune_now_and_then(self) -> None:
        """Drop old runs in the background if that was not done for a while."""
        now = time.monotonic()
        if now - self._pruned > min(PRUNE, max(60.0, self._archive.retention.total_seconds())):
            self._pruned = now
            self._spawn(self._prune())

    async def prune(self) -> int:
        """Drop what is over its retention or ttl; gives the number of runs that went."""
        gone = await self._archive.prune()
        await self.scheduler.prune(self._archive.retention)
        return gone

    async def _prune(self) -> None:
        try:
            await self.prune()
        except BBError as problem:
            warning("old runs could not be dropped", error=str(problem))

    async def _keep_sweeping(self) -> None:
        while True:
            await asyncio.sleep(SWEEP)
            self.prune_now_and_then()
            try:
                await self._sweep(None)
            except BBError as problem:
                warning("looking for unfinished runs failed", error=str(problem))

    async def _sweep(self, registered: str | None) -> None:
        """Resume what may resume by itself; `registered` is the flow that was just registered, if that is the reason."""
        for info in await self._runner.store.list(RUNS):
            run_id = info.name.removeprefix(RUNS)
            if run_id in self._busy:
                continue
            try:
                last = decode(info.last, f"the last record of run {run_id}")
                if isinstance(last, Ended) or (isinstance(last, Parked) and await self._has_to_wait(last, run_id)):
                    continue
                history = History(run_id)
                history.read(await self._runner.store.read(run_stream(run_id)))
                if history.parked is None or not await self._has_to_wait(history.parked, run_id):
                    self._consider(history, registered)
            except BBError as problem:
                # one that cannot be read never stops the others
                error("an unfinished run cannot be resumed", run_id=run_id, error=str(problem))

    async def _has_to_wait(self, parked: Parked, run_id: str) -> bool:
        if parked.flow not in self._plans:
            return True
        return not await self._runner.sessions.has_come(parked.session, parked.source, run_id)

    def _consider(self, history: History, registered: str | None) -> None:
        started = history.started
        if started is None or not history.resumes:
            return
        if registered is not None and started.flow != registered:
            return
        plan = plan_of(self._plans, history)
        if plan is None:
            if history.run_id not in self._parked:
                self._parked.add(history.run_id)
                warning(
                    "an unfinished run waits for its flow to be registered", run_id=history.run_id, flow=started.flow
                )
            return
        if plan.resumes_on_reregister and registered is None:
            return
        if history.is_stuck:
            if history.run_id not in self._parked:
                self._parked.add(history.run_id)
                error("a run ended its process again and again and is left to people", run_id=history.run_id)
            return
        self._resume(_by_itself(plan, history.run_id, timedelta(0)))

    def _resume(self, ask: Ask) -> None:
        if ask.run_id not in self._busy:
            self._busy.add(ask.run_id)
            self._spawn(self._run_in_turn(ask))

    async def _run_in_turn(self, ask: Ask) -> None:
        try:
            async with self._slots:
                if not self._stopping:
                    await self._run(ask)
        finally:
            self._busy.discard(ask.run_id)

    async def _run(self, ask: Ask) -> None:
        try:
            await self._runner.go_on(ask)
        except RunCancelled:
            pass  # as somebody wished
        except (RunBusy, Interruption):
            pass  # somebody else has it, a later look finds it, or it waits no more
        except BBError as problem:
            error("a job failed", run_id=ask.run_id, flow=ask.plan.name, error=str(problem))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _from_any_thread(self, act: Any) -> None:
        loop = self._loop
        if loop is None:
            raise WiringError("the app is not started")
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is loop:
            act()
        else:
            loop.call_soon_threadsafe(act)


def _by_itself(plan: Plan, run_id: str, wait: timedelta) -> Ask:
    """What goes on with a run that nobody waits for."""
    return Ask(plan=plan, input=None, run_id=run_id, turn=True, recovery=True, detach=True, wait=wait)
