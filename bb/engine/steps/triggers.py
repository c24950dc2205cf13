"""Reaching a trigger: what its body is to begin with is put on record, and the run goes on."""

from __future__ import annotations

from typing import Final

from bb.engine.frame.context import Context
from bb.engine.frame.run import Reached
from bb.engine.frame.state import State
from bb.engine.memory.journal import to_its_end
from bb.engine.plan import Node
from bb.errors import NotSavable, TriggerCycle
from bb.flows.tree import Trigger
from bb.log import Delta, Given, dump_given
from bb.messages import Input

LINEAGE: Final = 8  # triggers that may start each other


async def run_trigger(node: Node, trigger: Trigger, state: State, path: str, ctx: Context) -> State:
    """Schedule the body of a trigger; the state passes through.

    Inside a durable flow it is done once, however often that is resumed. Inside a member of `One` it waits until that has won.

    Raises:
        TriggerCycle: too many triggers have led here.
        NotSavable: what the body is to begin with cannot be kept.
        WiringError: the flow is not registered.
    """
    run, scope = ctx.run, ctx.scope
    if not trigger.body:
        return state
    if scope is not None and scope.recall(path) is not None:
        run.replayed.append(path)
        run.emit("flow.cached", path, node.name)
        return state
    ctx.lane.begin()
    reached = _reached(node, trigger, state, path, ctx)

    async def schedule() -> None:
        job = await to_its_end(run.schedule(reached))  # whether anybody still waits for the run does not matter
        run.emit("job.scheduled", path, node.name, job)
        if scope is not None:
            await scope.save(path, Delta(), 0)

    if ctx.schedules is not None:
        ctx.schedules.append(schedule)
    else:
        await schedule()
    return state


def _reached(node: Node, trigger: Trigger, state: State, path: str, ctx: Context) -> Reached:
    run = ctx.run
    depth = run.depth + 1
    if depth > LINEAGE:
        raise TriggerCycle(
            f"{depth} triggers would have started each other, and {LINEAGE} may",
            flow=node.name,
            path=path,
            remedy="a body that starts itself again never ends: use Every for what recurs",
        )
    sent = run.input
    input = Input(state.chat, sent.request, sent.payload, sent.metadata)
    given = Given(input, run.params, state.symbols, depth, run.tenant)
    try:
        plain = dump_given(given, run.codec)
    except NotSavable as error:
        error.path, error.flow = path, node.name
        raise
    started = run.journal.history.started if run.journal is not None else None
    began = started.at if started is not None else 0
    return Reached(trigger, run.plan.absolute(path), run.run_id, began, run.starting, run.tenant, plain)
