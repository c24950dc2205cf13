"""Trials J: runs over stores that fail, are full, locked or read-only, in whatever loop, thread or process."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import bb
from bb.stores import turns
from tests.trials.kit import Disk, Work, contents


async def test_trial_J1_a_full_disk_stops_the_run_and_costs_only_what_was_not_saved(tmp_path: Path, work: Work) -> None:
    store = bb.FileStore(tmp_path / "state")
    big = work.flow("big", "x" * 400_000)
    flow = work.flow("a").next(big).next(work.flow("c")).with_id("job").durable(retries=3)
    app = bb.App(store=store)
    app.register(flow)
    hold = work.hold("big")
    going = asyncio.create_task(app.run("job", "hi", run_id="r"))
    await hold.reached.wait()
    connection: Any = store._writes._con  # type: ignore[attr-defined]
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages + 20}")
    hold.go.set()

    with pytest.raises(bb.StoreFull, match="full"):
        await going
    assert work.calls == ["a", "big"]  # no retry, and nothing after it
    assert [run.status for run in await app.runs()] == ["interrupted"]
    connection.execute("PRAGMA max_page_count = 1000000")

    outcome = await app.run("job", "hi", run_id="r")

    assert outcome.replayed == ("job/a",) and work.calls == ["a", "big", "big", "c"]
    await app.stop()


def test_trial_J2_a_directory_that_cannot_be_written_is_looked_at_and_starts_nothing(tmp_path: Path) -> None:
    state = tmp_path / "state"
    script = """
        import asyncio, os, sys
        import bb

        ran = []

        async def speak(turn, chat):
            ran.append("ran")
            turn.reply("done")

        flow = bb.Flow().with_agent(bb.Agent("a").on_message(speak)).with_id("a").durable()

        async def main(directory, run_id):
            ran.clear()
            app = bb.App(store=bb.FileStore(directory))
            app.register(flow)
            try:
                said = (await app.run("a", "hi", run_id=run_id)).answer
            except bb.StoreError as error:
                said = type(error).__name__ + " write" * ("write" in str(error))
            runs = [(run.run_id, run.status) for run in await app.runs()]
            await app.stop()
            return said, ran, runs

        asyncio.run(main(sys.argv[1] + ".warm", sys.argv[2]))  # imports all it needs, while it may read where that is installed
        if sys.argv[2] == "nobody" and os.getuid() == 0:
            os.setgid(65534); os.setuid(65534)  # modes do not stop root
        print(*asyncio.run(main(sys.argv[1], sys.argv[2])), sep="\\n")
    """

    def process(who: str) -> list[str]:
        command = [sys.executable, "-c", textwrap.dedent(script), str(state), who]
        root = str(Path(bb.__file__).parent.parent)
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=root, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert process("owner") == ["done", "['ran']", "[('owner', 'finished')]"]
    for path in [*state.iterdir(), state]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    for parent in [tmp_path, *list(tmp_path.parents)[:-1]]:
        if parent.stat().st_uid == tmp_path.stat().st_uid:
            parent.chmod(parent.stat().st_mode | 0o055)

    assert process("nobody") == ["StoreError write", "[]", "[('owner', 'finished')]"]


async def test_trial_J13_a_database_that_stays_locked_is_an_error_and_nothing_has_run(
    tmp_path: Path, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_PATIENCE", 0.2)
    app = bb.App(store=bb.FileStore(tmp_path / "state"))
    app.register(work.flow("a").durable(retries=5))
    assert (await app.run("a", "hi", run_id="before")).answer == "a"
    rival = sqlite3.connect(tmp_path / "state" / "cache.db", isolation_level=None)
    rival.execute("BEGIN IMMEDIATE")

    with pytest.raises(bb.StoreError, match="locked"):
        await app.run("a", "hi", run_id="r")

    assert work.count("a") == 1
    rival.execute("ROLLBACK")
    rival.close()
    assert (await app.run("a", "hi", run_id="r")).answer == "a"
    await app.stop()


async def test_trial_J14_the_synchronous_call_inside_a_loop_says_so_and_hangs_nothing(work: Work) -> None:
    flow = work.flow("a")
    said: list[str] = []

    def attempt() -> None:
        try:
            bb.run_sync(flow, "hi")
        except bb.WiringError as error:
            said.append(str(error))

    attempt()
    asyncio.get_running_loop().call_soon(attempt)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert len(said) == 2 and all("await bb.run" in text for text in said) and work.calls == []
    assert (await asyncio.to_thread(bb.run_sync, flow, "hi")).answer == "a"  # where no loop runs it works


def test_trial_J14_the_synchronous_call_is_a_run(work: Work) -> None:
    outcome = bb.run_sync(work.flow("a").next(work.flow("b")).with_id("job").durable(), "hi", params={"x": 1})

    assert outcome.answer == "b" and [message.content for message in outcome.messages] == ["a", "b"]


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_trial_J16_an_app_made_before_any_loop_serves_one_loop_after_another(
    tmp_path: Path, work: Work, kind: str
) -> None:
    store: bb.Store = bb.FileStore(tmp_path / "state") if kind == "file" else bb.MemStore()
    app = bb.App(store=store)
    app.register(bb.All(work.flow("a"), work.flow("b")).next(work.flow("c")).with_id("job").durable())

    first = asyncio.run(app.run("job", "hi", run_id="r"))
    second = asyncio.run(app.run("job", "hi", run_id="r"))
    work.fail("c", 1)
    with pytest.raises(bb.AgentFailed):
        asyncio.run(app.run("job", "hi", run_id="s"))
    third = asyncio.run(app.run("job", "hi", run_id="s"))

    assert second.messages == first.messages and len(second.replayed) == 3
    assert len(third.replayed) == 2 and third.messages == first.messages
    asyncio.run(app.stop())


async def test_trial_J16_two_loops_in_two_threads_at_once(disk: Disk, work: Work) -> None:
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()
    app = disk.app(flow)

    def many(name: str) -> list[str]:
        async def go() -> list[str]:
            outcomes = await asyncio.gather(*(app.run("job", "hi", run_id=f"{name}{n}") for n in range(10)))
            return [outcome.answer for outcome in outcomes]

        return asyncio.run(go())

    x, y = await asyncio.gather(asyncio.to_thread(many, "x"), asyncio.to_thread(many, "y"))

    assert x == y == ["b"] * 10 and len(work.calls) == 40
    assert len(await app.runs()) == 20


async def test_trial_J17_a_flow_that_is_not_durable_opens_no_store(tmp_path: Path, work: Work) -> None:
    app = bb.App(store=bb.FileStore(tmp_path / "state"))

    await app.run(work.flow("a").next(work.flow("b")), "hi", run_id="r")

    assert not (tmp_path / "state").exists()
    assert await contents(app.store) == {}
    await app.stop()


@pytest.mark.parametrize("back", [1, 2, 3])
async def test_trial_A29_a_newest_record_that_cannot_be_read_is_an_error_and_never_the_past(
    tmp_path: Path, work: Work, back: int
) -> None:
    flow = work.flow("a", "a" * 100).next(work.flow("b", "b" * 100)).next(work.flow("c")).with_id("job").durable()
    work.fail("c", 1)
    app = bb.App(store=bb.FileStore(tmp_path))
    with pytest.raises(bb.AgentFailed):
        await app.run(flow, "hi", run_id="r")
    last = await app.store.read("run/r")
    await app.stop()
    with closing(sqlite3.connect(tmp_path / "cache.db")) as link:
        rows = link.execute("SELECT rowid, value FROM Cache WHERE typeof(value) = 'blob' ORDER BY rowid").fetchall()
        for rowid, value in rows:
            if last[-back] in value:
                link.execute("UPDATE Cache SET value = ? WHERE rowid = ?", (value.replace(b'"', b"'", 1), rowid))
        assert link.total_changes == 1
        link.commit()

    again = bb.App(store=bb.FileStore(tmp_path))
    with pytest.raises(bb.CorruptRecord, match=f"record {len(last) - back} of stream 'run/r'"):
        await again.run(flow, "hi", run_id="r")
    assert work.calls == ["a", "b", "c"]
    await again.stop()
