"""Trials Q over processes that really die: sagas and onces. What needs no process is in the conformance tests."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def started(home: Path, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.trials.language_worker", str(home), *args]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> str:
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return out.strip()


def acts(home: Path) -> list[str]:
    return (home / "acts").read_text().splitlines()


@pytest.mark.parametrize("kill", ["undo c", "undo b", "undo a"])
def test_trial_Q4_killed_in_any_compensation_it_goes_on_compensating(tmp_path: Path, kill: str) -> None:
    """Each compensation runs once, but for the one that was cut off: at least once is what is promised of it."""
    first = started(tmp_path, "saga", "r", kill)
    first.communicate(timeout=60)
    assert first.returncode == -signal.SIGKILL

    assert "bad" in said(started(tmp_path, "saga", "r"))

    counts = Counter(acts(tmp_path))
    assert all(counts[name] == 1 for name in ("a", "b", "c", "bad"))
    assert {undo: counts[undo] for undo in ("undo a", "undo b", "undo c")} == {
        undo: 2 if undo == kill else 1 for undo in ("undo a", "undo b", "undo c")
    }
    assert [act for act in dict.fromkeys(acts(tmp_path)) if "undo" in act] == ["undo c", "undo b", "undo a"]


@pytest.mark.parametrize("kill", ["b", "bad"])
def test_trial_Q4_killed_before_it_compensates_it_goes_forward(tmp_path: Path, kill: str) -> None:
    first = started(tmp_path, "saga", "r", kill)
    first.communicate(timeout=60)
    assert first.returncode == -signal.SIGKILL and not any("undo" in act for act in acts(tmp_path))

    said(started(tmp_path, "saga", "r"))

    counts = Counter(acts(tmp_path))
    assert counts[kill] == 2 and all(counts[name] == 1 for name in ("a", "b", "c", "bad") if name != kill)
    assert acts(tmp_path)[-3:] == ["undo c", "undo b", "undo a"]


def test_trial_Q5_of_two_processes_at_one_once_one_runs_it(tmp_path: Path) -> None:
    both = [started(tmp_path, "once", run_id) for run_id in ("one", "two")]

    values = [said(process) for process in both]

    assert acts(tmp_path) == ["charge"] and values[0] == values[1]


def test_trial_Q5_the_claim_of_a_killed_process_lapses(tmp_path: Path) -> None:
    first = started(tmp_path, "once", "one", "charge")
    first.communicate(timeout=60)
    assert first.returncode == -signal.SIGKILL

    assert said(started(tmp_path, "once", "two")) == "charge of two"
    assert said(started(tmp_path, "once", "one")) == "charge of two"

    assert acts(tmp_path) == ["charge", "charge"]
