"""The shared chat of a group when parts of it replay or are tried again."""

from __future__ import annotations

import asyncio

import pytest

import bb
from bb.testing.clock import ManualClock
from tests.trials.kit import Disk, Work


def gate_keeper(name: str, work: Work, *, opens: bool) -> bb.NamedFlow:
    """A step that opens a gate, or waits at it; the first time it fails."""

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        work.calls.append(name)
        if work.count(name) == 1:
            raise ValueError("the first time")
        gate = turn.gate("g")
        if opens:
            gate.open()
        else:
            await gate.wait()
        turn.reply(name)

    return bb.Flow().with_agent(bb.Agent(name).on_message(handler)).with_id(name)


@pytest.mark.parametrize("kind", [bb.Group, bb.All, bb.One])
async def test_members_of_an_inner_group_do_not_keep_the_outer_ones_waiting(
    disk: Disk, work: Work, kind: type[bb.Group | bb.All | bb.One]
) -> None:
    waits, opens = gate_keeper("waits", work, opens=False), gate_keeper("opens", work, opens=True)
    saved = work.flow("saved")
    parts = (saved.next(waits),) if kind is bb.One else (saved, waits)
    flow = bb.Group(kind(*parts).with_id("inner"), opens).with_id("outer").durable()
    with pytest.raises(bb.BBError):
        await disk.app().run(flow, "hi", run_id="r")

    outcome = await asyncio.wait_for(disk.app().run(flow, "hi", run_id="r"), 10)

    assert [message.content for message in outcome.messages] == ["saved", "waits", "opens"]
    assert work.count("saved") == 1


async def test_members_that_are_durable_by_themselves_replay_first(disk: Disk, work: Work) -> None:
    listens, saved = work.flow("listens"), work.flow("saved")
    flow = bb.Group(listens.durable(), saved.durable()).with_id("g").durable()
    work.fail("listens", 1)
    with pytest.raises(bb.AgentFailed):
        await disk.app().run(flow, "hi", run_id="r")

    await disk.app().run(flow, "hi", run_id="r")

    assert work.heard["listens"] == ("hi", "saved") and work.count("saved") == 1


async def test_what_is_said_in_a_try_that_failed_is_unsaid(work: Work) -> None:
    heard: list[str] = []

    async def drafts(turn: bb.Turn, chat: bb.ModelChat) -> None:
        work.calls.append("drafts")
        turn.reply("draft")
        if work.count("drafts") == 1:
            raise ValueError("the first time")
        turn.gate("g").open()

    async def listens(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await turn.gate("g").wait()
        heard.extend(message.content for message in chat.messages)

    part = work.flow("saved").next(bb.Flow().with_agent(bb.Agent("d").on_message(drafts)).with_id("d"))
    other = bb.Flow().with_agent(bb.Agent("l").on_message(listens)).with_id("l")
    app = bb.App(clock=ManualClock(auto=True))

    await app.run(bb.Group(part.with_id("part").durable(retries=1), other), "hi")

    assert heard == ["hi", "saved", "draft"]
