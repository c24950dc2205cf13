"""Who may come in, whose run it is, and which flow a request means."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
import structlog
from anthropic import AsyncAnthropic
from anthropic import NotFoundError as AnthropicNotFoundError
from openai import AsyncOpenAI, NotFoundError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

import bb
from bb.flows.tree import Await, Emit
from tests.serve.kit import PATHS, agent, body_of, error_of, serving
from tests.serve.stage import app_of, asgi, durable, hello

Check = Callable[[Request], Any]


def raising(error: Exception) -> Check:
    def check(request: Request) -> None:
        raise error

    return check


async def _no(request: Request) -> bool:
    return False


@pytest.mark.parametrize(
    ("authorize", "status"),
    [
        (lambda _: False, 403),
        (_no, 403),
        (lambda _: 0, 403),
        (raising(HTTPException(401, "who are you?", {"WWW-Authenticate": "Bearer"})), 401),
        (raising(PermissionError("a bug")), 403),
        (raising(ValueError("a bug")), 500),
        (lambda _: JSONResponse({"no": "entry"}, 402), 402),
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/messages"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/f"),
        ("GET", "/v1/runs/r/events"),
        ("POST", "/v1/hooks/w"),
        ("GET", "/v1/nothing"),
    ],
)
async def test_who_is_not_authorised_gets_nowhere(method: str, path: str, authorize: Check, status: int) -> None:
    ran: list[str] = []

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        ran.append(turn.run_id)

    async with asgi(app_of(durable(handler)).asgi(authorize=authorize)) as http:
        answer = await http.request(method, path, json=body_of(path, "hi"), headers={"X-Run-Id": "mine"})
    assert answer.status_code == status and answer.headers["x-run-id"] == "mine" and not ran
    if status == 402:
        assert answer.json() == {"no": "entry"}
    else:
        error_of(path, answer)
        assert "a bug" not in answer.text
    assert (answer.headers.get("www-authenticate") == "Bearer") is (status == 401)


async def _forgot(request: Request) -> Any:
    await request.body()


@pytest.mark.parametrize("authorize", [lambda _: None, _forgot])
@pytest.mark.parametrize("path", PATHS)
async def test_a_hook_that_forgets_to_return_lets_nobody_in(path: str, authorize: Check) -> None:
    app = app_of(durable(hello))
    with structlog.testing.capture_logs() as logs:
        async with asgi(app.asgi(authorize=authorize)) as http:
            answer = await http.post(path, json=body_of(path, "hi"), headers={"X-Run-Id": "r"})
    assert error_of(path, answer)[::2] == (500, "the request failed (run r)") and not await app.runs()
    assert [log["error"] for log in logs if log["event"] == "a request failed" and log["log_level"] == "error"] == [
        "WiringError: authorize returned None: return True to let the request in"
    ]


async def test_what_a_hook_raises_is_told_as_a_fault_of_the_request_before_there_is_a_run() -> None:
    async with asgi(app_of(durable(hello)).asgi(authorize=raising(ValueError("a bug")))) as http:
        for method, path in (("POST", PATHS[0]), ("POST", "/v1/hooks/w"), ("GET", "/v1/runs/r/events")):
            answer = await http.request(method, path, headers={"X-Run-Id": "r"})
            assert error_of(path, answer)[::2] == (500, "the request failed (run r)")
            assert answer.json()["error"]["code"] == "request_failed"


async def test_who_is_authorised_may_have_had_the_body_read() -> None:
    async def authorize(request: Request) -> bool:
        return bool((await request.json())["messages"]) and request.headers["authorization"] == "Bearer key"

    async with asgi(app_of(durable(hello)).asgi(authorize=authorize)) as http:
        body, headers = body_of(PATHS[0], "hi"), {"X-Run-Id": "mine"}
        answer = await http.post(PATHS[0], json=body, headers={**headers, "Authorization": "Bearer key"})
        assert answer.status_code == 200 and "hello mine" in answer.text
        answer = await http.post(PATHS[0], json=body, headers={**headers, "Authorization": "Bearer kex"})
        assert answer.status_code == 403


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("sender", "kind", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, "text/plain", 415),
        ({"Sec-Fetch-Site": "same-site"}, "application/x-www-form-urlencoded", 415),
        # a browser has asked for leave before it sends that
        ({"Sec-Fetch-Site": "cross-site"}, "application/json; charset=utf-8", 200),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://elsewhere"}, "text/plain", 200),
        # as browsers send over plain HTTP
        ({"Origin": "http://evil.example"}, "text/plain", 415),
        ({"Origin": "null"}, "text/plain", 415),
        ({"Origin": "http://["}, "text/plain", 415),
        ({"Origin": "http://here:81"}, "text/plain", 415),
        ({"Origin": "http://here"}, "text/plain", 200),
        ({}, "application/x-www-form-urlencoded", 200),  # curl
    ],
)
async def test_a_page_of_another_site_starts_nothing(path: str, sender: dict[str, str], kind: str, status: int) -> None:
    headers = {"Content-Type": kind, "Host": "here", **sender}
    app = app_of(durable(hello))
    async with asgi(app.asgi()) as http:
        answer = await http.post(path, content=json.dumps(body_of(path, "hi")), headers=headers)
        assert answer.status_code == status and len(await app.runs()) == (status == 200)
        if status == 415:
            error_of(path, answer)


def owner(request: Request) -> str:
    return request.headers["x-owner"]


async def _owner(request: Request) -> str:
    return owner(request)


@pytest.mark.parametrize("tenant", [owner, _owner])
@pytest.mark.parametrize("run_id", ["r", "b:r", "x" * 128])
async def test_tenants_do_not_see_each_others_runs(tenant: Callable[[Request], Any], run_id: str) -> None:
    asked: list[str] = []

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        asked.append(turn.run_id)
        turn.reply(f"for {len(asked)}")

    app = app_of(durable(handler))
    async with asgi(app.asgi(tenant=tenant)) as http:
        answers = [
            await http.post(PATHS[0], json=body_of(PATHS[0], said), headers={"X-Owner": who, "X-Run-Id": run_id})
            for who, said in (("a", "hi"), ("b", "ho"), ("a", "hi"))
        ]
        assert [answer.json()["choices"][0]["message"]["content"] for answer in answers] == ["for 1", "for 2", "for 1"]
        assert {answer.headers["x-run-id"] for answer in answers} == {run_id} and len(set(asked)) == 2

        events = await http.get(f"/v1/runs/{run_id}/events", headers={"X-Owner": "a"})
        assert f'"run_id":"{run_id}"' in events.text and f"id: {run_id}:0" in events.text
        assert (await http.get(f"/v1/runs/{run_id}/events", headers={"X-Owner": "c"})).status_code == 404
    assert {run.run_id for run in await app.runs()} == set(asked)


async def test_tenants_do_not_see_each_others_conversations() -> None:
    flow = (Emit("Who?") >> Await("user", bind="x")).next(Emit("Hello {x}.")).with_id("f").durable()
    async with asgi(app_of(flow).asgi(tenant=owner)) as http:

        async def say(who: str, said: str) -> str:
            headers = {"X-Owner": who, "X-Session-Id": "s"}
            answer = await http.post(PATHS[0], json=body_of(PATHS[0], said), headers=headers)
            return str(answer.json()["choices"][0]["message"]["content"])

        assert await say("a", "hi") == await say("b", "ho") == "Who?"
        assert (await say("a", "Ann"), await say("b", "Bob")) == ("Hello Ann.", "Hello Bob.")


@pytest.mark.parametrize("tenant", ["", "a:b", "x" * 64, 5, None])
async def test_a_tenant_that_is_none_is_the_sites_fault(tenant: Any) -> None:
    async with asgi(app_of(durable(hello)).asgi(tenant=lambda _: tenant)) as http:
        assert (await http.post(PATHS[0], json=body_of(PATHS[0], "hi"))).status_code == 500


async def test_a_model_is_told_alone_as_it_is_in_the_list() -> None:
    async with serving(app_of(durable(hello, "one"), durable(hello, "two:b")).asgi()) as url:
        async with httpx2.AsyncClient(base_url=url) as http:
            listed = (await http.get("/v1/models")).json()["data"]
            assert [(await http.get(f"/v1/models/{each['id']}")).json() for each in listed] == listed
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as openai:
            assert (await openai.models.retrieve("two:b")).owned_by == "bb"
            with pytest.raises(NotFoundError) as unknown:
                await openai.models.retrieve("gpt/9")
            assert unknown.value.code == "model_not_found" and "one, two:b" in str(unknown.value)
        async with AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as anthropic:
            assert (await anthropic.models.retrieve("one")).display_name == "one"
            with pytest.raises(AnthropicNotFoundError) as missing:
                await anthropic.models.retrieve("claude")
            assert error_of("/v1/messages", missing.value.response)[:2] == (404, "not_found_error")


@pytest.mark.parametrize("path", PATHS)
async def test_case_92_a_model_is_a_flow_or_else_the_default_one(path: str) -> None:
    app = app_of(durable(hello, "one"), durable(hello, "two"))
    for default, model, got in (
        ("two", "one", "one"),
        ("two", "gpt-9", "two"),
        ("two", "", "two"),
        (None, "one", "one"),
    ):
        async with asgi(app.asgi(default=default)) as http:
            assert (await http.post(path, json=body_of(path, "hi", model))).json()["model"] == got

    async with asgi(app.asgi()) as http:
        status, _, message = error_of(path, await http.post(path, json=body_of(path, "hi", "gpt-9")))
        assert status == 404 and "one, two" in message


async def test_case_92_the_default_comes_first_and_a_flow_registered_again_replaces_the_one_before() -> None:
    app = app_of(durable(hello, "one"), durable(hello, "two"))
    async with asgi(app.asgi(default="two")) as http:
        models = (await http.get("/v1/models")).json()
        assert [model["id"] for model in models["data"]] == ["two", "one"] and models["object"] == "list"

        async def other(turn: bb.Turn, chat: bb.ModelChat) -> None:
            turn.reply("replaced")

        with structlog.testing.capture_logs() as logs:
            app.register(durable(other, "one"))  # the same flow, of a newer handler
        assert "replaced" in (await http.post(PATHS[0], json=body_of(PATHS[0], "hi", "one"))).text and not logs

        with structlog.testing.capture_logs() as logs:
            app.register(agent(hello, "one").with_id("one"))
        assert [(log["log_level"], log["flow"]) for log in logs] == [("warning", "one")]
        assert "hello" in (await http.post(PATHS[0], json=body_of(PATHS[0], "hi", "one"))).text


def test_case_93_nothing_invalid_is_served() -> None:
    app = bb.App()
    with pytest.raises(bb.WiringError, match="nothing to serve"):
        app.asgi()
    with pytest.raises(bb.WiringError, match="model"):
        app.register(bb.Flow().with_agent(bb.Agent("a")).with_id("f"))
    app.register(durable(hello))
    with pytest.raises(bb.UnknownFlow, match="'g'"):
        app.asgi(default="g")
    with pytest.raises(bb.WiringError, match="max_body"):
        app.asgi(max_body=0)


def test_case_94_an_exit_that_leads_nowhere_is_found_through_a_name() -> None:
    choice = bb.Flow().with_agent(bb.Agent("a", exits=("left", "up")).on_message(hello))
    members = bb.Select(agent(hello, "l").with_id("left"), agent(hello, "r").with_id("right")).with_id("choice")
    with pytest.raises(bb.WiringError, match="up"):
        bb.App().register((choice >> members).with_id("f"))


async def test_what_only_runs_at_the_start_is_no_model() -> None:
    app = bb.App()
    app.on_start(durable(hello, "background"), durable(hello, "both"))
    app.register(durable(hello, "both"))
    async with asgi(app.asgi()) as http:
        models = (await http.get("/v1/models")).json()
        assert [model["id"] for model in models["data"]] == ["both"]
        for asked in ("background", "gpt"):  # the only one that is served answers
            answer = await http.post(PATHS[0], json=body_of(PATHS[0], "hi", asked))
            assert answer.status_code == 200 and answer.json()["model"] == "both"
    app.register(durable(hello, "second"))
    async with asgi(app.asgi()) as http:
        status, _, message = error_of(PATHS[0], await http.post(PATHS[0], json=body_of(PATHS[0], "hi", "background")))
        assert status == 404 and message.endswith("there is both, second")
    with pytest.raises(bb.UnknownFlow, match="known: both, second"):
        app.asgi(default="background")


async def test_an_app_that_only_runs_at_the_start_serves_no_model() -> None:
    app = bb.App()
    app.on_start(durable(hello, "background"))
    async with asgi(app.asgi()) as http:
        models = (await http.get("/v1/models")).json()
        assert models == {"object": "list", "data": [], "has_more": False, "first_id": None, "last_id": None}
        for path in PATHS:
            status, _, message = error_of(path, await http.post(path, json=body_of(path, "hi", "background")))
            assert status == 404 and message.endswith("there is none")
