"""Who holds a lease, in words that tell later whether that process is still alive."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_UNKNOWN: Final = "-"


def owner(nonce: str) -> str:
    """This process, as `boot id:pid namespace:pid:start time:nonce`; what the system does not tell is `-`.

    The nonce tells several holders in one process apart. Ask again after a fork: the child is another owner.
    """
    pid = os.getpid()
    return f"{_boot()}:{_namespace()}:{pid}:{_state(pid)[1]}:{nonce}"


def is_dead(owner: str) -> bool:
    """Whether the process that `owner` names is certainly gone; in any doubt False.

    Certain is only what this machine can see since it booted: same boot id, same pid namespace, and the pid is free, a
    zombie or somebody else's by now. Another boot id is doubt, since a cloned machine cannot be told from a rebooted one.
    """
    parts = owner.split(":", 4)
    if len(parts) != 5 or _UNKNOWN in parts[:4] or not parts[2].isdecimal():
        return False
    boot, namespace, pid, start = parts[:4]
    if boot != _boot() or namespace != _namespace():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it exists and belongs to another user
    except (OSError, OverflowError):
        return False
    runs, started = _state(int(pid))
    return not runs or started not in (_UNKNOWN, start)


def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or _UNKNOWN
    except (OSError, ValueError):
        return _UNKNOWN


def _namespace() -> str:
    """The number of the pid namespace, unless /proc shows another one than ours."""
    try:
        if str((_PROC / "self").readlink()) != str(os.getpid()):
            return _UNKNOWN
        return str((_PROC / "self/ns/pid").readlink()).removeprefix("pid:[").removesuffix("]")
    except OSError:
        return _UNKNOWN


def _state(pid: int) -> tuple[bool, str]:
    """Whether a process that exists still runs, and when it started (ticks since boot)."""
    try:
        # the command, before the last bracket, may hold blanks and brackets
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        # a zombie with more than one thread has only lost its main thread
        return fields[0] not in (b"Z", b"X") or int(fields[17]) > 1, fields[19].decode()
    except (OSError, ValueError, IndexError):
        return True, _UNKNOWN
