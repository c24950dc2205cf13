"""The pytest plugin that comes with bb: fixtures over a store in memory and a clock that never waits.

What the fixtures are made of is imported by them, not here: plugins load in every run of pytest, and before coverage looks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bb.app import App
    from bb.testing.clock import ManualClock
    from bb.testing.mock_store import MockStore
    from bb.trace import Recorder


@pytest.fixture
def bb_recorder() -> Recorder:
    """A tracer that keeps every event of `bb_app`."""
    from bb.trace import Recorder

    return Recorder()


@pytest.fixture
def bb_clock() -> ManualClock:
    """The clock of `bb_app` and `bb_store`: every sleep passes at once; set `auto` to False to advance it by hand."""
    from bb.testing.clock import ManualClock

    return ManualClock(auto=True)


@pytest.fixture
def bb_store(bb_clock: ManualClock) -> MockStore:
    """A store in memory that fails where it is told to."""
    from bb.testing.mock_store import MockStore

    return MockStore(bb_clock)


@pytest.fixture
def bb_app(bb_store: MockStore, bb_clock: ManualClock, bb_recorder: Recorder) -> Iterator[App]:
    """An app over `bb_store`, `bb_clock` and `bb_recorder`; it needs no start and no stop."""
    from bb.app import App

    app = App(store=bb_store, clock=bb_clock, trace=bb_recorder)
    yield app
    app._runner.leases.keeper.close()  # its thread would outlive the test by some seconds
