"""Flows side by side: all of them, the first to succeed, or all over one shared chat."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from attrs import evolve

from bb.engine.frame.claims import Claim, free, give_up
from bb.engine.frame.context import Context, Lane
from bb.engine.frame.shared import Latch, Seat, Shared, taken
from bb.engine.frame.state import State, merged
from bb.engine.frame.tasks import LOSER_GRACE, stop, together
from bb.engine.plan import Node
from bb.errors import Interruption, NobodyWon, SelectConflict
from bb.flows.names import is_symbol
from bb.flows.tree import DurableFlow, NamedFlow, flow_id
from bb.log import Forgotten, load_delta
from bb.logs import warning

Perform = Callable[[Node, State, str, Context], Awaitable[State]]


async def run_all(node: Node, state: State, path: str, ctx: Context, perform: Perform) -> State:
    """Every member over its own copy of the chat, merged in declaration order."""
    ctx.run.emit("all.start", path, node.name)
    inner = evolve(ctx, shared=None, aside=True)
    start = state.picked(None)

    async def member(part: Node, seat: Seat | None) -> State:
        with taken(seat):
            return await perform(part, start.came_to(None), f"{path}/{part.segment}", evolve(inner, seat=seat))

    members = [member(part, seat) for part, seat in zip(node.parts, _seats(node, ctx), strict=True)]
    outs = await together(members, to_end=ctx.scope is not None)
    out = await _merged(start, outs, path, ctx)
    for part, one in zip(node.parts, outs, strict=True):
        named = isinstance(part.flow, NamedFlow | DurableFlow) and is_symbol(part.flow.id)
        if named and ctx.run.plan.uses_symbols:
            out = out.bound(flow_id(part.flow), one.last)
    ctx.tell(out.chat[len(state.chat) :])
    return out


async def run_group(node: Node, state: State, path: str, ctx: Context, perform: Perform) -> State:
    """Every member over one live chat; replayed members speak first, the output is merged in declaration order."""
    ctx.run.emit("group.start", path, node.name)
    shared = ctx.shared if ctx.shared is not None else Shared(state.chat)
    start = state.picked(None)
    journal = ctx.run.journal
    resuming = journal is not None and journal.history.remembers_below(path)

    async def member(part: Node, seat: Seat | None) -> State:
        with taken(seat):
            inner = evolve(ctx, shared=shared, seat=seat, aside=True)
            return await perform(part, start, f"{path}/{part.segment}", inner)

    members = [member(part, seat) for part, seat in zip(node.parts, _seats(node, ctx, resuming), strict=True)]
    return await _merged(start, await together(members, to_end=ctx.scope is not None), path, ctx)


async def _merged(start: State, outs: Sequence[State], path: str, ctx: Context) -> State:
    """What the members add up to; steps whose picks conflict are forgotten, as they would conflict on every retry.

    Raises:
        SelectConflict: members picked different ids.
    """
    try:
        return merged(start, outs, path)
    except SelectConflict:
        journal = ctx.run.journal
        if journal is not None:
            picks = {out.selected for out in outs if out.selected is not None}
            for place, plain in journal.history.saved_below(path):
                if load_delta(plain, journal.codec).selected in picks:
                    await journal.record(Forgotten(place))
        raise


async def run_one(node: Node, state: State, path: str, ctx: Context, perform: Perform) -> State:
    """The first member to succeed; the rest are cancelled and leave nothing. A durable run keeps its winner.

    Raises:
        NobodyWon: every member failed; the cause is a group of their errors.
    """
    ctx.run.emit("one.start", path, node.name)
    start = state.picked(None)
    chosen = ctx.scope.decision(path) if ctx.scope is not None else None
    if chosen is not None:
        part = next(part for part in node.parts if part.segment == chosen)
        return await perform(part, start, f"{path}/{part.segment}", evolve(ctx, aside=True))
    ctx.lane.begin()  # nobody has won yet, and in a halted branch nobody may
    seats = _seats(node, ctx)
    lanes = [Lane(ctx.lane) for _ in node.parts]
    schedules: list[list[Callable[[], Awaitable[None]]]] = [[] for _ in node.parts]
    cut_off: list[Claim] = []
    views = [ctx.shared.fork() if ctx.shared is not None else None for _ in node.parts]

    async def member(index: int, part: Node) -> State:
        with taken(seats[index]):
            inner = evolve(
                ctx,
                lane=lanes[index],
                shared=views[index],
                seat=seats[index],
                aside=True,
                schedules=schedules[index],
                cut_off=cut_off,
            )
            return await perform(part, start, f"{path}/{part.segment}", inner)

    tasks: list[asyncio.Future[State]] = [asyncio.ensure_future(member(i, part)) for i, part in enumerate(node.parts)]
    try:
        winner = await _race(node, path, tasks, lanes)
    except BaseException as error:
        await give_up(error, cut_off, ctx)
        raise
    await free(cut_off, ctx)  # before the winner is on record: after that nobody comes to what the others claimed
    if ctx.scope is not None:
        await ctx.scope.decide(path, node.parts[winner].segment)
    if ctx.schedules is not None:
        ctx.schedules.extend(schedules[winner])  # whether this counts is decided further out
    else:
        for schedule in schedules[
            winner
        ]:  # after a crash in here the winner is walked again, and schedules what is left
            await schedule()
    view = views[winner]
    if view is not None:
        view.join()
    return tasks[winner].result()


async def _race(node: Node, path: str, tasks: list[asyncio.Future[State]], lanes: list[Lane]) -> int:
    waiting = set(tasks)
    winner: int | None = None
    try:
        while waiting and winner is None:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            ended = [(i, task.exception()) for i, task in enumerate(tasks) if task in done and not task.cancelled()]
            for index, error in ended:
                if isinstance(error, Interruption):
                    raise error
                if error is None and winner is None:
                    winner = index
    finally:
        for index, lane in enumerate(lanes):
            if index != winner:
                lane.close()
        if await stop(waiting, LOSER_GRACE):
            warning("a member of One ignores its cancellation and was left behind", path=path, flow=node.name)
    if winner is None:
        errors = [task.exception() for task in tasks if not task.cancelled()]
        failed = [error for error in errors if isinstance(error, Exception)]
        said = "; ".join(str(error) for error in failed)
        raise NobodyWon(
            f"no member of One succeeded ({len(failed)} failed): {said}", flow=node.name, path=path
        ) from ExceptionGroup("members of One", failed or [asyncio.InvalidStateError("no member ended")])
    return winner


def _seats(node: Node, ctx: Context, resuming: bool = False) -> Sequence[Seat | None]:
    """A seat for each member where some may replay: here, or beside a group around this one."""
    if not resuming and ctx.seat is None:
        return [None] * len(node.parts)
    latch = Latch(len(node.parts), ctx.seat)
    return [latch.seat(member) for member in range(len(node.parts))]
