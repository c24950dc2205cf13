"""The disks under trial."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.trials.kit import Disk, Work, disk_of


@pytest.fixture(params=["memory", "file"])
async def disk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Disk]:
    async with disk_of(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def work() -> Work:
    return Work()
