"""Once: cases 1 to 7 of the language, and what happens to it inside sagas, loops and other runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

import bb
from bb.errors import OnceBusy, OpFailed, TimedOut, WiringError
from bb.flows.refs import ref
from bb.flows.tree import All, Bind, Each, Emit, Once, One, Retry, Return, Saga, Step, Timeout, Try
from bb.log.rows import decode_row
from bb.testing.clock import ManualClock
from tests.conformance.acts import Acts, durable, plain, reached
from tests.trials.kit import Disk, Hold, contents, cut_off


async def test_case_01_two_runs_of_a_session_run_the_body_once(disk: Disk, acts: Acts) -> None:
    flow = durable(Once("charge", acts("charge"), bind="receipt"), Return(ref("receipt")))

    first = await disk.app(flow).run("f", session_id="s")
    second = await disk.app(flow).run("f", session_id="s")
    elsewhere = await disk.app(flow).run("f", session_id="other")

    assert [first.value, second.value, elsewhere.value] == ["charge done"] * 3
    assert acts.done == ["charge", "charge"]


async def test_case_01_a_hit_gives_back_what_was_bound_inside_and_said(disk: Disk, acts: Acts) -> None:
    flow = durable(Once("charge", Bind("x", acts("charge")), Emit("paid: {x}")), Return(ref("x")))
    first = await disk.app(flow).run("f", session_id="s")

    second = await disk.app(flow).run("f", session_id="s")

    assert (second.value, second.messages) == (first.value, first.messages) and len(second.messages) == 1
    assert acts.done == ["charge"]


async def test_case_02_a_failed_body_leaves_no_completion(disk: Disk, acts: Acts) -> None:
    flow = durable(Once("charge", acts("charge"), bind="receipt"), Return(ref("receipt")))
    acts.fail("charge", 1)
    with pytest.raises(OpFailed, match="charge fails"):
        await disk.app(flow).run("f", session_id="s")

    for _ in range(2):
        assert (await disk.app(flow).run("f", session_id="s")).value == "charge done"

    assert acts.done == ["charge", "charge"]


async def test_case_03_without_anything_durable_it_runs_every_time(acts: Acts) -> None:
    flow = plain(Once("charge", acts("charge"), bind="receipt"), Return(ref("receipt")))
    app = bb.App()

    for _ in range(2):
        assert (await app.run(flow, session_id="s")).value == "charge done"

    assert acts.done == ["charge", "charge"]


async def test_case_04_one_label_and_different_bodies_are_two(disk: Disk, acts: Acts) -> None:
    """Regression 'once/memo identity': elsewhere two effects of one label suppressed each other."""
    flow = durable(Once("x", acts("a")), Once("x", acts("b")), Once("x", acts("a")), Once("y", acts("a")))

    await disk.app(flow).run("f", session_id="s")

    assert acts.done == ["a", "b", "a"]  # the last one has a label of its own


async def test_case_04_the_flow_does_not_count_for_the_body(disk: Disk, acts: Acts) -> None:
    for id in ("f", "g"):
        await disk.app(durable(Once("x", acts("a")), id=id)).run(id, session_id="s")

    assert acts.done == ["a"]


async def test_case_06_a_resumed_run_never_fires_it_again(disk: Disk, acts: Acts) -> None:
    flow = durable(Once("charge", acts("charge"), bind="receipt"), acts("ship"), Return(ref("receipt")))
    acts.fail("ship", 1)
    with pytest.raises(OpFailed):
        await disk.app(flow).run("f", run_id="r", session_id="s")

    outcome = await disk.app(flow).run("f", run_id="r")

    assert outcome.value == "charge done" and acts.done == ["charge", "ship", "ship"]


async def test_case_07_other_sessions_know_nothing_of_it(disk: Disk, acts: Acts) -> None:
    flow = durable(Once("charge", acts("charge")))

    await disk.app(flow).run("f")  # each run has a session of its own
    await disk.app(flow).run("f")

    assert acts.done == ["charge", "charge"]


async def test_a_body_that_returned_returns_again(disk: Disk, acts: Acts) -> None:
    """Node 3, trap 7.2.1: elsewhere the second run went on behind the once."""
    flow = durable(Once("ask", acts("ask"), Return("early")), acts("after"))

    outcomes = [(await disk.app(flow).run("f", session_id="s")).value for _ in range(2)]

    assert outcomes == ["early", "early"] and acts.done == ["ask"]


async def test_each_item_of_a_loop_is_a_once_of_its_own(disk: Disk, acts: Acts) -> None:
    """Trap 7.2.2: elsewhere only the first item ran."""
    flow = durable(
        Each("n", ["a", "b", "a"], Once("mail", acts(ref("n")), bind="sent"), collect="all"), Return(ref("all"))
    )

    outcomes = [(await disk.app(flow).run("f", session_id="s")).value for _ in range(2)]

    assert outcomes == [["a done", "b done", "a done"]] * 2 and acts.done == ["a", "b"]


async def test_an_inner_completion_survives_the_failure_of_the_outer(disk: Disk, acts: Acts) -> None:
    flow = durable(Once("outer", Once("inner", acts("inner")), acts("more")))
    acts.fail("more", 1)
    with pytest.raises(OpFailed):
        await disk.app(flow).run("f", session_id="s")

    await disk.app(flow).run("f", session_id="s")

    assert acts.done == ["inner", "more", "more"]


# --- at once ----------------------------------------------------------------------------------------------------------


async def test_identical_onces_side_by_side_run_once(disk: Disk, acts: Acts) -> None:
    """Trap 7.2.14."""
    members = [Once("charge", acts("charge")).with_id(name) for name in ("x", "y", "z")]

    outcome = await disk.app(durable(All(*members), Return([ref("x"), ref("z")]))).run("f", session_id="s")

    assert outcome.value == ["charge done", "charge done"] and acts.done == ["charge"]


async def test_a_second_run_waits_for_the_first_and_uses_its_result(disk: Disk, acts: Acts) -> None:
    """Trial Q5."""
    flow = durable(Once("charge", acts("charge"), bind="x"), Return(ref("x")))
    hold = acts.hold("charge")
    app, other = disk.app(flow), disk.app(flow)
    first = asyncio.create_task(app.run("f", session_id="s"))
    await reached(hold, first)
    second = asyncio.create_task(other.run("f", session_id="s"))
    await asyncio.sleep(0.05)
    assert not second.done()
    hold.go.set()

    assert [(await first).value, (await second).value] == ["charge done"] * 2
    assert acts.done == ["charge"]


async def test_the_claim_of_a_dead_run_lapses(disk: Disk, acts: Acts) -> None:
    flow = durable(Once("charge", acts("charge"), bind="x"), Return(ref("x")))
    await cut_off(disk.app(flow), acts.hold("charge"), "f", run_id="dead", session_id="s")

    assert (await disk.app(flow).run("f", session_id="s")).value == "charge done"
    assert (await disk.app(flow).run("f", run_id="dead")).value == "charge done"

    assert acts.done == ["charge", "charge"]  # the dead one finds the completion of the other


async def test_a_run_with_a_claim_does_not_wait_for_another(disk: Disk, acts: Acts) -> None:
    """Two runs that wait for each other would wait for ever."""
    one = durable(Once("a", acts("a 1"), Once("b", acts("b"))), id="one")
    two = durable(Once("b", acts("b")), id="two")
    hold = acts.hold("b")
    app = disk.app(one, two)
    holder = asyncio.create_task(app.run("two", run_id="holder", session_id="s"))
    await reached(hold, holder)

    with pytest.raises(OnceBusy, match="run holder is in once 'b'"):
        await app.run("one", run_id="r", session_id="s")

    hold.go.set()
    await holder
    await app.run("one", run_id="r")
    assert acts.done == ["b", "a 1"]


async def test_it_is_tried_again_while_another_run_is_busy_with_it(acts: Acts) -> None:
    """`OnceBusy` is not fatal: a durable retry finds it done."""
    clock = ManualClock(auto=True)
    two = durable(Once("b", acts("b")), id="two")
    one = durable(Once("a", acts("a"), Once("b", acts("b"))), id="one", retries=1)
    app = bb.App(clock=clock)
    app.register(one, two)
    hold = acts.hold("b")
    holder = asyncio.create_task(app.run("two", session_id="s"))
    await reached(hold, holder)
    hold.go.set()

    await app.run("one", session_id="s")

    await holder
    assert acts.done == ["b", "a"]


# --- in a saga --------------------------------------------------------------------------------------------------------


def charging(acts: Acts, *after: str) -> Saga:
    return Saga(Step(Once("charge", acts("charge")), undo=acts("refund")), *(acts.step(name) for name in after))


async def test_after_a_refund_a_later_run_charges_again(disk: Disk, acts: Acts) -> None:
    """Node 4, trap 7.2.3: elsewhere the charge was skipped, though it had been refunded."""
    flow = durable(charging(acts, "ship"))
    acts.fail("ship", 1)
    with pytest.raises(OpFailed):
        await disk.app(flow).run("f", run_id="r", session_id="s")
    assert acts.done == ["charge", "ship", "refund"]

    await disk.app(flow).run("f", run_id="r")
    await disk.app(flow).run("f", session_id="s")

    assert acts.done == ["charge", "ship", "refund", "charge", "ship", "ship"]


async def test_a_retry_around_the_saga_charges_again_after_the_refund(disk: Disk, acts: Acts) -> None:
    flow = durable(Retry(2, charging(acts, "ship"), backoff="none", delay=timedelta(0)))
    acts.fail("ship", 1)

    await asyncio.wait_for(disk.app(flow).run("f", session_id="s"), 10)

    assert acts.done == ["charge", "ship", "refund", "charge", "ship"]


async def test_the_completion_is_there_only_after_the_outermost_saga(disk: Disk, acts: Acts) -> None:
    flow = durable(
        Try(Saga(Step(charging(acts, "ship"), undo=acts("undo all")), acts.step("last")), handler=Emit("no"))
    )
    acts.fail("last", 1)

    await disk.app(flow).run("f", session_id="s")
    assert acts.done == ["charge", "ship", "last", "undo all"]

    await disk.app(durable(Once("charge", acts("charge")), id="g")).run("g", session_id="s")
    assert acts.count("charge") == 2


async def test_what_an_inner_saga_has_refunded_is_not_done(disk: Disk, acts: Acts) -> None:
    inner = Try(charging(acts, "ship"), handler=Emit("no ship"))
    acts.breaks("ship")
    await disk.app(durable(Saga(Step(inner)))).run("f", session_id="s")
    assert acts.done == ["charge", "ship", "refund"]

    await disk.app(durable(Once("charge", acts("charge")), id="g")).run("g", session_id="s")

    assert acts.count("charge") == 2


async def test_twice_in_one_saga_it_runs_once(disk: Disk, acts: Acts) -> None:
    same = Once("charge", acts("charge"), bind="x")
    flow = durable(Saga(Step(same), Step(Bind("x", None), same), Step(Saga(Step(same)))), Return(ref("x")))

    outcomes = [(await asyncio.wait_for(disk.app(flow).run("f", session_id="s"), 10)).value for _ in range(2)]

    assert outcomes == ["charge done"] * 2 and acts.done == ["charge"]


async def test_a_retry_inside_a_step_skips_what_is_finished(disk: Disk, acts: Acts) -> None:
    body = Retry(2, Once("charge", acts("charge")), acts("flaky"), backoff="none", delay=timedelta(0))
    acts.fail("flaky", 1)

    await asyncio.wait_for(disk.app(durable(Saga(Step(body)))).run("f", session_id="s"), 10)

    assert acts.done == ["charge", "flaky", "flaky"]


async def test_beside_a_saga_that_holds_it_it_waits_for_the_end_of_the_saga(disk: Disk, acts: Acts) -> None:
    hold = acts.hold("ship")
    flow = durable(All(charging(acts, "ship"), acts("first") >> Once("charge", acts("charge"))))
    task = asyncio.create_task(disk.app(flow).run("f", session_id="s"))
    await reached(hold, task)
    hold.go.set()

    await asyncio.wait_for(task, 10)

    assert acts.count("charge") == 1


async def test_two_sagas_that_hold_what_the_other_wants_do_not_wait_for_ever(disk: Disk, acts: Acts) -> None:
    def both(first: str, second: str) -> Saga:
        return Saga(Step(Once(first, acts(first)), acts(f"then {second}")), Step(Once(second, acts(second))))

    app = disk.app(durable(both("a", "b"), id="one"), durable(both("b", "a"), id="two"))
    holds = [acts.hold("then b"), acts.hold("then a")]
    tasks = [asyncio.create_task(app.run(id, session_id="s")) for id in ("one", "two")]
    for hold, task in zip(holds, tasks, strict=True):
        await reached(hold, task)
    for hold in holds:
        hold.go.set()

    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)

    assert any(isinstance(result, OnceBusy) for result in results)


async def test_of_sagas_of_one_run_that_hold_what_the_other_wants_one_is_undone(disk: Disk, acts: Acts) -> None:
    """No retry could help: the other ends, and who runs the flow again finds everything done."""

    def once(name: str) -> Once:
        return Once(name, acts(name))

    def both(first: str, second: str) -> Saga:
        return Saga(
            Step(once(first), acts(f"then {second}"), undo=acts(f"undo {first}")),
            Step(once(second), undo=acts(f"undo {second}")),
        )

    flow = durable(All(both("a", "b"), both("b", "a")), retries=2)
    holds = [acts.hold("then b"), acts.hold("then a")]
    app = disk.app(flow)
    task = asyncio.create_task(app.run("f", run_id="r", session_id="s"))
    for hold in holds:
        await reached(hold, task)
    for hold in holds:
        hold.go.set()

    with pytest.raises(WiringError, match="wait for each other") as raised:
        await asyncio.wait_for(task, 10)

    assert "f/branch~saga.0" in str(raised.value) and "f/branch~saga.1" in str(raised.value)
    assert acts.done == ["a", "b", "then b", "then a", "undo b", "b"]
    acts.done.clear()
    await asyncio.wait_for(app.run("f", run_id="r"), 10)
    assert acts.done == ["then a"]


async def test_a_saga_with_a_claim_waits_for_another_of_its_run(disk: Disk, acts: Acts) -> None:
    """Where that one waits for nothing of it, there is no need to fail."""
    second = Saga(Step(Once("own", acts("own"))), Step(Once("charge", acts("charge"))))
    hold = acts.hold("ship")
    await held_for_a_while(disk.app(durable(All(charging(acts, "ship"), second))), hold)

    assert sorted(acts.done) == ["charge", "own", "ship"]


async def held_for_a_while(app: bb.App, hold: Hold) -> None:
    """Run the flow, and let what it comes to at the hold take its time."""
    task = asyncio.create_task(app.run("f", session_id="s"))
    await reached(hold, task)
    await asyncio.sleep(0.1)
    hold.go.set()
    await asyncio.wait_for(task, 10)


async def test_a_saga_that_comes_to_its_once_again_does_not_wait_for_who_waits_for_it(disk: Disk, acts: Acts) -> None:
    same = Once("charge", acts("charge"))
    hold = acts.hold("ship")
    flow = durable(All(Saga(Step(same), Step(acts("ship"), same)), same))
    await held_for_a_while(disk.app(flow), hold)

    assert acts.done == ["charge", "ship"]


async def test_a_saga_inside_shares_what_it_holds_when_it_is_over(disk: Disk, acts: Acts) -> None:
    """From then on it is of the saga around both."""
    hold = acts.hold("ship")
    flow = durable(Saga(Step(All(charging(acts, "ship"), Once("charge", acts("charge"))), undo=acts("never"))))
    await held_for_a_while(disk.app(flow), hold)

    assert acts.done == ["charge", "ship"]


async def test_nobody_waits_for_a_saga_that_goes_on_only_when_the_run_is_tried_again(disk: Disk, acts: Acts) -> None:
    flow = durable(All(charging(acts, "ship"), Once("charge", acts("charge"))), retries=1)
    hold = acts.hold("ship")
    hold.error = ConnectionError("no ship")
    await held_for_a_while(disk.app(flow), hold)

    assert acts.done == ["charge", "ship", "ship"]


async def test_after_a_crash_what_a_saga_holds_is_not_run_again_beside_it(disk: Disk, acts: Acts) -> None:
    flow = durable(All(charging(acts, "ship"), acts("first") >> Once("charge", acts("charge"))))
    await cut_off(disk.app(flow), acts.hold("ship"), "f", run_id="r", session_id="s")

    await asyncio.wait_for(disk.app(flow).run("f", run_id="r"), 10)

    assert acts.count("charge") == 1


async def test_the_claim_goes_when_a_timeout_gives_the_body_up(disk: Disk, acts: Acts) -> None:
    slow = Timeout(timedelta(milliseconds=50), Once("charge", acts("charge"), bind="x"))
    flow = durable(Retry(2, slow, backoff="none", delay=timedelta(0)), Return(ref("x")))
    acts.hold("charge")

    outcome = await asyncio.wait_for(disk.app(flow).run("f", session_id="s"), 10)

    assert outcome.value == "charge done" and acts.done == ["charge", "charge"]


SLOW = timedelta(milliseconds=50)


@pytest.mark.parametrize(
    "lost",
    [
        lambda once, acts: One(once, acts("quick")),
        lambda once, acts: One(All(once, acts("other")), acts("quick")),
        lambda once, acts: One(One(once, acts("never")), acts("quick")),
        lambda once, acts: One(Try(once, handler=Emit("no")), acts("quick")),
        lambda once, acts: Try(Timeout(SLOW, One(once, acts("never"))), handler=Emit("no")),
    ],
    ids=["member", "all", "one in one", "try", "timeout around it"],
)
async def test_the_claim_goes_when_its_member_of_one_has_lost(
    disk: Disk, acts: Acts, lost: Callable[[Once, Acts], bb.AnyFlow]
) -> None:
    """Another run need not wait until this one has ended."""
    hold = acts.hold("after")
    acts.hold("charge")
    acts.hold("never")
    app = disk.app(
        durable(lost(Once("charge", acts("charge")), acts), acts("after")),
        durable(Once("charge", acts("charge")), id="g"),
    )
    task = asyncio.create_task(app.run("f", session_id="s"))
    await reached(hold, task)

    await asyncio.wait_for(app.run("g", session_id="s"), 10)

    hold.go.set()
    await task
    assert acts.count("charge") == 2


async def test_a_run_that_is_cut_off_in_one_goes_on_with_its_claim(disk: Disk, acts: Acts) -> None:
    """Nobody has won or lost there: an interrupted run frees nothing."""
    flow = durable(One(Once("charge", acts("charge")), acts("never")))
    acts.hold("never")
    await cut_off(disk.app(flow), acts.hold("charge"), "f", session_id="s", run_id="r")
    streams = [name for name in await contents(disk.store()) if name.startswith("session/s/once/")]
    rows = [decode_row(record, "it") for name in streams for record in await disk.store().read(name)]
    assert [type(row).__name__ for row in rows] == ["Claimed"]
    acts.hold("never")

    await disk.app(flow).run("f", run_id="r")

    assert acts.count("charge") == 2


async def test_the_claims_of_a_saga_are_free_once_it_is_undone(disk: Disk, acts: Acts) -> None:
    """Another run need not wait until this one has ended."""
    hold = acts.hold("after")
    acts.fail("ship", 1)
    app = disk.app(
        durable(Try(charging(acts, "ship"), handler=Emit("no")), acts("after")),
        durable(Once("charge", acts("charge")), id="g"),
    )
    task = asyncio.create_task(app.run("f", session_id="s"))
    await reached(hold, task)

    await asyncio.wait_for(app.run("g", session_id="s"), 10)

    hold.go.set()
    await task
    assert acts.done == ["charge", "ship", "refund", "after", "charge"]


async def test_a_late_saga_tells_of_its_time(disk: Disk, acts: Acts) -> None:
    acts.hold("ship")
    flow = durable(Timeout(timedelta(milliseconds=50), charging(acts, "ship")))

    with pytest.raises(TimedOut):
        await disk.app(flow).run("f", session_id="s")

    assert acts.done == ["charge", "ship", "refund"]


async def test_a_crash_between_the_effect_and_its_savepoint_runs_it_again(disk: Disk, acts: Acts) -> None:
    """At least once: nothing else can be promised of an effect outside."""
    flow = durable(Once("charge", acts("one"), acts("two")))
    await cut_off(disk.app(flow), acts.hold("two"), "f", run_id="r", session_id="s")

    await disk.app(flow).run("f", run_id="r")

    assert acts.done == ["one", "two", "two"]


@pytest.mark.parametrize("fails_later", [True, False])
async def test_an_undo_that_failed_in_a_finished_once_is_tried_when_the_run_is_run_again(
    disk: Disk, acts: Acts, fails_later: bool
) -> None:
    """What caught the failure let the once finish, but the undo is owed all the same."""
    acts.breaks("boom", "undo charge", *(["later"] if fails_later else []))
    flow = durable(Once("a", Try(Saga(acts.step("charge"), Step(acts("boom"))))), acts("later"))
    try:
        await disk.app(flow).run("f", run_id="r")
    except OpFailed:
        assert fails_later
    assert acts.done == ["charge", "boom", "undo charge", "later"]
    acts.mend("undo charge", "later")

    for _ in range(2):
        await disk.app(flow).run("f", run_id="r")

    assert acts.done[4:] == ["undo charge", *(["later"] if fails_later else [])]
