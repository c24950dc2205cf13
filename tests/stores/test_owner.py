"""Whether the holder of a lease is certainly dead."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bb.stores import owner as module
from bb.stores.owner import is_dead, owner


def test_this_process_is_alive() -> None:
    assert owner("a") != owner("b")
    assert owner("a:b:c").endswith(f":{os.getpid()}:{owner('').split(':')[3]}:a:b:c")
    assert not is_dead(owner("a:b:c"))


def test_a_process_that_ended_is_dead(dead_owner: str) -> None:
    assert is_dead(dead_owner)


def test_a_living_child_is_alive_and_a_zombie_is_dead() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "from bb.stores.owner import owner; print(owner('x'), flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    name = child.stdout.readline().strip()
    assert not is_dead(name)
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(name)
    child.wait()
    child.stdout.close()
    assert is_dead(name)


def test_a_pid_used_again_is_another_process() -> None:
    boot, namespace, pid, start, nonce = owner("x").split(":")
    assert is_dead(":".join([boot, namespace, pid, str(int(start) - 1), nonce]))


@pytest.mark.parametrize("part", [0, 1])
def test_another_boot_or_namespace_is_doubt(part: int, dead_owner: str) -> None:
    parts = dead_owner.split(":")
    for value in ("other", "-", ""):
        parts[part] = value
        assert not is_dead(":".join(parts))


@pytest.mark.parametrize("name", ["", "me", "a:b", "-:-:-:-:x", "b:n:x:1:n", "b:n:-1:1:n", ":::::", "\udc80"])
def test_a_name_of_another_kind_is_doubt(name: str) -> None:
    assert not is_dead(name)


def test_a_pid_that_no_system_has_is_doubt() -> None:
    parts = owner("x").split(":")
    parts[2] = "9" * 30
    assert not is_dead(":".join(parts))


def test_without_proc_everything_is_doubt(monkeypatch: pytest.MonkeyPatch, dead_owner: str) -> None:
    monkeypatch.setattr(module, "_PROC", Path("/nonexistent"))
    assert owner("x") == f"-:-:{os.getpid()}:-:x"
    assert not is_dead(dead_owner)
    assert not is_dead(owner("x"))
