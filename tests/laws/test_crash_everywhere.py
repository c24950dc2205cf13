"""Crash anywhere and resume: the same outcome, on every shape of flow; and the explorer sees an engine that breaks it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from attrs import frozen

import bb
from bb.engine import plan
from bb.engine.frame.scope import ActiveScope
from bb.engine.memory.journal import LogJournal
from bb.engine.runs.leases import Leases
from bb.engine.steps import leaf, walk
from bb.flows.tree import segment
from bb.log import Delta
from bb.stores.base import Lease
from bb.testing import CrashReport, Effects, MockStore, NotCrashSafe, ScriptedModel, crash_everywhere, race_everywhere

Build = Callable[[Effects], bb.AnyFlow]
Handler = Callable[[bb.Turn, bb.ModelChat[Any]], Awaitable[None]]


def says(
    effects: Effects, name: str, *, turns: int = 0, picks: str = "", streams: bool = False, deaf: bool = False
) -> bb.Agent:
    """An agent that does one thing outside, takes so many turns of the loop, and says what it saw.

    A deaf one sees only how it all began: what members of a Group hear of each other is a matter of timing.
    """

    async def handler(turn: bb.Turn, _chat: bb.ModelChat) -> None:
        effects.ran(name)
        for _ in range(turns):
            await asyncio.sleep(0)
        text = f"{name} after {turn.messages[0].content if deaf else turn.last.content}"
        if picks:
            turn.select(picks)
        if streams:
            async with turn.stream() as out:
                for word in text.split(" "):
                    await out.write(word + " ")
        else:
            turn.reply(text)

    return bb.Agent(name).on_message(handler)


def step(effects: Effects, name: str, **options: Any) -> bb.Flow:
    return bb.Flow().with_agent(says(effects, name, **options))


def acting(name: str, handler: Handler) -> bb.Flow:
    return bb.Flow().with_agent(bb.Agent(name).on_message(handler))


# --- the shapes -----------------------------------------------------------------------------------------------------


def chain(effects: Effects) -> bb.AnyFlow:
    return step(effects, "a").next(step(effects, "b").with_id("b")).next(step(effects, "c")).with_id("r").durable()


def single(effects: Effects) -> bb.AnyFlow:
    return step(effects, "a").with_id("r").durable()


def routed(effects: Effects) -> bb.AnyFlow:
    pick = bb.Select(step(effects, "left").with_id("left"), step(effects, "right").with_id("right"))
    return step(effects, "router", picks="right").next(pick).next(step(effects, "end")).with_id("r").durable()


def all_of(effects: Effects) -> bb.AnyFlow:
    members = bb.All(step(effects, "a", turns=3), step(effects, "b"), step(effects, "c", turns=1).with_id("c"))
    return members.next(step(effects, "join")).with_id("r").durable()


def one_of(effects: Effects) -> bb.AnyFlow:
    race = bb.One(step(effects, "slow", turns=9), step(effects, "fast"), step(effects, "slower", turns=20))
    return race.next(step(effects, "end")).with_id("r").durable()


def photo_finish(effects: Effects) -> bb.AnyFlow:
    """The loser has finished too, just too late: its savepoint is in the log, ahead of the winner's name."""
    race = bb.One(step(effects, "second", turns=1), step(effects, "first"))
    return race.next(step(effects, "end")).with_id("r").durable()


def close_race(effects: Effects) -> bb.AnyFlow:
    """The loser is cancelled while its savepoint is being written."""
    return (
        bb.One(step(effects, "fast"), step(effects, "late", turns=1)).next(step(effects, "end")).with_id("r").durable()
    )


def nothing_to_save(effects: Effects) -> bb.AnyFlow:
    """An inner durable flow that is entered and has nothing to remember."""
    inner = bb.Select(step(effects, "never").with_id("never")).with_id("inner").durable()
    return step(effects, "a").next(inner).next(step(effects, "b")).with_id("r").durable()


def group(effects: Effects) -> bb.AnyFlow:
    members = bb.Group(*(step(effects, name, turns=turns, deaf=True) for name, turns in (("a", 4), ("b", 0), ("c", 8))))
    return members.next(step(effects, "join")).with_id("r").durable()


def nested(effects: Effects) -> bb.AnyFlow:
    inner = step(effects, "x").next(step(effects, "y")).with_id("inner").durable()
    return step(effects, "a").next(inner).next(step(effects, "z")).with_id("r").durable()


def partly(effects: Effects) -> bb.AnyFlow:
    """Durable in the middle only: what is outside runs again, and what is inside does not."""
    inner = step(effects, "x").next(step(effects, "y")).with_id("inner").durable()
    return step(effects, "before").next(inner).next(step(effects, "behind"))


def nested_crowd(effects: Effects) -> bb.AnyFlow:
    inner = bb.All(step(effects, "x"), step(effects, "y")).next(step(effects, "z")).with_id("inner").durable()
    return bb.All(inner, step(effects, "w", turns=2)).next(step(effects, "end")).with_id("r").durable()


def crowd(effects: Effects) -> bb.AnyFlow:
    agents = (says(effects, "a", turns=2), says(effects, "b"), says(effects, "c", turns=1))
    return bb.Flow().with_agent(*agents).next(step(effects, "end")).with_id("r").durable()


def notified(effects: Effects) -> bb.AnyFlow:
    async def send(text: str) -> None:
        await asyncio.sleep(0)
        effects.ran(f"mail: {text}")

    tail = bb.All(bb.Notify(send), step(effects, "b"))
    return step(effects, "a").next(bb.Notify(send)).next(tail).next(bb.Notify(send)).with_id("r").durable()


def staged(effects: Effects) -> bb.AnyFlow:
    first = step(effects, "a", streams=True).next(bb.Respond()).next(step(effects, "b")).next(step(effects, "c"))
    return first.next(bb.Respond()).next(step(effects, "unheard")).with_id("r").durable()


def streamed(effects: Effects) -> bb.AnyFlow:
    return step(effects, "a").next(step(effects, "b", streams=True)).with_id("r").durable()


def retried(effects: Effects) -> bb.AnyFlow:
    async def flaky(turn: bb.Turn, _chat: bb.ModelChat) -> None:
        if effects.ran("call") < 3:
            raise ConnectionError("the line is down")
        turn.reply("at last")

    return step(effects, "a").next(acting("flaky", flaky)).next(step(effects, "b")).with_id("r").durable(retries=3)


def retried_stream(effects: Effects) -> bb.AnyFlow:
    """What was streamed before the failure becomes void, and the listener reconnects."""

    async def flaky(turn: bb.Turn, _chat: bb.ModelChat) -> None:
        tried = effects.ran("call")
        async with turn.stream() as out:
            await out.write("it is ")
            await asyncio.sleep(0)
            if tried == 1:
                raise ConnectionError("the line is down")
            await out.write("done")

    return step(effects, "a").next(acting("flaky", flaky)).with_id("r").durable(retries=2)


def retried_inside(effects: Effects) -> bb.AnyFlow:
    async def flaky(turn: bb.Turn, _chat: bb.ModelChat) -> None:
        if effects.ran("call") < 2:
            raise ConnectionError("the line is down")
        turn.reply("at last")

    inner = step(effects, "x").next(acting("flaky", flaky)).with_id("inner").durable(retries=1)
    return bb.All(step(effects, "a"), inner).next(step(effects, "b")).with_id("r").durable(retries=1)


@frozen
class City:
    name: str


def tooled(effects: Effects) -> bb.AnyFlow:
    async def look(city: City) -> str:
        effects.ran(f"look {city.name}")
        await asyncio.sleep(0)
        return f"it rains in {city.name}"

    weather = bb.Tool("weather", "the weather in a city", City).on_call(look)

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        reply = await chat.add(*turn.messages).with_tools(weather).resolve()
        turn.reply(reply)

    def call(city: str) -> bb.ToolCall:
        return bb.ToolCall(f"call-{city}", "weather", f'{{"name": "{city}"}}')

    model = ScriptedModel([call("Oslo"), call("Rome")], call("Bonn"), "take an umbrella", usage=bb.Usage(3, 2))
    forecast = bb.Flow().with_agent(bb.Agent("forecast").with_model(model).on_message(handler))
    return forecast.next(step(effects, "end")).with_id("r").durable()


def asked(_effects: Effects) -> bb.AnyFlow:
    """Agents without handlers: the last one streams what the model says."""
    first = bb.Flow().with_agent(bb.Agent("first")).with_model(ScriptedModel("a plan"))
    last = bb.Flow().with_agent(bb.Agent("last")).with_model(ScriptedModel(["an ", "answer"]))
    return first.next(last).with_id("r").durable()


def asked_again(_effects: Effects) -> bb.AnyFlow:
    """The model breaks off at first."""
    model = ScriptedModel(["half", bb.UpstreamError("gone")], "whole")
    return bb.Flow().with_agent(bb.Agent("ask").with_model(model)).with_id("r").durable(retries=1)


def stepped(effects: Effects) -> bb.AnyFlow:
    async def charge(amount: int) -> str:
        effects.ran(f"charge {amount}")
        await asyncio.sleep(0)
        return f"paid {amount}"

    async def handler(turn: bb.Turn, _chat: bb.ModelChat) -> None:
        first = await turn.step("charge", charge, 1)
        several = await asyncio.gather(*(turn.step("charge", charge, amount) for amount in (2, 3, 3)))
        turn.reply(", ".join([first, *several]))

    return step(effects, "a").next(acting("pay", handler)).next(step(effects, "b")).with_id("r").durable()


def group_of_chains(effects: Effects) -> bb.AnyFlow:
    def deaf(name: str, turns: int = 0) -> bb.Flow:
        return step(effects, name, turns=turns, deaf=True)

    race = bb.One(deaf("c", 1), deaf("d", 30))
    return bb.Group(deaf("a").next(deaf("b", 2)), race, bb.Group(deaf("e"), deaf("f"))).with_id("r").durable()


SHAPES: list[Build] = [
    all_of,
    asked,
    asked_again,
    chain,
    close_race,
    crowd,
    group,
    group_of_chains,
    nested,
    nested_crowd,
    nothing_to_save,
    notified,
    one_of,
    partly,
    photo_finish,
    retried,
    retried_inside,
    retried_stream,
    routed,
    single,
    staged,
    stepped,
    streamed,
    tooled,
]


def named(build: Build) -> str:
    return build.__name__


# --- the law --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", SHAPES, ids=named)
async def test_a_flow_comes_back_from_a_crash_at_any_append(build: Build) -> None:
    effects = Effects()
    report = await crash_everywhere(build(effects), "go", effects=effects)
    assert report.cases == 1 + 6 * len(report.appends)
    assert report.rows


@pytest.mark.parametrize("build", [all_of, nested, photo_finish, retried, staged, stepped, tooled], ids=named)
async def test_a_flow_comes_back_from_two_crashes(build: Build) -> None:
    effects = Effects()
    report = await crash_everywhere(build(effects), "go", effects=effects, depth=2, samples=40)
    assert report.cases == 41 + 6 * len(report.appends)


@pytest.mark.parametrize("build", [all_of, group, nested, notified, one_of, single, stepped], ids=named)
async def test_two_processes_with_one_run_id_are_one_run(build: Build) -> None:
    effects = Effects()
    report = await race_everywhere(build(effects), "go", effects=effects)
    assert report.cases == 1 + 2 * len(report.appends)


async def test_who_is_interrupted_beside_others_leaves_no_error_behind() -> None:
    """Every member of a race meets the same lost lease, and each of their errors is looked at."""
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: said.append(context))
    effects = Effects()
    flow = bb.One(*(step(effects, f"{n}", turns=n // 2) for n in range(6))).with_id("r").durable()
    await race_everywhere(flow, "go", effects=effects)
    gc.collect()
    await asyncio.sleep(0)
    assert said == []


# --- engines that break it ------------------------------------------------------------------------------------------


async def broken(build: Build, explore: Callable[..., Awaitable[CrashReport]] = crash_everywhere) -> str:
    """What the explorer says of a flow under a broken engine."""
    effects = Effects()
    with pytest.raises(NotCrashSafe) as caught:
        await explore(build(effects), "go", effects=effects)
    return str(caught.value)


async def given_back(_self: ActiveScope, _path: str, delta: Delta, _seconds: float) -> Delta:
    """In place of `save`: nothing is saved."""
    return delta


async def test_an_engine_that_drops_savepoints_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActiveScope, "save", given_back)
    assert "a replay ran agents" in await broken(chain)


async def test_an_engine_that_drops_one_savepoint_in_two_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ActiveScope.save

    async def save(self: ActiveScope, path: str, delta: Delta, seconds: float) -> Delta:
        return delta if path.endswith("/b") else await real(self, path, delta, seconds)

    monkeypatch.setattr(ActiveScope, "save", save)
    assert "a replay ran agents at r/b" in await broken(chain)


async def test_an_engine_that_saves_before_the_effect_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    run_agents, save = leaf.run_agents, ActiveScope.save

    async def eager(node: Any, flow: bb.Flow, state: Any, path: str, ctx: Any) -> Any:
        if ctx.scope.recall(path) is not None:
            return await run_agents(node, flow, state, path, ctx)
        text = f"{flow.agents[0].name} after {state.chat[-1].content}"  # a lucky guess
        await save(ctx.scope, path, Delta((bb.Message(text, "assistant"),), value=text), 0.0)
        with monkeypatch.context() as patch:
            patch.setattr(ActiveScope, "recall", lambda _self, _path: None)
            patch.setattr(ActiveScope, "save", given_back)
            return await run_agents(node, flow, state, path, ctx)

    monkeypatch.setattr(walk, "run_agents", eager)
    said = await broken(chain)
    assert "agents at r/b never ran" in said


async def test_an_engine_whose_members_share_a_path_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def shared(slot: str, index: int, flow: bb.AnyFlow) -> str:
        return segment(slot, 0 if slot == "branch" else index, flow)

    monkeypatch.setattr(plan, "segment", shared)
    assert "second savepoint of r/body~all.0/branch~agents.0" in await broken(all_of)


async def test_an_engine_that_forgets_who_won_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    async def decide(_self: ActiveScope, _path: str, _choice: str) -> None:
        pass

    monkeypatch.setattr(ActiveScope, "decide", decide)
    said = await broken(photo_finish)
    assert "the answer is 'end after second after go', not 'end after first after go'" in said


async def test_an_engine_that_forgets_steps_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(_self: ActiveScope, _path: str, _key: str) -> tuple[bool, object]:
        return False, None

    monkeypatch.setattr(ActiveScope, "entry", entry)
    assert "charge 1 at r/body~agents.1 ran though step charge was in the log" in await broken(stepped)


async def test_an_engine_that_runs_the_effect_again_when_the_store_fails_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def insist(_self: LogJournal, _records: list[bytes], error: bb.StoreError) -> None:
        raise RuntimeError("the store failed") from error

    monkeypatch.setattr(LogJournal, "_insist", insist)
    assert "it failed with" in await broken(chain)


async def test_an_engine_that_ignores_the_lease_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    async def try_take(_self: Leases, run_id: str) -> Lease | None:
        return Lease(run_id, "whoever asks", 0)

    monkeypatch.setattr(Leases, "try_take", try_take)
    monkeypatch.setattr(MockStore, "_check", lambda _self, _lease: None)
    assert "times, not at most 1" in await broken(chain, race_everywhere)


async def test_a_store_that_ignores_fence_and_position_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = MockStore._append

    def append(self: MockStore, stream: str, expected: int, records: Any, lease: Lease | None) -> int:
        kept = self._streams.get(stream)
        return real(self, stream, len(kept.records) if kept is not None else 0, records, None)

    monkeypatch.setattr(MockStore, "_append", append)
    assert "the log holds a second" in await broken(chain, race_everywhere)
