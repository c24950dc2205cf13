"""What tests of triggers need: a clock that stands still, agents that note what they are given, and apps over one store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from attrs import define, field, frozen

import bb
from bb.testing.clock import START, ManualClock


@frozen
class Heard:
    """What an agent was given."""

    agent: str
    chat: tuple[str, ...]
    payload: object
    metadata: object
    request: bb.Request
    params: dict[str, object]
    run_id: str


@define
class Timetable:
    """Apps over one store and one clock."""

    store: bb.Store = field(factory=bb.MemStore)
    clock: ManualClock = field(factory=ManualClock)
    recorder: bb.Recorder = field(factory=bb.Recorder)
    heard: list[Heard] = field(factory=list)
    fails: dict[str, int] = field(factory=dict)
    holds: dict[str, asyncio.Event] = field(factory=dict)
    apps: list[bb.App] = field(factory=list)

    def agent(self, name: str) -> bb.Flow:
        """A step that notes what it is given, and says its name."""

        async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
            said = tuple(message.content for message in turn.messages)
            payload: Any = turn.payload(bytes)
            kept = Heard(
                name,
                said,
                payload if payload is not None else turn.payload(dict),
                turn.metadata(dict),
                turn.request,
                dict(turn.params),
                turn.run_id,
            )
            self.heard.append(kept)
            if name in self.holds:
                await self.holds[name].wait()
            if self.fails.get(name, 0):
                self.fails[name] -= 1
                raise ValueError(f"{name} fails")
            turn.reply(name)

        return bb.Flow().with_agent(bb.Agent(name).on_message(handler))

    def app(self, *flows: Any, start: tuple[Any, ...] = (), **options: Any) -> bb.App:
        """An app over the store, not started yet."""
        app = bb.App(store=self.store, clock=self.clock, trace=self.recorder, **options)
        app.register(*flows)
        app.on_start(*start)
        self.apps.append(app)
        return app

    def count(self, agent: str) -> int:
        """How often an agent was asked."""
        return sum(one.agent == agent for one in self.heard)

    def last(self, agent: str) -> Heard:
        """What an agent was given the last time."""
        return [one for one in self.heard if one.agent == agent][-1]

    def soon(self, **after: float) -> datetime:
        """A time after now."""
        return self.clock.now() + timedelta(**after)

    async def pass_(self, **time: float) -> None:
        """Let time pass, and everybody do what is to be done then."""
        await rest()
        self.clock.advance(timedelta(**time))
        await rest()

    async def stop(self) -> None:
        """Stop what was started."""
        for app in self.apps:
            await app.stop(timedelta(0))


async def rest(turns: int = 60) -> None:
    """Let everybody do what is to be done by now."""
    for _ in range(turns):
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    for _ in range(turns):
        await asyncio.sleep(0)


async def until(true: Callable[[], bool], seconds: float = 10) -> None:
    """Wait until something is so."""
    for _ in range(int(seconds / 0.01)):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to be so")


def later(*steps: bb.AnyFlow, id: str) -> bb.NamedFlow:
    """These steps as a named flow."""
    return bb.Chain(steps).with_id(id)


__all__ = ["START", "UTC", "Heard", "Timetable", "later", "rest", "until"]
