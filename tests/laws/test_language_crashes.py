"""Crash anywhere and resume, over every kind of node and their combinations; and the explorer sees engines that break it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import bb
from bb.codec import Codec
from bb.engine.frame.context import Context
from bb.engine.frame.scope import ActiveScope
from bb.engine.frame.state import State
from bb.engine.memory import mailbox
from bb.engine.memory.session_memory import SessionMemory
from bb.engine.memory.session_rows import SessionRows
from bb.engine.plan import Node
from bb.engine.steps import control, unwinding
from bb.engine.steps.calls import Ready
from bb.engine.steps.sequence import Perform, body_of
from bb.engine.steps.unwinding import Attempt
from bb.flows.refs import ref
from bb.flows.tree import AiSegment, Bind, Emit, Memo, Saga, Scope, Step, When
from bb.log.mailbox import Event
from bb.log.session import Block, Done
from bb.testing import CrashReport, Effects, NotCrashSafe, crash_everywhere, race_everywhere
from bb.testing.process import with_models
from tests.laws.corpus import CORPUS, DOES, OPS, Ops


async def told(name: str, *, depth: int = 1, samples: int = 100) -> CrashReport:
    """A story of the corpus, told under every crash; and when nothing goes wrong, it does what it is to do."""
    effects = Effects()
    made = CORPUS[name](Ops(effects))
    report = await crash_everywhere(
        made.flow,
        "go",
        effects=effects,
        app=made.app,
        params=made.params,
        events=made.events,
        runs=made.runs,
        fails=made.fails,
        depth=depth,
        samples=samples,
    )
    assert does(report) == DOES[name]
    return report


def does(report: CrashReport) -> str:
    """What is done outside when nothing goes wrong: the ops themselves are left out, since they count what they do."""
    rows = [row for row in report.rows if row.runs and row.effect not in OPS]
    return ", ".join(row.effect if row.runs == 1 else f"{row.effect} x{row.runs}" for row in rows)


TWICE = frozenset(
    {
        "awaits",
        "saga_failing_at_its_last_step",
        "saga_in_a_scope",
        "timeout_that_passes",
        "undo_that_fails_at_first",
    }
)
"""Stories in which the process that goes on dies, too."""


@pytest.mark.parametrize("name", CORPUS)
async def test_a_story_comes_back_from_a_crash_at_any_append(name: str) -> None:
    twice = 12 if name in TWICE else 0
    report = await told(name, depth=2 if twice else 1, samples=twice)
    assert report.cases == 1 + 6 * len(report.appends) + twice


RACED = [
    "awaits",
    "beside",
    "checkpoints",
    "memo_twice",
    "once_in_two_places",
    "once_over_two_runs",
    "retry_around_a_saga",
    "saga_in_a_try",
    "timeout_that_passes",
]


@pytest.mark.parametrize("name", RACED)
async def test_two_processes_that_tell_one_story_are_one(name: str) -> None:
    effects = Effects()
    made = CORPUS[name](Ops(effects))
    report = await race_everywhere(
        made.flow,
        "go",
        effects=effects,
        app=made.app,
        params=made.params,
        events=made.events,
        runs=made.runs,
    )
    assert report.cases == 1 + 2 * len(report.appends)
    assert does(report) == DOES[name]


# --- engines that break it ------------------------------------------------------------------------------------------


async def broken(name: str) -> str:
    """What the explorer says of a story under a broken engine."""
    with pytest.raises(NotCrashSafe) as caught:
        await told(name)
    return str(caught.value)


async def test_a_once_without_its_record_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    async def save_block(_self: ActiveScope, _path: str, _block: Block, _choice: str | None = None) -> None:
        pass

    async def finish(_self: SessionMemory, _key: str, path: str, block: Block) -> Done:
        return Done(block, "explored", path)

    monkeypatch.setattr(ActiveScope, "save_block", save_block)
    monkeypatch.setattr(SessionMemory, "finish", finish)
    assert "a replay appended" in await broken("once_over_two_runs")


async def test_a_memo_keyed_without_its_arguments_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(_self: Ready, _codec: Codec) -> str:
        return "0" * 32

    monkeypatch.setattr(Ready, "key", key)
    with pytest.raises(AssertionError, match="act b"):
        await told("memo_twice")


async def test_a_saga_that_forgets_an_undo_after_a_crash_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = unwinding._undo

    async def undo(parts: Sequence[Node], state: State, path: str, ctx: Context, perform: Perform) -> None:
        if ctx.run.attempt == 1:
            await real(parts, state, path, ctx, perform)

    monkeypatch.setattr(unwinding, "_undo", undo)
    assert "revert a at r/body~saga.0/undo0~call.0 never ran" in await broken("saga_failing_at_its_second_step")


async def test_a_loop_whose_rounds_share_a_path_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    async def shared(node: Node, slot: str, state: State, path: str, ctx: Context, perform: Perform) -> State:
        return await body_of(node, slot, state, path.rpartition("#")[0], ctx, perform)

    monkeypatch.setattr(control, "body_of", shared)
    assert "the log holds a second savepoint of r/body~each.0/body~each.0" in await broken("loops")


async def test_a_saga_that_goes_forward_after_a_crash_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attempt, "steps", property(lambda attempt: attempt.ctx))
    said = await broken("saga_failing_at_its_second_step")
    assert "boom b at r/body~saga.0/step1~call.1 ran though r/body~saga.0 was being undone" in said


async def test_a_failure_that_is_forgotten_once_it_is_undone_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attempt, "check", lambda _attempt: None)
    said = await broken("saga_in_a_try")
    assert "act a at r/body~try.1/body~saga.0@1/step0~call.0 ran 1 times, not at most 0" in said


async def test_an_event_that_is_consumed_twice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = mailbox.wait

    async def wait(rows: SessionRows, source: str, run: str, _path: str) -> Event | None:
        return await real(rows, source, run, "r")  # every await is taken for one

    monkeypatch.setattr(mailbox, "wait", wait)
    with pytest.raises(AssertionError, match="act 1, act 1"):
        await told("awaits_one_after_another")


async def test_an_event_that_a_crash_loses_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = SessionMemory.wait

    async def wait(self: SessionMemory, source: str, path: str) -> Event | None:
        event = await real(self, source, path)
        if event is not None:
            await self.leave(source, over=True)  # what it was given is forgotten before the run has kept it
        return event

    monkeypatch.setattr(SessionMemory, "wait", wait)
    assert "did not come to be finished" in await broken("awaits_one_after_another")


# --- what the explorer looks at -------------------------------------------------------------------------------------


def test_every_model_in_a_flow_is_watched_wherever_it_stands() -> None:
    models = [bb.FixedModel(f"{number}") for number in range(9)]
    one, two, three, four, five, six, seven, eight, nine = models
    stage = AiSegment("goal").with_model(one)
    flow = (
        Saga(Step(Bind("x", stage), undo=Memo("y", AiSegment("more").with_model(two))))
        .next(When(ref(AiSegment("sure?").with_model(three)), bb.Flow().with_agent(bb.Agent("a").with_model(four))))
        .next(Scope(Emit("in"), acquire=AiSegment("get").with_model(five), finally_=Emit("out").with_model(six)))
        .next(bb.All(bb.Flow().with_model(seven), Emit("b")).with_model(eight).with_id("all"))
        .with_model(nine)
        .with_id("r")
        .durable()
    )
    seen: list[bb.Model] = []

    def wrap(model: bb.Model | None) -> bb.Model | None:
        if model is not None:
            seen.append(model)
        return model

    assert with_models(flow, wrap) == flow
    assert {id(model) for model in seen} == {id(model) for model in models}
