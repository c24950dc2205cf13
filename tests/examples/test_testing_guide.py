"""The test that the testing guide shows passes in a project that has only bb."""

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tests_in_the_guide_pass(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "testing.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "test_guide.py").write_text("\n".join(blocks))
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    plugins = [] if _installed() else ["-p", "bb.testing.plugin"]
    options = ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", *plugins, *options, "test_guide.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def _installed() -> bool:
    """Whether the plugin comes by itself, as it does where bb is installed."""
    return any(point.name == "bb" for point in entry_points(group="pytest11"))
