"""A model stage: a model works towards a goal, and may use some ops; what it may only propose runs as one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Literal, TypeAlias, TypeVar, cast

from attrs import define, evolve, field, frozen

from bb.agents.agent import Agent
from bb.agents.chat import ModelChat
from bb.engine.frame.context import Context
from bb.engine.frame.envelope import AnyOp, OpResult
from bb.engine.frame.ledger import HandlerLedger
from bb.engine.frame.state import State
from bb.engine.frame.tasks import is_cancelled, together
from bb.engine.steps.calls import Keep, Ready, is_done, work_out
from bb.engine.steps.op_tool import arguments_in, json_in, shown, spec_of
from bb.errors import (
    AgentFailed,
    ApproverFailed,
    BBError,
    Interruption,
    InvalidValue,
    MaxRounds,
    NoModel,
    OpFailed,
    ToolArgs,
    is_fatal,
    root_of,
)
from bb.flows.names import CONTROLS
from bb.flows.tree import AiSegment
from bb.log import Delta
from bb.messages import Message, ToolCall, ToolResult, ToolSpec
from bb.place import Work
from bb.plain import text_of
from bb.policy import Decision
from bb.redaction import redacted

T = TypeVar("T")

Reason: TypeAlias = Literal["answer", "decision", "until", "exhausted", "refused"]
Status: TypeAlias = Literal["ok", "error", "denied", "skipped"]
Record: TypeAlias = dict[str, object]

PROPOSED: Final = "proposed: it runs when you have finished, if it is approved"

_FINALIZE: Final = ToolSpec(
    "finalize",
    "Finish: what you proposed is put up for approval and then runs in order. Call it alone or with proposals only.",
    {"type": "object", "properties": {}, "additionalProperties": False},
)
_DECIDE: Final = ToolSpec(
    "decide",
    "Finish with a decision, given as any JSON value. Call it alone or with proposals only.",
    {"type": "object", "properties": {"value": {}}, "required": ["value"], "additionalProperties": False},
)
_UNDECIDED: Final = object()


async def ready_segment(segment: AiSegment, name: str, state: State, path: str, ctx: Context) -> tuple[Ready, State]:
    """A model stage with its goal worked out.

    Raises:
        Denied: one of its tools may not run here.
        NoModel: there is no model to ask; nothing has run.
    """
    ops = _ops_of(segment, ctx)
    if not is_done(path, ctx):
        _check(segment, ops, name, path, ctx)
    value, state = await work_out(segment.goal, "goal", name, state, path, ctx)
    arguments = {"goal": text_of(value), "max_rounds": segment.max_rounds, "until": segment.until}
    return Ready(segment, arguments, None, ops), state


async def run_segment(
    segment: AiSegment, ready: Ready, name: str, state: State, path: str, ctx: Context, keep: Keep | None = None
) -> tuple[object, State]:
    """What a model stage comes to: replayed, or gone through and kept; by `keep` first, if it is given.

    Raises:
        Denied: an op said that it may not run.
        ApproverFailed: nobody could say whether something may run.
        InvalidValue: the goal says nothing.
        MaxRounds: no rounds are left, and that is to be an error.
        UpstreamError: the provider failed.
        OpFailed: an op raised a `Fatal`.
        AgentFailed: the model raised something else.
    """
    ctx = ctx.under(segment.model)
    run, scope, ops, goal = ctx.run, ctx.scope, dict(ready.ops), str(ready.arguments["goal"])
    given = ready.key(run.codec) if scope is not None else ""
    known = scope.recall(path) if scope is not None else None
    if known is not None and known.given == given:
        run.replayed.append(path)
        run.emit("flow.cached", path, name, segment.kind)
        return known.value, filled(segment, known.value, state)
    if is_done(path, ctx):  # for another goal, so that nobody has asked yet
        _check(segment, ops, name, path, ctx)
    if not goal.strip():
        raise InvalidValue("the goal of a model stage is empty", flow=name, path=path, remedy="say what it is to do")
    ctx.lane.begin()
    if ctx.seat is not None:
        await ctx.seat.pass_through()
    run.emit("flow.start", path, name, segment.kind)
    began = run.clock.monotonic()
    ledger = HandlerLedger(ctx, path, 0, name)
    try:
        stage = _Stage(segment, name, path, ctx, ops, ledger, given)
        record = await _guarded(stage, goal, state)
        took = run.clock.monotonic() - began
        delta = Delta((), None, record, ledger.usage, (), given)
        ctx.lane.begin()
        if keep is not None:
            delta = await keep(delta)
        if scope is not None:
            scope.journal.check()
            delta = await scope.save(path, delta, took)
    except BaseException as error:
        run.failed("flow.error", path, name, error)
        raise
    run.emit("flow.end", path, name, segment.kind, dur=took, usage=ledger.usage)
    return delta.value, filled(segment, delta.value, state)


def filled(segment: AiSegment, record: object, state: State) -> State:
    """The state after a model stage that came to this record: `until` holds what the model decided, if it did."""
    decided = isinstance(record, Mapping) and record.get("reason") == "until" and "decision" in record
    if segment.until is None or not decided:
        return state
    return state.bound(segment.until, cast("Record", record)["decision"])


def is_filled(value: object) -> bool:
    """Whether a symbol holds anything: not None, nor an empty text, list or record. 0, False and a blank are something."""
    return value is not None and not (isinstance(value, str | list | tuple | Mapping) and not value)


def _ops_of(segment: AiSegment, ctx: Context) -> dict[str, AnyOp]:
    """The ops of a stage by their names, without those that nobody knows here."""
    known = {**ctx.run.envelope.catalogue.ops, **{op.name: op for op in segment.bound}}
    return {tool: known[tool] for tool in segment.tools if tool in known}


def _check(segment: AiSegment, ops: Mapping[str, AnyOp], name: str, path: str, ctx: Context) -> None:
    """Refuse a stage before anything of it runs.

    Raises:
        Denied: one of its tools is unknown, or may not run here.
        NoModel: there is no model to ask.
    """
    for tool in segment.tools:
        ctx.run.envelope.authorise(tool, ops.get(tool), ctx.tools, flow=name, path=path)
    if ctx.under(segment.model).model is None:
        raise NoModel(
            "a model stage has no model",
            flow=name,
            path=path,
            remedy="with_model on it or on a flow around it, or App(model=...)",
        )


async def _guarded(stage: _Stage, goal: str, state: State) -> Record:
    """Go through a stage; whatever it raises ends as one of bb's errors, and the answer it broke on is asked for anew."""
    ctx, name, path = stage.ctx, stage.name, stage.path
    try:
        return await stage.run(goal, state)
    except Interruption:
        raise
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and (is_cancelled() or ctx.lane.closed or ctx.lane.halted):
            raise  # any other came from a task of the model's own, and is a failure like all others
        if ctx.scope is not None:
            ctx.scope.journal.check()
        if not isinstance(
            error, ApproverFailed
        ):  # else nothing is wrong with the answer: the same is asked about again
            await stage.ledger.forget_last_answer()
        if isinstance(error, BBError):
            error.flow, error.path = error.flow or name, error.path or path
            raise
        raise AgentFailed(
            f"the model of a stage failed: {type(error).__name__}: {redacted(str(error))}", flow=name, path=path
        ) from error
    finally:
        stage.ledger.close()


@frozen
class _Proposal:
    """A call that the model wants, and that has not run."""

    call: ToolCall
    op: AnyOp
    arguments: Mapping[str, object]

    def action(self, status: Status, result: object) -> Record:
        """What became of it, for the record."""
        return {"id": self.call.id, "op": self.op.name, "status": status, "result": result}


@define(eq=False)
class _Stage:
    """A model stage while it is gone through."""

    segment: AiSegment
    name: str
    path: str
    ctx: Context
    ops: Mapping[str, AnyOp]
    ledger: HandlerLedger
    given: str
    proposals: list[_Proposal] = field(factory=list)
    rounds: int = 0
    """How many answers of the model were used; those of an earlier attempt are replayed, and count."""
    text: str = ""
    """The last thing the model said."""
    asked: int = 0
    """How many approvals were asked for."""

    async def run(self, goal: str, state: State) -> Record:
        """Ask and answer until the model finishes, or may not go on."""
        until = self.segment.until
        # nothing but a decision fills it in here, and that ends the stage: it need not be looked at again
        if until is not None and is_filled(state.symbols.get(until)):
            return self._record("until")
        agent: Agent[str] = Agent(self.segment.kind)
        chat = ModelChat(agent, self.ctx.model, self.ledger, self.ctx.run.input.request, flow=self.name, path=self.path)
        chat.add(goal)
        tools = (*map(spec_of, self.ops.values()), *self._controls())
        while self.rounds < self.segment.max_rounds:
            answer = (await chat.with_tools(*tools).ask()).message
            self.rounds += 1
            if answer.content.strip():
                self.text = answer.content
            if not answer.calls:
                return await self._finish("answer")
            results = await self._round(answer.calls)
            if not isinstance(results, list):
                return results
            chat.add(answer, Message(role="tool", results=tuple(results)))
        if self.segment.on_exhausted == "error":
            raise MaxRounds(
                f"the model of a stage has used its {self.rounds} rounds, and was not done",
                remedy="raise max_rounds; what it proposed was not run",
            )
        return self._record("exhausted", actions=[one.action("skipped", None) for one in self.proposals])

    def _controls(self) -> tuple[ToolSpec, ...]:
        return (_FINALIZE, _DECIDE) if any(not op.is_gather_safe for op in self.ops.values()) else (_DECIDE,)

    async def _round(self, calls: Sequence[ToolCall]) -> list[ToolResult] | Record:
        """Answer the calls of one round; or the record, if one of them ends the stage."""
        results: dict[int, ToolResult] = {}
        reads: dict[int, _Proposal] = {}
        controls: list[tuple[int, ToolCall]] = []
        for at, call in enumerate(calls):
            if call.name in CONTROLS:
                controls.append((at, call))
                continue
            wanted = self._wanted(call)
            if isinstance(wanted, ToolResult):
                results[at] = wanted
            elif wanted.op.is_gather_safe:
                reads[at] = wanted
            else:
                self.proposals.append(wanted)
                results[at] = call.result(PROPOSED)
        if reads:
            decision = await self._approved(list(reads.values()))
            if not decision.allowed:
                return self._refused(decision, [*self.proposals, *reads.values()])
            found = await together([self._read(read) for read in reads.values()], to_end=self.ctx.scope is not None)
            results |= dict(zip(reads, found, strict=True))
        alone = len(controls) == 1 and not reads and not any(result.is_error for result in results.values())
        for at, call in controls:
            ended = await self._control(call) if alone else "wait for the other answers, then call it alone"
            if not isinstance(ended, str):
                return ended
            results[at] = call.result(ended, is_error=True)
        return [results[at] for at in range(len(calls))]

    def _wanted(self, call: ToolCall) -> _Proposal | ToolResult:
        """What a call wants, or why it cannot have it."""
        op = self.ops.get(call.name)
        if op is None:
            return call.result(f"not selected: there is {', '.join(self.ops) or 'no op'}", is_error=True)
        try:
            return _Proposal(call, op, arguments_in(op, call))
        except ToolArgs as error:
            return call.result(redacted(error.message), is_error=True)

    async def _control(self, call: ToolCall) -> Record | str:
        """End the stage, or say why not yet."""
        if call.name == _FINALIZE.name:
            return await self._finish("answer")
        try:
            decision = json_in(call)
        except ToolArgs as error:
            return redacted(error.message)
        if isinstance(decision, dict) and decision.keys() == {"value"}:
            decision = decision["value"]
        if self.segment.until is None:
            return await self._finish("decision", decision)
        if not is_filled(decision):
            return f"{self.segment.until} must not be empty"
        return await self._finish("until", decision)

    async def _finish(self, reason: Reason, decision: object = _UNDECIDED) -> Record:
        """Run what was proposed, if that is approved."""
        if not self.proposals:
            return self._record(reason, decision)
        verdict = await self._approved(self.proposals)
        if not verdict.allowed:
            return self._refused(verdict, self.proposals)
        actions: list[Record] = []
        going = True
        for one in self.proposals:
            actions.append(await self._act(one) if going else one.action("skipped", None))
            going = going and actions[-1]["status"] == "ok"
        return self._record(reason, decision, actions)

    def _refused(self, verdict: Decision, proposals: Sequence[_Proposal]) -> Record:
        self.text = verdict.reason
        return self._record("refused", actions=[one.action("denied", verdict.reason) for one in proposals])

    def _record(self, reason: Reason, decision: object = _UNDECIDED, actions: Sequence[Record] = ()) -> Record:
        record: Record = {"result": self.text, "reason": reason, "rounds": self.rounds}
        if decision is not _UNDECIDED:
            record |= {"result": self.text or text_of(decision), "decision": decision}
        return record | {"actions": list(actions)} if actions else record

    async def _approved(self, calls: Sequence[_Proposal]) -> Decision:
        """Ask about calls as a whole, if anybody has to be asked; an answer about the same calls is not asked for again."""
        envelope, scope, run = self.ctx.run.envelope, self.ctx.scope, self.ctx.run
        if not any(envelope.needs_approval(one.op) for one in calls):
            return Decision.allow()
        self.asked += 1
        place = f"{self.path}/approval#{self.asked}"
        mark = ""
        if scope is not None:
            # a yes to other calls at this place is none to these
            mark = run.codec.fingerprint(
                [self.given, *([one.op.name, one.op.version, one.call.input] for one in calls)]
            )
            about, _, answer = (scope.decision(place) or "").partition(" ")
            if about == mark:
                return Decision(answer == "allow", answer.removeprefix("deny "))
        self.ctx.lane.begin()
        asked = [(one.op, one.arguments) for one in calls]
        decision = await envelope.approve(asked, run.run_id, place, flow=self.name, path=self.path)
        if scope is not None:
            self.ctx.lane.begin()
            await scope.decide(place, f"{mark} {'allow' if decision.allowed else f'deny {decision.reason}'}")
        return decision

    async def _read(self, read: _Proposal) -> ToolResult:
        """Run an op for the model to see; what it raises, the model sees as well."""
        work = Work(read.op.name)

        async def go() -> ToolResult:
            try:
                return read.call.result(shown(await self._execute(read)))
            except (OpFailed, InvalidValue) as error:
                return read.call.result(_told(error, work), is_error=True)

        return evolve(await self._remembered(read, go, work), call_id=read.call.id)

    async def _act(self, one: _Proposal) -> Record:
        """Run an op of the batch."""
        work = Work(one.op.name)

        async def go() -> Record:
            try:
                return one.action("ok", (await self._execute(one)).value)
            except OpFailed as error:
                return one.action("error", _told(error, work))

        return {**await self._remembered(one, go, work), "id": one.call.id}

    async def _remembered(self, one: _Proposal, go: Callable[[], Awaitable[T]], work: Work) -> T:
        return await self.ledger.entry("tool", one.op.name, (self.given, one.op.version, one.call.input), go, work)

    async def _execute(self, one: _Proposal) -> OpResult:
        """Dispatch an op like any other call, but only within the stage's tools.

        Raises:
            OpFailed: it raised.
        """
        ctx, envelope = self.ctx, self.ctx.run.envelope
        tools = frozenset(self.ops) if ctx.tools is None else ctx.tools & self.ops.keys()
        envelope.authorise(one.op.name, one.op, tools, flow=self.name, path=self.path)
        await ctx.make_room(self.path)
        try:
            return await envelope.execute(one.op, one.arguments, flow=self.name, path=self.path)
        finally:
            for throttle in ctx.throttles:
                throttle.count()


def _told(error: BBError, work: Work) -> str:
    """What an op's failure reads like, which work tells the class of; one that must stop the run does."""
    if isinstance(error, OpFailed) and is_fatal(error):
        raise error
    work.error = type(root_of(error)).__name__
    return redacted(error.message)
