"""Flows side by side: all of them, the first to succeed, or all over one shared chat."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from attrs import evolve

from bb.engine.context import Context, Lane
from bb.engine.plan import Node
from bb.engine.run import State, merged
from bb.engine.shared import Latch, Shared
from bb.engine.tasks import LOSER_GRACE, stop, together
from bb.errors import AgentFailed, Interruption
from bb.logs import warning

Perform = Callable[[Node, State, str, Context], Awaitable[State]]


async def run_all(node: Node, state: State, path: str, ctx: Context, perform: Perform) -> State:
    """Every member over its own copy of the chat, merged in declaration order."""
    ctx.run.emit("all.start", path, node.name)
    inner = evolve(ctx, shared=None, seat=None, aside=True)
    start = state.picked(None)
    if ctx.seat is not None:
        await _first(node, path, ctx)

    async def member(part: Node) -> State:
        return await perform(part, start, f"{path}/{part.segment}", inner)

    outs = await together([member(part) for part in node.parts], to_end=ctx.scope is not None)
    out = merged(start, outs, path)
    if ctx.shared is not None:
        for message in out.chat[len(state.chat) :]:
            ctx.shared.append(message)
    return out


async def run_group(node: Node, state: State, path: str, ctx: Context, perform: Perform) -> State:
    """Every member over one live chat; replayed members speak first, the output is merged in declaration order."""
    ctx.run.emit("group.start", path, node.name)
    shared = ctx.shared if ctx.shared is not None else Shared(state.chat)
    start = state.picked(None)
    resuming = ctx.scope is not None and ctx.scope.remembers_below(path)
    if ctx.seat is not None:
        await _first(node, path, ctx)
    latch = Latch(len(node.parts)) if resuming else None

    async def member(index: int, part: Node) -> State:
        seat = latch.seat(index) if latch is not None else None
        try:
            inner = evolve(ctx, shared=shared, seat=seat, aside=True)
            return await perform(part, start, f"{path}/{part.segment}", inner)
        finally:
            if seat is not None:
                seat.leave()

    members = [member(i, part) for i, part in enumerate(node.parts)]
    return merged(start, await together(members, to_end=ctx.scope is not None), path)


async def run_one(node: Node, state: State, path: str, ctx: Context, perform: Perform) -> State:
    """The first member to succeed; the rest are cancelled and leave nothing. A durable run keeps its winner.

    Raises:
        AgentFailed: every member failed; the cause is a group of their errors.
    """
    ctx.run.emit("one.start", path, node.name)
    start = state.picked(None)
    chosen = ctx.scope.decision(path) if ctx.scope is not None else None
    if chosen is not None:
        part = next(part for part in node.parts if part.segment == chosen)
        return await perform(part, start, f"{path}/{part.segment}", evolve(ctx, aside=True))
    if ctx.seat is not None:
        await _first(node, path, ctx)
    lanes = [Lane(ctx.lane) for _ in node.parts]
    views = [ctx.shared.fork() if ctx.shared is not None else None for _ in node.parts]

    async def member(index: int, part: Node) -> State:
        inner = evolve(ctx, lane=lanes[index], shared=views[index], seat=None, aside=True)
        return await perform(part, start, f"{path}/{part.segment}", inner)

    tasks: list[asyncio.Future[State]] = [asyncio.ensure_future(member(i, part)) for i, part in enumerate(node.parts)]
    winner = await _race(node, path, tasks, lanes)
    if ctx.scope is not None:
        await ctx.scope.decide(path, node.parts[winner].segment)
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
        raise AgentFailed(
            f"no member of One succeeded ({len(failed)} failed)", flow=node.name, path=path
        ) from ExceptionGroup("members of One", failed or [asyncio.InvalidStateError("no member ended")])
    return winner


async def _first(node: Node, path: str, ctx: Context) -> None:
    """At an outer latch: replay without waiting if anything inside may replay, else wait for one's turn."""
    assert ctx.seat is not None
    if ctx.scope is None or not ctx.scope.remembers_below(path):
        await ctx.seat.pass_through()
