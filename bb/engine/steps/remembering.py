"""Nodes that remember for the session: memo, once, checkpoint, await, and the rates of throttle and debounce."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Final, cast

from attrs import Factory, define, evolve

from bb.engine.frame.claims import give_up
from bb.engine.frame.context import Context
from bb.engine.frame.state import Park, State
from bb.engine.memory.journal import to_its_end
from bb.engine.plan import Node
from bb.engine.steps.calls import carried_out, made_ready, work_out
from bb.engine.steps.control import named
from bb.engine.steps.sequence import Perform, body_of, in_order
from bb.engine.steps.unwinding import replayed
from bb.engine.values.evaluation import coerce, is_true, text_of
from bb.errors import OnceBusy, Throttled, WiringError
from bb.flows.tree import AiSegment, Await, Checkpoint, Debounce, Memo, Once, Throttle
from bb.log import Delta, Parked, Seen, millis
from bb.log.session import Block, Done, Found, Point, dump_symbols, load_symbols
from bb.messages import Message
from bb.redaction import redacted

if TYPE_CHECKING:
    from bb.engine.memory.session_memory import SessionMemory

_ONCE_WAIT: Final = 3600.0  # seconds; the holder's claim lapses with its lease long before


async def run_memo(node: Node, memo: Memo, state: State, path: str, ctx: Context) -> State:
    """Compute a call once per session."""
    run, scope = ctx.run, ctx.scope
    ready, state = await made_ready(memo.call, node.name, state, path, ctx)
    key = ready.key(run.codec)
    session = run.session(scope is not None)
    if scope is not None:
        hit = scope.recall(f"{path}/memo")
        if hit is not None and hit.given == key:
            run.replayed.append(path)
            run.emit("flow.cached", path, node.name)
            return _hit(memo, hit.value, state)
    found = await session.recall_memo(key)
    if found is not None:
        return await _found(found, key, node, memo, state, path, ctx)
    async with session.computing(key):
        found = await session.recall_memo(key)  # who was at it just now has kept it
        if found is not None:
            return await _found(found, key, node, memo, state, path, ctx)

        async def keep(delta: Delta) -> Delta:
            view = delta.messages[-1].content if delta.messages else None
            kept = await session.keep_memo(key, (delta.value, view), path)
            return delta._replace(value=cast("tuple[object, object]", kept)[0])

        value, state = await carried_out(ready, node.name, state, path, ctx, keep)
        return state.bound(memo.name, value).came_to(value)


async def _found(found: Found, key: str, node: Node, memo: Memo, state: State, path: str, ctx: Context) -> State:
    """The state after a memo that the session has."""
    run, scope = ctx.run, ctx.scope
    value, view = cast("tuple[object, str | None]", found.value)
    if run.session(scope is not None).wrote(found, path):
        said = () if view is None else (Message(view, "assistant"),)
        ctx.tell(said)
        state = state.spoken(said)
    else:
        run.emit("memo.hit", path, node.name)
        if scope is not None:
            ctx.lane.begin()
            await scope.save(
                f"{path}/memo", Delta((), None, value, None, (), key), 0
            )  # a replay reads what was read here
    return _hit(memo, value, state)


def _hit(memo: Memo, value: object, state: State) -> State:
    """The state after a call that the session knows."""
    if isinstance(memo.call, AiSegment):
        from bb.engine.steps.segment import filled  # loaded where model stages are used

        state = filled(memo.call, value, state)
    return state.bound(memo.name, value).came_to(value)


async def run_once(node: Node, once: Once, state: State, path: str, ctx: Context, perform: Perform) -> State:
    """Run the body to success once per session.

    Raises:
        OnceBusy: another run is in the body, and this one holds a claim itself.
        WiringError: two sagas of this run wait for what the other has finished.
    """
    run, scope = ctx.run, ctx.scope
    if scope is None:
        return named(await body_of(node, "body", state, path, ctx, perform), once.bind)
    key = run.codec.fingerprint([once.label, node.signature, list(ctx.items)])
    block = scope.recall_block(path)
    if block is not None:
        run.replayed.append(path)
        run.emit("flow.cached", path, node.name)
        if scope.journal.history.owes_below(path):  # an undo failed in it, and something caught that
            await replayed(node, state, path, ctx, perform)
        if ctx.pending is not None:
            ctx.pending.add(key, path, block)
        ctx.tell(block.messages)
        return named(state.with_block(block), once.bind)
    start = state.came_to(None)
    if ctx.lane.halted:  # it is over: the body only replays, so that what is open in it is unwound
        out = await in_order(node.bodies["body"], start, path, ctx, perform)
        return named(state.with_block(out.since(start)), once.bind)
    while True:
        block = await _from_saga(key, once, path, ctx)
        if block is not None:
            return await _skip_once(Done(block, run.run_id, ""), node, once, state, path, ctx, perform)
        async with run.once_lock(key):
            if key in run.held:  # a saga has come past it while this place waited for its turn
                continue
            done = await _claimed(key, once, path, ctx)
            if done is not None:
                return await _skip_once(done, node, once, state, path, ctx, perform)
            run.claims.add(key)
            try:
                out = await in_order(node.bodies["body"], start, path, ctx, perform)
                ctx.lane.begin()
                block = out.since(start)
                await to_its_end(_finished(key, path, block, ctx))
            except BaseException as error:
                await give_up(error, [(key, path)], ctx)
                run.claims.discard(key)
                raise
            return named(state.with_block(block), once.bind)


async def _skip_once(
    done: Done, node: Node, once: Once, state: State, path: str, ctx: Context, perform: Perform
) -> State:
    """The state after a once that is done."""
    run, scope = ctx.run, ctx.scope
    assert scope is not None
    if not run.session(True).wrote(done, path):
        run.emit("once.skipped", path, node.name, once.label)
        if scope.journal.history.remembers_below(path):  # another finished what this run had begun
            await replayed(node, state, path, ctx, perform)
    ctx.lane.begin()
    await scope.save_block(path, done.block)
    ctx.tell(done.block.messages)
    return named(state.with_block(done.block), once.bind)


async def _finished(key: str, path: str, block: Block, ctx: Context) -> None:
    assert ctx.scope is not None
    if ctx.pending is None:
        await ctx.run.session(True).finish(key, path, block)
        ctx.run.claims.discard(key)
    await ctx.scope.save_block(path, block)
    if ctx.pending is not None:
        ctx.pending.add(key, path, block)


async def _from_saga(key: str, once: Once, path: str, ctx: Context) -> Block | None:
    """What a once came to that a saga around this place has finished; None when no saga of this run is in between any more.

    One beside this place may yet undo it: that is waited for, if it does not wait for this place itself.
    """
    run, around = ctx.run, ctx.pending.around() if ctx.pending is not None else []
    while (saga := run.held.get(key)) is not None:
        if saga in around:
            return saga.find(key)
        if saga.needs(around):
            raise WiringError(
                f"two sagas of run {run.run_id} wait for each other: at {path} for once {once.label!r}, which is done at "
                f"{saga.place(key)}, in a saga that waits for one around this place",
                path=path,
                remedy="let both come to their onces in the same order, or put the onces before the sagas",
            )
        if run.claims - run.held.keys():  # the body of another may be around here, and that saga may come to it
            raise _busy(run.run_id, saga.place(key), once, path)
        run.emit("once.waiting", path, "", run.run_id)
        for inner in around:
            inner.waits.append(saga)
        try:
            await saga.over.wait()
        finally:
            for inner in around:
                inner.waits.remove(saga)
    return None


async def _claimed(key: str, once: Once, path: str, ctx: Context) -> Done | None:
    """The completion of a once; None when it is ours to run."""
    run = ctx.run
    session = run.session(ctx.scope is not None)
    known = await session.once(key)
    while not isinstance(known, Done):
        if known is None:
            ctx.lane.begin()
            known = await session.claim(key, once.label, path)
            if known is None:
                return None
            continue
        # a claim of this run is of a saga that has failed, and goes on when the run is tried again
        if known.run == run.run_id or run.claims - {key}:
            raise _busy(known.run, known.path, once, path)
        run.emit("once.waiting", path, "", known.run)
        known = await session.wait_for(key, _ONCE_WAIT)
    return known


def _busy(run: str, place: str, once: Once, path: str) -> OnceBusy:
    return OnceBusy(
        f"run {run} is in once {once.label!r} at {place}",
        path=path,
        remedy="run it again when that one has ended; waiting here could wait for ever",
    )


async def run_checkpoint(node: Node, checkpoint: Checkpoint, state: State, path: str, ctx: Context) -> State:
    """Record that the run has come this far, for later runs of its session."""
    run, scope = ctx.run, ctx.scope
    if scope is None or scope.recall(path) is not None:
        return state
    ctx.lane.begin()
    if run.has_session:
        point = Point(
            signature=scope.memory.signature,
            fingerprint=run.fingerprint,
            position=node.index,
            label=checkpoint.label,
            run=run.run_id,
            path=path,
            block=state.since(run.start if run.start is not None else state),
        )
        await run.session(scope is not None).point(scope.flow, point)
    await scope.save(path, Delta(), 0)
    run.emit("checkpoint", path, node.name, checkpoint.label)
    return state


async def skipped(state: State, path: str, ctx: Context) -> tuple[int, State]:
    """Where the body of a registered flow starts: past the furthest checkpoint that a run of its session has passed.

    Only a run that has nothing of its own yet looks for one, and what it finds there is its own from then on.
    """
    run, scope = ctx.run, ctx.scope
    if scope is None or not run.has_session:
        return 0, state
    place = f"{path}/skip"
    block = scope.recall_block(place)
    if block is not None:
        position = scope.decision(place)
        return int(position or 0) + 1, state.with_block(block)
    if run.fresh or scope.memory.remembered():
        return 0, state
    point = await run.session(scope is not None).furthest(scope.flow, scope.memory.signature, run.fingerprint)
    if point is None:
        return 0, state
    ctx.lane.begin()
    await scope.save_block(place, point.block, str(point.position))
    run.emit("checkpoint.skipped", point.path, scope.flow, point.label)
    return point.position + 1, state.with_block(point.block)


async def run_await(node: Node, wait: Await, state: State, path: str, ctx: Context) -> State:
    """Take the event that was delivered for this place, or park."""
    run, scope = ctx.run, ctx.scope
    assert scope is not None  # an await outside a durable flow is refused before anything runs
    if path == run.until:
        leg = next(leg for leg in reversed(scope.journal.history.legs) if leg.path == path)
        return state.parked(Park(path, leg.source, leg.prompt))
    known = scope.recall(path)
    if known is not None:
        run.replayed.append(path)
        run.emit("flow.cached", path, node.name)
        return _heard(known, wait, _seen(path, state, ctx))
    if wait.when is not None:
        wanted, state = await work_out(wait.when, "when", node.name, state, path, ctx)
        if not is_true(wanted):
            return state
    ctx.lane.begin()
    session = run.session(scope is not None)
    event = await session.wait(wait.source, path)
    if event is None:
        parked = scope.journal.history.parked
        if parked is None or parked.path != path:
            prompt = redacted(state.prompt) or f"Waiting for {wait.source}."
            await run.keep_symbols(path)
            await session.park(scope.flow, path, wait.source)
            await scope.record(Parked(path, millis(run.clock.now()), wait.source, prompt, scope.flow, run.session_id))
        event = await session.wait(wait.source, path)  # what came between the first look and the record
    if event is None:
        run.emit("run.parked", path, node.name, wait.source)
        assert scope.journal.history.parked is not None
        return state.parked(Park(path, wait.source, scope.journal.history.parked.prompt))
    value = coerce(event.payload, wait.type)
    said = (Message(text_of(event.payload), "user"),) if event.said else ()
    parked = scope.journal.history.parked
    looked: tuple[Seen, ...] = ()
    if run.has_session and parked is not None and parked.path == path:
        symbols = dump_symbols(await session.symbols(others=True), run.codec)
        looked = (Seen(millis(run.clock.now()), symbols, path),)
    delta = await scope.save(path, Delta(said, None, value, given=event.turn or ""), 0, *looked)
    run.emit("await.resumed", path, node.name, wait.source)
    return _heard(delta, wait, _seen(path, state, ctx))


def _seen(path: str, state: State, ctx: Context) -> State:
    """The state with what other runs of the session had bound last when the run resumed here."""
    run = ctx.run
    assert run.journal is not None
    plain = run.journal.history.seen.get(path)
    if plain is None:
        return state
    symbols = {name: value for name, value in load_symbols(plain, run.codec).items() if name not in run.params}
    run.symbols = {**run.symbols, **symbols}
    return state.framed({**state.symbols, **symbols})


def _heard(delta: Delta, wait: Await, state: State) -> State:
    state = state.heard(delta.messages).came_to(delta.value)
    return state if wait.bind is None else state.bound(wait.bind, delta.value)


@define(eq=False, repr=False)
class Gate:
    """A throttle while its body runs: it looks once per statement, before the first call of it that is dispatched."""

    throttle: Throttle
    flow: str
    path: str
    ctx: Context
    taken: bool = False
    """Whether the first call of the statement has its room, and is counted."""
    dispatched: int = 0
    _lock: asyncio.Lock = Factory(asyncio.Lock)

    async def look(self, path: str) -> None:
        """Raises:
        Throttled: there is no room.
        """
        if not self.taken:
            since = self._since()
            count, oldest = await self._session().stamps(self.throttle.name, since)
            if count >= self.throttle.max:
                raise self._refusal(count, oldest, since, path)

    async def admit(self, path: str) -> None:
        """Take the room for a call. It counts from here on: a rival must see it, and so must a run after a crash.

        Raises:
            Throttled: there is none.
        """
        async with self._lock:  # the members of an `All` may come here at once, and are one statement
            if self.taken:
                return
            since = self._since()
            full = await self._session().take_room(self.throttle.name, self.throttle.max, since, self.path)
            if full is not None:
                raise self._refusal(*full, since, path)
            self.taken = True

    def count(self) -> None:
        """One more call was dispatched."""
        self.dispatched += 1

    async def settle(self) -> None:
        """A statement is over: what it dispatched beside its first call counts too."""
        count = self.dispatched - self.taken
        self.dispatched, self.taken = 0, False
        if count > 0:
            await self._session().stamp(self.throttle.name, count, self.path)

    def _session(self) -> SessionMemory:
        return self.ctx.run.session(self.ctx.scope is not None)

    def _since(self) -> datetime:
        return self.ctx.run.clock.now() - self.throttle.per

    def _refusal(self, count: int, oldest: datetime | None, since: datetime, path: str) -> Throttled:
        return Throttled(
            f"throttle {self.throttle.name!r} has made {count} of {self.throttle.max} calls in {self.throttle.per}",
            after=(oldest if oldest is not None else since) - since,
            flow=self.flow,
            path=path,
            remedy="run it again later",
        )


async def run_throttle(
    node: Node, throttle: Throttle, state: State, path: str, ctx: Context, perform: Perform
) -> State:
    """The body, unless too many calls were dispatched under this name lately.

    Raises:
        Throttled: before a statement that would dispatch one more.
    """
    gate = Gate(throttle, node.name, path, ctx)
    inner = evolve(ctx, throttles=(*ctx.throttles, gate))
    for part in node.bodies["body"]:
        try:
            state = await perform(part, state, f"{path}/{part.segment}", inner)
        finally:
            await gate.settle()
        if state.left is not None:
            break
    return state


async def run_debounce(
    node: Node, debounce: Debounce, state: State, path: str, ctx: Context, perform: Perform
) -> State:
    """The body after a pause, unless a later one of this name came in the meantime."""
    run, scope = ctx.run, ctx.scope
    choice = scope.decision(path) if scope is not None else None
    if choice is None:
        ctx.lane.begin()
        session = run.session(scope is not None)
        token = await session.token(debounce.name, path)
        await run.sleep(debounce.wait.total_seconds())
        choice = "run" if await session.is_last(debounce.name, token) else "drop"
        if scope is not None:
            ctx.lane.begin()
            await scope.decide(path, choice)
    if choice == "drop":
        run.emit("debounce.dropped", path, node.name, debounce.name)
        return state
    return await in_order(node.bodies["body"], state, path, ctx, perform)
