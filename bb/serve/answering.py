"""Runs on behalf of a client: whole, or streamed once they were let in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from attrs import frozen

from bb.engine.outcome import Outcome, SessionTurn
from bb.engine.plan import Plan
from bb.engine.runs.live import seen
from bb.engine.runs.stream import RunStream
from bb.errors import InvalidId
from bb.ids import check_id
from bb.messages import unresolved
from bb.serve.exchange import Exchange
from bb.serve.problems import Problem
from bb.serve.wire import Asked, Frame, Said, Voice

if TYPE_CHECKING:
    from bb.app import App
    from bb.engine.runs.session import Session


@frozen
class Order:
    """What a client wants to have run."""

    plan: Plan
    asked: Asked
    exchange: Exchange
    run_id: str
    session_id: str | None
    detach: bool
    wait: timedelta
    tenant: str | None

    async def conversation(self, app: App) -> Session | None:
        """The conversation that it is a turn of; None: it is a run, to which nobody has replied yet."""
        if not self.plan.waits:
            return None
        name = self.session_id if self.session_id is not None else self.run_id
        session = app.session(self.plan.name, name, detach=self.detached, tenant=self.tenant)
        alone = self.session_id is None and not await session.was_answered(self.exchange.run_id)
        return None if alone else session

    @property
    def detached(self) -> bool:
        """Whether the run goes on without the client; what is not durable could never be asked for again."""
        return self.detach and self.plan.durable

    def said(self, outcome: Outcome, text: str) -> Said:
        """An outcome as the client gets it."""
        return Said(text, unresolved((*self.asked.input.messages, *outcome.messages)), outcome.usage)


class Going(Protocol):
    """A run or a turn that was let in."""

    def text(self) -> AsyncIterator[str]:
        """The answer as it is made."""
        ...

    async def said(self) -> Said:
        """The answer when it is complete."""
        ...


async def whole(app: App, order: Order) -> Said:
    """The answer in one piece.

    Raises: as `App.run` does.
    """
    if order.plan.waits:
        async with begun(app, order) as going:
            return await going.said()
    outcome = await app.run(
        order.plan.name,
        order.asked.input,
        run_id=order.run_id,
        session_id=order.session_id,
        detach=order.detached,
        wait=order.wait,
        tenant=order.tenant,
    )
    return order.said(outcome, outcome.answer)


@asynccontextmanager
async def begun(app: App, order: Order) -> AsyncIterator[Going]:
    """The answer while it is made, once the run was let in.

    Raises: as `App.run` does for what it refuses.
    """
    session = await order.conversation(app)
    if session is not None:
        turn_id = order.exchange.run_id if order.exchange.named else None
        accepted = await session.accept(order.asked.input, turn_id=turn_id)
        if turn_id is None:
            with suppress(InvalidId):  # one that a program made up may be any text
                order.exchange.run_id = check_id(accepted.turn_id, "run id")
        task = asyncio.ensure_future(accepted.run())
        task.add_done_callback(seen)
        try:
            yield _Turn(order, task)
        finally:
            task.cancel()
            await asyncio.wait([task])
        return
    stream = app.stream(
        order.plan.name,
        order.asked.input,
        run_id=order.run_id,
        session_id=order.session_id,
        detach=order.detached,
        wait=order.wait,
        tenant=order.tenant,
    )
    async with stream:
        await stream.begun()
        yield _Run(order, stream)


async def frames(
    going: Going,
    voice: Voice,
    explain: Callable[[Exception], Problem],
    wait: Callable[[], AbstractAsyncContextManager[None]],
) -> AsyncIterator[Sequence[Frame]]:
    """An answer as a voice says it, what belongs together at once; what goes wrong is said as well.

    For what is yet to come it waits in a `wait`.
    """
    yield voice.begin()
    try:
        texts = going.text()
        while True:
            async with wait():
                text = await anext(texts, None)
            if text is None:
                break
            yield voice.say(text)
        async with wait():
            said = await going.said()
    except Exception as error:
        last = voice.fail(explain(error))
    else:
        last = voice.end(said)
    yield last


@frozen
class _Run:
    order: Order
    stream: RunStream

    def text(self) -> AsyncIterator[str]:
        return aiter(self.stream)

    async def said(self) -> Said:
        outcome = await self.stream.outcome()
        return self.order.said(outcome, outcome.answer)


@frozen
class _Turn:
    order: Order
    task: asyncio.Future[SessionTurn]

    async def text(self) -> AsyncIterator[str]:
        turn = await asyncio.shield(self.task)
        if turn.prompt:
            yield turn.prompt

    async def said(self) -> Said:
        turn = await asyncio.shield(self.task)
        return self.order.said(turn.outcome, turn.prompt)
