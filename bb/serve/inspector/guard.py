"""`Guard`: stands before every route of the inspector."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bb.serve.access import Authorize, is_foreign, is_json, refusal
from bb.serve.exchange import Exchange
from bb.serve.problems import Refused

HEADERS: Final[Mapping[str, str]] = {
    # no script, style or frame but the page's own, and nothing that leaves this origin
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}

_HANDED_ON: Final = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
"""Headers by which a proxy says that it is one."""


class Guard:
    """Lets operators in, and what a page of another site sends out.

    Where nobody else asks who comes (`is_open`), only the machine itself is served, under a name of its own: a page of
    another site that has its name resolve to this machine would be let in otherwise. What a proxy hands on may come from
    anywhere.
    """

    def __init__(self, app: ASGIApp, authorize: Authorize | None, is_open: bool) -> None:
        self._app = app
        self._authorize = authorize
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises:
        Refused: the request is not let in.
        """
        request = Request(scope, receive)
        Exchange.of(request).also = HEADERS
        if self._is_open and not _is_of_this_machine(request):
            raise Refused("give the inspector an access hook to reach it from elsewhere", 403, "forbidden")
        if request.method == "POST":
            _check_origin(request)
            receive = _again(await request.body(), receive)
        refused = await refusal("inspector", self._authorize, request)
        await (refused or self._app)(scope, receive, send)


def _check_origin(request: Request) -> None:
    """Refuse what another site had a browser send."""
    if is_foreign(request) or request.headers.get("sec-fetch-site") == "none":  # which no button of a page says
        raise Refused("the request came from another site", 403, "cross_site")
    if not is_json(request):  # which a form of another site cannot send
        raise Refused("the body must be application/json", 415, "unsupported_media_type")


def _again(body: bytes, receive: Receive) -> Receive:
    """The body once more: who was asked for access may have read it."""
    sent = [body]

    async def again() -> Message:
        if sent:
            return {"type": "http.request", "body": sent.pop(), "more_body": False}
        return await receive()

    return again


def _is_of_this_machine(request: Request) -> bool:
    """Whether a request was sent here, to here. Its `Host` is what the sender says; its address is not."""
    sender = request.client.host if request.client is not None else None
    handed_on = any(name in request.headers for name in _HANDED_ON)
    return _is_loopback(sender) and _is_loopback(request.url.hostname) and not handed_on


def _is_loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    with suppress(ValueError):
        address = ipaddress.ip_address((host or "").strip("[]"))
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    return False
