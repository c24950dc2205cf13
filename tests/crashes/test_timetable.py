"""Jobs over one store and several processes, one of which is killed."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import bb
from tests.timetable import until

WORKER = """
import asyncio, sys
from datetime import datetime
import bb

directory, when, told = sys.argv[1:]


@bb.op()
def tell(x: object) -> None:
    with open(told, "a") as file:
        file.write(f"{x}\\n")


def app() -> bb.App:
    app = bb.App(store=bb.FileStore(directory))
    app.register(bb.At(datetime.fromisoformat(when), tell(bb.ref("x"))).next(bb.Respond()).with_id("f").with_params(x=int))
    return app


async def main() -> None:
    async with app():
        print("started", flush=True)
        await asyncio.sleep(60)


asyncio.run(main())
"""


async def test_of_several_processes_each_job_is_started_by_one(tmp_path: Path) -> None:
    told, when = tmp_path / "told", datetime.now(UTC) + timedelta(seconds=4)
    state = str(tmp_path / "state")

    @bb.op()
    def tell(x: object) -> None:
        """Told by the workers alone."""

    app = bb.App(store=bb.FileStore(state))
    app.register(bb.At(when, tell(bb.ref("x"))).next(bb.Respond()).with_id("f").with_params(x=int))
    await asyncio.gather(*(app.run("f", params={"x": x}) for x in range(40)))
    assert len(await app.jobs()) == 40

    async def worker() -> asyncio.subprocess.Process:
        made = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            WORKER,
            state,
            when.isoformat(),
            str(told),
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert made.stdout is not None
        assert await made.stdout.readline() == b"started\n"
        return made

    def count() -> Counter[str]:
        return Counter(told.read_text().split()) if told.exists() else Counter()

    workers = await asyncio.gather(*(worker() for _ in range(3)))
    try:
        await until(lambda: len(count()) > 0, seconds=60)
        workers[0].kill()  # in the middle of it
        workers.append(await worker())  # what the dead one has begun goes on at a start
        await until(lambda: len(count()) == 40, seconds=60)
        assert set(count()) == {str(x) for x in range(40)}
        assert sum(count().values()) <= 41  # at most what was cut off happened again
        assert await app.jobs() == []
    finally:
        for process in workers:
            if process.returncode is None:
                process.kill()
            await process.wait()
        await app.stop()
