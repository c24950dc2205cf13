"""`At` with a time that is worked out when the run reaches it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import attrs
import pytest
import structlog

import bb
from bb.flows.expressions import Expr, Lit
from bb.testing import crash_everywhere
from bb.testing.mock_store import Crash, MockStore
from tests.timetable import Timetable, rest

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
async def time() -> AsyncIterator[Timetable]:
    made = Timetable()
    yield made
    await made.stop()


def reminder(due: object, *body: bb.AnyFlow) -> bb.NamedFlow:
    """A flow that tells its input at a time."""
    told = body or (bb.Emit("{input}"),)
    steps = bb.Emit("Noted.").next(bb.At(due, *told))  # type: ignore[arg-type]  # whatever the test gives
    return steps.with_id("reminder").with_params(due=datetime, input=str)


# --- what may be a time ---


@pytest.mark.parametrize(
    ("due", "given"),
    [
        (bb.ref("due", datetime), NOON),
        (bb.ref("due", datetime), NOON.astimezone(ZoneInfo("Europe/Berlin"))),
        (bb.ref("due", str), "2026-01-01T12:00:00Z"),
        (bb.ref("due", str), "2026-01-01T14:30+02:30"),
        ("{due}T12:00:00Z", "2026-01-01"),
        (bb.Format("{due}T12:00:00Z"), "2026-01-01"),
        (bb.ref("due", str) + "T12:00:00Z", "2026-01-01"),
        (bb.ref("due")["at"][0], {"at": [NOON]}),
        ("{due}", NOON),
        (bb.Peek("due"), NOON),
        (Expr("||", (bb.Peek("due"), Lit("2026-01-01T12:00:00Z"))), None),
        (bb.Parse(bb.ref("due"), "json"), '"2026-01-01T12:00:00Z"'),
    ],
)
async def test_the_time_is_worked_out_when_the_trigger_is_reached(time: Timetable, due: object, given: object) -> None:
    app = time.app(reminder(due, time.agent("a")))
    async with app:
        await app.run("reminder", "hi", params={"due": given})
        (job,) = await app.jobs()
        assert (job.kind, job.path, job.next) == ("at", "reminder/body~at.1", NOON)
        await time.pass_(hours=11.9)
        assert time.count("a") == 0
        await time.pass_(hours=0.1)
        assert time.last("a").chat == ("hi", "Noted.")


async def test_one_flow_serves_every_time(time: Timetable) -> None:
    app = time.app(reminder(bb.ref("due", datetime), time.agent("a")))
    async with app:
        for minutes in (3, 1, 2):
            await app.run("reminder", str(minutes), params={"due": time.soon(minutes=minutes)})
        assert [job.next for job in await app.jobs()] == [time.soon(minutes=n) for n in (1, 2, 3)]
        for minutes in (1, 2, 3):
            await time.pass_(minutes=1)
            assert time.last("a").chat == (str(minutes), "Noted.")
        assert time.count("a") == 3


async def test_a_time_that_is_past_is_due_at_once(time: Timetable) -> None:
    app = time.app(reminder(bb.ref("due", datetime), time.agent("a")))
    async with app:
        await app.run("reminder", "hi", params={"due": time.soon(minutes=-5)})
        await rest()
        assert time.count("a") == 1


@pytest.mark.parametrize("durable", [True, False])
async def test_one_run_id_is_one_job_at_the_time_of_the_first(time: Timetable, durable: bool) -> None:
    flow = reminder(bb.ref("due", datetime), time.agent("a"))
    app = time.app(flow.durable() if durable else flow)
    async with app:
        await app.run("reminder", "hi", params={"due": NOON}, run_id="r")
        if durable:
            with pytest.raises(bb.InputConflict):
                await app.run("reminder", "hi", params={"due": NOON + timedelta(hours=1)}, run_id="r")
        else:
            await app.run("reminder", "hi", params={"due": NOON + timedelta(hours=1)}, run_id="r")
        assert [job.next for job in await app.jobs()] == [NOON]
        await time.pass_(hours=24)
        assert time.count("a") == 1


async def test_a_call_tells_the_time_and_what_it_says_is_said(time: Timetable) -> None:
    @bb.op()
    async def soon(minutes: int) -> bb.Viewed[datetime]:
        return bb.Viewed(time.soon(minutes=minutes), f"in {minutes} minutes")

    flow = bb.Emit("Noted.").next(bb.At(soon(10), time.agent("a"))).next(time.agent("b").with_id("b")).with_id("f")
    time.fails["b"] = 1
    app = time.app(flow.durable())
    async with app:
        with pytest.raises(bb.AgentFailed):
            await app.run("f", "hi", run_id="r")
        assert (await app.run("f", run_id="r")).replayed == ("f/body~at.1/when~call.0", "f/body~at.1")
        assert time.last("b").chat == ("hi", "Noted.", "in 10 minutes")  # it replays what the call said as well
        await time.pass_(minutes=10)
        assert time.last("a").chat == ("hi", "Noted.", "in 10 minutes")
        assert time.count("a") == 1


async def test_a_model_may_find_out_the_time(time: Timetable) -> None:
    when = bb.AiSegment("When is noon? Answer in ISO 8601.").with_model(bb.FixedModel("2026-01-01T12:00:00Z"))
    app = time.app(bb.Emit("Noted.").next(bb.At(bb.ref(when).result, time.agent("a"))).with_id("f").durable())
    async with app:
        await app.run("f", "hi")
        assert [job.next for job in await app.jobs()] == [NOON]


async def test_each_item_of_a_loop_has_its_time(time: Timetable) -> None:
    said: list[object] = []

    @bb.op()
    def say(x: object) -> None:
        said.append(x)

    loop = bb.Each("hour", [3, 1, 2], bb.At("2026-01-01T0{hour}:00:00Z", say(bb.ref("hour"))))
    app = time.app(loop.with_id("f").durable())
    async with app:
        await app.run("f")
        assert [job.next for job in await app.jobs()] == [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (1, 2, 3)]
        await time.pass_(hours=3)
        assert sorted(map(str, said)) == ["1", "2", "3"]


# --- what the body sees ---


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("durable", [True, False])
async def test_the_body_sees_the_params_and_symbols_of_where_it_was_reached(split: bool, durable: bool) -> None:
    time, told = Timetable(), list[str]()

    async def tell(text: str) -> None:
        told.append(text)

    body: list[bb.AnyFlow] = [bb.Emit("{input}: {n} at {due}"), bb.Notify(tell), time.agent("a")]
    due = bb.ref("due", datetime)
    later: list[bb.AnyFlow] = [bb.At(due), *body] if split else [bb.At(due, *body), bb.Bind("n", 2)]
    flow = bb.Chain([bb.Bind("n", 1), *later]).with_id("f").with_params(due=datetime, input=str)
    async with time.app(flow.durable() if durable else flow) as app:
        await app.run("f", "tea", params={"due": NOON})
    async with time.app(flow.durable() if durable else flow):  # another process gives it
        await time.pass_(hours=12)
    assert told == ["tea: 1 at 2026-01-01 12:00:00+00:00"]
    assert time.last("a").params == {"due": NOON}
    await time.stop()


# --- what is no time ---


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("in ten minutes", r"'in ten minutes' \(str\)"),
        ("2026-01-01T12:00:00", r"'2026-01-01T12:00:00' \(str\)"),
        (datetime(2026, 1, 1), r"a datetime \(datetime\)"),  # noqa: DTZ001 - that is the case
        (1767268800, r"1767268800 \(int\)"),
        (timedelta(minutes=10), r"a timedelta \(timedelta\)"),
        (None, r"None \(NoneType\)"),
        ({"due": 1}, r"a dict of 1 \(dict\)"),
    ],
)
@pytest.mark.parametrize("durable", [True, False])
async def test_what_is_no_time_fails_the_run_for_good(
    time: Timetable, value: object, shown: str, durable: bool
) -> None:
    flow = reminder(bb.ref("due", datetime))
    app = time.app(flow.durable(retries=3) if durable else flow)
    async with app:
        with pytest.raises(bb.InvalidValue, match=f"{shown}, which is no time with a zone") as caught:
            await app.run("reminder", "hi", params={"due": value})
        error = caught.value
        assert (error.flow, error.path) == ("reminder", "reminder/body~at.1")
        assert "ISO 8601 with a zone" in error.remedy
        assert await app.jobs() == []


async def test_a_time_is_not_shown_in_full_and_no_secret_of_it(time: Timetable) -> None:
    app = time.app(reminder(bb.ref("due", str)))
    secret = "hunter2-hunter2"
    bb.redact(secret)
    with pytest.raises(bb.InvalidValue) as caught:
        await app.run("reminder", "hi", params={"due": f"{secret} {'x' * 1000}"})
    assert secret not in str(caught.value)
    assert len(caught.value.message) < 200


async def test_an_unbound_time_can_be_caught(time: Timetable) -> None:
    flow = bb.Try(bb.At(bb.ref("due", datetime), bb.Emit("x")), catch="why", handler=bb.Emit("{why}"))
    app = time.app(flow.with_id("f").with_params(due=str))
    outcome = await app.run("f", "hi", params={"due": "soon"})
    assert outcome.answer is not None and "no time with a zone" in outcome.answer


# --- starting with the app ---


async def test_at_a_start_one_time_is_one_job_and_another_time_another(time: Timetable) -> None:
    flow = reminder(bb.ref("due", datetime), time.agent("a"))

    def app(due: datetime) -> bb.App:
        made = time.app()
        made.on_start(flow, input="hi", params={"due": due})
        return made

    for due in (NOON, NOON, NOON + timedelta(hours=1), NOON.astimezone(ZoneInfo("Asia/Tokyo"))):
        async with app(due):
            pass
    async with app(NOON) as last:
        assert [job.next for job in await last.jobs()] == [NOON, NOON + timedelta(hours=1)]
        await time.pass_(hours=13)
        assert time.count("a") == 2
    async with app(NOON) as again:  # a time that has been is not new
        await rest()
        assert (await again.jobs(), time.count("a")) == ([], 2)


def test_what_an_app_starts_with_is_checked(time: Timetable) -> None:
    with pytest.raises(bb.WiringError, match="nothing binds 'due'"):
        time.app(start=(bb.Chain([bb.At(bb.ref("due", datetime), bb.Emit("x"))]).with_id("f"),))
    with pytest.raises(bb.WiringError, match="surely comes to no time"):
        time.app(start=(bb.Chain([bb.At(bb.Format("soon")), bb.Emit("x")]).with_id("f"),))


# --- crashes ---


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("stream", ["job/", "run/"])
async def test_what_the_session_has_bound_since_is_no_other_time(moment: str, stream: str) -> None:
    store = MockStore()
    time = Timetable(store)

    def due(value: datetime) -> bb.DurableFlow:
        return bb.Bind("due", value).with_id("due").durable()

    steps = bb.At(bb.Peek("due"), time.agent("a")).next(time.agent("b").with_id("b"))
    flow = steps.with_id("f").durable()
    await time.app().run(due(NOON), session_id="s")
    store.crash_at(
        lambda name, records: name.startswith(stream) and any(b"body~at.0" in one for one in records),
        "before" if moment == "before" else "after",
    )
    with pytest.raises((Crash, bb.BBError)):
        await time.app(flow).run("f", "hi", run_id="r", session_id="s")
    assert store.crashed
    store.revive()
    await time.app().run(due(NOON + timedelta(hours=1)), session_id="s")

    async with time.app(flow) as app:
        await app.run("f", run_id="r")
        assert [job.next for job in await app.jobs()] == [NOON]
        await time.pass_(hours=14)
        assert time.count("a") == 1
    await time.stop()


async def test_a_time_that_would_be_another_by_now_stays_what_it_was() -> None:
    store = MockStore()
    time = Timetable(store)

    @attrs.frozen
    class Ten:
        """So many minutes from now, whenever that is."""

        minutes: int

        @property
        def due(self) -> datetime:
            return time.soon(minutes=self.minutes)

    @bb.op()
    async def ten() -> Ten:
        return Ten(10)

    def made() -> bb.App:
        steps = bb.Bind("ten", ten()).next(bb.At(bb.ref("ten", Ten).due, time.agent("a")))
        app = time.app()
        app.types.register(Ten)
        app.register(steps.with_id("f").durable())
        return app

    store.crash_at(lambda name, _: name.startswith("job/"), "after")
    with pytest.raises((Crash, bb.BBError)):
        await made().run("f", "hi", run_id="r")
    store.revive()
    time.clock.advance(60)

    async with made() as app:
        await app.run("f", run_id="r")
        assert [job.next for job in await app.jobs()] == [datetime(2026, 1, 1, 0, 10, tzinfo=UTC)]
        time.clock.advance(60)
        await app.run("f", run_id="r")
        assert len(await app.jobs()) == 1
        await time.pass_(minutes=8)
        assert time.count("a") == 1
    await time.stop()


@pytest.mark.parametrize("start", [True, False])
async def test_whatever_crashes_it_is_one_job_at_the_first_time(start: bool) -> None:
    strike, first = 0, 0
    while True:
        strike += 1
        store = MockStore()
        time = Timetable(store)

        @bb.op(effects=["read"])
        def soon(time: Timetable = time) -> datetime:
            return time.soon(minutes=10)

        steps = bb.At(bb.ref(soon()), time.agent("a")).next(time.agent("b").with_id("b"))
        flow = steps.with_id("f").durable()
        store.crash_at(strike, "after")
        with structlog.testing.capture_logs():
            for _ in range(2):
                app = time.app(start=(flow,)) if start else time.app(flow)
                try:
                    await app.start()
                    if not start:
                        await app.run("f", "hi", run_id="r")
                    break
                except (Crash, bb.BBError):
                    assert store.crashed
                    with contextlib.suppress(Crash, bb.BBError):
                        await app.stop(timedelta(0))
                    store.revive()
                    time.clock.advance(60)
            else:
                raise AssertionError("it never came to its end")
            struck = store.appends >= strike
            store.clear()
            jobs, runs = await app.jobs(), [run for run in await app.runs() if run.flow == "f"]
            assert len(jobs) == len(runs), strike  # every start is a run, but one that was cut off goes on
            first += jobs[0].next == datetime(2026, 1, 1, 0, 10, tzinfo=UTC)
            await time.pass_(minutes=15)
            assert time.count("a") == len(runs), strike
            await time.stop()
        if not struck:
            break
    assert strike > 5 and first >= strike - 3  # only before the call was saved can it be another


async def test_a_time_that_is_worked_out_comes_back_from_a_crash_at_any_append() -> None:
    time = Timetable()

    @bb.op(effects=["read"])
    async def soon() -> datetime:
        return time.soon(minutes=1)

    member = bb.Chain([bb.At(bb.ref(soon()), time.agent("later")), time.agent("a").with_id("a")])
    flow = bb.Chain([bb.Bind("day", "2026-01-01"), bb.All(member, bb.One(bb.At("{day}T12:00Z", time.agent("b"))))])
    report = await crash_everywhere(flow.with_id("f").durable(), "hi")
    assert report.cases > 20 and not report.findings
