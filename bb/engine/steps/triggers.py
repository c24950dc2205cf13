"""Reaching a trigger: what its body is to begin with is put on record, and the run goes on."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from bb.cron import to_moment
from bb.engine.frame.context import Context
from bb.engine.frame.run import Reached
from bb.engine.frame.state import State
from bb.engine.memory.journal import to_its_end
from bb.engine.plan import Node
from bb.engine.steps.calls import work_out
from bb.errors import InvalidCron, InvalidValue, NotSavable, TriggerCycle
from bb.flows.tree import At, Trigger
from bb.log import Delta, Given, dump_given
from bb.messages import Input
from bb.plain import in_short

LINEAGE: Final = 8  # triggers that may start each other


async def run_trigger(node: Node, trigger: Trigger, state: State, path: str, ctx: Context) -> State:
    """Schedule the body of a trigger; the state passes through.

    Inside a durable flow it is done once, however often that is resumed. Inside a member of `One` it waits until that has won.

    Raises:
        InvalidValue: the time of an `At` comes to something else.
        TriggerCycle: too many triggers have led here.
        NotSavable: what the body is to begin with cannot be kept.
        WiringError: the flow is not registered.
    """
    run, scope = ctx.run, ctx.scope
    if not trigger.body:
        return state
    when: object = None
    if isinstance(trigger, At):
        when = trigger.when
        if not isinstance(when, datetime):  # also if it is on record: what its calls said is said again
            when, state = await work_out(when, "when", node.name, state, path, ctx)
    if scope is not None and scope.recall(path) is not None:
        run.replayed.append(path)
        run.emit("flow.cached", path, node.name)
        return state
    ctx.lane.begin()
    due = _time(when, node.name, path) if isinstance(trigger, At) else None
    reached = _reached(node, trigger, due, state, path, ctx)

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


def _time(value: object, flow: str, path: str) -> datetime:
    """What the time of an `At` has come to.

    Raises:
        InvalidValue: it is no time with a zone.
    """
    try:
        # where a datetime stands in a text, it has a blank before the hour
        return to_moment(value.replace(" ", "T", 1) if isinstance(value, str) else value)
    except InvalidCron:
        raise InvalidValue(
            f"the time of an at came to {in_short(value)} ({type(value).__name__}), which is no time with a zone",
            flow=flow,
            path=path,
            remedy='let it come to an aware datetime, or to ISO 8601 with a zone, such as "2026-03-01T08:00:00Z"',
        ) from None


def _reached(node: Node, trigger: Trigger, due: datetime | None, state: State, path: str, ctx: Context) -> Reached:
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
    return Reached(trigger, run.plan.absolute(path), run.run_id, began, run.starting, run.tenant, plain, due)
