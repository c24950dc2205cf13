"""The interpreter: one step per kind of flow that speaks; the statements of the language have their own (`statements`)."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from attrs import evolve

from bb.engine.frame.context import Context
from bb.engine.frame.run import Run
from bb.engine.frame.scope import enter_scope
from bb.engine.frame.state import RETURNED, State
from bb.engine.pauses import pause
from bb.engine.plan import Node
from bb.engine.steps.groups import run_all, run_group, run_one
from bb.engine.steps.leaf import check_pick, run_agents
from bb.errors import BBError, Interruption, NotifyFailed, is_fatal, words_of
from bb.flows.tree import (
    All,
    At,
    Chain,
    DurableFlow,
    Every,
    Flow,
    Group,
    LanguageNode,
    NamedFlow,
    Notify,
    One,
    Respond,
    Select,
    Trigger,
    Webhook,
    flow_id,
)
from bb.log import Delta, Failed, millis
from bb.messages import spoken
from bb.place import Place, here, leave


def perform(node: Node, state: State, path: str, ctx: Context) -> Coroutine[Any, Any, State]:
    """Run one node: state in, state out. It only picks who does it, so that no step pays for a coroutine more.

    Raises:
        BBError: it failed, or was interrupted; the error names the flow and the path.
    """
    ctx.lane.check()
    match node.flow:
        case Flow() as flow:
            return run_agents(node, flow, state, path, ctx)
        case NamedFlow():
            if node.returns:
                return _named(node, state, path, ctx)
            return perform(node.parts[0], state, path, ctx)
        case DurableFlow() as flow:
            return _durable(node, flow, state, path, ctx)
        case Chain(model=model):
            return _chain(node, state, path, ctx.under(model))
        case Select(model=model) as select:
            return _select(node, select, state, path, ctx.under(model))
        case All(model=model):
            return run_all(node, state, path, ctx.under(model), perform)
        case One(model=model):
            return run_one(node, state, path, ctx.under(model), perform)
        case Group(model=model):
            return run_group(node, state, path, ctx.under(model), perform)
        case Respond():
            return _respond(node, state, path, ctx)
        case Notify() as notify:
            return _notify(node, notify, state, path, ctx)
        case Every() | At() | Webhook() as trigger:
            return _trigger(node, trigger, state, path, ctx)
        case statement:
            return _statement(node, statement, state, path, ctx)


def _statement(node: Node, flow: LanguageNode, state: State, path: str, ctx: Context) -> Coroutine[Any, Any, State]:
    from bb.engine.steps.statements import run_statement  # the language is loaded where it is spoken

    return run_statement(node, flow, state, path, ctx, perform)


def _trigger(node: Node, trigger: Trigger, state: State, path: str, ctx: Context) -> Coroutine[Any, Any, State]:
    from bb.engine.steps.triggers import run_trigger  # as above

    return run_trigger(node, trigger, state, path, ctx)


async def _chain(node: Node, state: State, path: str, ctx: Context, start: int = 0) -> State:
    top = "/" not in path
    for part in node.parts[start:]:
        state = await perform(part, state, f"{path}/{part.segment}", ctx)
        if top:
            ctx.run.reached = state
        if state.left is not None:
            break
    return state


async def _named(node: Node, state: State, path: str, ctx: Context) -> State:
    """A named flow with a `Return` inside, which ends there; at the root it stays to be seen that the run returned."""
    state = await perform(node.parts[0], state, path, ctx)
    return state if "/" not in path else _home(state)


def _home(state: State) -> State:
    return state.arrived() if state.left is RETURNED else state


async def _select(node: Node, select: Select, state: State, path: str, ctx: Context) -> State:
    picked = state.selected
    if picked is None:
        ctx.run.emit("select.none", path, node.name)
        return state
    check_pick(picked, frozenset(map(flow_id, select.members)), node.name, path)
    ctx.run.emit("select.enter", path, node.name, picked)
    for part, member in zip(node.parts, select.members, strict=True):
        if flow_id(member) == picked:
            return await perform(part, state.picked(None), f"{path}/{part.segment}", ctx)
    raise AssertionError("check_pick let through an id without a member")


async def _respond(node: Node, state: State, path: str, ctx: Context) -> State:
    run = ctx.run
    run.emit("respond", path, node.name)
    if ctx.aside:
        return state  # beside others nothing is delivered: the text goes out with the next boundary outside
    run.delivery.complete(spoken(state.chat[state.seed :]))
    run.delivery.settle()
    run.stage_claimed = False
    return state.delivered()


async def _notify(node: Node, notify: Notify, state: State, path: str, ctx: Context) -> State:
    run, scope = ctx.run, ctx.scope
    if scope is not None and scope.recall(path) is not None:
        run.replayed.append(path)
        run.emit("flow.cached", path, node.name)
        return state
    ctx.lane.begin()
    if ctx.seat is not None:
        await ctx.seat.pass_through()
    run.emit("notify", path, node.name)
    began = run.clock.monotonic()
    try:
        if state.chat:
            await _send(notify, state.chat[-1].content, node, path, run)
        took = run.clock.monotonic() - began
        if scope is not None:
            ctx.lane.begin()
            await scope.save(path, Delta(), took)
    except BaseException as error:
        run.failed("notify.error", path, node.name, error)
        raise
    run.emit("notify.end", path, node.name, dur=took)
    return state


async def _send(notify: Notify, text: str, node: Node, path: str, run: Run) -> None:
    assert notify.send is not None  # a sender that is only a name was looked up
    token = here.set(lambda: Place(run.run_id, path, spent=run.spent))
    try:
        await notify.send(text)
    except BBError:
        raise
    except Exception as error:
        raise NotifyFailed(
            f"{notify.name or 'the sender'} failed: {type(error).__name__}: {words_of(error)}",
            flow=node.name,
            path=path,
        ) from error
    finally:
        leave(token)


async def _durable(node: Node, flow: DurableFlow, state: State, path: str, ctx: Context) -> State:
    """A durable flow: enter its scope, and run it again after a failure as often as its retries allow."""
    run = ctx.run
    scope = await enter_scope(run, path, flow, node.signature, node.form)
    tries = (*ctx.tries, (path, flow.options.retries)) if flow.options.retries else ctx.tries
    ctx = evolve(ctx, scope=scope, tries=tries)
    mark, claimed = run.delivery.mark, run.stage_claimed
    first = 0
    if node.checkpoints and "/" not in path:
        from bb.engine.steps.remembering import skipped

        first, state = await skipped(state, path, ctx)
    body = node.parts[0]
    while True:
        try:
            with ctx.revocable() as inner:
                if first and isinstance(body.flow, Chain):
                    state = await _chain(body, state, path, inner.under(body.flow.model), first)
                else:
                    state = await perform(body, state, path, inner)
            return state if "/" not in path else _home(state)
        except Interruption:
            raise
        except Exception as error:
            tried = scope.journal.history.failures.get(path, 0)
            if is_fatal(error) or tried >= flow.options.retries:
                raise
            failed = Failed.of(error, path, millis(run.clock.now()), final=False)
            await scope.journal.record(failed)
            run.delivery.rewind(mark)
            run.stage_claimed = claimed
            await scope.journal.sleep(pause(tried, run.clock.random(), error))
            run.emit("run.retry", path, flow.id, failed.detail, error=failed.error)
