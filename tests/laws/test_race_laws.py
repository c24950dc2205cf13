"""Law 7: no interleaving of two runners on one run id stores two results for one place."""

from __future__ import annotations

import asyncio
import json
from asyncio import Future
from collections import Counter
from collections.abc import Sequence
from unittest import mock

from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

import bb
from bb.engine.runs import leases
from bb.log import Decided, Entry, Saved, decode, run_stream
from bb.stores.base import Lease
from bb.testing import MockStore
from tests.laws.test_resume_laws import SECONDS, app_over, run, told
from tests.strategies import Plot, World, plots

LOOKS = (0.0005, 0.002)  # seconds between looks at a lease held elsewhere: quick, so that many stories are told


@frozen
class Steal:
    """At so many appends after the one before, the holder hangs and its lease runs out."""

    after: int
    pause: float
    """Seconds that it hangs."""
    written: bool
    """Whether its append is carried out before it hangs, or when it goes on."""


class Contested(MockStore):
    """A store whose leases run out as told, while the holder hangs in an append."""

    def __init__(self, steals: Sequence[Steal]) -> None:
        super().__init__()
        self.steals = [*steals]
        self.taken: list[Lease] = []
        self.late: list[bb.Fenced] = []
        self._next = self.steals[0].after if self.steals else 0

    def append(self, stream: str, expected: int, records: Sequence[bytes], lease: Lease | None = None) -> Future[int]:
        if self.steals and lease is not None and self.appends + 1 >= self._next:
            steal = self.steals.pop(0)
            self._next = self.appends + 1 + (self.steals[0].after if self.steals else 0)
            hold = self.hang_append(1, after=steal.written)
            for held in self._leases.values():
                held.until = float("-inf")
            asyncio.get_running_loop().call_later(steal.pause, hold.release)
        future = super().append(stream, expected, records, lease)
        future.add_done_callback(self._note)
        return future

    async def acquire(self, name: str, owner: str, seconds: float) -> Lease | None:
        lease = await super().acquire(name, owner, seconds)
        if lease is not None:
            self.taken.append(lease)
        return lease

    def _note(self, future: Future[int]) -> None:
        if not future.cancelled() and isinstance(error := future.exception(), bb.Fenced):
            self.late.append(error)


steals = st.lists(
    st.builds(Steal, st.integers(1, 4), st.sampled_from([0.0, 0.002, 0.006, 0.02]), st.booleans()),
    min_size=1,
    max_size=4,
)


async def check(store: MockStore) -> None:
    """One savepoint, entry and decision per place, and nothing of a runner after another has taken over."""
    records = await store.read(run_stream("r"))
    fences = [json.loads(record)[1] for record in records]
    assert fences == sorted(fences)
    facts = [decode(record, "a record") for record in records]
    places = [
        (type(fact), fact.scope, fact.path, fact.key if isinstance(fact, Entry) else "")
        for fact in facts
        if isinstance(fact, Saved | Entry | Decided)
    ]
    assert len(places) == len(set(places))


@given(plot=plots(max_leaves=4), steals=steals, runners=st.integers(2, 3))
@settings(max_examples=100)
def test_runners_that_steal_the_run_from_each_other(plot: Plot, steals: list[Steal], runners: int) -> None:
    async def go() -> None:
        expected = told(await run(MockStore(), plot.durable(World())))
        store, worlds = Contested(steals), [World() for _ in range(runners)]
        apps = [app_over(store) for _ in worlds]
        async with asyncio.timeout(SECONDS):
            outcomes = await asyncio.gather(
                *(app.run(plot.durable(world), "hi", run_id="r") for app, world in zip(apps, worlds, strict=True))
            )
        assert [told(outcome) for outcome in outcomes] == [expected] * runners
        await check(store)
        calls = sum((world.calls for world in worlds), Counter[str]())
        assert max(calls.values(), default=0) <= 1 + len(steals)  # each theft costs one more try at most

    with mock.patch.object(leases, "POLL", LOOKS):
        asyncio.run(go())


@given(plot=plots(max_leaves=4), callers=st.integers(2, 5))
@settings(max_examples=50)
def test_callers_of_several_apps_at_once_run_each_step_once(plot: Plot, callers: int) -> None:
    async def go() -> None:
        store, world = MockStore(), World()
        flow, apps = plot.durable(world), [app_over(store), app_over(store)]
        async with asyncio.timeout(SECONDS):
            outcomes = await asyncio.gather(
                *(apps[n % 2].run(flow, "hi", run_id="r") for n in range(callers)),
            )
        assert len({repr(told(outcome)) for outcome in outcomes}) == 1
        assert max(world.calls.values(), default=1) == 1 and max(world.steps.values(), default=1) == 1
        await check(store)

    with mock.patch.object(leases, "POLL", LOOKS):
        asyncio.run(go())


def test_a_late_write_is_refused() -> None:
    """What the laws above rest on: some of their stories have a write that comes too late."""

    async def go() -> None:
        async def say(turn: bb.Turn, chat: bb.ModelChat) -> None:
            turn.reply("said")

        flow = bb.Flow().with_agent(bb.Agent("say").on_message(say)).with_id("f").durable()
        store = Contested([Steal(2, 0.1, written=False)])
        one, other = await asyncio.gather(*(app_over(store).run(flow, "hi", run_id="r") for _ in range(2)))
        assert told(one) == told(other)
        assert len(store.late) == 1 and len(store.taken) >= 2
        await check(store)

    with mock.patch.object(leases, "POLL", LOOKS):
        asyncio.run(go())
