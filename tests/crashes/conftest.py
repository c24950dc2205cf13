"""What the crash tests share."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import bb
from tests.crashes.pipeline import SideFile, pipeline, told
from tests.crashes.processes import Place, Workers


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    made = Workers()
    yield made
    made.close()


@pytest.fixture
async def place(tmp_path: Path, workers: Workers) -> AsyncIterator[Place]:
    made = Place(tmp_path, workers)
    yield made
    await made.store.close()


@pytest.fixture
async def right(tmp_path_factory: pytest.TempPathFactory) -> object:
    """The outcome of a run that nothing disturbs."""
    flow = pipeline(SideFile(tmp_path_factory.mktemp("calm") / "side"))
    return json.loads(json.dumps(told(await bb.App().run(flow, "hi"))))
