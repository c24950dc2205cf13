"""Many clients, and a server that dies under them: `bench/load.py` in small."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.crashes.processes import ROOT


def test_every_client_gets_its_whole_answer_however_busy_the_server_is_when_it_dies(tmp_path: Path) -> None:
    """It checks by itself that each answer is whole, each effect was made and is recorded once, and no run is left over."""
    command = [sys.executable, "load.py", "--clients", "20", "--seconds", "6", "--kills", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "BB_BENCH_DIR": str(tmp_path)}

    ended = subprocess.run(
        command, cwd=ROOT / "bench", env=environment, capture_output=True, text=True, timeout=200, check=False
    )

    assert ended.returncode == 0, ended.stderr
    runs, retries = (int(re.findall(rf"{what} +(\d+)", ended.stdout)[0]) for what in ("runs", "retries"))
    assert runs >= 40 and retries >= 20, ended.stdout  # each kill hit clients in the middle of their answers
