"""A conversation in three spellings, held as users hold it: a process per turn, each of them killed and started again."""

import importlib.util
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import bb

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "onboarding.py"
STATE = ".bb-onboarding"

NAME, MAIL = "Welcome! What is your name?\n", "Hello Ann. What is your e-mail address?\n"
AGAIN = "That does not look like an e-mail address. What is it?\n"
PLAN = "Which plan: basic for 9 or pro for 29 a month?\n"
DONE = "You are on the pro plan, Ann. We call you on Monday at 9.\n"
FULL = "You are not signed up: op calendar.book failed: Fatal: the calendar is full\n"


def start(where: Path, *args: str, **streams: Any) -> "subprocess.Popen[str]":
    """The example as a process of its own in a folder."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(SCRIPT), *args],
        cwd=where,
        env=os.environ | {"PYTHONPATH": path},
        text=True,
        **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams,
    )


def onboarding(where: Path, *args: str, typed: str = "") -> "subprocess.CompletedProcess[str]":
    """Run the example to its end, with these lines typed."""
    with start(where, *args) as process:
        out, err = process.communicate(typed, timeout=60)
    return subprocess.CompletedProcess(args, process.returncode, out, err)


def said(where: Path, *args: str, typed: str = "") -> str:
    """What the example says, when nothing goes wrong."""
    done = onboarding(where, *args, typed=typed)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def rows(where: Path, service: str) -> list[dict[str, Any]]:
    """What a service has on record."""
    path = where / STATE / f"{service}.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def effects(where: Path) -> list[str]:
    """What has been done in the world, each as often as it counts."""
    return [row["op"] for service in ("outbox", "bank", "calendar", "accounts") for row in rows(where, service)]


def locks(where: Path) -> list[str]:
    return [path.name for path in (where / STATE / "locks").iterdir()]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("onboarding", SCRIPT)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "onboarding", loaded)
    spec.loader.exec_module(loaded)
    return loaded


# --- one tree ---------------------------------------------------------------------------------------------------------


def test_the_spellings_are_one_tree(module: ModuleType) -> None:
    text = bb.text.parse(module.TEXT.read_text("utf-8"))["onboarding"]
    wire = bb.wire.from_wire(json.loads(json.dumps(bb.wire.to_wire(module.FLOW))))
    assert text == wire == module.FLOW
    assert bb.signature(text) == bb.signature(wire) == bb.signature(module.FLOW)
    assert bb.check(module.FLOW) == ()


@pytest.mark.parametrize("spelling", ["python", "text"])
def test_it_shows_its_spellings(tmp_path: Path, module: ModuleType, spelling: str) -> None:
    shown = said(tmp_path, "--show", "--spelling", spelling)
    text, wire = shown.split("\n{\n")
    assert bb.text.parse(text)["onboarding"] == bb.wire.from_wire(json.loads("{" + wire)) == module.FLOW
    assert list(tmp_path.iterdir()) == []


def test_who_reads_only_the_beginning_gets_no_traceback(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed, start(tmp_path, "--show", stdout=closed) as process:
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, "")


# --- a process per turn -----------------------------------------------------------------------------------------------


def test_a_conversation_takes_a_process_per_turn_in_whichever_spelling(tmp_path: Path) -> None:
    assert said(tmp_path, "--spelling", "text") == NAME
    assert said(tmp_path, "--reply", "Ann") == MAIL
    assert said(tmp_path, "--reply", "ann at home", "--spelling", "text") == AGAIN
    assert said(tmp_path, "--reply", "ann@example.org") == PLAN
    assert said(tmp_path, "--reply", "pro", "--yes", "--spelling", "text") == DONE

    assert effects(tmp_path) == ["mail.welcome", "bank.charge", "calendar.book", "accounts.open"]
    assert rows(tmp_path, "outbox")[0]["to"] == "ann@example.org"
    assert rows(tmp_path, "bank")[0]["amount"] == 29
    assert locks(tmp_path) == []


def test_whoever_is_killed_while_waiting_is_asked_the_same_again(tmp_path: Path) -> None:
    typed: list[str] = []
    for reply, question in [("Ann", NAME), ("nobody", MAIL), ("ann@example.org", AGAIN), ("pro", PLAN)]:
        with start(tmp_path, "--yes") as process:  # it asks, and dies waiting for the reply
            assert process.stdin is not None and process.stdout is not None
            assert process.stdout.readline() == question
            process.kill()
            assert process.wait(60) == -signal.SIGKILL
        with start(tmp_path, "--yes") as process:  # it asks again, hears the reply, and dies waiting for the next one
            assert process.stdin is not None and process.stdout is not None
            assert process.stdout.readline() == question
            process.stdin.write(f"{reply}\n")
            process.stdin.flush()
            typed.append(process.stdout.readline())
            process.kill()
            process.wait(60)
    assert typed == [MAIL, AGAIN, PLAN, DONE]
    requests = Counter(row["op"] for row in rows(tmp_path, "requests"))
    assert set(requests.values()) == {1}
    assert effects(tmp_path) == ["mail.welcome", "bank.charge", "calendar.book", "accounts.open"]


def test_all_of_it_may_be_typed_into_one_process(tmp_path: Path) -> None:
    assert said(tmp_path, "--yes", typed="Ann\nann@example.org\npro\n") == NAME + MAIL + PLAN + DONE


def test_sessions_do_not_know_each_other(tmp_path: Path) -> None:
    said(tmp_path, "--session", "ann")
    said(tmp_path, "--session", "bo")
    assert said(tmp_path, "--session", "ann", "--reply", "Ann") == MAIL
    assert said(tmp_path, "--session", "bo", "--reply", "Bo") == MAIL.replace("Ann", "Bo")


# --- killed inside an op ----------------------------------------------------------------------------------------------

PATHS = {  # what is said by whom, up to the op
    "mail.welcome": ["Ann", "ann@example.org"],
    "plans.prices": ["Ann", "ann@example.org"],
    "lock.take": ["Ann", "ann@example.org", "pro"],
    "bank.charge": ["Ann", "ann@example.org", "pro"],
    "calendar.book": ["Ann", "ann@example.org", "pro"],
    "accounts.open": ["Ann", "ann@example.org", "pro"],
    "lock.release": ["Ann", "ann@example.org", "pro"],
}


@pytest.mark.parametrize("same_reply", [True, False], ids=["the same reply", "going on"])
@pytest.mark.parametrize("op", PATHS)
def test_whoever_is_killed_in_an_op_goes_on_in_it(tmp_path: Path, op: str, same_reply: bool) -> None:
    *before, last = PATHS[op]
    said(tmp_path)
    for reply in before:
        said(tmp_path, "--reply", reply)
    for _ in range(2):
        killed = onboarding(tmp_path, "--reply", last, "--yes", "--crash-in", op)
        assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "")
        assert killed.stderr == f"killed in {op}: run it again without --crash-in\n"

    # the charge was agreed to already
    agreed = [] if op in ("bank.charge", "calendar.book", "accounts.open", "lock.release") else ["--yes"]
    now = said(tmp_path, *(["--reply", last] if same_reply else []), *agreed)
    assert now == (DONE if last == "pro" else PLAN)
    if last != "pro":
        assert said(tmp_path, "--reply", "pro", "--yes") == DONE

    requests = rows(tmp_path, "requests")
    asked = Counter(row["op"] for row in requests)
    assert {name for name, count in asked.items() if count > 1} == ({op} & set(asked))
    assert asked[op] == (3 if op in asked else 0)
    assert all(len({row.get("key") for row in requests if row["op"] == name}) == 1 for name in asked)
    assert effects(tmp_path) == ["mail.welcome", "bank.charge", "calendar.book", "accounts.open"]
    assert locks(tmp_path) == []


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_booking_that_fails_gives_the_charge_back(tmp_path: Path) -> None:
    typed = "Ann\nann@example.org\npro\n"
    assert said(tmp_path, "--yes", "--fail-booking", typed=typed) == NAME + MAIL + PLAN + FULL
    charged, refunded = rows(tmp_path, "bank")
    assert (charged["op"], refunded["op"]) == ("bank.charge", "bank.refund")
    assert charged["key"].startswith(refunded["receipt"])
    assert effects(tmp_path) == ["mail.welcome", "bank.charge", "bank.refund"]
    assert locks(tmp_path) == []

    # the next conversation sends no second mail and reads no prices, and this time all is well
    assert said(tmp_path, "--yes", typed=typed) == NAME + MAIL + PLAN + DONE
    charge = ["bank.charge", "bank.refund", "bank.charge"]
    assert effects(tmp_path) == ["mail.welcome", *charge, "calendar.book", "accounts.open"]
    assert Counter(row["op"] for row in rows(tmp_path, "requests"))["plans.prices"] == 1


@pytest.mark.parametrize("op", ["bank.refund", "lock.release"])
def test_a_cleanup_that_is_killed_is_finished(tmp_path: Path, op: str) -> None:
    killed = onboarding(tmp_path, "--yes", "--fail-booking", "--crash-in", op, typed="Ann\nann@example.org\npro\n")
    assert killed.returncode == -signal.SIGKILL
    assert said(tmp_path) == FULL  # the calendar has room now, but what is being undone is not tried again
    assert effects(tmp_path) == ["mail.welcome", "bank.charge", "bank.refund"]
    assert locks(tmp_path) == []


async def test_a_last_step_that_fails_takes_back_the_booking_and_then_the_charge(
    tmp_path: Path, module: ModuleType
) -> None:
    (tmp_path / STATE).mkdir()
    module.WORLD.set(module.World(tmp_path / STATE))
    app = bb.App(ops=module.OPS, policy=bb.Policy(deny=["accounts.open"]))
    session = app.session(module.FLOW, "me")
    await session.start()
    prompts = [(await session.send(reply)).prompt for reply in ("Ann", "ann@example.org", "pro")]
    assert prompts[-1] == "You are not signed up: op accounts.open was denied: the policy denies accounts.open"
    done = [row["op"] for row in rows(tmp_path, "requests")][2:]
    assert done == ["bank.charge", "calendar.book", "calendar.cancel", "bank.refund"]
    assert locks(tmp_path) == []


def test_who_is_signed_up_is_not_asked_again(tmp_path: Path) -> None:
    said(tmp_path, "--yes", typed="Ann\nann@example.org\npro\n")
    before = rows(tmp_path, "requests")
    assert said(tmp_path) == DONE
    assert rows(tmp_path, "requests") == before


def test_a_reply_that_is_no_answer_is_asked_for_again(tmp_path: Path) -> None:
    done = onboarding(tmp_path, "--yes", typed="Ann\nhome\nann@home\nann@example.org\ngold\npro\n")
    assert (done.returncode, done.stdout) == (0, NAME + MAIL + AGAIN + AGAIN + PLAN + PLAN + DONE)
    assert done.stderr == (
        "onboarding.py: that is no e-mail address either\nonboarding.py: there are two plans, basic and pro\n"
    )
    assert effects(tmp_path) == ["mail.welcome", "bank.charge", "calendar.book", "accounts.open"]


def test_somebody_else_who_has_the_lock_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / STATE / "locks").mkdir(parents=True)
    (tmp_path / STATE / "locks" / "ann@example.org").write_text("somebody")
    out = said(tmp_path, "--yes", typed="Ann\nann@example.org\npro\n")
    assert out.endswith("op lock.take failed: RuntimeError: somebody else signs ann@example.org up\n")
    assert effects(tmp_path) == ["mail.welcome"]
    assert locks(tmp_path) == ["ann@example.org"]


def test_without_a_yes_nothing_is_charged(tmp_path: Path) -> None:
    out = said(tmp_path, typed="Ann\nann@example.org\npro\n")
    assert out.endswith("You are not signed up: op bank.charge was denied: there is no terminal to ask at\n")
    assert effects(tmp_path) == ["mail.welcome"]
    assert locks(tmp_path) == []


@pytest.mark.parametrize(
    ("answer", "end"), [("yes", DONE), ("no", "bank.charge was denied: refused at the terminal\n")]
)
def test_whoever_sits_at_a_terminal_is_asked(tmp_path: Path, answer: str, end: str) -> None:
    said(tmp_path, typed="Ann\nann@example.org\n")
    person, terminal = pty.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
    with start(tmp_path, "--reply", "pro", **streams):
        os.close(terminal)
        seen = ""
        while "yes or no: " not in seen:
            seen += os.read(person, 4096).decode()
        os.write(person, f"{answer}\n".encode())
        try:
            while more := os.read(person, 4096):
                seen += more.decode()
        except OSError:  # how Linux says that nobody has the terminal open any more
            pass
    os.close(person)
    assert "bank.charge (high risk, money)\r\n" in seen
    assert "price: 29\r\n" in seen
    assert seen.replace("\r\n", "\n").endswith(end)


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--reply", "Ann"], 1, "waits for no reply in session me: no conversation was started; start it by"),
        (["--session", "a/b"], 1, "'a/b' is no session id"),
        (["--crash-in", "nothing"], 2, "invalid choice: 'nothing'"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path: Path, args: list[str], code: int, says: str) -> None:
    done = onboarding(tmp_path, *args)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


# --- the README -------------------------------------------------------------------------------------------------------


def test_the_conversation_in_the_readme_is_real(tmp_path: Path) -> None:
    found = re.search(
        r"^\$ \S+ examples/onboarding\.py.*?(?=^```)", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    real = ""
    for command in re.findall(r"^\$ .*", found[0], re.MULTILINE):
        python, script, *args = shlex.split(command.removesuffix(" </dev/null"))[1:]
        assert (python, script) == (".venv/bin/python", "examples/onboarding.py")
        done = onboarding(tmp_path, *args)
        real += f"{command}\n{done.stderr}{done.stdout}{'Killed' * (done.returncode < 0)}"
        real += "\n" * (done.returncode < 0)
    assert real == found[0]
