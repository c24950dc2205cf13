"""Trials E: what is told apart, and what is the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import bb
from tests.trials.kit import Disk, Work, cut_off, until


def leaf(name: str, handler: Any) -> bb.NamedFlow:
    return bb.Flow().with_agent(bb.Agent(name).on_message(handler)).with_id(name)


async def test_trial_E1_polling_with_equal_arguments_gets_each_answer_once_and_in_order(disk: Disk) -> None:
    asked: list[int] = []
    got: list[list[str]] = []

    def status(job: str) -> str:
        asked.append(1)
        return "done" if len(asked) == 4 else f"waiting {len(asked)}"

    async def poll(turn: bb.Turn, chat: bb.ModelChat) -> None:
        answers: list[str] = []
        got.append(answers)
        while not answers or answers[-1] != "done":
            answers.append(await turn.step("status", status, "job-1"))
        if len(got) == 1:
            raise ValueError("once")
        turn.reply(answers[-1])

    flow = leaf("poll", poll).durable()
    with pytest.raises(bb.AgentFailed):
        await disk.app(flow).run("poll", "hi", run_id="r")

    outcome = await disk.app(flow).run("poll", "hi", run_id="r")

    assert got == [["waiting 1", "waiting 2", "waiting 3", "done"]] * 2 and len(asked) == 4
    assert outcome.answer == "done"


async def test_trial_E2_the_same_flow_used_twice_runs_twice(disk: Disk, work: Work) -> None:
    same = bb.Flow().with_agent(work.agent("same"))
    flow = bb.All(same, same).next(same).with_id("job").durable()

    outcome = await disk.app(flow).run("job", "hi", run_id="r")

    assert work.count("same") == 3 and len(outcome.messages) == 3
    again = await disk.app(flow).run("job", "hi", run_id="r")
    assert again.messages == outcome.messages and len(set(again.replayed)) == 3


async def test_trial_E2_the_same_named_flow_in_two_places_has_two_savepoints(disk: Disk, work: Work) -> None:
    same = work.flow("same")
    flow = same.next(work.flow("a")).with_id("one").next(same.next(work.flow("b")).with_id("two")).with_id("job")
    durable = flow.durable()
    work.fail("b", 1)
    with pytest.raises(bb.AgentFailed):
        await disk.app(durable).run("job", "hi", run_id="r")

    outcome = await disk.app(durable).run("job", "hi", run_id="r")

    assert outcome.replayed == ("job/one/same", "job/one/a", "job/two/same") and work.count("same") == 2


async def test_trial_E4_two_flows_with_equal_parts_do_not_bleed_into_each_other(disk: Disk, work: Work) -> None:
    one = work.flow("x").next(work.flow("y")).with_id("one").durable()
    other = work.flow("x").next(work.flow("y")).with_id("other").durable()
    app = disk.app()
    await app.run(one, "hi", run_id="r")

    with pytest.raises(bb.RunIdInUse):
        await app.run(other, "hi", run_id="r")

    assert (await app.run(other, "hi", run_id="r2")).replayed == ()
    assert {run.run_id: run.flow for run in await app.runs()} == {"r": "one", "r2": "other"}


async def test_trial_E5_durable_flows_inside_each_other_and_inside_a_handler_keep_apart(disk: Disk, work: Work) -> None:
    ran: list[str] = []
    innermost = work.flow("deep").durable()

    async def nested(turn: bb.Turn, chat: bb.ModelChat) -> None:
        ran.append("nested")
        outcome = await apps[-1].run(innermost, "hello", run_id=f"{turn.run_id}.deep")
        with pytest.raises(bb.RunIdInUse):
            await apps[-1].run(innermost, "hello", run_id=turn.run_id)
        if len(ran) == 1:
            raise ValueError("once")
        turn.reply(outcome.answer)

    inner = work.flow("deep").next(leaf("agent", nested)).with_id("inner").durable()
    flow = work.flow("top").next(inner).with_id("outer").durable()
    apps = [disk.app(flow)]
    with pytest.raises(bb.AgentFailed):
        await apps[-1].run("outer", "hi", run_id="r")
    apps.append(disk.app(flow))

    outcome = await apps[-1].run("outer", "hi", run_id="r")

    assert outcome.replayed == ("outer/top", "outer/inner/deep") and outcome.answer == "deep"
    assert work.calls == ["top", "deep", "deep"] and ran == ["nested", "nested"]
    assert [run.run_id for run in await apps[-1].runs()] == ["r", "r.deep"]


async def test_trial_E7_one_request_processed_twice_has_one_history(disk: Disk, work: Work) -> None:
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()
    app = disk.app(flow)

    first, second = await asyncio.gather(*(app.run("job", "hi", run_id="r") for _ in range(2)))
    third = await app.run("job", "hi", run_id="r")

    assert first.messages == second.messages == third.messages and work.calls == ["a", "b"]
    assert [event.kind for event in await app.events("r")] == ["run.start", "flow.end", "flow.end", "run.end"]


@pytest.mark.parametrize("where", ["first", "second attempt", "nested", "between"])
async def test_trial_E10_a_cancel_finds_its_run_wherever_it_is(disk: Disk, work: Work, where: str) -> None:
    inner = work.flow("i").durable(retries=1)
    flow = work.flow("a").next(inner).with_id("outer").durable()
    app, other = disk.app(flow), disk.app(flow)
    if where == "second attempt":
        work.fail("i", 1)
    hold = work.hold("a" if where == "first" else "i")
    if where == "second attempt":
        hold = Work().hold("unused")
        work.fail("i", 1)
    task = asyncio.create_task(app.run("outer", "hi", run_id="r"))
    if where == "second attempt":
        await until(lambda: work.count("i") == 1)  # it pauses before the next try
    else:
        await hold.reached.wait()
    if where == "between":
        hold.go.set()
        await task
        await app.cancel("r")  # it is over, and stays as it is
        assert [run.status for run in await app.runs()] == ["finished"]
        return

    await (other if where == "nested" else app).cancel("r")

    with pytest.raises(bb.RunCancelled):
        await task
    assert [run.status for run in await other.runs()] == ["cancelled"]


@pytest.mark.parametrize("length", [1, 127, 128])
async def test_trial_E11_ids_up_to_the_limit_work_in_every_store(disk: Disk, work: Work, length: int) -> None:
    app = disk.app(work.flow("a").durable())
    run_id = "r" * length

    await app.run("a", "hi", run_id=run_id)

    assert (await app.run("a", "hi", run_id=run_id)).replayed == ("a",)
    assert (await app.run("a", "hi", run_id=run_id[:-1] + "R")).replayed == ()  # case counts


@pytest.mark.parametrize("run_id", ["r" * 129, "r" * 256, "r" * 4096, "ré", "r ", "r\u200b", "\uff52"])
async def test_trial_E11_ids_beyond_it_are_refused_in_every_store(disk: Disk, work: Work, run_id: str) -> None:
    app = disk.app(work.flow("a").durable())

    with pytest.raises(bb.InvalidId):
        await app.run("a", "hi", run_id=run_id)

    assert work.calls == [] and await app.runs() == []


async def test_trial_E11_a_trailing_dot_counts(disk: Disk, work: Work) -> None:
    app = disk.app(work.flow("a").durable())

    for run_id in ("r", "r.", "r..", ".", ".."):
        assert (await app.run("a", "hi", run_id=run_id)).replayed == ()

    assert len(await app.runs()) == 5


async def test_trial_E10_a_run_that_waits_for_a_holder_elsewhere_is_cancelled_there(disk: Disk, work: Work) -> None:
    flow = work.flow("a").durable()
    holder, waiter = disk.app(flow), disk.app(flow)
    hold = work.hold("a")
    going = asyncio.create_task(holder.run("a", "hi", run_id="r"))
    await hold.reached.wait()
    waiting = asyncio.create_task(waiter.run("a", "hi", run_id="r"))
    await asyncio.sleep(0.05)

    await waiter.cancel("r")

    for task in (going, waiting):
        with pytest.raises(bb.RunCancelled):
            await task
    assert [run.status for run in await waiter.runs()] == ["cancelled"]
    await cut_off(waiter, work.hold("a"), "a", "hi", run_id="r")  # and it can be taken up again
