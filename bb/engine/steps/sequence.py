"""Statements in order, and what interrupts the order: a return, or a run that parks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from bb.engine.frame.context import Context
from bb.engine.frame.state import State
from bb.engine.plan import Node

Perform: TypeAlias = Callable[[Node, State, str, Context], Coroutine[Any, Any, State]]
"""Runs one node: state in, state out."""


async def in_order(parts: Sequence[Node], state: State, path: str, ctx: Context, perform: Perform) -> State:
    """One node after another, until one leaves the flow around them."""
    for part in parts:
        state = await perform(part, state, f"{path}/{part.segment}", ctx)
        if state.left is not None:
            break
    return state


async def body_of(node: Node, slot: str, state: State, path: str, ctx: Context, perform: Perform) -> State:
    """The statements in one slot of a node; `last` is then what they came to."""
    return await in_order(node.bodies[slot], state.came_to(None), path, ctx, perform)
