"""`Service`: an app as an ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import anyio
from attrs import evolve
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from bb.engine.plan import Plan
from bb.engine.runs.trail import Trail
from bb.errors import BBError, InvalidId, UnknownFlow, UnknownRun, WiringError
from bb.ids import check_id, check_tenant, scoped
from bb.logs import error as log_error
from bb.logs import warning
from bb.serve.access import Authorize, Tenant, check_site, refusal, settled
from bb.serve.answering import Order, begun, frames, whole
from bb.serve.anthropic import AnthropicWire
from bb.serve.exchange import Bodies, Exchange, too_late, unless_gone
from bb.serve.hooks import hooks
from bb.serve.openai import OpenAIWire
from bb.serve.patience import Patience
from bb.serve.problems import ClientGone, Problem, Refused, problem_of
from bb.serve.sse import KEEP_ALIVE, EventStream
from bb.serve.wire import Asked, Frame, Wire, check_tools, dumps, loads, quoted
from bb.trace import Event, fields

if TYPE_CHECKING:
    from bb.app import App
    from bb.serve.inspector import Inspector

MAX_BODY: Final = 4 * 2**20
_TOLD: Final = 0.5  # seconds for what is told when the grace period is over
_OPENAI: Final = OpenAIWire()
_ANTHROPIC: Final = AnthropicWire()
_OVER: Final = frozenset({"finished", "cancelled", "expired"})


class Service:
    """An app over HTTP; `App.asgi` makes it, and says what its arguments mean.

    It starts and stops its app where a server runs its lifespan. Mounted in another application it needs that one's:
    `Starlette(routes=[Mount("/ai", service)], lifespan=service.lifespan)`.
    """

    def __init__(
        self,
        app: App,
        plans: Mapping[str, Plan],
        trail: Callable[[str], Trail],
        run_of_turn: Callable[[str, str], Awaitable[str | None]],
        started: Callable[[], bool],
        *,
        authorize: Authorize | None = None,
        tenant: Tenant | None = None,
        max_body: int = MAX_BODY,
        detach: bool = True,
        debug: bool = False,
        default: str | None = None,
        wait: timedelta = timedelta(seconds=60),
        grace: timedelta = timedelta(seconds=5),
        keep_alive: float = KEEP_ALIVE,
        inspector: Inspector | None = None,
    ) -> None:
        if default is not None and default not in plans:
            raise UnknownFlow(f"no flow {default!r} is registered", remedy=f"known: {_named(plans)}")
        if max_body < 1 or grace < timedelta(0) or keep_alive <= 0:
            raise WiringError("max_body and keep_alive must be positive, and grace not negative")
        self.app = app
        self.grace = grace
        self._plans = plans
        self._trail = trail
        self._run_of_turn = run_of_turn
        self._started = started
        self._warned = False
        self._authorize = authorize
        self._tenant = tenant
        self._max_body = max_body
        self._detach = detach
        self._debug = debug
        self._default = default
        self._wait = wait
        self._keep_alive = keep_alive
        self._closing: anyio.Event | None = None
        self._bodies = Bodies()
        self._patience = Patience()
        self._router = Router(
            [
                Route("/v1/chat/completions", self._completions, methods=["POST"]),
                Route("/v1/messages", self._messages, methods=["POST"]),
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/v1/models/{id:path}", self._model, methods=["GET"]),
                Route("/v1/runs/{run_id}/events", self._events, methods=["GET"]),
                hooks(app, started, self._tenant_of, self._waiting),
                *(inspector.routes(self.follow) if inspector is not None else ()),
            ],
            redirect_slashes=False,
            lifespan=self.lifespan,
        )

    # --- the life of it ---

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncIterator[None]:
        """Start the app, and stop it in the end.

        It is stopped as soon as the server begins to shut down: runs have the grace period to end, and the clients of
        those that do not are told to come back.
        """
        closing = self._closing = anyio.Event()
        self._bodies = Bodies()
        self._patience = Patience()
        stopping = asyncio.ensure_future(self._stop(closing))
        try:
            await self.app.start()
            yield
        finally:
            closing.set()
            await stopping
            await self.app.stop(timedelta(0))  # what was let in just then
            self._closing = None

    async def _stop(self, closing: anyio.Event) -> None:
        await closing.wait()
        self._bodies.end()
        # a run that is interrupted when the grace period is over ends by then, unless it has something to clean up
        asyncio.get_running_loop().call_later(self.grace.total_seconds() + _TOLD, self._patience.end)
        await self.app.stop(self.grace)

    def close(self) -> None:
        """Begin to shut down: no more requests are taken."""
        if self._closing is not None:
            self._closing.set()

    def _waiting(self, run_id: str) -> AbstractAsyncContextManager[None]:
        """Waits for what comes of a run as long as the server can."""
        return self._patience.for_run(run_id)

    @property
    def is_closing(self) -> bool:
        """Whether it is shutting down."""
        return self._closing is not None and self._closing.is_set()

    # --- every request ---

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send, self._max_body, self._bodies)
        exchange.scope.setdefault("app", self)  # where there is an app, a router raises what it does not find
        try:
            exchange.read_ids()
            if self.is_closing:
                raise too_late()
            self._check_started()
            refused = await refusal("authorize", self._authorize, Request(exchange.scope, exchange.receive))
            exchange.rewind()
            await (refused or self._router)(exchange.scope, exchange.receive, exchange.send)
        except (ClientGone, ClientDisconnect):  # nobody reads it, but middleware wants a response
            await Response(status_code=499)(exchange.scope, exchange.receive, exchange.send)
        except Exception as error:
            if exchange.started:
                raise
            wire = _wire_of(exchange)
            problem = self._explained(error, exchange, None)
            response = _json(wire.problem(problem, exchange.run_id), problem.status, problem.headers)
            await response(exchange.scope, exchange.receive, exchange.send)

    def _check_started(self) -> None:
        """Say once that nothing will be started later: timetables, reminders and what a crash cut off."""
        if not self._warned and not self._started():
            self._warned = True
            log_error(
                "the app was not started: pass lifespan=service.lifespan to the application that it is mounted in"
            )

    def _explained(self, error: Exception, exchange: Exchange, plan: Plan | None) -> Problem:
        resends = exchange.named or (plan is not None and not plan.durable)
        problem = problem_of(error, exchange.run_id, debug=self._debug, resends=resends, ran=exchange.ran)
        log = log_error if problem.status == 500 else warning
        flow = plan.name if plan is not None else getattr(error, "flow", "")
        log(
            "a request failed",
            status=problem.status,
            flow=flow,
            run_id=exchange.run_id,
            error=f"{type(error).__name__}: {error}",
        )
        return problem

    # --- routes ---

    async def _completions(self, request: Request) -> Response:
        return await self._answer(request, _OPENAI)

    async def _messages(self, request: Request) -> Response:
        return await self._answer(request, _ANTHROPIC)

    async def _answer(self, request: Request, wire: Wire) -> Response:
        exchange = Exchange.of(request)
        check_site(request)
        asked = _read(wire, await request.body())
        plan = self._routed(asked.input.request.model)
        tenant = await self._tenant_of(request)
        owner = tenant or ""
        session_id = None if exchange.session_id is None else scoped(owner, exchange.session_id)
        run_id = scoped(owner, exchange.run_id)
        exchange.ran = True
        order = Order(plan, asked, exchange, run_id, session_id, self._detach, self._wait, tenant)
        try:
            response = await (self._streamed if asked.stream else self._whole)(request, wire, order)
        except ClientGone:
            raise
        except Exception as error:
            problem = self._explained(error, exchange, plan)
            return _json(wire.problem(problem, exchange.run_id), problem.status, problem.headers)
        if plan.waits and exchange.session_id is None:
            exchange.session_id = exchange.run_id  # where the conversation goes on, if it waits for a reply
        return response

    async def _whole(self, request: Request, wire: Wire, order: Order) -> Response:
        async with self._waiting(order.exchange.run_id):
            said = await unless_gone(request, whole(self.app, order))
        return _json(wire.whole(said, order.plan.name))

    async def _streamed(self, request: Request, wire: Wire, order: Order) -> Response:
        async with AsyncExitStack() as stack:
            exchange = order.exchange
            async with self._waiting(exchange.run_id):
                going = await unless_gone(request, stack.enter_async_context(begun(self.app, order)))
            voice = wire.voice(order.asked, order.plan.name)
            said = frames(
                going,
                voice,
                lambda error: self._explained(error, exchange, order.plan),
                lambda: self._waiting(exchange.run_id),
            )
            return self._stream(said, stack.pop_all())

    def _stream(self, said: AsyncIterator[Sequence[Frame]], held: AsyncExitStack | nullcontext[None]) -> EventStream:
        grace = self.grace.total_seconds() + 2 * _TOLD  # how a run ended, or that it did not, is still told
        closing = self._closing or anyio.Event()
        return EventStream(said, held, closing=closing, grace=grace, keep_alive=self._keep_alive)

    async def _models(self, _request: Request) -> Response:
        ids = sorted(self._plans, key=lambda flow: (flow != self._default, flow))
        models = [self._told_of(id) for id in ids]
        first, last = (ids[0], ids[-1]) if ids else (None, None)
        return _json({"object": "list", "data": models, "has_more": False, "first_id": first, "last_id": last})

    async def _model(self, request: Request) -> Response:
        id = request.path_params["id"]
        if id not in self._plans:
            raise self._no_model(id)
        return _json(self._told_of(id))

    def _told_of(self, id: str) -> dict[str, object]:
        """A flow as a model, as both wires know one."""
        return {
            "id": id,
            "object": "model",
            "created": 0,
            "owned_by": "bb",
            "type": "model",
            "display_name": id,
            "created_at": "1970-01-01T00:00:00Z",
            "durable": self._plans[id].durable,
        }

    def _no_model(self, id: str) -> Refused:
        return Refused(f"no model {quoted(id)}: there is {_named(self._plans)}", 404, "model_not_found")

    async def _events(self, request: Request) -> Response:
        exchange, tenant = Exchange.of(request), await self._tenant_of(request) or ""
        run_id = exchange.run_id = check_id(request.path_params["run_id"], "run id")
        kept_as = scoped(tenant, run_id)
        if exchange.session_id is not None:
            kept_as = await self._run_of_turn(scoped(tenant, exchange.session_id), run_id) or kept_as
        return await self.follow(request, run_id, kept_as, tenant)

    async def follow(self, request: Request, run_id: str, kept_as: str, tenant: str | None = None) -> Response:
        """The events of a run, which the client knows by `run_id`, from where the client left off.

        Raises:
            UnknownRun: it is not kept, or not of the tenant, if one is given; an empty one has those of nobody.
        """
        await request.body()  # none is meant: whatever is wrong with one is said before the stream begins
        after = _position(request.headers.get("last-event-id"), run_id)
        trail = self._trail(kept_as)
        news = [one for one in await trail.more() if one[0] > after]
        if tenant is not None and trail.tenant not in (None, tenant):
            raise UnknownRun(f"run {run_id} is not kept")  # as if there were none
        if not news and await trail.is_over():
            return Response(status_code=204)  # which tells a browser not to come again
        return self._stream(self._told(trail, news, after, run_id), nullcontext())

    async def _told(
        self, trail: Trail, news: list[tuple[int, Event]], after: int, run_id: str
    ) -> AsyncIterator[Sequence[Frame]]:
        for position, event in news:
            yield [self._frame(position, event, run_id)]
        try:
            async with aclosing(trail.follow()) as looks:
                async for look in looks:
                    for position, event in look:
                        if position > after:
                            yield [self._frame(position, event, run_id)]
                    if self.is_closing:
                        return
        except UnknownRun:
            pass  # dropped, or started over: who comes again is told so
        except BBError as error:
            log_error("a run cannot be followed any more", run_id=run_id, error=str(error))

    def _frame(self, position: int, event: Event, run_id: str) -> Frame:
        error = event.error if self._debug else ""
        told = fields(evolve(event, run_id=run_id, detail=self._detail(event), error=error, raised_as=""))
        return Frame(dumps(told), event.kind, f"{run_id}:{position}")

    def _detail(self, event: Event) -> str:
        """The detail of an event, unless it quotes an error, which is nobody's business outside."""
        hidden = event.kind in ("run.retry", "cleanup.failed") or (
            event.kind == "run.end" and event.detail not in _OVER
        )
        return "failed" if hidden and not self._debug else event.detail

    def _routed(self, model: str) -> Plan:
        """The flow that a model stands for: the one of that id, else the default one, or the only one."""
        only = next(iter(self._plans)) if len(self._plans) == 1 else None
        plan = self._plans.get(model) or self._plans.get(self._default or only or "")
        if plan is None:
            raise self._no_model(model)
        return plan

    async def _tenant_of(self, request: Request) -> str | None:
        if self._tenant is None:
            return None
        tenant = await settled(self._tenant(request))
        try:
            return check_tenant(tenant)
        except InvalidId as error:  # no fault of who asks
            raise WiringError(f"tenant returned what is none: {error}") from error


def _read(wire: Wire, body: bytes) -> Asked:
    try:
        asked = wire.read(loads(body))
        check_tools(asked.input.request)
    except RecursionError:
        raise Refused("the body is nested too deeply") from None
    return asked


def _named(plans: Mapping[str, Plan]) -> str:
    return ", ".join(sorted(plans)) or "none"


def _wire_of(exchange: Exchange) -> Wire:
    """How the client of a request is told of an error: of models both kinds of clients ask in one place."""
    path = exchange.scope["path"]
    speaks = "/v1/messages" in path or ("/v1/models" in path and "anthropic-version" in exchange.headers)
    return _ANTHROPIC if speaks else _OPENAI


def _position(last: str | None, run_id: str) -> int:
    """The position of the record that a client saw last; -1 when it saw none."""
    if not last:
        return -1
    run, _, position = last.rpartition(":")
    if run != run_id or not (position.isascii() and position.isdecimal() and len(position) < 19):
        raise Refused(f"Last-Event-ID is not of run {run_id}")
    return int(position)


def _json(body: Mapping[str, object], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(dumps(body), status, headers, media_type="application/json")
