"""Who is let in, and whose request it is."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from bb.errors import WiringError
from bb.serve.problems import Refused

Authorize: TypeAlias = Callable[[Request], "Response | bool | Awaitable[Response | bool]"]
"""Lets a request in by returning True. It refuses by returning a response or False, or by raising an `HTTPException` of
Starlette or a `PermissionError`. None, as of a hook that forgot to return, is a fault of the server like any other error,
and lets nobody in."""

Tenant: TypeAlias = Callable[[Request], "str | Awaitable[str]"]
"""Whose request it is."""


async def refusal(name: str, authorize: Authorize | None, request: Request) -> Response | None:
    """The response to who is not let in; None for who is. `name` is that of the hook.

    Raises:
        Refused: the hook says no more than that.
        WiringError: it returned None.
    """
    if authorize is None:
        return None
    try:
        verdict = await settled(authorize(request))
    except PermissionError:
        verdict = False
    if verdict is True:
        return None
    if verdict is None:
        raise WiringError(f"{name} returned None", remedy="return True to let the request in")
    if isinstance(verdict, Response):
        return verdict
    raise Refused("the request is not authorised", 403, "forbidden")


async def settled(value: object) -> object:
    """A value, waited for if it is still to come."""
    return await value if inspect.isawaitable(value) else value


def check_site(request: Request) -> None:
    """Refuse what a page of another site had a browser send without asking us first, which it must for JSON.

    A server on somebody's own machine would start runs for any page that is looked at there.

    Raises:
        Refused: it is such a request.
    """
    if is_foreign(request) and not is_json(request):
        raise Refused("the body must be application/json", 415, "unsupported_media_type")


def is_foreign(request: Request) -> bool:
    """Whether a page of another site had a browser send it; programs that are no browser say nothing of where they are.

    Over plain HTTP a browser says it with the origin alone.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        return site not in ("none", "same-origin")
    return origin is not None and origin.partition("://")[2] != request.headers.get("host")


def is_json(request: Request) -> bool:
    """Whether a request says that its body is JSON."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
