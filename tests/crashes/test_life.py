"""Processes that end in ordinary ways, fork, or live long."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import bb
from tests.crashes.pipeline import pipeline
from tests.crashes.processes import ROOT, Place, appears, cold


async def interrupted(place: Place, sign: signal.Signals, *, sigterm: bool) -> tuple[int, str]:
    """Send a signal to a process in the midst of a run: its exit code, and what it said."""
    process = cold(place.job("r", hook="holds", sigterm=sigterm))
    await appears(place.home / "reached")
    process.send_signal(sign)
    _, said = await asyncio.to_thread(process.communicate)
    assert [run.status for run in await bb.App(store=place.store).runs()] == ["interrupted"]
    return process.returncode, said


async def resumed(place: Place, right: object) -> None:
    """The run goes on where it was, and only the step that was cut off runs again."""
    app = bb.App(store=place.store)
    outcome = await app.run(pipeline(place.side("r")), "hi", run_id="r")
    assert outcome.answer == right[0]  # type: ignore[index]
    assert "pipeline/fixed" in outcome.replayed and "pipeline/last" not in outcome.replayed
    counts = place.side("r").counts()
    assert counts.pop("last") == 2 and set(counts.values()) == {1}
    await place.no_place_was_saved_twice("r")


async def test_ctrl_c(place: Place, right: object) -> None:
    code, said = await interrupted(place, signal.SIGINT, sigterm=False)

    assert code == -signal.SIGINT
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert "never retrieved" not in said and "was destroyed" not in said and "Exception ignored" not in said
    await resumed(place, right)


async def test_sigterm_that_cancels(place: Place, right: object) -> None:
    code, said = await interrupted(place, signal.SIGTERM, sigterm=True)

    assert code == 1
    assert said.rstrip().endswith("asyncio.exceptions.CancelledError")
    assert "never retrieved" not in said and "was destroyed" not in said and "Exception ignored" not in said
    await resumed(place, right)


async def test_sigterm_that_ends_the_process(place: Place, right: object) -> None:
    assert await interrupted(place, signal.SIGTERM, sigterm=False) == (-signal.SIGTERM, "")
    await resumed(place, right)


PRELUDE = """
import asyncio, os, sys, threading, time
from datetime import timedelta
from pathlib import Path
import bb
home = Path(sys.argv[1])

async def say(turn, chat):
    with (home / "calls").open("a") as file:
        file.write(f"{turn.messages[0].content}\\n")
    while turn.messages[0].content == "wait" and not (home / "go").exists():
        await asyncio.sleep(0.01)
    turn.reply("said")

flow = bb.Flow().with_agent(bb.Agent("say").on_message(say)).with_id("f").durable()
app = bb.App(store=bb.FileStore(home / "store"))

def run(run_id, text="hi"):
    return asyncio.run(app.run(flow, text, run_id=run_id)).answer
"""


def script(home: Path, code: str) -> str:
    """Run a program to its end; gives what it printed. It must say nothing on stderr."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PRELUDE + textwrap.dedent(code), str(home)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


FORKS = {
    "unused": "pass",
    "used": "run('before')",
    "with its threads running": "asyncio.run(app.store.list('')); run('before'); assert threading.active_count() > 1",
}


@pytest.mark.parametrize("before", FORKS.values(), ids=FORKS.keys())
def test_an_app_is_used_in_a_fork(tmp_path: Path, before: str) -> None:
    printed = script(
        tmp_path,
        f"{before}\n"
        + textwrap.dedent("""
        children = []
        for n in range(4):
            pid = os.fork()
            if pid == 0:
                ok = run(f"r-{n}") == "said" and run("shared", "shared") == "said" and run("before") == "said"
                os._exit(0 if ok else 1)
            children.append(pid)
        assert run("shared", "shared") == "said"
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
        assert run("after") == "said"
        print((home / "calls").read_text().split().count("shared"), len(asyncio.run(app.runs())))
        """),
    )
    assert printed == "1 7"


def test_a_fork_in_the_midst_of_a_run_leaves_the_run_to_its_parent(tmp_path: Path) -> None:
    printed = script(
        tmp_path,
        """
        async def main():
            task = asyncio.create_task(app.run(flow, "wait", run_id="r"))
            while not (home / "calls").exists():
                await asyncio.sleep(0.01)
            pid = os.fork()
            if pid == 0:
                asyncio._set_running_loop(None)
                def child():
                    try:
                        asyncio.run(app.run(flow, "wait", run_id="r", wait=timedelta(seconds=0.1)))
                    except bb.RunBusy:
                        (home / "go").touch()
                        return 0 if run("r", "wait") == "said" else 2
                    return 1
                try:
                    os._exit(child())
                finally:
                    os._exit(3)
            assert (await task).answer == "said"
            return await asyncio.to_thread(os.waitpid, pid, 0)

        print(asyncio.run(main())[1], (home / "calls").read_text().split())
        """,
    )
    assert printed == "0 ['wait']"


def test_a_fork_of_a_started_app_starts_anew(tmp_path: Path) -> None:
    printed = script(
        tmp_path,
        """
        app.register(flow)

        async def work(run_id):
            async with app:
                await app.submit("f", "job", run_id=run_id)
                while [run.status for run in await app.runs() if run.run_id == run_id] != ["finished"]:
                    await asyncio.sleep(0.01)

        async def main():
            async with app:
                pid = os.fork()
                if pid == 0:
                    try:
                        asyncio._set_running_loop(None)
                        asyncio.run(work("in-the-child"))
                        os._exit(0)
                    finally:
                        os._exit(1)
                status = (await asyncio.to_thread(os.waitpid, pid, 0))[1]
                await work("in-the-parent")
                return status

        print(asyncio.run(main()), (home / "calls").read_text().split())
        """,
    )
    assert printed == "0 ['job', 'job']"


def test_short_lived_threads_leave_nothing_open(tmp_path: Path) -> None:
    """The threads of the store and of the leases come with the work and go a while after it, so what counts is the end."""
    printed = script(
        tmp_path,
        """
        def files():
            return [os.readlink(link.path) for link in os.scandir("/proc/self/fd") if os.path.lexists(link.path)]

        async def some(thread):
            for n in range(40):
                assert (await app.run(flow, "hi", run_id=f"r-{thread}-{n}")).answer == "said"

        run("first")
        asyncio.run(app.store.list(""))  # now it has every connection it will ever have
        before = files()
        for first in range(0, 50, 5):
            threads = [threading.Thread(target=lambda n=n: asyncio.run(some(n))) for n in range(first, first + 5)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        until = time.monotonic() + 30
        while (threading.active_count() > 1 or len(files()) > len(before)) and time.monotonic() < until:
            time.sleep(0.05)
        assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
        assert len(files()) <= len(before), (before, files())
        print(len((home / "calls").read_text().split()))
        """,
    )
    assert printed == "2001"
