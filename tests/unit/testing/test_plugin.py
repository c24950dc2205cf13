"""The plugin, as a project that depends on bb would use it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

PROJECT = """
import asyncio
import bb
import pytest


async def greet(turn, chat):
    turn.reply("hello " + turn.last.content)


flow = bb.Flow().with_agent(bb.Agent().on_message(greet)).with_id("greet").durable(retries=1)


def test_an_app_over_a_store_that_fails(bb_app, bb_store, bb_clock, bb_recorder):
    async def main():
        bb_store.fail_append(2)
        outcome = await bb_app.run(flow, "you", run_id="r")
        assert outcome.answer == "hello you"

    asyncio.run(main())
    assert bb_clock.slept
    assert bb_recorder.kinds()[-1] == "run.end"
    assert bb_store.appends


def test_fixtures_are_fresh(bb_store, bb_recorder, bb_clock):
    assert bb_store.appends == 0
    assert bb_recorder.events == []
    assert bb_clock.slept == []


def test_the_clock_is_that_of_app_and_store(bb_app, bb_store, bb_clock):
    before = bb_clock.now()

    async def main():
        await bb_app.run(flow, "you", run_id="r")
        return await bb_app.runs()

    info, = asyncio.run(main())
    assert info.started == before
"""


def pytest_in(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[3]
    env = {**os.environ, "PYTHONPATH": str(root), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "bb.testing.plugin", "-q", *args]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_the_fixtures_work_in_another_project(tmp_path: Path) -> None:
    (tmp_path / "test_project.py").write_text(PROJECT)
    done = pytest_in(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_the_fixtures_are_described(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, "--fixtures")
    for name in ("bb_app", "bb_clock", "bb_recorder", "bb_store"):
        assert f"{name} -- " in done.stdout
        described = done.stdout.split(f"{name} -- ")[1].splitlines()[1]
        assert described.strip() and "no docstring" not in described


def test_loading_the_kit_loads_neither_pytest_nor_what_is_not_asked_for() -> None:
    code = (
        "import sys, bb.testing; loaded = {m for m in sys.modules if m.startswith('bb.testing.')};"
        "assert not loaded, loaded; assert 'pytest' not in sys.modules;"
        "from bb.testing import *; assert 'pytest' not in sys.modules; assert callable(crash_everywhere)"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_plugin_loads_no_part_of_the_kit() -> None:
    """Importing the module is importing `bb`; the rest waits until a fixture is used."""
    code = (
        "import sys, bb.testing.plugin;"
        "loaded = {m for m in sys.modules if m.startswith('bb.testing.')};"
        "assert loaded == {'bb.testing.plugin'}, loaded"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_an_installed_bb_brings_its_plugin() -> None:
    mine = [point for point in entry_points(group="pytest11") if point.name == "bb"]
    assert all(point.value == "bb.testing.plugin" for point in mine)
    assert 'bb = "bb.testing.plugin"' in (Path(__file__).parents[3] / "pyproject.toml").read_text()
