"""Runs that wait, and conversations with them: cases 21 to 31 and 59 to 65 of the language."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from attrs import evolve

import bb
from bb.engine.outcome import SessionTurn
from bb.engine.runs.session import Session
from bb.errors import Denied, NotWaiting
from bb.flows.refs import ref
from bb.flows.tree import Await, Bind, Checkpoint, Emit, Return, When
from bb.log import Parked, decode, run_stream
from bb.log.rows import Gone
from bb.log.rows import Parked as Listed
from bb.log.streams import mail_stream
from bb.log.tables import OpenRuns
from bb.ops import op
from bb.policy import Approval, ByRisk, Decision
from bb.testing.scripted_model import ScriptedModel
from tests.conformance.acts import Acts, durable, plain, reached
from tests.trials.kit import Disk, contents, until


def table(acts: Acts) -> bb.DurableFlow:
    """Asks for a day and a number of people, and books."""
    return durable(
        Emit("Which day?"),
        Await("user", bind="day"),
        Bind("found", acts("find")),
        Emit("{day}: {found}. How many?"),
        Await("user", bind="count", type="Number"),
        Bind("booked", acts("book")),
        Emit("A table for {count}: {booked}."),
        id="table",
    )


PROMPTS = ["Which day?", "monday: find done. How many?", "A table for 2: book done."]


def asking(*sources: str) -> bb.DurableFlow:
    """Awaits one event after the other, and gives them all."""
    awaits = [Await(source, bind=f"x{number}") for number, source in enumerate(sources)]
    return durable(*awaits, Return([ref(f"x{number}") for number in range(len(sources))]), id="asking")


async def finished(app: bb.App, flow: str, run_id: str) -> bb.Outcome:
    """The outcome of a run that goes on by itself."""

    async def is_over() -> bool:
        return any(run.run_id == run_id and run.status == "finished" for run in await app.runs())

    await until(is_over)
    return await app.run(flow, run_id=run_id)


# --- 21 to 31: await --------------------------------------------------------------------------------------------------


async def test_case_21_what_came_before_an_await_is_not_run_again(disk: Disk, acts: Acts) -> None:
    flow = durable(Bind("a", acts("look")), Await("door", bind="b"), Return([ref("a"), ref("b")]))
    first = await disk.app(flow).run("f", run_id="r", session_id="s")
    assert first.waiting_for == "door" and acts.done == ["look"]

    app = disk.app(flow)
    assert (await app.deliver("door", "open", session_id="s")).run_id == "r"

    assert (await finished(app, "f", "r")).value == ["look done", "open"] and acts.done == ["look"]


@pytest.mark.parametrize("asks", [True, False])
async def test_case_22_an_await_with_a_condition_is_passed_over_when_that_is_false(disk: Disk, asks: bool) -> None:
    wait = Await("user", bind="x", when=ref("n", int) > 3)
    flow = durable(Bind("n", 5 if asks else 1), wait, Return(["over", ref("n")]))

    outcome = await disk.app(flow).run("f", run_id="r", session_id="s")

    assert outcome.waiting_for == ("user" if asks else None)
    assert asks or outcome.value == ["over", 1]
    facts = [decode(record, "") for record in await disk.store().read(run_stream("r"))]
    assert any(isinstance(fact, Parked) for fact in facts) is asks


@pytest.mark.parametrize(
    ("type", "given", "heard"),
    [
        ("Number", "42", 42),
        ("Number", " 4.5 ", 4.5),
        ("Number", "nan", "nan"),
        ("Number", "forty", "forty"),
        ("Number", ["42"], ["42"]),
        ("Bool", "true", True),
        ("Bool", "yes", "yes"),
        ("String", "42", "42"),
        (None, "42", "42"),
    ],
)
async def test_case_23_a_text_is_read_as_the_type_of_the_await(type: str | None, given: object, heard: object) -> None:
    app = bb.App()
    await app.deliver("user", given, session_id="s")

    outcome = await app.run(durable(Await("user", bind="x", type=type), Return(ref("x"))), session_id="s")

    assert outcome.value == heard and outcome.value.__class__ is heard.__class__


async def test_case_24_a_parked_run_says_what_it_waits_for_and_where(disk: Disk) -> None:
    app = disk.app(asking("user"))
    outcome = await app.run("asking", run_id="r", session_id="s")

    (run,) = await app.runs()
    assert outcome.waiting_for == run.waiting_for == "user" and run.status == "parked"
    (event,) = [event for event in await app.events("r") if event.kind == "run.parked"]
    assert event.path == "asking/body~await.0" and event.detail == "user"


async def test_case_25_a_run_whose_event_has_come_simply_goes_on(disk: Disk) -> None:
    await disk.app(asking("user")).run("asking", run_id="r", session_id="s")
    await disk.app().deliver("user", "here", session_id="s")  # which knows no flow, so nothing goes on yet

    outcome = await disk.app(asking("user")).run("asking", run_id="r")

    assert outcome.value == ["here"] and outcome.waiting_for is None


def test_case_26_an_await_stands_at_the_top_of_a_durable_flow_only() -> None:
    wait = Await("user", bind="x")

    assert [problem.code for problem in bb.check(durable(When(True, wait)))] == ["await-nested"]
    assert [problem.code for problem in bb.check(plain(Emit("hi"), wait))] == ["await-not-durable"]


async def test_case_27_a_run_parks_in_the_store_and_a_started_app_goes_on_with_it(disk: Disk) -> None:
    first = await disk.app(asking("a", "b")).run("asking", run_id="r", session_id="s")
    await disk.app().deliver("a", 1, session_id="s")
    async with disk.app(asking("a", "b")) as app:

        async def has_moved() -> bool:
            (run,) = await app.runs()
            return (run.status, run.waiting_for) == ("parked", "b")

        await until(has_moved)
        await app.deliver("b", 2, session_id="s")
        assert first.waiting_for == "a" and (await finished(app, "asking", "r")).value == [1, 2]


def test_case_28_a_session_lists_a_run_once_and_where_it_parked_last() -> None:
    runs = OpenRuns()
    for row in (Listed("r", "f", "f/a", "a", 1), Listed("r", "f", "f/b", "b", 2)):
        runs.add(row)
    assert [row.path for row in runs.parked.values()] == ["f/b"]

    for _ in range(2):
        runs.add(Gone("r"))
        assert runs.parked == {}


async def test_case_28_the_list_follows_the_run(disk: Disk) -> None:
    app = disk.app(asking("a", "b"))

    async def listed() -> list[str]:
        return [row.path for row in await app._conversations.parked("s")]

    await app.run("asking", run_id="r", session_id="s")
    assert await listed() == ["asking/body~await.0"]
    await app.deliver("a", 1, session_id="s")
    assert (await app.run("asking", run_id="r")).waiting_for == "b"
    assert await listed() == ["asking/body~await.1"]
    await app.deliver("b", 2, session_id="s")
    await finished(app, "asking", "r")
    assert await listed() == []


async def test_case_29_only_an_open_question_can_be_answered(disk: Disk, acts: Acts) -> None:
    session = disk.app(table(acts)).session("table", "s")
    with pytest.raises(NotWaiting, match="no conversation"):
        await session.send("tomorrow")
    await session.start()
    first = await session.send("monday")
    assert (await session.send("2")).done
    with pytest.raises(NotWaiting, match="it is over"):
        await session.send("tuesday")

    assert (await session.send("monday", turn_id=first.turn_id)).prompt == first.prompt
    assert acts.done == ["find", "book"]


async def test_case_30_of_two_awaits_each_waits_and_the_first_symbol_lasts(disk: Disk) -> None:
    """Regression 'resume value': elsewhere a resume passed the await without binding its symbol."""
    app = disk.app(asking("a", "a"))
    await app.deliver("a", "one", session_id="s")
    outcome = await app.run("asking", run_id="r", session_id="s")
    assert outcome.waiting_for == "a"

    await app.deliver("a", "two", session_id="s")

    assert (await finished(app, "asking", "r")).value == ["one", "two"]


@pytest.mark.parametrize("early", [True, False])
async def test_an_event_is_taken_once_also_when_the_run_is_replaced(disk: Disk, early: bool) -> None:
    """Also by a run that found it there, and so never parked."""
    app = disk.app(asking("door"))
    if not early:
        await app.run("asking", run_id="r", session_id="s")
    await app.deliver("door", 1, session_id="s")
    assert (
        await finished(app, "asking", "r") if not early else await app.run("asking", run_id="r", session_id="s")
    ).value == [1]

    again = await app.run("asking", run_id="r", session_id="s", replace=True)

    assert again.waiting_for == "door"
    await app.deliver("door", 2, session_id="s")
    assert (await app.run("asking", run_id="r")).value == [2]


async def test_a_mailbox_does_not_grow_with_the_runs_that_found_their_event_there(disk: Disk) -> None:
    app = disk.app(asking("door"))
    for number in range(150):
        await app.deliver("door", "x" * 100, session_id="s", delivery_id=f"d{number}")
        await app.run("asking", session_id="s")

    stream = mail_stream("s", "door")

    rows = await app.store.read(stream)
    assert len(rows) < 150 and sum(map(len, rows)) < 32_000


async def test_case_31_an_await_need_not_bind(disk: Disk) -> None:
    app = disk.app(durable(Await("go"), Emit("gone")))
    await app.run("f", run_id="r", session_id="s")

    await app.deliver("go", {"any": "thing"}, session_id="s")

    assert (await finished(app, "f", "r")).answer == "gone"


# --- 59 to 65: conversations ------------------------------------------------------------------------------------------


async def test_case_59_a_flow_asks_twice_and_no_model_is_called(disk: Disk, acts: Acts) -> None:
    model = ScriptedModel("never")
    session = disk.app(table(acts), model=model).session("table", "s")

    turns = [await session.start(), await session.send("monday"), await session.send("2")]

    assert [turn.prompt for turn in turns] == PROMPTS
    assert [(turn.done, turn.waiting_for) for turn in turns] == [(False, "user"), (False, "user"), (True, None)]
    said = [(message.role, message.content) for message in turns[-1].outcome.messages]
    assert said == [
        ("assistant", PROMPTS[0]),
        ("user", "monday"),
        ("assistant", PROMPTS[1]),
        ("user", "2"),
        ("assistant", PROMPTS[2]),
    ]
    assert acts.done == ["find", "book"] and model.requests == []


async def test_case_60_who_says_nothing_is_shown_a_hint_and_never_their_own_reply(disk: Disk) -> None:
    session = disk.app(asking("name", "age")).session("asking", "s")

    assert (await session.start()).prompt == "Waiting for name."
    turn = await session.send("Ann")
    assert turn.prompt == turn.outcome.answer == "Waiting for age."


async def test_case_61_a_risky_operation_of_a_conversation_is_asked_about(disk: Disk) -> None:
    paid: list[float] = []
    asked: list[str] = []

    @op(risk="high")
    def pay(amount: float) -> str:
        paid.append(amount)
        return "paid"

    class Boss:
        async def approve(self, request: Approval, /) -> Decision:
            asked.append(request.calls[0].op)
            return Decision.deny("no") if len(asked) == 1 else Decision.allow()

    flow = durable(Emit("How much?"), Await("user", bind="n", type="Number"), pay(ref("n", float)))
    session = disk.app(flow, approver=ByRisk(consent=Boss())).session("f", "s")
    await session.start()
    with pytest.raises(Denied):
        await session.send("5")
    assert paid == [] and await session.waiting_for() == "user"

    assert (await session.send("4")).done

    assert paid == [4] and asked == ["pay", "pay"]


async def test_case_62_a_conversation_survives_a_restart_between_any_two_turns(disk: Disk, acts: Acts) -> None:
    def session() -> Session:
        return disk.app(table(acts)).session("table", "s")

    turns = [await session().start(), await session().send("monday")]
    assert await session().waiting_for() == "user"
    turns.append(await session().send("2"))

    assert [turn.prompt for turn in turns] == PROMPTS
    assert acts.done == ["find", "book"] and await session().waiting_for() is None


async def test_the_turn_at_hand_is_known_to_who_has_forgotten_it(disk: Disk, acts: Acts) -> None:
    def session() -> Session:
        return disk.app(table(acts)).session("table", "s")

    assert await session().current() is None
    for act in (Session.start, partial(Session.send, reply="monday")):
        turn = await act(session())
        again = await session().current()
        assert again is not None and evolve(again, outcome=turn.outcome) == turn
    assert (await session().send("2")).done
    assert await session().current() is None and acts.done == ["find", "book"]


async def test_to_ask_for_the_turn_at_hand_goes_on_with_one_that_was_cut_off(disk: Disk, acts: Acts) -> None:
    session = disk.app(table(acts)).session("table", "s")
    await session.start()
    for reply, act, prompt in (("monday", "find", PROMPTS[1]), ("2", "book", PROMPTS[2])):
        hold = acts.hold(act)
        sending = asyncio.create_task(session.send(reply))
        await reached(hold, sending)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        turn = await session.current()
        assert turn is not None and (turn.prompt, turn.done) == (prompt, act == "book")
        assert (await session.send(reply, turn_id=turn.turn_id)).prompt == prompt
    assert acts.done == ["find", "find", "book", "book"]


async def test_a_first_turn_that_was_cut_off_is_at_hand(disk: Disk, acts: Acts) -> None:
    session = disk.app(durable(acts("look"), Emit("Who?"), Await("user"))).session("f", "s")
    hold = acts.hold("look")
    starting = asyncio.create_task(session.start(turn_id="t"))
    await reached(hold, starting)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    turn = await session.current()

    assert turn is not None and (turn.prompt, turn.turn_id) == ("Who?", "t")


async def test_a_question_whose_reply_failed_is_at_hand_and_nothing_is_tried_again(disk: Disk, acts: Acts) -> None:
    session = disk.app(table(acts)).session("table", "s")
    first = await session.start()
    acts.fail("find", 1)
    with pytest.raises(bb.OpFailed):
        await session.send("monday")

    assert await session.current() == first and acts.done == ["find"]

    assert (await session.send("monday")).prompt == PROMPTS[1]


async def test_a_parked_run_that_no_turn_began_is_at_hand_too(disk: Disk) -> None:
    await disk.app(asking("name", "age")).run("asking", run_id="r", session_id="s")
    session = disk.app(asking("name", "age")).session("asking", "s")

    turn = await session.current()
    assert turn is not None and (turn.waiting_for, turn.turn_id) == ("name", "r")

    await disk.app().deliver("name", "Ann", session_id="s")
    turn = await session.current()
    assert turn is not None and (turn.waiting_for, turn.turn_id) == ("age", "r")


async def test_case_63_a_reply_whose_caller_goes_away_can_be_sent_again(disk: Disk, acts: Acts) -> None:
    """Regression 'suspension consumed': elsewhere a cut or a failure lost the conversation."""
    session = disk.app(table(acts)).session("table", "s")
    await session.start()
    hold = acts.hold("find")
    sending = asyncio.create_task(session.send("monday"))
    await reached(hold, sending)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert await session.waiting_for() == "user"
    with pytest.raises(NotWaiting):
        await session.send("tuesday")

    assert (await session.send("monday")).prompt == PROMPTS[1]

    assert acts.done == ["find", "find"]


async def test_case_63_one_that_was_cancelled_before_it_began_changed_nothing(disk: Disk, acts: Acts) -> None:
    session = disk.app(table(acts)).session("table", "s")
    await session.start()
    before = await contents(disk.store())
    sending = asyncio.create_task(session.send("friday"))
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert await contents(disk.store()) == before

    assert (await session.send("monday")).prompt == PROMPTS[1]


async def test_case_64_after_a_pause_things_are_looked_at_anew(disk: Disk, acts: Acts) -> None:
    """Regression 'stale reads': elsewhere a resumed turn saw what was read before the pause."""
    flow = durable(Bind("a", acts("look")), Await("user"), Bind("b", acts("look")), Return([ref("a"), ref("b")]))
    session = disk.app(flow).session("f", "s")
    await session.start()
    acts.values["look"] = "something new"

    assert (await session.send("go")).outcome.value == ["look done", "something new"]


class Caller:
    """A telephone call: what was spoken, and what the caller says; it hangs up when the flow has finished."""

    def __init__(self, *replies: str) -> None:
        self.spoken: list[str] = []
        self.hung_up = False
        self._replies = list(replies)

    async def talk(self, session: Session) -> None:
        """Have the whole conversation."""
        turn = await session.start()
        while self._goes_on_after(turn):
            turn = await session.send(self._replies.pop(0))
        self.hung_up = True

    def _goes_on_after(self, turn: SessionTurn) -> bool:
        self.spoken.append(turn.prompt)
        return not turn.done


async def test_case_65_a_voice_speaks_the_prompts_and_hangs_up(disk: Disk, acts: Acts) -> None:
    caller = Caller("monday", "2")

    await caller.talk(disk.app(table(acts)).session("table", "call-1"))

    assert caller.spoken == PROMPTS and caller.hung_up


# --- regressions of others: what must not come back -------------------------------------------------------------------


async def test_a_checkpoint_on_a_resumed_leg_counts_for_later_runs(disk: Disk, acts: Acts) -> None:
    flow = durable(Await("user", bind="x"), Bind("a", acts("find")), Checkpoint("done"), Return([ref("x"), ref("a")]))
    session = disk.app(flow).session("f", "s")
    await session.start()
    assert (await session.send("one")).outcome.value == ["one", "find done"]

    again = await disk.app(flow).run("f", session_id="s")

    assert again.value == ["one", "find done"] and again.waiting_for is None and acts.done == ["find"]


async def test_an_edited_flow_does_not_touch_a_run_that_is_parked(disk: Disk) -> None:
    """Regression 'latch compare': elsewhere an edited flow was taken for the one that had parked."""
    old = durable(Emit("Old?"), Await("user", bind="x"), Emit("old {x}"))
    new = durable(Emit("New?"), Await("user", bind="x"), Emit("new {x}"))
    await disk.app(old).session("f", "s").start()
    session = disk.app(new).session("f", "s")

    assert (await session.send("one")).prompt == "old one"
    assert (await session.start()).prompt == "New?"


async def test_a_resumed_run_sees_what_other_runs_of_the_session_have_bound_meanwhile(disk: Disk) -> None:
    asks = (
        bb.Bind("mine", 1) >> bb.Bind("x", "old") >> bb.Await("go") >> bb.Return([bb.ref("x"), bb.ref("mine")])
    ).with_id("asks")
    sets = bb.Bind("x", "new").with_id("sets")
    app = disk.app(asks.durable(), sets.durable())
    await app.run("asks", run_id="a", session_id="s")
    await app.run("sets", run_id="b", session_id="s")
    await app.deliver("go", None, session_id="s")
    assert (await app.run("asks", run_id="a", session_id="s")).value == ["new", 1]
    assert (await disk.app(asks.durable()).run("asks", run_id="a")).value == ["new", 1]


async def test_a_turn_that_comes_late_is_the_turn_of_its_own_conversation(disk: Disk) -> None:
    """Whatever the one that is open by then waits for."""
    app = disk.app(asking("a", "b"))
    session = app.session("asking", "s")
    await session.start("one")
    await session.send("1", turn_id="t1")
    over = await session.send("2", turn_id="t2")
    assert over.outcome.value == ["1", "2"]
    await session.start("two")

    for _ in range(2):
        assert (await session.send("2", turn_id="t2")).outcome.value == ["1", "2"]
        assert (await session.send("1", turn_id="t1")).waiting_for == "b"
        assert await session.waiting_for() == "a"
        session = disk.app(asking("a", "b")).session("asking", "s")

    [first] = [run.run_id for run in await app.runs() if run.status == "finished"]
    await app.store.delete(run_stream(first))
    with pytest.raises(NotWaiting, match="t2"):
        await session.send("2", turn_id="t2")
    assert await session.waiting_for() == "a"


async def test_a_turn_of_a_run_that_nobody_began_as_a_conversation_can_come_again(disk: Disk) -> None:
    app = disk.app(asking("a"))
    await app.run("asking", "hi", run_id="r")
    session = app.session("asking", "r")
    for _ in range(2):
        assert (await session.send("1", turn_id="t")).outcome.value == ["1"]
    assert (await session.start("hi", turn_id="r")).waiting_for == "a"
    with pytest.raises(NotWaiting, match="over"):
        await session.send("2", turn_id="u")
    with pytest.raises(bb.RunIdInUse):
        await disk.app(durable(Await("a"), id="other")).session("other", "r").start("hi", turn_id="r")
