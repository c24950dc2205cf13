"""Trial O2: context variables around a service, and what middleware learns of a run."""

from __future__ import annotations

from contextvars import ContextVar

import httpx2
import pytest
import structlog
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount

import bb
from tests.serve.kit import PATHS, body_of, serving
from tests.serve.stage import app_of, durable

who: ContextVar[str] = ContextVar("who", default="nobody")


@pytest.mark.parametrize("stream", [False, True])
async def test_trial_o2_middleware_binds_for_handlers_and_reads_the_run_id_from_the_response(stream: bool) -> None:
    """What a handler binds stays with it: a response is the way back, and it carries the run id."""
    heard: list[tuple[str, object]] = []
    logged: list[tuple[str | None, str]] = []

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        heard.append((who.get(), structlog.contextvars.get_contextvars().get("request")))
        who.set("the handler")
        turn.reply("hello")

    class Logs(BaseHTTPMiddleware):
        async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
            who.set("ann")
            with structlog.contextvars.bound_contextvars(request="req-1"):
                response = await call_next(request)
            logged.append((response.headers.get("x-run-id"), who.get()))
            return response

    service = app_of(durable(handler)).asgi()
    app = Starlette(routes=[Mount("/", service)], middleware=[Middleware(Logs)] * 2, lifespan=service.lifespan)
    async with serving(app) as url, httpx2.AsyncClient(base_url=url) as http:
        answers = [await http.post(PATHS[0], json=body_of(PATHS[0], "hi", stream=stream)) for _ in range(2)]
    assert heard == [("ann", "req-1")] * 2
    assert logged == [(answer.headers["x-run-id"], "ann") for answer in answers for _ in range(2)]
