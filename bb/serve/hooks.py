"""`POST /v1/hooks/{id}`: webhooks, called from outside."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from bb.ids import scoped
from bb.serve.access import check_site
from bb.serve.exchange import Exchange
from bb.serve.problems import Refused

if TYPE_CHECKING:
    from bb.app import App

_CREDENTIAL: Final = re.compile(
    r"auth(?!or\b)|cookie|token|secret|passw|credential|jwt|oidc|client-cert"
    "|(access|api|functions|master|private|shared|subscription)-?key",
    re.IGNORECASE,
)


def hooks(
    app: App,
    started: Callable[[], bool],
    tenant_of: Callable[[Request], Awaitable[str | None]],
    waiting: Callable[[str], AbstractAsyncContextManager[None]],
) -> Route:
    """The route on which an app's webhooks are called, once it was started: before, none of `on_start` is there yet.

    For an answer it waits in a `waiting` of the run id.
    """

    async def call(request: Request) -> Response:
        if not started():
            raise Refused("the app was not started", 503, "not_started")
        check_site(request)
        tenant, exchange = await tenant_of(request), Exchange.of(request)
        body = await request.body()
        exchange.ran = True
        async with waiting(exchange.run_id):
            fired = await app.fire(
                request.path_params["id"],
                body,
                kept(request.headers),
                run_id=scoped(tenant or "", exchange.run_id),
                tenant=tenant,
            )
        if fired.answer is None:
            return Response(status_code=202)
        return PlainTextResponse(fired.answer.encode("utf-8", "replace"))

    return Route("/v1/hooks/{id}", call, methods=["POST"])


def kept(headers: Headers) -> Iterator[tuple[str, str]]:
    """The headers that a body gets, by their usual spelling: `Content-Type`. They are stored, so credentials are left out."""
    for name, value in headers.items():
        if not _CREDENTIAL.search(name):
            yield "-".join(word.capitalize() for word in name.split("-")), value
