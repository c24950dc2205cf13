"""The disks that the engine runs on."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conformance.acts import Acts
from tests.trials.kit import Disk, Work, disk_of


@pytest.fixture(params=["memory", "file"])
async def disk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Disk]:
    async with disk_of(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def acts() -> Acts:
    return Acts()
