"""What catches a failure: try and retry. What failed inside is over, and has been unwound before they go on."""

from __future__ import annotations

from attrs import evolve

from bb.engine.frame.context import Context
from bb.engine.frame.state import State
from bb.engine.plan import Node
from bb.engine.steps.control import named
from bb.engine.steps.sequence import Perform, body_of, in_order
from bb.engine.steps.unwinding import replayed, said
from bb.errors import Interruption, is_fatal
from bb.flows.tree import Retry, Try


async def run_try(node: Node, attempt: Try, state: State, path: str, ctx: Context, perform: Perform) -> State:
    """The body; if it fails, its effects are unwound, and the handler runs."""
    caught = ctx.scope.decision(path) if ctx.scope is not None else None
    if caught is None:
        try:
            with ctx.revocable() as inner:
                return await body_of(node, "body", state, path, evolve(inner, tries=()), perform)
        except Interruption:
            raise
        except Exception as error:
            caught = said(error)
            if ctx.scope is not None:
                ctx.scope.journal.check()
                ctx.lane.check()
                await ctx.scope.decide(path, caught)
            ctx.run.emit("try.caught", path, node.name, caught)
    elif _owes(path, ctx):
        await replayed(node, state, path, ctx, perform)  # an undo inside has failed: it is tried again first
    start = state.came_to(None)
    if attempt.catch is not None:
        start = start.bound(attempt.catch, caught)
    return await in_order(node.bodies["handler"], start, path, ctx, perform)


async def run_retry(node: Node, retry: Retry, state: State, path: str, ctx: Context, perform: Perform) -> State:
    """The body until it succeeds, at most `max` times; each attempt is a place of its own."""
    for tried in range(retry.max):
        place = f"{path}@{tried}" if tried else path
        if ctx.scope is not None and ctx.scope.decision(place) is not None:
            continue
        try:
            with ctx.revocable() as inner:
                out = await body_of(node, "body", state, place, evolve(inner, tries=()), perform)
            return named(out, retry.bind)
        except Interruption:
            raise
        except Exception as error:
            if is_fatal(error) or tried + 1 >= retry.max or _owes(place, ctx) or _is_unsettled(error):
                if tried:
                    error.add_note(f"attempt {tried + 1} of {retry.max} at {path}")
                raise
            if ctx.scope is not None:
                ctx.scope.journal.check()
                await ctx.scope.decide(place, said(error))
            ctx.run.emit("retry", path, node.name, said(error))
            await ctx.run.sleep(_wait(retry, tried))
    raise AssertionError("the last attempt returns or raises, and is never recorded as failed")


def _wait(retry: Retry, tried: int) -> float:
    base = retry.delay.total_seconds()
    match retry.backoff:
        case "none":
            return base
        case "linear":
            return base * (tried + 1)
        case "exponential":
            return float(base * 2 ** min(tried, 10))


def _owes(path: str, ctx: Context) -> bool:
    """Whether an undo inside has failed: nothing may be tried again before that is settled."""
    scopes = ctx.run.journal.history.scopes.values() if ctx.run.journal is not None else ()
    return any(place.startswith(f"{path}/") for scope in scopes for place in scope.unwinding)


def _is_unsettled(error: BaseException) -> bool:
    """The same where nothing is on record: an undo failed while this error was unwound."""
    return any(note.startswith("undo of step") for note in getattr(error, "__notes__", ()))
