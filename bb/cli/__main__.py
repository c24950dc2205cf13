"""`python -m bb.cli`: the `bb` command."""

from __future__ import annotations

import sys

from bb.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
