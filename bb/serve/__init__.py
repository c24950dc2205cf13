"""Flows over HTTP, for clients of OpenAI and Anthropic. Needs the extra `bb-flow[serve]`."""

from __future__ import annotations

from bb.serve.access import Authorize, Tenant
from bb.serve.options import Options
from bb.serve.service import Service

__all__ = ["Authorize", "Options", "Service", "Tenant"]
