"""Type-checks `*_ok.py` and `*_bad.py` beside this file, as strictly as a user may."""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OK = sorted(path.name for path in HERE.glob("*_ok.py"))
BAD = sorted(path.name for path in HERE.glob("*_bad.py"))

Errors = dict[str, dict[int, list[str]]]
"""File name -> line -> the errors there, each as `message  [code]`."""


@pytest.fixture(scope="module")
def errors() -> Errors:
    """What mypy says of all cases, in one run."""
    command = [sys.executable, "-m", "mypy", "--strict", "--hide-error-context", "--no-error-summary", "--no-pretty"]
    run = subprocess.run(
        [*command, *(str(HERE / name) for name in OK + BAD)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode in (0, 1), run.stderr
    found: Errors = defaultdict(lambda: defaultdict(list))
    for line in run.stdout.splitlines():
        if match := re.fullmatch(r"(?P<file>[^:]+):(?P<line>\d+): error: (?P<error>.*)", line):
            found[Path(match["file"]).name][int(match["line"])].append(match["error"])
    return found


@pytest.mark.parametrize("name", OK)
def test_what_users_write_is_accepted(errors: Errors, name: str) -> None:
    assert errors.get(name, {}) == {}


@pytest.mark.parametrize("name", BAD)
def test_misuse_is_refused_and_nothing_else(errors: Errors, name: str) -> None:
    lines = (HERE / name).read_text("utf-8").splitlines()
    expected = {n: line.partition("  # E: ")[2] for n, line in enumerate(lines, 1) if "  # E: " in line}
    found = errors.get(name, {})
    assert expected
    assert {n: found[n] for n in sorted(found) if n not in expected} == {}, "not expected"
    missed = {n: pattern for n, pattern in expected.items() if not any(re.search(pattern, e) for e in found.get(n, ()))}
    assert missed == {}, "expected, not found"
