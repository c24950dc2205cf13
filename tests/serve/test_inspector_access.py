"""Who may look at runs, and what a page of another site cannot do."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount

import bb
from bb.serve import Service
from tests.serve.kit import PATHS, body_of, error_of, serving
from tests.serve.stage import app_of, durable, hello

PAGES = [
    "/runs",
    "/runs/r",
    "/runs/static/page.js",
    "/runs/api/runs",
    "/runs/api/runs/r",
    "/runs/api/runs/r/at?path=f/body~agents.0",
    "/runs/api/runs/r/events",
    "/runs/api/runs/r/trace",
    "/v1/diagnostics/trace",
]
ACTIONS = ["/runs/api/runs/r/retry", "/runs/api/runs/r/cancel", "/runs/api/runs/r/deliver"]


def local(service: Service | Starlette) -> httpx2.AsyncClient:
    """A client on the machine of the server."""
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(service), base_url="http://localhost")


async def made() -> bb.App:
    app = app_of(durable(hello))
    await app.run("f", "hi", run_id="r")
    return app


@pytest.mark.parametrize("page", PAGES)
async def test_it_is_closed_by_default(page: str) -> None:
    async with local((await made()).asgi()) as http:
        assert (await http.get(page)).status_code == 404
        for action in ACTIONS:
            assert (await http.post(action, json={})).status_code == 404


@pytest.mark.parametrize("page", PAGES)
async def test_open_it_is_served_to_this_machine_only(page: str) -> None:
    service = (await made()).asgi(inspector=True)
    async with local(service) as http:
        assert (await http.get(page)).status_code in (200, 204)
        for host in ("127.0.0.1:8080", "[::1]:8080", "localhost"):
            assert (await http.get(page, headers={"Host": host})).status_code in (200, 204)
        # a page of another site may have its name resolve to this machine, and would read everything
        for host in ("evil.example", "127.0.0.1.evil.example", "192.168.0.7"):
            status, _, message = error_of("", await http.get(page, headers={"Host": host}))
            assert status == 403 and "access hook" in message


@pytest.mark.parametrize("page", PAGES)
async def test_who_comes_from_elsewhere_is_refused_whatever_host_is_named(page: str) -> None:
    service = (await made()).asgi(inspector=True)

    async def status(address: str, **headers: str) -> int:
        transport = httpx2.ASGITransport(service, client=(address, 40000))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return (await http.get(page, headers=headers)).status_code

    for here in ("127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"):
        assert await status(here) in (200, 204)
    for elsewhere in ("192.0.2.7", "2001:db8::7", "::ffff:192.0.2.7", ""):
        assert await status(elsewhere) == 403
    for header in ("Forwarded", "Via", "X-Forwarded-For", "X-Real-IP"):  # a proxy on this machine
        assert await status("127.0.0.1", **{header: "127.0.0.1"}) == 403


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("verdict", [False, Response(status_code=401), True])
async def test_a_hook_is_asked_wherever_the_request_comes_from(page: str, verdict: Any) -> None:
    asked: list[str] = []

    async def hook(request: Request) -> Any:
        asked.append(request.url.path)
        return verdict

    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport((await made()).asgi(inspector=hook)), base_url="http://ops.example"
    ) as http:
        status = (await http.get(page)).status_code
        assert (await http.get("/v1/models")).status_code == 200
    assert asked == [page.partition("?")[0]]
    assert status in ((403,) if verdict is False else (200, 204) if verdict is True else (401,))


@pytest.mark.parametrize("page", PAGES)
async def test_a_hook_that_forgets_to_return_lets_nobody_in(page: str) -> None:
    async def hook(request: Request) -> Any:
        await request.body()

    with structlog.testing.capture_logs() as logs:
        async with local((await made()).asgi(inspector=hook)) as http:
            status, _, message = error_of("", await http.get(page))
    assert status == 500 and message.startswith("the request failed")
    assert any("inspector returned None: return True" in log.get("error", "") for log in logs)


async def test_who_asks_about_all_requests_is_asked_first() -> None:
    asked: list[str] = []

    def everyone(request: Request) -> bool:
        asked.append("everyone")
        return request.headers.get("authorization") != "none"

    def operators(request: Request) -> Response | bool:
        asked.append("operators")
        return request.headers.get("authorization") == "operator" or RedirectResponse("/login")

    app = await made()
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app.asgi(authorize=everyone, inspector=operators)), base_url="http://site"
    ) as http:
        assert (await http.get("/runs", headers={"Authorization": "none"})).status_code == 403
        assert (await http.get("/runs", headers={"Authorization": "client"})).status_code == 307
        assert (await http.get("/runs", headers={"Authorization": "operator"})).status_code == 200
    assert asked == ["everyone", "everyone", "operators", "everyone", "operators"]

    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app.asgi(authorize=everyone, inspector=True)), base_url="http://site"
    ) as http:
        assert (await http.get("/runs", headers={"Authorization": "client"})).status_code == 200


async def test_a_hook_may_read_the_body_of_an_action() -> None:
    bodies: list[bytes] = []

    async def hook(request: Request) -> bool:
        bodies.append(await request.body())
        return True

    async with local((await made()).asgi(inspector=hook)) as http:
        answer = await http.post(ACTIONS[2], json={"source": "user", "payload": "x"})
    assert error_of("", answer)[0] == 409 and b"user" in bodies[0]


async def test_with_tenants_somebody_has_to_say_who_sees_the_runs_of_all() -> None:
    app = app_of(durable(hello))
    with pytest.raises(bb.WiringError, match="every tenant"):
        app.asgi(tenant=lambda _: "acme", inspector=True)
    async with local(app.asgi(tenant=lambda request: request.headers["x-who"], inspector=lambda _: True)) as http:
        for who in ("acme", "bolt"):
            headers = {"X-Who": who, "X-Run-Id": "same"}
            assert (await http.post(PATHS[0], json=body_of(PATHS[0], "hi"), headers=headers)).status_code == 200
        found = (await http.get("/runs/api/runs")).json()["runs"]
        assert {run["id"] for run in found} == {"acme:same", "bolt:same"}
        run = (await http.get("/runs/api/runs/acme:same")).json()
        assert run["status"] == "finished"
        assert "run.end" in (await http.get("/runs/api/runs/acme:same/events")).text


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://localhost"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Origin": "http://localhost:81"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": ""}, 415),
    ],
)
async def test_another_site_can_change_nothing(action: str, headers: dict[str, str], status: int) -> None:
    app = await made()
    before = await app.store.read("run/r")
    async with local(app.asgi(inspector=True)) as http:
        answer = await http.post(action, content=b"{}", headers={"Content-Type": "application/json"} | headers)
    assert error_of("", answer)[0] == status
    assert await app.store.read("run/r") == before


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://localhost"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://localhost"},  # behind a proxy that ends TLS
        {"Content-Type": "application/json; charset=utf-8"},
    ],
)
async def test_the_page_itself_and_programs_can(headers: dict[str, str]) -> None:
    async with local((await made()).asgi(inspector=True)) as http:
        answer = await http.post(ACTIONS[1], content=b"{}", headers={"Content-Type": "application/json"} | headers)
    assert answer.json() == {"ok": True}


@pytest.mark.parametrize("action", ACTIONS)
async def test_looking_changes_nothing(action: str) -> None:
    async with local((await made()).asgi(inspector=True)) as http:
        assert (await http.get(action)).status_code == 405


@pytest.mark.parametrize("page", [*PAGES, "/runs/api/runs/nobody", "/runs/static/nothing.js"])
async def test_every_response_keeps_the_browser_strict(page: str) -> None:
    async with local((await made()).asgi(inspector=True)) as http:
        headers = (await http.get(page)).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer" and headers["cache-control"] == "no-store"


async def test_other_routes_are_as_they_were() -> None:
    async with local((await made()).asgi(inspector=True)) as http:
        assert "content-security-policy" not in (await http.get("/v1/models")).headers


async def test_mounted_elsewhere_the_page_asks_there() -> None:
    service = (await made()).asgi(inspector=True)
    async with local(Starlette(routes=[Mount("/ai", service)], lifespan=service.lifespan)) as http:
        page = await http.get("/ai/runs")
        assert page.status_code == 200 and 'src="/ai/runs/static/page.js"' in page.text
        assert (await http.get("/ai/runs/static/page.js")).headers["content-type"].startswith("text/javascript")
    async with local(Starlette(routes=[Mount('/a"><script>', service)])) as http:
        page = await http.get('/a"><script>/runs')
        assert "<script>/" not in page.text and "&quot;&gt;&lt;script&gt;" in page.text


async def test_a_server_shows_it_when_told_to() -> None:
    async with serving((await made()).asgi(inspector=True)) as url, httpx2.AsyncClient(base_url=url) as http:
        assert "<title>Runs</title>" in (await http.get("/runs")).text
