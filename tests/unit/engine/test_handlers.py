"""What handlers do that they should not, and what that must not do to their run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import bb
from bb.engine.pauses import pause
from bb.testing.clock import ManualClock
from tests.trials.kit import Disk, Work

Body = Callable[[bb.Turn], Awaitable[None]]


def flow_of(name: str, body: Body) -> bb.NamedFlow:
    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await body(turn)

    return bb.Flow().with_agent(bb.Agent(name).on_message(handler)).with_id(name)


@pytest.mark.parametrize("beside", [False, True])
async def test_a_cancelled_task_of_the_handlers_own_is_a_failure_and_no_interruption(disk: Disk, beside: bool) -> None:
    done: Counter[str] = Counter()

    async def body(turn: bb.Turn) -> None:
        done["a"] += 1
        if done["a"] == 1:
            task = asyncio.ensure_future(asyncio.sleep(60))
            task.cancel()
            await task
        turn.reply("said")

    flow = flow_of("a", body)
    if beside:
        flow = bb.All(flow, bb.Flow()).with_id("both")
    app = disk.app(clock=ManualClock(auto=True))

    outcome = await app.run(flow.durable(retries=1), "hi", run_id="r")

    assert outcome.answer == "said" and done["a"] == 2


async def test_a_step_that_a_handler_tried_again_replays_as_the_one_that_succeeded(disk: Disk) -> None:
    done: Counter[str] = Counter()
    keys: list[str] = []

    async def charge(amount: int) -> str:
        done["charge"] += 1
        keys.append(bb.idempotency_key())
        if done["charge"] == 1:
            raise TimeoutError
        return f"receipt {done['charge']}"

    async def body(turn: bb.Turn) -> None:
        try:
            receipt = await turn.step("charge", charge, 5)
        except TimeoutError:
            receipt = await turn.step("charge", charge, 5)
        second = await turn.step("charge", charge, 5)
        done["handler"] += 1
        if done["handler"] == 1:
            raise ValueError("after the charge")
        turn.reply(f"{receipt}, {second}")

    flow = flow_of("a", body).durable()
    with pytest.raises(bb.AgentFailed):
        await disk.app().run(flow, "hi", run_id="r")

    outcome = await disk.app().run(flow, "hi", run_id="r")

    assert outcome.answer == "receipt 2, receipt 3" and done["charge"] == 3
    assert keys[0] == keys[1] != keys[2]  # the second try is the same charge to whoever takes the money


async def test_an_error_as_long_as_a_book_is_recorded_in_short(disk: Disk) -> None:
    async def body(turn: bb.Turn) -> None:
        raise ValueError("x" * 100_000)

    app = disk.app(value_limit=10_000)
    with pytest.raises(bb.AgentFailed):
        await app.run(flow_of("a", body).durable(), "hi", run_id="r")

    (info,) = await app.runs()
    assert info.status == "failed" and "ValueError: xxx" in info.error and len(info.error) < 3000


def test_pauses_stay_finite_however_often_it_is_tried() -> None:
    assert pause(100_000, 1.0, ValueError()) == 30.0
    assert pause(0, 1.0, bb.UpstreamError("busy", retry_after=40.0)) == 40.0
    assert pause(0, 1.0, bb.UpstreamError("busy until 2065", retry_after=1.2e9)) == 3600.0


@pytest.mark.parametrize("durable", [False, True])
async def test_a_loser_that_ignores_its_cancellation_does_nothing_more(durable: bool) -> None:
    done: Counter[str] = Counter()

    async def stubborn(turn: bb.Turn) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            done["ignored"] += 1

    async def charge(turn: bb.Turn) -> None:
        done["charge"] += 1

    async def send(text: str) -> None:
        done["sent"] += 1

    async def fast(turn: bb.Turn) -> None:
        await asyncio.sleep(0.01)
        turn.reply("fast")

    slow = flow_of("slow", stubborn).next(bb.Notify(send)).next(flow_of("charge", charge))
    flow = bb.One(slow, flow_of("fast", fast)).with_id("race")

    outcome = await bb.run(flow.durable() if durable else flow, "hi")

    assert outcome.answer == "fast" and done == {"ignored": 1}


async def test_a_cancelled_run_stops_after_a_step_that_ignores_it(disk: Disk, work: Work) -> None:
    started = asyncio.Event()

    async def stubborn(turn: bb.Turn) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            turn.reply("as if nothing had happened")

    flow = work.flow("a").durable().next(flow_of("s", stubborn)).next(work.flow("b")).with_id("f")
    app = disk.app()
    run = asyncio.create_task(app.run(flow, "hi", run_id="r"))
    await started.wait()

    await app.cancel("r")

    with pytest.raises(bb.RunCancelled):
        await run
    assert work.calls == ["a"] and [info.status for info in await app.runs()] == ["cancelled"]


async def test_a_handler_cannot_wait_for_its_own_run(disk: Disk) -> None:
    app = disk.app()

    async def body(turn: bb.Turn) -> None:
        await app.run("a", run_id=turn.run_id)

    app.register(flow_of("a", body).durable())

    with pytest.raises(bb.AgentFailed, match="wait for itself"):
        await app.run("a", "hi", run_id="r")


async def test_one_is_tried_again_while_a_member_may_yet_succeed(disk: Disk) -> None:
    tried = 0

    async def never(turn: bb.Turn) -> None:
        raise bb.Fatal("not for this customer")

    async def later(turn: bb.Turn) -> None:
        nonlocal tried
        tried += 1
        if tried < 3:
            raise ConnectionError("down")
        turn.reply("up")

    app = disk.app(clock=ManualClock(auto=True))
    flow = bb.One(flow_of("never", never), flow_of("later", later)).with_id("one")

    assert (await app.run(flow.durable(retries=2), "hi")).answer == "up"

    with pytest.raises(bb.NobodyWon):
        await app.run(bb.One(flow_of("never", never)).with_id("two").durable(retries=5), "hi", run_id="r")
    assert [run.attempts for run in await app.runs() if run.run_id == "r"] == [1]


async def test_what_one_caller_does_to_the_value_the_others_do_not_see(disk: Disk) -> None:
    async def body(turn: bb.Turn) -> None:
        await asyncio.sleep(0.01)
        turn.reply("list", value=[1])

    app, flow = disk.app(), flow_of("a", body).durable()

    one, two = await asyncio.gather(*(app.run(flow, "hi", run_id="r") for _ in range(2)))
    assert isinstance(one.value, list)
    one.value.append(2)

    assert two.value == [1] and (await app.run(flow, "hi", run_id="r")).value == [1]


async def test_a_bad_answer_that_is_replayed_beside_a_new_question_is_asked_anew(disk: Disk) -> None:
    class Moody:
        """Answers "bad" to the first question once, and hangs on the second once."""

        def __init__(self) -> None:
            self.asked: Counter[str] = Counter()
            self.hung = asyncio.Event()

        async def stream(self, request: bb.ModelRequest) -> AsyncIterator[bb.Chunk]:
            question = request.messages[-1].content
            self.asked[question] += 1
            if question == "second" and self.asked[question] == 1:
                self.hung.set()
                await asyncio.sleep(60)
            yield "bad" if self.asked[question] == 1 and question == "first" else "good"

    model = Moody()

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        answers = await asyncio.gather(chat.ask_with(bb.Message("first")), chat.ask_with(bb.Message("second")))
        if "bad" in [answer.text for answer in answers]:
            raise ValueError("bad answer")
        turn.reply("fine")

    flow = bb.Flow().with_agent(bb.Agent("a", model=model).on_message(handler)).with_id("a").durable(retries=2)
    app = disk.app(clock=ManualClock(auto=True))
    left = asyncio.create_task(app.run(flow, "hi", run_id="r"))
    await model.hung.wait()
    await asyncio.sleep(0.05)
    left.cancel()
    await asyncio.wait([left])

    assert (await app.run(flow, "hi", run_id="r")).answer == "fine"
    assert model.asked["first"] == 2


async def test_a_step_that_outlives_its_handler_is_not_recorded(disk: Disk) -> None:
    go, left = asyncio.Event(), list[asyncio.Task[str]]()

    async def slow() -> str:
        await go.wait()
        return "late"

    async def body(turn: bb.Turn) -> None:
        left.append(asyncio.ensure_future(turn.step("slow", slow)))
        await asyncio.sleep(0)
        turn.reply("gone")

    async def wait(turn: bb.Turn) -> None:
        go.set()
        (error,) = await asyncio.gather(*left, return_exceptions=True)
        turn.reply(type(error).__name__)

    app = disk.app()
    flow = flow_of("a", body).next(flow_of("b", wait)).with_id("job").durable()

    assert (await app.run(flow, "hi", run_id="r")).answer == "Closed"
    assert not any(b"late" in record for record in await app.store.read("run/r"))
