"""How a durable flow is kept."""

from __future__ import annotations

from datetime import timedelta

from attrs import frozen

from bb.errors import WiringError


@frozen(kw_only=True)
class DurableOptions:
    """The options of `.durable()`; they count in equality, not in the signature."""

    forward_compatible: bool = False
    """Match savepoints by path when the graph has changed, rather than start afresh."""
    retries: int = 0
    """How often the scope is run again after a failure."""
    ttl: timedelta | None = None
    """An unfinished run is dropped when this long has passed since its last recorded progress."""
    resume_on_reregister: bool = False
    """Resume by itself only when the flow is registered after the app has started."""

    def __attrs_post_init__(self) -> None:
        if type(self.retries) is not int or self.retries < 0:
            raise WiringError(f"retries is {self.retries!r}", remedy="give a whole number, 0 or more")
        if self.ttl is not None and not isinstance(self.ttl, timedelta):
            raise WiringError(f"ttl is {self.ttl!r}", remedy="give a timedelta, such as timedelta(seconds=60)")
        if self.ttl is not None and self.ttl <= timedelta(0):
            raise WiringError(f"ttl is {self.ttl}", remedy="give a positive timedelta, or None to keep the run")
