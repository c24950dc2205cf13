"""`Walker`: makes runs and walks them through their plan."""

from __future__ import annotations

from collections.abc import Mapping

from bb.clock import Clock
from bb.codec import Codec
from bb.engine.frame.context import Context, Lane
from bb.engine.frame.envelope import Envelope
from bb.engine.frame.run import Run, Schedule, unscheduled
from bb.engine.frame.state import Park, State
from bb.engine.memory.journal import Journal
from bb.engine.outcome import Outcome
from bb.engine.runs.ask import Ask
from bb.engine.runs.bells import Bells
from bb.engine.runs.live import Live
from bb.engine.runs.sessions import Sessions
from bb.engine.steps.walk import perform
from bb.errors import InvalidInput
from bb.flows.tree import DurableFlow, NamedFlow
from bb.ids import fresh_id
from bb.log import Attempted, Given, History, Seen, Started, dump_given, millis
from bb.log.session import dump_symbols, load_symbols
from bb.messages import Input
from bb.models.base import Model
from bb.stores.base import Store
from bb.trace import Tracer


class Walker:
    """What every run of an app needs, and the walk itself."""

    def __init__(
        self,
        *,
        store: Store,
        codec: Codec,
        clock: Clock,
        tracer: Tracer | None,
        model: Model | None,
        envelope: Envelope,
    ) -> None:
        self.store = store
        self.codec = codec
        self.clock = clock
        self.envelope = envelope
        self.sessions = Sessions(store, codec, clock)
        self.bells = Bells()
        self.tracer = tracer
        self.model = model
        self._trees: set[str] = set()
        self.schedule: Schedule = unscheduled
        """Takes what a run schedules; the app's scheduler sees to it."""

    def opening(self, ask: Ask, history: History, print_: str | None = None) -> Started | Attempted:
        """The fact that an attempt begins with."""
        now = millis(self.clock.now())
        if history.started is not None:
            return Attempted(now, "recovery" if ask.recovery else "call")
        cause = ask.plan.cause
        body = cause.body if cause is not None else None
        given = Given(ask.input or Input(), ask.params, ask.symbols, ask.depth, ask.tenant or "", body)
        return Started(
            flow=ask.plan.name,
            session=ask.session,
            origin=ask.origin,
            at=now,
            fingerprint=print_ or given.fingerprint(self.codec),
            given=dump_given(given, self.codec),
            life=fresh_id()[:16],
        )

    async def walk(self, run: Run, lane: Lane) -> Outcome:
        """Walk a run to its end, or to where it parks."""
        state, context = await self.begin(run, lane)
        seed = state.seed
        run.reached = state = await perform(run.plan.root, state, run.plan.root.segment, context)
        run.delivery.complete(state.answer)
        return Outcome(
            answer=state.answer,
            messages=state.chat[seed:],
            value=state.value,
            usage=run.usage,
            run_id=run.run_id,
            session_id=run.session_id,
            replayed=tuple(dict.fromkeys(run.replayed)),
            waiting_for=state.left.source if isinstance(state.left, Park) else None,
        )

    async def begin(self, run: Run, lane: Lane) -> tuple[State, Context]:
        """Where a walk begins."""
        given = run.input.messages
        state = State(tuple(given), len(given))
        if run.plan.uses_symbols:
            state = state.framed(await self._symbols(run))
        run.start = run.reached = state
        cause = run.plan.cause
        if cause is None:
            return state, Context(run, lane, self.model)
        return state, Context(run, lane, cause.model if cause.model is not None else self.model, tools=cause.tools)

    async def _symbols(self, run: Run) -> Mapping[str, object]:
        """What symbols hold when a run starts: those of the session, and its parameters.

        Raises:
            InvalidInput: a parameter is missing.
        """
        flow, given = run.plan.flow, {**run.captured, **run.params}
        if run.has_session:
            run.symbols = await self._seen(run)
        declared = flow.params if isinstance(flow, NamedFlow | DurableFlow) else ()
        for param in declared:
            if param.name == "input" and param.name not in given and run.input.messages:
                given[param.name] = run.input.messages[-1].content
            if param.name not in given and param.name not in run.symbols:
                raise InvalidInput(
                    f"parameter {param.name!r} is missing",
                    flow=run.plan.name,
                    remedy=f"run it with params={{{param.name!r}: ...}}",
                )
        return {**run.symbols, **given}

    async def _seen(self, run: Run) -> Mapping[str, object]:
        """What the symbols of the session held when the run started."""
        journal = run.journal
        if journal is not None and "" in journal.history.seen:
            return load_symbols(journal.history.seen[""], self.codec)
        symbols = await run.session(journal is not None).symbols()
        if journal is not None and journal.lease is not None:
            await journal.record(Seen(millis(self.clock.now()), dump_symbols(symbols, self.codec)))
        return symbols

    def new_run(self, ask: Ask, live: Live, input: Input, journal: Journal | None) -> Run:
        """The run that a caller asks for, as it is in memory."""
        return Run(
            run_id=ask.run_id,
            session_id=ask.session,
            plan=ask.plan,
            input=input,
            params=ask.params,
            clock=self.clock,
            codec=self.codec,
            tracer=self.tracer,
            delivery=live.delivery,
            envelope=self.envelope.of(ask.plan.catalogue),
            sessions=self.sessions.open,
            journal=journal,
            fresh=ask.fresh,
            captured=ask.symbols,
            depth=ask.depth,
            tenant=ask.tenant or "",
            starting=ask.starting,
            schedule=self.schedule,
            trees=self._trees,
        )
