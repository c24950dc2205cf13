"""Programs in processes of their own, and what they left."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]

PRELUDE = """
import asyncio, os, sqlite3, sys, threading, time
from pathlib import Path
sys.path.insert(0, {root!r})
from bb.errors import Conflict, CorruptRecord, StoreError, StoreFull
from bb.stores.file import FileStore
directory = {directory!r}
store = FileStore(directory)
"""


def start(directory: Path, code: str, *, measured: bool = True) -> subprocess.Popen[str]:
    """Run `code` in another process, with `store` over `directory`; its coverage counts if it may write where that goes."""
    source = PRELUDE.format(root=str(ROOT), directory=str(directory)) + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", source],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if measured or not name.startswith("COVERAGE_")},
    )


def run(directory: Path, code: str, *, measured: bool = True) -> str:
    """Run `code` to its end; it must succeed, and say nothing on stderr. Gives what it printed."""
    process = start(directory, code, measured=measured)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and not err, err
    return out.strip()


class Locked:
    """Another process that holds the lock of the database for some seconds."""

    def __init__(self, directory: Path, seconds: float) -> None:
        self._process = start(
            directory,
            f"""
            link = sqlite3.connect(directory + "/cache.db", isolation_level=None)
            link.execute("BEGIN IMMEDIATE")
            print("locked", flush=True)
            time.sleep({seconds})
            """,
        )

    def __enter__(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "locked\n"

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)
