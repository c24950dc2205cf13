"""Memo and peek: cases 16 to 20 of the language (18 is left out)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

import bb
from bb.engine.memory import session_memory
from bb.engine.runs import sessions
from bb.errors import OpFailed, Unbound, WiringError
from bb.flows.refs import ref
from bb.flows.tree import All, AnyFlow, Assert, Bind, Each, Emit, Memo, Peek, Repeat, Return, Unless, When
from bb.ops import Viewed, op
from bb.place import current_place
from tests.conformance.acts import Acts, durable, plain
from tests.trials.kit import Disk, cut_off, until


async def test_case_16_it_is_known_by_the_op_and_its_arguments(disk: Disk, acts: Acts) -> None:
    """Regression 'once/memo identity': elsewhere a memo gave what another call had come to."""
    other = acts.named("other")
    flow = durable(
        Memo("x", acts("a")),
        Memo("y", acts("a")),  # another name, the same call: a hit
        Memo("x", acts("b")),  # other arguments
        Memo("x", other("a")),  # another op
        Return([ref("x"), ref("y")]),
    )

    outcome = await disk.app(flow).run("f", session_id="s")

    assert outcome.value == ["a done", "a done"] and acts.done == ["a", "b", "a"]


async def test_case_16_a_name_that_something_else_has_bound_is_no_hit(disk: Disk, acts: Acts) -> None:
    outcome = await disk.app(durable(Bind("x", "before"), Memo("x", acts("a")), Return(ref("x")))).run(
        "f", session_id="s"
    )

    assert outcome.value == "a done" and acts.done == ["a"]


async def test_case_17_it_is_computed_once_per_session(disk: Disk, acts: Acts) -> None:
    flow = durable(Memo("x", acts("a")), Return(ref("x")))

    for session in ("s", "s", "t", "s"):
        assert (await disk.app(flow).run("f", session_id=session)).value == "a done"

    assert acts.done == ["a", "a"]


async def test_case_17_other_flows_of_the_session_hit_as_well(disk: Disk, acts: Acts) -> None:
    for id in ("f", "g"):
        await disk.app(durable(Memo("x", acts("a")), id=id)).run(id, session_id="s")

    assert acts.done == ["a"]


async def test_case_17_a_flow_that_is_not_durable_remembers_while_the_process_lives(acts: Acts) -> None:
    flow = plain(Memo("x", acts("a")), Return(ref("x")))
    app = bb.App()

    for _ in range(2):
        assert (await app.run(flow, session_id="s")).value == "a done"
    await app.run(flow)
    await bb.App().run(flow, session_id="s")

    assert acts.done == ["a", "a", "a"]


async def test_case_17_a_process_remembers_for_the_sessions_used_last(
    acts: Acts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients choose the ids of sessions, and a server lives long."""
    monkeypatch.setattr(sessions, "IN_PROCESS", 2)
    app = bb.App()
    flow = plain(Memo("x", acts("a")), Return(ref("x")))

    for session in ("s", "t", "s", "u", "s", "t"):
        assert (await app.run(flow, session_id=session)).value == "a done"

    assert len(acts.done) == 4  # of s and u once, of t twice


@pytest.mark.parametrize("value", [ref("x"), "text", Peek("x"), 1], ids=["symbol", "text", "peek", "number"])
def test_only_a_call_can_be_remembered(value: object) -> None:
    """Node 2, trap 7.1.2: elsewhere this was found in the run."""
    with pytest.raises(WiringError, match="give a call of an op"):
        Memo("x", value)  # type: ignore[arg-type]  # what a careless caller passes


async def test_the_values_of_symbols_count(disk: Disk, acts: Acts) -> None:
    """Trap 7.2.6: elsewhere the syntax did, and a changed variable still hit."""
    flow = durable(Each("n", ["a", "b", "a"], Memo("x", acts(ref("n"))), collect="all"), Return(ref("all")))

    outcome = await disk.app(flow).run("f", session_id="s")

    assert outcome.value == ["a done", "b done", "a done"] and acts.done == ["a", "b"]


async def test_the_version_of_the_op_counts(disk: Disk) -> None:
    done: list[str] = []

    for version in ("1", "2", "2"):

        @op("read", version=version)
        async def read(what: str, version: str = version) -> str:
            done.append(version)
            return what

        await disk.app(durable(Memo("x", read("a")))).run("f", session_id="s")

    assert done == ["1", "2"]


async def test_a_failure_is_not_remembered(disk: Disk, acts: Acts) -> None:
    """Trial C17."""
    flow = durable(Memo("x", acts("a")), Return(ref("x")))
    acts.fail("a", 1)
    with pytest.raises(OpFailed):
        await disk.app(flow).run("f", session_id="s")

    assert (await disk.app(flow).run("f", session_id="s")).value == "a done"
    assert acts.done == ["a", "a"]


async def test_a_replay_reads_what_was_read(disk: Disk, acts: Acts) -> None:
    flow = durable(Memo("x", acts("a")), acts("b"), Return(ref("x")))
    await cut_off(disk.app(flow), acts.hold("b"), "f", run_id="r", session_id="s")

    outcome = await disk.app(flow).run("f", run_id="r")

    assert outcome.value == "a done" and acts.done == ["a", "b", "b"]


async def test_what_is_handed_out_is_a_copy(disk: Disk, acts: Acts) -> None:
    """Trial B1, B2: whoever changes what it was given changes nothing for others."""
    acts.values["a"] = given = [1, 2]
    spoiled: list[object] = []

    @op()
    async def spoil(items: list[int]) -> None:
        items.append(3)
        spoiled.append(items)

    flow = durable(Memo("x", acts("a")), spoil(ref("x")), Memo("y", acts("a")), Return(ref("y")))

    values = [(await disk.app(flow).run("f", session_id="s")).value for _ in range(2)]

    assert values == [[1, 2], [1, 2]] and given == [1, 2] and len(spoiled) == 2


async def test_what_was_said_by_the_call_is_not_said_again_on_a_hit(disk: Disk) -> None:
    @op()
    async def look() -> Viewed[int]:
        return Viewed(1, "looked")

    flow = durable(Memo("x", look()), Memo("y", look()), Return(ref("y")))

    outcome = await disk.app(flow).run("f", session_id="s")

    assert outcome.value == 1 and [m.content for m in outcome.messages] == ["looked"]


# --- peek -------------------------------------------------------------------------------------------------------------


async def test_case_19_it_reads_what_is_bound_and_nothing_otherwise(disk: Disk, acts: Acts) -> None:
    flow = durable(
        Bind("before", Peek("x")),
        Bind("x", [1, 2]),
        Bind("after", Peek("x")),
        Return([ref("before"), ref("after"), ref(Peek("x"))]),
    )

    outcome = await disk.app(flow).run("f")

    assert outcome.value == [None, [1, 2], [1, 2]] and acts.done == []


async def test_case_19_where_it_may_stand(disk: Disk, acts: Acts) -> None:
    """Node 1: in conditions, as an argument, alone, and in a formula."""
    flow = durable(
        Bind("x", "a"),
        acts(ref(Peek("x"))),
        When(Peek("x"), acts("when"), otherwise=acts("never")),
        Assert(Peek("x")),
        Repeat(5, acts("again"), until=Peek("x")),
        When(ref(Peek("nothing")) == None, acts("none")),  # noqa: E711  # builds the comparison
        Peek("x"),
        Return(ref(Peek("x"))),
    )

    outcome = await disk.app(flow).run("f")

    assert outcome.value == "a" and acts.done == ["a", "when", "again", "none"]


async def test_case_20_unless_it_is_there(disk: Disk, acts: Acts) -> None:
    """Trap 7.1.1: the one example of the page that could not be run elsewhere."""
    flow = durable(Unless(Peek("survey"), Memo("survey", acts("survey"))), Return(ref("survey")))

    values = [(await disk.app(flow).run("f", session_id="s")).value for _ in range(2)]

    assert values == ["survey done"] * 2 and acts.done == ["survey"]


@pytest.mark.parametrize("value", [None, "", 0, False, "false", " 0 ", [], {}], ids=repr)
async def test_case_20_what_is_empty_counts_as_not_there(disk: Disk, acts: Acts, value: object) -> None:
    flow = durable(Bind("x", value), Unless(Peek("x"), acts("body")))

    await disk.app(flow).run("f")

    assert acts.done == ["body"]


async def test_a_plain_read_of_nothing_is_an_error(disk: Disk) -> None:
    flow = durable(When(False, Bind("x", 1)), Emit("{x}"), Return(ref("x")))

    with pytest.raises(Unbound, match="'x'"):
        await disk.app(flow).run("f")


async def test_scalars_stay_what_they_are(disk: Disk, acts: Acts) -> None:
    """Regression 'scalars': numbers and truth values became texts elsewhere."""
    acts.values |= {"n": 3, "t": True, "o": {"k": [1.5, None]}}
    steps: list[AnyFlow] = [Memo(name, acts(name)) for name in ("n", "t", "o")]
    flow = durable(*steps, Bind("p", Peek("n")), Return([ref("n"), ref("t"), ref("o"), ref("p"), ref("o").k]))

    values = [(await disk.app(flow).run("f", session_id="s")).value for _ in range(2)]

    assert values == [[3, True, {"k": [1.5, None]}, 3, [1.5, None]]] * 2
    assert all(type(v[0]) is int and v[1] is True for v in values)  # type: ignore[index]  # a list, as just shown


# --- at the same time -------------------------------------------------------------------------------------------------


class Slow:
    """An op that takes its time, counts how often it was begun, and may fail or be asked to wait for something else."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        """The runs that began it."""
        self.failures = 0
        self.meanwhile: Callable[[], Awaitable[object]] = asyncio.Event().wait
        self.op = op(effects=["network"])(self.slow)

    @property
    def begun(self) -> int:
        return len(self.runs)

    async def slow(self, text: str) -> str:
        place = current_place()
        assert place is not None
        self.runs.append(place.run_id)
        if self.failures:
            self.failures -= 1
            await asyncio.sleep(0.02)
            raise RuntimeError("not now")
        await self.meanwhile()
        return f"{text} done"


def resting() -> Awaitable[object]:
    return asyncio.sleep(0.02)


@pytest.mark.parametrize("kind", [durable, plain])
async def test_case_17_trial_j10_runs_at_the_same_time_compute_it_once(
    disk: Disk, kind: Callable[..., AnyFlow]
) -> None:
    slow = Slow()
    slow.meanwhile = resting
    branches = All(Memo("x", slow.op("a")), Memo("y", slow.op("a")), Bind("other", slow.op("other")))
    app = disk.app()
    flow = cast(bb.NamedFlow, kind(branches, Memo("z", slow.op("a")), Return(ref("z"))))

    outcomes = await asyncio.gather(*(app.run(flow, session_id="s", run_id=f"r{n}") for n in range(4)))

    assert [outcome.value for outcome in outcomes] == ["a done"] * 4
    assert slow.begun == 5  # one memo, and four calls that are none


async def test_case_17_if_the_first_fails_or_is_cancelled_the_next_computes_it(disk: Disk) -> None:
    slow = Slow()
    slow.failures = 1
    app = disk.app(durable(Memo("x", slow.op("a")), Return(ref("x"))))
    runs = {id: asyncio.ensure_future(app.run("f", session_id="s", run_id=id)) for id in ("r0", "r1", "r2", "r3")}
    await until(lambda: slow.begun == 2)  # in which order they come is not said
    first, second = slow.runs
    with pytest.raises(OpFailed):
        await runs.pop(first)
    runs[second].cancel()  # it is computing, and will never end by itself
    slow.meanwhile = resting

    with pytest.raises(asyncio.CancelledError):
        await runs.pop(second)
    assert [(await run).value for run in runs.values()] == ["a done"] * 2
    assert slow.begun == 3


async def test_case_17_a_call_that_waits_for_the_same_memo_in_another_run_goes_ahead(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_memory, "_COMPUTING", 0.05)
    slow = Slow()
    app = disk.app(durable(Memo("x", slow.op("a")), Return(ref("x"))))

    async def another() -> None:
        slow.meanwhile = resting
        await app.run("f", session_id="s", run_id="inner")

    slow.meanwhile = another

    async with asyncio.timeout(10):
        outcome = await app.run("f", session_id="s", run_id="outer")

    assert outcome.value == "a done" and slow.begun == 2
