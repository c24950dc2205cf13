"""The names of streams, and times as records hold them. Ids hold no "/", so no id can reach into another's streams."""

from __future__ import annotations

import hashlib
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


JOBS: Final = "job/"


def job_stream(job_id: str) -> str:
    """What is to be started at a time or when called, and when it comes due."""
    return JOBS + job_id


def tree_stream(signature: str) -> str:
    """Where the canonical form behind a signature is kept, once."""
    return f"tree/{signature}"


SESSIONS: Final = "session/"


def session_streams(session_id: str) -> str:
    """What the names of all streams of a session begin with."""
    return f"{SESSIONS}{session_id}/"


def memo_stream(session_id: str, key: str) -> str:
    """Where the value of a memo is kept, once; `key` is 32 hex digits."""
    return f"{session_streams(session_id)}memo/{key}"


def once_stream(session_id: str, key: str) -> str:
    """Who runs the body of a once, and what it came to; `key` is 32 hex digits."""
    return f"{session_streams(session_id)}once/{key}"


def points_stream(session_id: str, flow: str) -> str:
    """The checkpoints that runs of a flow have passed."""
    return f"{session_streams(session_id)}points/{flow}"


def mail_streams(session_id: str) -> str:
    """What the names of the mailboxes of a session begin with."""
    return f"{session_streams(session_id)}mail/"


def mail_stream(session_id: str, source: str) -> str:
    """The events of a source and who waits for them."""
    return f"{mail_streams(session_id)}{_hashed(source)}"


def symbols_stream(session_id: str) -> str:
    """What the runs of a session have bound."""
    return f"{session_streams(session_id)}symbols"


def rate_stream(session_id: str, name: str) -> str:
    """The calls made under the name of a throttle, and the arrivals at a debounce."""
    return f"{session_streams(session_id)}rate/{_hashed(name)}"


def parked_stream(session_id: str) -> str:
    """Which runs of a session are parked."""
    return f"{session_streams(session_id)}runs"


def _hashed(text: str) -> str:
    # free text may hold anything, and names of streams may not
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
