"""A process of its own that runs one of two flows over a directory, and may be killed in an act.

    python -m tests.trials.language_worker DIRECTORY FLOW RUN_ID [KILL]

Each act is a line of the file `acts` in the directory, written before anything else; the process kills itself at act `KILL`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import bb
from bb.flows.refs import ref
from bb.flows.tree import Bind, Emit, Once, Return, Saga, Step
from bb.ops import op


async def main(home: Path, flow: str, run_id: str, kill: str) -> None:
    @op()
    async def act(what: str) -> str:
        with (home / "acts").open("a") as file:
            file.write(f"{what}\n")
        if what == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "bad":
            raise ConnectionError("bad")
        await asyncio.sleep(0.2 if what == "charge" else 0)
        return f"{what} of {run_id}"

    steps = [Step(Bind(name, act(name)), undo=act(f"undo {name}")) for name in ("a", "b", "c")]
    flows = {
        "saga": (Saga(*steps, Step(act("bad"))) >> Emit("end")).with_id("saga").durable(),
        "once": (Once("charge", act("charge"), bind="x") >> Return(ref("x"))).with_id("once").durable(),
    }
    app = bb.App(store=bb.FileStore(home / "store"))
    app.register(*flows.values())
    try:
        outcome = await app.run(flow, run_id=run_id, session_id="s")
        sys.stdout.write(str(outcome.value))
    except bb.BBError as error:
        sys.stdout.write(error.message)
    finally:
        await app.stop()


if __name__ == "__main__":
    directory, name, run, *rest = sys.argv[1:]
    asyncio.run(main(Path(directory), name, run, rest[0] if rest else ""))
