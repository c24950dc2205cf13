"""The `bb` command."""

from __future__ import annotations

from bb.cli.main import main

__all__ = ["main"]
