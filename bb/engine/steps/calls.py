"""Working out a value, and dispatching the calls in it through the envelope."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from attrs import field, frozen

from bb.codec import Codec
from bb.engine.frame.context import Context
from bb.engine.frame.envelope import OpResult, arguments_of, refused
from bb.engine.frame.state import State
from bb.engine.memory.journal import to_its_end
from bb.engine.values.evaluation import Unmade, calls_in, evaluate, is_true, needs_of
from bb.errors import ApproverFailed, BBError, Fatal, Interruption, Throttled
from bb.flows.expressions import Expr, Lit, Value, Var
from bb.flows.tree import AiSegment, Call
from bb.identity import call_key
from bb.log import Delta
from bb.messages import Message
from bb.ops import Op
from bb.place import Place, here, leave
from bb.plain import own

Keep: TypeAlias = Callable[[Delta], Awaitable[Delta]]
"""Keeps what a call came to somewhere else, before the run does, and gives what counts."""


async def work_out(value: Value, slot: str, name: str, state: State, path: str, ctx: Context) -> tuple[object, State]:
    """What a value comes to, its calls dispatched first; each call has a place of its own below the statement.

    Not dispatched is what stands right of an `&&` or `||` that is decided without it; it keeps its place all the same.

    Raises:
        BBError: a call failed, or the value cannot be worked out.
    """
    if isinstance(value, Lit | Var):
        return _evaluated(value, (), name, state, path), state
    results: list[object] = []
    state = await _call(value, results, slot, name, state, path, ctx)
    return _evaluated(value, results, name, state, path), state


async def _call(
    value: Value, results: list[object], slot: str, name: str, state: State, path: str, ctx: Context
) -> State:
    """Make the calls of a value, and add what they came to."""
    for need in needs_of(value):
        if not isinstance(need, Expr):
            result, state = await come_to(need, name, state, f"{path}/{slot}~{need.kind}.{len(results)}", ctx)
            results.append(result)
            continue
        left, right = need.args
        begin = len(results)
        state = await _call(left, results, slot, name, state, path, ctx)
        first = _evaluated(left, results[begin:], name, state, path)
        if is_true(first) is (need.op == "&&"):
            state = await _call(right, results, slot, name, state, path, ctx)
        else:
            results += [Unmade(first)] * len(calls_in(right))
    return state


async def statement_value(value: Value, name: str, state: State, path: str, ctx: Context) -> tuple[object, State]:
    """What the one value of a statement comes to; a call that is all of it is remembered at the statement itself."""
    if isinstance(value, Call | AiSegment):
        return await come_to(value, name, state, path, ctx)
    return await work_out(value, "value", name, state, path, ctx)


async def holds(cond: Value, slot: str, name: str, state: State, path: str, ctx: Context) -> tuple[bool, State]:
    """Whether a condition holds. A call that fails counts as false, but one that could not be made is an error."""
    if not isinstance(cond, Call | AiSegment):
        value, state = await work_out(cond, slot, name, state, path, ctx)
        return is_true(value), state
    place = f"{path}/{slot}~{cond.kind}.0"
    if ctx.scope is not None and ctx.scope.decision(place) is not None:
        return False, state
    try:
        with ctx.revocable() as inner:  # what its arguments said is not in the state either
            value, state = await come_to(cond, name, state, place, inner)
    except (Interruption, Fatal, Throttled, ApproverFailed):
        raise
    except BBError as error:
        if ctx.scope is not None:
            await ctx.scope.decide(place, str(error))
        return False, state
    return is_true(value), state


@frozen(eq=False)
class Ready:
    """A call, or a model stage, with everything worked out that it is given."""

    call: Call[Any] | AiSegment
    arguments: Mapping[str, object]
    op: Op[Any, Any] | None
    ops: Mapping[str, Op[Any, Any]] = field(factory=dict)
    """Those that a model stage may use, by name."""

    def key(self, codec: Codec) -> str:
        """What tells it from other calls, and the same call with other arguments."""
        if self.op is not None:
            return call_key(self.op.name, self.op.version, self.arguments, codec)
        versions = [[op.name, op.version] for op in self.ops.values()]
        return call_key(self.call.kind, None, {**self.arguments, "tools": versions}, codec)


async def come_to(
    call: Call[Any] | AiSegment, name: str, state: State, path: str, ctx: Context
) -> tuple[object, State]:
    """What a call or a model stage comes to: replayed, or dispatched and kept.

    Raises:
        Denied: it may not run.
        ApproverFailed: nobody could say whether it may.
        OpFailed: the op raised.
    """
    ready, state = await made_ready(call, name, state, path, ctx)
    return await carried_out(ready, name, state, path, ctx)


async def made_ready(
    call: Call[Any] | AiSegment, name: str, state: State, path: str, ctx: Context
) -> tuple[Ready, State]:
    """Work out what a call is given.

    Raises:
        Denied: there is no such op, or it may not run here.
    """
    if isinstance(call, AiSegment):
        from bb.engine.steps.segment import ready_segment  # it dispatches calls itself

        return await ready_segment(call, name, state, path, ctx)
    op = ctx.run.envelope.op(call)
    if op is None or not is_done(path, ctx):
        ctx.run.envelope.authorise(call.op, op, ctx.tools, flow=name, path=path)
    assert op is not None
    values: list[object] = []
    for value in call.args:
        result, state = await work_out(value, "arg", name, state, path, ctx)
        values.append(result)
    return Ready(call, arguments_of(call, op, values, flow=name, path=path), op), state


def is_done(path: str, ctx: Context) -> bool:
    """Whether a call is on record here: a policy that changed since must not keep what was done from being undone."""
    saved = ctx.scope.memory.saved if ctx.scope is not None else {}
    return path in saved or f"{path}/memo" in saved


async def carried_out(
    ready: Ready, name: str, state: State, path: str, ctx: Context, keep: Keep | None = None
) -> tuple[object, State]:
    """What a call comes to: replayed, or dispatched and kept; by `keep` first, if it is given."""
    if isinstance(ready.call, AiSegment):
        from bb.engine.steps.segment import run_segment

        return await run_segment(ready.call, ready, name, state, path, ctx, keep)
    run, scope, op = ctx.run, ctx.scope, ready.op
    assert op is not None
    given = ready.key(run.codec) if scope is not None else ""
    if scope is not None:
        known = scope.recall(path)
        if known is not None and known.given == given:
            run.replayed.append(path)
            run.emit("flow.cached", path, name, op.name)
            ctx.tell(known.messages)
            return known.value, state.spoken(known.messages)
    delta = await dispatch(op, ready.arguments, name, path, ctx, given, keep)
    ctx.tell(delta.messages)
    return delta.value, state.spoken(delta.messages)


async def dispatch(
    op: Op[Any, Any],
    arguments: Mapping[str, object],
    name: str,
    path: str,
    ctx: Context,
    given: str,
    keep: Keep | None = None,
) -> Delta:
    """Run an op for real, with everything that guards it, and keep what it came to."""
    run, seat = ctx.run, ctx.seat
    ctx.lane.begin()
    if is_done(path, ctx):  # with other arguments, so that nobody has asked yet
        run.envelope.authorise(op.name, op, ctx.tools, flow=name, path=path)
    if seat is not None:
        await seat.pass_through()
    await _approved(op, arguments, name, path, ctx, given)
    await ctx.make_room(path)
    run.emit("flow.start", path, name, op.name)
    began = run.clock.monotonic()
    if ctx.scope is not None:
        # a replay skips the op, and what it does to its arguments: nobody else may see it
        arguments = {name: own(value) for name, value in arguments.items()}
    token = here.set(lambda: Place(run.run_id, path, spent=run.spent))
    try:
        result = await run.envelope.execute(op, arguments, flow=name, path=path)
    except BaseException as error:
        run.failed("flow.error", path, name, error)
        raise
    finally:
        leave(token)
        for throttle in ctx.throttles:
            throttle.count()
    took = run.clock.monotonic() - began
    delta = _delta(result, given)
    ctx.lane.begin()
    kept = _kept(delta, keep, path, took, ctx)
    delta = await (kept if keep is None else to_its_end(kept))  # a savepoint alone outlasts a cancellation anyway
    run.emit("flow.end", path, name, op.name, dur=took)
    return delta


async def _kept(delta: Delta, keep: Keep | None, path: str, took: float, ctx: Context) -> Delta:
    if keep is not None:
        delta = await keep(delta)
    if ctx.scope is not None:
        ctx.scope.journal.check()
        delta = await ctx.scope.save(path, delta, took)
    return delta


async def _approved(
    op: Op[Any, Any], arguments: Mapping[str, object], name: str, path: str, ctx: Context, given: str
) -> None:
    """Ask whether an op may run, if anybody has to be asked; leave that was given for these arguments stands."""
    envelope, scope = ctx.run.envelope, ctx.scope
    if not envelope.needs_approval(op):
        return
    place = f"{path}/approval"
    if scope is not None and scope.decision(place) == given:
        return
    decision = await envelope.approve(((op, arguments),), ctx.run.run_id, path, flow=name, path=path)
    if not decision.allowed:
        raise refused(op, decision, flow=name, path=path)
    if scope is not None:
        await scope.decide(place, given)


def _delta(result: OpResult, given: str) -> Delta:
    said = (Message(result.view, "assistant"),) if result.view else ()
    return Delta(said, None, result.value, None, (), given)


def _evaluated(value: Value, results: Sequence[object], name: str, state: State, path: str) -> object:
    try:
        return evaluate(value, state.symbols, results)
    except BBError as error:
        error.flow, error.path = error.flow or name, error.path or path
        raise
