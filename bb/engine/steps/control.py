"""Statements that name, say and branch: everything that needs no memory of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attrs import evolve

from bb.engine.frame.context import Context
from bb.engine.frame.state import State
from bb.engine.plan import Node
from bb.engine.steps.calls import holds, statement_value, work_out
from bb.engine.steps.sequence import Perform, body_of, in_order
from bb.engine.values.evaluation import text_of
from bb.errors import AssertionFailed, InvalidValue, TooManyIterations
from bb.flows.tree import Assert, Bind, Each, Emit, Repeat, Return, Run, Unless, When, WithTools
from bb.messages import Message

MAX_ITERATIONS: Final = 100_000  # of all loops of a run together


async def run_bind(node: Node, bind: Bind, state: State, path: str, ctx: Context) -> State:
    """Name a value."""
    value, state = await statement_value(bind.value, node.name, state, path, ctx)
    return state.bound(bind.name, value).came_to(value)


async def run_emit(node: Node, emit: Emit, state: State, path: str, ctx: Context) -> State:
    """Say the text of a value."""
    value, state = await work_out(emit.value, "value", node.name, state, path, ctx)
    text = text_of(value)
    if not text:
        return state.came_to(value)
    ctx.run.emit("emit", path, node.name)
    message = Message(text, "assistant")
    ctx.tell((message,))
    return state.spoken((message,)).came_to(value)


async def run_return(node: Node, leave: Return, state: State, path: str, ctx: Context) -> State:
    """Leave the nearest named flow."""
    value, state = await statement_value(leave.value, node.name, state, path, ctx)
    return state.returned(value)


async def run_assert(node: Node, check: Assert, state: State, path: str, ctx: Context) -> State:
    """Fail for good unless a condition holds.

    Raises:
        AssertionFailed: it does not.
    """
    held, state = await holds(check.cond, "cond", node.name, state, path, ctx)
    if not held:
        raise AssertionFailed(
            check.message or "an assertion does not hold",
            flow=node.name,
            path=path,
            remedy="mend what led here: the same run would fail again",
        )
    return state


async def run_when(node: Node, when: When | Unless, state: State, path: str, ctx: Context, perform: Perform) -> State:
    """One of two branches, or none."""
    held, state = await holds(when.cond, "cond", node.name, state, path, ctx)
    slot = ("then" if held else "otherwise") if isinstance(when, When) else ("" if held else "body")
    if not slot or not node.bodies[slot]:
        return state
    return await in_order(node.bodies[slot], state, path, ctx, perform)


async def run_each(node: Node, each: Each, state: State, path: str, ctx: Context, perform: Perform) -> State:
    """The body for each item of a list.

    Raises:
        InvalidValue: what it goes over is no list.
        TooManyIterations: the run's loops went round too often.
    """
    items, state = await work_out(each.items, "items", node.name, state, path, ctx)
    if not isinstance(items, list | tuple):
        raise InvalidValue(
            f"each was given a {type(items).__name__}, not a list", flow=node.name, path=path, remedy="give a list"
        )
    outer, collected = state.symbols, list[object]()
    for index, item in enumerate(items):
        _count(node, path, ctx)
        inner = evolve(ctx, items=(*ctx.items, item))
        state = await body_of(node, "body", state.bound(each.item, item), f"{path}#{index}", inner, perform)
        if state.left is not None:
            break
        collected.append(state.last)
    return _collected(state.restored(each.item, outer), each.collect, collected, each.flat)


async def run_repeat(node: Node, repeat: Repeat, state: State, path: str, ctx: Context, perform: Perform) -> State:
    """The body until a condition holds after it, at most `max` times.

    Raises:
        TooManyIterations: the run's loops went round too often.
    """
    collected = list[object]()
    for index in range(repeat.max):
        _count(node, path, ctx)
        place = f"{path}#{index}"
        inner = evolve(ctx, items=(*ctx.items, index))
        state = await body_of(node, "body", state, place, inner, perform)
        if state.left is not None:
            break
        collected.append(state.last)
        if repeat.until is not None:
            done, state = await holds(repeat.until, "until", node.name, state, place, ctx)
            if done:
                break
    return _collected(state, repeat.collect, collected, flat=False)


def _collected(state: State, name: str | None, values: list[object], flat: bool) -> State:
    if state.left is not None or name is None:
        return state
    if flat:
        values = [part for value in values for part in (value if isinstance(value, list | tuple) else (value,))]
    return state.bound(name, values).came_to(values)


def _count(node: Node, path: str, ctx: Context) -> None:
    ctx.run.iterations += 1
    if ctx.run.iterations > MAX_ITERATIONS:
        raise TooManyIterations(
            f"the loops of this run went round more than {MAX_ITERATIONS:,} times",
            flow=node.name,
            path=path,
            remedy="split the work into several runs",
        )


async def run_with_tools(
    node: Node, confine: WithTools, state: State, path: str, ctx: Context, perform: Perform
) -> State:
    """The body with only some ops."""
    tools = frozenset(confine.tools)
    inner = evolve(ctx, tools=tools if ctx.tools is None else ctx.tools & tools)
    return named(await body_of(node, "body", state, path, inner, perform), confine.bind)


def named(state: State, name: str | None) -> State:
    """Bind what a body came to."""
    return state if name is None or state.left is not None else state.bound(name, state.last)


async def run_flow(node: Node, run: Run, state: State, path: str, ctx: Context, perform: Perform) -> State:
    """A registered flow as a sub-flow: over the chat, with symbols of its own, given its parameters by name."""
    target = node.parts[0]
    frame = _frame(target.flow, state.symbols)
    inner = await perform(target, state.framed(frame).came_to(None), f"{path}/{target.segment}", ctx)
    return named(inner.framed(state.symbols), run.bind)


def _frame(flow: Any, symbols: Mapping[str, object]) -> Mapping[str, object]:
    return {param.name: symbols[param.name] for param in flow.params if param.name in symbols}
