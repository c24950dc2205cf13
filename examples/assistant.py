"""A small assistant behind a port: it remembers, reminds and advises, and goes on where it was after a kill -9.

    python examples/assistant.py              # serves clients of OpenAI and Anthropic on http://127.0.0.1:8080
    python examples/assistant.py --inspector  # and shows its runs at /runs
    python examples/assistant.py --demo       # talk to it, kill it in the middle of an answer, and ask again

Needs `bb-flow[serve]` (and the demo `openai`), but no key: some rules play the model. With OPENAI_API_KEY (and
OPENAI_BASE_URL, OPENAI_MODEL) set, a real one does. Its state is in `.bb`, that of the demo in a folder for the time.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import chdir, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

import attrs

import bb

LOG: Final = Path("assistant.log").absolute()
ADVICE: Final = "Take a walk while it is light, cook something warm, and read until you are tired."


@attrs.frozen
class Way:
    """Where a request goes."""

    way: Literal["remember", "remind", "advise"]


@attrs.frozen
class Reminder:
    """What to be reminded of, and in how many seconds."""

    seconds: float
    text: str


class Rules:
    """Plays the model where there is no key."""

    async def stream(self, request: bb.ModelRequest, /) -> AsyncIterator[bb.Chunk]:
        said = [message.content for message in request.messages if message.role == "user"][-1]
        results = request.messages[-1].results
        if request.schema_name == "Way":
            yield json.dumps({"way": "remember" if "remember" in said else "remind" if "remind" in said else "advise"})
        elif results:
            yield results[0].content
        elif asked := re.search(r"remind me in (\d+) seconds to (.+)", said):
            yield bb.ToolCall.new("remind", {"seconds": int(asked[1]), "text": asked[2]})
        elif request.tools:
            yield "Say: remind me in 600 seconds to open the window."
        else:
            for word in re.findall(r"\S+ ?", ADVICE):
                await asyncio.sleep(0.05)
                yield word


@bb.op(effects=["pure"])
def learn(known: list[str] | None, said: str) -> list[str]:
    """What is known, and what was said just now."""
    return [*(known or ()), re.sub(r"^\W*(please )?remember( that)?\W+", "", said, flags=re.IGNORECASE).rstrip(".")]


@bb.op(effects=["pure"])
def in_words(known: list[str] | None) -> str:
    """What is known, as a sentence."""
    return f"You told me: {'; '.join(known)}." if known else "You have told me nothing about you yet."


async def tell(text: str) -> None:
    """Reach the user: here by a line, elsewhere by a mail."""
    print(f"  told      {text}", flush=True)


def agent(handler: bb.Agent[Any], id: str) -> bb.NamedFlow:
    return bb.Flow().with_agent(handler).with_id(id)


def equip(app: bb.App) -> None:
    """Give an app everything that the assistant does."""
    reminder = bb.Chain([bb.At(bb.ref("due", datetime), bb.Notify(tell))])  # what it is run with is told when it is due
    app.register(reminder.with_id("reminder").with_params(due=datetime))

    async def remind(what: Reminder) -> str:
        due = datetime.now(UTC) + timedelta(seconds=what.seconds)
        # under this run id it is one reminder, and stays at the time it was set to first, also if a crash comes right now
        await app.run("reminder", what.text, params={"due": due}, run_id=bb.idempotency_key())
        return f"I will remind you in {what.seconds:.0f} seconds to {what.text}."

    tool = bb.Tool("remind", "Remind the user of something later", Reminder).on_call(remind)

    @bb.Agent("router").with_schema(Way).selects("remember", "remind", "advise").on_message
    async def route(turn: bb.Turn, chat: bb.ModelChat[Way]) -> None:
        turn.select((await chat.add(turn.last).ask()).value.way)

    @bb.Agent("secretary").with_role("Set a reminder with the tool, and confirm it in a sentence.").on_message
    async def secretary(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.reply(await chat.add(turn.last).with_tools(tool).resolve())

    adviser = bb.Agent("adviser").with_role("Answer in a short paragraph.")  # without a handler it relays its model

    known = bb.ref("known", list)  # a symbol: what one run of a session binds, the next one sees
    remember = bb.Bind("known", learn(known, bb.ref("input", str))).next(bb.Emit("I will remember that."))
    recall = bb.Bind("memory", in_words(known)).next(bb.Emit("{memory}")).next(bb.Respond())
    advise = recall.next(agent(adviser, "write")).with_id("advise")
    ways = bb.Select(remember.with_id("remember"), agent(secretary, "remind"), advise).with_id("do")
    steps = bb.Bind("known", bb.Peek("known")).next(agent(route, "route")).next(ways).next(bb.Respond())
    app.register(steps.with_id("assistant").with_params(input=str).durable(retries=2))

    @bb.Agent("agenda").on_message
    async def agenda(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.reply(f"good night: {sum(job.kind == 'at' for job in await app.jobs())} reminders are set")

    @bb.Agent("doorbell").on_message
    async def ring(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.reply(await remind(bb.Schema(Reminder).parse((turn.payload(bytes) or b"").decode())))

    nightly = bb.Every("0 21 * * *", agent(agenda, "agenda"), bb.Notify(tell))
    hook = bb.Webhook("remind", agent(ring, "ring"), bb.Respond())  # POST /v1/hooks/remind
    app.on_start(bb.Chain([nightly, hook]).with_id("background"))


class Shown:
    """A tracer that prints which parts of an answer ran and which replayed."""

    def event(self, event: bb.Event, /) -> None:
        if event.kind in ("flow.end", "flow.cached") and event.path.startswith("assistant/"):
            print(f"  {'ran' if event.kind == 'flow.end' else 'replayed':8}  {event.path}", flush=True)


def ask(url: str, text: str, run_id: str) -> Iterator[str]:
    """What the assistant says to a text, as it is said."""
    from openai import OpenAI

    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="assistant",
            messages=[{"role": "user", "content": text}],
            stream=True,
            extra_headers={"X-Run-Id": run_id, "X-Session-Id": "me"},
        )
        yield from (chunk.choices[0].delta.content or "" for chunk in stream)


@contextmanager
def served() -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """The assistant in a process of its own; shows in the end what that printed."""
    with (
        LOG.open("w") as log,
        subprocess.Popen([sys.executable, __file__, "--port", "0"], stdout=log, stderr=log) as it,
    ):
        try:
            while not (found := re.search(r"running on (\S+)", LOG.read_text())):
                if it.poll() is not None:
                    sys.exit(f"the server did not start: see {LOG}")
                time.sleep(0.05)
            yield found[1], it
        finally:
            it.terminate()  # it would be waited for without end
    print("".join(line for line in LOG.read_text().splitlines(keepends=True) if line.startswith("  ")))


def demo() -> None:
    """Talk to the assistant, kill it in the middle of an answer, and ask again."""
    now, question = f"{time.time():.0f}", "how do I spend the evening?"
    with served() as (url, server):
        for number, said in enumerate(["remember that I live in Oslo", "remind me in 6 seconds to open the window"]):
            print(f"> {said}\n{''.join(ask(url, said, f'{now}-{number}'))}")
        print(f"> {question}")
        with suppress(Exception):  # as the connection breaks
            for number, piece in enumerate(ask(url, question, now)):
                print(piece, end="", flush=True)
                if number == 6:
                    server.kill()
        print("\nkilled in the middle of it")
    with served() as (url, _):
        print(f"> {question} (again, with the same X-Run-Id)\n{''.join(ask(url, question, now))}")
        for _ in range(200):  # who was asked for the reminder is dead: this process gives it
            time.sleep(0 if "told" in LOG.read_text() else 0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description="A small assistant, served.")
    parser.add_argument("--port", type=int, default=8080, help="where it listens (default: %(default)s)")
    parser.add_argument("--demo", action="store_true", help="show how it goes on after a kill -9")
    parser.add_argument("--inspector", action="store_true", help="show its runs at /runs")
    args = parser.parse_args()
    if args.demo:
        with tempfile.TemporaryDirectory() as folder, chdir(folder):  # nothing is known there from before
            demo()
    else:
        name = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
        model = bb.OpenAIModel(name) if os.environ.get("OPENAI_API_KEY") else Rules()
        app = bb.App(store=bb.FileStore(".bb"), model=model, trace=Shown())
        equip(app)
        if args.inspector:
            print(f"its runs are shown at http://127.0.0.1:{args.port or '(the port below)'}/runs", flush=True)
        with suppress(KeyboardInterrupt):  # which is how it is told to end
            asyncio.run(app.serve(port=args.port, default="assistant", inspector=args.inspector))


if __name__ == "__main__":
    main()
