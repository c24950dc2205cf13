"""Trials E that concern the nodes: what is one thing and what are two."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import bb
from bb.errors import RunCancelled
from bb.flows.refs import ref
from bb.flows.tree import (
    All,
    AnyFlow,
    Await,
    Bind,
    Checkpoint,
    Each,
    Emit,
    Memo,
    Once,
    Repeat,
    Retry,
    Return,
    Run,
    Saga,
    Step,
    Throttle,
)
from bb.ops import op
from bb.testing.clock import ManualClock
from tests.conformance.acts import Acts, durable, plain, reached
from tests.trials.kit import Disk, cut_off, until


@pytest.fixture
def acts() -> Acts:
    return Acts()


async def test_trial_E1_each_round_of_a_loop_has_its_own_savepoint(disk: Disk, acts: Acts) -> None:
    answers = iter(["wait", "wait", "done"])

    @op()
    async def poll() -> str:
        acts.done.append("poll")
        return next(answers)

    flow = durable(
        Repeat(9, Bind("x", poll()), until=ref("x") == "done", collect="all"), acts("slow"), Return(ref("all"))
    )
    await cut_off(disk.app(flow), acts.hold("slow"), "f", run_id="r")

    outcome = await disk.app(flow).run("f", run_id="r")

    assert outcome.value == ["wait", "wait", "done"] and acts.done == ["poll"] * 3 + ["slow"] * 2


async def test_trial_E2_equal_calls_are_made_twice_unless_they_are_remembered(disk: Disk, acts: Acts) -> None:
    flow = durable(
        acts("a"), acts("a"), Bind("x", ref(acts("a")) + ref(acts("a"))), Memo("y", acts("b")), Memo("z", acts("b"))
    )

    await disk.app(flow).run("f")

    assert acts.done == ["a"] * 4 + ["b"]


async def test_trial_E4_flows_of_one_session_keep_their_checkpoints_apart(disk: Disk, acts: Acts) -> None:
    flows = [durable(acts("a"), Checkpoint("x"), acts(after), id=id) for id, after in (("f", "b"), ("g", "c"))]
    for _ in range(2):
        for flow in flows:
            await disk.app(*flows).run(flow.id, session_id="s")

    assert acts.done == ["a", "b", "a", "c", "b", "c"]


async def test_trial_E5_a_run_inside_an_op_is_another_run(disk: Disk, acts: Acts) -> None:
    inner = durable(Once("o", acts("inner")), Return("home"), id="inner")
    app = disk.app(inner)

    @op()
    async def nested() -> Any:
        return (await app.run("inner", run_id="r.inner")).value

    flow = durable(Once("o", Bind("x", nested())), acts("slow"), Return(ref("x")))
    app.register(flow)
    await cut_off(app, acts.hold("slow"), "f", run_id="r")

    assert (await app.run("f", run_id="r")).value == "home" and acts.done == ["inner", "slow", "slow"]


async def test_trial_E8_what_remembers_may_stand_in_what_remembers(disk: Disk, acts: Acts) -> None:
    inner = Once("o", Memo("x", acts("a")), Memo("y", acts(ref("x"))))
    flow = durable(Each("i", [1, 1, 2], inner, collect="all"), Return([ref("all"), ref("y")]))

    values = [(await disk.app(flow).run("f", session_id="s")).value for _ in range(2)]

    assert values == [[["a done done"] * 3, "a done done"]] * 2 and acts.done == ["a", "a done"]


@pytest.mark.parametrize("where", ["attempt", "backoff", "await", "nested"])
async def test_trial_E10_a_cancel_finds_the_run_wherever_it_is(disk: Disk, acts: Acts, where: str) -> None:
    acts.fail("first", 1)
    time = ManualClock()
    body = Retry(2, acts("first"), acts("slow"), backoff="none", delay=timedelta(0 if where == "attempt" else 60))
    nested = Saga(acts.step("outer"), Step((acts.saga("inner", "slow")).with_id("deep").durable()))
    flows: dict[str, AnyFlow] = {"attempt": body, "backoff": body, "await": Await("never"), "nested": nested}
    app = disk.app(durable(flows[where], acts("never")), **({"clock": time} if where == "backoff" else {}))
    hold = acts.hold("slow")
    task = asyncio.create_task(app.run("f", run_id="r"))
    if where in ("attempt", "nested"):
        await reached(hold, task)
    elif where == "await":
        assert (await task).waiting_for == "never"
    else:
        await until(lambda: 60 * 60 * 24 in [int(seconds) for seconds in time.slept] or time.sleepers)

    await app.cancel("r")

    if where != "await":
        with pytest.raises(RunCancelled):
            await task
    assert [run.status for run in await app.runs()] == ["cancelled"] and "never" not in acts.done
    assert acts.done[-2:] == ["undo inner", "undo outer"] if where == "nested" else True


async def test_trial_E11_labels_and_names_may_be_anything(disk: Disk, acts: Acts) -> None:
    """Regression 'NUL in a key': elsewhere a key was cut off at the first NUL, and two onces were one."""
    odd = ["a", "a\0", "a\0b", "ä", "a\u0308", "A", "../../a", "a/b", "x" * 4000, "{a}", "a#0", " a"]
    flow = durable(*(Once(label, acts("one")) for label in odd), Emit("end"))

    for _ in range(2):
        await disk.app(flow).run("f", session_id="s")

    assert acts.done == ["one"] * len(odd)


async def test_what_a_memo_is_given_may_hold_anything(disk: Disk, acts: Acts) -> None:
    odd = ["a", "a\0", "a\0b", 1, 1.0, True, "1", None, "", [1], "[1]", {"k": 1}]
    flow = durable(*(Memo("x", acts(what)) for what in odd), Emit("end"))

    for _ in range(2):
        await disk.app(flow).run("f", session_id="s")

    assert len(acts.done) == len(odd)


async def test_a_sub_flow_remembers_for_the_session_like_any_other(disk: Disk, acts: Acts) -> None:
    """Trap 7.2.5: elsewhere memo and throttle had no effect across calls of a composite operation."""
    body = (
        Memo("x", acts("a")),
        Throttle("t", acts("b"), max=9, per=timedelta(hours=1)),
        Once("o", acts("c")),
        Emit("x"),
    )
    sub = plain(*body, id="sub")
    flow = durable(Run("sub"), Run("sub"), acts("end"))

    await disk.app(sub, flow).run("f", session_id="s")

    assert acts.done == ["a", "b", "c", "b", "end"]


async def test_a_checkpoint_in_a_sub_flow_is_a_static_error(disk: Disk, acts: Acts) -> None:
    """Trap 7.2.4."""
    app = disk.app(plain(acts("a"), Checkpoint("x"), id="sub"))

    with pytest.raises(bb.WiringError, match="checkpoint-nested"):
        app.register(durable(Run("sub"), Emit("x")))


async def test_the_same_part_alone_or_bound_comes_to_the_same(disk: Disk) -> None:
    """Regression 'statement versus bind'."""
    flow = durable(
        Bind("x", {"k": [1, {"z": None}], "n": 1.0}),
        *(Bind(name, ref("x")[part]) for name, part in (("a", "k"), ("b", "n"))),
        Once("o", Emit(ref("x").k), bind="c"),
        Return([ref("a"), ref("b"), ref("c")]),
    )

    value: Any = (await disk.app(flow).run("f")).value

    assert value == [[1, {"z": None}], 1.0, [1, {"z": None}]] and type(value[1]) is float


async def test_places_tell_calls_of_one_statement_apart(disk: Disk, acts: Acts) -> None:
    """Regression F20: elsewhere a step's id did not name its op, and equal inputs met."""
    other = acts.named("other")
    flow = durable(Bind("x", ref(acts("a")) + ref(other("a")) + ref(acts(ref(acts("a"))))), All(acts("a"), acts("a")))
    app = disk.app(flow)

    await app.run("f", run_id="r")

    paths = [event.path for event in await app.events("r") if event.kind == "flow.end"]
    assert len(paths) == len(set(paths)) == 6


KEYS = """
    import asyncio, sys
    import bb

    @bb.op("look")
    async def look(what: object) -> int:
        print("looked")
        return 1

    def of(words):
        return "".join(words)  # a text that is not interned

    given = [
        {"a": {of("xy"), "z", 1.5}, of("bc"): (1, "1")},
        {of("bc"): (1, "1"), "a": {1.5, "z", "xy"}},
        1, True, "1", 1.0,
    ]
    which = [given[int(number)] for number in sys.argv[2:]]
    flow = bb.Each("i", which, bb.Memo("x", look(bb.ref("i")))).with_id("f").durable()
    app = bb.App(store=bb.FileStore(sys.argv[1]))
    asyncio.run(app.run(flow, session_id="s"))
"""


def test_trial_A25_equal_arguments_are_one_key_however_and_wherever_they_were_made(tmp_path: Path) -> None:
    def looked(seed: int, *given: int) -> int:
        command = [sys.executable, "-c", textwrap.dedent(KEYS), str(tmp_path), *map(str, given)]
        done = subprocess.run(
            command,
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout.count("looked")

    assert looked(1, 0, 1) == 1
    assert [looked(seed, 1, 0) for seed in (2, 3)] == [0, 0]
    assert looked(4, 2, 3, 4, 5) == 4  # 1, True, "1" and 1.0 are four keys
    assert looked(5, 5, 4, 3, 2) == 0
