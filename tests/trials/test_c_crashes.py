"""Trials C: the process dies, or a step fails, at an awkward point."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest

import bb
from bb.messages import unresolved
from bb.models.base import ModelRequest
from bb.testing.mock_store import Crash, MockStore
from bb.testing.scripted_model import ScriptedModel
from tests.trials.kit import Disk, Hold, Work, cut_off, mocked, until


@attrs.frozen
class Verdict:
    good: bool


def leaf(name: str, handler: Any) -> bb.NamedFlow:
    return bb.Flow().with_agent(bb.Agent(name).on_message(handler)).with_id(name)


# --- C1: the order of writes ------------------------------------------------------------------------------------------


def errands(work: Work) -> bb.DurableFlow:
    sent: list[str] = []

    async def post(text: str) -> None:
        work.calls.append("post")
        sent.append(text)

    def note(name: str) -> str:
        work.calls.append(name)
        return name

    async def steps(turn: bb.Turn, chat: bb.ModelChat) -> None:
        work.calls.append("steps")
        one = await turn.step("one", note, "s1")
        two = await turn.step("two", note, "s2")
        turn.reply(f"{one}{two}")

    race = bb.One(work.flow("fast"), work.flow("also"))
    inner = work.flow("in").next(bb.Notify(post)).with_id("inner").durable(retries=1)
    return (
        work.flow("a")
        .next(bb.All(work.flow("x"), work.flow("y")))
        .next(bb.Respond())
        .next(inner)
        .next(race)
        .next(leaf("steps", steps))
        .with_id("job")
        .durable()
    )


ONCE = ("a", "x", "y", "in", "post", "s1", "s2")


@pytest.mark.parametrize("when", ["before", "after", "during"])
async def test_trial_C1_a_crash_at_any_append_costs_at_most_what_was_not_saved(when: Any) -> None:
    whole = MockStore()
    plain = await mocked(whole, errands(Work())).run("job", "hi", run_id="r")
    for number in range(1, whole.appends + 1):
        store, work = MockStore(), Work()
        store.crash_at(number, when)
        with pytest.raises((Crash, bb.BBError)):
            await mocked(store, errands(work)).run("job", "hi", run_id="r")
        first = list(work.calls)
        store.revive()
        store.clear()

        outcome = await mocked(store, errands(work)).run("job", "hi", run_id="r")

        where = f"append {number} {when}"
        assert (outcome.answer, outcome.messages) == (plain.answer, plain.messages), where
        assert all(1 <= work.count(name) <= 2 for name in ONCE), (where, work.calls)
        twice = [name for name in ONCE if work.count(name) == 2]
        assert len(twice) <= (2 if {"x", "y"} & set(twice) else 1), (where, twice)  # what one append held
        if when == "after" and first:
            assert first[-1] not in twice or first[-1] in ("x", "y"), where  # it was saved, so it did not run again


async def test_trial_C1_any_number_of_crashes_at_random_places() -> None:
    plain = await mocked(MockStore(), errands(Work())).run("job", "hi", run_id="r")
    for seed in range(40):
        dice = random.Random(seed)
        store, work = MockStore(), Work()
        crashes = 0
        for _ in range(20):
            store.clear()
            if dice.random() < 0.7:
                store.crash_at(dice.randint(1, 6), dice.choice(["before", "after", "during"]))
            try:
                outcome = await mocked(store, errands(work)).run("job", "hi", run_id="r")
                break
            except (Crash, bb.BBError):
                crashes += 1
                store.revive()
        else:
            store.clear()
            outcome = await mocked(store, errands(work)).run("job", "hi", run_id="r")
        assert outcome.messages == plain.messages, seed
        assert all(1 <= work.count(name) <= 1 + crashes for name in ONCE), (seed, work.calls)


KILL = """
    import asyncio, os, random, signal, sys, threading, time
    from pathlib import Path
    import bb

    home, delay = Path(sys.argv[1]), float(sys.argv[2])
    if delay > 0:
        def kill():
            time.sleep(delay)
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Thread(target=kill, daemon=True).start()

    def leaf(n):
        async def handler(turn, chat):
            with open(home / "log", "a") as out:
                out.write(f"{n}\\n")
            await asyncio.sleep(0.002)
            turn.reply(str(n))
        return bb.Flow().with_agent(bb.Agent(f"s{n}").on_message(handler)).with_id(f"s{n}")

    flow = leaf(0)
    for n in range(1, 30):
        flow = flow.next(leaf(n))
    flow = flow.with_id("job").durable()
    outcome = asyncio.run(bb.App(store=bb.FileStore(home / "state")).run(flow, "hi", run_id="r"))
    print(" ".join(m.content for m in outcome.messages))
"""


def test_trial_C1_killed_for_real_again_and_again(tmp_path: Path) -> None:
    # The places are covered above, append by append; this shows that a file behaves like the memory in which they were.
    def process(delay: float) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", textwrap.dedent(KILL), str(tmp_path), str(delay)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    kills, dice = 0, random.Random(1)
    for _ in range(5):
        kills += process(0.02 + dice.random() * 0.06).returncode == -9
    last = process(0)

    assert last.returncode == 0 and last.stderr == ""
    assert last.stdout.split() == [str(n) for n in range(30)]
    ran = [int(n) for n in (tmp_path / "log").read_text().split()]
    assert kills > 0 and set(ran) == set(range(30)) and len(ran) <= 30 + kills


# --- C2 to C7 ---------------------------------------------------------------------------------------------------------


async def test_trial_C2_a_router_that_failed_is_asked_again(disk: Disk, work: Work) -> None:
    flow = work.flow("router").next(bb.Select(work.flow("left"), work.flow("right"))).with_id("job").durable()
    work.picks["router"] = "right"
    work.fail("router", 1)
    with pytest.raises(bb.AgentFailed):
        await disk.app(flow).run("job", "hi", run_id="r")

    outcome = await disk.app(flow).run("job", "hi", run_id="r")

    assert outcome.answer == "right" and work.calls == ["router", "router", "right"]


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
async def test_trial_C4_finished_work_replays_at_any_depth(disk: Disk, work: Work, depth: int) -> None:
    flow = work.flow("a").durable()
    path = "a"
    for level in range(depth):
        flow = work.flow(f"before{level}").next(flow).with_id(f"level{level}").durable()
        path = f"level{level}/{path}"
    whole = flow.next(work.flow("end")).with_id("job").durable()
    work.fail("end", 1)
    seen = bb.Recorder()
    with pytest.raises(bb.AgentFailed):
        await disk.app(whole).run("job", "hi", run_id="r")

    await disk.app(whole, trace=seen).run("job", "hi", run_id="r")

    assert work.count("a") == 1 and f"job/{path}" in seen.paths("flow.cached")
    assert len(seen.paths("flow.cached")) == depth + 1 and seen.flows("flow.start") == ["end"]


async def test_trial_C5_one_can_see_whether_anything_is_durable(disk: Disk, work: Work) -> None:
    app = disk.app(work.flow("plain"), work.flow("kept").durable())

    await app.run("plain", "hi", run_id="r1")
    await app.run("kept", "hi", run_id="r2")

    assert [run.run_id for run in await app.runs()] == ["r2"]
    with pytest.raises(bb.WiringError, match="not durable"):
        await app.submit("plain", "hi")
    with pytest.raises(bb.UnknownRun):
        await app.cancel("r1")


async def test_trial_C7_a_crash_between_two_steps_leaves_no_lock(work: Work) -> None:
    store = MockStore()
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()
    await mocked(store, flow).submit("job", "hi", run_id="r")
    await mocked(store, flow).submit("job", "ho", run_id="next")
    store.crash_at(lambda stream, records: stream == "run/r" and any(b"job/a" in r for r in records), "after")
    app = mocked(store, flow, workers=1)
    await app.start()
    await until(lambda: store.crashed)
    await app.stop(timedelta(0))
    store.revive()

    async with mocked(store, flow, workers=1) as again:

        async def done() -> bool:
            return {run.status for run in await again.runs()} == {"finished"}

        await until(done)

    assert work.count("a") == 2 and work.count("b") == 2


@pytest.mark.parametrize("bad", ["", " ", "\n", "x" * 10_240, 7, b"r", ["r"]])
async def test_trial_C8_what_is_no_run_id_is_refused_everywhere(disk: Disk, work: Work, bad: Any) -> None:
    app = disk.app(work.flow("a").durable(), work.flow("plain"))

    for flow in ("a", "plain"):
        with pytest.raises(bb.InvalidId):
            await app.run(flow, "hi", run_id=bad)
        with pytest.raises(ValueError, match="run id"):
            app.stream(flow, "hi", run_id=bad)
    with pytest.raises(bb.InvalidId):
        await app.submit("a", "hi", run_id=bad)

    assert work.calls == [] and await app.runs() == []


async def test_trial_C10_recovery_does_not_adopt_what_was_just_started(disk: Disk, work: Work) -> None:
    flow = work.flow("a").durable()
    for n in range(20):
        app = disk.app(flow)
        work.calls.clear()
        await asyncio.gather(
            app.start(),
            app.submit("a", "hi", run_id=f"r{n}"),
            app.run("a", "hi", run_id=f"r{n}"),
            app.start(),
        )
        other = disk.app(flow)
        await other.start()
        await app.run("a", "hi", run_id=f"r{n}")
        assert work.calls == ["a"], n
        await app.stop(timedelta(0))
        await other.stop(timedelta(0))


async def test_trial_C11_a_join_runs_once_and_with_all_its_inputs(disk: Disk, work: Work) -> None:
    flow = bb.All(work.flow("a"), work.flow("slow")).next(work.flow("join")).with_id("job").durable()
    await cut_off(disk.app(flow), work.hold("slow"), "job", "hi", run_id="r")
    assert work.calls == ["a", "slow"]

    await disk.app(flow).run("job", "hi", run_id="r")

    assert work.calls == ["a", "slow", "slow", "join"] and work.heard["join"] == ("hi", "a", "slow")


# --- C13: going on with a run -----------------------------------------------------------------------------------------


async def test_trial_C13_only_leaving_the_input_out_resumes(disk: Disk, work: Work) -> None:
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()
    work.fail("b", 1)
    app = disk.app(flow)
    with pytest.raises(bb.AgentFailed):
        await app.run("job", "hi", run_id="r")
    anything: Sequence[Any] = ("", [], (), bb.Message(), bb.Input(), None, {}, 0, False, {"x": 1}, ["hi"], object())

    for given in anything:
        with pytest.raises((bb.InputConflict, bb.InvalidInput)):
            await app.run("job", given, run_id="r")
    assert work.calls == ["a", "b"]

    outcome = await app.run("job", bb.RESUME, run_id="r")
    assert outcome.replayed == ("job/a",) and work.heard["b"] == ("hi", "a")


@pytest.mark.parametrize("given", [None, {}, 0, False, ["hi"], {"role": "user"}])
async def test_trial_C13_what_is_no_input_is_refused_for_a_new_run_too(disk: Disk, work: Work, given: Any) -> None:
    app = disk.app(work.flow("a").durable(), work.flow("plain"))

    for flow in ("a", "plain"):
        with pytest.raises(bb.InvalidInput):
            await app.run(flow, given)

    assert work.calls == []


async def test_trial_C13_a_run_that_was_started_with_nothing(disk: Disk, work: Work) -> None:
    app = disk.app(work.flow("a").durable())

    assert (await app.run("a", run_id="r")).answer == "a" and work.heard["a"] == ()

    assert (await app.run("a", [], run_id="r")).replayed == ("a",)  # nothing is nothing, however it is spelt
    with pytest.raises(bb.InputConflict):
        await app.run("a", "", run_id="r")  # an empty message is something


# --- C14: half a turn -------------------------------------------------------------------------------------------------


class Strict:
    """A model that, as providers do, refuses a chat with a tool call that has no result. It calls `rounds` tools in a row."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.asked: list[ModelRequest] = []

    async def stream(self, request: ModelRequest, /) -> Any:
        self.asked.append(request)
        if unresolved(request.messages):
            raise bb.UpstreamRejected("a call has no result", status=400)
        done = sum(len(message.results) for message in request.messages)
        if done < self.rounds:
            yield bb.ToolCall(f"call_{done}", "work", f'{{"n": {done}}}')
        else:
            yield "finished"
        yield bb.Usage(1, 1)


def tooled(model: Any, run: Any, rounds: int = 20, after: Any = None) -> bb.NamedFlow:
    tool = bb.Tool("work", "does it", {"type": "object", "properties": {"n": {"type": "integer"}}}).on_call(run)

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        reply = await chat.add(*turn.messages).with_tools(tool).with_max_rounds(rounds).resolve()
        if after is not None:
            after()
        turn.reply(reply)

    return bb.Flow().with_agent(bb.Agent("worker", model=model).on_message(handler)).with_id("work")


async def test_trial_C14_a_handler_cut_off_in_its_tenth_tool_round_resumes_at_the_tenth(disk: Disk) -> None:
    model, ran, hold = Strict(12), list[int](), Hold()

    async def run(args: dict[str, int]) -> str:
        ran.append(args["n"])
        if args["n"] == 9 and not hold.reached.is_set():
            hold.reached.set()
            await hold.go.wait()
        return f"done {args['n']}"

    flow = tooled(model, run).durable()
    await cut_off(disk.app(flow), hold, "work", "hi", run_id="r")
    assert len(model.asked) == 10

    outcome = await disk.app(flow).run("work", "hi", run_id="r")

    assert outcome.answer == "finished" and ran == [*range(10), 9, 10, 11]
    assert len(model.asked) == 13  # ten asks before, and the three that were missing: no call was left without a result
    assert outcome.usage == bb.Usage(3, 3)


@pytest.mark.parametrize("when", ["before", "after", "during"])
async def test_trial_C14_a_crash_around_any_entry_never_bricks_the_chat(when: Any) -> None:
    def run(args: dict[str, int]) -> str:
        return "ok"

    store = MockStore()
    await mocked(store, tooled(Strict(3), run).durable()).run("work", "hi", run_id="r")
    for number in range(1, store.appends + 1):
        store = MockStore()
        store.crash_at(number, when)
        with pytest.raises((Crash, bb.BBError)):
            await mocked(store, tooled(Strict(3), run).durable()).run("work", "hi", run_id="r")
        store.revive()
        assert (
            await mocked(store, tooled(Strict(3), run).durable()).run("work", "hi", run_id="r")
        ).answer == "finished"


async def test_trial_C14_a_new_turn_after_it_is_accepted(disk: Disk, work: Work) -> None:
    model = Strict(2)
    chat = tooled(model, lambda args: "ok")
    flow = chat.with_id("one").next(chat.with_id("other")).with_id("two").durable()

    outcome = await disk.app(flow).run("two", "hi", run_id="r")

    assert outcome.answer == "finished" and not unresolved(outcome.messages)


# --- C17: failures are no results -------------------------------------------------------------------------------------


async def test_trial_C17_a_failure_is_never_kept_as_a_result(disk: Disk) -> None:
    calls: list[str] = []

    def step() -> str:
        calls.append("step")
        if calls.count("step") == 1:
            raise OSError("the disk is full")
        return "fine"

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        try:
            turn.reply(await turn.step("step", step))
        except OSError:
            turn.reply(await turn.step("step", step))

    async def failing(turn: bb.Turn, chat: bb.ModelChat) -> None:
        calls.append("failing")
        if calls.count("failing") == 1:
            raise OSError("the net is down")
        turn.reply("up")

    flow = leaf("steps", handler).next(leaf("failing", failing)).with_id("job").durable()
    with pytest.raises(bb.AgentFailed, match="the net is down"):
        await disk.app(flow).run("job", "hi", run_id="r")

    outcome = await disk.app(flow).run("job", "hi", run_id="r")

    assert [message.content for message in outcome.messages] == ["fine", "up"] and calls.count("step") == 2


async def test_trial_C17_a_handler_that_rejects_an_answer_asks_anew(disk: Disk) -> None:
    model = ScriptedModel("one", "bad", "good")

    async def picky(turn: bb.Turn, chat: bb.ModelChat) -> None:
        first = await chat.ask_with("first")
        second = await chat.ask_with("second")
        if second.text == "bad":
            raise ValueError("that will not do")
        turn.reply(f"{first.text} {second.text}")

    flow = bb.Flow().with_agent(bb.Agent("picky", model=model).on_message(picky)).with_id("picky").durable()
    with pytest.raises(bb.AgentFailed):
        await disk.app(flow).run("picky", "hi", run_id="r")

    assert (await disk.app(flow).run("picky", "hi", run_id="r")).answer == "one good" and model.left == 0


async def test_trial_C17_of_answers_that_were_asked_for_at_once_none_is_kept(disk: Disk) -> None:
    answers = {"left": ["bad", "good"], "right": ["fine", "fine too"]}

    async def by_name(request: ModelRequest) -> str:
        await asyncio.sleep(0.02 if request.messages[-1].content == "right" else 0)
        return answers[request.messages[-1].content].pop(0)

    model = ScriptedModel(*[by_name] * 4)

    async def picky(turn: bb.Turn, chat: bb.ModelChat) -> None:
        left, right = await asyncio.gather(chat.ask_with("left"), chat.ask_with("right"))
        if left.text == "bad":
            raise ValueError("that will not do")
        turn.reply(f"{left.text} {right.text}")

    flow = bb.Flow().with_agent(bb.Agent("picky", model=model).on_message(picky)).with_id("picky").durable()
    with pytest.raises(bb.AgentFailed):
        await disk.app(flow).run("picky", "hi", run_id="r")

    assert (await disk.app(flow).run("picky", "hi", run_id="r")).answer == "good fine too"


async def test_trial_C17_an_answer_that_does_not_fit_its_schema_is_not_kept(disk: Disk) -> None:
    model = ScriptedModel("nonsense", '{"good": true}')
    agent = bb.Agent("judge", model=model).with_schema(Verdict)
    flow = bb.Flow().with_agent(agent).with_id("judge").durable()
    with pytest.raises(bb.AgentFailed) as raised:
        await disk.app(flow).run("judge", "hi", run_id="r")
    assert isinstance(raised.value.__cause__, bb.SchemaMismatch)

    first = await disk.app(flow).run("judge", "hi", run_id="r")
    again = await disk.app(flow).run("judge", "hi", run_id="r")

    assert first.value == again.value == Verdict(True) and model.left == 0


async def test_trial_C19_each_event_says_whether_it_is_a_replay(disk: Disk, work: Work) -> None:
    flow = work.flow("a").next(work.flow("b")).next(work.flow("c")).with_id("job").durable()
    seen = bb.Recorder()
    for name in ("b", "c"):
        work.fail(name, 1)
        with pytest.raises(bb.AgentFailed):
            await disk.app(flow, trace=seen).run("job", "hi", run_id="r")

    await disk.app(flow, trace=seen).run("job", "hi", run_id="r")

    assert seen.kinds().count("run.start") == 1 and seen.kinds().count("run.resumed") == 2
    assert seen.flows("flow.end") == ["a", "b", "c"]  # each of them happened once
    assert seen.flows("flow.cached") == ["a", "a", "b"]
    assert [event.attempt for event in seen.events if event.kind == "run.end"] == [1, 2, 3]
