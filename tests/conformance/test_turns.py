"""Turns of a conversation that come again, fail, stand in each other's way, or are given up."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import bb
from bb.errors import AlreadyParked, NotWaiting, OpFailed
from bb.flows.refs import ref
from bb.flows.tree import Await, Bind, Emit, Once, Return
from bb.log.streams import parked_stream
from bb.testing.clock import ManualClock
from tests.conformance.acts import Acts, durable, reached
from tests.conformance.test_sessions import PROMPTS, asking, finished, table
from tests.trials.kit import Disk, contents


def paying(acts: Acts, *, retries: int = 0) -> bb.DurableFlow:
    """Asks for a day, does three things with it, and gives what came of them."""
    return durable(
        Emit("Day?"),
        Await("user", bind="day"),
        Bind("a", acts(ref("day"))),
        Emit("{day} it is"),
        Bind("b", acts("pay")),
        Await("user", bind="more"),
        Return([ref("day"), ref("a"), ref("b"), ref("more")]),
        retries=retries,
    )


# --- the same turn ----------------------------------------------------------------------------------------------------


async def test_a_start_again_is_the_same_turn_until_somebody_replies(disk: Disk, acts: Acts) -> None:
    session = disk.app(table(acts)).session("table", "s")
    first = await session.start("hello")
    assert await session.start("hello") == first and len(await disk.app().runs()) == 1
    with pytest.raises(AlreadyParked):
        await session.start("something else")
    await session.send("monday")
    with pytest.raises(AlreadyParked):
        await session.start("hello")
    assert (await session.start("hello", turn_id=first.turn_id)).prompt == PROMPTS[0]

    await session.send("2")
    fresh = await session.start("hello")

    assert fresh.outcome.run_id != first.outcome.run_id and len(await disk.app().runs()) == 2


async def test_starts_at_the_same_time_are_one(disk: Disk, acts: Acts) -> None:
    sessions = [disk.app(table(acts)).session("table", "s") for _ in range(4)]

    turns = await asyncio.gather(*(session.start("hello") for session in sessions))

    assert len({turn.turn_id for turn in turns}) == 1 and len(await disk.app().runs()) == 1


async def test_a_start_with_an_id_is_that_turn_for_ever(disk: Disk, acts: Acts) -> None:
    session = disk.app(table(acts)).session("table", "s")
    first = await session.start("hello", turn_id="t1")
    await session.send("monday")
    assert (await session.send("2")).done

    again = await session.start("hello", turn_id="t1", replace=True)

    assert (again.prompt, again.waiting_for, again.turn_id) == (first.prompt, first.waiting_for, "t1")
    assert again.outcome.messages == first.outcome.messages
    with pytest.raises(bb.InputConflict):
        await session.start("goodbye", turn_id="t1")


async def test_a_start_that_failed_goes_on_with_the_next_one(disk: Disk, acts: Acts) -> None:
    flow = durable(Bind("a", acts("look")), Bind("b", acts("find")), Await("user"))
    session = disk.app(flow).session("f", "s")
    acts.fail("find", 1)
    with pytest.raises(OpFailed):
        await session.start()

    turn = await session.start()

    assert turn.waiting_for == "user" and acts.done == ["look", "find", "find"]
    assert len(await disk.app().runs()) == 1


async def test_a_turn_again_is_the_same_turn_whatever_came_after_it(disk: Disk, acts: Acts) -> None:
    session = disk.app(table(acts)).session("table", "s")
    await session.start()
    first = await session.send("monday", turn_id="m1")
    await session.send("2", turn_id="m2")
    before = await contents(disk.store())

    again = await disk.app(table(acts)).session("table", "s").send("monday", turn_id="m1")

    assert (again.prompt, again.waiting_for, again.turn_id) == (first.prompt, "user", "m1")
    assert again.outcome.messages == first.outcome.messages
    assert acts.done == ["find", "book"] and await contents(disk.store()) == before


async def test_a_turn_of_an_earlier_conversation_answers_nothing(disk: Disk, acts: Acts) -> None:
    session = disk.app(table(acts)).session("table", "s")
    await session.start()
    await session.send("monday", turn_id="m1")
    await session.send("2", turn_id="m2")
    await session.start()

    assert (await session.send("2", turn_id="m2")).prompt == PROMPTS[2]
    with pytest.raises(bb.InputConflict):
        await session.send("3", turn_id="m2")
    assert await session.waiting_for() == "user" and acts.count("book") == 1

    assert (await session.send("monday", turn_id="m3")).prompt == PROMPTS[1]


async def test_of_two_replies_at_the_same_time_one_is_heard(disk: Disk, acts: Acts) -> None:
    sessions = [disk.app(table(acts)).session("table", "s") for _ in range(2)]
    await sessions[0].start()

    hold = acts.hold("find")
    sending = [asyncio.create_task(sessions[0].send("monday")), asyncio.create_task(sessions[1].send("friday"))]

    refused, _ = await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED, timeout=10)

    assert [type(task.exception()) for task in refused] == [NotWaiting]
    hold.go.set()
    (heard,) = [await task for task in sending if task not in refused]
    assert heard.prompt.endswith("find done. How many?") and acts.done == ["find"]


async def test_the_same_reply_at_the_same_time_is_one_turn(disk: Disk, acts: Acts) -> None:
    sessions = [disk.app(table(acts)).session("table", "s") for _ in range(3)]
    await sessions[0].start()

    turns = await asyncio.gather(*(session.send("monday", turn_id="t1") for session in sessions))

    assert {turn.prompt for turn in turns} == {PROMPTS[1]} and acts.done == ["find"]


async def test_a_reply_is_not_kept_for_a_question_that_is_not_asked_yet(disk: Disk, acts: Acts) -> None:
    session = disk.app(durable(Bind("a", acts("look")), Await("user"), Emit("bye"))).session("f", "s")
    hold = acts.hold("look")
    starting = asyncio.create_task(session.start())
    await reached(hold, starting)
    with pytest.raises(NotWaiting, match="asked nothing"):
        await session.send("too early")
    hold.go.set()
    await starting

    assert await session.waiting_for() == "user" and (await session.send("now")).done


async def test_a_parked_run_that_is_run_again_writes_nothing(disk: Disk) -> None:
    app = disk.app(asking("a"))
    first = await app.run("asking", run_id="r", session_id="s")
    before = await contents(disk.store())

    again = [await disk.app(asking("a")).run("asking", run_id="r") for _ in range(7)]

    assert {outcome.answer for outcome in again} == {first.answer} and again[0].waiting_for == "a"
    assert await contents(disk.store()) == before


async def test_every_leg_streams_what_is_its_answer(disk: Disk, acts: Acts) -> None:
    flow = durable(
        Emit("Hello."),
        bb.Respond(),
        Emit("Name?"),
        Await("user", bind="n"),
        Emit("Bye {n}."),
        bb.Respond(),
        Await("user"),
    )
    app = disk.app(flow)
    for expected in ("Hello.\n\nName?", "Hello.\n\nName?\n\nBye Ann."):
        async with app.stream("f", run_id="r", session_id="s") as text:
            streamed = "".join([chunk async for chunk in text])
        assert streamed == expected == (await text.outcome()).answer
        await disk.app().deliver("user", "Ann", session_id="s")


# --- a reply that fails -----------------------------------------------------------------------------------------------


async def test_a_failed_reply_sent_again_goes_on_where_it_failed(disk: Disk, acts: Acts) -> None:
    session = disk.app(paying(acts)).session("f", "s")
    await session.start()
    acts.fail("pay", 1)
    with pytest.raises(OpFailed, match="pay fails"):
        await session.send("monday")
    assert await session.waiting_for() == "user"

    turn = await session.send("monday")

    assert turn.prompt == "monday it is" and acts.done == ["monday", "pay", "pay"]


async def test_after_a_failed_reply_another_one_answers_the_question_anew(disk: Disk, acts: Acts) -> None:
    session = disk.app(paying(acts)).session("f", "s")
    await session.start()
    acts.fail("pay", 1)
    with pytest.raises(OpFailed, match="pay fails"):
        await session.send("monday", turn_id="t1")

    turn = await session.send("friday", turn_id="t2")

    assert turn.prompt == "friday it is" and acts.done == ["monday", "pay", "friday", "pay"]
    assert [message.content for message in turn.outcome.messages] == ["Day?", "friday", "friday it is"]
    with pytest.raises(NotWaiting, match="took its place"):
        await session.send("monday", turn_id="t1")
    assert (await session.send("friday", turn_id="t2")).prompt == turn.prompt
    assert (await session.send("bye")).outcome.value == ["friday", "friday done", "pay done", "bye"]


async def test_another_reply_does_not_take_an_event_that_waits(disk: Disk, acts: Acts) -> None:
    session = disk.app(paying(acts)).session("f", "s")
    await session.start()
    acts.fail("pay", 1)
    with pytest.raises(OpFailed):
        await session.send("monday")
    await disk.app().deliver("user", "for later", session_id="s")

    turn = await session.send("friday")

    assert turn.done and turn.outcome.value == ["friday", "friday done", "pay done", "for later"]


async def test_what_is_done_once_is_not_done_again_for_another_reply(disk: Disk, acts: Acts) -> None:
    once = Once("charge", acts("charge"), bind="receipt")
    flow = durable(Await("user", bind="x"), once, Bind("b", acts("ship")), Return([ref("x"), ref("receipt")]))
    session = disk.app(flow).session("f", "s")
    await session.start()
    acts.fail("ship", 1)
    with pytest.raises(OpFailed):
        await session.send("one")

    assert (await session.send("two")).outcome.value == ["two", "charge done"]
    assert acts.done == ["charge", "ship", "ship"]


async def test_a_saga_that_failed_after_a_reply_is_undone_and_another_reply_runs_it_anew(
    disk: Disk, acts: Acts
) -> None:
    session = disk.app(durable(Await("user", bind="x"), acts.saga("hotel", "train"), Return(ref("x")))).session(
        "f", "s"
    )
    await session.start()
    acts.fail("train", 1)
    with pytest.raises(OpFailed):
        await session.send("one")
    assert acts.done == ["hotel", "train", "undo hotel"]

    assert (await session.send("two")).outcome.value == "two"

    assert acts.done == ["hotel", "train", "undo hotel", "hotel", "train"]


async def test_while_an_undo_is_open_another_reply_is_refused(disk: Disk, acts: Acts) -> None:
    session = disk.app(durable(Await("user", bind="x"), acts.saga("hotel", "train"), Return(ref("x")))).session(
        "f", "s"
    )
    await session.start()
    acts.fail("train", 1)
    acts.breaks("undo hotel")
    with pytest.raises(OpFailed):
        await session.send("one")
    with pytest.raises(NotWaiting, match="undone first"):
        await session.send("two")
    acts.mend("undo hotel")

    assert (await session.send("one")).outcome.value == "one"

    assert acts.done == ["hotel", "train", "undo hotel", "undo hotel", "hotel", "train"]


async def test_durable_retries_follow_a_reply_as_any_step(disk: Disk, acts: Acts) -> None:
    app = disk.app(paying(acts, retries=2), clock=ManualClock(auto=True))
    session = app.session("f", "s")
    await session.start()
    acts.fail("pay", 2)

    assert (await session.send("monday")).prompt == "monday it is"

    assert acts.done == ["monday", "pay", "pay", "pay"]


# --- over a parked run ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["run", "submit", "stream"])
async def test_nothing_that_awaits_starts_over_a_parked_run(disk: Disk, acts: Acts, how: str) -> None:
    app = disk.app(asking("a"), table(acts))
    await app.session("table", "s").start()

    async def start() -> None:
        match how:
            case "run":
                await app.run("asking", session_id="s")
            case "submit":
                await app.submit("asking", session_id="s")
            case _:
                async with app.stream("asking", session_id="s") as text:
                    await text.outcome()

    with pytest.raises(AlreadyParked, match="table"):
        await start()

    assert [run.flow for run in await app.runs()] == ["table"]
    assert (await app.run("asking", session_id="other")).waiting_for == "a"
    assert (await app.session("table", "s").send("monday")).prompt == PROMPTS[1]


async def test_what_does_not_await_may_run_beside_a_parked_run(disk: Disk, acts: Acts) -> None:
    app = disk.app(durable(Emit("hi"), id="hi"), table(acts))
    await app.session("table", "s").start()

    assert (await app.run("hi", session_id="s")).answer == "hi"


@pytest.mark.parametrize("how", ["run", "session"])
async def test_with_replace_the_parked_run_is_given_up_first(disk: Disk, acts: Acts, how: str) -> None:
    app = disk.app(asking("user"), table(acts))
    old = await app.session("table", "s").start()

    if how == "run":
        await app.run("asking", run_id="new", session_id="s", replace=True)
    else:
        await app.session("asking", "s").start(replace=True)

    by_flow = {run.flow: run for run in await app.runs()}
    assert by_flow["table"].status == "cancelled" and by_flow["asking"].status == "parked"
    assert await app.session("table", "s").waiting_for() is None
    assert (await app.deliver("user", "x", session_id="s")).run_id == by_flow["asking"].run_id != old.outcome.run_id


async def test_a_conversation_given_up_gets_neither_replies_nor_events(disk: Disk, acts: Acts) -> None:
    app = disk.app(table(acts))
    session = app.session("table", "s")
    first = await session.start("hello")
    await session.abandon()
    await session.abandon()

    assert [run.status for run in await app.runs()] == ["cancelled"]
    assert (await app.deliver("user", "x", session_id="s")).run_id is None
    with pytest.raises(NotWaiting, match="it is over"):
        await session.send("monday")
    with pytest.raises(NotWaiting, match="given up"):
        await session.start("hello", turn_id=first.turn_id)
    assert (await session.start("hello")).prompt == "x: find done. How many?"  # it took the event that nobody had


async def test_what_cannot_be_read_says_how_to_give_it_up(disk: Disk, acts: Acts) -> None:
    app = disk.app(table(acts))
    session = app.session("table", "s")
    await session.start()
    stream = parked_stream("s")
    await disk.store().append(stream, len(await disk.store().read(stream)), [b"nonsense"])

    for ask in (session.start(), session.send("monday"), session.waiting_for(), app.run("table", session_id="s")):
        with pytest.raises(bb.CorruptRecord, match=r"abandon\(\)"):
            await ask
    await session.abandon()

    assert (await session.start()).prompt == PROMPTS[0]


async def test_a_run_that_cannot_be_read_can_be_given_up(disk: Disk, acts: Acts) -> None:
    session = disk.app(table(acts)).session("table", "s")
    turn = await session.start()
    stream = f"run/{turn.outcome.run_id}"
    await disk.store().append(stream, len(await disk.store().read(stream)), [b"nonsense"])
    for ask in (session.start(), session.send("monday"), session.waiting_for()):
        with pytest.raises(bb.CorruptRecord, match=r"abandon\(\)"):
            await ask
    await session.abandon()

    assert await session.waiting_for() is None
    assert (await session.start()).prompt == PROMPTS[0]


# --- the life of a parked run -----------------------------------------------------------------------------------------


async def test_a_parked_run_is_kept_for_good_unless_it_has_a_ttl(disk: Disk, acts: Acts) -> None:
    clock = ManualClock(auto=True)
    short = durable(Await("user"), id="short", ttl=timedelta(hours=2))
    app = disk.app(asking("a"), short, clock=clock, retention=timedelta(hours=1))
    await app.run("asking", run_id="long", session_id="s")
    await app.run("short", run_id="short", session_id="t")
    clock.advance(timedelta(hours=1))
    assert await app.prune() == 0
    clock.advance(timedelta(hours=2))

    assert await app.prune() == 1

    assert {run.run_id: run.status for run in await app.runs()} == {"long": "parked", "short": "expired"}
    assert (await app.deliver("user", "x", session_id="t")).run_id is None
    with pytest.raises(bb.RunExpired):
        await app.run("short", run_id="short")


async def goes(app: bb.App, clock: ManualClock, how: str) -> None:
    """A parked run ends before it could take what was delivered to it."""
    if how == "cancelled":
        await app.cancel("r")
    elif how == "abandoned":
        await app.session("short", "s").abandon()
    else:
        clock.advance(timedelta(hours=3))
    if how == "pruned":
        assert await app.prune() == 1
    if how == "called":
        with pytest.raises(bb.RunExpired):
            await app.run("short", run_id="r")


@bb.Agent().on_message
async def slow(turn: bb.Turn, chat: bb.ModelChat) -> None:
    await asyncio.sleep(0.1)


GOES = pytest.mark.parametrize("how", ["pruned", "called", "cancelled", "abandoned"])


@GOES
async def test_what_was_delivered_to_a_run_that_goes_is_for_the_next_one(disk: Disk, how: str) -> None:
    """Each event is consumed by exactly one await: a run that is past its ttl, or ended by people, is none."""
    clock = ManualClock(auto=True)
    short = durable(Await("user", bind="x"), Return(ref("x")), id="short", ttl=timedelta(hours=2))
    await disk.app(short, clock=clock).run("short", run_id="r", session_id="s")
    other = disk.app(clock=clock)  # it has none of the flows, so the run only has its event
    assert (await other.deliver("user", "first", session_id="s", delivery_id="d1")).run_id == "r"
    await other.deliver("user", "second", session_id="s")
    app = disk.app(short, clock=clock)

    await goes(app, clock, how)

    assert (await app.deliver("user", "first", session_id="s", delivery_id="d1")).run_id is None  # still the same event
    assert [(await app.run("short", run_id=run, session_id="s")).value for run in "ab"] == ["first", "second"]


@GOES
async def test_who_waits_already_gets_it_and_goes_on(disk: Disk, how: str) -> None:
    clock = ManualClock(auto=True)
    short = durable(Await("user", bind="x"), Return(ref("x")), id="short", ttl=timedelta(hours=2))
    lasting = durable(bb.Flow().with_agent(slow), Await("user", bind="x"), Return(ref("x")), id="lasting")
    app = disk.app(short, lasting, clock=clock)
    starts = (("lasting", "next"), ("short", "r"))  # the second parks while the first is still at its first step
    await asyncio.gather(*(app.run(flow, run_id=id, session_id="s") for flow, id in starts))
    assert (await disk.app(clock=clock).deliver("user", "yes", session_id="s")).run_id == "r"

    await goes(app, clock, how)

    assert (await finished(app, "lasting", "next")).value == "yes"


async def test_what_a_run_has_taken_is_not_given_to_another(disk: Disk) -> None:
    clock = ManualClock(auto=True)
    short = durable(Await("user"), Await("other"), id="short", ttl=timedelta(hours=2))
    app = disk.app(short, clock=clock)
    await app.run("short", run_id="r", session_id="s")
    await app.deliver("user", "taken", session_id="s")
    assert (await app.run("short", run_id="r")).waiting_for == "other"
    clock.advance(timedelta(hours=3))

    assert await app.prune() == 1

    assert (await app.run("short", run_id="a", session_id="s")).waiting_for == "user"


async def test_a_leg_is_progress_that_a_ttl_counts_from(disk: Disk) -> None:
    clock = ManualClock(auto=True)
    app = disk.app(durable(Await("a"), Await("b"), ttl=timedelta(hours=2)), clock=clock)
    await app.run("f", run_id="r", session_id="s")
    clock.advance(timedelta(hours=1.5))
    await app.deliver("a", 1, session_id="s")
    assert (await app.run("f", run_id="r")).waiting_for == "b"
    clock.advance(timedelta(hours=1.5))
    assert (await app.run("f", run_id="r")).waiting_for == "b"
    clock.advance(timedelta(hours=1))

    with pytest.raises(bb.RunExpired):
        await app.run("f", run_id="r")


async def test_a_parked_run_can_be_cancelled(disk: Disk, acts: Acts) -> None:
    app = disk.app(asking("a"))
    await app.run("asking", run_id="r", session_id="s")

    await app.cancel("r")

    assert [run.status for run in await app.runs()] == ["cancelled"]
    assert (await app.deliver("a", 1, session_id="s")).run_id is None
    assert (await app.run("asking", run_id="next", session_id="s")).value == [1]


async def test_a_step_before_an_await_can_be_forgotten_while_the_run_is_parked(disk: Disk, acts: Acts) -> None:
    app = disk.app(durable(Bind("a", acts("look")), Await("user", bind="x"), Return([ref("a"), ref("x")])))
    await app.run("f", run_id="r", session_id="s")
    await app.forget("r", "f/body~bind.0")
    acts.values["look"] = "new"

    assert (await app.run("f", run_id="r")).waiting_for == "user"
    await app.deliver("user", 1, session_id="s")

    assert (await finished(app, "f", "r")).value == ["new", 1]


async def test_a_session_can_be_forgotten_when_nothing_of_it_runs(disk: Disk, acts: Acts) -> None:
    flow = durable(Await("user", bind="x"), Bind("a", acts("look")), Return(ref("x")))
    app = disk.app(flow)
    await app.deliver("user", "first", session_id="s")
    hold = acts.hold("look")
    running = asyncio.create_task(app.run("f", session_id="s"))
    await reached(hold, running)
    with pytest.raises(bb.RunBusy):
        await app.drop_session("s")
    hold.go.set()
    await running
    await app.run("f", run_id="parked", session_id="s")

    await app.drop_session("s")

    assert {run.run_id: run.status for run in await app.runs()}["parked"] == "cancelled"
    assert not [name for name in await contents(disk.store()) if name.startswith("session/s/")]
    assert (await app.run("f", session_id="s")).waiting_for == "user"


async def test_a_run_that_nobody_could_answer_is_an_error() -> None:
    with pytest.raises(bb.WiringError, match="waits for 'user'"):
        await bb.run(durable(Emit("Day?"), Await("user")))
    assert (await bb.run(durable(Emit("hi"), Await("user", when=False)))).answer == "hi"


async def test_a_conversation_is_had_with_a_durable_flow(acts: Acts) -> None:
    app = bb.App()
    plain = Emit("hi").with_id("plain")
    app.register(plain)
    with pytest.raises(bb.WiringError, match="not durable"):
        app.session("plain", "s")
    with pytest.raises(bb.InvalidId):
        app.session(table(acts), "not an id")
    with pytest.raises(bb.InvalidInput, match="no reply"):
        await app.session(table(acts), "s").send(5)  # type: ignore[arg-type]
    with pytest.raises(bb.InvalidInput, match="no turn id"):
        await app.session(table(acts), "s").start(turn_id=" ")
    for wrong in ({"source": " "}, {"source": "a", "delivery_id": ""}):
        with pytest.raises(bb.InvalidInput):
            await app.deliver(**{"payload": 1, "session_id": "s"} | wrong)  # type: ignore[arg-type]
