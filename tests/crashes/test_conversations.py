"""Conversations and events whose process dies: at any append, and between any two turns."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Literal, TypeVar

import pytest

import bb
from bb.flows.refs import ref
from bb.flows.tree import Await, Bind, Emit, Return
from bb.ops import op
from bb.testing.mock_store import Crash, MockStore, When
from tests.crashes.pipeline import SideFile
from tests.crashes.processes import ROOT
from tests.crashes.talker import PROMPTS, TURNS, Talk
from tests.trials.kit import mocked, until

T = TypeVar("T")


class Talker:
    """A warm process whose forks do the talking."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.crashes.talker"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def talk(self, talk: Talk) -> int:
        """Have it done; gives the exit code, negative for a signal."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(talk.text() + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.communicate()


@pytest.fixture(scope="module")
def talker() -> Iterator[Talker]:
    made = Talker()
    yield made
    made.close()


def shown(home: Path) -> list[tuple[int, str, bool]]:
    """What the processes have shown, in order."""
    return [
        (number, prompt, done)
        for number, prompt, done in map(json.loads, (home / "shown").read_text().split("\n")[:-1])
    ]


def test_a_conversation_outlives_a_kill_between_any_two_turns(talker: Talker, tmp_path: Path) -> None:
    for number in range(len(TURNS)):
        for _ in range(2):  # killed when the turn is over, so the caller asks again, and is killed again
            assert talker.talk(Talk(str(tmp_path), number, number, point="end")) == -signal.SIGKILL

    expected = [(number, prompt, number == 2) for number, prompt in enumerate(PROMPTS) for _ in range(2)]
    assert shown(tmp_path) == expected
    assert SideFile(tmp_path / "side").counts() == {"find": 1, "book": 1}


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_conversation_outlives_a_kill_at_any_append(
    talker: Talker, tmp_path: Path, point: Literal["before", "after"]
) -> None:
    number, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        number += 1
        home = tmp_path / str(number)
        home.mkdir()
        code = talker.talk(Talk(str(home), at=number, point=point))
        before = len(shown(home)) if (home / "shown").exists() else 0
        assert talker.talk(Talk(str(home))) == 0

        assert [prompt for _, prompt, _ in shown(home)[before:]] == PROMPTS
        counts = SideFile(home / "side").counts()
        assert set(counts) == {"find", "book"} and sum(counts.values()) <= 3
        if number > 60:
            raise AssertionError("it has no end")
    assert number > 15


# --- every window, with a store that crashes --------------------------------------------------------------------------


class World:
    """A store that crashes, what was done outside of it, and the app of the process that lives just now."""

    def __init__(self) -> None:
        self.store = MockStore()
        self.done: list[str] = []
        self.crashes = 0
        self.app = self._new()

    def flow(self) -> bb.DurableFlow:
        @op()
        def act(what: str) -> str:
            self.done.append(what)
            return f"{what} done"

        flow = (
            (Bind("a", act("first")) >> Emit("One?"))
            >> Await("user", bind="x")
            >> Bind("b", act(ref("x", str)))
            >> Emit("Two, {b}?")
            >> Await("user", bind="y")
            >> Bind("c", act("last"))
            >> Return([ref("x"), ref("y"), ref("c")])
        )
        return flow.with_id("f").durable()

    def _new(self) -> bb.App:
        return mocked(self.store, self.flow())

    async def survive(self, act: Callable[[bb.App], Awaitable[T]]) -> T:
        """Do something, again and again in new processes for as long as they die of it."""
        while True:
            try:
                result = await act(self.app)
                if not self.store.crashed:
                    return result
            except (Crash, bb.Interruption):
                assert self.store.crashed
            await self.restart()

    async def restart(self) -> None:
        """The next process."""
        self.crashes += 1
        assert self.crashes < 5
        for live in self.app._runner.running:
            live.interrupt()
            await live.wait_done(1.0)
        self.store.revive()
        self.app = self._new()


async def conversing(world: World) -> list[str]:
    """A whole conversation; what was shown."""
    turns = [
        await world.survive(lambda app: app.session("f", "s").start("go")),
        await world.survive(lambda app: app.session("f", "s").send("x", turn_id="t1")),
        await world.survive(lambda app: app.session("f", "s").send("y", turn_id="t2")),
    ]
    assert turns[-1].outcome.value == ["x", "y", "last done"]
    return [turn.prompt for turn in turns]


async def delivering(world: World) -> list[str]:
    """The same by events, whose sender and whose runner die alike."""
    prompts: list[str] = []

    async def run(app: bb.App) -> bb.Outcome:
        return await app.run("f", "go", run_id="r", session_id="s")

    async def heard(app: bb.App, payload: str) -> bool:
        """Deliver it, and let the run that was woken come to rest."""
        await app.deliver("user", payload, session_id="s", delivery_id=payload)
        await until(lambda: world.store.crashed or not app._jobs._tasks)
        return True

    for payload in ("x", "y"):
        prompts.append((await world.survive(run)).answer)
        await world.survive(lambda app, payload=payload: heard(app, payload))  # type: ignore[misc]
    outcome = await world.survive(run)
    assert outcome.value == ["x", "y", "last done"]
    return [*prompts, outcome.answer]


@pytest.mark.parametrize("when", ["before", "after", "during"])
@pytest.mark.parametrize("talk", [conversing, delivering])
async def test_no_crash_at_an_append_loses_or_doubles_a_turn(
    talk: Callable[[World], Awaitable[list[str]]], when: When
) -> None:
    plain = World()
    expected = await talk(plain)
    assert expected[:2] == ["One?", "Two, x done?"] and plain.done == ["first", "x", "last"]

    for number in range(1, plain.store.appends + 1):
        world = World()
        world.store.crash_at(number, when)

        shown = await talk(world)

        assert shown == expected, number
        assert list(dict.fromkeys(world.done)) == plain.done and len(world.done) <= 4, (number, world.done)


@pytest.mark.parametrize("number", range(1, 12))
async def test_an_event_that_was_taken_in_is_heard_after_a_crash(number: int) -> None:
    world = World()
    await world.app.run("f", "go", run_id="r", session_id="s")
    world.store.clear()
    world.store.crash_at(number, "after")
    await world.survive(lambda app: app.deliver("user", "x", session_id="s", delivery_id="d"))
    await until(lambda: world.store.crashed or not world.app._jobs._tasks)
    if world.store.crashed:
        await world.restart()

    async with world.app as app:  # a started app goes on with it by itself

        async def has_moved() -> bool:
            (run,) = await app.runs()
            return run.status == "parked" and "x" in world.done and run.waiting_for == "user"

        await until(has_moved)
        assert (await app.run("f", run_id="r")).answer == "Two, x done?"
        await asyncio.sleep(0)
