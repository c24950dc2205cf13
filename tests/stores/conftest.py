"""The stores under test."""

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from bb.stores.base import Store
from bb.stores.file import FileStore
from bb.stores.memory import MemStore
from bb.testing.mock_store import MockStore

MAKERS: dict[str, Callable[[Path], Store]] = {
    "memory": lambda _: MemStore(),
    "mock": lambda _: MockStore(),
    "file": lambda directory: FileStore(directory / "state"),
    "fsync": lambda directory: FileStore(directory / "state", fsync=True),
}


@pytest.fixture(params=list(MAKERS))
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    made = MAKERS[request.param](tmp_path)
    yield made
    await made.close()


@pytest.fixture(scope="session")
def dead_owner() -> str:
    """A process of this machine that has ended."""
    code = "from bb.stores.owner import owner; print(owner('x'))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
