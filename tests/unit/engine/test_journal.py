"""The one writer of a run's stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import bb
from bb.codec import Codec, Types
from bb.engine.memory.journal import LogJournal, outlasted
from bb.log import Attempted, Entered, Fact, Forgotten, History, Saved, Started, encode, run_stream
from bb.stores.base import Lease
from bb.testing.clock import ManualClock
from bb.testing.mock_store import MockStore

STREAM = run_stream("r")


def fact(n: int = 0, size: int = 0) -> Fact:
    return Forgotten(f"path/{n}" + "x" * size)


class Desk:
    """A journal, and what it writes to."""

    def __init__(self, *, leased: bool = True, limit: int = 10_000) -> None:
        self.store = MockStore()
        self.clock = ManualClock(auto=True)
        self.claims = 0
        self.leased = leased
        self.limit = limit

    async def journal(self) -> LogJournal:
        lease = await self.store.acquire(STREAM, "me", 30) if self.leased else None
        history = History("r")
        history.read(await self.store.read(STREAM))
        return LogJournal(history, self.store, Codec(Types(), self.limit), self.clock, lease, self.claim)

    async def claim(self) -> tuple[Lease, Fact]:
        self.claims += 1
        lease = await self.store.acquire(STREAM, "me", 30)
        if lease is None:
            raise bb.RunBusy("busy", after=self.clock.now() - self.clock.now())
        return lease, Attempted(1, "call")

    async def records(self) -> list[bytes]:
        return await self.store.read(STREAM)


async def settle(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come true")


async def test_a_fact_is_folded_once_it_is_written() -> None:
    desk = Desk()
    journal = await desk.journal()

    await journal.record(Started("f", "s", "caller", 1, "x", 0), Entered(0, "f", "sig"))
    await journal.record(Saved(0, "f/a", 2, 1, {}))

    assert journal.history.length == 3 and journal.history.scopes[0].saved == {"f/a": {}}
    assert [entry.number for entry in desk.store.appended] == [1, 2]  # facts recorded together are written together


async def test_facts_recorded_while_one_is_written_go_together() -> None:
    desk = Desk()
    journal = await desk.journal()
    hold = desk.store.hang_append(1)
    tasks = [asyncio.ensure_future(journal.record(fact(n))) for n in range(20)]
    await settle(lambda: hold.reached)
    for _ in range(20):
        await asyncio.sleep(0)
    assert desk.store.appends == 1 and not any(task.done() for task in tasks)
    hold.release()
    await asyncio.gather(*tasks)

    assert [len(entry.records) for entry in desk.store.appended] == [1, 19]
    fence = journal.lease.fence if journal.lease is not None else 0
    assert await desk.records() == [encode(fact(n), fence) for n in range(20)]


async def test_a_rival_at_the_same_place_is_the_end() -> None:
    desk = Desk()
    journal = await desk.journal()
    await desk.store.append(STREAM, 0, [encode(fact(), 99)])

    with pytest.raises(bb.Fenced):
        await journal.record(fact(1))
    with pytest.raises(bb.Fenced):
        await journal.record(fact(2))
    with pytest.raises(bb.Fenced):
        journal.check()

    assert len(await desk.records()) == 1 and desk.clock.slept == []


async def test_a_lost_lease_is_the_end() -> None:
    desk = Desk()
    journal = await desk.journal()
    assert journal.lease is not None
    await desk.store.release(journal.lease)

    with pytest.raises(bb.Fenced):
        await journal.record(fact())

    assert await desk.records() == [] and desk.store.appends == 1


@pytest.mark.parametrize("failures", [1, 2, 3])
@pytest.mark.parametrize("after", [False, True])
async def test_a_failing_append_is_tried_again_and_written_once(failures: int, after: bool) -> None:
    desk = Desk()
    journal = await desk.journal()
    desk.store.fail_append(1, after=after, times=failures if not after else 1)

    await journal.record(fact(1))
    await journal.record(fact(2))

    assert len(await desk.records()) == 2 and journal.history.length == 2
    assert len(desk.clock.slept) == (1 if after else failures)


async def test_a_lost_reply_is_told_from_a_rival_who_wrote_the_same() -> None:
    desk = Desk()
    journal = await desk.journal()
    desk.store.fail_append(1)

    async def rival() -> None:
        await settle(lambda: desk.store.appends == 1)
        await desk.store.append(STREAM, 0, [encode(fact(1), 12345)])  # the same fact, under another fence

    task = asyncio.ensure_future(rival())
    with pytest.raises(bb.Fenced):
        await journal.record(fact(1))
    await task


@pytest.mark.parametrize("error", [bb.StoreError("down"), bb.StoreFull("full")])
async def test_a_store_that_stays_down_breaks_the_journal_for_good(error: bb.StoreError) -> None:
    desk = Desk()
    journal = await desk.journal()
    desk.store.fail_append(1, error, times=99)
    with pytest.raises(type(error)):
        await journal.record(fact(1))
    desk.store.clear()

    with pytest.raises(type(error)):
        await journal.record(fact(2))
    with pytest.raises(type(error)):
        journal.check()

    assert await desk.records() == [] and journal.history.length == 0


async def test_those_in_the_queue_get_the_same_error() -> None:
    desk = Desk()
    journal = await desk.journal()
    hold = desk.store.hang_append(1)
    tasks = [asyncio.ensure_future(journal.record(fact(n))) for n in range(5)]
    await settle(lambda: hold.reached)
    desk.store.fail_append(2, times=99)
    hold.release()

    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert results[0] is None and all(isinstance(result, bb.StoreError) for result in results[1:])


async def test_a_fact_that_is_too_large_is_refused_and_the_journal_goes_on() -> None:
    desk = Desk(limit=100)
    journal = await desk.journal()
    with pytest.raises(bb.TooLarge, match="limit of 100"):
        await journal.record(fact(1, size=200))

    await journal.record(fact(2))

    journal.check()
    assert len(await desk.records()) == 1


async def test_a_cancelled_caller_leaves_when_its_fact_is_written() -> None:
    desk = Desk()
    journal = await desk.journal()
    hold = desk.store.hang_append(1)
    first = asyncio.ensure_future(journal.record(fact(1)))
    second = asyncio.ensure_future(journal.record(fact(2)))
    await settle(lambda: hold.reached)
    for _ in range(3):
        first.cancel()
        second.cancel()
        await asyncio.sleep(0)
    assert not first.done() and not second.done()
    hold.release()

    for task in (first, second):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(await desk.records()) == 2 and journal.history.length == 2
    await journal.record(fact(3))  # it is whole


async def test_a_replay_takes_the_lease_only_when_there_is_something_new() -> None:
    desk = Desk(leased=False)
    await desk.store.append(STREAM, 0, [encode(Started("f", "s", "caller", 1, "x", 0), 0)])
    journal = await desk.journal()
    assert desk.claims == 0

    await asyncio.gather(*(journal.record(fact(n)) for n in range(3)))

    assert desk.claims == 1 and journal.history.attempts == 2
    assert journal.lease is not None
    fence = journal.lease.fence
    assert (await desk.records())[1:] == [
        encode(Attempted(1, "call"), fence),
        *[encode(fact(n), fence) for n in range(3)],
    ]


async def test_a_replay_that_cannot_get_the_lease_says_so_to_everyone() -> None:
    desk = Desk(leased=False)
    await desk.store.acquire(STREAM, "another", 30)
    journal = await desk.journal()

    results = await asyncio.gather(*(journal.record(fact(n)) for n in range(3)), return_exceptions=True)

    assert [type(result) for result in results] == [bb.RunBusy] * 3
    assert await desk.records() == []


async def test_what_interrupts_a_journal_first_is_what_it_says() -> None:
    desk = Desk()
    journal = await desk.journal()
    first = bb.Fenced("gone")
    journal.interrupt(first)
    journal.interrupt(bb.Interrupted("later"))

    with pytest.raises(bb.Fenced) as raised:
        await journal.record(fact())

    assert raised.value is first and desk.store.appends == 0


async def test_a_tree_is_kept_once() -> None:
    desk = Desk()
    journal = await desk.journal()
    for _ in range(2):
        await journal.keep_tree("tree/abc", {"at": "x", "kind": "agents"}, None)

    assert await journal.tree("abc") == {"at": "x", "kind": "agents"} and await journal.tree("def") is None
    assert len(await desk.store.read("tree/abc")) == 2  # its canonical form, and the flow on the wire


@pytest.mark.parametrize("outcome", ["value", "error", "cancelled"])
async def test_outlasted_waits_through_cancellations_and_gives_the_last_one_back(outcome: str) -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiter: asyncio.Future[asyncio.CancelledError | None] = asyncio.ensure_future(outlasted(future))
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.sleep(0)
    assert not waiter.done()
    finish: dict[str, Callable[[], object]] = {
        "value": lambda: future.set_result(1),
        "error": lambda: future.set_exception(ValueError("x")),
        "cancelled": future.cancel,
    }
    finish[outcome]()

    if outcome == "cancelled":
        with pytest.raises(asyncio.CancelledError):
            await waiter
    else:
        assert isinstance(await waiter, asyncio.CancelledError)
        assert future.done()
