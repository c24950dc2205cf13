"""The assistant is served as users serve it, and killed as the README kills it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

import bb
from bb.testing.mock_store import Crash, MockStore
from tests.wires.server import Answer, openai, serving

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "assistant.py"
README = (ROOT / "README.md").read_text("utf-8")


def environment(**more: str) -> dict[str, str]:
    """That of this process, with the keys of this machine out of sight."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    path = os.pathsep.join(filter(None, [str(ROOT), clean.get("PYTHONPATH")]))
    return clean | {"PYTHONPATH": path} | more


class Assistant:
    """A served assistant, whose state is in a folder."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        self._env = env
        self._log = folder / "log"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-W", "error", str(SCRIPT), "--port", "0"]
        with self._log.open("a") as log:
            at = log.tell()
            self._process = subprocess.Popen(
                command, cwd=self.folder, env=environment(**self._env), stdout=log, stderr=log
            )
        for _ in range(600):
            if found := re.search(r"running on (http://\S+)", self.log()[at:]):
                self.url = found[1]
                return
            assert self._process.poll() is None, self.log()
            time.sleep(0.05)
        raise AssertionError(f"it does not start: {self.log()}")

    def log(self) -> str:
        return self._log.read_text()

    def said(self, text: str) -> None:
        """Wait until it has said something."""
        for _ in range(600):
            if text in self.log():
                return
            time.sleep(0.05)
        raise AssertionError(f"it never said {text!r}: {self.log()}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)

    def ask(self, text: str, run_id: str = "", session: str = "me") -> str:
        headers = {"X-Session-Id": session, **({"X-Run-Id": run_id} if run_id else {})}
        body = {"model": "assistant", "messages": [{"role": "user", "content": text}]}
        answer = httpx2.post(f"{self.url}/v1/chat/completions", json=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])

    def ring(self, body: str) -> httpx2.Response:
        return httpx2.post(f"{self.url}/v1/hooks/remind", content=body.encode(), timeout=60)


@pytest.fixture
def assistant(tmp_path: Path) -> Iterator[Assistant]:
    made = Assistant(tmp_path)
    yield made
    made.stop()


def test_it_remembers_in_each_session_what_it_was_told_there(assistant: Assistant) -> None:
    assert assistant.ask("Please remember that I like tea.") == "I will remember that."
    assert assistant.ask("remember my cat") == "I will remember that."
    assert assistant.ask("and now?").startswith("You told me: I like tea; my cat.\n\nTake a walk")
    assert assistant.ask("and now?", session="you").startswith("You have told me nothing about you yet.\n\nTake")
    assistant.kill()
    assistant.start()
    assert assistant.ask("and now?").startswith("You told me: I like tea; my cat.")


def test_reminders_survive_whoever_was_asked_for_them(assistant: Assistant) -> None:
    assert assistant.ask("remind me in 5 seconds to open the window") == (
        "I will remind you in 5 seconds to open the window."
    )
    answer = assistant.ring('{"seconds": 5, "text": "feed the cat"}')
    assert (answer.status_code, answer.text) == (200, "I will remind you in 5 seconds to feed the cat.")
    assert assistant.ask("remind me of something") == "Say: remind me in 600 seconds to open the window."
    assistant.kill()
    assistant.start()
    assistant.said("told      open the window")
    assistant.said("told      feed the cat")
    time.sleep(0.2)
    assert assistant.log().count("told ") == 2
    assert assistant.ring("what?").status_code == 500


async def test_a_crash_between_a_reminder_and_the_answer_of_its_tool_sets_it_once() -> None:
    spec = importlib.util.spec_from_file_location("assistant", SCRIPT)
    assert spec is not None and spec.loader is not None
    assistant = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(assistant)
    store = MockStore()

    def made() -> bb.App:
        app = bb.App(store=store, model=assistant.Rules())
        assistant.equip(app)
        return app

    async def asked(app: bb.App) -> str | None:
        said = "remind me in 600 seconds to open the window"
        return (await app.run("assistant", said, run_id="r", session_id="me")).answer

    def set_just_now(stream: str, _: object) -> bool:
        return stream == "run/r" and any(one.stream.startswith("job/") for one in store.appended)

    store.crash_at(set_just_now)
    with pytest.raises((Crash, bb.BBError)):
        await asked(made())
    assert store.crashed
    store.revive()
    app = made()
    first = [(job.id, job.next) for job in await app.jobs()]

    assert await asked(app) == "I will remind you in 600 seconds to open the window."
    assert [(job.id, job.next) for job in await app.jobs()] == first
    assert len(first) == 1


async def test_with_a_key_a_model_decides_and_speaks(tmp_path: Path) -> None:
    route = Answer(openai({"content": json.dumps({"way": "advise"})}))
    async with serving(route, Answer(openai({"content": "Go "}, {"content": "out."}))) as server:
        env = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": server.url, "OPENAI_MODEL": "some-model"}
        assistant = await asyncio.to_thread(lambda: Assistant(tmp_path, **env))
        try:
            said = await asyncio.to_thread(assistant.ask, "what do I do?")
        finally:
            await asyncio.to_thread(assistant.stop)
        assert said == "You have told me nothing about you yet.\n\nGo out."
        assert [exchange.body["model"] for exchange in server.requests] == ["some-model"] * 2


# --- the README -------------------------------------------------------------------------------------------------------


def shown(command: str) -> str:
    """What the README shows below a command."""
    _, _, rest = README.partition(f"$ {command}\n")
    assert rest, f"the README has no {command}"
    return re.split(r"^(?:\$ |```)", rest, maxsplit=1, flags=re.MULTILINE)[0]


def test_what_the_readme_sends_with_curl_is_answered_as_it_shows(assistant: Assistant) -> None:
    commands = re.findall(r"^\$ (curl .*)", README, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        curl, silent, url, *options = shlex.split(command)
        assert (curl, silent) == ("curl", "-s")
        given: dict[str, list[str]] = {"-H": [], "-d": []}
        for name, value in zip(options[::2], options[1::2], strict=True):
            given[name].append(value)
        headers: Any = dict(header.split(": ") for header in given["-H"])
        answer = httpx2.post(
            url.replace("http://127.0.0.1:8080", assistant.url), content=given["-d"][0].encode(), headers=headers
        )
        pattern = re.escape(shown(command).rstrip("\n")).replace("…", ".*")
        assert re.fullmatch(pattern, answer.text), answer.text


def test_the_client_in_the_readme_gets_the_same_answer_again(assistant: Assistant) -> None:
    (code,) = re.findall(r"^```python\n(import openai\n.*?)^```", README, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    assert [names["ask"]("remember my cat", "r-1", assistant.url) for _ in range(2)] == ["I will remember that."] * 2
    assert assistant.ask("and?").startswith("You told me: my cat.\n\n")


def looked_at(url: str) -> httpx2.Response:
    """What is at an address, as soon as somebody listens there."""
    for _ in range(600):
        with suppress(httpx2.ConnectError):
            return httpx2.get(url, timeout=60)
        time.sleep(0.05)
    raise AssertionError(f"nobody listens at {url}")


def test_the_readme_shows_where_its_runs_are_shown(tmp_path: Path) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-W", "error", str(SCRIPT), "--inspector", "--port", str(port)]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = process.stdout.readline()
            page = looked_at(told.split()[-1])
        finally:
            process.terminate()
    assert told.replace(str(port), "8080") == shown(".venv/bin/python examples/assistant.py --inspector")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")


def test_the_demo_in_the_readme_is_real(tmp_path: Path) -> None:
    (tmp_path / ".bb").write_text("what the reader did before")  # a store could not be here
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT), "--demo"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    expected, real = (
        [piece.strip() for piece in re.split(r"(killed in the middle of it)", text)]
        for text in (shown(".venv/bin/python examples/assistant.py --demo"), done.stdout)
    )
    # how much was heard before the kill, and when the reminder came, are not the same each time
    assert expected[0].startswith(real[0][:-20]) or real[0].startswith(expected[0][:-20])
    assert sorted(real[2].splitlines()) == sorted(expected[2].splitlines())


def test_the_demo_ends_when_nobody_reads_it_any_more(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(SCRIPT), "--demo"]
    demo = subprocess.Popen(
        command, cwd=tmp_path, env=environment(PYTHONUNBUFFERED="1"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert demo.stdout is not None
    try:
        assert demo.stdout.readline().startswith(b"> remember")
        demo.stdout.close()  # as `head -1` does
        assert demo.wait(60) != 0  # it waits for its server, so that one has ended too
    finally:
        demo.kill()
        demo.wait()
