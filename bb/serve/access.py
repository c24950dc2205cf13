"""Who is let in, and whose request it is."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from bb.serve.problems import Refused

Authorize: TypeAlias = Callable[[Request], "Response | bool | Awaitable[Response | bool | None] | None"]
"""Lets a request in by returning None or True. It refuses by returning a response or False, or by raising."""

Tenant: TypeAlias = Callable[[Request], "str | Awaitable[str]"]
"""Whose request it is."""


async def refusal(authorize: Authorize | None, request: Request) -> Response | None:
    """The response to who is not let in; None for who is.

    Raises:
        Refused: the hook says no more than that.
    """
    if authorize is None:
        return None
    verdict = await settled(authorize(request))
    if verdict is None or verdict is True:
        return None
    if isinstance(verdict, Response):
        return verdict
    raise Refused("the request is not authorised", 403, "forbidden")


async def settled(value: object) -> object:
    """A value, waited for if it is still to come."""
    return await value if inspect.isawaitable(value) else value
