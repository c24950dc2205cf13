"""What bb logs for operators."""

from pathlib import Path

from structlog.testing import capture_logs

from bb import logs
from bb.redaction import MASK, redact


def test_an_event_has_its_level_and_its_fields() -> None:
    with capture_logs() as entries:
        logs.warning("tracer failed", attempt=2, late=True, where=None, path=Path("a/b"))
        logs.error("store failed")
    assert entries == [
        {"event": "tracer failed", "log_level": "warning", "attempt": 2, "late": True, "where": None, "path": "a/b"},
        {"event": "store failed", "log_level": "error"},
    ]


def test_secrets_are_cut_out_wherever_they_hide() -> None:
    redact("hunter2!")
    with capture_logs() as entries:
        logs.error("no hunter2! here", error=ValueError("key hunter2!"), parts=["a", "hunter2!"])
    assert entries == [
        {"event": f"no {MASK} here", "log_level": "error", "error": f"key {MASK}", "parts": f"['a', '{MASK}']"}
    ]
