"""The run inspector: a page that shows the kept runs, and what operators do with them."""

from __future__ import annotations

from bb.serve.inspector.recent import Recent
from bb.serve.inspector.routes import Inspector

__all__ = ["Inspector", "Recent"]
