"""The names of streams, and times as records hold them. Ids hold no "/", so no id can reach into another's streams."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_MILLI: Final = timedelta(milliseconds=1)


def millis(at: datetime) -> int:
    """An aware time as Unix milliseconds."""
    return (at - _EPOCH) // _MILLI


def moment(at: int) -> datetime:
    """Unix milliseconds as a UTC time."""
    return _EPOCH + at * _MILLI


RUNS: Final = "run/"
CONTROLS: Final = "control/"


def run_stream(run_id: str) -> str:
    """The stream of a run's facts; also the name of its lease."""
    return RUNS + run_id


def control_stream(run_id: str) -> str:
    """Where others ask the holder of a run for something."""
    return CONTROLS + run_id


def tree_stream(signature: str) -> str:
    """Where the canonical form behind a signature is kept, once."""
    return f"tree/{signature}"
