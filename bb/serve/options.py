"""`Options`: how an app is served."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from bb.serve.access import Authorize, Tenant


class Options(TypedDict, total=False):
    """What `App.asgi` and `App.serve` take by name; all of it may be left out."""

    authorize: Authorize | None
    """Is asked about every request, and lets it in by returning True; it refuses by returning a response or False, or by
    raising a `PermissionError` or an `HTTPException` of Starlette. None lets nobody in. Without one, everybody is let in."""
    tenant: Tenant | None
    """Whose request it is: 1 to 63 characters of `[A-Za-z0-9._-]`. Run and session ids hold within a tenant, and so do
    webhooks that its runs have reached; those that no tenant's run has are there for all."""
    max_body: int
    """The most bytes that a request may have; 4 MiB by default."""
    detach: bool
    """Whether a durable run goes on when its client leaves, as it does by default; any other ends with its client."""
    debug: bool
    """Tell clients what went wrong in a run; off by default."""
    default: str | None
    """The flow for a request whose model is the id of none; without it, the only flow."""
    wait: timedelta
    """How long a request waits for another process that has its run; a minute by default."""
    grace: timedelta
    """How long runs may go on when the server shuts down, 5 seconds by default. What is interrupted then can be resumed."""
