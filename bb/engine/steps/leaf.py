"""An agent flow: the one kind whose result is a savepoint of what agents said."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from attrs import evolve

from bb.agents.agent import Agent
from bb.agents.chat import ModelChat
from bb.agents.handle import handle
from bb.agents.turn import Turn
from bb.engine.frame.context import Context
from bb.engine.frame.ledger import HandlerLedger
from bb.engine.frame.run import Run
from bb.engine.frame.state import State, one_pick
from bb.engine.frame.tasks import is_cancelled, together
from bb.engine.plan import Node
from bb.errors import AgentFailed, BBError, Interruption, SelectConflict, UnknownSelect, WiringError, words_of
from bb.flows.tree import Flow
from bb.log import Delta
from bb.logs import warning
from bb.messages import NO_USAGE, SEPARATOR, Message, Usage, spoken
from bb.place import here, leave
from bb.redaction import has_secrets, redacted, settled

Taken: TypeAlias = tuple[Turn, HandlerLedger]
"""A turn that was taken, and what its handler spent and opened."""


async def run_agents(node: Node, flow: Flow, state: State, path: str, ctx: Context) -> State:
    """Replay the agents' savepoint, or run them and keep it.

    Raises:
        AgentFailed: an agent raised.
        SelectConflict, UnknownSelect: what they selected cannot be entered.
        Interruption: the store or the lease failed.
    """
    run, scope = ctx.run, ctx.scope
    if scope is not None:
        known = scope.recall(path)
        if known is not None:
            if may_enter(known.selected, node.ahead.picks):
                return _replay(known, node, state, path, ctx)
            await _discard(known, node, path, ctx)
    ctx.lane.begin()
    if ctx.seat is not None:
        await ctx.seat.pass_through()
    if run.tracer is not None:
        run.emit("flow.start", path, node.name)
    timed = scope is not None or run.tracer is not None
    began = run.clock.monotonic() if timed else 0.0
    ctx, agents = ctx.under(flow.model), flow.agents
    floor = LeafFloor(node, state, ctx, len(agents)) if run.delivery.has_listeners else NO_FLOOR
    chat = state.chat if ctx.shared is None else ctx.shared.view()
    try:
        if len(agents) == 1:
            taken = [await _speak(agents[0], 0, chat, floor, node, path, ctx)]
        else:
            speakers = [_speak(agent, i, chat, floor, node, path, ctx) for i, agent in enumerate(agents)]
            taken = await together(speakers, to_end=scope is not None)
        try:
            delta = _sum(taken, node, path)
        except (SelectConflict, UnknownSelect):
            for _, ledger in taken:  # what they picked is what their models said
                await ledger.forget_last_answer()
            raise
        floor.check(delta.messages)
        took = run.clock.monotonic() - began if timed else 0.0
        if scope is not None:
            ctx.lane.begin()
            delta = await scope.save(path, delta, took)
            if floor.streamed:
                run.delivery.settle()
    except (BBError, asyncio.CancelledError) as error:
        run.failed("flow.error", path, node.name, error)
        raise
    if run.tracer is not None:
        if delta.selected is not None:
            run.emit("select", path, node.name, delta.selected)
        run.emit("flow.end", path, node.name, dur=took, usage=delta.usage)
    return state.plus(delta)


async def _speak(
    agent: Agent[Any],
    index: int,
    chat: Sequence[Message],
    floor: LeafFloor | NoFloor,
    node: Node,
    path: str,
    ctx: Context,
) -> Taken:
    """Run the handler of one agent; whatever it raises ends as one of bb's errors."""
    run, scope, shared = ctx.run, ctx.scope, ctx.shared
    # keyword arguments would cost as much again as the objects, here where every step makes them
    ledger = HandlerLedger(ctx, path, index, node.name)
    turn = Turn(chat, ledger, floor, ledger, run.sent(), shared, run.run_id, path, node.name)
    model = agent.model if agent.model is not None else ctx.model
    talk = ModelChat(agent, model, ledger, run.input.request, shared, floor.free, node.name, path)
    token = here.set(ledger.place)
    try:
        await handle(agent, turn, talk)
        if floor.streamed:
            await floor.flush()
    except Interruption:
        raise
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and (is_cancelled() or ctx.lane.closed or ctx.lane.halted):
            raise  # any other came from a task of the handler's own, and is a failure like all others
        if scope is not None:
            scope.journal.check()
        await ledger.forget_last_answer()
        said, advice = words_of(error), ""
        if isinstance(error, BBError) and error.path in ("", path):
            said, advice = error.message, error.remedy  # the place is said once
        raise AgentFailed(
            f"agent {agent.name or index} failed: {type(error).__name__}: {said}",
            flow=node.name,
            path=path,
            remedy=advice,
        ) from error
    finally:
        leave(token)
        turn.close()
        ledger.close()
        if talk.close():
            await talk.aclose()
    if scope is not None:
        scope.journal.check()  # however much the handler swallowed
    return turn, ledger


def _replay(delta: Delta, node: Node, state: State, path: str, ctx: Context) -> State:
    run = ctx.run
    run.replayed.append(path)
    run.emit("flow.cached", path, node.name)
    for gate in delta.gates:
        run.gates.open(gate)
    ctx.tell(delta.messages)
    return state.plus(delta)


async def _discard(delta: Delta, node: Node, path: str, ctx: Context) -> None:
    """The `Select` after a saved step has changed: what it picked is void, and would fail on every retry."""
    assert ctx.scope is not None
    reason = f"{delta.selected!r} was selected, and is no member of the Select any more"
    ctx.run.emit("durable.discarded", path, node.name, reason)
    warning("a step is asked again", run_id=ctx.run.run_id, path=path, reason=reason)
    await ctx.scope.forget(path)


def _sum(taken: Sequence[Taken], node: Node, path: str) -> Delta:
    """What the agents said together, in declaration order."""
    if len(taken) == 1:
        turn, ledger = taken[0]
        if turn.selected is not None:
            check_pick(turn.selected, node.ahead.picks, node.name, path)
        return Delta(tuple(turn.replies), turn.selected, turn.value, ledger.usage, ledger.opened)
    messages: list[Message] = []
    value: object = None
    usage: Usage = NO_USAGE
    gates: list[str] = []
    for turn, ledger in taken:
        if replies := turn.replies:
            messages += replies
            value = turn.value
        usage = usage + ledger.usage
        gates += ledger.opened
    selected = one_pick([turn.selected for turn, _ in taken], path)
    if selected is not None:
        check_pick(selected, node.ahead.picks, node.name, path)
    return Delta(tuple(messages), selected, value, usage, tuple(gates))


def may_enter(selected: str | None, picks: frozenset[str] | None) -> bool:
    """Whether the next `Select`, if any, has a member for what was selected, if anything."""
    return selected is None or picks is None or selected in picks


def check_pick(selected: str, picks: frozenset[str] | None, flow: str, path: str) -> None:
    """Refuse a selection that the next `Select` cannot enter, before it is saved: it would fail every retry."""
    if picks is not None and not may_enter(selected, picks):
        raise UnknownSelect(
            f"{selected!r} was selected, but the next Select has no such member",
            flow=flow,
            path=path,
            remedy=f"select one of {', '.join(sorted(picks)) or 'none: every member lacks an id'}",
        )


class LeafFloor:
    """Whether the one agent of a flow may stream, and where its text goes.

    Only what surely belongs to the answer may go out early: before a `Respond`, or at the very end of a run that has
    delivered nothing.
    """

    def __init__(self, node: Node, state: State, ctx: Context, agents: int) -> None:
        run, ahead = ctx.run, node.ahead
        self._run = run
        self._state = state
        self._final = not ahead.responds
        self._durable = ctx.scope is not None
        allowed = ahead.responds or (ahead.ends and state.sent is None)
        self.free = (
            allowed
            and agents == 1
            and ctx.shared is None
            and not ctx.aside
            and not run.stage_claimed
            and run.delivery.has_listeners
        )
        self._sink: LiveSink | None = None

    @property
    def streamed(self) -> bool:
        """Whether text went out live."""
        return self._sink is not None and self._sink.used

    async def claim(self, said: Sequence[Message]) -> LiveSink | None:
        """The live output for the first who asks in this stage."""
        if not self.free or self._sink is not None or self._run.stage_claimed:
            return None
        self._run.stage_claimed = True
        before = ""
        if not self._final:
            own = [evolve(message, content=self._kept(message.content)) for message in said]
            if pending := spoken((*self._state.chat[self._state.seed :], *own)):
                before = pending + SEPARATOR
        self._sink = LiveSink(self._run, before, self._durable)
        return self._sink

    async def flush(self) -> None:
        """The handler has returned: let go of text held back for redaction."""
        if self._sink is not None:
            await self._sink.flush()

    def check(self, said: Sequence[Message]) -> None:
        """Refuse an answer that differs from what was streamed as the answer."""
        if self._sink is None or not self._final or not self._sink.used:
            return
        # text that was sent cannot be taken back
        if not said or self._kept(said[-1].content) != self._sink.written:
            raise WiringError(
                "the agent replied again after it had streamed the answer, so stream and answer would differ",
                flow=self._run.plan.name,
                remedy="stream last, or put a Respond() after this flow",
            )

    def _kept(self, text: str) -> str:
        """A text as the answer will have it: a durable flow answers with what it saved, which is without secrets."""
        return redacted(text) if self._durable else text


class NoFloor:
    """The floor when nobody streams the run: nothing goes out early."""

    free = False
    streamed = False

    async def claim(self, said: Sequence[Message]) -> LiveSink | None:
        """Nothing to claim."""
        return None

    async def flush(self) -> None:
        """Nothing is held back."""

    def check(self, said: Sequence[Message]) -> None:
        """Nothing was streamed that the answer could differ from."""


NO_FLOOR: Final = NoFloor()


class LiveSink:
    """Live text on its way to the listeners of a run."""

    def __init__(self, run: Run, before: str, durable: bool) -> None:
        self._written: list[str] = []
        self._run = run
        self._before = before
        self.used = False
        self._held = ""
        self._redact = durable and has_secrets()

    @property
    def written(self) -> str:
        """What was sent on so far."""
        return "".join(self._written)

    async def write(self, text: str) -> None:
        """Send text on; returns when the slowest listener has room."""
        self.used = self.used or bool(text)
        if self._redact:
            # saved text is redacted as a whole; a secret may come in pieces, so its possible beginning waits
            self._held += text
            cut = settled(self._held)
            text, self._held = redacted(self._held[:cut]), self._held[cut:]
        await self._send(text)

    async def flush(self) -> None:
        """Send what was held back."""
        held, self._held = redacted(self._held), ""
        await self._send(held)

    async def _send(self, text: str) -> None:
        if not text:
            return
        if not self._written and self._before:
            self._run.delivery.complete(self._before)
        self._written.append(text)
        self._run.delivery.write(text)
        await self._run.delivery.room()
