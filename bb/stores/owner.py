"""Who holds a lease, in words that tell later whether that process is still alive."""

from __future__ import annotations

import os

_UNKNOWN = "-"


def owner(nonce: str) -> str:
    """This process, as `boot id:pid namespace:pid:start time:nonce`; what the system does not tell is `-`.

    The nonce tells several holders in one process apart. Ask again after a fork: the child is another owner.
    """
    pid = os.getpid()
    _, start = _state(pid)
    return f"{_boot()}:{_namespace()}:{pid}:{start}:{nonce}"


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
    except (OSError, OverflowError):
        pass  # it exists and belongs to another user
    alive, started = _state(int(pid))
    return not alive or started not in (_UNKNOWN, start)


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip() or _UNKNOWN
    except (OSError, ValueError):
        return _UNKNOWN


def _namespace() -> str:
    """The number of the pid namespace, unless /proc shows another one than ours."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return _UNKNOWN
        return os.readlink("/proc/self/ns/pid").removeprefix("pid:[").removesuffix("]")
    except OSError:
        return _UNKNOWN


def _state(pid: int) -> tuple[bool, str]:
    """Whether a process that exists still runs, and when it started (ticks since boot)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the command before it may hold blanks and brackets
        # A zombie with more than one thread has only lost its main thread.
        return fields[0] not in (b"Z", b"X") or int(fields[17]) > 1, fields[19].decode()
    except (OSError, ValueError, IndexError):
        return True, _UNKNOWN
