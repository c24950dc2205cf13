"""A run as people look at it: how each part of its flow stands, page by page, and what is at one place."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

import bb
from bb.engine.runs.picture import Step
from bb.engine.runs.viewer import Viewer
from bb.flows.tree import (
    Await,
    Bind,
    Call,
    Checkpoint,
    Each,
    Emit,
    Every,
    Once,
    Repeat,
    Retry,
    Run,
    Saga,
    Scope,
    Try,
    Unless,
    When,
)
from bb.flows.tree import Step as SagaStep
from bb.log import run_stream
from bb.ops import op
from bb.testing.clock import ManualClock
from tests.trials.kit import Disk, Work, cut_off, until


@op()
def pay(item: str) -> str:
    """Pays."""
    return f"paid for {item}"


@op()
def give_back(item: str) -> str:
    """Undoes that."""
    return f"{item} given back"


@op()
def refuse(item: str) -> str:
    """Fails."""
    raise RuntimeError(f"no {item} is left")


OPS = [pay, give_back, refuse]


def viewer(app: bb.App) -> Viewer:
    return Viewer(app._runner, app._archive, app._flows.all)


def steps(step: Step) -> Iterator[Step]:
    yield step
    for part in step.parts:
        yield from steps(part)


async def seen(app: bb.App, run_id: str = "r") -> dict[str, Step]:
    """The parts of a run by path; of those at one path the innermost."""
    return {step.path: step for step in steps((await viewer(app).picture(run_id)).root)}


async def standings(app: bb.App, run_id: str = "r") -> dict[str, str]:
    return {path: step.standing for path, step in (await seen(app, run_id)).items()}


async def failed(app: bb.App, flow: str, run_id: str = "r") -> bb.BBError:
    with pytest.raises(bb.BBError) as caught:
        await app.run(flow, "hi", run_id=run_id)
    return caught.value


def abc(work: Work, retries: int = 0) -> bb.DurableFlow:
    beside = bb.All(work.flow("b"), work.flow("c"))
    return (work.flow("a") >> beside >> work.flow("d")).with_id("f").durable(retries=retries)


async def test_a_finished_run_tells_when_each_part_ran(disk: Disk, work: Work) -> None:
    app = disk.app(abc(work))
    await app.run("f", "hi", run_id="r")

    run = await viewer(app).picture("r")
    found = await seen(app)

    assert {step.standing for step in found.values()} == {"done"}
    assert [path.rpartition("/")[2] for path in found] == ["f", "a", "body~all.1", "b", "c", "d"]
    ends = [found[f"f/{path}"] for path in ("a", "body~all.1", "d")]
    assert all(step.began and step.ended and run.info.started <= step.began <= step.ended for step in ends)
    assert (run.info.status, run.info.attempts, run.is_known, run.is_changed) == ("finished", 1, True, False)
    assert [attempt.cause for attempt in run.attempts] == ["start"]


async def test_what_failed_what_replayed_and_what_was_not_reached(disk: Disk, work: Work) -> None:
    app = disk.app(abc(work, retries=1))
    work.fail("c", 2)
    await failed(app, "f")
    found = await seen(app)

    assert {path: step.standing for path, step in found.items()} == {
        "f": "failed",
        "f/a": "done",
        "f/body~all.1": "failed",
        "f/body~all.1/b": "done",
        "f/body~all.1/c": "failed",
        "f/d": "pending",
    }
    assert (found["f/a"].attempt, found["f/a"].replays) == (1, 1)
    told = found["f/body~all.1/c"].failures
    assert [(failure.attempt, failure.final, failure.error) for failure in told] == [
        (1, False, "ValueError"),
        (2, True, "ValueError"),
    ]
    assert all("c fails" in one.detail and " (at " not in one.detail and one.began <= one.at for one in told)
    run = await viewer(app).picture("r")
    assert [attempt.cause for attempt in run.attempts] == ["start", "retry"]


async def test_a_failure_that_was_recorded_without_its_place_is_shown_at_its_flow(disk: Disk, work: Work) -> None:
    app = disk.app(abc(work, retries=1))
    work.fail("c", 1)
    await app.run("f", "hi", run_id="r")
    found = await seen(app)
    [failure] = found["f/body~all.1/c"].failures
    first = found["f/a"].ended
    assert first is not None and first <= failure.began <= failure.at  # it ran after what comes before it
    records = await app.store.read(run_stream("r"))
    older = [record.replace(b',"f/body~all.1/c"]', b"]") for record in records]  # as a release before wrote it
    assert older != records
    await app.store.delete(run_stream("r"), leave=older)

    found = await seen(app)

    assert found["f/body~all.1/c"].failures == () and "c fails" in found["f"].failures[0].detail
    assert {step.standing for step in found.values()} == {"done"}


async def test_where_a_run_is_at_work(disk: Disk, work: Work) -> None:
    app = disk.app(abc(work))
    hold = work.hold("c")
    task = asyncio.create_task(app.run("f", "hi", run_id="r"))
    await hold.reached.wait()
    await until(lambda: work.count("b"))
    await until(_saved(app, "f/body~all.1/b"))
    found = await seen(app)
    assert {path: step.standing for path, step in found.items()} == {
        "f": "running",
        "f/a": "done",
        "f/body~all.1": "running",
        "f/body~all.1/b": "done",
        "f/body~all.1/c": "running",
        "f/d": "pending",
    }
    assert found["f/body~all.1/c"].began == found["f/a"].ended and found["f/body~all.1/c"].ended is None
    task.cancel()
    with pytest.raises((asyncio.CancelledError, bb.Interruption)):
        await task
    assert (await standings(app))["f/body~all.1/c"] == "open"


async def test_what_a_handler_remembers_shows_while_it_is_at_work(disk: Disk) -> None:
    steps = [asyncio.Event(), asyncio.Event()]

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        for number, step in enumerate(steps):
            await turn.step("look up", _found, str(number))
            await step.wait()

    app = disk.app(bb.Flow().with_agent(bb.Agent("a").on_message(handler)).with_id("f").durable())
    task = asyncio.create_task(app.run("f", "hi", run_id="r"))
    for number, step in enumerate(steps, 1):
        await until(_remembered(app, number))
        assert len((await viewer(app).detail("r", "f")).entries) == number
        step.set()
    await task


def _remembered(app: bb.App, number: int) -> object:
    async def look() -> bool:
        try:
            return (await seen(app))["f"].entries == number
        except bb.UnknownRun:
            return False

    return look


def _saved(app: bb.App, path: str) -> object:
    async def look() -> bool:
        return (await seen(app))[path].standing == "done"

    return look


async def test_a_run_that_is_cut_off_goes_on_and_replays(disk: Disk, work: Work) -> None:
    await cut_off(disk.app(abc(work)), work.hold("d"), "f", "hi", run_id="r")
    app = disk.app(abc(work))
    assert (await standings(app))["f/d"] == "open"

    await app.run("f", run_id="r")
    found = await seen(app)

    assert {path: step.replays for path, step in found.items() if not step.parts} == {
        "f/a": 1,
        "f/body~all.1/b": 1,
        "f/body~all.1/c": 1,
        "f/d": 0,
    }


async def test_what_a_parked_run_waits_for(disk: Disk, work: Work) -> None:
    flow = (Emit("Who?") >> Await("user", bind="x") >> work.flow("a")).with_id("f").durable()
    app = disk.app(flow)
    await app.run("f", "hi", run_id="r")
    run = await viewer(app).picture("r")
    found = await seen(app)

    assert run.asks == "Who?" and run.info.waiting_for == "user" and run.session_id == "r"
    assert (found["f/body~await.1"].standing, found["f/body~await.1"].waits_for) == ("waiting", "user")
    assert (found["f"].standing, found["f/a"].standing) == ("waiting", "pending")
    assert found["f/body~emit.0"].standing == "unrecorded"

    await app.deliver("user", "Ann", session_id="r")
    await until(_finished(app))
    found = await seen(app)
    waited = found["f/body~await.1"]
    assert waited.standing == "done" and waited.began is not None and waited.ended is not None
    assert [attempt.cause for attempt in (await viewer(app).picture("r")).attempts] == ["start", "event"]


def _finished(app: bb.App, run_id: str = "r") -> object:
    async def look() -> bool:
        return {run.run_id: run.status for run in await app.runs()}.get(run_id) == "finished"

    return look


async def test_branches_that_were_taken_and_not(disk: Disk, work: Work) -> None:
    work.picks["a"] = "right"
    work.hold("n")
    flow = (
        work.flow("a")
        >> bb.Select(work.flow("left"), work.flow("right"))
        >> When(True, work.flow("yes"), otherwise=work.flow("no"))
        >> Unless(True, Emit("never"))
        >> bb.One(work.flow("m"), work.flow("n"))
    )
    app = disk.app(flow.with_id("f").durable())
    await app.run("f", "hi", run_id="r")
    found = await seen(app)

    assert {path.rpartition("/")[2]: step.standing for path, step in found.items() if not step.parts} == {
        "a": "done",
        "left": "skipped",
        "right": "done",
        "yes": "done",
        "no": "skipped",
        "body~emit.0": "unrecorded",
        "m": "done",
        "n": "skipped",
    }
    assert found["f/body~one.4"].decided == "m"
    assert (found["f/body~when.2/yes"].slot, found["f/body~when.2/no"].slot) == ("then", "otherwise")


async def test_rounds_and_tries_are_parts_of_their_own(disk: Disk, work: Work) -> None:
    work.fail("t", 1)
    flow = (
        Each("i", [1, 2, 3], work.flow("e"))
        >> Repeat(2, work.flow("g"))
        >> Retry(3, work.flow("s"), work.flow("t"), delay=timedelta(milliseconds=1))
        >> work.flow("z")
    )
    app = disk.app(flow.with_id("f").durable())
    await app.run("f", "hi", run_id="r")
    root = (await viewer(app).picture("r")).root

    each, repeat, retry, last = root.parts
    assert [(part.kind, part.path, part.standing) for part in each.parts] == [
        ("round", f"f/body~each.0#{number}", "done") for number in range(3)
    ]
    assert len(repeat.parts) == 2 and last.standing == "done"
    first, second = retry.parts
    assert (first.kind, first.standing, second.standing, retry.standing) == ("attempt", "failed", "done", "done")
    assert "t fails" in str(first.decided) and retry.decided is None
    assert [part.standing for part in first.parts] == ["done", "open"]
    assert [part.path for part in second.parts] == ["f/body~retry.2@1/s", "f/body~retry.2@1/t"]


async def test_what_was_caught(disk: Disk, work: Work) -> None:
    flow = Try(work.flow("a"), Call("refuse", ["x"]), work.flow("b"), catch="e", handler=work.flow("h"))
    app = disk.app(flow.with_id("f").durable(), ops=OPS)
    await app.run("f", "hi", run_id="r")
    found = await seen(app)

    assert "no x is left" in str(found["f"].decided) and found["f"].standing == "done"
    assert {path: step.standing for path, step in found.items() if not step.parts} == {
        "f/a": "done",
        "f/body~call.1": "open",
        "f/b": "skipped",
        "f/h": "done",
    }


async def test_a_try_whose_body_is_at_work_and_one_that_needs_no_handler(disk: Disk, work: Work) -> None:
    flow = (Try(work.flow("a"), handler=work.flow("h")) >> work.flow("b")).with_id("f").durable()
    app = disk.app(flow)
    await cut_off(app, work.hold("a"), "f", "hi", run_id="r")
    assert await standings(app) == {"f": "open", "f/body~try.0": "open", "f/body~try.0/a": "open"} | {
        "f/body~try.0/h": "pending",
        "f/b": "pending",
    }
    await app.run("f", run_id="r")
    assert (await standings(app))["f/body~try.0/h"] == "skipped"


async def test_a_saga_that_was_undone(disk: Disk, work: Work) -> None:
    saga = Saga(
        SagaStep(Call("pay", ["hotel"]), undo=Call("give_back", ["hotel"])),
        SagaStep(Call("refuse", ["car"]), undo=Call("give_back", ["car"])),
    )
    app = disk.app((work.flow("a") >> saga >> work.flow("z")).with_id("f").durable(), ops=OPS)
    error = await failed(app, "f")
    found = await seen(app)

    assert error.path == "f/body~saga.1/step1~call.0"
    base = "f/body~saga.1"
    assert {path.removeprefix(f"{base}/"): step.standing for path, step in found.items()} == {
        "f": "failed",
        "f/a": "done",
        base: "failed",
        "step0~call.0": "undone",
        "step1~call.0": "failed",
        "undo0~call.0": "done",
        "undo1~call.0": "skipped",
        "f/z": "pending",
    }
    assert [found[f"{base}/{name}"].slot for name in ("step0~call.0", "undo0~call.0")] == ["step 1", "undo 1"]


async def test_a_saga_that_was_undone_and_tried_again(disk: Disk, work: Work) -> None:
    saga = Saga(
        SagaStep(Call("pay", ["hotel"]), undo=Call("give_back", ["hotel"])),
        SagaStep(work.flow("b"), undo=Call("give_back", ["b"])),
    )
    app = disk.app((saga >> work.flow("z")).with_id("f").durable(), ops=OPS)
    work.fail("b", 1)
    await failed(app, "f")
    await cut_off(app, work.hold("z"), "f", "hi", run_id="r")
    root = (await viewer(app).picture("r")).root
    first, second = root.parts[0].parts

    assert (first.kind, second.kind) == ("attempt", "attempt")
    assert [(part.slot, part.standing) for part in first.parts] == [
        ("step 1", "undone"),
        ("step 2", "undone"),
        ("undo 1", "done"),
        ("undo 2", "skipped"),
    ]
    assert [failure.attempt for failure in first.parts[1].failures] == [1]
    assert [(part.slot, part.standing) for part in second.parts] == [
        ("step 1", "done"),
        ("step 2", "done"),
        ("undo 1", "skipped"),
        ("undo 2", "skipped"),
    ]
    assert (first.standing, second.standing, root.parts[0].standing) == ("undone", "done", "done")
    assert root.parts[1].standing == "open"


async def test_a_saga_in_which_all_went_well(disk: Disk, work: Work) -> None:
    saga = Saga(SagaStep(Call("pay", ["hotel"]), undo=Call("give_back", ["hotel"])), SagaStep(work.flow("b")))
    scope = Scope(work.flow("c"), acquire=pay("key"), finally_=work.flow("d"), bind="k")
    app = disk.app((saga >> scope >> work.flow("z")).with_id("f").durable(), ops=OPS)
    await cut_off(app, work.hold("b"), "f", "hi", run_id="r")
    assert {path: how for path, how in (await standings(app)).items() if "saga" in path} == {
        "f/body~saga.0": "open",
        "f/body~saga.0/step0~call.0": "done",
        "f/body~saga.0/b": "open",
        "f/body~saga.0/undo0~call.0": "pending",
    }
    await app.run("f", run_id="r")
    told = await standings(app)
    assert told["f/body~saga.0/undo0~call.0"] == "skipped" and told["f/body~scope.1/acquire~call.0"] == "done"
    assert (told["f/body~scope.1/c"], told["f/body~scope.1/d"], told["f/z"]) == ("done", "done", "done")


async def test_a_flow_that_is_run_inside_is_laid_out_as_well(disk: Disk, work: Work) -> None:
    inner = (work.flow("x") >> work.flow("y")).with_id("inner").durable()
    plain = (Bind("n", 1) >> Emit("{n}")).with_id("plain")
    app = bb.App(store=disk.store())
    app.register(inner, plain)
    app.register((Run("inner") >> Run("plain") >> Once("label", work.flow("o"))).with_id("f").durable())
    await app.run("f", "hi", run_id="r")
    told = await standings(app)

    assert told["f/body~run.0/inner/x"] == told["f/body~run.0/inner/y"] == "done"
    assert told["f/body~run.1/plain/body~bind.0"] == "unrecorded" and told["f/body~once.2"] == "done"
    await app.stop(timedelta(0))


async def test_what_a_trigger_starts_is_a_run_of_its_own(disk: Disk, work: Work) -> None:
    flow = (work.flow("a") >> Every("0 3 * * *") >> work.flow("later")).with_id("f").durable()
    app = disk.app(flow)
    await app.run("f", "hi", run_id="r")

    assert list(await standings(app)) == ["f", "f/a", "f/body~every.1"]


async def test_what_was_skipped_up_to_a_checkpoint_of_another_run(disk: Disk, work: Work) -> None:
    flow = (work.flow("a") >> Checkpoint("half") >> work.flow("b")).with_id("f").durable()
    app = disk.app(flow)
    await app.run("f", "hi", run_id="r", session_id="s")
    assert (await standings(app))["f/body~checkpoint.1"] == "done"
    await app.run("f", "hi", run_id="q", session_id="s")
    assert await standings(app, "q") == {
        "f": "done",
        "f/skip": "done",
        "f/a": "skipped",
        "f/body~checkpoint.1": "skipped",
        "f/b": "done",
    }


async def test_a_run_goes_by_the_flow_that_it_was_begun_with(disk: Disk, work: Work) -> None:
    await cut_off(disk.app(abc(work)), work.hold("d"), "f", "hi", run_id="r")
    other = (work.flow("a") >> work.flow("new")).with_id("f").durable()
    app = disk.app(other)
    run = await viewer(app).picture("r")

    assert run.is_known and run.is_changed
    assert "f/body~all.1/c" in await seen(app) and "f/new" not in await seen(app)

    await app.run("f", run_id="r")
    assert await standings(app) == {"f": "done", "f/a": "done", "f/new": "done"}


async def test_a_run_whose_flow_is_not_registered_is_shown_from_the_store(disk: Disk, work: Work) -> None:
    await cut_off(disk.app(abc(work)), work.hold("d"), "f", "hi", run_id="r")
    app = disk.app(work.flow("other").durable())
    run = await viewer(app).picture("r")

    assert not run.is_known and not run.is_changed
    assert {path: step.standing for path, step in (await seen(app)).items() if not step.parts} == {
        "f/a": "done",
        "f/body~all.1/b": "done",
        "f/body~all.1/c": "done",
        "f/d": "open",
    }


async def test_where_only_a_part_is_durable_the_rest_leaves_no_record(disk: Disk, work: Work) -> None:
    flow = (work.flow("a") >> work.flow("b").durable() >> work.flow("c")).with_id("f")
    app = disk.app(flow)
    await app.run("f", "hi", run_id="r")
    assert await standings(app) == {"f": "done", "f/a": "unrecorded", "f/b": "done", "f/c": "unrecorded"}

    other = disk.app(work.flow("other").durable())
    assert await standings(other) == {"f": "done", "f/b": "done"}  # and what is not on record is not known there


async def test_a_job_that_has_not_begun(disk: Disk, work: Work) -> None:
    app = disk.app(abc(work))
    await app.submit("f", "hi", run_id="r")
    run = await viewer(app).picture("r")
    assert set((await standings(app)).values()) == {"pending"}
    assert [attempt.cause for attempt in run.attempts] == ["job"]


async def test_a_cancelled_run_and_one_that_expired(disk: Disk, work: Work) -> None:
    clock = ManualClock(auto=True)
    flow = (work.flow("a") >> work.flow("b")).with_id("f").durable(ttl=timedelta(minutes=1))
    app = disk.app(flow, clock=clock)
    for run_id in ("r", "q"):
        await cut_off(app, work.hold("b"), "f", "hi", run_id=run_id)
    await app.cancel("r")
    assert await standings(app) == {"f": "open", "f/a": "done", "f/b": "open"}
    clock.advance(120)
    await app.prune()
    run = await viewer(app).picture("q")
    assert run.info.status == "expired" and run.session_id == "q"


async def test_one_place_in_full(disk: Disk, work: Work) -> None:
    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        found = await turn.step("look up", _found, "x")
        turn.reply("text", value={"found": found})

    app = disk.app(bb.Flow().with_agent(bb.Agent("a").on_message(handler)).with_id("f").durable())
    await app.run("f", "hi", run_id="r", params={"n": 1})
    looks = viewer(app)

    detail = await looks.detail("r", "f")
    assert [message.content for message in detail.messages] == ["text"]
    assert detail.has_value and detail.value == {"found": ["x"]} and detail.selected is None
    assert [(entry.kind, entry.name, entry.value) for entry in detail.entries] == [("step", "look up", ["x"])]
    given = await looks.detail("r", "")
    assert [message.content for message in given.messages] == ["hi"] and given.value == {"params": {"n": 1}}
    with pytest.raises(bb.UnknownRun, match="nothing at 'f/x'"):
        await looks.detail("r", "f/x")
    with pytest.raises(bb.UnknownRun, match="no run q"):
        await looks.picture("q")


async def _found(what: str) -> list[str]:
    return [what]


async def test_tokens_are_told_where_they_were_billed(disk: Disk) -> None:
    class Bills:
        async def stream(self, request: object, /) -> object:
            yield "said"
            yield bb.Usage(input=7, output=5)

    agent = bb.Agent("a").with_model(Bills())  # type: ignore[arg-type]  # it streams all the same
    app = disk.app(bb.Flow().with_agent(agent).with_id("f").durable())
    await app.run("f", "hi", run_id="r")
    usage = (await seen(app))["f"].usage
    assert usage is not None and (usage.input, usage.output) == (7, 5)


async def test_runs_come_page_by_page_and_those_first_that_changed_last(disk: Disk, work: Work) -> None:
    app = disk.app(work.flow("a").durable(), work.flow("b").durable())
    for number in range(5):
        await app.run("a", "hi", run_id=f"a{number}")
        await asyncio.sleep(0.002)
    work.fail("b", 1)
    await failed(app, "b", "b0")
    looks = viewer(app)

    first = await looks.page(limit=4)
    assert [run.run_id for run in first.runs] == ["b0", "a4", "a3", "a2"] and first.kept == 6
    second = await looks.page(limit=4, start=first.next or "")
    assert [run.run_id for run in second.runs] == ["a1", "a0"] and second.next is None

    assert [run.run_id for run in (await looks.page(flow="b")).runs] == ["b0"]
    assert [run.run_id for run in (await looks.page(status="failed")).runs] == ["b0"]
    assert [run.run_id for run in (await looks.page(text="3")).runs] == ["a3"]
    assert (await looks.page(flow="nobody")).runs == ()


async def test_a_run_that_cannot_be_read_hides_no_other(disk: Disk, work: Work) -> None:
    app = disk.app(work.flow("a").durable())
    await app.run("a", "hi", run_id="good")
    await app.store.append(run_stream("bad"), 0, [b"junk"])
    with capture_logs() as logs:
        page = await viewer(app).page()
    assert [run.run_id for run in page.runs] == ["good"] and page.kept == 2
    assert [entry["run"] for entry in logs] == ["run/bad"]
    with pytest.raises(bb.CorruptRecord):
        await viewer(app).picture("bad")


async def test_a_run_is_retried_in_the_background(disk: Disk, work: Work) -> None:
    flow = abc(work)
    async with disk.app(flow) as app:
        work.fail("d", 1)
        await failed(app, "f")
        await app.retry("r")
        await until(_finished(app))
        assert work.count("a") == 1 and work.count("d") == 2

        await cut_off(app, work.hold("d"), "f", "hi", run_id="q")
        await app.cancel("q")
        await app.retry("q")
        await until(_finished(app, "q"))

        before = await app.store.read(run_stream("r"))
        await app.retry("r")  # it has finished
        assert await app.store.read(run_stream("r")) == before
        with pytest.raises(bb.UnknownRun):
            await app.retry("nobody")


async def test_a_run_of_no_registered_flow_is_not_retried(disk: Disk, work: Work) -> None:
    work.fail("d", 1)
    await failed(disk.app(abc(work)), "f")
    with pytest.raises(bb.UnknownFlow, match="'f'"):
        await disk.app(work.flow("other").durable()).retry("r")


async def test_a_run_that_a_caller_runs_is_not_retried(disk: Disk, work: Work) -> None:
    app = disk.app(abc(work))
    hold = work.hold("d")
    task = asyncio.create_task(app.run("f", "hi", run_id="r"))
    await hold.reached.wait()
    with pytest.raises(bb.RunBusy):
        await app.retry("r")
    hold.go.set()
    await task
