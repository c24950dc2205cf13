"""A run id that is used again: what an earlier run of that id left in the session is another run's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeAlias

import pytest

import bb
from bb.flows.refs import ref
from bb.flows.tree import Await, Bind, Checkpoint, Debounce, Emit, Memo, Peek, Return
from bb.testing.clock import ManualClock
from tests.conformance.acts import Acts, durable
from tests.trials.kit import Disk

Again: TypeAlias = Callable[..., Awaitable[bb.Outcome]]

PEEK = durable(Return(Peek("x")), id="peek")
DAY = timedelta(days=1)


def binds(name: str) -> bb.DurableFlow:
    """Binds `x` to its parameter `n`."""
    return Bind("x", ref("n", int)).with_id(name).with_params(n=int).durable()


@pytest.fixture
def clock() -> ManualClock:
    """Stands still, so that no two lives of a run are told apart by the time."""
    return ManualClock(auto=True)


@pytest.fixture(params=["replaced", "pruned"])
def again(request: pytest.FixtureRequest, clock: ManualClock) -> Again:
    """Runs the run `r` of session `s` anew: in its place, or after it was dropped for its age."""

    async def run(app: bb.App, **kwargs: Any) -> bb.Outcome:
        if request.param == "pruned":
            clock.advance(2 * DAY)
            assert await app.prune() >= 1
        return await app.run("f", run_id="r", session_id="s", replace=request.param == "replaced", **kwargs)

    return run


@pytest.fixture
def app(disk: Disk, clock: ManualClock) -> bb.App:
    """An app over the disk that keeps runs for a day."""
    return disk.app(PEEK, clock=clock, retention=DAY)


async def test_what_it_binds_is_seen(app: bb.App, again: Again) -> None:
    app.register(binds("f"))
    await app.run("f", params={"n": 1}, run_id="r", session_id="s")
    await again(app, params={"n": 2})
    assert (await app.run("peek", session_id="s")).value == 2


async def test_what_it_binds_is_seen_when_it_parks(app: bb.App, again: Again) -> None:
    app.register(Bind("x", ref("n", int)).next(Await("user")).with_id("f").with_params(n=int).durable())
    assert (await app.run("f", params={"n": 1}, run_id="r", session_id="s")).waiting_for == "user"
    await app.cancel("r")
    assert (await again(app, params={"n": 2})).waiting_for == "user"
    assert (await app.run("peek", session_id="s")).value == 2


async def test_it_arrives_anew(app: bb.App, acts: Acts, again: Again) -> None:
    app.register(
        Debounce("d", acts(ref("n", int)), wait=timedelta(milliseconds=10)).with_id("f").with_params(n=int).durable()
    )
    await app.run("f", params={"n": 1}, run_id="r", session_id="s")
    await app.run("f", params={"n": 2}, run_id="r2", session_id="s")
    await again(app, params={"n": 3})
    assert acts.done == ["1", "2", "3"]


async def test_a_memo_that_is_there_says_nothing(app: bb.App, again: Again) -> None:
    @bb.op()
    async def find() -> bb.Viewed[str]:
        return bb.Viewed("it", view="found")

    app.register(Memo("m", find()).with_id("f").durable())
    assert (await app.run("f", run_id="r", session_id="s")).answer == "found"
    assert (await again(app)).answer == ""


async def test_its_checkpoint_counts(app: bb.App, acts: Acts, again: Again) -> None:
    app.register(durable(Bind("p", acts("price")), Checkpoint("priced"), Emit("{p}")))
    acts.values["price"] = 1
    await app.run("f", "x", run_id="r", session_id="s")
    acts.values["price"] = 2
    assert (await again(app, input="x", fresh=True)).answer == "2"
    assert (await app.run("f", "x", session_id="s")).answer == "2"


async def test_what_is_not_durable_arrives_anew_each_time(app: bb.App, acts: Acts) -> None:
    app.register(Debounce("d", acts(ref("n", int)), wait=timedelta(milliseconds=10)).with_id("f").with_params(n=int))
    for number, run_id in enumerate(["r", "r2", "r"]):
        await app.run("f", params={"n": number}, run_id=run_id, session_id="s")
    assert acts.done == ["0", "1", "2"]


async def test_what_one_of_its_id_bound_before_is_still_there_after_a_pause(app: bb.App, again: Again) -> None:
    app.register(binds("g"), durable(Await("user"), Return(Peek("x"))))
    await app.run("g", params={"n": 1}, run_id="r", session_id="s")
    assert (await again(app)).waiting_for == "user"
    await app.deliver("user", "go on", session_id="s")
    assert (await app.run("f", run_id="r", session_id="s")).value == 1
