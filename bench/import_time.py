"""What `import bb` costs in time and memory, against `import asyncio`.

Run it as `python bench/import_time.py`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

from common import show

TIMES = 25
PROBE = """
import time, resource
began = time.perf_counter()
import {module}
print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def probe(module: str) -> tuple[float, float]:
    """Seconds of the import and resident megabytes after it, in a new process."""
    command = [sys.executable, "-c", PROBE.format(module=module)]
    # as installed, with bytecode: where Python may write none, each import would compile everything again
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    seconds, resident = map(float, out.stdout.split())
    return seconds, resident


def main() -> None:
    pairs = [(probe("asyncio")[0], *probe("bb")) for _ in range(TIMES)]  # in turn, so that both meet the same machine
    show("import bb over import asyncio", statistics.median(bb / floor for floor, bb, _ in pairs), "x", "<= 4 x")
    show("resident after import bb", statistics.median(resident for _, _, resident in pairs), "MB", "<= 32 MB")


if __name__ == "__main__":
    main()
