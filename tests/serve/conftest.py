"""What the tests of serving share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.kit import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site of one test, not started yet."""
    made = Site(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def hooked(tmp_path: Path) -> Iterator[Site]:
    """A site with webhooks, not started yet."""
    made = Site(tmp_path, "tests.serve.hooked")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site that is served while the tests run."""
    made = Site(tmp_path_factory.mktemp("site"))
    made.start("--inspector")
    yield made
    made.stop()
