"""Trials H: one run id, several runners."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import bb
from bb.engine.runs import leases
from bb.log import run_stream
from bb.testing.clock import ManualClock
from bb.testing.mock_store import MockStore
from tests.trials.kit import Disk, Work, mocked, until


def leaf(name: str, handler: Any) -> bb.NamedFlow:
    return bb.Flow().with_agent(bb.Agent(name).on_message(handler)).with_id(name)


# --- H1: all at once --------------------------------------------------------------------------------------------------


async def test_trial_H1_twenty_tasks_make_one_execution(disk: Disk, work: Work) -> None:
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()
    apps = [disk.app(flow) for _ in range(4)]

    outcomes = await asyncio.gather(*(app.run("job", "hi", run_id="r") for app in apps for _ in range(5)))

    assert work.calls == ["a", "b"] and {outcome.answer for outcome in outcomes} == {"b"}


@pytest.mark.parametrize("shared", [True, False])
def test_trial_H1_twenty_threads_with_loops_of_their_own(tmp_path: Path, shared: bool) -> None:
    calls: list[str] = []

    def step(name: str) -> bb.NamedFlow:
        async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
            calls.append(name)
            await asyncio.sleep(0.02)
            turn.reply(name)

        return leaf(name, handler)

    flow = step("a").next(step("b")).with_id("job").durable()
    one = bb.App(store=bb.FileStore(tmp_path / "state"))
    answers: list[str] = []
    many = 20 if shared else 8
    start = threading.Barrier(many)

    def thread() -> None:
        start.wait()
        app = one if shared else bb.App(store=bb.FileStore(tmp_path / "state"))

        async def main() -> None:
            answers.append((await app.run(flow, "hi", run_id="r")).answer)
            if not shared:
                await app.stop(timedelta(0))

        asyncio.run(main())

    threads = [threading.Thread(target=thread) for _ in range(many)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    asyncio.run(one.stop(timedelta(0)))

    # the loop of whoever started it may end before the others have their outcome, but never before the run's end
    assert answers == ["b"] * many and calls == ["a", "b"]


RACE = """
    import asyncio, sys
    from pathlib import Path
    import bb

    home = Path(sys.argv[1])

    def leaf(name):
        async def handler(turn, chat):
            with open(home / "log", "a") as out:
                out.write(name + "\\n")
            await asyncio.sleep(0.02)
            turn.reply(name)
        return bb.Flow().with_agent(bb.Agent(name).on_message(handler)).with_id(name)

    async def main():
        app = bb.App(store=bb.FileStore(home / "state"))
        flow = leaf("a").next(leaf("b")).with_id("job").durable()
        print("ready", flush=True)
        sys.stdin.readline()
        print((await app.run(flow, "hi", run_id="r")).answer)
        await app.stop()

    asyncio.run(main())
"""


def test_trial_H1_four_processes_make_one_execution(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(RACE), str(tmp_path)]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for racer in racers:
        assert racer.stdout is not None and racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    outs = [racer.communicate(timeout=60) for racer in racers]

    assert outs == [("b\n", "")] * 4
    assert (tmp_path / "log").read_text().split() == ["a", "b"]


# --- H2 to H7 ---------------------------------------------------------------------------------------------------------


async def test_trial_H2_a_run_id_of_another_flow_is_refused_and_does_no_harm(disk: Disk, work: Work) -> None:
    one, other = work.flow("a").next(work.flow("b")).with_id("one").durable(), work.flow("other").durable()
    app = disk.app(one, other)
    await app.start()
    hold = work.hold("b")
    await app.submit("one", "hi", run_id="r")
    await hold.reached.wait()

    with pytest.raises(bb.RunIdInUse):
        await app.run("other", "hi", run_id="r")  # while it is going on

    await app.stop(timedelta(0))
    with pytest.raises(bb.RunIdInUse):
        await disk.app(one, other).run("other", "hi", run_id="r")  # when it is not

    async with disk.app(one, other) as again:  # and it is recovered all the same

        async def done() -> bool:
            return [run.status for run in await again.runs()] == ["finished"]

        await until(done)
    assert work.calls == ["a", "b", "b"]


async def test_trial_H4_a_member_that_ignores_its_cancellation_stores_nothing(
    disk: Disk, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bb.engine.steps.groups.LOSER_GRACE", 0.02)
    ended, errors = asyncio.Event(), list[str]()

    async def zombie(turn: bb.Turn, chat: bb.ModelChat) -> None:
        try:
            while not errors or len(errors) < 1:
                try:
                    await asyncio.sleep(0.1)
                    await turn.step("late", lambda: "late")
                    turn.reply("the zombie")
                    return
                except asyncio.CancelledError as error:
                    errors.append(str(error))
            turn.reply("the zombie")
        finally:
            ended.set()

    flow = bb.One(leaf("zombie", zombie), work.flow("quick")).with_id("job").durable()
    outcome = await disk.app(flow).run("job", "hi", run_id="r")
    await asyncio.wait_for(ended.wait(), 5)
    await asyncio.sleep(0.02)

    assert outcome.answer == "quick" and errors
    again = await disk.app(flow).run("job", "hi", run_id="r")
    assert again.replayed == ("job/quick",)
    records = await disk.app(flow).store.read(run_stream("r"))
    assert not any(b"zombie" in record for record in records[1:])


async def test_trial_H5_what_a_fenced_runner_saves_is_refused_and_it_joins_the_new_one(work: Work) -> None:
    clock = ManualClock()
    store = MockStore(clock)
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()
    slow, first = work.hold("a"), mocked(store, flow)
    old = asyncio.create_task(first.run("job", "hi", run_id="r"))
    await slow.reached.wait()
    clock.advance(leases.LEASE_SECONDS + 1)  # it did not come to renew its lease, and another takes the run over

    hold, second = work.hold("b"), mocked(store, flow)
    new = asyncio.create_task(second.run("job", "hi", run_id="r"))
    await hold.reached.wait()
    slow.go.set()
    await asyncio.sleep(0.05)
    assert not old.done()  # it was fenced, and waits for the new holder
    hold.go.set()

    assert (await new).messages == (await old).messages
    assert work.calls == ["a", "a", "b"]
    (run,) = await second.runs()
    assert run.status == "finished" and run.attempts == 2
    facts = await store.read(run_stream("r"))
    assert sum(b'"job/a"' in fact for fact in facts) == 1 and sum(b'"end"' in fact for fact in facts) == 1


async def test_trial_H5_a_lease_outlasts_a_step_that_blocks_its_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bb.engine.runs.runner.Runner.__init__.__kwdefaults__", {"lease_seconds": 0.6}, raising=False)
    ran: list[str] = []
    blocked = threading.Event()

    def holder() -> None:
        async def block(turn: bb.Turn, chat: bb.ModelChat) -> None:
            ran.append("holder")
            blocked.set()
            threading.Event().wait(1.5)  # nothing of this loop moves
            turn.reply("holder")

        async def main() -> None:
            app = bb.App(store=bb.FileStore(tmp_path / "state"))
            await app.run(leaf("a", block).durable(), "hi", run_id="r")
            await app.stop(timedelta(0))

        asyncio.run(main())

    async def other(turn: bb.Turn, chat: bb.ModelChat) -> None:
        ran.append("other")
        turn.reply("other")

    thread = threading.Thread(target=holder)
    thread.start()
    await asyncio.to_thread(blocked.wait)
    app = bb.App(store=bb.FileStore(tmp_path / "state"))
    outcome = await app.run(leaf("a", other).durable(), "hi", run_id="r")
    thread.join()
    await app.stop(timedelta(0))

    assert outcome.answer == "holder" and ran == ["holder"]


async def test_trial_H7_a_late_save_of_a_cancelled_run_does_not_overwrite_a_newer_one(work: Work) -> None:
    clock = ManualClock()
    store = MockStore(clock)
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()
    late = store.hang_append(lambda stream, records: any(b'"job/a"' in record for record in records))
    old = asyncio.create_task(mocked(store, flow).run("job", "hi", run_id="r"))
    await until(lambda: late.reached)
    old.cancel()
    await asyncio.sleep(0.02)
    clock.advance(leases.LEASE_SECONDS + 1)

    new = await mocked(store, flow).run("job", "hi", run_id="r")
    kept = await store.read(run_stream("r"))
    late.release()
    with pytest.raises(asyncio.CancelledError):
        await old

    assert new.answer == "b" and await store.read(run_stream("r")) == kept
    assert (await mocked(store, flow).run("job", "hi", run_id="r")).replayed == ("job/a", "job/b")


async def test_trial_H10_a_caller_who_comes_again_gets_the_result_of_the_run_that_goes_on(
    disk: Disk, work: Work
) -> None:
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()
    app, hold = disk.app(flow), work.hold("b")
    first = asyncio.create_task(app.run("job", "hi", run_id="r", detach=True))
    await hold.reached.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first

    second = asyncio.create_task(app.run("job", "hi", run_id="r"))
    await asyncio.sleep(0.01)
    hold.go.set()

    assert (await second).answer == "b" and work.calls == ["a", "b"]


WHO: ContextVar[str] = ContextVar("who", default="nobody")


@pytest.mark.parametrize("durable", [True, False])
async def test_trial_H11_many_runs_of_one_flow_do_not_mix(disk: Disk, durable: bool) -> None:
    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        before = WHO.get()
        WHO.set(f"{turn.run_id} inside")
        await asyncio.sleep(0)
        said = await turn.step("echo", lambda: (turn.last.content, WHO.get(), bb.idempotency_key()))
        reply = await chat.ask_with(turn.last)
        await asyncio.sleep(0)
        turn.reply(f"{before} {reply.text}", value=said)

    class Echo:
        async def stream(self, request: bb.ModelRequest, /) -> Any:
            await asyncio.sleep(0)
            yield request.messages[-1].content

    agent = bb.Agent("echo", model=Echo()).on_message(handler)
    named = bb.Flow().with_agent(agent).with_id("echo")
    flow = named.durable() if durable else named
    seen = bb.Recorder()
    app = disk.app(flow, trace=seen)

    async def one(n: int) -> Any:
        WHO.set(f"caller {n}")
        return await app.run("echo", f"text {n}", run_id=f"r{n}")

    outcomes = await asyncio.gather(*map(one, range(50)))

    for n, outcome in enumerate(outcomes):
        assert outcome.answer == f"caller {n} text {n}"
        text, who, _ = outcome.value
        assert text == f"text {n}" and who == f"r{n} inside"
    assert len({outcome.value[2] for outcome in outcomes}) == 50 and WHO.get() == "nobody"
    inside = ["step.start", "step.end", "model.start", "model.end"]
    for n in range(50):
        kinds = [event.kind for event in seen.events if event.run_id == f"r{n}"]
        assert kinds == ["run.start", "flow.start", *inside, "flow.end", "run.end"]


async def test_trial_H1_those_who_waited_leave_no_trace(disk: Disk, work: Work) -> None:
    flow = work.flow("a").durable()
    hold, apps = work.hold("a"), [disk.app(flow) for _ in range(3)]
    tasks = [asyncio.create_task(app.run("a", "hi", run_id="r")) for app in apps]
    await hold.reached.wait()
    await asyncio.sleep(0.05)
    hold.go.set()
    await asyncio.gather(*tasks)

    assert [event.kind for event in await apps[0].events("r")] == ["run.start", "flow.end", "run.end"]


HANGS = """
    import asyncio, sys
    from pathlib import Path
    import bb

    home, hangs = Path(sys.argv[1]), sys.argv[2] == "hangs"

    def leaf(name):
        async def handler(turn, chat):
            with open(home / "log", "a") as out:
                out.write(name + "\\n")
            if name == "b" and hangs:
                print("at b", flush=True)
                await asyncio.sleep(60)
            turn.reply(name)
        return bb.Flow().with_agent(bb.Agent(name).on_message(handler)).with_id(name)

    async def main():
        app = bb.App(store=bb.FileStore(home / "state"))
        flow = leaf("a").next(leaf("b")).with_id("job").durable()
        print("ready", flush=True)
        outcome = await app.run(flow, "hi", run_id="r")
        print(outcome.answer, *outcome.replayed)
        await app.stop()

    asyncio.run(main())
"""


def test_trial_H5_whoever_waits_takes_over_from_a_holder_that_is_killed(tmp_path: Path) -> None:
    def process(mode: str, first_words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", textwrap.dedent(HANGS), str(tmp_path), mode]
        made = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert made.stdout is not None
        while made.stdout.readline().strip() != first_words:
            assert made.poll() is None
        return made

    holder = process("hangs", "at b")
    waiter = process("runs", "ready")
    holder.kill()
    holder.communicate(timeout=60)

    out, err = waiter.communicate(timeout=20)  # far less than the lease of 30 seconds

    assert (out, err) == ("b job/a\n", "") and (tmp_path / "log").read_text().split() == ["a", "b", "b"]
