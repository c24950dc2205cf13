"""Triggers: cases 67 to 85 of the builder, as far as they need no server (78 and 79 are those of the timetable)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import structlog

import bb
from bb.testing.mock_store import MockStore
from tests.timetable import Timetable, later, rest, until


@pytest.fixture
async def time() -> AsyncIterator[Timetable]:
    made = Timetable()
    yield made
    await made.stop()


# --- what becomes the body ---


async def test_case_67_what_follows_a_trigger_runs_later_over_the_chat_so_far(time: Timetable) -> None:
    a, b, c = (time.agent(name) for name in "abc")
    app = time.app(later(a, bb.At(time.soon(minutes=1)), b, c, id="f"))
    async with app:
        outcome = await app.run("f", "hi")
        assert (outcome.answer, time.count("b")) == ("a", 0)

        await time.pass_(minutes=1)

        assert time.last("b").chat == ("hi", "a")
        assert time.last("c").chat == ("hi", "a", "b")


async def test_case_67_a_trigger_with_a_body_of_its_own_lets_the_flow_go_on(time: Timetable) -> None:
    app = time.app(later(time.agent("a"), bb.At(time.soon(minutes=1), time.agent("b")), time.agent("c"), id="f"))
    async with app:
        assert (await app.run("f", "hi")).messages[-1].content == "c"
        assert [one.agent for one in time.heard] == ["a", "c"]

        await time.pass_(minutes=1)

        assert time.last("b").chat == ("hi", "a")


async def test_case_67_only_the_row_that_the_trigger_stands_in_is_split(time: Timetable) -> None:
    inner = later(time.agent("a"), bb.At(time.soon(minutes=1)), time.agent("b"), id="inner")
    app = time.app(later(inner, time.agent("c"), id="f"))
    async with app:
        await app.run("f", "hi")
        assert [one.agent for one in time.heard] == ["a", "c"]

        await time.pass_(minutes=1)

        assert time.heard[-1].agent == "b"
        assert time.last("b").chat == ("hi", "a")


async def test_case_67_a_trigger_with_nothing_after_it_passes_by_and_is_warned_of(time: Timetable) -> None:
    flow = later(time.agent("a"), bb.At(time.soon(minutes=1)), id="f")
    assert [problem.code for problem in bb.check(flow)] == ["starts-nothing"]
    app = time.app(flow)
    async with app:
        assert (await app.run("f", "hi")).answer == "a"
        assert await app.jobs() == []


async def test_case_67_the_pick_of_a_router_survives_a_trigger_with_a_body(time: Timetable) -> None:
    @bb.Agent().selects("x").on_message
    async def router(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.select("x")

    steps = (bb.Flow().with_agent(router), bb.Webhook("w", time.agent("b")), bb.Select(time.agent("a").with_id("x")))
    app = time.app(later(*steps, id="f"))
    assert (await app.run("f", "hi")).answer == "a"


# --- starting with the app ---


async def test_case_68_what_an_app_starts_with_is_run_in_order_before_start_returns(time: Timetable) -> None:
    flows = tuple(later(time.agent(name), bb.Respond(), id=f"f{name}") for name in "abc")
    app = time.app(start=flows)
    await app.start()
    await app.start()
    assert [one.agent for one in time.heard] == ["a", "b", "c"]


async def test_case_68_one_that_fails_makes_the_start_fail_and_the_next_start_tries_again(time: Timetable) -> None:
    app = time.app(start=(later(time.agent("a"), id="f"),))
    time.fails["a"] = 1
    with pytest.raises(bb.AgentFailed, match="a fails"):
        await app.start()
    await app.start()
    assert time.count("a") == 2


async def test_trap_x15_a_durable_one_runs_at_every_start_and_one_that_was_cut_off_goes_on() -> None:
    store = MockStore()
    time = Timetable(store)
    flow = later(time.agent("a").with_id("a"), time.agent("b").with_id("b"), id="f").durable()
    await time.app(start=(flow,)).start()
    assert (time.count("a"), time.count("b")) == (1, 1)

    time.holds["b"] = asyncio.Event()
    app = time.app(start=(flow,))
    starting = asyncio.create_task(app.start())
    await until(lambda: time.count("b") == 2)
    starting.cancel()
    await asyncio.wait([starting])
    time.holds.clear()
    await time.app(start=(flow,)).start()

    assert (time.count("a"), time.count("b")) == (2, 3)
    await time.stop()


async def test_one_that_was_cut_off_longer_ago_than_its_ttl_begins_anew(time: Timetable) -> None:
    flow = later(time.agent("a").with_id("a"), time.agent("b").with_id("b"), id="f").durable(ttl=timedelta(hours=1))
    time.holds["b"] = asyncio.Event()
    starting = asyncio.create_task(time.app(start=(flow,)).start())
    await until(lambda: time.count("b") == 1)
    starting.cancel()
    await asyncio.wait([starting])
    time.holds.clear()
    await time.pass_(hours=2)

    await time.app(start=(flow,)).start()
    assert (time.count("a"), time.count("b")) == (2, 2)


async def test_trap_x28_restarts_double_no_schedule(time: Timetable) -> None:
    when = time.soon(minutes=90)
    flow = later(bb.Every("0 * * * *", time.agent("a")), bb.At(when, time.agent("b")), id="f")
    for _ in range(3):
        app = time.app(start=(flow,))
        await app.start()
        await app.stop()
    async with time.app(start=(flow,)) as app:
        assert [job.kind for job in await app.jobs()] == ["every", "at"]
        await time.pass_(hours=2)
        assert (time.count("a"), time.count("b")) == (1, 1)


async def test_a_flow_that_an_app_starts_with_has_a_name(time: Timetable) -> None:
    with pytest.raises(bb.WiringError, match="no id"):
        time.app(start=(time.agent("a"),))


# --- identity ---


async def test_case_69_bodies_need_no_id_and_names_of_flows_show_where_they_stand(time: Timetable) -> None:
    app = time.app(later(bb.Every("0 * * * *", time.agent("a"), time.agent("b").with_id("b")), id="f"))
    async with app:
        await app.run("f", "hi")
        (job,) = await app.jobs()
        assert (job.flow, job.kind, job.path) == ("f", "every", "f/body~every.0")
        assert job.next == datetime(2026, 1, 1, 1, tzinfo=UTC)

        await time.pass_(hours=1)

        (run,) = await app.runs()
        assert (run.flow, run.status) == ("f/body~every.0", "finished")
        assert run.run_id.startswith(job.id)


async def test_a_trigger_has_neither_an_id_nor_a_model(time: Timetable) -> None:
    trigger = bb.Webhook("w", time.agent("a"))
    for name in ("with_id", "with_model", "durable"):
        with pytest.raises(AttributeError, match="what it starts"):
            getattr(trigger, name)
    with pytest.raises(bb.WiringError, match="cannot be given an id"):
        bb.NamedFlow(trigger, "f")  # type: ignore[arg-type]
    with pytest.raises(bb.InvalidWire):
        bb.wire.from_wire({"kind": "every", "id": "f", "cron": "* * * * *"})


async def test_a_trigger_in_a_flow_that_is_not_registered_is_refused_when_it_is_reached(time: Timetable) -> None:
    flow = later(bb.At(time.soon(minutes=1), time.agent("a")), id="f")
    with pytest.raises(bb.WiringError, match="not registered"):
        await time.app().run(flow, "hi")
    with pytest.raises(bb.WiringError, match="not registered"):
        await bb.run(flow, "hi")


# --- what the body begins with ---


async def test_case_70_payload_metadata_request_and_params_reach_the_body(time: Timetable) -> None:
    given = bb.Input([bb.Message("hi")], bb.Request(model="m", stop=("x",)), {"k": 1}, {"h": "v"})
    body = later(time.agent("b"), time.agent("c"), id="body").durable()
    app = time.app(later(time.agent("a"), bb.At(time.soon(minutes=1), body), id="f"))
    time.holds["c"] = asyncio.Event()
    await app.start()
    await app.run("f", given, params={"p": 2})
    await time.pass_(minutes=1)
    await until(lambda: time.count("c") == 1)
    await app.stop(timedelta(0))
    time.holds.clear()

    async with time.app(later(time.agent("a"), bb.At(datetime(2026, 1, 1, 0, 1, tzinfo=UTC), body), id="f")):
        await until(lambda: time.count("c") == 2)

    assert time.count("b") == 1
    for one in (time.last("a"), time.last("b"), time.last("c")):
        assert (one.payload, one.metadata, one.params) == ({"k": 1}, {"h": "v"}, {"p": 2})
        assert one.request == given.request


async def test_case_70_what_a_start_is_given_reaches_what_its_triggers_start(time: Timetable) -> None:
    app = time.app()
    given = bb.Input([bb.Message("seed")], bb.Request(model="m"), {"k": 1}, {"h": "v"})
    flow = later(time.agent("a").with_id("a"), bb.At(time.soon(minutes=1)), time.agent("b"), id="f")
    app.on_start(flow.durable(), input=given, params={"p": 2})
    async with app:
        await time.pass_(minutes=1)
    for one in time.heard:
        assert (one.payload, one.metadata, one.params) == ({"k": 1}, {"h": "v"}, {"p": 2})
        assert one.request == given.request
    assert [one.chat for one in time.heard] == [("seed",), ("seed", "a")]


async def test_symbols_are_captured_and_each_item_of_a_loop_is_a_job(time: Timetable) -> None:
    said = []

    @bb.op()
    def say(x: object) -> None:
        said.append(x)

    loop = bb.Each("x", ["a", "b"], bb.At(time.soon(minutes=1), say(bb.ref("x"))))
    app = time.app(bb.Bind("x", 0).next(loop).with_id("f").durable())
    async with app:
        await app.run("f")
        assert len(await app.jobs()) == 2
        await time.pass_(minutes=1)
        assert sorted(map(str, said)) == ["a", "b"]


async def test_what_cannot_be_kept_is_refused_with_its_place(time: Timetable) -> None:
    app = time.app(later(bb.At(time.soon(minutes=1), time.agent("a")), id="f"))
    with pytest.raises(bb.NotSavable, match="params") as caught:
        await app.run("f", "hi", params={"x": object()})
    assert caught.value.path == "f/body~at.0"


async def test_a_body_has_the_model_and_the_tools_of_where_it_stands(time: Timetable) -> None:
    @bb.op()
    def act() -> None:
        """Does nothing."""

    talk = bb.Flow().with_agent(bb.Agent("talk"))
    flow = bb.WithTools(["other"], bb.Webhook("w", talk, act())).with_model(bb.FixedModel("near"))
    app = time.app(flow.with_id("f"), model=bb.FixedModel("far"))
    async with app:
        await app.run("f", "hi")
        fired = await app.fire("w", b"", {})
        await rest()
        (run,) = await app.runs()
        assert (run.run_id, run.status) == (fired.run_id, "failed")
        assert "act" in run.error  # it was denied


# --- lineage ---


def nested(depth: int, innermost: bb.AnyFlow) -> bb.AnyFlow:
    """Webhooks that start each other."""
    flow = innermost
    for level in range(depth, 0, -1):
        flow = bb.Webhook(f"w{level}", flow)
    return flow


@pytest.mark.parametrize("kind", ["webhook", "at", "every"])
async def test_case_71_eight_triggers_may_start_each_other_and_nine_may_not(time: Timetable, kind: str) -> None:
    body = time.agent("a")

    def last(at: datetime) -> bb.AnyFlow:
        made: dict[str, bb.AnyFlow] = {"webhook": bb.Webhook("w9", body), "at": bb.At(at, body)}
        return made.get(kind, bb.Every("* * * * *", body))

    app = time.app(later(nested(7, last(time.soon(minutes=1))), id="f"))
    async with app:
        await app.run("f", "hi")
        for level in range(1, 8):
            await app.fire(f"w{level}", b"", {})
            await rest()
        assert len([job for job in await app.jobs() if job.kind == kind]) == (8 if kind == "webhook" else 1)
        assert [run.status for run in await app.runs()] == ["finished"] * 7

    other = Timetable()
    deep = nested(8, last(other.soon(minutes=1)))
    app = other.app(later(deep, id="f"))
    async with app:
        await app.run("f", "hi")
        for level in range(1, 9):
            await app.fire(f"w{level}", b"", {})
            await rest()
        statuses = [run.status for run in await app.runs()]
        assert sorted(statuses) == ["failed", *["finished"] * 7]
        (failed,) = [run for run in await app.runs() if run.status == "failed"]
        assert "9 triggers" in failed.error
    await other.stop()


async def test_case_71_the_depth_is_stored_with_what_starts_later() -> None:
    time = Timetable()
    flow = later(nested(9, time.agent("a")), id="f")
    await time.app(flow).run("f", "hi")
    for level in range(1, 9):
        async with time.app(flow) as app:  # each in an app of its own, which knows the others from the store alone
            await app.fire(f"w{level}", b"", {})
            await rest()
    with pytest.raises(bb.UnknownWebhook):
        await time.app(flow).fire("w9", b"", {})
    (failed,) = [run for run in await time.app(flow).runs() if run.status == "failed"]
    assert "9 triggers" in failed.error


# --- durable bodies ---


async def test_case_72_a_durable_body_saves_and_goes_on_where_it_was_cut_off(time: Timetable) -> None:
    body = later(time.agent("a").with_id("a"), time.agent("b").with_id("b"), id="body").durable()
    flow = later(bb.At(time.soon(minutes=1), body), id="f")
    time.holds["b"] = asyncio.Event()
    app = time.app(flow)
    await app.start()
    await app.run("f", "hi")
    await time.pass_(minutes=1)
    await until(lambda: time.count("b") == 1)
    await app.stop(timedelta(0))  # case 83: it is kept for the next start
    time.holds.clear()

    async with time.app(flow) as again:
        await until(lambda: time.count("b") == 2)
        await rest()
        assert (time.count("a"), [run.status for run in await again.runs()]) == (1, ["finished"])


async def test_case_83_a_body_that_is_not_durable_begins_again(time: Timetable) -> None:
    flow = later(bb.At(time.soon(minutes=1), time.agent("a"), time.agent("b")), id="f")
    time.holds["b"] = asyncio.Event()
    app = time.app(flow)
    await app.start()
    await app.run("f", "hi")
    await time.pass_(minutes=1)
    await until(lambda: time.count("b") == 1)
    await app.stop(timedelta(0))
    time.holds.clear()

    async with time.app(flow) as again:
        await until(lambda: time.count("b") == 2)
        await rest()
        assert (time.count("a"), [run.status for run in await again.runs()]) == (2, ["finished"])


async def test_case_80_a_failed_job_is_logged_and_recorded_and_not_tried_again(time: Timetable) -> None:
    app = time.app(later(bb.Every("* * * * *", time.agent("a")), id="f"))
    time.fails["a"] = 1
    async with app:
        await app.run("f", "hi")
        with structlog.testing.capture_logs() as logs:
            await time.pass_(minutes=1)
        assert [run.status for run in await app.runs()] == ["failed"]
        assert [(log["event"], log["flow"]) for log in logs] == [("a job failed", "f/body~every.0")]

        await time.pass_(minutes=1)  # and the next tick comes all the same

        assert time.count("a") == 2


async def test_case_80_a_failed_job_is_tried_again_as_its_own_retries_say(time: Timetable) -> None:
    body = later(time.agent("a"), id="body").durable(retries=2)
    app = time.app(later(bb.At(time.soon(minutes=1), body), id="f"))
    time.fails["a"] = 2
    async with app:
        await app.run("f", "hi")
        await time.pass_(minutes=1)
        await time.pass_(minutes=1)
        await time.pass_(minutes=1)
        assert (time.count("a"), [run.status for run in await app.runs()]) == (3, ["finished"])


async def test_case_80_the_steps_of_a_job_that_was_cut_off_are_not_made_again(tmp_path: Path) -> None:
    made: list[str] = []
    hold = asyncio.Event()

    def step(name: str) -> str:
        made.append(name)
        return name

    async def work(turn: bb.Turn, chat: bb.ModelChat) -> None:
        first = [await turn.step("s", step, "one"), await turn.step("s", step, "one")]  # equal ones are told by number
        if made.count("two") == 0:
            made.append("two")
            await hold.wait()
        turn.reply(" ".join([*first, await turn.step("t", step, "three")]))

    body = bb.Flow().with_agent(bb.Agent("a").on_message(work)).with_id("body").durable(retries=1)
    time = Timetable(bb.FileStore(tmp_path))
    flow = later(bb.At(time.soon(minutes=1), body, time.agent("b")), id="f")
    app = time.app(flow)
    await app.start()
    await app.run("f", "hi")
    await time.pass_(minutes=1)
    await until(lambda: made[-1:] == ["two"])
    await app.stop(timedelta(0))

    async with Timetable(bb.FileStore(tmp_path), time.clock).app(flow) as again:  # read from the disk anew
        await until(lambda: time.count("b") == 1)
        await rest()
        assert made == ["one", "one", "two", "three"]
        assert time.last("b").chat == ("hi", "one one three")
        assert [(run.status, run.attempts) for run in await again.runs()] == [("finished", 2)]


async def test_case_80_retries_that_are_used_up_stay_used_up_over_a_restart(time: Timetable) -> None:
    flow = later(bb.At(time.soon(minutes=1), later(time.agent("a"), id="body").durable(retries=1)), id="f")
    time.fails["a"] = 9
    app = time.app(flow)
    await app.start()
    await app.run("f", "hi")
    await time.pass_(minutes=1)  # and now it waits for its second try
    assert time.count("a") == 1
    await app.stop(timedelta(0))

    async with time.app(flow) as again:
        await time.pass_(minutes=1)
        await time.pass_(minutes=1)
        assert (time.count("a"), [run.status for run in await again.runs()]) == (2, ["failed"])


# --- how often ---


async def test_case_73_an_at_of_a_start_fires_once_ever(time: Timetable) -> None:
    def flow(when: datetime) -> bb.NamedFlow:
        return later(bb.At(when, time.agent("a")), id="f")

    when = time.soon(minutes=1)
    for _ in range(2):
        async with time.app(start=(flow(when),)):
            pass
    async with time.app(start=(flow(when),)):
        await time.pass_(minutes=1)
    for _ in range(2):
        async with time.app(start=(flow(when),)) as app:
            await time.pass_(days=10)
            await app.prune()
    assert time.count("a") == 1

    async with time.app(start=(flow(when + timedelta(seconds=1)),)):  # another time is another schedule
        await rest()
    assert time.count("a") == 2


async def test_case_74_two_requests_are_two_fires_and_a_retry_of_one_is_still_one(time: Timetable) -> None:
    steps = (time.agent("a").with_id("a"), bb.At(time.soon(minutes=1), time.agent("b")), time.agent("c").with_id("c"))
    app = time.app(later(*steps, id="f").durable())
    async with app:
        time.fails["c"] = 2
        for run_id in ("r1", "r2"):
            with pytest.raises(bb.AgentFailed):
                await app.run("f", "hi", run_id=run_id)
        assert (await app.run("f", "hi", run_id="r1")).replayed == ("f/a", "f/body~at.1")
        await time.pass_(minutes=1)
        assert time.count("b") == 2

        await app.run("f", "hi", run_id="r2")  # nor does one that has fired already
        await time.pass_(minutes=1)
        assert time.count("b") == 2

        await app.run("f", "hi", run_id="r1", replace=True)  # but this is another run
        await time.pass_(minutes=1)
        assert time.count("b") == 3


async def test_case_75_every_and_webhook_reached_twice_are_one_and_the_last_payload_wins(time: Timetable) -> None:
    both = (bb.Every("0 * * * *", time.agent("a")), bb.Webhook("w", time.agent("b"), bb.Respond()))
    app = time.app(later(*both, id="f"))
    async with app:
        for text in ("one", "two"):
            await app.run("f", text)
        assert [job.kind for job in await app.jobs()] == ["every", "webhook"]
        await time.pass_(hours=1)
        assert [one.chat for one in time.heard] == [("two",)]
        assert (await app.fire("w", b"", {})).answer == "b"
        assert time.last("b").chat == ("two",)


async def test_case_76_scheduling_does_not_depend_on_the_caller() -> None:
    store = MockStore()
    time = Timetable(store)
    app = time.app(later(bb.At(time.soon(minutes=1), time.agent("a")), id="f"))
    hold = store.hang_append(lambda stream, _: stream.startswith("job/"))
    await app.start()
    running = asyncio.create_task(app.run("f", "hi"))
    await until(lambda: hold.reached)
    running.cancel()
    await rest()
    hold.release()
    with pytest.raises(asyncio.CancelledError):
        await running

    await time.pass_(minutes=1)

    assert time.count("a") == 1
    await time.stop()


# --- members that run at once ---


async def test_case_022_only_what_the_winner_of_one_schedules_counts(time: Timetable) -> None:
    def member(name: str) -> bb.AnyFlow:
        return bb.Chain([bb.At(time.soon(minutes=1), time.agent(f"later-{name}")), time.agent(name)])

    inner = bb.One(member("b"), member("c"))
    app = time.app(later(bb.One(member("a"), bb.Chain([inner, time.agent("d")])), id="f"))
    for name in "acd":
        time.holds[name] = asyncio.Event()
    async with app:
        running = asyncio.create_task(app.run("f", "hi"))
        await until(lambda: time.count("d") == 1)
        assert await app.jobs() == []  # the inner race is won, the outer is not
        time.holds["a"].set()
        await running
        assert len(await app.jobs()) == 1
        await time.pass_(minutes=1)
        assert [one.agent for one in time.heard if "later" in one.agent] == ["later-a"]


async def test_members_of_all_and_group_schedule_at_once(time: Timetable) -> None:
    def member(name: str) -> bb.AnyFlow:
        return bb.At(time.soon(minutes=1), time.agent(name))

    app = time.app(later(bb.All(member("a"), member("b")), bb.Group(member("c"), time.agent("x")), id="f"))
    async with app:
        await app.run("f", "hi")
        await time.pass_(minutes=1)
        assert sorted(one.agent for one in time.heard) == ["a", "b", "c", "x"]


# --- time ---


async def test_case_77_a_missed_tick_fires_once_late_also_after_a_restart(time: Timetable) -> None:
    flow = later(bb.Every("0 * * * *", time.agent("a")), id="f")
    async with time.app(flow) as app:
        await app.run("f", "hi")
        await time.pass_(hours=1)
        assert time.count("a") == 1
    await time.pass_(hours=5, minutes=30)

    async with time.app(flow) as app:  # nobody runs the flow again: what the store knows is enough
        await rest()
        assert time.count("a") == 2
        (job,) = await app.jobs()
        assert job.next == datetime(2026, 1, 1, 7, tzinfo=UTC)


async def test_case_77_starting_with_a_timetable_keeps_the_tick_that_was_missed(time: Timetable) -> None:
    flow = later(bb.Every("0 * * * *", time.agent("a")), id="f")
    async with time.app(start=(flow,)):
        pass
    await time.pass_(hours=3, minutes=30)
    async with time.app(start=(flow,)) as app:
        await rest()
        assert time.count("a") == 1
        (job,) = await app.jobs()
        assert job.next == datetime(2026, 1, 1, 4, tzinfo=UTC)


async def test_another_timetable_begins_anew(time: Timetable) -> None:
    async with time.app(start=(later(bb.Every("0 * * * *", time.agent("a")), id="f"),)):
        pass
    await time.pass_(hours=3, minutes=30)
    async with time.app(start=(later(bb.Every("45 * * * *", time.agent("a")), id="f"),)) as app:
        await rest()
        assert time.count("a") == 0
        (job,) = await app.jobs()
        assert job.next == datetime(2026, 1, 1, 3, 45, tzinfo=UTC)


# --- store, processes ---


async def test_case_81_a_job_of_an_unknown_flow_waits_for_it_and_is_told_with_its_name(time: Timetable) -> None:
    flow = later(bb.At(time.soon(minutes=1), time.agent("a")), id="f")
    async with time.app(flow) as app:
        await app.run("f", "hi")
    with structlog.testing.capture_logs() as logs:
        async with time.app() as app:
            await time.pass_(minutes=2)
            assert [job.path for job in await app.jobs()] == ["f/body~at.0"]
            assert [log["path"] for log in logs if "waits for its flow" in log["event"]] == ["f/body~at.0"]
            app.register(flow)
            await until(lambda: time.count("a") == 1)


async def test_case_81_a_schedule_that_cannot_be_recorded_fails_the_run() -> None:
    store = MockStore()
    time = Timetable(store)
    app = time.app(later(bb.At(time.soon(minutes=1), time.agent("a")), time.agent("b"), id="f"))
    store.fail_append(lambda stream, _: stream.startswith("job/"), times=10)
    time.clock.auto = True
    with pytest.raises(bb.StoreError):
        await app.run("f", "hi")
    assert (await app.jobs(), time.count("b")) == ([], 0)


async def test_case_81_a_tick_that_cannot_be_recorded_is_logged_and_comes_late_but_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bb.engine.runs.scheduler.LOOK", 0.02)
    monkeypatch.setattr("bb.engine.runs.jobs.SWEEP", 0.02)
    store = MockStore()
    time = Timetable(store)
    app = time.app(later(bb.Every("0 * * * *", time.agent("a")), id="f"))
    await app.start()
    await app.run("f", "hi")
    broken = [True]
    store.fail_append(lambda stream, _: broken[0] and stream.startswith("job/"), times=1000)
    with structlog.testing.capture_logs() as logs:
        await time.pass_(hours=1)
        for _ in range(50):  # it is tried several times
            await time.pass_(seconds=5)
            if logs:
                break
    (job,) = await app.jobs()
    assert {(log["event"], log.get("job")) for log in logs} == {("a job could not be started", job.id)}
    assert job.next == datetime(2026, 1, 1, 1, tzinfo=UTC)

    broken[0] = False
    for _ in range(50):
        await time.pass_(seconds=5)
    (job,) = await app.jobs()
    assert time.count("a") == 1 and job.next == datetime(2026, 1, 1, 2, tzinfo=UTC)
    await time.stop()


async def test_case_82_many_schedules_at_once_lose_nothing(tmp_path: Path) -> None:
    time = Timetable(bb.FileStore(tmp_path))
    flow = later(bb.At(time.soon(minutes=1), time.agent("a")), id="f")
    apps = [time.app(flow), time.app(flow)]
    await asyncio.gather(*(apps[n % 2].run("f", str(n)) for n in range(200)))
    assert len(await apps[0].jobs()) == 200
    time.clock.advance(60)

    for app in apps:
        await app.start()
    await until(lambda: len(time.heard) >= 200, seconds=60)
    await rest()

    assert sorted(int(one.chat[0]) for one in time.heard) == list(range(200))
    assert await apps[1].jobs() == []
    await time.stop()


async def test_two_apps_over_one_store_start_each_tick_once(tmp_path: Path) -> None:
    time = Timetable(bb.FileStore(tmp_path))
    flow = later(bb.Every("* * * * *", time.agent("a")), id="f")
    one, two = time.app(start=(flow,)), time.app(start=(flow,))
    await one.start()
    await two.start()
    for tick in range(1, 6):
        await time.pass_(minutes=1)
        await until(lambda tick=tick: time.count("a") == tick)  # type: ignore[misc]
        await asyncio.sleep(0.05)
        assert time.count("a") == tick
    assert len({heard.run_id for heard in time.heard}) == 5
    await time.stop()


async def test_case_84_an_app_without_a_store_fires(time: Timetable) -> None:
    app = bb.App(clock=time.clock)
    app.register(later(bb.At(time.soon(minutes=1), time.agent("a")), id="f"))
    async with app:
        await app.run("f", "hi")
        await time.pass_(minutes=1)
        assert time.count("a") == 1


async def test_case_85_a_trigger_in_a_body_is_scheduled_by_the_fired_run(time: Timetable) -> None:
    inner = (bb.At(time.soon(minutes=2), time.agent("b")), bb.Webhook("w", time.agent("c"), bb.Respond()))
    app = time.app(later(bb.At(time.soon(minutes=1)), time.agent("a"), *inner, id="f"))
    async with app:
        await app.run("f", "hi")
        with pytest.raises(bb.UnknownWebhook):
            await app.fire("w", b"", {})
        await time.pass_(minutes=1)
        assert [job.path for job in await app.jobs()] == [
            "f/body~at.0/body~at.1",
            "f/body~at.0/body~webhook.2",
        ]
        await time.pass_(minutes=1)
        assert time.last("b").chat == ("hi", "a")
        assert (await app.fire("w", b"", {})).answer == "c"


async def test_a_trigger_in_a_flow_that_is_run_by_another_is_found_again(time: Timetable) -> None:
    remind = later(bb.At(time.soon(minutes=1)), time.agent("a"), id="remind")
    app = time.app(remind, bb.Run("remind").with_id("f"))
    async with app:
        await app.run("f", "hi")
        (job,) = await app.jobs()
        assert (job.flow, job.path) == ("f", "f/remind/body~at.0")
        await time.pass_(minutes=1)
        assert time.last("a").chat == ("hi",)


# --- webhooks ---


async def test_a_webhook_that_answers_is_waited_for_with_all_its_stages(time: Timetable) -> None:
    body = (time.agent("a"), bb.Respond(), bb.Select(later(time.agent("x"), id="x")), time.agent("b"), bb.Respond())
    app = time.app(later(time.agent("first"), bb.Webhook("w", *body), id="f"))
    async with app:
        await app.run("f", "hi")
        fired = await app.fire("w", b"\x00body", [("X-A", "1"), ("X-A", "2"), ("X-B", "3")])
        assert fired.answer == "a\n\nb"
        assert time.last("a").chat == ("hi", "first")
        assert (time.last("a").payload, time.last("a").metadata) == (b"\x00body", {"X-A": "1", "X-B": "3"})
        assert time.last("a").run_id == fired.run_id


async def test_trap_x21_a_webhook_that_does_not_answer_is_on_record_when_the_call_returns(time: Timetable) -> None:
    flow = later(bb.Webhook("w", time.agent("a")), id="f")
    app = time.app(flow)  # not started: it dies before its turn comes
    await app.run("f", "hi")
    fired = await app.fire("w", b"x", {"h": "v"})
    assert (fired.answer, time.count("a")) == (None, 0)

    async with time.app(flow):
        await until(lambda: time.count("a") == 1)
    assert (time.last("a").payload, time.last("a").metadata, time.last("a").run_id) == (
        b"x",
        {"h": "v"},
        fired.run_id,
    )


async def test_a_call_that_was_not_recorded_is_not_accepted() -> None:
    store = MockStore()
    time = Timetable(store)
    app = time.app(later(bb.Webhook("w", time.agent("a")), id="f"))
    await app.run("f", "hi")
    store.fail_append(lambda stream, _: stream.startswith("run/webhook:"))
    with pytest.raises(bb.StoreError):
        await app.fire("w", b"", {})
    assert await app.runs() == []


async def test_a_body_that_answers_and_fails_tells_the_caller(time: Timetable) -> None:
    app = time.app(later(bb.Webhook("w", time.agent("a"), bb.Respond()), id="f"))
    time.fails["a"] = 1
    await app.run("f", "hi")
    with pytest.raises(bb.AgentFailed, match="a fails"):
        await app.fire("w", b"", {})


async def test_a_caller_that_goes_away_does_not_stop_the_body(time: Timetable) -> None:
    app = time.app(later(bb.Webhook("w", time.agent("a"), time.agent("b"), bb.Respond()), id="f"))
    time.holds["a"] = asyncio.Event()
    await app.run("f", "hi")
    calling = asyncio.create_task(app.fire("w", b"", {}))
    await until(lambda: time.count("a") == 1)
    calling.cancel()
    await asyncio.wait([calling])
    time.holds["a"].set()
    await until(lambda: time.count("b") == 1)


async def test_an_unknown_webhook_is_told(time: Timetable) -> None:
    flow = later(bb.Webhook("w", time.agent("a")), id="f")
    app = time.app(flow)
    with pytest.raises(bb.UnknownWebhook, match="'w'"):
        await app.fire("w", b"", {})  # no run has reached it
    await app.run("f", "hi")
    with pytest.raises(bb.UnknownWebhook, match="registered"):
        await time.app().fire("w", b"", {})  # its flow is not known there
    (job,) = await app.jobs()
    assert await app.unschedule(job.id)
    with pytest.raises(bb.UnknownWebhook):
        await app.fire("w", b"", {})
    await app.run("f", "hi")
    assert (await app.fire("w", b"", {})).answer is None


async def test_two_webhooks_of_one_id_are_refused(time: Timetable) -> None:
    with pytest.raises(bb.WiringError, match="another webhook"):
        time.app(later(bb.Webhook("w", time.agent("a")), bb.Webhook("w", time.agent("b")), id="f"))
    with pytest.raises(bb.WiringError, match="another webhook"):
        time.app(later(bb.Webhook("w", time.agent("a")), id="f"), later(bb.Webhook("w", time.agent("b")), id="g"))
    app = time.app(later(bb.Webhook("w", time.agent("a")), id="f"))
    app.register(later(bb.Webhook("w", time.agent("b")), id="f"))  # the same flow anew is no other


# --- taking off, tracing ---


@pytest.mark.parametrize("kind", ["every", "at"])
async def test_what_is_unscheduled_never_fires(time: Timetable, kind: str) -> None:
    body = time.agent("a")
    trigger = bb.Every("* * * * *", body) if kind == "every" else bb.At(time.soon(minutes=1), body)
    app = time.app(later(trigger, id="f"))
    async with app:
        await app.run("f", "hi")
        (job,) = await app.jobs()
        assert await app.unschedule(job.id)
        assert not await app.unschedule(job.id)
        assert not await app.unschedule("unknown")
        await time.pass_(hours=1)
        assert (time.heard, await app.jobs()) == ([], [])

        await app.run("f", "hi")  # reached again it is back
        assert len(await app.jobs()) == 1


async def test_jobs_are_traced(time: Timetable) -> None:
    app = time.app(later(time.agent("a"), bb.At(time.soon(minutes=1)), time.agent("b"), id="f").durable())
    async with app:
        await app.run("f", "hi", run_id="r")
        (job,) = await app.jobs()
        await time.pass_(minutes=1)
    events = [one for one in time.recorder.events if one.kind.startswith("job.")]
    assert [(one.kind, one.path, one.flow, one.detail) for one in events] == [
        ("job.scheduled", "f/body~at.1", "f", job.id),
        ("job.fired", "f/body~at.1", "f", "at"),
    ]
    assert events[0].run_id == "r"
    assert events[1].run_id.startswith(job.id)


async def test_what_is_over_is_dropped_after_the_retention(time: Timetable) -> None:
    app = time.app(later(bb.At(time.soon(minutes=1), time.agent("a")), id="f").durable(), retention=timedelta(days=1))
    async with app:
        await app.run("f", "hi")
        await time.pass_(minutes=1)
        assert len(await time.store.list("job/")) == 1
        await time.pass_(days=2)
        await app.prune()
        assert await time.store.list("job/") == []


# --- check ---


@pytest.mark.parametrize("own", [True, False])
def test_an_await_cannot_stand_in_a_body(time: Timetable, own: bool) -> None:
    wait = bb.Await("form")
    steps = (bb.Webhook("w", wait),) if own else (bb.Webhook("w"), wait)
    problems = bb.check(later(*steps, id="f").durable())
    assert [problem.code for problem in problems] == ["await-nested"]


# --- unwinding ---


async def test_a_body_that_is_cancelled_while_its_flow_is_elsewhere_is_undone_with_its_symbols(time: Timetable) -> None:
    done: list[object] = []
    held = asyncio.Event()

    @bb.op()
    async def act(what: object) -> None:
        done.append(what)
        if what == "wait":
            await held.wait()

    saga = bb.Saga(bb.Step(act(bb.ref("x")), undo=act(bb.ref("y"))), bb.Step(act("wait")))
    body = saga.with_id("body").durable()
    bound = bb.Bind("x", "done").next(bb.Bind("y", "undone"))
    app = time.app(bound.next(bb.At(time.soon(minutes=1), body)).with_id("f"))
    await app.start()
    await app.run("f")
    await time.pass_(minutes=1)
    await until(lambda: done == ["done", "wait"])
    await app.stop(timedelta(0))

    again = time.app(bound.next(bb.At(time.clock.now(), body)).with_id("f"))
    (run,) = await again.runs()
    await again.cancel(run.run_id)
    assert done == ["done", "wait", "undone"]


# --- wherever it stands ---


HOLDERS: dict[str, Callable[[bb.AnyFlow], bb.AnyFlow]] = {
    "when": lambda flow: bb.When(True, flow),
    "else": lambda flow: bb.When(False, bb.Respond(), otherwise=flow),
    "unless": lambda flow: bb.Unless(False, flow),
    "each": lambda flow: bb.Each("i", [1], flow),
    "repeat": lambda flow: bb.Repeat(1, flow),
    "try": bb.Try,
    "catch": lambda flow: bb.Try(bb.Assert(False), handler=flow),
    "retry": lambda flow: bb.Retry(2, flow),
    "timeout": lambda flow: bb.Timeout(timedelta(hours=1), flow),
    "with_tools": lambda flow: bb.WithTools([], flow),
    "throttle": lambda flow: bb.Throttle("x", flow, max=1, per=timedelta(hours=1)),
    "once": lambda flow: bb.Once("x", flow),
    "scope": lambda flow: bb.Scope(flow, finally_=bb.Emit("x")),
    "finally": lambda flow: bb.Scope(bb.Emit("x"), finally_=flow),
    "saga": lambda flow: bb.Saga(bb.Step(flow, undo=bb.Emit("x"))),
    "all": lambda flow: bb.All(bb.Chain([flow]).with_id("x"), bb.Emit("x")),
    "one": bb.One,
    "group": bb.Group,
    "named": lambda flow: bb.Chain([flow]).with_id("x"),
    "durable": lambda flow: bb.Chain([flow]).with_id("x").durable(),
    "trigger": lambda flow: bb.Every("* * * * *", bb.Emit("x"), flow),
}


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("kind", HOLDERS)
async def test_a_trigger_is_found_again_wherever_it_stands(
    time: Timetable, kind: str, split: bool, durable: bool
) -> None:
    hold, due = HOLDERS[kind], datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
    inner = bb.Chain([bb.At(due), time.agent("a")]) if split else bb.At(due, time.agent("a"))
    flow = bb.Chain([bb.Emit("first"), hold(inner), bb.Emit("last")]).with_id("f")
    app = time.app(flow.durable() if durable else flow)
    async with app:
        outcome = await app.run("f", "hi", run_id="r")
        assert outcome.messages[-1].content == "last"
        await time.pass_(minutes=2)
        (job,) = [job for job in await app.jobs() if job.kind == "at"][:1]
        assert re.fullmatch(r"f/(.+/)?\w+~at\.\d", job.path)
        await time.pass_(minutes=3)
        assert time.last("a").chat[:2] == ("hi", "first")
        assert {run.status for run in await app.runs()} == {"finished"}
