"""A durable pipeline with one of everything, whose effects go to a file that outlives the process."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from attrs import frozen

import bb
from bb.models.base import ModelRequest
from bb.place import current_place
from bb.testing.scripted_model import ScriptedModel

PAUSE = 0.001  # seconds that a step takes, so that a kill finds it at work


@frozen
class Effect:
    """One line of the side file: what was done, its idempotency key, and where in the run."""

    what: str
    key: str
    path: str
    entry: str
    """The journal entry being run; "" when it was the handler itself."""


class SideFile:
    """The outside world: a line per effect, there for good once `add` has returned."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, what: str) -> None:
        """Do an effect: the service is handed the idempotency key."""
        place = current_place()
        assert place is not None
        line = "\t".join((what, bb.idempotency_key(what), place.path, place.entry)) + "\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line.encode())
            os.fsync(file)
        finally:
            os.close(file)

    def effects(self) -> list[Effect]:
        """What was done so far, in order; a line that a kill cut short does not count."""
        if not self._path.exists():
            return []
        return [Effect(*line.split("\t")) for line in self._path.read_text().split("\n")[:-1]]

    def counts(self) -> Counter[str]:
        """What was done, and how often."""
        return Counter(effect.what for effect in self.effects())


@frozen
class Lookup:
    """The arguments of the tool."""

    word: str = ""


Extra = Callable[[bb.Turn], Awaitable[None]]


def pipeline(side: SideFile, extras: Mapping[str, Extra] | None = None) -> bb.DurableFlow:
    """The flow; `extras` lets a test have its own moment inside a step.

    Every step says the same whatever came before, so there is one right outcome.
    """
    hooks = extras or {}

    def agent(name: str, pause: float = PAUSE, *, model: bb.Model | None = None) -> bb.Agent:
        async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
            side.add(name)
            await asyncio.sleep(pause)
            if name in hooks:
                await hooks[name](turn)
            turn.reply(f"{name} has spoken", value={"by": name, "of": (1, 2.5)})

        made = bb.Agent(name).on_message(handler)
        return made.with_model(model) if model is not None else made

    async def plan(turn: bb.Turn, chat: bb.ModelChat) -> None:
        side.add("plan")
        numbers = await asyncio.gather(*(turn.step("number", number, n) for n in range(3)))
        turn.reply(f"plan {numbers}")
        turn.gate("planned").open()

    async def number(n: int) -> int:
        side.add(f"number {n}")
        await asyncio.sleep(PAUSE)
        return n * n

    def looked_up(given: Lookup) -> str:
        side.add(f"look up {given.word}")
        return f"{given.word} means much"

    async def chatting(turn: bb.Turn, chat: bb.ModelChat) -> None:
        lookup = bb.Tool("lookup", "Look a word up.", Lookup).on_call(looked_up)
        first = await chat.add("go").with_tools(lookup).resolve()
        second = await chat.ask_with("once more")
        turn.reply(f"{first.message.content} {second.message.content}")

    def answered(request: ModelRequest) -> str | bb.ToolCall:
        last = request.messages[-1]
        rounds = sum(message.role == "tool" for message in request.messages)
        side.add(f"model {last.role} {rounds} {last.content}")
        return bb.ToolCall(f"c{rounds}", "lookup", f'{{"word": "w{rounds}"}}') if rounds < 2 else f"{rounds} rounds."

    async def waiting(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await turn.gate("planned").wait()
        side.add("waiting")
        turn.reply("waited for the plan")

    async def never(turn: bb.Turn, chat: bb.ModelChat) -> None:
        side.add("loser")
        await asyncio.sleep(60)

    async def send(text: str) -> None:
        side.add("send")
        await asyncio.sleep(PAUSE)

    # each process begins its script anew, so it must not matter which answer is the how many-eth
    model = ScriptedModel(*([answered] * 20))
    planner = bb.Flow().with_agent(bb.Agent("plan").on_message(plan)).with_id("planner")
    several = bb.Flow().with_agent(agent("one"), agent("two", 2 * PAUSE), agent("three", 0)).with_id("several")
    asking = bb.Flow().with_agent(bb.Agent("asking").on_message(chatting)).with_model(model).with_id("asking")
    fixed = bb.Flow().with_agent(bb.Agent("fixed")).with_model(bb.FixedModel("as always")).with_id("fixed")
    table = bb.Group(
        bb.Flow().with_agent(bb.Agent("waiting").on_message(waiting)),
        bb.Flow().with_agent(agent("left")) >> bb.Flow().with_agent(agent("right")),
    )
    race = bb.One(
        bb.Flow().with_agent(bb.Agent("never").on_message(never)).with_id("slow"),
        bb.Flow().with_agent(agent("quick")).with_id("fast"),
    )
    inner = (bb.Flow().with_agent(agent("deep")) >> bb.Notify(send)).with_id("inner").durable(retries=1)
    return (
        planner.next(bb.All(several, asking, inner))
        .next(bb.Respond())
        .next(race)
        .next(table)
        .next(fixed)
        .next(bb.Flow().with_agent(agent("last")).with_id("last"))
        .next(bb.Respond())
        .with_id("pipeline")
        .durable()
    )


ALWAYS = frozenset(
    {
        *(f"number {n}" for n in range(3)),
        *("plan", "one", "two", "three", "deep", "send", "quick", "waiting", "left", "right", "last"),
        *("look up w0", "look up w1"),
        *("model user 0 go", "model tool 1 ", "model tool 2 ", "model user 2 once more"),
    }
)
"""What every run does at least once; the loser of the race may or may not get as far as its effect."""


def told(outcome: bb.Outcome) -> list[object]:
    """What two runs with one outcome have in common, as plain data."""
    return [outcome.answer, [(m.role, m.content) for m in outcome.messages], repr(outcome.value)]
