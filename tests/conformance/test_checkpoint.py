"""Checkpoints: cases 8 to 15 of the language. The furthest one wins, and only for the same input."""

from __future__ import annotations

import asyncio

import pytest

import bb
from bb.errors import OpFailed, WiringError
from bb.flows.refs import ref
from bb.flows.tree import AnyFlow, Await, Bind, Checkpoint, Each, Emit, Once, Return, Saga, Scope, Step, When
from tests.conformance.acts import Acts, durable, plain
from tests.trials.kit import Disk, cut_off


async def test_case_08_a_later_run_does_only_what_follows(disk: Disk, acts: Acts) -> None:
    flow = durable(Bind("a", acts("a")), Emit("a: {a}"), Checkpoint("one"), acts("b"), Return(ref("a")))

    first = await disk.app(flow).run("f", session_id="s")
    second = await disk.app(flow).run("f", session_id="s")

    assert acts.done == ["a", "b", "b"]
    assert (second.value, second.answer, second.messages) == (first.value, first.answer, first.messages)


async def test_case_08_everything_before_it_is_skipped_whatever_it_is(disk: Disk, acts: Acts) -> None:
    flow = durable(
        acts.saga("a", "b"), Once("o", acts("c")), Await("go", bind="x"), Checkpoint("one"), Return(ref("x"))
    )
    app = disk.app(flow)
    parked = await app.run("f", run_id="r", session_id="s")
    assert parked.waiting_for == "go"
    await app.deliver("go", "now", session_id="s")
    first = await app.run("f", run_id="r")

    second = await disk.app(flow).run("f", session_id="s")

    assert (first.value, second.value) == ("now", "now") and acts.done == ["a", "b", "c"]


async def test_case_09_an_edited_body_starts_over(disk: Disk, acts: Acts) -> None:
    """Regression 'edited body': elsewhere a name alone skipped changed statements."""

    def flow(after: str) -> bb.DurableFlow:
        return durable(acts("a"), Checkpoint("one"), acts(after))

    for after in ("b", "c", "b"):
        await disk.app(flow(after)).run("f", session_id="s")

    assert acts.done == ["a", "b", "a", "c", "b"]  # what follows the checkpoint counts for the body as well


async def test_case_09_another_name_is_another_flow(disk: Disk, acts: Acts) -> None:
    for id in ("f", "g"):
        await disk.app(durable(acts("a"), Checkpoint("one"), id=id)).run(id, session_id="s")

    assert acts.done == ["a", "a"]


async def test_case_10_what_a_resumed_run_recorded_counts_for_a_fresh_one(disk: Disk, acts: Acts) -> None:
    """Regression 'checkpoint key': elsewhere a run and its resume kept theirs under two keys."""
    flow = durable(acts("a"), acts("b"), Checkpoint("one"), acts("c"))
    await cut_off(disk.app(flow), acts.hold("b"), "f", run_id="r", session_id="s")
    await disk.app(flow).run("f", run_id="r")

    await disk.app(flow).run("f", session_id="s")

    assert acts.done == ["a", "b", "b", "c", "c"]


async def test_case_11_recorded_before_the_cut_it_counts_as_well(disk: Disk, acts: Acts) -> None:
    flow = durable(acts("a"), Checkpoint("one"), acts("b"))
    await cut_off(disk.app(flow), acts.hold("b"), "f", run_id="r", session_id="s")

    await disk.app(flow).run("f", session_id="s")
    await disk.app(flow).run("f", run_id="r")

    assert acts.done == ["a", "b", "b", "b"]


@pytest.mark.parametrize("kind", ["when", "each", "saga", "scope", "once", "named"])
async def test_case_12_only_the_top_level_may_hold_one(kind: str) -> None:
    inside: dict[str, AnyFlow] = {
        "when": When(True, Checkpoint("x")),
        "each": Each("i", [1], Checkpoint("x")),
        "saga": Saga(Step(Checkpoint("x"))),
        "scope": Scope(Checkpoint("x")),
        "once": Once("o", Checkpoint("x")),
        "named": Checkpoint("x").with_id("inner"),
    }

    with pytest.raises(WiringError, match="checkpoint-nested"):
        await bb.App().run(durable(inside[kind], Emit("end")))


async def test_case_14_the_furthest_one_wins(disk: Disk, acts: Acts) -> None:
    """Inverted by DESIGN: elsewhere the latest did, and a slow run could move the position back (trap 7.2.13)."""
    flow = durable(acts("a"), Checkpoint("one"), acts("b"), Checkpoint("two"), acts("c"))
    slow = disk.app(flow)
    hold = acts.hold("a")
    task = asyncio.create_task(slow.run("f", session_id="s"))
    await hold.reached.wait()
    await disk.app(flow).run("f", session_id="s")  # it comes past both while the slow one is before the first
    hold.error = ConnectionError("no")
    hold.go.set()
    with pytest.raises(OpFailed):
        await task

    await disk.app(flow).run("f", session_id="s")

    assert acts.done == ["a", "a", "b", "c", "c"]


async def test_case_14_one_recorded_later_but_less_far_does_not_move_it_back(disk: Disk, acts: Acts) -> None:
    flow = durable(acts("a"), Checkpoint("one"), acts("b"), Checkpoint("two"), acts("c"))
    hold = acts.hold("a")
    task = asyncio.create_task(disk.app(flow).run("f", session_id="s"))
    await hold.reached.wait()
    await disk.app(flow).run("f", session_id="s")
    acts.fail("b", 1)
    hold.go.set()
    with pytest.raises(OpFailed):
        await task  # now the first one is the latest

    await disk.app(flow).run("f", session_id="s")

    assert acts.done == ["a", "a", "b", "c", "b", "c"]


async def test_case_15_the_label_is_no_key(disk: Disk, acts: Acts) -> None:
    """Two of one label are two positions."""
    flow = durable(acts("a"), Checkpoint("x"), acts("b"), Checkpoint("x"), acts("c"))
    acts.fail("b", 1)
    with pytest.raises(OpFailed):
        await disk.app(flow).run("f", session_id="s")

    await disk.app(flow).run("f", session_id="s")
    await disk.app(flow).run("f", session_id="s")

    assert acts.done == ["a", "b", "b", "c", "c"]


# --- decisions of DESIGN ----------------------------------------------------------------------------------------------


async def test_another_input_starts_from_the_beginning(disk: Disk, acts: Acts) -> None:
    """Trap 7.2.16: elsewhere the skipped part held what came of the old arguments."""
    steps = (Bind("x", acts(ref("of"))), Checkpoint("one"), Return(ref("x")))
    flow = plain(*steps).with_params(of=str).durable()

    values = [(await disk.app(flow).run("f", params={"of": of}, session_id="s")).value for of in ("a", "b", "a")]

    assert values == ["a done", "b done", "a done"] and acts.done == ["a", "b"]


async def test_fresh_ignores_checkpoints(disk: Disk, acts: Acts) -> None:
    """Trap 7.2.12: a finished flow can be run again in its session."""
    flow = durable(acts("a"), Checkpoint("one"))

    await disk.app(flow).run("f", session_id="s")
    await disk.app(flow).run("f", session_id="s", fresh=True)

    assert acts.done == ["a", "a"]


async def test_a_run_goes_by_its_own_savepoints_first(disk: Disk, acts: Acts) -> None:
    """Another run's checkpoint does not let it skip what it has begun itself."""
    flow = durable(acts("a"), acts("b"), Checkpoint("one"), acts("c"))
    await cut_off(disk.app(flow), acts.hold("b"), "f", run_id="r", session_id="s")
    await disk.app(flow).run("f", session_id="s")

    outcome = await disk.app(flow).run("f", run_id="r")

    assert acts.done == ["a", "b", "a", "b", "c", "b", "c"] and "f/body~call.0" in outcome.replayed


async def test_a_last_checkpoint_leaves_nothing_to_do_but_the_result(disk: Disk, acts: Acts) -> None:
    flow = durable(Bind("a", acts("a")), Emit("{a}"), Checkpoint("end"))

    outcomes = [await disk.app(flow).run("f", session_id="s") for _ in range(2)]

    assert [outcome.answer for outcome in outcomes] == ["a done"] * 2 and acts.done == ["a"]


async def test_without_anything_durable_it_does_nothing(acts: Acts) -> None:
    app = bb.App()
    flow = plain(acts("a"), Checkpoint("one"))

    for _ in range(2):
        await app.run(flow, session_id="s")

    assert acts.done == ["a", "a"]


async def test_a_run_with_a_session_of_its_own_starts_at_the_beginning(disk: Disk, acts: Acts) -> None:
    flow = durable(acts("a"), Checkpoint("one"))

    for _ in range(2):
        await disk.app(flow).run("f")

    assert acts.done == ["a", "a"]
