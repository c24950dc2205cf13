"""Flows over HTTP, for clients of OpenAI and Anthropic. Needs the extra `bb-flow[serve]`."""

from __future__ import annotations

from bb.serve.service import Authorize, Service, Tenant

__all__ = ["Authorize", "Service", "Tenant"]
