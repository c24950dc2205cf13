"""`Scheduler`: puts on record what triggers are to start, and starts it: at its time, or when it is called."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, assert_never

from attrs import evolve

from bb.cron import next_time
from bb.engine.frame.run import Reached
from bb.engine.outcome import Fired, JobInfo
from bb.engine.plan import Plan, spec_of
from bb.engine.runs.ask import Ask, check_tenant_of, in_use, other_input
from bb.engine.runs.bodies import place_of, plan_of, reached_at, replaced_by, started_by
from bb.engine.runs.runner import Runner
from bb.errors import BBError, UnknownWebhook, WiringError
from bb.flows.tree import At, Every, Trigger, Webhook
from bb.ids import fresh_id
from bb.log import Body, History, load_given, millis, moment, run_stream, with_body
from bb.log.jobs import Job
from bb.log.rows import Armed, Dropped, Row
from bb.log.rows import Fired as Ticked
from bb.log.streams import JOBS, job_stream
from bb.logs import error, warning
from bb.trace import Event

LOOK: Final = 30.0  # seconds between looks for what other processes have scheduled, and at the time of day


class Scheduler:
    """The jobs of one store, as one app sees them; it starts those of the flows that are registered with it."""

    def __init__(self, runner: Runner, bodies: Mapping[str, Plan], take: Callable[[Ask], None]) -> None:
        """`bodies` are the plans of what triggers start, by their place; `take` runs what is on record, in its turn."""
        self._runner = runner
        self._store = runner.store
        self._codec = runner.codec
        self._clock = runner.clock
        self._bodies = bodies
        self._take = take
        self._known: dict[str, tuple[int, bytes, Job]] = {}
        self._told: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._due: int | None = None
        self._news = asyncio.Event()

    # --- scheduling ---

    async def schedule(self, reached: Reached) -> str:
        """Put on record what a trigger is to start, before the run goes on; gives the id of the job.

        Raises:
            WiringError: it stands in no flow that is registered by now.
            StoreError: it was not recorded.
        """
        plan = reached_at(self._bodies, place_of(reached.path), reached.trigger)
        if plan is None or plan.cause is None:
            raise WiringError(
                f"{reached.trigger.kind} stands in a flow that is not registered",
                path=reached.path,
                remedy="register the flow: what a trigger starts later is looked for in the registered flow of that id",
            )
        job_id = await self._job_id(reached, plan, plan.cause.body)
        row = self._row(reached, plan.cause.body)

        def missing(job: Job) -> list[Row]:
            known = job.armed
            if known is None:
                return [row]
            if row.kind == At.kind or (row.run, row.at) in job.heard:
                return []
            same = (known.path, known.spec, known.given) == (row.path, row.spec, row.given)
            return [] if same and job.over is None else [row]

        await self._runner.sessions.rows("").change(job_stream(job_id), Job, missing)
        if row.due is not None:
            self.wake(row.due)
        return job_id

    async def _job_id(self, reached: Reached, plan: Plan, body: Body) -> str:
        """The job of a trigger: that of its place, unless what is known there has moved on to another place of the flow."""
        job_id = _job_id(reached)
        if isinstance(reached.trigger, Webhook) or (isinstance(reached.trigger, At) and not reached.starting):
            return job_id
        now = started_by(self._bodies, await self._read(job_stream(job_id)))
        return job_id if now is None or now is plan else _job_id(reached, body.signature)

    def _row(self, reached: Reached, body: Body) -> Armed:
        now = self._clock.now()
        due: int | None
        spec = spec_of(reached.trigger)
        match reached.trigger:
            case Every(cron=cron, tz=tz):
                due = millis(next_time(cron, tz, now))
            case At():
                due = millis(_due(reached))
                spec = (str(due),)
            case Webhook():
                due = None
            case unreachable:
                assert_never(unreachable)
        run, given = "" if reached.starting else reached.run_id, with_body(reached.given, body)
        return Armed(reached.trigger.kind, reached.path, run, millis(now), due, spec, given)

    # --- starting what is due ---

    async def keep(self) -> None:
        """Start what comes due, until this is cancelled."""
        self._loop, self._pid, self._news = asyncio.get_running_loop(), os.getpid(), asyncio.Event()
        try:
            while True:
                self._news.clear()
                self._due = None  # what is scheduled while this looks may not be seen
                self._due = due = await self._start_due()
                waits = [asyncio.ensure_future(self._news.wait()), asyncio.ensure_future(asyncio.sleep(LOOK))]
                if due is not None:
                    waits.append(asyncio.ensure_future(self._until(due)))
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for wait in waits:
                        wait.cancel()
        finally:
            self._loop = None

    async def _until(self, due: int) -> None:
        while (seconds := (moment(due) - self._clock.now()).total_seconds()) > 0:
            await self._clock.sleep(seconds)

    def wake(self, due: int | None = None) -> None:
        """Look again, unless that happens anyway before `due`; from any thread."""
        loop, next = self._loop, self._due
        if loop is None or self._pid != os.getpid():
            return
        if due is None or next is None or due < next:
            with contextlib.suppress(RuntimeError):  # it was closed just now
                loop.call_soon_threadsafe(self._news.set)

    async def _start_due(self) -> int | None:
        """Start what is due; gives when the next comes due, among those that could be started here."""
        try:
            jobs = await self._jobs()
        except Exception as problem:
            warning("looking for jobs that are due failed", error=str(problem))
            return None
        later: list[int] = []
        replaced = replaced_by(self._bodies, jobs)
        for job_id, job in jobs.items():
            if job.due is None:
                continue
            try:
                due = await self._start(job_id, job, replaced.get(job_id))
            except Exception as problem:  # one that cannot be started never stops the others
                error("a job could not be started", job=job_id, error=str(problem))
                continue
            if due is not None:
                later.append(due)
        return min(later, default=None)

    async def _start(self, job_id: str, job: Job, replaced: int | None) -> int | None:
        """Start a job if it is due; gives when it comes due next. One that was replaced makes up for a tick missed before.

        It is on record as a run, under an id that only this tick has, before the job is set to its next time. So whoever
        comes in between, after a crash or from another process, finds that run, and starts no other.
        """
        armed, due = job.armed, job.due
        assert armed is not None
        assert due is not None
        if replaced is not None and not (armed.kind == Every.kind and due < replaced):
            await self.unschedule(job_id)
            return None
        now = self._clock.now()
        if millis(now) < due:
            return due
        plan = self._plan(job_id, job)
        if plan is None:
            return None
        ask = self._ask(plan, armed, f"{job_id}:{due}")
        new = await self._runner.record_new(ask)
        ticked = Ticked(ask.run_id, millis(now), due, self._next(armed) if replaced is None else None)
        rows = self._runner.sessions.rows("")
        job = await rows.change(job_stream(job_id), Job, lambda state: [ticked] if state.due == due else [])
        if new:
            self._emit(ask, armed)
            self._take(ask)
        return job.due

    def _next(self, armed: Armed) -> int | None:
        """When a trigger comes due again: ticks that were missed are one, and that one has just been started."""
        if armed.kind != Every.kind:
            return None
        cron, *tz = armed.spec
        return millis(next_time(cron, tz[0] if tz else None, self._clock.now()))

    def _plan(self, job_id: str, job: Job) -> Plan | None:
        plan = started_by(self._bodies, job)
        if plan is None and job.armed is not None and job_id not in self._told:
            self._told.add(job_id)
            warning("a job waits for its flow to be registered", job=job_id, path=job.armed.path)
        return plan

    def _ask(self, plan: Plan, armed: Armed, run_id: str) -> Ask:
        given = load_given(armed.given, self._codec)
        return Ask(
            plan=plan,
            input=given.input,
            params=given.params,
            symbols=given.symbols,
            depth=given.depth,
            tenant=given.tenant,
            run_id=run_id,
            origin="job",
            detach=True,
        )

    def _emit(self, ask: Ask, armed: Armed) -> None:
        tracer = self._runner.walker.tracer
        if tracer is None:
            return
        path = armed.path if place_of(armed.path) == ask.plan.name else ask.plan.name  # it has moved
        flow = path.partition("/")[0]
        try:
            tracer.event(Event("job.fired", ask.run_id, path, self._clock.now(), flow, detail=armed.kind))
        except Exception as problem:
            warning("a tracer failed", error=repr(problem), kind="job.fired", run_id=ask.run_id)

    # --- calls from outside ---

    async def call(
        self, id: str, body: bytes, headers: Iterable[tuple[str, str]], run_id: str | None, tenant: str
    ) -> Fired:
        """Start the body of a webhook. What it delivers is waited for; else it is enough that it is on record.

        Raises:
            UnknownWebhook: none of that id waits to be called.
            RunIdInUse, InputConflict: the run id is known with something else.
            StoreError: the call was not recorded.
            BBError: the body was to answer, and failed.
        """
        job_id, plan, armed = await self._webhook(id, tenant)
        metadata: dict[str, object] = {}
        for name, value in headers:
            metadata.setdefault(name, value)
        ask = self._ask(plan, armed, run_id if run_id is not None else f"{job_id}:{fresh_id()}")
        assert ask.input is not None
        ask = evolve(ask, tenant=tenant, input=evolve(ask.input, payload=bytes(body), metadata=metadata))
        new = await self._runner.record_new(ask)
        if new:
            self._emit(ask, armed)
        else:
            known, plan = await self._known_call(ask, body)
            if known.finished and known.answer is not None:
                return Fired(ask.run_id, known.answer)
            ask = evolve(ask, plan=plan)
        ask = evolve(ask, input=None)
        if plan.responds:
            outcome = await self._runner.outcome(ask)
            return Fired(ask.run_id, outcome.answer)
        if new or await self._runner.hand_over(ask):
            self._take(ask)
        return Fired(ask.run_id)

    async def _webhook(self, id: str, tenant: str) -> tuple[str, Plan, Armed]:
        """The webhook of that id, which waits: the tenant's own, or else one that belongs to none."""
        for job_id in dict.fromkeys((_webhook_id(id, tenant), _webhook_id(id, ""))):
            job = await self._read(job_stream(job_id))
            plan = started_by(self._bodies, job) if job.over is None else None
            if job.armed is not None and plan is not None:
                return job_id, plan, job.armed
        raise UnknownWebhook(
            f"no webhook {id!r} waits to be called",
            remedy="run a flow that reaches it, or give it to app.on_start; its flow has to be registered",
        )

    async def _known_call(self, ask: Ask, body: bytes) -> tuple[History, Plan]:
        """The run of a call that comes again, and what it goes on with.

        What it began with may have changed meanwhile, where the webhook stands too, and its headers may differ.

        Raises:
            RunIdInUse, InputConflict: it is another call.
        """
        history = History(ask.run_id)
        history.read(await self._store.read(run_stream(ask.run_id)))
        check_tenant_of(ask, history)
        plan = ask.plan
        if (started := history.started) is not None:
            now = plan_of(self._bodies, history)
            if now is None or now.cause is None or plan.cause is None or now.cause.trigger != plan.cause.trigger:
                raise in_use(ask, started.flow)
            plan = now
            payload = load_given(started.given, self._codec).input.payload
            if self._codec.fingerprint([payload]) != self._codec.fingerprint([bytes(body)]):
                raise other_input(ask)
        return history, plan

    # --- looking at jobs ---

    async def jobs(self) -> list[JobInfo]:
        """The jobs that wait, by the time they come due; those that are called last."""
        found = [_info(job_id, job.armed, job.due) for job_id, job in (await self._jobs()).items() if job.armed]
        return sorted(found, key=lambda info: (info.next is None, info.next, info.id))

    async def unschedule(self, job_id: str) -> bool:
        """Take a job off; whether there was one."""
        now = millis(self._clock.now())
        there = False

        def missing(job: Job) -> list[Row]:
            nonlocal there
            waits = job.armed is not None and job.over is None
            there |= waits
            return [Dropped(now)] if waits else []

        await self._runner.sessions.rows("").change(job_stream(job_id), Job, missing)
        return there

    async def prune(self, retention: timedelta) -> None:
        """Drop what is over. What an app started with is kept: the next start must not find it new."""
        for info in await self._store.list(JOBS):
            job = await self._read(info.name)
            armed = job.armed
            if job.over is None or armed is None or (armed.kind == At.kind and not armed.run):
                continue
            old = self._clock.now() - moment(job.over) > retention
            if old and not await self._store.read(run_stream(armed.run)):  # a run that is kept may come by again
                await self._store.delete(info.name)

    async def _jobs(self) -> dict[str, Job]:
        """What waits, by the id of the job. What has not changed since it was last looked at is not read again."""
        known, self._known = self._known, {}
        for info in await self._store.list(JOBS):
            try:
                length, last, job = known.get(info.name, (0, b"", Job()))
                if (length, last) != (info.length, info.last):
                    job = await self._read(info.name)
                self._known[info.name] = (info.length, info.last, job)
            except BBError as problem:
                error("a job cannot be read", job=info.name, error=str(problem))
        waiting = {name: job for name, (_, _, job) in self._known.items() if job.armed and job.over is None}
        return {name.removeprefix(JOBS): job for name, job in waiting.items()}

    async def _read(self, stream: str) -> Job:
        return await self._runner.sessions.rows("").read(stream, Job)


def _info(job_id: str, armed: Armed, due: int | None) -> JobInfo:
    return JobInfo(job_id, armed.path.partition("/")[0], armed.kind, armed.path, None if due is None else moment(due))


def _due(reached: Reached) -> datetime:
    assert reached.due is not None  # whoever reaches an At knows its time
    return reached.due


def _job_id(reached: Reached, *beside: str) -> str:
    """What makes two reachings of triggers the same job; `beside` tells it from another that had its place before."""
    trigger: Trigger = reached.trigger
    match trigger:
        case Webhook(id=id):
            return _webhook_id(id, reached.tenant)
        case Every():
            return _hashed(trigger.kind, reached.path, *beside, *_owned(reached.tenant))
        case At() if reached.starting:
            return _hashed(trigger.kind, reached.path, *beside, str(millis(_due(reached))))
        case At():
            return _hashed(trigger.kind, reached.path, reached.run_id, str(reached.began))
        case unreachable:
            assert_never(unreachable)


def _webhook_id(id: str, tenant: str) -> str:
    return _hashed(Webhook.kind, id, *_owned(tenant))


def _owned(tenant: str) -> tuple[str, ...]:
    """What tells the jobs of a tenant from those of others, and from those of nobody."""
    return (tenant,) if tenant else ()


def _hashed(kind: str, *parts: str) -> str:
    # paths are longer than an id may be
    return f"{kind}:{hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()}"
