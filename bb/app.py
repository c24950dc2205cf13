"""`App`: what a program holds. It registers flows, runs them, and resumes them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from datetime import timedelta
from enum import Enum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self, Unpack

from bb.agents.agent import Agent
from bb.agents.answer import Answer
from bb.check import Problem
from bb.clock import Clock, SystemClock
from bb.codec import Codec, Types
from bb.engine.frame.envelope import Envelope
from bb.engine.outcome import Delivery, Fired, JobInfo, Outcome, RunInfo, SessionTurn
from bb.engine.runs.archive import Archive
from bb.engine.runs.ask import Ask
from bb.engine.runs.jobs import Jobs
from bb.engine.runs.runner import Runner
from bb.engine.runs.stream import STREAM_ADVICE, RunStream
from bb.errors import InvalidInput, WiringError
from bb.flows.tree import AnyFlow, DurableFlow, NamedFlow, Send
from bb.ids import check_id, check_tenant, fresh_id, session_of
from bb.log import Given
from bb.logs import warning
from bb.messages import Input, InputLike, to_input
from bb.models.base import Model, check_model
from bb.ops import Op, catalogue
from bb.policy import Approver, Policy, check_approver
from bb.ports import check_clock, check_port
from bb.registry import Registry
from bb.stores.base import Store
from bb.stores.memory import MemStore
from bb.trace import Event, Tracer, check_tracer

if TYPE_CHECKING:
    from bb.engine.runs.conversations import Conversations
    from bb.engine.runs.session import Session
    from bb.serve import Authorize, Options, Service
    from bb.serve.inspector import Inspector, Recent


class Resume(Enum):
    """The type of `RESUME`."""

    RESUME = "RESUME"


RESUME: Final = Resume.RESUME
"""No new input: go on with the run, or start it with nothing if there is none."""


class App:
    """A program's flows, its store, and the runs it has in memory.

    Building one opens nothing. It may be used from several event loops and threads; `async with app:` (or `start` and
    `stop`) also runs jobs and resumes those that an earlier process left unfinished.
    """

    def __init__(
        self,
        *,
        store: Store | None = None,
        trace: Tracer | None = None,
        model: Model | None = None,
        retention: timedelta = timedelta(days=7),
        clock: Clock | None = None,
        value_limit: int = 16 * 2**20,
        workers: int = 16,
        lease: timedelta = timedelta(seconds=30),
        ops: Iterable[Op[Any, Any]] = (),
        agents: Iterable[Agent[Any]] = (),
        senders: Iterable[Send] = (),
        policy: Policy | None = None,
        approver: Approver | None = None,
    ) -> None:
        """Args:
            store: where durable flows are kept; memory by default, so nothing survives the process.
            trace: takes every event.
            model: for agents that have none nearer to them.
            retention: how long finished and abandoned runs are kept.
            clock: time, sleep and randomness; the machine's by default.
            value_limit: the most bytes one record may have.
            workers: how many jobs run at once.
            lease: how long a run stays with a process of which nothing is heard; at least a second. A process that died
                on this machine loses its runs at once, and one that works keeps them, however long a step takes.
            ops, agents, senders: what flows written as text or JSON mean by their names; flows built in Python bring their own.
            policy: which ops may run; all by default.
            approver: who is asked before an op runs; nobody by default, whatever its risk.

        Raises:
            WiringError: an argument is out of range, or of another kind.
        """
        check_model(model)
        check_tracer(trace)
        check_approver(approver)
        _check_store(store)
        check_clock(clock)
        if policy is not None and not isinstance(policy, Policy):
            raise WiringError(f"{policy!r} is no policy", remedy="give bb.Policy(allow=[...], deny=[...])")
        for name, span in (("retention", retention), ("lease", lease)):
            if not isinstance(span, timedelta):
                raise WiringError(f"{name} is {span!r}", remedy=f"give a timedelta, such as {name}=timedelta(hours=1)")
        for name, number in (("value_limit", value_limit), ("workers", workers)):
            if type(number) is not int:
                raise WiringError(f"{name} is {number!r}", remedy="give a whole number")
        if retention < timedelta(0) or value_limit < 1 or workers < 1:
            raise WiringError("retention must not be negative, value_limit and workers must be at least 1")
        if lease < timedelta(seconds=1):
            raise WiringError(f"lease is {lease}", remedy="give a second or more: it is renewed in the background")
        self.types: Types = Types()
        self.types.register(Answer, Delivery, Fired, JobInfo, Outcome, Problem, RunInfo, SessionTurn)
        """Classes that savepoints may hold; those of agents' schemas, and what bb itself hands out, are known already."""
        self._flows = Registry(catalogue(ops, agents, senders), self.types, model)
        self.store: Store = store if store is not None else MemStore()
        self._keeps = store is not None
        self._told: set[str] = set()
        """Flows that were run by an id although nothing of them is durable, and were warned of."""
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._runner = Runner(
            store=self.store,
            codec=Codec(self.types, value_limit),
            clock=self._clock,
            tracer=trace,
            model=model,
            envelope=Envelope(self._flows.known.catalogue, policy if policy is not None else Policy(), approver),
            known=lambda: self._flows.known,
            owner_nonce=fresh_id(),
            lease_seconds=lease.total_seconds(),
        )
        self._archive = Archive(self._runner, self._flows.all, retention)
        self._jobs = Jobs(self._runner, self._archive, self._flows.all, self._flows.bodies, workers)

    @cached_property
    def _conversations(self) -> Conversations:
        from bb.engine.runs.conversations import Conversations  # most programs have none

        return Conversations(self._runner, self._archive)

    # --- flows ---

    def register(self, *flows: NamedFlow | DurableFlow) -> None:
        """Make flows known by their ids, so that they can be run by id and resume by themselves.

        A flow registered again replaces the one before; if it is another flow of that id, a warning is logged.

        Raises:
            WiringError: a flow is wired wrongly; the message lists every error in it. Warnings are logged.
        """
        for flow in flows:
            self._flows.add(flow, served=True)
            self._jobs.registered(flow.id)

    def on_start(
        self,
        *flows: NamedFlow | DurableFlow,
        input: InputLike | None = None,
        params: Mapping[str, object] | None = None,
    ) -> None:
        """Run flows whenever the app starts, one after the other in the order given, before anything else.

        That is where timetables and webhooks begin that nobody asks for. They are known by their ids, but clients cannot
        ask for one that is not also registered. What their triggers start is put on record once,
        however often the app starts. One that fails makes `start` fail. A durable one that was cut off is gone on with.

        Args:
            flows: what is run.
            input: what they, and what their triggers start, begin with; nothing by default.
            params: values that handlers read from `turn.params`.

        Raises:
            InvalidInput: the input is none.
            WiringError: a flow is wired wrongly.
        """
        given = Given(Input() if input is None else to_input(input), dict(params or {}))
        for flow in flows:
            self._flows.add(flow)
            self._jobs.registered(flow.id)
            self._jobs.starters[flow.id] = given

    # --- running ---

    async def run(
        self,
        flow: str | AnyFlow,
        input: InputLike | Literal[Resume.RESUME] = RESUME,
        *,
        params: Mapping[str, object] | None = None,
        run_id: str | None = None,
        session_id: str | None = None,
        detach: bool = False,
        replace: bool = False,
        fresh: bool = False,
        wait: timedelta = timedelta(seconds=60),
        tenant: str | None = None,
    ) -> Outcome:
        """Run a flow to its end, or go on with a run that was cut off.

        A durable flow with a known `run_id` replays what it completed and goes on from there. While the same run is going on in
        this process the call joins it; in another, it waits up to `wait` for that one.

        Args:
            flow: the id of a registered flow, or a flow.
            input: what it starts with; left out, the run goes on with what it was started with.
            params: values that handlers read from `turn.params`.
            run_id: the id of the run; a fresh one by default.
            session_id: the session it belongs to; by default one of its own.
            detach: let the run go on when every caller has gone.
            replace: give up what is known of this run id, and what is parked in the session if the flow awaits; start over.
            fresh: ignore checkpoints of earlier runs of the session.
            wait: how long to wait for another process that has the run.
            tenant: whose run it is: 1 to 63 characters of `[A-Za-z0-9._-]`. The run, its session, which is kept as `tenant:id`,
                and the webhooks and timetables that it reaches are this tenant's, and nobody else's.

        Raises:
            InvalidId, InvalidInput: an argument is out of shape.
            UnknownFlow, WiringError: the flow cannot be run.
            RunIdInUse, InputConflict, RunExpired: the run id is known with something else, or of another tenant.
            AlreadyParked: the flow awaits, and a run is parked in the session already.
            RunBusy: another process had the run all the while.
            RunCancelled: it was cancelled.
            Interruption: it stopped without failing; the same call goes on with it.
            BBError: it failed; what it completed is kept.
        """
        self._jobs.prune_now_and_then()
        ask = self._ask(
            flow, input, params, run_id, session_id, tenant, detach=detach, replace=replace, fresh=fresh, wait=wait
        )
        return await self._runner.outcome(ask)

    def stream(
        self,
        flow: str | AnyFlow,
        input: InputLike | Literal[Resume.RESUME] = RESUME,
        *,
        params: Mapping[str, object] | None = None,
        run_id: str | None = None,
        session_id: str | None = None,
        detach: bool = False,
        replace: bool = False,
        fresh: bool = False,
        wait: timedelta = timedelta(seconds=60),
        tenant: str | None = None,
    ) -> RunStream:
        """Like `run`, with the text as it is made: `async with app.stream(...) as text: async for chunk in text: ...`.

        Raises as `run` does: what is wrong with the arguments at once, the rest while iterating; and
            WiringError: no event loop is running.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise WiringError("app.stream was called outside a running event loop", remedy=STREAM_ADVICE) from None
        ask = self._ask(
            flow, input, params, run_id, session_id, tenant, detach=detach, replace=replace, fresh=fresh, wait=wait
        )
        return RunStream(self._runner.join(ask))

    def _ask(
        self,
        flow: str | AnyFlow,
        input: object,
        params: Mapping[str, object] | None,
        run_id: str | None,
        session_id: str | None,
        tenant: str | None,
        *,
        detach: bool,
        replace: bool,
        fresh: bool,
        wait: timedelta,
    ) -> Ask:
        plan, owner = self._flows.plan(flow), _checked_tenant(tenant)
        if params is not None and not isinstance(params, Mapping):
            raise InvalidInput(f"params is a {type(params).__name__}", remedy="give a dict of names and values")
        id = fresh_id() if run_id is None else check_id(run_id, "run id")
        if run_id is not None and not plan.durable and self._keeps and plan.name not in self._told:
            self._told.add(plan.name)
            warning(
                "a run id was given, but no part of the flow is durable: nothing is kept, and the same id runs it again",
                flow=plan.name,
                remedy="flow.with_id(...).durable()",
            )
        opening = None
        if session_id is not None:
            session_id = session_of(owner, check_id(session_id, "session id"))
        if plan.waits and session_id is not None and session_id != session_of(owner, id):
            opening = partial(self._conversations.make_room, session_id, replace=replace)
        return Ask(
            plan=plan,
            input=(None if not params else Input()) if input is RESUME else to_input(input),
            params=dict(params or {}),
            run_id=id,
            known=run_id is not None,
            session_id=session_id,
            tenant=owner,
            detach=detach,
            replace=replace,
            fresh=fresh,
            opening=opening,
            wait=wait,
        )

    async def submit(
        self,
        flow: str | AnyFlow,
        input: InputLike | Literal[Resume.RESUME] = RESUME,
        *,
        params: Mapping[str, object] | None = None,
        run_id: str | None = None,
        session_id: str | None = None,
        tenant: str | None = None,
    ) -> str:
        """Record a run as a job and give back its id. It runs while an app over this store is started, and resumes by itself.

        Submitting a job again changes nothing, unless it failed or was cancelled: then it goes on. So does a run that its
        caller left unfinished. The arguments are those of `run`.

        Raises:
            WiringError: no part of the flow is durable, or it is not registered.
            RunIdInUse, InputConflict, RunExpired: the run id is known with something else, or of another tenant.
            AlreadyParked: the flow awaits, and a run is parked in the session already.
            RunBusy: a caller runs it just now.
            StoreError: it was not recorded.
        """
        plan = self._flows.plan(flow)
        if self._flows.plans.get(plan.name) is not plan:
            raise WiringError(
                f"flow {plan.name!r} is not registered", remedy="register it: a job is found again by the flow's id"
            )
        if not plan.durable:
            raise WiringError(f"flow {plan.name!r} is not durable", flow=plan.name, remedy="call .durable() on it")
        ask = self._ask(
            flow, input, params, run_id, session_id, tenant, detach=True, replace=False, fresh=False, wait=timedelta(0)
        )
        await self._jobs.submit(ask)
        return ask.run_id

    # --- events and conversations ---

    async def deliver(
        self, source: str, payload: object, *, session_id: str, delivery_id: str | None = None
    ) -> Delivery:
        """Deliver an event to a session, for exactly one `Await` of that source: the one that waits longest, or the next.

        It is kept until it is consumed, also when nothing waits yet. A run that has waited for it goes on in the background: in
        this process if its flow is registered here, or else in any that has started an app with its flow.

        Args:
            source: what an `Await` names.
            payload: what it binds; a text is read as the type that the await declares.
            session_id: the session, which for a run without one is the id of the run.
            delivery_id: tells this event from others: one that was seen before is the same event, and changes nothing.

        Raises:
            InvalidId, InvalidInput: an argument is out of shape.
            NotSavable: the payload cannot be kept exactly.
            StoreError: it was not recorded.
        """
        for name, text in (("source", source), ("delivery_id", "-" if delivery_id is None else delivery_id)):
            if not isinstance(text, str) or not text.strip():
                raise InvalidInput(f"{name} is {text!r}", remedy=f"give {name} as text that is not blank")
        from bb.engine.memory.mailbox import deliver

        rows = self._runner.sessions.rows(check_id(session_id, "session id"))
        delivery = await deliver(rows, source, payload, fresh_id() if delivery_id is None else delivery_id)
        if delivery.run_id is not None:
            self._jobs.delivered(delivery.run_id)
        return delivery

    # --- jobs ---

    async def fire(
        self,
        webhook_id: str,
        body: bytes,
        headers: Mapping[str, str] | Iterable[tuple[str, str]],
        *,
        run_id: str | None = None,
        tenant: str | None = None,
    ) -> Fired:
        """Call a webhook that a run has reached. Its body runs as a job, over the chat as it was there.

        A body that may reach a `Respond` is waited for, and gives its answer; any other runs in the background, and is on
        record by then. A caller that goes away stops neither.

        Args:
            webhook_id: the id of the `Webhook`.
            body: what was sent, which handlers read as `turn.payload(bytes)`.
            headers: what came beside it, read by `turn.metadata`; of a name that comes twice, the first counts.
            run_id: the id of the run that this call starts; a fresh one by default. A call that comes again with it is the
                same call, whatever its headers are: the body does not run twice, but one that failed goes on.
            tenant: who calls: a webhook that a run of this tenant has reached is called, or else one that no tenant's has.

        Raises:
            InvalidId: an id is out of shape.
            UnknownWebhook: none of that id waits to be called.
            RunIdInUse, InputConflict, RunExpired: the run id is known with something else.
            StoreError: the call was not recorded.
            BBError: the body was to answer, and failed.
        """
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        known = None if run_id is None else check_id(run_id, "run id")
        return await self._jobs.scheduler.call(webhook_id, body, pairs, known, _checked_tenant(tenant))

    async def jobs(self) -> list[JobInfo]:
        """What triggers are to start, by the time it comes due, and then what waits to be called.

        Raises:
            StoreError: the store cannot be read.
        """
        return await self._jobs.scheduler.jobs()

    async def unschedule(self, job_id: str) -> bool:
        """Take a job off, so that it comes due no more; whether it was there. What it has started goes on.

        A timetable or a webhook that is reached again is back.

        Raises:
            InvalidId: the id is out of shape.
            StoreError: it was not recorded.
        """
        return await self._jobs.scheduler.unschedule(check_id(job_id, "job id"))

    def session(
        self, flow: str | AnyFlow, session_id: str, *, detach: bool = False, tenant: str | None = None
    ) -> Session:
        """A conversation with a durable flow, turn by turn: `turn = await session.start()`, `await session.send("yes")`.

        With `detach` a turn goes on when every caller has gone. `tenant` is that of `run`: the session is kept as
        `tenant:id`.

        Raises:
            InvalidId: the session id or the tenant is out of shape.
            UnknownFlow, WiringError: no conversation can be had with the flow.
        """
        from bb.engine.runs.session import Session

        owner = _checked_tenant(tenant)
        kept_as = session_of(owner, check_id(session_id, "session id"))
        return Session(self._conversations, self._flows.plan(flow), kept_as, detach=detach, tenant=owner)

    async def drop_session(self, session_id: str) -> None:
        """Forget what the runs of a session share: symbols, memos, events and the rest. Runs that are parked in it are given up.

        Raises:
            RunBusy: a run of it is going on here.
            StoreError: the store failed; call it again.
        """
        await self._conversations.drop(check_id(session_id, "session id"))

    # --- the life of the app ---

    async def start(self) -> None:
        """Run jobs, and resume those that an earlier process left unfinished; calling it again changes nothing."""
        await self._jobs.start()

    async def stop(self, grace: timedelta = timedelta(seconds=5)) -> None:
        """Take no more jobs, let runs end for `grace`, interrupt the rest, and close the store.

        What was interrupted resumes at the next start, or when its caller comes back.
        """
        await self._jobs.stop(grace)
        self._runner.leases.keeper.close()
        await self.store.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    # --- serving ---

    def asgi(self, *, inspector: bool | Authorize = False, **options: Unpack[Options]) -> Service:
        """The registered flows as an ASGI application that clients of OpenAI and Anthropic can talk to.

        Its lifespan starts and stops this app. A request may name its run in `X-Run-Id`, and a conversation in
        `X-Session-Id`; a request that comes again with the same run id gets the same answer, or goes on with the run. Whoever
        knows a run id gets its answer, unless `tenant` tells clients apart.

        Args:
            inspector: serve the run inspector at `/runs`, and the last events at `/v1/diagnostics/trace`. A function is
                asked about each of its requests, after `authorize` and like it. With True only `authorize` is asked; without
                that it is served to requests from this machine alone, under `localhost` or a loopback address. It shows
                the runs of every tenant, so with `tenant` it takes a function.
            options: who is let in and what a request may take, as `bb.serve.Options` says.

        Raises:
            WiringError: no flow is registered, an argument is out of range, or the extra `serve` is not installed.
            UnknownFlow: the default flow is not registered.
        """
        try:
            from bb.serve import Service
        except ImportError as error:
            raise WiringError(f"serving needs {error.name}", remedy="install bb-flow[serve]") from error
        if not self._flows.plans:
            raise WiringError("there is nothing to serve", remedy="register a flow first")
        if inspector is True and options.get("tenant") is not None:
            raise WiringError(
                "the inspector shows the runs of every tenant",
                remedy="say who may see them: inspector=a function of the request",
            )
        return Service(
            self,
            self._flows.served,
            self._archive.trail,
            self._conversations.run_of_turn,
            lambda: self._jobs.started,
            inspector=None if inspector is False else self._inspector(inspector, options.get("authorize")),
            **options,
        )

    def _inspector(self, inspector: bool | Authorize, authorize: Authorize | None) -> Inspector:
        from bb.engine.runs.viewer import Viewer
        from bb.serve.inspector import Inspector

        return Inspector(
            self,
            Viewer(self._runner, self._archive, self._flows.all),
            self._flows.plans.keys(),
            self._recent,
            authorize=None if isinstance(inspector, bool) else inspector,
            is_open=inspector is True and authorize is None,
        )

    @cached_property
    def _recent(self) -> Recent:
        from bb.serve.inspector import Recent

        recent = Recent()
        self._runner.watch(recent)
        return recent

    async def serve(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 8080,
        inspector: bool | Authorize = False,
        **options: Unpack[Options],
    ) -> None:
        """Serve the registered flows on a port until SIGINT or SIGTERM, or until it is cancelled.

        The other arguments are those of `asgi`. Either way runs have the grace period. A signal takes its usual effect after that.

        Raises:
            SystemExit: the app does not start, or the port is taken; the log says why.
            WiringError, UnknownFlow: as `asgi` does.
        """
        service = self.asgi(inspector=inspector, **options)
        from bb.serve.server import served

        await served(service, host=host, port=port)

    # --- looking at runs ---

    async def runs(self) -> list[RunInfo]:
        """Every run that is kept, by id. One that cannot be read is listed as such by a logged warning.

        Raises:
            StoreError: the store cannot be read.
        """
        return await self._archive.runs()

    async def events(self, run_id: str) -> list[Event]:
        """What the log of a run tells, as events in order.

        Raises:
            UnknownRun: there is none.
            StoreError: it cannot be read.
        """
        return await self._archive.events(check_id(run_id, "run id"))

    async def cancel(self, run_id: str) -> None:
        """End a run for good, wherever it is running; one that is over stays as it is.

        A holder in another process sees the request within 250 ms. Its callers get `RunCancelled`.

        Raises:
            UnknownRun: there is none.
            StoreError: the request could not be recorded.
        """
        await self._archive.cancel(check_id(run_id, "run id"))

    async def retry(self, run_id: str) -> None:
        """Make a job of a run that nobody runs: it goes on with what it was given, from what it saved, once an app is started.

        That is for a run that failed, was cancelled, or was left by its caller or by a process that died; also for one that a
        trigger started. One that has finished stays as it is, as does one that is parked until an event comes.

        Raises:
            UnknownRun: there is none.
            UnknownFlow: its flow is not registered.
            RunBusy: it is going on.
            RunExpired: it outlived its ttl.
            StoreError: it was not recorded.
        """
        await self._jobs.retry(check_id(run_id, "run id"))

    async def forget(self, run_id: str, path: str) -> None:
        """Drop what a run remembers at a path and below it: it runs again when the run is run again.

        Raises:
            UnknownRun: there is no such run, or it remembers nothing there.
            RunBusy: the run is going on.
        """
        await self._archive.forget(check_id(run_id, "run id"), path)

    async def prune(self) -> int:
        """Drop what is over its retention or ttl; gives the number of runs that went.

        It also happens by itself now and then.

        Raises:
            StoreError: the store failed.
        """
        return await self._jobs.prune()


def _checked_tenant(tenant: str | None) -> str:
    return "" if tenant is None else check_tenant(tenant)


def _check_store(store: object) -> None:
    path = repr(os.fspath(store)) if isinstance(store, str | os.PathLike) else "directory"
    check_port(store, "store", ("append",), f"pass a store: bb.FileStore({path})")
