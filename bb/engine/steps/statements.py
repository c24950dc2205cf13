"""The statements of the language: one step per kind."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, assert_never

from bb.engine.frame.context import Context
from bb.engine.frame.state import State
from bb.engine.plan import Node
from bb.engine.steps.calls import statement_value
from bb.engine.steps.catching import run_retry, run_try
from bb.engine.steps.control import (
    run_assert,
    run_bind,
    run_each,
    run_emit,
    run_flow,
    run_repeat,
    run_return,
    run_when,
    run_with_tools,
)
from bb.engine.steps.remembering import (
    run_await,
    run_checkpoint,
    run_debounce,
    run_memo,
    run_once,
    run_throttle,
)
from bb.engine.steps.sequence import Perform
from bb.engine.steps.unwinding import run_saga, run_scope, run_timeout
from bb.flows.tree import (
    AiSegment,
    Assert,
    Await,
    Bind,
    Call,
    Checkpoint,
    Debounce,
    Each,
    Emit,
    LanguageNode,
    Memo,
    Once,
    Peek,
    Repeat,
    Retry,
    Return,
    Run,
    Saga,
    Scope,
    Throttle,
    Timeout,
    Try,
    Unless,
    When,
    WithTools,
)


def run_statement(
    node: Node, flow: LanguageNode, state: State, path: str, ctx: Context, perform: Perform
) -> Coroutine[Any, Any, State]:
    """Run one statement: state in, state out."""
    if flow.model is not None:
        ctx = ctx.under(flow.model)
    match flow:
        case Call() | AiSegment():
            return _value(node, flow, state, path, ctx)
        case Bind():
            return run_bind(node, flow, state, path, ctx)
        case Emit():
            return run_emit(node, flow, state, path, ctx)
        case When() | Unless():
            return run_when(node, flow, state, path, ctx, perform)
        case Each():
            return run_each(node, flow, state, path, ctx, perform)
        case Repeat():
            return run_repeat(node, flow, state, path, ctx, perform)
        case Return():
            return run_return(node, flow, state, path, ctx)
        case Assert():
            return run_assert(node, flow, state, path, ctx)
        case Try():
            return run_try(node, flow, state, path, ctx, perform)
        case Retry():
            return run_retry(node, flow, state, path, ctx, perform)
        case Timeout():
            return run_timeout(node, flow, state, path, ctx, perform)
        case WithTools():
            return run_with_tools(node, flow, state, path, ctx, perform)
        case Throttle():
            return run_throttle(node, flow, state, path, ctx, perform)
        case Debounce():
            return run_debounce(node, flow, state, path, ctx, perform)
        case Run():
            return run_flow(node, flow, state, path, ctx, perform)
        case Memo():
            return run_memo(node, flow, state, path, ctx)
        case Peek():
            return _value(node, flow, state, path, ctx)
        case Await():
            return run_await(node, flow, state, path, ctx)
        case Checkpoint():
            return run_checkpoint(node, flow, state, path, ctx)
        case Once():
            return run_once(node, flow, state, path, ctx, perform)
        case Scope():
            return run_scope(node, flow, state, path, ctx, perform)
        case Saga():
            return run_saga(node, flow, state, path, ctx, perform)
        case unreachable:
            assert_never(unreachable)


async def _value(node: Node, flow: Call[Any] | AiSegment | Peek, state: State, path: str, ctx: Context) -> State:
    value, state = await statement_value(flow, node.name, state, path, ctx)
    return state.came_to(value)
