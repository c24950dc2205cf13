"""The `bb` command, and the doors to serving."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from bb.cli import main
from bb.serve import Service
from tests.crashes.processes import ROOT
from tests.serve.kit import Site
from tests.serve.stage import app_of, durable, hello

SHOP = """\
import bb

async def hello(turn, chat):
    turn.reply("hello")

app = bb.App()
app.register(bb.Flow().with_agent(bb.Agent("a").on_message(hello)).with_id("f").durable())
service = app.asgi(debug=True)
nested = type("Nested", (), {"app": app})
"""


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Service, str, int]]:
    """What would be served."""
    seen: list[tuple[Service, str, int]] = []

    def serve(service: Service, *, host: str, port: int) -> None:
        seen.append((service, host, port))

    monkeypatch.setattr("bb.serve.server.serve", serve)
    return seen


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the working directory."""
    (tmp_path / "shop_of_test.py").write_text(SHOP, "utf-8")
    (tmp_path / "broken_of_test.py").write_text("import no_such_module\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("shop_of_test", "broken_of_test"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "shop_of_test"


@pytest.mark.parametrize("name", ["app", "nested.app"])
def test_an_app_is_served_as_the_options_say(shop: str, name: str, served: list[Any]) -> None:
    options = ["--host", "0.0.0.0", "--port", "99", "--default", "f", "--grace", "1.5", "--debug"]
    assert main(["serve", f"{shop}:{name}", *options]) == 0
    [(service, host, port)] = served
    assert (host, port) == ("0.0.0.0", 99) and service.grace.total_seconds() == 1.5


@pytest.mark.parametrize(("options", "status"), [([], 404), (["--inspector"], 200)])
async def test_the_inspector_is_served_when_it_is_asked_for(
    shop: str, options: list[str], status: int, served: list[Any]
) -> None:
    assert main(["serve", f"{shop}:app", *options]) == 0
    [(service, _, _)] = served
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(service), base_url="http://localhost") as http:
        assert (await http.get("/runs")).status_code == status


def test_a_service_is_served_as_it_is(shop: str, served: list[Any]) -> None:
    assert main(["serve", f"{shop}:service"]) == 0
    [(service, host, port)] = served
    assert (host, port) == ("127.0.0.1", 8080) and service is sys.modules[shop].service


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("shop_of_test", "module:app"),
        (":app", "module:app"),
        ("no_such_thing:app", "there is no module 'no_such_thing'"),
        ("shop_of_test:nothing", "has no 'nothing'"),
        ("shop_of_test:hello", "is a function"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_line(
    shop: str, place: str, told: str, served: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", place]) == 2 and not served
    out, err = capsys.readouterr()
    assert told in err and err.startswith("bb: ") and err.count("\n") == 1 and not out


def test_an_unknown_default_is_said(shop: str, served: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", f"{shop}:app", "--default", "g"]) == 2
    assert "no flow 'g' is registered" in capsys.readouterr().err


def test_a_fault_of_the_module_itself_is_not_hidden(shop: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        main(["serve", "broken_of_test:app"])


def test_an_app_serves_itself(served: list[Any]) -> None:
    app = app_of(durable(hello))
    app.serve(port=5)
    [(service, host, port)] = served
    assert service.app is app and (host, port) == ("127.0.0.1", 5)


def test_without_the_extra_it_says_what_to_install() -> None:
    program = """
import sys
sys.modules["starlette"] = sys.modules["sse_starlette"] = None
import bb
app = bb.App()
try:
    app.asgi()
except bb.WiringError as error:
    print(error)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", program]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert "bb-flow[serve]" in said and "starlette" in said


UNREADY = """\
import bb

async def fail(turn, chat):
    raise RuntimeError("the database is not there")

app = bb.App(store=bb.FileStore("state"))
app.on_start(bb.Flow().with_agent(bb.Agent("a").on_message(fail)).with_id("boot"))
"""


def test_case_68_a_server_whose_start_fails_never_listens(tmp_path: Path) -> None:
    (tmp_path / "unready.py").write_text(UNREADY, "utf-8")
    command = [sys.executable, "-m", "bb.cli", "serve", "unready:app", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode not in (0, 2) and "the database is not there" in ended.stderr
    assert "running on" not in ended.stderr


@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM"])
async def test_a_server_without_work_ends_at_once(site: Site, signal: str) -> None:
    site.start("--grace", "30")
    site.signal(signal)
    assert await site.ended() in (0, -15)
    assert "Traceback" not in site.log()
