"""`Inspector`: the page at `/runs`, and what it asks for."""

from __future__ import annotations

import html
from collections.abc import Awaitable, Callable, Collection
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from bb.engine.runs.viewer import Viewer
from bb.errors import BBError, CorruptRecord, RunBusy, UnknownRun
from bb.ids import check_id
from bb.serve.access import Authorize
from bb.serve.exchange import Exchange
from bb.serve.inspector.guard import Guard
from bb.serve.inspector.recent import Recent
from bb.serve.inspector.view import clean, detail_view, page_view, run_view
from bb.serve.problems import Refused
from bb.serve.wire import as_text, dumps, loads, optional
from bb.trace import fields

if TYPE_CHECKING:
    from bb.app import App

T = TypeVar("T")

Follow: TypeAlias = Callable[[Request, str, str], Awaitable[Response]]
"""Streams the events of a run: the request, the id that the client knows, and the one that it is kept under."""

_MOST: Final = 200  # runs on one page


class Inspector:
    """What operators see of an app's runs, and do with them. Made by `App.asgi(inspector=...)`."""

    def __init__(
        self,
        app: App,
        viewer: Viewer,
        flows: Collection[str],
        recent: Recent,
        *,
        authorize: Authorize | None,
        is_open: bool,
    ) -> None:
        """Args:
        app: whose runs.
        viewer: looks at them.
        flows: the ids of the registered flows.
        recent: the last events.
        authorize: is asked about every request.
        is_open: whether nobody is asked, so that only this machine is served.
        """
        self._app = app
        self._viewer = viewer
        self._flows = flows
        self._recent = recent
        self._guard = [Middleware(Guard, authorize=authorize, is_open=is_open)]
        self._page = (resources.files("bb.serve.inspector") / "static" / "page.html").read_text("utf-8")

    def routes(self, follow: Follow) -> list[BaseRoute]:
        """Everything that is served, each behind the guard."""

        async def events(request: Request) -> Response:
            run_id = _run_id(request)
            return await follow(request, run_id, run_id)

        files = StaticFiles(packages=[("bb.serve.inspector", "static")])
        one = "/runs/api/runs/{run_id}"
        return [
            self._get("/v1/diagnostics/trace", self._trace),
            self._get("/runs/api/runs", self._list),
            self._get(one, self._run),
            self._get(f"{one}/at", self._detail),
            self._get(f"{one}/events", events),
            self._get(f"{one}/trace", self._trace),
            self._post(f"{one}/retry", self._retry),
            self._post(f"{one}/cancel", self._cancel),
            self._post(f"{one}/deliver", self._deliver),
            Mount("/runs/static", files, middleware=self._guard),
            self._get("/runs", self._html),
            self._get("/runs/{run_id}", self._html),
        ]

    def _get(self, path: str, endpoint: Any) -> Route:
        return Route(path, endpoint, methods=["GET"], middleware=self._guard)

    def _post(self, path: str, endpoint: Any) -> Route:
        return Route(path, endpoint, methods=["POST"], middleware=self._guard)

    # --- looking ---

    async def _html(self, request: Request) -> Response:
        base = html.escape(str(request.scope.get("root_path", "")), quote=True)
        return HTMLResponse(self._page.replace("{{base}}", base))

    async def _list(self, request: Request) -> Response:
        asked = request.query_params
        limit = asked.get("limit", "50")
        if not (limit.isascii() and limit.isdecimal() and len(limit) < 10 and 1 <= int(limit) <= _MOST):
            raise Refused(f"limit must be 1 to {_MOST}")
        page = await self._viewer.page(
            flow=asked.get("flow", ""),
            status=asked.get("status", ""),
            text=asked.get("text", ""),
            start=asked.get("start", ""),
            limit=int(limit),
        )
        return _json(page_view(page, self._flows, self._viewer.trigger))

    async def _run(self, request: Request) -> Response:
        return _json(run_view(await _found(self._viewer.picture(_run_id(request)))))

    async def _detail(self, request: Request) -> Response:
        path = request.query_params.get("path", "")
        return _json(detail_view(await _found(self._viewer.detail(_run_id(request), path))))

    async def _trace(self, request: Request) -> Response:
        run_id = _run_id(request) if "run_id" in request.path_params else ""
        return _json([fields(event) for event in self._recent.events(run_id)])

    # --- doing ---

    async def _retry(self, request: Request) -> Response:
        return await self._done(self._app.retry(_run_id(request)))

    async def _cancel(self, request: Request) -> Response:
        return await self._done(self._app.cancel(_run_id(request)))

    async def _deliver(self, request: Request) -> Response:
        run_id, body = _run_id(request), loads(await request.body())
        source, payload = as_text(body.get("source"), "source"), body.get("payload")
        run = await _found(self._viewer.picture(run_id))
        if run.info.status != "parked" or run.info.waiting_for != source:
            raise Refused(f"run {run_id} does not wait for {source!r} any more", 409, "not_waiting")
        delivery_id = optional(body, "delivery_id", str)
        return await self._done(
            self._app.deliver(source, payload, session_id=run.session_id, delivery_id=delivery_id or None)
        )

    @staticmethod
    async def _done(work: Awaitable[object]) -> Response:
        await _found(work)
        return _json({"ok": True})


async def _found(work: Awaitable[T]) -> T:
    """What the work comes to; what keeps it from that is told in full: operators are shown everything.

    Raises:
        Refused: it cannot be done.
    """
    try:
        return await work
    except UnknownRun as error:
        raise Refused(str(error), 404, "unknown_run") from error
    except CorruptRecord as error:
        raise Refused(str(error), 422, "corrupt_record") from error
    except RunBusy as error:
        raise Refused(str(error), 409, "run_busy") from error
    except BBError as error:
        raise Refused(str(error), 409, "refused") from error


def _run_id(request: Request) -> str:
    run_id = check_id(request.path_params["run_id"], "run id")
    Exchange.of(request).run_id = run_id
    return run_id


def _json(body: object) -> Response:
    return Response(dumps(clean(body)), media_type="application/json")
