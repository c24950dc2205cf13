"""What a run shares with the others of its session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from attrs import evolve

import bb
from bb.codec import Codec, Types
from bb.engine.memory import mailbox, session_rows
from bb.engine.memory.mailbox import answer, deliver
from bb.engine.memory.session_memory import SessionMemory, drop_session, parked_runs, run_gone
from bb.engine.memory.session_rows import SessionRows, no_lease
from bb.engine.outcome import Delivery
from bb.engine.runs.sessions import Sessions
from bb.errors import NotWaiting
from bb.log.mailbox import Event, Mailbox
from bb.log.rows import Mark, Named, Row, Sealed, Wait, decode_row, encode_row, fold_rows
from bb.log.session import Block, Claim, Done, Found, Point
from bb.log.streams import (
    mail_stream,
    memo_stream,
    once_stream,
    parked_stream,
    rate_stream,
    run_stream,
    session_streams,
)
from bb.messages import assistant
from bb.stores.base import Lease, Store
from bb.stores.file import FileStore
from bb.stores.memory import MemStore
from bb.testing.clock import ManualClock
from bb.testing.mock_store import Crash, MockStore, When

KEY = "0123456789abcdef" * 2
BLOCK = Block((assistant("charged"),), {"id": 7}, None, {"receipt": [1, 2]}, returned=True)


class World:
    """A store, the runs over it, and the people outside."""

    def __init__(self, store: Store, *, limit: int = 10_000) -> None:
        self.store = store
        self.clock = ManualClock(auto=True)
        self.codec = Codec(Types(), limit)
        self.leases: dict[str, Lease] = {}
        self.people = self.rows()

    def rows(self, session: str = "s") -> SessionRows:
        return SessionRows(self.store, self.codec, self.clock, session)

    async def run(self, run_id: str, session: str = "s") -> SessionMemory:
        """The memory of a run that has just been taken up."""
        await self.die(run_id)
        lease = await self.store.acquire(run_stream(run_id), f"owner of {run_id}", 3600)
        assert lease is not None
        self.leases[run_id] = lease
        return SessionMemory(self.store, self.codec, self.clock, session, run_id, lambda: lease, self.store.holder)

    async def die(self, run_id: str) -> None:
        """Let a run end without a word."""
        if run_id in self.leases:
            await self.store.release(self.leases.pop(run_id))

    async def contents(self) -> dict[str, list[bytes]]:
        """Everything that is kept for sessions."""
        return {info.name: await self.store.read(info.name) for info in await self.store.list("session/")}


@pytest.fixture(params=["memory", "file"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    store: Store = MemStore() if request.param == "memory" else FileStore(tmp_path / "state")
    yield World(store)
    await store.close()


# --- memo -------------------------------------------------------------------------------------------------------------


async def test_a_memo_is_computed_once_for_the_session(world: World) -> None:
    r, s = await world.run("r"), await world.run("s")
    assert await r.recall_memo(KEY) is None
    value = {1: [b"x"]}
    kept = await r.keep_memo(KEY, value, "f/m")
    value[1].append(b"later")
    assert kept == {1: [b"x"]}
    assert await s.recall_memo(KEY) == Found({1: [b"x"]}, "r", "f/m")
    assert await (await world.run("t", "another")).recall_memo(KEY) is None


async def test_of_two_who_compute_a_memo_at_once_one_counts(world: World) -> None:
    r, s = await world.run("r"), await world.run("s")
    values = await asyncio.gather(r.keep_memo(KEY, 1, "f/m"), s.keep_memo(KEY, 2, "f/m"))
    assert values[0] == values[1] and values[0] in (1, 2)
    assert len(await world.store.read(memo_stream("s", KEY))) == 1


async def test_none_is_a_value_of_a_memo(world: World) -> None:
    r = await world.run("r")
    assert await r.keep_memo(KEY, None, "f/m") is None
    assert await r.recall_memo(KEY) == Found(None, "r", "f/m")


async def test_what_cannot_be_kept_is_refused_before_anything_is_written(world: World) -> None:
    r = await world.run("r")
    big, odd = "x" * 20_000, object()
    calls: list[Callable[[object], Awaitable[object]]] = [
        lambda value: r.keep_memo(KEY, value, "f/m"),
        lambda value: r.finish(KEY, "f/o", Block(value=value)),
        lambda value: r.keep_symbols({"x": value}, "end"),
        lambda value: r.point("f", Point("sig", "in", 0, "", "r", "f/c", Block(value=value))),
        lambda value: deliver(world.people, "form", value, "d"),
    ]
    for call in calls:
        with pytest.raises(bb.TooLarge, match=r"limit|bytes"):
            await call(big)
        with pytest.raises(bb.NotSavable):
            await call(odd)
    assert await world.contents() == {}


# --- once -------------------------------------------------------------------------------------------------------------


async def test_a_once_is_claimed_finished_and_found(world: World) -> None:
    r, s = await world.run("r"), await world.run("s")
    assert await r.once(KEY) is None
    assert await r.claim(KEY, "charge", "f/o") is None
    assert await r.claim(KEY, "charge", "f/o") is None  # it is ours already
    assert await s.once(KEY) == await s.claim(KEY, "charge", "f/o") == Claim("r", "f/o")
    assert await r.claim(KEY, "charge", "f/other") == Claim("r", "f/o")
    done = Done(BLOCK, "r", "f/o")
    assert await r.finish(KEY, "f/o", BLOCK) == await r.finish(KEY, "f/o", Block()) == done
    assert await s.once(KEY) == await s.claim(KEY, "charge", "f/o") == await r.once(KEY) == done
    assert len(await world.store.read(once_stream("s", KEY))) == 2


async def test_a_claim_that_is_freed_goes_to_the_next(world: World) -> None:
    r, s = await world.run("r"), await world.run("s")
    await r.claim(KEY, "charge", "f/o")
    await s.free(KEY, "f/o")
    await r.free(KEY, "f/other")
    assert await s.once(KEY) == Claim("r", "f/o")  # only who holds it can free it
    await r.free(KEY, "f/o")
    await r.free(KEY, "f/o")
    assert await s.once(KEY) is None and await s.claim(KEY, "charge", "f/o") is None
    assert await r.claim(KEY, "charge", "f/o") == Claim("s", "f/o")


async def test_the_claim_of_a_dead_run_lapses(world: World) -> None:
    r, s = await world.run("r"), await world.run("s")
    await r.claim(KEY, "charge", "f/o")
    await world.die("r")
    assert await s.once(KEY) is None and await s.claim(KEY, "charge", "f/o") is None
    r = await world.run("r")
    assert await r.claim(KEY, "charge", "f/o") == Claim("s", "f/o")


async def test_a_run_that_was_taken_up_again_claims_anew(world: World) -> None:
    await (await world.run("r")).claim(KEY, "charge", "f/o")
    r, s = await world.run("r"), await world.run("s")
    assert await s.once(KEY) == Claim("r", "f/o") and await r.once(KEY) is None  # whoever made it is no more
    assert await r.claim(KEY, "charge", "f/o") is None and await r.once(KEY) == Claim("r", "f/o")
    r = await world.run("r")
    assert await r.claim(KEY, "charge", "f/elsewhere") is None  # the old place may not be reached any more
    assert await r.claim(KEY, "charge", "f/o") == Claim("r", "f/elsewhere")


async def test_of_many_who_claim_at_once_one_has_it(world: World) -> None:
    runs = [await world.run(f"r{n}") for n in range(6)]
    claims = await asyncio.gather(*(run.claim(KEY, "charge", "f/o") for run in runs))
    (winner,) = [n for n, claim in enumerate(claims) if claim is None]
    assert [claim for claim in claims if claim is not None] == [Claim(f"r{winner}", "f/o")] * 5
    await world.die(f"r{winner}")
    claims = await asyncio.gather(*(runs[n].claim(KEY, "charge", "f/o") for n in range(6) if n != winner))
    assert claims.count(None) == 1


async def test_of_two_who_finish_the_first_counts(world: World) -> None:
    r, s = await world.run("r"), await world.run("s")
    await r.claim(KEY, "charge", "f/o")
    first, second = Block(value=1), Block(value=2)
    done = await asyncio.gather(r.finish(KEY, "f/o", first), s.finish(KEY, "f/o", second))
    assert done[0] == done[1] and done[0] in (Done(first, "r", "f/o"), Done(second, "s", "f/o"))
    await s.free(KEY, "f/o")
    assert await s.once(KEY) == done[0]


async def test_who_waits_for_a_once_learns_how_it_ended(world: World) -> None:
    r, s = await world.run("r"), await world.run("s")

    async def after(seconds: float, action: Callable[[], Awaitable[object]]) -> Done | Claim | None:
        began = world.clock.monotonic()
        task = asyncio.ensure_future(s.wait_for(KEY, 60))
        while world.clock.monotonic() - began < seconds:
            assert not task.done()
            await asyncio.sleep(0)
        await action()
        return await task

    assert await s.wait_for(KEY, 60) is None and world.clock.slept == []
    await r.claim(KEY, "charge", "f/o")
    assert await s.wait_for(KEY, 1) == Claim("r", "f/o") and world.clock.slept == [0.25] * 4
    assert await s.wait_for(KEY, 0.125) == Claim("r", "f/o") and world.clock.slept[4:] == [0.125]
    assert await after(1, lambda: r.free(KEY, "f/o")) is None
    await r.claim(KEY, "charge", "f/o")
    assert await after(1, lambda: world.die("r")) is None
    r = await world.run("r")
    await r.claim(KEY, "charge", "f/o")
    assert await after(1, lambda: r.finish(KEY, "f/o", BLOCK)) == Done(BLOCK, "r", "f/o")
    assert world.clock.monotonic() < 60


async def test_a_once_works_without_leases(world: World) -> None:
    async def holder(_: str) -> str | None:
        return "this process"

    def memory(run: str) -> SessionMemory:
        return SessionMemory(world.store, world.codec, world.clock, "s", run, no_lease, holder)

    r, s = memory("r"), memory("s")
    assert await r.claim(KEY, "x", "f/o") is None and await r.claim(KEY, "x", "f/o") is None
    assert await s.claim(KEY, "x", "f/o") == await r.claim(KEY, "x", "f/p") == Claim("r", "f/o")


# --- checkpoints and symbols ------------------------------------------------------------------------------------------


async def test_the_furthest_checkpoint_of_the_same_flow_and_input_counts(world: World) -> None:
    r, s = await world.run("r"), await world.run("s")

    def at(run: str, position: int, signature: str = "sig", input: str = "in", block: Block = BLOCK) -> Point:
        return Point(signature, input, position, f"phase-{position}", run, f"f/c{position}", block)

    assert await r.furthest("f", "sig", "in") is None and await r.points("f") == []
    for position in (1, 4):
        await r.point("f", at("r", position))
        await r.point("f", at("r", position))
    await s.point("f", at("s", 2))
    await s.point("f", at("s", 9, input="else"))
    await s.point("f", at("s", 8, signature="older"))
    assert await s.furthest("f", "sig", "in") == at("r", 4)
    assert await s.points("f") == [at("r", 4), at("s", 9, input="else"), at("s", 8, signature="older")]
    assert await s.furthest("g", "sig", "in") is None
    again = at("s", 4, block=Block(value="fresh"))
    await s.point("f", again)
    assert await r.furthest("f", "sig", "in") == again


async def test_symbols_of_the_latest_run_count_and_a_leg_counts_once(world: World) -> None:
    r, s = await world.run("r"), await world.run("s")
    await r.keep_symbols({}, "end")
    assert await r.symbols() == {} and await world.contents() == {}
    await r.keep_symbols({"x": (1, 2), "y": None}, "leg 1")
    await s.keep_symbols({"x": "s"}, "leg 1")
    await r.keep_symbols({"x": "again"}, "leg 1")
    assert await r.symbols() == {"x": "s", "y": None}
    await r.keep_symbols({"x": "r"}, "leg 2")
    assert await s.symbols() == {"x": "r", "y": None}


async def test_two_who_keep_symbols_at_once_lose_none(world: World) -> None:
    runs = [await world.run(f"r{n}") for n in range(5)]
    await asyncio.gather(*(run.keep_symbols({f"x{n}": n, "last": n}, "end") for n, run in enumerate(runs)))
    symbols = await runs[0].symbols()
    assert symbols.pop("last") in range(5) and symbols == {f"x{n}": n for n in range(5)}


# --- mail -------------------------------------------------------------------------------------------------------------


def payload_of(event: Event | None) -> object:
    return None if event is None else event.payload


async def test_an_event_that_comes_early_waits_for_one_await(world: World) -> None:
    delivery = await deliver(world.people, "the form", {"n": (1,)}, "d1")
    assert delivery == Delivery("d1", None)
    r, s = await world.run("r"), await world.run("s")
    event = await r.wait("the form", "f/a")
    at = event.at if event is not None else 0
    assert event == await r.wait("the form", "f/a") == Event("d1", {"n": (1,)}, at)
    assert await s.wait("the form", "f/a") is None and await r.wait("the form", "f/a#2") is None
    assert await deliver(world.people, "the form", "other", "d1") == Delivery("d1", ("r", "f/a"))
    assert await r.wait("another", "f/b") is None
    assert "form" not in "".join(await world.contents())


async def test_the_oldest_wait_is_served_first(world: World) -> None:
    runs = {name: await world.run(name) for name in "rst"}
    for run in runs.values():
        assert await run.wait("form", "f/a") is None
    await runs["s"].leave("form")
    await runs["s"].leave("form")
    for id, name in (("d1", "r"), ("d2", "t")):
        assert await deliver(world.people, "form", id, id) == Delivery(id, (name, "f/a"))
    assert [payload_of(await runs[name].wait("form", "f/a")) for name in "rt"] == ["d1", "d2"]
    assert await runs["s"].wait("form", "f/a") is None
    assert payload_of(await runs["r"].wait("form", "f/a")) == "d1"


async def test_who_left_keeps_its_event_unless_it_starts_over(world: World) -> None:
    r = await world.run("r")
    await r.wait("form", "f/a")
    await deliver(world.people, "form", 1, "d1")
    await r.leave("form")
    assert payload_of(await r.wait("form", "f/a")) == 1
    await mailbox.leave(world.people, "form", "r", over=True)
    assert await r.wait("form", "f/a") is None
    await deliver(world.people, "form", 2, "d2")
    assert payload_of(await r.wait("form", "f/a")) == 2
    before = await world.contents()
    await (await world.run("x")).leave("form", over=True)
    assert await world.contents() == before


async def test_an_answer_is_for_one_question_and_counts_once(world: World) -> None:
    r, s = await world.run("r"), await world.run("s")
    with pytest.raises(NotWaiting, match="run s does not wait for 'form'"):
        await answer(world.people, "form", "s", "f/a", "early", "t0")
    await r.wait("form", "f/a")
    await s.wait("form", "f/a")
    for reply in ("yes", "ignored"):
        assert await answer(world.people, "form", "s", "f/a", reply, "t1") == Delivery("t1", ("s", "f/a"))
    with pytest.raises(NotWaiting, match="answered already"):
        await answer(world.people, "form", "s", "f/a", "no", "t2")
    event = await s.wait("form", "f/a")
    assert event is not None and (event.payload, event.said, event.turn) == ("yes", True, "t1")
    assert await r.wait("form", "f/a") is None
    await deliver(world.people, "form", "by mail", "t1")  # an id of a delivery is no turn
    assert payload_of(await r.wait("form", "f/a")) == "by mail"
    with pytest.raises(NotWaiting):
        await answer(world.people, "form", "r", "f/a", "late", "t3")


async def test_of_two_answers_at_once_one_counts(world: World) -> None:
    r = await world.run("r")
    await r.wait("form", "f/a")
    replies = (answer(world.people, "form", "r", "f/a", n, f"t{n}") for n in range(4))
    results = await asyncio.gather(*replies, return_exceptions=True)
    (first,) = [n for n, result in enumerate(results) if isinstance(result, Delivery)]
    assert sum(isinstance(result, NotWaiting) for result in results) == 3
    assert payload_of(await r.wait("form", "f/a")) == first


async def test_events_and_waits_at_once_meet_one_to_one(world: World) -> None:
    runs = [await world.run(f"r{n}") for n in range(5)]
    deliveries = [deliver(world.rows(), "form", n, f"d{n}") for n in (0, 1, 2, 0, 1, 2)]
    await asyncio.gather(*(run.wait("form", "f/a") for run in runs), *deliveries)
    got = [payload_of(await run.wait("form", "f/a")) for run in runs]
    assert sorted(n for n in got if isinstance(n, int)) == [0, 1, 2] and got.count(None) == 2


async def test_who_deliver_at_once_do_not_read_for_each_others_sake(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, reads = type(world.store).read, list[str]()

    async def counted(store: Store, stream: str, start: int = 0) -> list[bytes]:
        reads.append(stream)
        return await read(store, stream, start)

    monkeypatch.setattr(type(world.store), "read", counted)
    sessions = Sessions(world.store, world.codec, world.clock)
    await asyncio.gather(*(deliver(sessions.rows("s"), "form", n, f"d{n}") for n in range(40)))
    assert len(reads) <= 2 * 40


async def test_who_deliver_at_once_through_stores_of_their_own_lose_nothing(tmp_path: Path) -> None:
    """As processes do: they are in nobody's line, so the store refuses those who come late."""
    worlds = [World(FileStore(tmp_path / "state")) for _ in range(4)]
    deliveries = (deliver(world.rows(), "form", n, f"d{n}") for n, world in enumerate(worlds * 8))
    await asyncio.gather(*deliveries)
    run = await worlds[0].run("r")
    got = [payload_of(await run.wait("form", f"f/{n}")) for n in range(33)]
    assert sorted(n for n in got if isinstance(n, int)) == list(range(32)) and got[-1] is None
    for world in worlds:
        await world.store.close()


# --- rates ------------------------------------------------------------------------------------------------------------


async def test_calls_are_counted_as_far_back_as_one_looks(world: World) -> None:
    r, s = await world.run("r"), await world.run("s")
    minute = timedelta(minutes=1)
    assert await r.stamps("api", world.clock.now() - minute) == (0, None)
    first = world.clock.now()
    await r.stamp("api", 2, "f/t")
    world.clock.advance(10)
    await s.stamp("api", 1, "f/t")
    await s.stamp("api", 1, "f/t")
    assert await s.stamps("api", world.clock.now() - minute) == (4, first)
    world.clock.advance(50)
    assert await r.stamps("api", world.clock.now() - minute) == (2, first + timedelta(seconds=10))
    assert await r.stamps("other", first - minute) == (0, None)


async def test_of_many_who_come_at_once_as_many_are_counted_as_there_is_room_for(world: World) -> None:
    runs = [await world.run(f"r{n}") for n in range(5)]
    since = world.clock.now() - timedelta(minutes=1)
    full = await asyncio.gather(*(run.take_room("api", 2, since, "f/t") for run in runs))
    assert full.count(None) == 2
    assert {what for what in full if what is not None} == {(2, world.clock.now())}
    assert await runs[0].stamps("api", since) == (2, world.clock.now())


async def test_the_last_who_arrives_at_a_debounce_survives(world: World) -> None:
    r, s = await world.run("r"), await world.run("s")
    assert not await r.is_last("typing", "r/f/d")
    token = await r.token("typing", "f/d")
    assert await r.is_last("typing", token)
    later = await s.token("typing", "f/d")
    assert not await s.is_last("typing", token) and await r.is_last("typing", later)
    assert await r.token("typing", "f/d") == token and await s.is_last("typing", later)  # found again, not a new one
    assert await r.token("typing", "f/d#2") != token and not await s.is_last("typing", later)
    await s.stamp("typing", 1, "f/t")
    assert await s.is_last("typing", await r.token("typing", "f/d#2"))


# --- parked runs ------------------------------------------------------------------------------------------------------


async def test_parked_runs_are_listed_until_they_are_gone(world: World) -> None:
    r, s = await world.run("r"), await world.run("s")
    for _ in range(2):
        await r.park("f", "f/a", "form")
        await s.park("g", "g/a", "mail")
    assert [(run.run, run.flow, run.path, run.source) for run in await r.parked()] == [
        ("r", "f", "f/a", "form"),
        ("s", "g", "g/a", "mail"),
    ]
    await r.park("f", "f/b", "form")
    assert [(run.run, run.path) for run in await parked_runs(world.people)] == [("s", "g/a"), ("r", "f/b")]
    for _ in range(2):
        await run_gone(world.people, "s")
        await r.gone()
    assert await s.parked() == []
    assert len(await world.store.read(parked_stream("s"))) <= 5


# --- the session as a whole -------------------------------------------------------------------------------------------


async def everything(r: SessionMemory, world: World) -> None:
    """A run that does all there is, each thing once."""
    await r.keep_memo(KEY, [1], "f/m")
    assert await r.claim(KEY, "charge", "f/o") is None or await r.once(KEY) == Done(BLOCK, "r", "f/o")
    await r.finish(KEY, "f/o", BLOCK)
    await r.point("f", Point("sig", "in", 1, "phase", "r", "f/c", BLOCK))
    await r.token("typing", "f/d")
    await r.keep_symbols({"x": 1}, "leg 1")
    await r.wait("form", "f/a")
    await r.park("f", "f/a", "form")
    await deliver(world.people, "form", "hi", "d1")
    assert payload_of(await r.wait("form", "f/a")) == "hi"
    await r.gone()
    await r.keep_symbols({"x": 2}, "leg 2")
    await r.leave("form")


async def test_a_session_is_dropped_whole_and_alone(world: World) -> None:
    for session, run in (("s", "r"), ("s-1", "r1"), ("s:2", "r2")):
        await (await world.run(run, session)).keep_memo(KEY, 1, "f/m")
    await everything(await world.run("r"), world)
    assert len(await world.store.list(session_streams("s"))) == 7
    for _ in range(2):
        await drop_session(world.store, "s")
    assert set(await world.contents()) == {memo_stream("s-1", KEY), memo_stream("s:2", KEY)}
    assert await (await world.run("r")).recall_memo(KEY) is None


async def test_a_run_that_lost_its_lease_writes_nothing(world: World) -> None:
    old = await world.run("r")
    await world.run("r")
    calls: list[Awaitable[object]] = [
        old.keep_memo(KEY, 1, "f/m"),
        old.claim(KEY, "charge", "f/o"),
        old.finish(KEY, "f/o", BLOCK),
        old.point("f", Point("sig", "in", 1, "", "r", "f/c", BLOCK)),
        old.keep_symbols({"x": 1}, "end"),
        old.wait("form", "f/a"),
        old.stamp("api", 1, "f/t"),
        old.token("typing", "f/d"),
        old.park("f", "f/a", "form"),
    ]
    for call in calls:
        with pytest.raises(bb.Fenced):
            await call
    assert await world.contents() == {}


async def test_the_lease_is_asked_for_when_something_is_written() -> None:
    world = World(MemStore())
    asked = 0

    async def lease() -> Lease:
        nonlocal asked
        asked += 1
        return await world.store.acquire(run_stream("r"), f"{asked}", 30) or world.leases["r"]

    r = SessionMemory(world.store, world.codec, world.clock, "s", "r", lease, world.store.holder)
    assert await r.recall_memo(KEY) is None and await r.symbols() == {} and await r.once(KEY) is None
    await r.leave("form")
    assert asked == 0
    await r.keep_memo(KEY, 1, "f/m")
    assert asked == 1


async def test_a_look_costs_one_read() -> None:
    store = MockStore()
    world = World(store)
    r = await world.run("r")
    await everything(r, world)
    looks: list[Callable[[], Awaitable[object]]] = [
        lambda: r.recall_memo(KEY),
        lambda: r.once(KEY),
        lambda: r.claim(KEY, "charge", "f/o"),
        lambda: r.points("f"),
        lambda: r.furthest("f", "sig", "in"),
        r.symbols,
        lambda: r.wait("form", "f/a"),
        lambda: r.is_last("typing", "r/f/d"),
        r.parked,
    ]
    store.clear()
    for count, look in enumerate(looks, 1):
        await look()
        assert (store._reads, store.appends) == (count, 0)


@pytest.mark.parametrize("record", [b"nonsense", b'[1,"gone","r"]', b'[2,"memo","r","f",1,1]'])
async def test_a_damaged_row_is_an_error_with_its_place(world: World, record: bytes) -> None:
    r, stream = await world.run("r"), memo_stream("s", KEY)
    await world.store.append(stream, 0, [record])
    for call in (r.recall_memo(KEY), r.keep_memo(KEY, 1, "f/m")):
        with pytest.raises(bb.CorruptRecord, match=f"record 0 of {stream}"):
            await call
    assert await world.store.read(stream) == [record]


async def test_secrets_are_in_no_row(world: World) -> None:
    bb.redact("hunter22")
    r = await world.run("r")
    await r.claim(KEY, "charge hunter22", "f/o")
    await r.finish(KEY, "f/o", Block((assistant("hunter22"),), "hunter22", None, {"x": "hunter22"}))
    await r.wait("form hunter22", "f/a")
    await deliver(world.people, "form hunter22", "hunter22", "d hunter22")
    assert (await deliver(world.people, "form hunter22", "else", "d hunter22")).to == ("r", "f/a")
    await r.token("hunter22", "f/d")
    await r.park("f", "f/a", "form hunter22")
    for name, records in (await world.contents()).items():
        assert b"hunter22" not in b"".join([name.encode(), *records])


# --- crashes and failures ---------------------------------------------------------------------------------------------


def told(contents: dict[str, list[bytes]]) -> dict[str, list[Row]]:
    """What rows say, without the times and the fences."""
    return {name: [timeless(decode_row(record, name)) for record in records] for name, records in contents.items()}


def timeless(row: Any) -> Row:
    return cast(Row, evolve(row, **{name: 0 for name in ("at", "fence") if hasattr(row, name)}))


async def uncrashed() -> tuple[int, dict[str, list[Row]]]:
    store = MockStore()
    world = World(store)
    await everything(await world.run("r"), world)
    return store.appends, told(await world.contents())


@pytest.mark.parametrize("when", ["before", "after", "during"])
async def test_a_crash_at_any_append_loses_and_doubles_nothing(when: When) -> None:
    appends, expected = await uncrashed()
    assert appends == 12
    for number in range(1, appends + 1):
        store = MockStore()
        world = World(store)
        store.crash_at(number, when)
        with pytest.raises(Crash):
            await everything(await world.run("r"), world)
        store.revive()
        world.leases.clear()
        r = await world.run("r")
        await everything(r, world)
        found = told(await world.contents())
        if number == (3 if when == "before" else 2):  # it had claimed, and does so anew under its new lease
            del found[once_stream("s", KEY)][0]
        # it parks again, as its own record did not tell that it had gone on; and it has gone again
        parked = parked_stream("s")
        assert found.pop(parked)[-2:] == expected[parked] and await r.parked() == []
        assert found == {name: rows for name, rows in expected.items() if name != parked}, number


@pytest.mark.parametrize("after", [False, True])
async def test_a_store_that_fails_for_a_moment_loses_and_doubles_nothing(after: bool) -> None:
    appends, expected = await uncrashed()
    for number in range(1, appends + 1):
        store = MockStore()
        world = World(store)
        store.fail_append(number, after=after, times=1 if after else 3)
        store.fail_read(number, times=3)
        await everything(await world.run("r"), world)
        assert told(await world.contents()) == expected and len(world.clock.slept) == (4 if after else 6)


@pytest.mark.parametrize("error", [bb.StoreError("down"), bb.StoreFull("full")])
async def test_a_store_that_stays_down_is_an_error(error: bb.StoreError) -> None:
    store = MockStore()
    world = World(store)
    r = await world.run("r")
    store.fail_append(1, error, times=99)
    with pytest.raises(type(error)):
        await r.keep_memo(KEY, 1, "f/m")
    store.clear()
    assert await r.keep_memo(KEY, 2, "f/m") == 2


# --- streams that grow long -------------------------------------------------------------------------------------------


async def test_streams_do_not_grow_without_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_rows, "LONG", 60)
    r = await world.run("r")
    minute = timedelta(minutes=1)
    for n in range(250):
        world.clock.advance(1)
        path = f"f/a#{n}"
        await deliver(world.people, "form", n, f"d{n}")
        assert payload_of(await r.wait("form", path)) == n
        count, oldest = await r.stamps("api", world.clock.now() - minute)
        assert count == min(n, 59) and oldest == (world.clock.now() - timedelta(seconds=count) if n else None)
        await r.stamp("api", 1, path)
        await r.keep_symbols({"x": n, f"y{n % 3}": n}, path)
        await r.park("f", path, "form")
    for info in await world.store.list(session_streams("s")):
        assert info.length <= 140, info.name
    assert await r.symbols() == {"x": 249, "y0": 249, "y1": 247, "y2": 248}
    assert [run.path for run in await r.parked()] == ["f/a#249"]
    assert payload_of(await r.wait("form", "f/a#249")) == 249
    assert await deliver(world.people, "form", "again", "d5") == Delivery("d5", None)
    assert await r.wait("form", "f/a#250") is None
    (named,) = [row for row in await mail(world) if isinstance(row, Named)]
    assert named == Named("form")


async def mail(world: World) -> list[Row]:
    return [decode_row(record, "it") for record in await world.store.read(mail_stream("s", "form"))]


async def test_no_event_is_lost_or_doubled_while_a_mailbox_is_rewritten(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_rows, "LONG", 8)
    monkeypatch.setattr("bb.log.mailbox.PAIRS", 4)
    rewrites = 0
    delete = world.store.delete

    async def counted(stream: str, lease: Lease | None = None, *, leave: list[bytes]) -> None:
        nonlocal rewrites
        rewrites += 1
        await delete(stream, lease, leave=leave)

    monkeypatch.setattr(world.store, "delete", counted)
    runs = [await world.run(f"r{n}") for n in range(4)]
    got: list[object] = []

    async def people(who: int) -> None:
        for n in range(25):
            for _ in range(2):  # each delivery comes twice
                await deliver(world.rows(), "form", (who, n), f"{who}-{n}")
            await world.clock.sleep(0.25)

    async def work(run: SessionMemory) -> None:
        for n in range(25):
            while True:
                event = await run.wait("form", f"f/a#{n}")
                if event is not None:
                    break
                await world.clock.sleep(0.25)
            assert await run.wait("form", f"f/a#{n}") == event
            got.append(event.payload)

    await asyncio.wait_for(asyncio.gather(*map(people, range(4)), *map(work, runs)), 120)
    assert sorted(got, key=repr) == sorted(((who, n) for who in range(4) for n in range(25)), key=repr)
    assert rewrites >= 5
    box = Mailbox()
    fold_rows(box, await world.store.read(mail_stream("s", "form")), "it")
    assert not box.queue and not box.waits


async def filled(world: World, count: int) -> None:
    r = await world.run("r")
    for n in range(count):
        await deliver(world.people, "form", n, f"d{n}")
        await r.wait("form", f"f/a#{n}")


@pytest.mark.parametrize("when", ["before", "after", "during"])
async def test_a_crash_while_a_stream_is_rewritten_loses_nothing(when: When, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_rows, "LONG", 100)
    store = MockStore()
    world = World(store)
    store.crash_at(lambda _, records: encode_row(Sealed()) in records, when)
    with pytest.raises(Crash):
        await filled(world, 200)
    store.revive()
    world.leases.clear()
    r = await world.run("r")
    assert (encode_row(Sealed()) in await store.read(mail_stream("s", "form"))) is (when != "before")
    assert await deliver(world.people, "form", "again", "d49") == Delivery("d49", None)  # it was here before the crash
    await deliver(world.people, "form", "new", "new")
    assert [payload_of(await r.wait("form", path)) for path in ("f/a#49", "f/a#50", "f/a#51")] == [49, "new", None]
    assert Sealed() not in await mail(world)


async def test_a_sealed_stream_is_read_but_not_written_until_it_is_replaced(world: World) -> None:
    r, stream = await world.run("r"), mail_stream("s", "form")
    await deliver(world.people, "form", 1, "d1")
    await r.wait("form", "f/a")
    other = await world.store.acquire(stream, "another process", 3600)
    await world.store.append(stream, 3, [encode_row(Sealed())])
    assert payload_of(await r.wait("form", "f/a")) == 1
    late = asyncio.ensure_future(deliver(world.people, "form", 2, "d2"))
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert not late.done() and len(await world.store.read(stream)) == 4 and set(world.clock.slept) == {0.05}
    assert other is not None
    await world.store.release(other)  # it died before it replaced the stream
    assert await late == Delivery("d2", None)
    assert Sealed() not in await mail(world)
    assert payload_of(await r.wait("form", "f/a")) == 1 and payload_of(await r.wait("form", "f/a#2")) == 2


async def test_a_rewriter_that_was_too_slow_changes_nothing() -> None:
    store = MemStore()
    world = World(store)
    stream = mail_stream("s", "form")
    await filled(world, 20)
    slow = await store.acquire(stream, "slow", 0)
    await store.append(stream, 41, [encode_row(Sealed())], slow)
    await deliver(world.people, "form", "new", "new")  # it had to replace the stream first
    with pytest.raises(bb.Fenced):
        await store.delete(stream, slow, leave=[])
    assert payload_of(await (await world.run("r")).wait("form", "f/a#new")) == "new"


async def test_a_row_behind_a_seal_is_written_again_when_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that was replaced may have grown to a length that a slow writer had seen before."""
    store = MemStore()
    world = World(store)
    stream = mail_stream("s", "form")
    waiting = [encode_row(Named("form")), encode_row(Wait("r", "f/a", 1))]
    await store.append(stream, 0, waiting)
    read, reads = store.read, 0

    async def slow(name: str, start: int = 0) -> list[bytes]:
        nonlocal reads
        reads += 1
        records = await read(name, start)
        if reads == 1:  # after it has read, the other rewrites: sealed at the length that was read
            await store.delete(stream, leave=[waiting[1], encode_row(Sealed())])
        if reads == 2:  # it has appended and looks again; the other replaces the stream by what it had read
            await store.delete(stream, leave=waiting)
        return records

    monkeypatch.setattr(store, "read", slow)
    assert await deliver(world.people, "form", 1, "d1") == Delivery("d1", ("r", "f/a"))
    monkeypatch.undo()
    assert payload_of(await (await world.run("r")).wait("form", "f/a")) == 1


async def test_a_failure_to_rewrite_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_rows, "LONG", 100)
    store = MockStore()
    world = World(store)
    store.fail_append(lambda _, records: encode_row(Sealed()) in records, times=5)
    await filled(world, 100)
    assert len(await store.read(mail_stream("s", "form"))) < 150
    assert await store.holder(mail_stream("s", "form")) is None


async def test_who_appends_to_a_long_stream_reads_only_its_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(300):
        await deliver(world.people, "form", n, f"d{n}")
    reads: list[int] = []
    read = world.store.read

    async def counted(stream: str, start: int = 0) -> list[bytes]:
        records = await read(stream, start)
        reads.append(len(records))
        return records

    monkeypatch.setattr(world.store, "read", counted)
    for n in range(300, 600):
        await deliver(world.people, "form", n, f"d{n}")
    assert len(reads) == 600 and max(reads) <= session_rows.LONG + 2
    reads.clear()
    r = await world.run("r")
    assert [payload_of(await r.wait("form", f"f/a#{n}")) for n in range(600)] == list(range(600))
    assert sorted(reads)[-20] <= session_rows.LONG + 2  # but where the stream is rewritten, and at the first look
    assert len([row for row in await mail(world) if isinstance(row, Mark)]) <= 20


async def test_what_an_app_knows_of_a_stream_that_began_anew_does_not_count(world: World) -> None:
    for n in range(100):
        await deliver(world.people, "form", n, f"d{n}")
    await drop_session(world.store, "s")
    others = world.rows()
    for n in range(100, 250):
        await deliver(others, "form", n, f"d{n}")
    await deliver(world.people, "form", "d0 again", "d0")
    r = await world.run("r")
    r.rows = world.people
    assert [payload_of(await r.wait("form", f"f/a#{n}")) for n in range(151)] == [*range(100, 250), "d0 again"]


async def test_a_long_stream_that_is_damaged_stays_an_error_until_it_is_mended() -> None:
    store = MemStore()
    world, stream = World(store), mail_stream("s", "form")
    for n in range(100):
        await deliver(world.people, "form", n, f"d{n}")
    whole = await store.read(stream)
    await store.append(stream, len(whole), [b'[1,"put","bad"'])
    for _ in range(2):
        with pytest.raises(bb.CorruptRecord, match=f"record {len(whole)} of "):
            await deliver(world.people, "form", "new", "new")
    await store.delete(stream, leave=whole)
    assert await deliver(world.people, "form", "new", "new") == Delivery("new", None)


async def test_names_are_kept_once_in_their_stream(world: World) -> None:
    r = await world.run("r")
    await r.stamp("api", 1, "f/t")
    await r.token("api", "f/d")
    records = await world.store.read(rate_stream("s", "api"))
    assert len(records) == 3 and records[0] == encode_row(Named("api"))
