"""What the adapters to providers share: clients, errors, and answers that must fit a schema."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Final, Generic, TypeVar, cast
from weakref import WeakKeyDictionary

from bb.errors import UpstreamError, UpstreamRejected
from bb.messages import ToolSpec
from bb.redaction import MASK, redact

C = TypeVar("C")

PASSING: Final = frozenset({408, 409, 425, 429})
"""The 4xx that may go well another time."""

_TRANSPORTS: Final = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "h11"})
"""The packages that the SDKs, of today and of some years ago, go through; what they raise is not always wrapped."""

_LONG: Final = 20  # a shorter key is a placeholder such as "none" or "ollama", and ordinary text


class PerLoop(Generic[C]):
    """One client for each event loop: a client holds connections, and those belong to the loop that opened them.

    The client is closed with its loop (`asyncio.run` ends the generators that are still open), so none leaks.
    """

    def __init__(self, make: Callable[[], C], close: Callable[[C], Awaitable[None]]) -> None:
        self._make = make
        self._close = close
        self._held: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[C, AsyncGenerator[C]]] = WeakKeyDictionary()

    async def get(self) -> C:
        """The running loop's client."""
        loop = asyncio.get_running_loop()
        held = self._held.get(loop)
        if held is None:
            owner = self._own(loop)
            held = self._held[loop] = (await anext(owner), owner)
        return held[0]

    async def aclose(self) -> None:
        """Close the running loop's client; a later `get` makes a new one."""
        held = self._held.get(asyncio.get_running_loop())
        if held is not None:
            await held[1].aclose()

    async def _own(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[C]:
        client = self._make()
        try:
            yield client
        finally:
            self._held.pop(loop, None)
            await self._close(client)


def wire_name(name: str) -> str:
    """The name of a tool as providers take it: those of ops have dots, which they refuse."""
    return name.replace(".", "-")


def own_names(tools: Iterable[ToolSpec]) -> dict[str, str]:
    """From what providers call tools to their names."""
    return {wire_name(tool.name): tool.name for tool in tools}


def keep_secret(key: str | None) -> None:
    """Register a provider's key, so that it shows nowhere bb writes text."""
    if key and len(key) >= _LONG:
        redact(key)


def upstream(error: Exception, provider: str, key: str | None) -> UpstreamError:
    """A provider's error as bb's, without the key. Do not chain the original: it holds the request's headers."""
    status = getattr(error, "status_code", 0)
    status = status if isinstance(status, int) and status >= 400 else 0
    text = str(error) or type(error).__name__
    if key:
        text = text.replace(key, MASK)
    headers = getattr(getattr(error, "response", None), "headers", {})
    kind = UpstreamRejected if 400 <= status < 500 and status not in PASSING else UpstreamError
    return kind(f"{provider}: {text}", status=status, retry_after=retry_after(headers))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """How many seconds a provider asks to wait, or None."""
    try:
        seconds = _asked(headers)
    except (ValueError, TypeError):
        return None
    return max(0.0, seconds) if seconds is not None and isfinite(seconds) else None


def _asked(headers: Mapping[str, str]) -> float | None:
    from email.utils import parsedate_to_datetime

    if "retry-after-ms" in headers:
        return float(headers["retry-after-ms"]) / 1000
    given = headers.get("retry-after")
    if given is None:
        return None
    if given.strip().replace(".", "", 1).isdigit():
        return float(given)
    return (parsedate_to_datetime(given) - datetime.now(UTC)).total_seconds()


def from_network(error: Exception) -> bool:
    """Whether an error comes from the transport below an SDK, or from bytes that are no answer."""
    return isinstance(error, OSError | json.JSONDecodeError) or any(
        kind.__module__.partition(".")[0] in _TRANSPORTS for kind in type(error).__mro__
    )


def as_object(schema: Mapping[str, object]) -> tuple[dict[str, object], bool]:
    """The schema as one of an object, which is all that providers take; true when it had to be wrapped as `value`."""
    if schema.get("type") == "object":
        return dict(schema), False
    inner = dict(schema)
    defs = inner.pop("$defs", None)
    whole: dict[str, object] = {
        "type": "object",
        "properties": {"value": inner},
        "required": ["value"],
        "additionalProperties": False,
    }
    return (whole | {"$defs": defs} if defs is not None else whole), True


def unwrapped(text: str) -> str:
    """The answer inside the wrapping of `as_object`; text that is not wrapped stays, for the schema to judge."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(data, dict) and data.keys() == {"value"}:
        return json.dumps(cast("dict[str, object]", data)["value"], ensure_ascii=False)
    return text
