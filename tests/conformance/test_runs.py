"""Run ids, stores that fail, crashes, retries, ttl and recovery: cases 45 to 58 of the builder contract."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bb
from bb.ids import check_id
from bb.log import RUNS, control_stream, run_stream
from bb.messages import assistant
from bb.testing.clock import ManualClock
from bb.testing.mock_store import Crash, MockStore
from tests.trials.kit import Disk, Hold, Work, contents, cut_off, disk_of, mocked, until


@pytest.fixture(params=["memory", "file"])
async def disk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Disk]:
    async with disk_of(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def work() -> Work:
    return Work()


def said(*texts: str) -> tuple[bb.Message, ...]:
    return tuple(map(assistant, texts))


# --- 45 and 46: whose run it is ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["finished", "failed", "interrupted", "cancelled"])
async def test_case_045_another_input_is_a_conflict(disk: Disk, work: Work, state: str) -> None:
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()
    app = disk.app(flow)
    if state == "failed":
        work.fail("b", 1)
        with pytest.raises(bb.AgentFailed):
            await app.run("job", "hi", run_id="r")
    elif state == "finished":
        await app.run("job", "hi", run_id="r")
    else:
        await cut_off(app, work.hold("b"), "job", "hi", run_id="r")
        if state == "cancelled":
            await app.cancel("r")
    assert [run.status for run in await app.runs()] == [state]
    before = await contents(app.store)
    longer = [bb.Message("hi"), assistant("a"), bb.Message("and now?")]

    for other in ("ho", longer, [], bb.Input((bb.Message("hi"),), payload=1)):
        with pytest.raises(bb.InputConflict, match="another input"):
            await disk.app(flow).run("job", other, run_id="r")
    with pytest.raises(bb.InputConflict):
        await disk.app(flow).run("job", "hi", params={"x": 1}, run_id="r")

    assert await contents(app.store) == before
    outcome = await disk.app(flow).run("job", run_id="r")  # without an input it goes on with its own
    assert outcome.messages == said("a", "b") and work.heard["a"] == ("hi",)


async def test_case_045_replace_gives_the_old_run_up(disk: Disk, work: Work) -> None:
    app = disk.app(work.flow("a").durable())
    await app.run("a", "hi", run_id="r")

    outcome = await app.run("a", "ho", run_id="r", replace=True)

    assert outcome.replayed == () and work.heard["a"] == ("ho",)
    with pytest.raises(bb.InputConflict):
        await app.run("a", "hi", run_id="r")


async def test_case_045_replace_waits_for_a_run_that_goes_on_and_then_starts_over(disk: Disk, work: Work) -> None:
    app, hold = disk.app(work.flow("a").durable()), work.hold("a")
    old = asyncio.create_task(app.run("a", "hi", run_id="r"))
    await hold.reached.wait()
    new = asyncio.create_task(app.run("a", "ho", run_id="r", replace=True))
    await asyncio.sleep(0.02)
    hold.go.set()

    assert (await old).answer == "a" and (await new).replayed == ()
    assert work.count("a") == 2 and work.heard["a"] == ("ho",)


async def test_case_045_a_caller_with_another_input_does_not_join(disk: Disk, work: Work) -> None:
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()
    await cut_off(disk.app(flow), work.hold("b"), "job", "hi", run_id="r")
    app, hold = disk.app(flow), work.hold("b")
    going = asyncio.create_task(app.run("job", run_id="r"))  # it goes on with the input it was started with
    await hold.reached.wait()

    other = asyncio.create_task(app.run("job", "ho", run_id="r"))
    await asyncio.wait([other], timeout=0.5)
    hold.go.set()

    with pytest.raises(bb.InputConflict):
        await other
    assert (await going).answer == "b"


@pytest.mark.parametrize("bad", ["", " ", "\n", "a/0", "../x", "a b", "é", "a" * 129, "a\x00", "C:\\x", "%2e", "a\n"])
async def test_case_046_ids_that_could_reach_into_another_run_are_refused(work: Work, bad: str) -> None:
    store = MockStore()
    app = mocked(store, work.flow("a").durable())

    for attempt in (
        lambda: app.run("a", "hi", run_id=bad),
        lambda: app.run("a", "hi", session_id=bad),
        lambda: app.submit("a", "hi", run_id=bad),
        lambda: app.cancel(bad),
        lambda: app.events(bad),
        lambda: app.forget(bad, "a"),
    ):
        with pytest.raises(bb.InvalidId):
            await attempt()
    with pytest.raises(bb.InvalidId):
        app.stream("a", "hi", run_id=bad)

    assert work.calls == [] and store.appends == 0 and not await store.list("")


@given(st.text(alphabet="abA0./:-_", min_size=1, max_size=6), st.text(alphabet="abA0./:-_", min_size=1, max_size=6))
def test_case_046_two_ids_never_share_a_stream(one: str, other: str) -> None:
    ids = []
    for id in (one, other):
        try:
            ids.append(check_id(id, "run id"))
        except bb.InvalidId:
            assert "/" in id
    streams = [stream(id) for id in set(ids) for stream in (run_stream, control_stream)]
    assert len(set(streams)) == len(streams)
    assert not any(a != b and a.startswith(b + "/") for a in streams for b in streams)


async def test_case_046_a_run_id_belongs_to_one_flow(disk: Disk, work: Work) -> None:
    one, other = work.flow("one").durable(), work.flow("other").durable()
    work.fail("one", 1)
    with pytest.raises(bb.AgentFailed):
        await disk.app(one, other).run("one", "hi", run_id="r")

    with pytest.raises(bb.RunIdInUse, match="belongs to flow 'one'"):
        await disk.app(one, other).run("other", "hi", run_id="r")
    with pytest.raises(bb.RunIdInUse):
        await disk.app(one, other).submit("other", "hi", run_id="r")

    outcome = await disk.app(one, other).run("one", "hi", run_id="r")
    assert outcome.answer == "one" and work.calls == ["one", "one"]


# --- 47: at once ------------------------------------------------------------------------------------------------------


async def test_case_047_callers_of_one_run_get_one_outcome(disk: Disk, work: Work) -> None:
    flow = work.flow("a").next(bb.Respond()).next(work.flow("b")).next(bb.Respond()).with_id("job").durable()
    app, hold = disk.app(flow), work.hold("b")
    callers = [asyncio.create_task(app.run("job", "hi", run_id="r")) for _ in range(5)]
    await hold.reached.wait()
    late = asyncio.create_task(app.run("job", "hi", run_id="r"))

    async def listen() -> str:
        async with app.stream("job", "hi", run_id="r") as stream:
            return "".join([chunk async for chunk in stream])

    listener = asyncio.create_task(listen())
    await asyncio.sleep(0.01)
    hold.go.set()

    outcomes = await asyncio.gather(*callers, late)
    assert {outcome.answer for outcome in outcomes} == {"a\n\nb"} and await listener == "a\n\nb"
    assert work.calls == ["a", "b"]


async def test_case_047_two_apps_over_one_store_run_each_leaf_once(disk: Disk, work: Work) -> None:
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()
    apps = [disk.app(flow) for _ in range(3)]

    outcomes = await asyncio.gather(*(app.run("job", "hi", run_id="r") for app in apps for _ in range(2)))

    assert {outcome.messages for outcome in outcomes} == {said("a", "b")} and work.calls == ["a", "b"]


async def test_case_047_one_that_waits_too_long_is_told_that_the_run_is_busy(disk: Disk, work: Work) -> None:
    flow = work.flow("a").durable()
    hold = work.hold("a")
    holder = asyncio.create_task(disk.app(flow).run("a", "hi", run_id="r"))
    await hold.reached.wait()

    with pytest.raises(bb.RunBusy) as raised:
        await disk.app(flow).run("a", "hi", run_id="r", wait=timedelta(seconds=0.1))

    assert raised.value.after > timedelta(0)
    hold.go.set()
    assert (await holder).answer == "a" and work.count("a") == 1


# --- 48 and 49: a store that fails ------------------------------------------------------------------------------------


async def test_case_048_a_read_that_fails_stops_the_run_before_any_effect(work: Work) -> None:
    store, seen = MockStore(), bb.Recorder()
    app = mocked(store, work.flow("a").durable(), trace=seen)
    store.fail_read(1)

    with pytest.raises(bb.StoreError):
        await app.run("a", "hi", run_id="r")

    assert work.calls == []
    assert (await app.run("a", "hi", run_id="r")).answer == "a"


async def test_case_048_an_append_that_fails_is_tried_again_and_the_effect_is_not(work: Work) -> None:
    store = MockStore()
    store.fail_append(lambda stream, records: any(b'"s"' in record for record in records), times=3)

    outcome = await mocked(store, work.flow("a").durable(retries=3)).run("a", "hi", run_id="r")

    assert outcome.answer == "a" and work.calls == ["a"]


async def test_case_048_an_append_whose_reply_is_lost_is_not_made_twice(work: Work) -> None:
    store = MockStore()
    for _ in range(4):
        store.fail_append(run_stream("r"), after=True)

    outcome = await mocked(store, work.flow("a").next(work.flow("b")).with_id("j").durable()).run("j", "hi", run_id="r")

    assert outcome.messages == said("a", "b") and work.calls == ["a", "b"]
    again = await mocked(store, work.flow("a").next(work.flow("b")).with_id("j").durable()).run("j", "hi", run_id="r")
    assert again.replayed == ("j/a", "j/b")


async def test_case_048_a_durable_flow_never_goes_on_undurable(work: Work) -> None:
    store, seen = MockStore(), bb.Recorder()
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable(retries=5)
    app = mocked(store, flow, trace=seen)
    store.fail_append(lambda stream, records: any(b'"s"' in record for record in records), times=99)

    with pytest.raises(bb.StoreError):
        await app.run("job", "hi", run_id="r")

    assert work.calls == ["a"]  # neither b nor any retry
    assert "store.error" in seen.kinds() and seen.events[-1].detail == "interrupted"
    store.clear()
    assert [run.status for run in await app.runs()] == ["interrupted"]
    outcome = await app.run("job", "hi", run_id="r")
    assert outcome.messages == said("a", "b") and work.calls == ["a", "a", "b"]  # at least once


@pytest.mark.parametrize("kind", ["all", "group", "agents"])
async def test_case_048_a_store_that_fails_for_one_member_stops_the_others_at_once(work: Work, kind: str) -> None:
    store, ended = MockStore(), list[str]()

    async def long(turn: bb.Turn, chat: bb.ModelChat) -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append("stopped")
            raise

    async def saves(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await turn.step("s", lambda: 1)

    agents = [bb.Agent("long").on_message(long), bb.Agent("saves").on_message(saves)]
    x, y = (bb.Flow().with_agent(agent).with_id(f"f{i}") for i, agent in enumerate(agents))
    shape = {"all": bb.All(x, y), "group": bb.Group(x, y), "agents": bb.Flow().with_agent(*agents)}[kind]
    app = mocked(store, shape.with_id("job").durable(retries=3))
    store.fail_append(lambda stream, records: any(b'"e"' in record for record in records), times=99)

    with pytest.raises(bb.StoreError):
        await asyncio.wait_for(app.run("job", "hi", run_id="r"), 5)

    assert ended == ["stopped"]  # what they go on to do could not be saved


async def test_case_048_a_handler_that_swallows_a_store_error_changes_nothing(work: Work) -> None:
    store = MockStore()
    tried: list[str] = []

    async def stubborn(turn: bb.Turn, chat: bb.ModelChat) -> None:
        try:
            await turn.step("pay", lambda: "paid")
        except Exception as error:
            tried.append(type(error).__name__)
        turn.reply("all is well")

    leaf = bb.Flow().with_agent(bb.Agent("stubborn").on_message(stubborn)).with_id("leaf")
    app = mocked(store, leaf.next(work.flow("b")).with_id("job").durable(retries=3))
    store.fail_append(lambda stream, records: any(b'"e"' in record for record in records), times=99)

    with pytest.raises(bb.StoreError):
        await app.run("job", "hi", run_id="r")

    assert tried == ["StoreError"] and work.calls == []


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"null",
        b'[99,0,"s",0,"job/a",0,0,{}]',
        b'[1,0,"nonsense",1]',
        b'[1,0,"s",0]',
        b'[1,0,"s",7,"job/a",0,0,{}]',
        b'[1,0,"s",0,["job/a"],0,0,{}]',
        b'[1,0,"e",0,"job/a","soon","k",1]',
        b'[1,0,"s",0,"job/a",0,0,{"m":[["assistant"]]}]',
        b'[1,0,"s",0,"job/a",0,0,{"m":7}]',
        b'[1,0,"s",0,"job/a",0,0,{"v":{"~":"attrs","c":"os.system","v":{}}}]',
        b'[1,0,"s",0,"job/a",0,0,null]',
    ],
)
@pytest.mark.parametrize("where", ["savepoint", "last"])
async def test_case_049_a_record_that_cannot_be_read_is_an_error_and_never_a_silent_rerun(
    disk: Disk, work: Work, damage: bytes, where: str
) -> None:
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()
    work.fail("b", 1)
    app = disk.app(flow)
    with pytest.raises(bb.AgentFailed):
        await app.run("job", "hi", run_id="r")
    assert (await app.run("job", "hi", run_id="good")).answer == "b"
    store, stream = app.store, run_stream("r")
    records = await store.read(stream)
    at = next(i for i, record in enumerate(records) if b'"s",' in record) if where == "savepoint" else len(records) - 1
    await store.delete(stream, leave=[*records[:at], damage, *records[at + 1 :]])
    kept, calls = await contents(store), list(work.calls)

    with pytest.raises(bb.CorruptRecord) as raised:
        await disk.app(flow).run("job", "hi", run_id="r")

    assert "r" in str(raised.value) and ("record" in str(raised.value) or "job/a" in str(raised.value))
    assert work.calls == calls
    assert (await contents(store))[stream][: len(records)] == kept[stream]
    runs = {run.run_id: run.status for run in await disk.app(flow).runs()}
    assert runs["good"] == "finished"  # one that cannot be read does not hide the others


# --- 50 to 53: crashes ------------------------------------------------------------------------------------------------


async def test_case_050_a_savepoint_is_written_although_the_caller_is_gone(work: Work) -> None:
    store = MockStore()
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()
    app = mocked(store, flow)
    hang = store.hang_append(lambda stream, records: any(b'"s"' in record for record in records))
    task = asyncio.create_task(app.run("job", "hi", run_id="r"))
    await until(lambda: hang.reached)

    task.cancel()
    await asyncio.sleep(0.05)
    task.cancel()  # an impatient one cancels twice
    await asyncio.sleep(0.05)
    hang.release()
    with pytest.raises(asyncio.CancelledError):
        await task

    outcome = await mocked(store, flow).run("job", "hi", run_id="r")
    assert outcome.replayed == ("job/a",) and work.calls == ["a", "b"]


async def test_case_051_after_the_client_has_gone_finished_leaves_replay(disk: Disk, work: Work) -> None:
    flow = work.flow("a").next(work.flow("b")).next(work.flow("c")).with_id("job").durable()
    app = disk.app(flow)
    await cut_off(app, work.hold("c"), "job", "hi", run_id="r")
    (run,) = await app.runs()
    assert (run.status, run.flow, run.attempts) == ("interrupted", "job", 1)

    outcome = await app.run("job", "hi", run_id="r")

    assert outcome.replayed == ("job/a", "job/b") and work.calls == ["a", "b", "c", "c"]


async def test_case_051_a_client_that_comes_back_at_once_gets_its_outcome(disk: Disk, work: Work) -> None:
    app = disk.app()

    async def lingering(turn: bb.Turn, chat: bb.ModelChat) -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)  # cleaning up takes a while
            raise

    linger = bb.Flow().with_agent(bb.Agent("linger").on_message(lingering)).with_id("linger")
    race = work.flow("a").next(bb.One(linger, work.flow("b"))).with_id("race").durable()
    app.register(race)
    held = work.hold("b")
    first = asyncio.create_task(app.run("race", "hi", run_id="r"))
    await held.reached.wait()
    first.cancel()
    await asyncio.sleep(0.01)  # it is winding down
    assert not first.done()

    second = await app.run("race", "hi", run_id="r")

    assert second.answer == "b" and second.replayed == ("race/a",)
    with pytest.raises(asyncio.CancelledError):
        await first


SCRIPT = """
    import asyncio, os, signal, sys
    import bb
    from pathlib import Path

    log, kind, mode = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

    def leaf(name, die=False):
        async def handler(turn, chat):
            with log.open("a") as out:
                out.write(name + "\\n")
            if die and mode == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            turn.reply(name)
        return bb.Flow().with_agent(bb.Agent(name).on_message(handler)).with_id(name)

    flow = leaf("a").next(leaf("b", die=True)).with_id("job").durable()
    store = bb.FileStore(log.parent / "state") if kind == "file" else bb.MemStore()
    app = bb.App(store=store)
    outcome = asyncio.run(app.run(flow, "hi", run_id="r"))
    print(outcome.answer, *outcome.replayed)
"""


@pytest.mark.parametrize(("kind", "replays"), [("file", True), ("memory", False)])
def test_case_052_a_killed_process_is_taken_up_by_the_next(tmp_path: Path, kind: str, replays: bool) -> None:
    log = tmp_path / "log"

    def process(mode: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(log), kind, mode]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    killed = process("die")
    assert killed.returncode == -9, killed.stderr
    second = process("live")  # at once: the lease of a dead process is free

    assert second.stderr == "" and second.returncode == 0
    if replays:
        assert second.stdout.split() == ["b", "job/a"] and log.read_text().split() == ["a", "b", "b"]
    else:
        assert second.stdout.split() == ["b"] and log.read_text().split() == ["a", "b", "a", "b"]


async def test_case_053_an_effect_before_its_savepoint_happens_again(work: Work) -> None:
    store = MockStore()
    flow = work.flow("a").durable()
    store.crash_at(lambda stream, records: any(b'"s"' in record for record in records))
    with pytest.raises(Crash):
        await mocked(store, flow).run("a", "hi", run_id="r")
    store.revive()

    assert (await mocked(store, flow).run("a", "hi", run_id="r")).answer == "a"

    assert work.count("a") == 2


async def test_case_053_the_idempotency_key_tells_the_service_so(work: Work) -> None:
    store, keys = MockStore(), list[str]()

    async def pay(turn: bb.Turn, chat: bb.ModelChat) -> None:
        keys.append(bb.idempotency_key("charge"))
        turn.reply("paid")

    flow = bb.Flow().with_agent(bb.Agent("pay").on_message(pay)).with_id("pay").durable()
    store.crash_at(lambda stream, records: any(b'"s"' in record for record in records))
    with pytest.raises(Crash):
        await mocked(store, flow).run("pay", "hi", run_id="r")
    store.revive()
    await mocked(store, flow).run("pay", "hi", run_id="r")
    await mocked(store, flow).run("pay", "hi", run_id="other")

    assert keys[0] == keys[1] != keys[2]


async def test_case_053_the_key_belongs_to_the_place_and_outlasts_every_kind_of_retry(disk: Disk, work: Work) -> None:
    keys: dict[str, list[str]] = {}
    calls = 0

    def note(what: str) -> None:
        keys.setdefault(what, []).append(bb.idempotency_key())

    def payer(name: str) -> bb.Agent[str]:
        async def pay(turn: bb.Turn, chat: bb.ModelChat) -> None:
            note(f"{turn.path} {name}")
            keys.setdefault(f"{turn.path} {name} label", []).append(bb.idempotency_key("refund"))
            for amount in (1, 2):
                await turn.step("charge", lambda amount: note(f"{turn.path} {name} step {amount}"), amount)
            if calls < 3:
                raise ValueError("not yet")
            turn.reply(name)

        return bb.Agent(name).on_message(pay)

    async def send(text: str) -> None:
        note("notify")
        if calls < 4:
            raise ValueError("not yet")

    both = bb.Flow().with_agent(payer("x"), payer("y"))
    body = work.flow("a").durable().next(bb.All(both.with_id("p"), both.with_id("q"))).next(bb.Notify(send))
    flow = body.with_id("job").durable(retries=1)
    for _ in range(4):
        calls += 1
        with suppress(bb.AgentFailed, bb.NotifyFailed):
            await disk.app(flow, clock=ManualClock(auto=True)).run("job", "hi", run_id="r")

    assert len(keys) == 2 * 2 * 4 + 1
    assert all(len(set(tries)) == 1 for tries in keys.values())  # the same in each try
    assert len({tries[0] for tries in keys.values()}) == len(keys)  # and another in each place
    assert all(len(tries) == 1 for what, tries in keys.items() if "step" in what)
    assert max(len(tries) for tries in keys.values()) > 2


# --- 54: retries ------------------------------------------------------------------------------------------------------


async def test_case_054_retries_come_after_growing_pauses(work: Work) -> None:
    clock = ManualClock(auto=True, jitter=0.5)
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable(retries=2)
    work.fail("b", 2)

    outcome = await mocked(MockStore(), flow, clock=clock).run("job", "hi", run_id="r")

    assert outcome.messages == said("a", "b") and work.calls == ["a", "b", "b", "b"]
    assert clock.slept == [0.375, 0.75]


async def test_case_054_after_the_last_retry_the_error_comes_out(work: Work) -> None:
    store, seen = MockStore(), bb.Recorder()
    app = mocked(store, work.flow("a").durable(retries=2), trace=seen)
    work.fail("a", 3)

    with pytest.raises(bb.AgentFailed, match="a fails"):
        await app.run("a", "hi", run_id="r")

    assert work.count("a") == 3
    (run,) = await app.runs()
    assert (run.status, run.attempts) == ("failed", 3) and "a fails" in run.error
    assert [event.attempt for event in seen.events if event.kind == "flow.start"] == [1, 2, 3]


async def test_case_054_a_caller_who_comes_again_starts_a_new_budget(work: Work) -> None:
    app = mocked(MockStore(), work.flow("a").durable(retries=1))
    work.fail("a", 3)
    with pytest.raises(bb.AgentFailed):
        await app.run("a", "hi", run_id="r")

    assert (await app.run("a", "hi", run_id="r")).answer == "a"

    assert work.count("a") == 4


@pytest.mark.parametrize("after", [False, True])
async def test_case_054_a_crash_does_not_reset_the_count(work: Work, after: bool) -> None:
    store = MockStore()
    flow = work.flow("a").durable(retries=2)
    work.fail("a", 9)
    store.crash_at(
        lambda stream, records: any(b'"fail"' in record for record in records), "after" if after else "before"
    )
    with pytest.raises(Crash):
        await mocked(store, flow).run("a", "hi", run_id="r")
    store.revive()

    with pytest.raises(bb.AgentFailed):
        await mocked(store, flow).run("a", "hi", run_id="r")

    # the first failure counts only where it came to be recorded
    assert work.count("a") == (3 if after else 4)
    (run,) = await mocked(store, flow).runs()
    assert run.status == "failed"


async def test_case_054_a_crash_during_the_pause_does_not_reset_the_count_either(work: Work) -> None:
    store = MockStore()
    flow = work.flow("a").durable(retries=2)
    work.fail("a", 9)
    clock = ManualClock()  # it stands still, so the run hangs in its first pause
    first = asyncio.create_task(mocked(store, flow, clock=clock).run("a", "hi", run_id="r"))
    await until(lambda: clock.slept)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first

    with pytest.raises(bb.AgentFailed):
        await mocked(store, flow).run("a", "hi", run_id="r")

    assert work.count("a") == 3


@pytest.mark.parametrize(
    "error",
    [bb.Fatal("no"), bb.UpstreamRejected("no", status=400), ExceptionGroup("two", [ValueError(), bb.Fatal("no")])],
)
async def test_case_054_what_is_fatal_is_not_tried_again(work: Work, error: Exception) -> None:
    app = mocked(MockStore(), work.flow("a").durable(retries=5))
    work.fail("a", error)

    with pytest.raises(bb.AgentFailed) as raised:
        await app.run("a", "hi", run_id="r")

    assert work.count("a") == 1 and raised.value.__cause__ is error


# --- 55: ttl ----------------------------------------------------------------------------------------------------------


async def test_case_055_an_outlived_run_is_a_tombstone(disk: Disk, work: Work) -> None:
    clock = ManualClock(auto=True)
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable(ttl=timedelta(hours=1))
    work.fail("b", 1)
    app = disk.app(flow, clock=clock)
    with pytest.raises(bb.AgentFailed):
        await app.run("job", "hi", run_id="r")
    before = sum(map(len, (await contents(app.store))[run_stream("r")]))
    clock.advance(timedelta(hours=1, seconds=1))

    given: tuple[Any, ...] = ("hi", bb.RESUME)
    for input in given:
        with pytest.raises(bb.RunExpired, match="ttl"):
            await app.run("job", input, run_id="r")
    with pytest.raises(bb.RunExpired):
        await app.submit("job", "hi", run_id="r")

    assert work.calls == ["a", "b"]
    assert [(run.status, run.flow) for run in await app.runs()] == [("expired", "job")]
    assert sum(map(len, (await contents(app.store))[run_stream("r")])) < before / 2
    outcome = await app.run("job", "hi", run_id="r", replace=True)
    assert outcome.replayed == () and work.calls == ["a", "b", "a", "b"]
    clock.advance(timedelta(hours=2))
    assert (await app.run("job", "hi", run_id="r")).replayed == ("job/a", "job/b")  # the ttl is for unfinished runs


async def test_case_055_submitting_a_run_that_outlived_its_ttl_is_refused(disk: Disk, work: Work) -> None:
    clock = ManualClock(auto=True)
    app = disk.app(work.flow("a").durable(ttl=timedelta(hours=1)), clock=clock)
    await app.submit("a", "hi", run_id="r")
    clock.advance(timedelta(hours=2))

    with pytest.raises(bb.RunExpired):
        await app.submit("a", "hi", run_id="r")


async def test_case_055_progress_keeps_a_run(disk: Disk, work: Work) -> None:
    clock = ManualClock(auto=True)
    names = ("a", "b", "c")
    flow = work.flow("a").next(work.flow("b")).next(work.flow("c")).with_id("job").durable(ttl=timedelta(hours=1))
    app = disk.app(flow, clock=clock)

    for name in names[1:]:
        await cut_off(app, work.hold(name), "job", "hi", run_id="r")
        clock.advance(timedelta(minutes=50))

    assert (await app.run("job", "hi", run_id="r")).messages == said(*names)


async def test_case_055_progress_inside_a_handler_counts(disk: Disk) -> None:
    clock, done = ManualClock(auto=True), list[int]()
    holds = [Hold(), Hold()]

    async def worker(turn: bb.Turn, chat: bb.ModelChat) -> None:
        for number in range(3):
            before = len(done)
            await turn.step("part", done.append, number)
            if before == number < 2:
                holds[number].reached.set()
                await holds[number].go.wait()
        turn.reply("done")

    flow = bb.Flow().with_agent(bb.Agent("worker").on_message(worker)).with_id("w").durable(ttl=timedelta(hours=1))
    app = disk.app(flow, clock=clock)
    for hold in holds:
        clock.advance(timedelta(minutes=50))
        await cut_off(app, hold, "w", "hi", run_id="r")

    clock.advance(timedelta(minutes=50))
    assert (await app.run("w", "hi", run_id="r")).answer == "done" and done == [0, 1, 2]


async def test_case_055_an_outlived_job_is_not_resumed(disk: Disk, work: Work) -> None:
    clock = ManualClock(auto=True)
    flow = work.flow("a").durable(ttl=timedelta(hours=1))
    await disk.app(flow, clock=clock).submit("a", "hi", run_id="r")
    clock.advance(timedelta(hours=2))

    app = disk.app(flow, clock=clock)
    await app.start()

    async def expired() -> bool:
        return [run.status for run in await app.runs()] == ["expired"]

    await until(expired)
    assert work.calls == []


async def test_case_055_prune_frees_what_is_over(disk: Disk, work: Work) -> None:
    clock = ManualClock(auto=True)
    flow = work.flow("a").durable(ttl=timedelta(hours=1))
    app = disk.app(flow, clock=clock, retention=timedelta(days=1))
    await app.run("a", "hi", run_id="finished")
    work.fail("a", 1)
    with pytest.raises(bb.AgentFailed):
        await app.run("a", "hi", run_id="failed")
    assert await app.prune() == 0
    clock.advance(timedelta(hours=2))

    assert await app.prune() == 1
    assert {run.run_id: run.status for run in await app.runs()} == {"finished": "finished", "failed": "expired"}
    clock.advance(timedelta(days=1, seconds=1))

    assert await app.prune() == 2
    assert [name for name in await contents(app.store) if not name.startswith("tree/")] == []


async def test_case_055_a_ttl_longer_than_the_retention_holds(disk: Disk, work: Work) -> None:
    clock = ManualClock(auto=True)
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable(ttl=timedelta(days=30))
    app = disk.app(flow, clock=clock, retention=timedelta(days=7))
    await cut_off(app, work.hold("b"), "job", "hi", run_id="r")
    clock.advance(timedelta(days=20))

    assert await app.prune() == 0

    assert (await app.run("job", "hi", run_id="r")).replayed == ("job/a",)


async def test_case_055_the_longest_ttl_of_the_outermost_durable_flows_counts(disk: Disk, work: Work) -> None:
    clock = ManualClock(auto=True)
    short = work.flow("a").next(work.flow("i").durable(ttl=timedelta(days=9))).with_id("short")
    flow = short.durable(ttl=timedelta(hours=1)).next(work.flow("b").durable(ttl=timedelta(hours=3))).with_id("job")
    app = disk.app(flow, clock=clock)
    await cut_off(app, work.hold("b"), "job", "hi", run_id="r")
    clock.advance(timedelta(hours=2))
    await cut_off(app, work.hold("b"), "job", "hi", run_id="r")  # longer than the shorter one
    clock.advance(timedelta(hours=4))

    with pytest.raises(bb.RunExpired):  # that of a durable flow inside a durable flow does not count
        await app.run("job", "hi", run_id="r")


async def test_case_055_a_run_of_which_some_part_has_no_ttl_does_not_expire(disk: Disk, work: Work) -> None:
    clock = ManualClock(auto=True)
    flow = work.flow("a").durable(ttl=timedelta(hours=1)).next(work.flow("b").durable()).with_id("job")
    app = disk.app(flow, clock=clock)
    await cut_off(app, work.hold("b"), "job", "hi", run_id="r")
    clock.advance(timedelta(days=2))

    assert (await app.run("job", "hi", run_id="r")).replayed == ("job/a",)


# --- 56: jobs ---------------------------------------------------------------------------------------------------------


async def statuses(app: bb.App) -> dict[str, str]:
    return {run.run_id: run.status for run in await app.runs()}


async def finished(app: bb.App, *run_ids: str) -> None:
    async def all_are() -> bool:
        found = await statuses(app)
        return all(found.get(run_id) == "finished" for run_id in run_ids)

    await until(all_are)


async def test_case_056_a_job_left_unfinished_resumes_at_the_next_start(disk: Disk, work: Work) -> None:
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()
    first, hold = disk.app(flow), work.hold("b")
    async with first:
        assert await first.submit("job", "hi", run_id="r") == "r"
        await hold.reached.wait()
        await first.stop(timedelta(0))
    assert await statuses(first) == {"r": "interrupted"}

    async with disk.app(flow) as second:
        await finished(second, "r")

    assert work.calls == ["a", "b", "b"] and work.heard["a"] == ("hi",)
    (resumed,) = [event for event in await disk.app(flow).events("r") if event.detail == "recovery"]
    assert resumed.kind == "run.resumed"  # by itself, which its log says


async def test_case_056_a_run_of_a_caller_waits_for_its_caller(disk: Disk, work: Work) -> None:
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()
    await cut_off(disk.app(flow), work.hold("b"), "job", "hi", run_id="callers")
    await disk.app(flow).submit("job", "hi", run_id="job")

    async with disk.app(flow) as app:
        await finished(app, "job")
        assert (await statuses(app))["callers"] == "interrupted"


async def test_case_056_with_resume_on_reregister_it_waits_for_that(disk: Disk, work: Work) -> None:
    flow = work.flow("a").durable(resume_on_reregister=True)
    await disk.app(flow).submit("a", "hi", run_id="r")

    async with disk.app(flow) as app:
        await asyncio.sleep(0.1)
        assert work.calls == [] and await statuses(app) == {"r": "queued"}
        app.register(work.flow("other").durable())
        await asyncio.sleep(0.05)
        assert work.calls == []
        app.register(flow)
        await finished(app, "r")

    assert work.calls == ["a"]


async def test_case_056_a_job_waits_for_its_flow_to_be_registered(disk: Disk, work: Work) -> None:
    flow = work.flow("a").durable()
    await disk.app(flow).submit("a", "hi", run_id="r")

    async with disk.app() as app:
        await asyncio.sleep(0.05)
        assert await statuses(app) == {"r": "queued"}
        app.register(flow)
        await finished(app, "r")


async def test_case_056_one_that_cannot_be_recovered_does_not_stop_the_others(disk: Disk, work: Work) -> None:
    flow = work.flow("a").durable()
    app = disk.app(flow)
    for run_id in ("a1", "b2", "c3", "d4", "e5"):
        await app.submit("a", "hi", run_id=run_id)
    for run_id, damage in (("b2", b"junk"), ("d4", b'[1,0,"s",9,"a",0,0,{}]')):
        records = await app.store.read(run_stream(run_id))
        await app.store.append(run_stream(run_id), len(records), [damage])
    await app.store.append(RUNS + "headless", 0, [b'[1,0,"forget","a",""]'])

    async with disk.app(flow) as again:
        await finished(again, "a1", "c3", "e5")

    assert work.count("a") == 3


async def test_case_056_a_job_that_failed_is_left_to_people(disk: Disk, work: Work) -> None:
    flow = work.flow("a").durable()
    work.fail("a", 1)
    async with disk.app(flow) as app:
        await app.submit("a", "hi", run_id="r")

        async def failed() -> bool:
            return await statuses(app) == {"r": "failed"}

        await until(failed)

    async with disk.app(flow) as again:
        await asyncio.sleep(0.05)
        assert work.count("a") == 1
        assert (await again.run("a", "hi", run_id="r")).answer == "a"


async def test_case_056_a_job_that_kills_its_process_is_stuck_after_five_times(work: Work) -> None:
    store = MockStore()
    flow = work.flow("a").durable()
    await mocked(store, flow).submit("a", "hi", run_id="r")
    for _ in range(5):
        hold, app = work.hold("a"), mocked(store, flow)
        await app.start()
        await hold.reached.wait()
        store.crash()
        await app.stop(timedelta(0))
        store.revive()
    assert work.count("a") == 5

    async with mocked(store, flow) as app:
        await asyncio.sleep(0.05)
        assert await statuses(app) == {"r": "stuck"} and work.count("a") == 5
        outcome = await app.run("a", run_id="r")  # people may

    assert outcome.answer == "a"


async def test_case_056_submitting_again_changes_nothing(disk: Disk, work: Work) -> None:
    flow = work.flow("a").durable()
    async with disk.app(flow) as app:
        for _ in range(3):
            await app.submit("a", "hi", run_id="r")
        await finished(app, "r")
        before = await contents(app.store)
        await app.submit("a", "hi", run_id="r")
        with pytest.raises(bb.InputConflict):
            await app.submit("a", "ho", run_id="r")
        await asyncio.sleep(0.05)
        assert await contents(app.store) == before

    assert work.count("a") == 1


async def test_case_056_stop_takes_no_more_jobs(disk: Disk, work: Work) -> None:
    flow = work.flow("a").durable()
    app = disk.app(flow, workers=1)
    await app.start()
    hold = work.hold("a")
    for run_id in ("one", "two", "three"):
        await app.submit("a", "hi", run_id=run_id)
    await hold.reached.wait()

    stopping = asyncio.create_task(app.stop(timedelta(seconds=5)))
    await asyncio.sleep(0.02)
    hold.go.set()
    await stopping
    await asyncio.sleep(0.05)

    assert work.count("a") == 1 and sorted((await statuses(app)).values()) == ["finished", "queued", "queued"]


async def test_case_056_what_is_no_job_is_refused(disk: Disk, work: Work) -> None:
    app = disk.app(work.flow("plain"))

    with pytest.raises(bb.WiringError, match="not durable"):
        await app.submit("plain", "hi")
    with pytest.raises(bb.WiringError, match="not registered"):
        await app.submit(work.flow("a").durable(), "hi")
    with pytest.raises(bb.UnknownFlow):
        await app.submit("nobody", "hi")


# --- 57: notifications ------------------------------------------------------------------------------------------------


async def test_case_057_a_notification_is_not_sent_twice(disk: Disk, work: Work) -> None:
    sent: list[str] = []

    async def post(text: str) -> None:
        sent.append(text)

    flow = work.flow("a").next(bb.Notify(post)).next(work.flow("b")).with_id("job").durable()
    work.fail("b", 1)
    seen = bb.Recorder()
    with pytest.raises(bb.AgentFailed):
        await disk.app(flow).run("job", "hi", run_id="r")

    await disk.app(flow, trace=seen).run("job", "hi", run_id="r")

    assert sent == ["a"] and seen.paths("notify") == []
    assert seen.paths("flow.cached") == ["job/a", "job/body~notify.1"]


async def test_case_057_one_that_failed_is_sent_again(work: Work) -> None:
    sent: list[str] = []

    async def post(text: str) -> None:
        sent.append(text)
        if len(sent) < 3:
            raise OSError("the pager is down")

    flow = work.flow("a").next(bb.Notify(post)).with_id("job").durable(retries=2)

    await mocked(MockStore(), flow).run("job", "hi", run_id="r")

    assert sent == ["a", "a", "a"] and work.count("a") == 1


@pytest.mark.parametrize("error", [bb.OpFailed("the pager is down"), bb.Fatal("no such number")], ids=["once", "fatal"])
async def test_case_057_an_error_of_bb_that_a_sender_raises_is_passed_on_as_it_is(
    work: Work, error: bb.BBError
) -> None:
    """As that of a handler is: so a sender says itself what is worth another try."""
    sent: list[str] = []

    async def post(text: str) -> None:
        sent.append(text)
        raise error

    flow = work.flow("a").next(bb.Notify(post)).with_id("job").durable(retries=1)

    with pytest.raises(type(error)) as raised:
        await mocked(MockStore(), flow).run("job", "hi", run_id="r")

    assert raised.value is error and len(sent) == (1 if isinstance(error, bb.Fatal) else 2)


async def test_case_057_outside_a_durable_flow_it_is_sent_each_time(disk: Disk, work: Work) -> None:
    sent: list[str] = []

    async def post(text: str) -> None:
        sent.append(text)

    flow = work.flow("a").durable().next(bb.Notify(post)).with_id("job")
    for _ in range(2):
        await disk.app(flow).run("job", "hi", run_id="r")

    assert sent == ["a", "a"] and work.count("a") == 1


# --- 58: many runs ----------------------------------------------------------------------------------------------------


def test_case_058_the_names_of_many_runs_are_all_different() -> None:
    # A stream is found by its whole name and no hash of it, so two runs can only meet if their names do: 100,000 real runs
    # would prove no more than this and the smaller number below, and take minutes.
    ids = [f"{kind}{n}" for n in range(25_000) for kind in ("run-", "RUN-", "run.", "r:")]
    assert len({run_stream(id) for id in ids}) == len(ids) == 100_000


async def test_case_058_no_run_gets_the_savepoint_of_another(tmp_path: Path) -> None:
    async def echo(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.reply(turn.run_id)

    flow = bb.Flow().with_agent(bb.Agent("echo").on_message(echo)).with_id("echo").durable()
    ids = [f"{kind}-{n}" for n in range(750) for kind in ("run", "RUN")]
    answers: dict[str, str] = {}
    for again in (False, True):
        app = bb.App(store=bb.FileStore(tmp_path / "state"))
        for at in range(0, len(ids), 250):
            outcomes = await asyncio.gather(*(app.run(flow, "hi", run_id=id) for id in ids[at : at + 250]))
            assert all(bool(outcome.replayed) is again for outcome in outcomes)
            answers |= {outcome.run_id: outcome.answer for outcome in outcomes}
        assert answers == {id: id for id in ids}
        await app.stop()


# --- what people see --------------------------------------------------------------------------------------------------


async def test_events_tell_the_story_of_a_run(disk: Disk, work: Work) -> None:
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()
    work.fail("b", 1)
    app = disk.app(flow)
    with pytest.raises(bb.AgentFailed):
        await app.run("job", "hi", run_id="r")
    await app.run("job", "hi", run_id="r")

    told: list[tuple[Any, ...]] = [(e.kind, e.path, e.attempt) for e in await app.events("r")]

    assert told == [
        ("run.start", "job", 1),
        ("flow.end", "job/a", 1),
        ("run.end", "job/b", 1),
        ("run.resumed", "job", 2),
        ("flow.end", "job/b", 2),
        ("run.end", "job", 2),
    ]
    with pytest.raises(bb.UnknownRun):
        await app.events("nobody")
