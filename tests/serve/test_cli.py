"""The `bb` command, and the doors to serving."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal as signals
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from bb.cli import main
from bb.serve import Service
from tests.crashes.processes import ROOT
from tests.serve.kit import PATHS, Site, body_of
from tests.serve.stage import Stage, app_of, durable

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
    ("options", "named"),
    [
        (["--inspector"], "--inspector"),
        (["--debug"], "--debug"),
        (["--default", "f"], "--default"),
        (["--grace", "5"], "--grace"),
        (["--debug", "--inspector"], "--debug, --inspector"),
    ],
)
def test_what_asgi_was_to_be_told_is_not_swallowed(
    shop: str, options: list[str], named: str, served: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", f"{shop}:service", *options]) == 2 and not served
    told = f"bb: {named} is for a bb.App; {shop}:service is made by asgi(): say it there\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    "options", [("--grace", "nan"), ("--grace", "inf"), ("--grace", "1e300"), ("--port", "65536"), ("--port", "-1")]
)
def test_what_is_no_time_and_no_port_is_said(
    shop: str, options: tuple[str, str], served: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", f"{shop}:app", "=".join(options)]) == 2 and not served
    assert capsys.readouterr().err.startswith(f"bb: {options[0]} ")


EAGER = """
async def begin(turn, chat):
    print("it runs")

app.on_start(bb.Flow().with_agent(bb.Agent("b").on_message(begin)).with_id("begin"))
print("made", flush=True)
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_where_something_else_has_the_port_nothing_starts(tmp_path: Path, host: str) -> None:
    (tmp_path / "shop_of_test.py").write_text(SHOP + EAGER, "utf-8")
    with socket.create_server((host, 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "bb.cli", "serve", "shop_of_test:app", "--host", host, "--port", str(port)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, check=False, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
    assert (done.returncode, done.stdout) == (1, "made\n")
    assert f"bb: cannot listen on {host}:{port}: Address already in use\n" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_host_that_is_none_is_said(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"bb: cannot listen on nowhere\.invalid:0: "):
        main(["serve", f"{shop}:app", "--host", "nowhere.invalid", "--port", "0"])


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


def _free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


async def test_an_app_serves_itself_until_it_is_cancelled() -> None:
    stage, port = Stage(), _free_port()
    app = app_of(durable(stage))
    serving = asyncio.ensure_future(app.serve(port=port, grace=timedelta(seconds=20)))
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
        while not serving.done():
            with contextlib.suppress(httpx2.ConnectError):
                assert (await http.get("/v1/models")).status_code == 200
                break
            await asyncio.sleep(0.05)
        asking = asyncio.ensure_future(http.post(PATHS[0], json=body_of(PATHS[0], "hi")))
        await stage.began.wait()
        serving.cancel()
        await asyncio.wait([serving], timeout=0.2)
        assert not serving.done() and not asking.done()
        stage.may.set()
        assert "half whole" in (await asking).text
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert stage.ended == ["done"]


PROGRAM = """\
import asyncio, sys, bb

async def hello(turn, chat):
    turn.reply("hello")

async def main():
    app = bb.App()
    app.register(bb.Flow().with_agent(bb.Agent("a").on_message(hello)).with_id("f"))
    await app.serve(port=int(sys.argv[1]))

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("ended")
"""


async def test_a_program_that_awaits_its_server_ends_as_programs_do_at_an_interrupt() -> None:
    port = _free_port()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, str(port)), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
        while program.returncode is None:
            with contextlib.suppress(httpx2.ConnectError):
                assert "hello" in (await http.post(PATHS[0], json=body_of(PATHS[0], "hi"))).text
                break
            await asyncio.sleep(0.05)
    program.send_signal(signals.SIGINT)
    out, err = await program.communicate()
    assert program.returncode == 0 and out.endswith(b"ended\n") and b"Traceback" not in err


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
