"""Trials D: several waits of one run. An await stands at the top level only (trial L7), so they come one after another."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest

import bb
from bb.flows.refs import ref
from bb.flows.tree import AnyFlow, Await, Emit, Return
from bb.testing.clock import ManualClock
from tests.conformance.acts import Acts, durable
from tests.trials.kit import Disk, contents

HOUR = timedelta(hours=1)


@pytest.fixture
def acts() -> Acts:
    return Acts()


def asking() -> bb.DurableFlow:
    """Three questions, each said before it is awaited."""
    parts = [part for source in "abc" for part in (Emit(f"{source}?"), Await(source, bind=source))]
    return durable(*parts, Return([ref("a"), ref("b"), ref("c")]))


@pytest.mark.parametrize("order", list(itertools.permutations("abc")), ids="".join)
@pytest.mark.parametrize("at_once", [False, True])
async def test_trials_D1_D2_answers_in_any_order_come_to_the_same(
    disk: Disk, order: tuple[str, ...], at_once: bool
) -> None:
    await disk.app(asking()).run("f", run_id="r", session_id="s")
    answered: set[str] = set()
    for source in order:
        await disk.app(asking()).deliver(source, f"{source}!", session_id="s")
        answered.add(source)
        if not at_once:
            first_open = next((source for source in "abc" if source not in answered), None)
            assert (await disk.app(asking()).run("f", run_id="r")).waiting_for == first_open

    outcome = await disk.app(asking()).run("f", run_id="r")

    assert outcome.value == ["a!", "b!", "c!"]
    assert [message.content for message in outcome.messages] == ["a?", "b?", "c?"]


async def test_trial_D4_what_stands_between_two_awaits_is_done_once(disk: Disk, acts: Acts) -> None:
    flow = durable(Await("a", bind="x"), acts("charge {x}"), Await("b", bind="y"), Return([ref("x"), ref("y")]))
    await disk.app(flow).run("f", run_id="r", session_id="s")
    await disk.app(flow).deliver("a", 1, session_id="s")
    for _ in range(3):
        assert (await disk.app(flow).run("f", run_id="r")).waiting_for == "b"
    await disk.app(flow).deliver("b", 2, session_id="s")
    assert (await disk.app(flow).run("f", run_id="r")).value == [1, 2]
    assert acts.done == ["charge 1"]


async def test_trial_D11_what_is_said_before_an_await_is_heard_before_its_answer(disk: Disk) -> None:
    recorder = bb.Recorder()
    app = disk.app(asking(), trace=recorder)
    for number, source in enumerate("abc", 1):
        stream = app.stream("f", run_id="r", session_id="s")
        text = "".join([part async for part in stream])
        assert (await stream.outcome()).waiting_for == source
        assert text == f"{source}?"
        assert [event.kind for event in recorder.events].count("run.parked") == number
        await app.deliver(source, f"{source}!", session_id="s")


async def test_trials_G4_G7_a_run_that_waits_is_kept_unless_its_flow_has_a_ttl(disk: Disk, acts: Acts) -> None:
    clock = ManualClock(auto=True)
    parts: list[AnyFlow] = [acts("a"), Await("go", bind="x"), Await("on", bind="y"), Return([ref("x"), ref("y")])]
    pinned, dropped = durable(*parts, id="pinned"), durable(*parts, id="dropped", ttl=HOUR)
    app = disk.app(pinned, dropped, clock=clock, retention=HOUR)
    for name in ("pinned", "dropped"):
        await app.run(name, run_id=name, session_id=name)
        clock.advance(timedelta(minutes=50))
        await app.deliver("go", 1, session_id=name)
        assert (await app.run(name, run_id=name)).waiting_for == "on"  # paused a second time
    clock.advance(24 * HOUR)

    other = disk.app(pinned, dropped, clock=clock, retention=HOUR)
    assert await other.prune() == 1
    with pytest.raises(bb.RunExpired):
        await other.run("dropped", run_id="dropped")
    for name in ("pinned", "dropped"):
        await other.deliver("on", 2, session_id=name)
    assert (await other.run("pinned", run_id="pinned")).value == [1, 2]
    clock.advance(2 * HOUR)
    await other.prune()
    assert [name for name in await contents(other.store) if name.startswith("run/pinned")] == []
    assert acts.done == ["a", "a"]
