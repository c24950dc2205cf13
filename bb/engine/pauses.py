"""How long to wait before something that failed is tried again."""

from __future__ import annotations

from typing import Final

from bb.errors import Throttled, UpstreamError

_FIRST: Final = 0.5  # seconds; doubled per retry
_LONGEST: Final = 30.0
_LONGEST_WAIT: Final = 3600.0  # seconds that a provider may ask for; a date far off is its mistake


def pause(tried: int, jitter: float, error: BaseException) -> float:
    """Seconds until the next try: exponential with half of it random, and no sooner than a provider or a throttle asked for."""
    seconds: float = min(_LONGEST, _FIRST * 2 ** min(tried, 16)) * (0.5 + jitter / 2)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, Throttled):
            seconds = max(seconds, min(cause.after.total_seconds(), _LONGEST_WAIT))
        if isinstance(cause, UpstreamError) and cause.retry_after is not None:
            seconds = max(seconds, min(cause.retry_after, _LONGEST_WAIT))
        cause = cause.__cause__
    return seconds
