"""Triggers whose flow has changed since they were reached: a job starts the body that it was armed with, or none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import structlog

import bb
from tests.timetable import Timetable, later, rest, until

WAITS = "a job waits for its flow to be registered"
FAR = datetime(2099, 1, 1, tzinfo=UTC)


@pytest.fixture
async def time() -> AsyncIterator[Timetable]:
    made = Timetable()
    yield made
    await made.stop()


def trigger(kind: str, *body: bb.AnyFlow) -> bb.AnyFlow:
    """One that comes due a minute after the start."""
    return bb.Every("* * * * *", *body) if kind == "every" else bb.At(datetime(2026, 1, 1, 0, 1, tzinfo=UTC), *body)


async def armed(time: Timetable, *flows: bb.NamedFlow) -> None:
    """What a first deploy leaves behind, each flow run once."""
    async with time.app(*flows) as app:
        for flow in flows:
            await app.run(flow, "hi")


# --- which body a job starts ---


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("kind", ["at", "every"])
async def test_a_trigger_put_in_front_changes_nothing_for_an_old_job(time: Timetable, kind: str, named: bool) -> None:
    remind, delete = time.agent("remind"), time.agent("delete")
    old: bb.AnyFlow = remind.with_id("remind") if named else remind
    new: bb.AnyFlow = delete.with_id("delete") if named else delete
    await armed(time, later(trigger(kind, old), id="f"))
    front = bb.At(FAR, new) if kind == "at" else bb.Every("0 0 1 1 *", new)
    async with time.app(later(front, trigger(kind, old), id="f")):
        await time.pass_(minutes=1)
    assert (time.count("remind"), time.count("delete")) == (1, 0)


@pytest.mark.parametrize("kind", ["at", "every"])
async def test_what_stands_in_its_place_is_not_run_for_a_trigger_that_is_gone(time: Timetable, kind: str) -> None:
    await armed(time, later(trigger(kind, time.agent("remind").with_id("remind")), id="f"))
    other = trigger(kind, time.agent("delete").with_id("delete"))
    with structlog.testing.capture_logs() as logs:
        async with time.app(later(other, id="f")) as app:
            await time.pass_(minutes=1)
            assert [job.kind for job in await app.jobs()] == [kind]  # it is left, for people or an earlier deploy
    assert (time.heard, [log["path"] for log in logs if log["event"] == WAITS]) == ([], [f"f/body~{kind}.0"])
    async with time.app(later(trigger(kind, time.agent("remind").with_id("remind")), id="f")):
        await rest()
    assert (time.count("remind"), time.count("delete")) == (1, 0)


@pytest.mark.parametrize("front", [True, False])
@pytest.mark.parametrize("kind", ["at", "every"])
async def test_a_named_body_goes_on_when_it_was_edited(time: Timetable, kind: str, front: bool) -> None:
    await armed(time, later(trigger(kind, time.agent("a").with_id("digest"), bb.Respond()), id="f"))
    edited = trigger(kind, bb.Emit("new"), time.agent("b").next(time.agent("c")).with_id("digest"))
    steps = (trigger(kind, time.agent("other").with_id("other")), edited) if front else (edited,)
    async with time.app(later(*steps, id="f")):
        await time.pass_(minutes=1)
    assert [one.agent for one in time.heard] == ["b", "c"]


async def test_a_body_that_runs_a_registered_flow_goes_on_when_that_was_edited(time: Timetable) -> None:
    flow = later(trigger("at", bb.Run("digest")), id="f")
    first, second = (later(time.agent(name), id="digest") for name in "ab")
    async with time.app(first, flow) as app:
        await app.run("f", "hi")
    async with time.app(second, flow):
        await time.pass_(minutes=1)
    assert [one.agent for one in time.heard] == ["b"]


async def test_a_named_body_that_several_triggers_have_goes_on_when_it_was_edited(time: Timetable) -> None:
    first, second = (time.agent(name).with_id("digest") for name in "ab")
    early, late = "0 8 * * *", "0 20 * * *"
    await armed(time, later(bb.Every(early, first), bb.Every(late, first), id="f"))
    async with time.app(later(bb.Every(early, second), bb.Every(late, second), id="f")) as app:
        await time.pass_(hours=9)
        await time.pass_(hours=12)
        assert ([one.agent for one in time.heard], len(await app.jobs())) == (["b", "b"], 2)


async def test_ids_that_different_bodies_have_stand_for_none_of_them(time: Timetable) -> None:
    first, second = (trigger("at", time.agent(name).with_id("digest")) for name in "ab")
    await armed(time, later(first, bb.At(FAR, time.agent("b").with_id("digest")), id="f"))
    with structlog.testing.capture_logs() as logs:
        async with time.app(later(second, id="f")):
            await time.pass_(minutes=1)
    assert (time.heard, [log["event"] for log in logs if log["event"] == WAITS]) == ([], [WAITS])


async def test_changed_prompts_and_handlers_are_no_change(time: Timetable) -> None:
    await armed(time, later(trigger("every", time.agent("a")), id="f"))

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        said.append("anew")

    said: list[str] = []
    body = bb.Flow().with_agent(bb.Agent("a").on_message(handler))
    async with time.app(later(trigger("every", body), id="f")):
        await time.pass_(minutes=1)
    assert (said, time.heard) == (["anew"], [])


async def test_a_body_of_another_flow_is_not_meant(time: Timetable) -> None:
    body = time.agent("a").with_id("a")
    await armed(time, later(trigger("at", body), id="f"))
    with structlog.testing.capture_logs() as logs:
        async with time.app(later(bb.Emit("x"), id="f"), later(trigger("at", body), id="g")):
            await time.pass_(minutes=1)
    assert (time.heard, [log["event"] for log in logs]) == ([], [WAITS])


# --- timetables ---


async def test_a_timetable_goes_by_what_is_armed_until_it_is_reached_again(time: Timetable) -> None:
    await armed(time, later(bb.Every("0 * * * *", time.agent("a")), id="f"))
    async with time.app(later(bb.Every("0 0 1 1 *", time.agent("a")), id="f")) as app:
        await time.pass_(hours=1)
        await time.pass_(hours=1)
        assert time.count("a") == 2
        await app.run("f", "hi")
        (job,) = await app.jobs()
        assert job.next is not None and job.next.year > 2026


async def test_a_timetable_that_moved_is_one_and_makes_up_for_the_tick_it_missed(time: Timetable) -> None:
    every = bb.Every("0 * * * *", time.agent("a"))
    async with time.app(start=(later(every, id="f"),)):
        await time.pass_(hours=1)
    assert time.count("a") == 1
    await time.pass_(hours=1, minutes=30)
    for _ in range(2):  # reached again in its new place, however often
        async with time.app(start=(later(bb.Emit("x"), every, id="f"),)) as app:
            await rest()
            assert time.count("a") == 2
            assert [(job.path, job.next) for job in await app.jobs()] == [
                ("f/body~every.1", datetime(2026, 1, 1, 3, tzinfo=UTC))
            ]
    async with time.app(start=(later(bb.Emit("x"), every, id="f"),)):
        await time.pass_(minutes=30)
    assert time.count("a") == 3


@pytest.mark.parametrize("again", [True, False])
async def test_who_takes_the_place_of_a_timetable_leaves_it_alone(time: Timetable, again: bool) -> None:
    a, b = (bb.Every("0 * * * *", time.agent(name)) for name in "ab")
    await armed(time, later(a, id="f"))
    await time.pass_(minutes=90)  # a has missed a tick, and b has not
    moved = a if again else bb.When(bb.ref("x", bool), a)
    async with time.app(later(b, moved, id="f").with_params(x=bool)) as app:
        await app.run("f", "hi", params={"x": False})
        await rest()
        assert (time.count("a"), time.count("b")) == (1, 0)
        for _ in range(2):
            await time.pass_(hours=1)
        assert (time.count("a"), time.count("b")) == (3, 2)
        await app.run("f", "hi", params={"x": False})
        await time.pass_(hours=1)
        assert (time.count("a"), time.count("b"), len(await app.jobs())) == (4, 3, 2)


async def test_two_timetables_that_change_places_are_still_two(time: Timetable) -> None:
    a, b = (bb.Every("0 * * * *", time.agent(name)) for name in "ab")
    async with time.app(start=(later(a, b, id="f"),)):
        pass
    for hour in range(3):
        async with time.app(start=(later(b, a, id="f"),)) as app:
            await time.pass_(hours=1)
            assert (time.count("a"), time.count("b"), len(await app.jobs())) == (hour + 1, hour + 1, 2)


async def test_of_two_timetables_with_one_body_the_one_that_is_gone_does_not_go_on(time: Timetable) -> None:
    body = time.agent("a").with_id("a")
    hourly, daily = bb.Every("0 * * * *", body), bb.Every("30 12 * * *", body)
    async with time.app(start=(later(daily, hourly, id="f"),)):
        pass
    async with time.app(start=(later(daily, id="f"),)) as app:
        await time.pass_(hours=3)
        assert time.count("a") == 0
        await time.pass_(hours=10)
        assert time.count("a") == 1
        await app.stop(timedelta(0))
    async with time.app(start=(later(hourly, id="f"),)) as app:
        await rest()
        before = time.count("a")
        await time.pass_(hours=1)
        assert (time.count("a") - before, len(await app.jobs())) == (1, 1)


async def test_another_body_with_the_same_timetable_begins_anew(time: Timetable) -> None:
    async with time.app(start=(later(bb.Every("0 * * * *", time.agent("a")), id="f"),)):
        pass
    await time.pass_(hours=3, minutes=30)
    async with time.app(start=(later(bb.Every("0 * * * *", time.agent("b")), id="f"),)) as app:
        await rest()
        assert time.heard == []
        (job,) = await app.jobs()
        assert job.next == datetime(2026, 1, 1, 4, tzinfo=UTC)


async def test_each_tenant_and_each_item_of_a_loop_keeps_its_timetable_when_it_moves(time: Timetable) -> None:
    every = bb.Every("0 * * * *", time.agent("a"))
    loop = bb.Each("i", [1, 2], every)
    async with time.app(later(loop, id="f")) as app:
        for tenant in ("x", "y"):
            await app.run("f", "hi", tenant=tenant)
        assert len(await app.jobs()) == 4
    async with time.app(later(bb.Emit("x"), loop, id="f")) as app:
        await app.run("f", "hi", tenant="x")
        await time.pass_(hours=1)
        assert (time.count("a"), len(await app.jobs())) == (4, 4)


async def test_an_at_of_a_start_that_moved_is_still_one(time: Timetable) -> None:
    a, b = (trigger("at", time.agent(name)) for name in "ab")
    async with time.app(start=(later(a, id="f"),)):
        pass
    for _ in range(2):
        async with time.app(start=(later(b, a, id="f"),)):
            await time.pass_(minutes=1)
    assert (time.count("a"), time.count("b")) == (1, 1)


# --- webhooks ---


async def test_a_webhook_is_found_by_its_id_and_never_by_its_place(time: Timetable) -> None:
    orders, wipe = (bb.Webhook(name, time.agent(name), bb.Respond()) for name in ("orders", "wipe"))
    await armed(time, later(orders, id="f"))
    for other in (wipe, bb.Every("0 0 1 1 *", time.agent("yearly"))):
        async with time.app(later(other, id="f")) as app:
            with pytest.raises(bb.UnknownWebhook, match="orders"):
                await app.fire("orders", b"", {})
    assert time.heard == []
    edited = bb.Webhook("orders", time.agent("new"), bb.Respond())
    for flows in ([later(wipe, orders, id="f")], [later(wipe, id="f"), later(orders, id="g")], [later(edited, id="f")]):
        async with time.app(*flows) as app:
            await app.fire("orders", b"", {})
    assert [one.agent for one in time.heard] == ["orders", "orders", "new"]


async def test_a_call_that_comes_again_is_the_same_though_the_webhook_has_moved(time: Timetable) -> None:
    orders, wipe = (bb.Webhook(name, time.agent(name), bb.Respond()) for name in ("orders", "wipe"))
    time.fails["orders"] = 1
    async with time.app(later(orders, id="f")) as app:
        await app.run("f", "hi")
        with pytest.raises(bb.AgentFailed):
            await app.fire("orders", b"2", {}, run_id="c-2")
        fired = await app.fire("orders", b"1", {}, run_id="c-1")
    async with time.app(later(wipe, orders, id="f")) as app:
        await app.run("f", "hi")
        assert await app.fire("orders", b"1", {}, run_id="c-1") == fired
        assert (await app.fire("orders", b"2", {}, run_id="c-2")).answer == "orders"  # one that failed goes on
        with pytest.raises(bb.RunIdInUse):
            await app.fire("wipe", b"1", {}, run_id="c-1")
    assert (time.count("orders"), time.count("wipe")) == (3, 0)


# --- runs on record ---


@pytest.mark.parametrize("kind", ["at", "every", "webhook"])
async def test_a_run_that_was_cut_off_goes_on_with_its_own_body(time: Timetable, kind: str) -> None:
    def made(name: str) -> bb.AnyFlow:
        return bb.Webhook(name, time.agent(name)) if kind == "webhook" else trigger(kind, time.agent(name))

    time.holds["a"] = asyncio.Event()
    app = time.app(later(made("a"), id="f"))
    await app.start()
    await app.run("f", "hi")
    await (app.fire("a", b"", {}) if kind == "webhook" else time.pass_(minutes=1))
    await until(lambda: time.count("a") == 1)
    await app.stop(timedelta(0))
    time.holds.clear()

    with structlog.testing.capture_logs() as logs:
        async with time.app(later(made("b"), id="f")) as app:
            await rest()
            (run,) = [run for run in await app.runs() if run.status in {"queued", "interrupted"}]
            with pytest.raises(bb.UnknownFlow):
                await app.retry(run.run_id)
    assert "an unfinished run waits for its flow to be registered" in [log["event"] for log in logs]
    assert (time.count("a"), time.count("b")) == (1, 0)

    async with time.app(later(made("b"), made("a"), id="f")) as app:
        await until(lambda: time.count("a") == 2)
        await rest()
        assert [one.status for one in await app.runs() if one.run_id == run.run_id] == ["finished"]
    assert (time.count("a"), time.count("b")) == (2, 0)


async def test_a_trigger_in_a_body_that_has_moved_is_scheduled(time: Timetable) -> None:
    flow = trigger("at", time.agent("a"), trigger("at", time.agent("inner")))
    time.holds["a"] = asyncio.Event()
    app = time.app(later(flow, id="f"))
    await app.start()
    await app.run("f", "hi")
    await time.pass_(minutes=1)
    await until(lambda: time.count("a") == 1)
    await app.stop(timedelta(0))
    time.holds.clear()
    async with time.app(later(trigger("at", time.agent("other")), flow, id="f")):
        await until(lambda: time.count("inner") == 1)
    assert time.count("other") == 0


# --- old records ---


async def test_a_job_of_a_release_that_did_not_tell_its_body_is_still_found(time: Timetable) -> None:
    rows = {
        "at": '[1,"arm","at","f/body~at.0","r",1,60000,["60000"],{"m":[["user","hi"]]}]',
        "webhook": '[1,"arm","webhook","f/body~webhook.1","r",1,null,["w"],{"m":[["user","hi"]]}]',
    }
    flow = later(trigger("at", time.agent("a")), bb.Webhook("w", time.agent("w"), bb.Respond()), id="f")
    async with time.app(flow) as app:
        await app.run("f", "hi")
        ids = {job.kind: job.id for job in await app.jobs()}
    for kind, row in rows.items():
        await time.store.delete(f"job/{ids[kind]}")
        await time.store.append(f"job/{ids[kind]}", 0, [row.encode()])
    async with time.app(flow) as app:
        await until(lambda: time.count("a") == 1)
        assert (await app.fire("w", b"", {})).answer == "w"
    other = later(bb.Emit("x"), bb.Webhook("wipe", time.agent("wipe")), bb.Webhook("w", time.agent("w")), id="f")
    async with time.app(other) as app:
        await app.fire("w", b"", {})
        await rest()
    assert (time.count("w"), time.count("wipe")) == (2, 0)
