"""What a run remembers: facts, appended to one stream per run, and the fold over them. History is never rewritten."""

from __future__ import annotations

from bb.log.delta import Delta, dump_delta, load_delta
from bb.log.facts import (
    VERSION,
    Attempted,
    Decided,
    Ended,
    EndStatus,
    Entered,
    Entry,
    Fact,
    Failed,
    Forgotten,
    Origin,
    Saved,
    Started,
    Stopped,
    Submitted,
    decode,
    encode,
)
from bb.log.given import Given, dump_given, load_given
from bb.log.history import STUCK_AFTER, History, Scope, Status
from bb.log.streams import CONTROLS, RUNS, control_stream, millis, moment, run_stream, tree_stream

__all__ = [
    "CONTROLS",
    "RUNS",
    "STUCK_AFTER",
    "VERSION",
    "Attempted",
    "Decided",
    "Delta",
    "EndStatus",
    "Ended",
    "Entered",
    "Entry",
    "Fact",
    "Failed",
    "Forgotten",
    "Given",
    "History",
    "Origin",
    "Saved",
    "Scope",
    "Started",
    "Status",
    "Stopped",
    "Submitted",
    "control_stream",
    "decode",
    "dump_delta",
    "dump_given",
    "encode",
    "load_delta",
    "load_given",
    "millis",
    "moment",
    "run_stream",
    "tree_stream",
]
