"""Trials B: what was stored shares nothing with what the program holds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import bb
from tests.trials.kit import Disk, Work


def leaf(name: str, handler: Any) -> bb.NamedFlow:
    return bb.Flow().with_agent(bb.Agent(name).on_message(handler)).with_id(name)


async def test_trial_B1_what_a_caller_does_to_an_outcome_does_not_reach_the_store(disk: Disk, work: Work) -> None:
    work.values["a"] = {"items": [1, 2]}
    app = disk.app(work.flow("a").durable())

    for _ in range(3):
        outcome: Any = await app.run("a", "hi", run_id="r")
        assert outcome.value == {"items": [1, 2]}
        outcome.value["items"].append(3)

    assert work.count("a") == 1


async def test_trial_B2_the_first_run_gets_a_snapshot_as_a_replay_does(disk: Disk) -> None:
    held: list[list[int]] = []
    steps: list[Any] = []

    async def make(turn: bb.Turn, chat: bb.ModelChat) -> None:
        held.append([1, 2])
        turn.reply("made", value=held[0])

    async def spoil(turn: bb.Turn, chat: bb.ModelChat) -> None:
        held[0].append(3)  # what the step before still holds
        got = await turn.step("numbers", lambda: held[0])
        got.append(4)  # what the journal handed out
        steps.append(got)
        if len(steps) == 1:
            raise ValueError("once")
        turn.reply("spoilt", value=got)

    made, flow = leaf("make", make), leaf("spoil", spoil)
    app = disk.app(made.durable(), made.next(flow).with_id("both").durable())
    assert (await app.run("make", "hi", run_id="one")).value is not held[0]
    held.clear()
    with pytest.raises(bb.AgentFailed):
        await app.run("both", "hi", run_id="r")

    outcome = await disk.app(made.next(flow).with_id("both").durable()).run("both", "hi", run_id="r")

    assert steps[0] is not held[0] and steps == [[1, 2, 3, 4], [1, 2, 3, 4]] and outcome.value == [1, 2, 3, 4]


async def test_trial_B2_parallel_branches_do_not_see_each_others_changes(disk: Disk) -> None:
    seen: dict[str, Any] = {}

    def branch(name: str) -> bb.NamedFlow:
        async def change(turn: bb.Turn, chat: bb.ModelChat) -> None:
            mine: Any = await turn.step("shared", lambda: {"by": []})
            mine["by"].append(name)
            await asyncio.sleep(0)
            seen[name] = mine
            turn.reply(name, value=mine)

        return leaf(name, change)

    flow = bb.All(branch("x"), branch("y")).with_id("all").durable()
    for _ in range(2):
        await disk.app(flow).run("all", "hi", run_id="r")

    assert seen == {"x": {"by": ["x"]}, "y": {"by": ["y"]}}


async def test_trial_B4_the_snapshot_is_taken_before_the_handler_gives_up_control(disk: Disk) -> None:
    value: dict[str, int] = {"n": 0}
    background: list[asyncio.Task[None]] = []

    async def busy() -> None:
        while True:
            value["n"] += 1
            await asyncio.sleep(0)

    async def make(turn: bb.Turn, chat: bb.ModelChat) -> None:
        background.append(asyncio.create_task(busy()))
        turn.reply("made", value=value)

    flow = leaf("make", make).durable()
    first = await disk.app(flow).run("make", "hi", run_id="r")
    await asyncio.sleep(0.01)
    second = await disk.app(flow).run("make", "hi", run_id="r")
    background[0].cancel()

    assert first.value == second.value == {"n": 0} and value["n"] > 0


async def test_trial_B5_the_callers_input_is_not_touched_and_no_step_sees_what_another_did_to_it(disk: Disk) -> None:
    seen: list[Any] = []
    calls: list[str] = []

    async def spoil(turn: bb.Turn, chat: bb.ModelChat) -> None:
        calls.append("spoil")
        numbers: Any = turn.params["numbers"]
        numbers.append(9)
        payload: Any = turn.payload(dict)
        payload["items"].append(9)
        turn.reply("spoilt")

    async def look(turn: bb.Turn, chat: bb.ModelChat) -> None:
        seen.append((turn.params["numbers"], turn.payload(dict)))
        if len(seen) == 1:
            raise ValueError("once")
        turn.reply("looked")

    flow = leaf("spoil", spoil).next(leaf("look", look)).with_id("job").durable()
    numbers, payload = [1], {"items": [1]}
    given = bb.Input((bb.Message("hi"),), payload=payload)
    with pytest.raises(bb.AgentFailed):
        await disk.app(flow).run("job", given, params={"numbers": numbers}, run_id="r")
    await disk.app(flow).run("job", given, params={"numbers": numbers}, run_id="r")

    assert numbers == [1] and payload == {"items": [1]} and calls == ["spoil"]
    assert seen[0] == seen[1] == ([1], {"items": [1]})  # the first run sees what a replay sees
