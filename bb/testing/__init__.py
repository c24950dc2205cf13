"""What tests of flows need. Nothing here is loaded before it is asked for, and nothing but the plugin needs pytest."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bb.testing.clock import ManualClock
    from bb.testing.crash import crash_everywhere
    from bb.testing.effects import Effects
    from bb.testing.mock_store import Crash, MockStore
    from bb.testing.race import race_everywhere
    from bb.testing.report import CrashReport, NotCrashSafe
    from bb.testing.scripted_model import ScriptedModel
    from bb.trace import Recorder

_HOME = {
    "Crash": "bb.testing.mock_store",
    "CrashReport": "bb.testing.report",
    "Effects": "bb.testing.effects",
    "ManualClock": "bb.testing.clock",
    "MockStore": "bb.testing.mock_store",
    "NotCrashSafe": "bb.testing.report",
    "Recorder": "bb.trace",
    "ScriptedModel": "bb.testing.scripted_model",
    "crash_everywhere": "bb.testing.crash",
    "race_everywhere": "bb.testing.race",
}


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'bb.testing' has no attribute {name!r}")


__all__ = [
    "Crash",
    "CrashReport",
    "Effects",
    "ManualClock",
    "MockStore",
    "NotCrashSafe",
    "Recorder",
    "ScriptedModel",
    "crash_everywhere",
    "race_everywhere",
]
