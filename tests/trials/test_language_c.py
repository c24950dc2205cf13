"""Trials C that concern the nodes: crashes at awkward points. The explorer of `tests/laws` tries all the others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import bb
from bb.errors import CorruptRecord, OpFailed
from bb.flows.refs import ref
from bb.flows.tree import (
    All,
    AnyFlow,
    Await,
    Bind,
    Each,
    Emit,
    Memo,
    Once,
    One,
    Repeat,
    Retry,
    Return,
    Saga,
    Scope,
    Step,
    Timeout,
    Try,
    When,
)
from bb.testing.mock_store import Crash, MockStore
from tests.conformance.acts import Acts, durable, plain
from tests.trials.kit import Disk, cut_off, mocked


@pytest.fixture
def acts() -> Acts:
    return Acts()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_trial_C2_a_condition_is_asked_again_only_if_its_answer_was_lost(acts: Acts, when: str) -> None:
    store = MockStore()
    acts.values["q"] = True
    flow = durable(When(acts("q"), acts("then"), otherwise=acts("never")), Emit("end"))
    store.crash_at(lambda _, records: b"cond~call" in records[-1], when)  # type: ignore[arg-type]  # one of the two
    with pytest.raises(Crash):
        await mocked(store, flow).run("f", run_id="r")
    store.revive()
    acts.values["q"] = when == "before"  # the world has changed, and an answer that was kept has not

    await mocked(store, flow).run("f", run_id="r")

    assert acts.done == (["q", "q", "then"] if when == "before" else ["q", "then"])


async def test_trial_C2_a_condition_that_failed_stays_false_in_its_run(disk: Disk, acts: Acts) -> None:
    """What was decided once is what the later statements rely on."""
    flow = durable(When(acts("q"), acts("never"), otherwise=acts("else")), acts("slow"))
    acts.fail("q", 1)
    await cut_off(disk.app(flow), acts.hold("slow"), "f", run_id="r")

    await disk.app(flow).run("f", run_id="r")

    assert acts.done == ["q", "else", "slow", "slow"]


WRAPS: dict[str, Callable[[Any], AnyFlow]] = {
    "when": lambda body: When(True, body),
    "each": lambda body: Each("i", [1], body),
    "repeat": lambda body: Repeat(1, body),
    "try": Try,
    "retry": lambda body: Retry(2, body),
    "timeout": lambda body: Timeout(timedelta(seconds=60), body),
    "scope": lambda body: Scope(body, finally_=Emit("clean")),
    "saga": lambda body: Saga(Step(body)),
    "once": lambda body: Once("o", body),
    "all": All,
    "named": lambda body: body.with_id("inner"),
    "durable": lambda body: body.with_id("deep").durable(),
}


@pytest.mark.parametrize("name", WRAPS)
async def test_trial_C4_finished_work_replays_in_whatever_it_stands(disk: Disk, acts: Acts, name: str) -> None:
    body: AnyFlow = Bind("x", acts("done")) >> acts("slow")
    for _ in range(2 if name not in ("named", "durable") else 1):
        body = WRAPS[name](body)
    flow = durable(body, Emit("end"))
    await cut_off(disk.app(flow), acts.hold("slow"), "f", run_id="r")
    seen = bb.Recorder()

    await disk.app(flow, trace=seen).run("f", run_id="r")

    assert acts.done == ["done", "slow", "slow"]
    assert len(seen.paths("flow.cached")) == 1


async def test_trial_C5_what_cannot_remember_says_so(acts: Acts) -> None:
    """A once outside anything durable runs every time: that is a warning, not silence."""
    problems = bb.check(plain(Once("o", acts("a")), acts("b")))

    assert [(problem.code, problem.warning) for problem in problems] == [("not-durable", True)]


async def test_trial_C11_what_follows_members_runs_once_with_what_all_came_to(disk: Disk, acts: Acts) -> None:
    members = All(acts("a").with_id("left"), (acts("b") >> acts("slow")).with_id("right"))
    flow = durable(members, acts("join {left} {right}"))
    await cut_off(disk.app(flow), acts.hold("slow"), "f", run_id="r")

    await disk.app(flow).run("f", run_id="r")

    assert sorted(acts.done) == ["a", "b", "join a done slow done", "slow", "slow"]


@pytest.mark.parametrize("kind", ["memo", "once"])
async def test_trial_C17_a_failure_is_never_kept_as_what_it_came_to(disk: Disk, acts: Acts, kind: str) -> None:
    node = Memo("x", acts("a")) if kind == "memo" else Once("o", acts("a"), bind="x")
    flow = durable(Try(node, handler=Emit("failed")), Try(node, handler=Emit("never")), Return(ref("x")))
    acts.fail("a", 1)

    outcome = await disk.app(flow).run("f", session_id="s")

    assert outcome.value == "a done" and acts.done == ["a", "a"]


FAILING: dict[str, Callable[[Acts], tuple[AnyFlow, str]]] = {
    "op": lambda acts: (acts("a"), "op act failed: Odd: odd a"),
    "agent": lambda acts: (_failing(acts).with_id("part"), "agent odd failed: Odd: odd agent"),
    "members": lambda acts: (All(acts("a"), acts("b")), "op act failed: Odd: odd a"),
    "race": lambda acts: (One(acts("a"), acts("a")), "no member of One succeeded (2 failed): op act"),
    "time": lambda acts: (
        Timeout(timedelta(milliseconds=1), acts("stuck")),
        "the body took longer than 0:00:00.001000",
    ),
    "compensated": lambda acts: (Saga(acts.step("b"), Step(acts("a"))), "op act failed: Odd: odd a"),
    "inner": lambda acts: (Try(acts("a"), handler=acts("a")), "op act failed: Odd: odd a"),
}


class Odd(Exception):
    """An exception that cannot be made again from its arguments."""

    def __init__(self, *, what: str) -> None:
        super().__init__()
        self.what = what

    def __str__(self) -> str:
        return f"odd {self.what}"


def _failing(acts: Acts) -> bb.Flow:
    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        acts.done.append("a")
        raise Odd(what="agent")

    return bb.Flow().with_agent(bb.Agent("odd").on_message(handler))


@pytest.mark.parametrize("name", FAILING)
async def test_trials_A14_C17_a_failure_that_was_caught_looks_the_same_after_a_crash(
    disk: Disk, acts: Acts, name: str
) -> None:
    """The same branch is taken, nothing of what failed runs again, and the text is the one that was heard first."""
    body, text = FAILING[name](acts)
    acts.fail("a", Odd(what="a"), Odd(what="a"))
    acts.hold("stuck")
    flow = durable(Try(body, catch="why", handler=(acts("{why}"), acts("slow"), Return(ref("why")))), Emit("never"))
    await cut_off(disk.app(flow), acts.hold("slow"), "f", run_id="r")
    before = list(acts.done)
    (heard,) = [what for what in before if what.startswith(text)]

    assert (await disk.app(flow).run("f", run_id="r")).value == heard
    assert acts.done == [*before, "slow"]


async def test_trial_C16_what_a_leg_has_done_is_not_done_again_when_it_fails(disk: Disk, acts: Acts) -> None:
    """Traps 7.2.7 and 7.3: elsewhere all work since the await was repeated, or the answer was lost with the failure."""
    flow = durable(acts("before"), Await("reply", bind="x"), acts("a {x}"), acts("b"), Return(ref("x")))
    app = disk.app(flow)
    await app.run("f", run_id="r", session_id="s")
    await app.deliver("reply", "yes", session_id="s")
    acts.fail("b", 1)
    with pytest.raises(OpFailed):
        await app.run("f", run_id="r")

    outcome = await disk.app(flow).run("f", run_id="r")

    assert outcome.value == "yes" and acts.done == ["before", "a yes", "b", "b"]


async def test_a_savepoint_that_cannot_be_read_is_an_error_at_once(acts: Acts) -> None:
    """Regression 'missing value': never a run that dies later of an unbound symbol, and never the step once more."""
    app = bb.App()
    flow = durable(Bind("x", acts("a")), acts("slow"), Return(ref("x")))
    await cut_off(app, acts.hold("slow"), flow, run_id="r")
    stream = "run/r"
    records = await app.store.read(stream)
    await app.store.delete(stream)
    rows = [json.loads(record) for record in records]
    torn = [[*row[:-1], "torn"] if row[2] == "s" else row for row in rows]
    await app.store.append(stream, 0, [json.dumps(row).encode() for row in torn])
    assert torn != rows

    with pytest.raises(CorruptRecord, match="bind"):
        await app.run(flow, run_id="r")

    assert acts.done == ["a", "slow"]


async def test_trial_C7_after_a_cut_between_two_attempts_the_next_one_runs(acts: Acts) -> None:
    """A crash while a retry waits costs no attempt."""
    store = MockStore()
    flow = durable(Retry(3, acts("a"), backoff="none", delay=timedelta(0)), Emit("end"))
    acts.fail("a", 2)
    store.crash_at(lambda _, records: b'"d"' in records[-1], "after")
    with pytest.raises(Crash):
        await mocked(store, flow).run("f", run_id="r")
    store.revive()

    await mocked(store, flow).run("f", run_id="r")

    assert acts.done == ["a", "a", "a"]


async def test_trial_C10_two_apps_that_start_at_once_compensate_once(disk: Disk, acts: Acts) -> None:
    flow = durable(Saga(acts.step("a"), Step(acts("bad"))), Emit("end"))
    acts.fail("bad", 1)
    await cut_off(disk.app(flow), acts.hold("undo a"), "f", run_id="r")
    apps = [disk.app(flow) for _ in range(3)]

    await asyncio.gather(*(app.start() for app in apps))
    async with asyncio.timeout(10):
        while (await apps[0].runs())[0].status != "failed":  # noqa: ASYNC110 - the jobs of the other apps ring no bell here
            await asyncio.sleep(0.01)

    assert acts.done == ["a", "bad", "undo a", "undo a"]
