"""SIGKILL at any moment: the run goes on with its id, and comes out as if nothing had happened."""

from __future__ import annotations

import asyncio
import os
import random
import time

import pytest

import bb
from bb.log import run_stream
from tests.crashes.pipeline import ALWAYS, SideFile, pipeline
from tests.crashes.processes import Place, Workers, appears, cold, kill
from tests.crashes.worker import Point

KILLS = 200
COLD_KILLS = 10


def seed() -> int:
    """A new one each time; set BB_CRASH_SEED to the one a failure printed to have its moments again."""
    chosen = int(os.environ.get("BB_CRASH_SEED") or random.SystemRandom().randrange(2**32))
    print(f"BB_CRASH_SEED={chosen}")  # noqa: T201 - pytest shows it when the test fails
    return chosen


def check_effects(side: SideFile, kills: int, safe: dict[str, int]) -> None:
    """At least once, at most once more per kill, and not again once the savepoint was there."""
    counts = side.counts()
    assert counts.keys() >= ALWAYS
    assert max(counts.values()) <= 1 + kills
    assert {what: counts[what] for what in safe} == safe
    keys = {(effect.what, effect.key) for effect in side.effects()}
    assert len(keys) == len(counts) == len({key for _, key in keys})  # one key per effect, over all its tries


async def test_killed_at_random_moments(place: Place, workers: Workers, right: object) -> None:
    rng = random.Random(seed())
    assert place.finish(place.job("warm")) == right
    began = time.monotonic()
    assert place.finish(place.job("calm")) == right
    span = 1.25 * (time.monotonic() - began)

    killed = number = 0
    while killed < KILLS:
        number += 1
        run_id, kills, safe = f"r-{number}", 0, dict[str, int]()
        while True:
            job = place.job(run_id)
            pid = workers.fork(job)
            await asyncio.sleep(rng.uniform(0, span))
            kill(pid)
            code = workers.wait(pid)
            if code == 0:
                break
            assert code == -9
            kills += 1
            safe |= (await place.memory(run_id)).safe(place.side(run_id))
        killed += kills
        assert place.said(job) == [right]
        check_effects(place.side(run_id), kills, safe)
        await place.no_place_was_saved_twice(run_id)
    assert {run.status for run in await bb.App(store=place.store).runs()} == {"finished"}


async def test_killed_with_its_interpreter(place: Place, right: object) -> None:
    rng = random.Random(seed())
    kills, safe = 0, dict[str, int]()
    for number in range(COLD_KILLS):
        job = place.job(f"cold-{number // 5}", f"out-{number}")
        process = cold(job)
        await appears(place.home / f"{job.run_id}.side")
        await asyncio.sleep(rng.uniform(0, 0.08))
        process.kill()
        _, said = await asyncio.to_thread(process.communicate)
        assert process.returncode in {-9, 0} and said == ""
        if number % 5 < 4:
            kills += process.returncode == -9
            safe |= (await place.memory(job.run_id)).safe(place.side(job.run_id))
            continue
        assert place.finish(place.job(job.run_id, "last")) == right
        check_effects(place.side(job.run_id), kills + 1, safe)
        await place.no_place_was_saved_twice(job.run_id)
        kills, safe = 0, {}


@pytest.mark.parametrize("point", ["before", "mid", "after"])
async def test_killed_at_each_append(place: Place, workers: Workers, right: object, point: Point) -> None:
    at = 0
    while True:
        at += 1
        job = place.job(f"r-{at}", point=point, at=at)
        if workers.wait(workers.fork(job)) == 0:
            break  # it has no so many appends
        stream, expected, count = place.word(job)
        if stream == run_stream(job.run_id):  # other runs may have kept the tree
            length = len(await place.store.read(stream))
            if point == "after":  # what runs beside it may have been kept as well, before anybody heard of either
                assert length >= expected + count
            else:
                assert length == expected
        safe = (await place.memory(job.run_id)).safe(place.side(job.run_id))
        assert place.finish(place.job(job.run_id, "again")) == right
        check_effects(place.side(job.run_id), 1, safe)
        await place.no_place_was_saved_twice(job.run_id)
    assert at > 20


async def test_killed_after_each_event(place: Place, workers: Workers, right: object) -> None:
    at = 0
    while True:
        at += 1
        job = place.job(f"r-{at}", point="event", at=at)
        if workers.wait(workers.fork(job)) == 0:
            break
        memory = await place.memory(job.run_id)
        assert len(memory.saved) >= at  # an end is told of when its savepoint is there
        assert place.finish(place.job(job.run_id, "again")) == right
        check_effects(place.side(job.run_id), 1, memory.safe(place.side(job.run_id)))
        await place.no_place_was_saved_twice(job.run_id)
    assert at > 10


async def test_a_killed_run_is_listed_as_interrupted_and_its_lease_is_free(
    place: Place, workers: Workers, right: object
) -> None:
    job = place.job("r", hook="holds")
    pid = workers.fork(job)
    await appears(place.home / "reached")
    app = bb.App(store=place.store)
    assert [run.status for run in await app.runs()] == ["running"]
    kill(pid)
    async with asyncio.timeout(2):
        # not yet waited for, it is a zombie, which holds nothing
        while [run.status for run in await app.runs()] != ["interrupted"]:  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.01)
    (place.home / "go").touch()

    began = time.monotonic()
    outcome = await app.run(pipeline(place.side("r")), "hi", run_id="r")

    assert time.monotonic() - began < 2
    assert workers.wait(pid) == -9
    assert outcome.answer == right[0]  # type: ignore[index]
    assert place.side("r").counts()["last"] == 2
    await app.stop()
