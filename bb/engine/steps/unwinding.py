"""What can be undone: scopes, sagas and timeouts.

A failure is over for what stands inside a catcher, or inside durable flows that have no retry left. Then, and on a
cancellation that is for good, what is open is unwound: the failure is recorded before the first cleanup, a crash in
between goes on cleaning up and never forward, and running the same place again is a new attempt `@n`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from attrs import define, evolve

from bb.engine.frame.context import Context, Lane
from bb.engine.frame.pending import Pending
from bb.engine.frame.state import State
from bb.engine.frame.tasks import LOSER_GRACE, stop
from bb.engine.memory.journal import outlasted
from bb.engine.pauses import pause
from bb.engine.plan import Node
from bb.engine.steps.calls import statement_value
from bb.engine.steps.control import named
from bb.engine.steps.sequence import Perform, body_of, in_order
from bb.errors import BBError, Interruption, TimedOut, Unwound, is_fatal, words_of
from bb.flows.tree import AiSegment, Call, Saga, Scope, Timeout
from bb.log import millis
from bb.log.facts import UndoFailed, Unwinding
from bb.log.facts import Unwound as Undone
from bb.logs import warning

T = TypeVar("T")


@define(eq=False, repr=False)
class Attempt:
    """One attempt at a place that can be undone; its steps stand at `path`, which tells attempts apart."""

    node: Node
    base: str
    ctx: Context
    path: str
    failure: Unwinding | None
    """The failure that is being unwound, as the log has it."""

    @classmethod
    def at(cls, node: Node, base: str, ctx: Context) -> Attempt:
        """The present attempt at a place."""
        if ctx.scope is None:
            return cls(node, base, ctx, base, None)
        memory = ctx.scope.memory
        path = memory.attempt(base)
        return cls(node, base, ctx, path, memory.unwinding.get(path))

    @property
    def steps(self) -> Context:
        """For the steps: once they are being undone, they only replay up to where they had come."""
        return self.ctx if self.failure is None else _halted(self.ctx)

    def ends(self, error: BaseException) -> bool:
        """Whether what failed here is over, so that it has to be unwound."""
        if self.failure is not None:
            return not isinstance(error, Interruption)
        if isinstance(error, Interruption):
            return False
        if isinstance(error, asyncio.CancelledError):
            return self.ctx.for_good
        return isinstance(error, Exception) and not self.ctx.tries_again(error)

    async def unwind(self, error: BaseException, cleanup: Callable[[Context], Awaitable[list[str]]]) -> BaseException:
        """Clean up, and give the error to raise, with a note for each cleanup that failed.

        Raises:
            Interruption: the store or the lease failed; the next run goes on from there.
            CancelledError: the flow was cancelled meanwhile.
        """
        return await _to_its_end(self._unwind(error, cleanup), self.ctx)

    async def _unwind(self, error: BaseException, cleanup: Callable[[Context], Awaitable[list[str]]]) -> BaseException:
        scope, run = self.ctx.scope, self.ctx.run
        if self.failure is None and scope is not None:
            self.failure = Unwinding(
                scope.memory.number, self.path, self._now(), type(error).__name__, said(error), is_fatal(error)
            )
            await scope.record(self.failure)
        elif self.failure is not None:
            error = self._recorded(self.failure)
        run.emit("unwind.start", self.path, self.node.name, type(error).__name__)
        with self.ctx.lane.cleaning():
            failed = await cleanup(self._sheltered())
        for note in failed:
            error.add_note(note)
        owed = bool(failed) and self._must_settle
        if owed and isinstance(error, Unwound):
            error.remedy = "run it again when its undo can succeed, or settle the undo with app.forget(run_id, path)"
        if scope is not None and not owed:
            await scope.record(Undone(scope.memory.number, self.path, self._now()))
        run.emit("unwind.end", self.path, self.node.name, "; ".join(failed))
        return error

    def _sheltered(self) -> Context:
        """For the cleanup: it works on though everything around it was given up."""
        return evolve(self.ctx, lane=Lane(self.ctx.lane, shelter=True), tries=(), shared=None, aside=True)

    @property
    def _must_settle(self) -> bool:
        """A failed undo stands until it has succeeded; a failed `finally` is only told."""
        return isinstance(self.node.flow, Saga)

    def check(self) -> None:
        """Raise the failure of the attempt before, if it was undone and a crash came before anyone heard of it."""
        memory = self.ctx.scope.memory if self.ctx.scope is not None else None
        failure = memory.over.get(self.base) if memory is not None else None
        if memory is None or failure is None:
            return
        error = self._recorded(failure)
        for place, detail in memory.undo_failed.items():
            if place.startswith(f"{failure.path}/"):
                error.add_note(f"{detail} (at {place})")
        raise error

    @property
    def told(self) -> bool:
        """Whether a caller has heard of the failure: running the flow again then goes on with a new attempt."""
        journal = self.ctx.run.journal
        return journal is not None and self.path in journal.history.told

    def _recorded(self, failure: Unwinding) -> BaseException:
        if failure.error == asyncio.CancelledError.__name__:
            if not (self.told or self.ctx.lane.halted):
                self.ctx.lane.halt_all()  # the run was being cancelled when it crashed
            return asyncio.CancelledError()
        return Unwound(
            failure.detail or failure.error,
            fatal=failure.fatal,
            flow=self.node.name,
            path=self.base,
            remedy="what it had done is undone; run it again for a new attempt",
        )

    def _now(self) -> int:
        return millis(self.ctx.run.clock.now())


def _halted(ctx: Context) -> Context:
    """For what is over: it only replays, and nobody hears it."""
    lane = Lane(ctx.lane)
    lane.halt()
    return evolve(ctx, lane=lane, shared=None)


async def guarded(
    node: Node,
    path: str,
    ctx: Context,
    steps: Callable[[Attempt], Awaitable[T]],
    cleanup: Callable[[Attempt, Context], Awaitable[list[str]]],
) -> T:
    """Run steps that can be undone; if their failure is for good, undo them and raise it.

    A failure that an earlier caller has heard of is settled first, and then the steps begin anew.
    """
    while True:
        attempt = Attempt.at(node, path, ctx)
        attempt.check()
        try:
            return await steps(attempt)
        except BaseException as error:
            if not attempt.ends(error):
                raise
            told = attempt.told
            raised = await attempt.unwind(error, partial(cleanup, attempt))
            if told and not ctx.lane.halted and Attempt.at(node, path, ctx).failure is None:
                continue
            if raised is error:
                raise
            raise raised from None


async def run_saga(node: Node, saga: Saga, state: State, path: str, ctx: Context, perform: Perform) -> State:
    """Steps in order; on a failure for good the finished ones are undone, the last first.

    The failing step's own undo is not run.
    """
    done: list[int] = []
    last = state
    pending = Pending(ctx.run, ctx.pending)

    async def steps(attempt: Attempt) -> State:
        nonlocal pending, last
        done.clear()
        last = state
        pending = Pending(ctx.run, ctx.pending)
        inner = evolve(attempt.steps, pending=pending)
        out = state.came_to(None)
        for index, step in enumerate(saga.steps):
            last = out = await in_order(node.bodies[f"step{index}"], out, attempt.path, inner, perform)
            if step.undo:
                done.append(index)
            if out.left is not None:
                break
        await pending.settle()
        return out

    async def cleanup(attempt: Attempt, inner: Context) -> list[str]:
        failed: list[str] = []
        for index in reversed(done):
            place = f"{attempt.path}/undo{index}"
            if ctx.scope is not None and place in ctx.scope.memory.settled:
                continue
            try:
                await _undo(node.bodies[f"undo{index}"], last, attempt.path, inner, perform)
            except Interruption:
                raise
            except Exception as error:
                failed.append(await _note(f"undo of step {index} failed", error, place, node, ctx))
        if not failed:
            await pending.free()
        return failed

    try:
        return await guarded(node, path, ctx, steps, cleanup)
    finally:
        pending.leave()


async def _undo(parts: Sequence[Node], state: State, path: str, ctx: Context, perform: Perform) -> None:
    """Run an undo, as often as the retries of the durable flow around it allow."""
    tried, retries = 0, ctx.scope.options.retries if ctx.scope is not None else 0
    while True:
        try:
            await in_order(parts, state, path, ctx, perform)
            return
        except Interruption:
            raise
        except Exception as error:
            if is_fatal(error) or tried >= retries:
                raise
            await ctx.run.sleep(pause(tried, ctx.run.clock.random(), error))
            tried += 1


async def _note(what: str, error: Exception, place: str, node: Node, ctx: Context) -> str:
    """Put a failed cleanup on record, and say it."""
    text = f"{what}: {type(error).__name__}: {said(error)}"
    ctx.run.emit("cleanup.failed", place, node.name, text)
    warning("a cleanup failed", run_id=ctx.run.run_id, path=place, error=text)
    if ctx.scope is not None:
        await ctx.scope.record(UndoFailed(ctx.scope.memory.number, place, millis(ctx.run.clock.now()), text))
    return f"{text} (at {place})"


async def run_scope(node: Node, scope: Scope, state: State, path: str, ctx: Context, perform: Perform) -> State:
    """Acquire, bind, body, and `finally` whatever became of the body."""
    opened: list[State] = []

    async def steps(attempt: Attempt) -> tuple[str, State]:
        opened.clear()
        inner, out = attempt.steps, state
        if scope.acquire is not None:
            place = f"{attempt.path}/acquire~{scope.acquire.kind}.0"
            value, out = await statement_value(scope.acquire, node.name, out, place, inner)
            out = out if scope.bind is None else out.bound(scope.bind, value)
        if scope.finally_ and not isinstance(scope.acquire, Call | AiSegment):
            await _open(attempt.path, inner)
        opened.append(out)
        out = out.came_to(None)
        for part in node.bodies["body"]:
            out = await perform(part, out, f"{attempt.path}/{part.segment}", inner)
            opened[0] = out  # what is bound before a failure is there for the cleanup
            if out.left is not None:
                break
        return attempt.path, out

    async def cleanup(attempt: Attempt, inner: Context) -> list[str]:
        if not opened:
            return []
        try:
            await in_order(node.bodies["finally"], opened[0], attempt.path, inner, perform)
        except Interruption:
            raise
        except Exception as error:
            return [await _note("finally failed", error, f"{attempt.path}/finally", node, ctx)]
        return []

    if not scope.finally_:
        return (await steps(Attempt(node, path, ctx, path, None)))[1]
    place, out = await guarded(node, path, ctx, steps, cleanup)
    inner = evolve(ctx, lane=Lane(ctx.lane, shelter=True))
    work = in_order(node.bodies["finally"], out.arrived(), place, inner, perform)
    after = await _to_its_end(work, ctx)
    return after.left_as(out)


async def _open(path: str, ctx: Context) -> None:
    """Put on record that a scope is open which acquires nothing that would tell; its cleanup is owed from then on."""
    if ctx.scope is not None and ctx.scope.decision(path) is None:
        ctx.lane.begin()
        await ctx.scope.decide(path, "open")


async def _to_its_end(work: Coroutine[Any, Any, T], ctx: Context) -> T:
    """A cleanup that a cancellation for good must not cut short; any other leaves the rest of it for the next run."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not ctx.for_good:
            task.cancel()
        await outlasted(task)
        if not task.cancelled():
            task.exception()  # seen: the cancellation is what counts
        raise


async def run_timeout(node: Node, limit: Timeout, state: State, path: str, ctx: Context, perform: Perform) -> State:
    """The body within a time, which begins anew when a crashed run is resumed.

    Raises:
        TimedOut: it took longer; it was cancelled, and what it had open was unwound.
    """
    attempt = Attempt.at(node, path, ctx)
    attempt.check()
    if attempt.failure is not None and attempt.told:
        await attempt.unwind(TimedOut("it took too long"), lambda _: replayed(node, state, attempt.path, ctx, perform))
        attempt = Attempt.at(node, path, ctx)
    lane = Lane(ctx.lane)
    inner = evolve(ctx, lane=lane)
    late = TimedOut(
        f"the body took longer than {limit.after}",
        flow=node.name,
        path=path,
        remedy="give it more time, or catch this with Try",
    )
    if attempt.failure is not None:
        raise await attempt.unwind(late, lambda _: replayed(node, state, attempt.path, ctx, perform))
    task = asyncio.ensure_future(body_of(node, "body", state, attempt.path, inner, perform))
    task.add_done_callback(_seen)
    clock = asyncio.ensure_future(ctx.run.sleep(limit.after.total_seconds()))
    try:
        await asyncio.wait({task, clock}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        with contextlib.suppress(asyncio.CancelledError):
            await stop({task})
        _ended(task)
        raise
    finally:
        clock.cancel()
    if task.done():
        return named(task.result(), limit.bind)

    async def give_up(_: Context) -> list[str]:
        lane.halt()
        task.cancel()
        while not task.done():
            await asyncio.wait({task}, timeout=LOSER_GRACE)
            if not task.done() and not lane.cleans_up:
                lane.close()  # it ignores its cancellation: what it still tries to keep is refused
                warning("the body of a Timeout ignores its cancellation and was left behind", path=path, flow=node.name)
                break
        _ended(task)
        return []

    try:
        raise await attempt.unwind(late, give_up)
    finally:
        if not task.done():  # the run was interrupted before it could be given up in good order
            lane.close()
            task.cancel()


def _seen(task: asyncio.Future[State]) -> None:
    """However a body that was given up ends, somebody has looked."""
    if not task.cancelled():
        task.exception()


def _ended(task: asyncio.Future[State]) -> None:
    """A body that was given up has ended somehow, which counts only if the run itself was interrupted in it."""
    error = task.exception() if task.done() and not task.cancelled() else None
    if isinstance(error, Interruption):
        raise error


async def replayed(node: Node, state: State, path: str, ctx: Context, perform: Perform) -> list[str]:
    """Go through a body that is over, as far as it had come, so that what it had open is unwound."""
    try:
        await body_of(node, "body", state, path, _halted(ctx), perform)
    except Interruption:
        raise
    except (Exception, asyncio.CancelledError):
        return []  # what it came to before it was given up has no say any more
    return []


def said(error: BaseException) -> str:
    """What an error says, without its place and advice."""
    return error.message if isinstance(error, BBError) else words_of(error)
