"""An agent flow: the one kind whose result is a savepoint of what agents said."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from attrs import evolve

from bb.agents.agent import Agent
from bb.agents.chat import ModelChat
from bb.agents.handle import handle
from bb.agents.turn import Turn
from bb.engine.context import Context
from bb.engine.ledger import HandlerLedger
from bb.engine.plan import Node
from bb.engine.run import Run, State, one_pick
from bb.engine.tasks import is_cancelled, together
from bb.errors import AgentFailed, BBError, Interruption, SelectConflict, UnknownSelect, WiringError
from bb.flows.tree import Flow
from bb.log import Delta
from bb.logs import warning
from bb.messages import NO_USAGE, SEPARATOR, Message, Usage, spoken
from bb.models.base import Model
from bb.place import here, leave
from bb.redaction import has_secrets, redacted, settled


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
    if ctx.seat is not None:
        await ctx.seat.pass_through()
    if run.tracer is not None:
        run.emit("flow.start", path, node.name)
    began = run.clock.monotonic()
    ctx = ctx.under(flow.model)
    floor = LeafFloor(node, state, ctx, len(flow.agents)) if run.delivery.has_listeners else NO_FLOOR
    speakers = [Speaker(agent, i, floor, node, state, path, ctx) for i, agent in enumerate(flow.agents)]
    try:
        if len(speakers) == 1:
            await speakers[0].speak()
        else:
            await together([speaker.speak() for speaker in speakers], to_end=scope is not None)
        try:
            delta = _sum(speakers, node, path)
        except (SelectConflict, UnknownSelect):
            for speaker in speakers:  # what they picked is what their models said
                await speaker.ledger.forget_last_answer()
            raise
        floor.check(delta.messages)
        took = run.clock.monotonic() - began
        if scope is not None:
            ctx.lane.check()
            delta = await scope.save(path, delta, took)
            if floor.streamed:
                run.delivery.settle()
    except (BBError, asyncio.CancelledError) as error:
        run.emit("flow.error", path, node.name, type(error).__name__)
        raise
    if run.tracer is not None:
        if delta.selected is not None:
            run.emit("select", path, node.name, delta.selected)
        run.emit("flow.end", path, node.name, dur=took, usage=delta.usage)
    return state.plus(delta)


def _replay(delta: Delta, node: Node, state: State, path: str, ctx: Context) -> State:
    run = ctx.run
    run.replayed.append(path)
    run.emit("flow.cached", path, node.name)
    for gate in delta.gates:
        run.gates.open(gate)
    if ctx.shared is not None:
        for message in delta.messages:
            ctx.shared.append(message)
    return state.plus(delta)


async def _discard(delta: Delta, node: Node, path: str, ctx: Context) -> None:
    """The `Select` after a saved step has changed: what it picked is void, and would fail on every retry."""
    assert ctx.scope is not None
    reason = f"{delta.selected!r} was selected, and is no member of the Select any more"
    ctx.run.emit("durable.discarded", path, node.name, reason)
    warning("a step is asked again", run_id=ctx.run.run_id, path=path, reason=reason)
    await ctx.scope.forget(path)


def _sum(speakers: Sequence[Speaker], node: Node, path: str) -> Delta:
    """What the agents said together, in declaration order."""
    if len(speakers) == 1:
        turn, ledger = speakers[0].turn, speakers[0].ledger
        if turn.selected is not None:
            check_pick(turn.selected, node.ahead.picks, node.name, path)
        return Delta(tuple(turn.replies), turn.selected, turn.value, ledger.usage, ledger.opened)
    messages: list[Message] = []
    value: object = None
    usage: Usage = NO_USAGE
    gates: list[str] = []
    for speaker in speakers:
        if replies := speaker.turn.replies:
            messages += replies
            value = speaker.turn.value
        usage = usage + speaker.ledger.usage
        gates += speaker.ledger.opened
    selected = one_pick([speaker.turn.selected for speaker in speakers], path)
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


class Speaker:
    """One agent at its turn."""

    def __init__(
        self,
        agent: Agent[Any],
        index: int,
        floor: LeafFloor | NoFloor,
        node: Node,
        state: State,
        path: str,
        ctx: Context,
    ) -> None:
        run = ctx.run
        self.agent = agent
        self.ledger = HandlerLedger(ctx, path, index)
        self._index = index
        self._node = node
        self._path = path
        self._ctx = ctx
        self._floor = floor
        shared = ctx.shared
        payload, metadata, params = run.given()
        self.turn = Turn(
            messages=state.chat if shared is None else shared.view(),
            ledger=self.ledger,
            floor=floor,
            gates=self.ledger,
            request=run.input.request,
            payload=payload,
            metadata=metadata,
            params=params,
            shared=shared,
            run_id=run.run_id,
            path=path,
            flow=node.name,
        )

    async def speak(self) -> None:
        """Run the handler; whatever it raises ends as one of bb's errors."""
        run = self._ctx.run
        chat: ModelChat[Any] = ModelChat(
            agent=self.agent,
            model=self._model(),
            ledger=self.ledger,
            request=run.input.request,
            shared=self._ctx.shared,
            live=self._floor.free,
            flow=self._node.name,
            path=self._path,
        )
        token = here.set(self.ledger.place)
        try:
            await handle(self.agent, self.turn, chat)
            if self._floor.streamed:
                await self._floor.flush()
        except Interruption:
            raise
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and (is_cancelled() or self._ctx.lane.closed):
                raise  # any other came from a task of the handler's own, and is a failure like all others
            if self._ctx.scope is not None:
                self._ctx.scope.journal.check()
            await self.ledger.forget_last_answer()
            said, advice = str(error), ""
            if isinstance(error, BBError) and error.path in ("", self._path):
                said, advice = error.message, error.remedy  # the place is said once
            raise AgentFailed(
                f"agent {self.agent.name or self._index} failed: {type(error).__name__}: {said}",
                flow=self._node.name,
                path=self._path,
                remedy=advice,
            ) from error
        finally:
            leave(token)
            self.turn.close()
            self.ledger.close()
            if chat.close():
                await chat.aclose()
        if self._ctx.scope is not None:
            self._ctx.scope.journal.check()  # however much the handler swallowed

    def _model(self) -> Model | None:
        """The nearest model: the agent's, its flow's, that of the flows around it, the app's."""
        if self.agent.model is not None:
            return self.agent.model
        return self._ctx.model if self._ctx.model is not None else self._ctx.run.model


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
        self.written = ""
        self._run = run
        self._before = before
        self.used = False
        self._held = ""
        self._redact = durable and has_secrets()

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
        if not self.written and self._before:
            self._run.delivery.complete(self._before)
        self.written += text
        self._run.delivery.write(text)
        await self._run.delivery.room()
