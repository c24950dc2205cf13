"""The wheel: what is in it, and that a project which depends on it runs and type-checks."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """\
from datetime import timedelta
from typing import assert_type

import bb
from attrs import frozen


@frozen
class City:
    name: str


async def answer(turn: bb.Turn, chat: bb.ModelChat[City]) -> None:
    reply = await chat.ask()
    assert_type(reply.value, City)


async def main() -> None:
    agent = bb.Agent("guide").with_schema(City).on_message(answer)
    assert_type(agent, bb.Agent[City])
    trip = (bb.Flow().with_agent(agent) >> bb.Respond()).with_id("trip").durable(retries=1, ttl=timedelta(days=1))
    assert_type(trip, bb.DurableFlow)
    app = bb.App(store=bb.FileStore("state"))
    app.register(trip)


if __name__ == "__main__":
    print(bb.__file__)
"""

MISUSE = """\
import bb

bb.Flow().durable()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    [built] = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has the wheel, and what it depends on, but not the checkout."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False, symlinks=os.name != "nt")
    scheme = {"base": str(home), "platbase": str(home)}
    site = Path(sysconfig.get_path("purelib", "venv", scheme))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # a path in a .pth file brings packages, but not the .pth files there: an editable install of bb stays out
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"), "utf-8")
    return Path(sysconfig.get_path("scripts", "venv", scheme)) / ("python.exe" if os.name == "nt" else "python")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project."""
    (tmp_path / "program.py").write_text(PROGRAM, "utf-8")
    (tmp_path / "misuse.py").write_text(MISUSE, "utf-8")
    return tmp_path


def call(project: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in {"MYPYPATH", "PYTHONPATH"}}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names} == {"bb", f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"}
    assert {"bb/py.typed", "bb/text/grammar.lark"} <= set(names)
    sources = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("bb/**/*.py")}
    assert {name for name in names if name.endswith(".py")} == sources
    page = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("bb/serve/inspector/static/*")}
    assert "bb/serve/inspector/static/page.html" in page <= set(names)


def test_a_project_runs_with_the_wheel(python: Path, project: Path) -> None:
    run = call(project, str(python), "-W", "error", "program.py")
    assert run.returncode == 0, run.stderr
    assert Path(run.stdout.strip()).is_relative_to(python.parents[1])


def test_a_project_type_checks_against_the_wheel(python: Path, project: Path) -> None:
    run = call(
        project,
        *(sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--python-executable", str(python)),
        *("--cache-dir", str(project / "cache"), "program.py", "misuse.py"),
    )
    assert run.stdout == 'misuse.py:3: error: "Flow" has no attribute "durable"  [attr-defined]\n', run.stderr
