"""Webhooks over HTTP: case 95, and what a call means that comes again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx2
import pytest
import structlog
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

import bb
from bb.serve import Service
from tests.crashes.processes import until
from tests.serve.kit import Site, agent, body_of, serving
from tests.serve.stage import Stage, app_of, asgi, durable, hello, raw
from tests.timetable import Timetable, later, rest


@pytest.fixture
async def time() -> AsyncIterator[Timetable]:
    made = Timetable()
    yield made
    await made.stop()


@asynccontextmanager
async def called(app: bb.App, **options: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of an app that is started."""
    async with app, asgi(app.asgi(**options)) as http:
        yield http


# --- answers ---


async def test_case_95_a_body_that_responds_answers_with_all_its_stages(time: Timetable) -> None:
    body = (time.agent("a"), bb.Respond(), time.agent("b"), bb.Respond())
    app = time.app(start=(later(time.agent("before"), bb.Webhook("w", *body), id="f"),))
    async with app, serving(app.asgi()) as url, httpx2.AsyncClient(base_url=url) as http:
        sent = [("X-Kind", "one"), ("x-kind", "two"), ("content-type", "text/csv")]
        answer = await http.post("/v1/hooks/w", content=b"\x00\xff", headers=sent)
        assert (answer.status_code, answer.text) == (200, "a\n\nb")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["x-run-id"] == time.last("b").run_id
        heard = time.last("a")
        assert (heard.chat, heard.payload) == (("before",), b"\x00\xff")
        assert isinstance(heard.metadata, dict)
        assert (heard.metadata["X-Kind"], heard.metadata["Content-Type"]) == ("one", "text/csv")


@pytest.mark.parametrize(
    ("sender", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"}, 415),
        ({"Origin": "http://evil.example", "Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Origin": "http://evil.example", "Content-Type": "application/json"}, 200),  # the browser was asked first
        ({"Content-Type": "application/x-www-form-urlencoded"}, 200),
        ({}, 200),
    ],
)
async def test_a_page_of_another_site_calls_no_webhook(time: Timetable, sender: dict[str, str], status: int) -> None:
    app = time.app(start=(later(bb.Webhook("w", time.agent("a"), bb.Respond()), id="f"),))
    async with called(app) as http:
        assert (await http.post("/v1/hooks/w", content=b"x=1", headers=sender)).status_code == status
        assert time.count("a") == (status == 200)


async def test_case_95_any_other_body_is_accepted_and_runs_in_the_background(time: Timetable) -> None:
    time.holds["a"] = asyncio.Event()
    async with called(time.app(start=(later(bb.Webhook("w", time.agent("a"), time.agent("b")), id="f"),))) as http:
        answer = await http.post("/v1/hooks/w", content=b"x")
        assert (answer.status_code, answer.content) == (202, b"")
        await until(lambda: time.count("a") == 1)
        time.holds["a"].set()
        await until(lambda: time.count("b") == 1)
        assert time.last("b").run_id == answer.headers["x-run-id"]
        events = await http.get(f"/v1/runs/{answer.headers['x-run-id']}/events")
        assert "event: run.end" in events.text


GROUPS: dict[str, Callable[[bb.AnyFlow], bb.AnyFlow]] = {
    "alone": lambda flow: flow,
    "row": lambda flow: bb.Chain([bb.Chain([flow])]),
    "named": lambda flow: bb.Chain([flow]).with_id("x"),
    "durable": lambda flow: bb.Chain([flow]).with_id("x").durable(),
    "select": lambda flow: bb.Select(bb.Chain([flow]).with_id("x")),
    "all": bb.All,
    "one": bb.One,
    "group": bb.Group,
    "when": lambda flow: bb.When(True, flow),
    "try": bb.Try,
}


@pytest.mark.parametrize("group", GROUPS)
async def test_case_95_a_respond_is_seen_through_every_group(time: Timetable, group: str) -> None:
    @bb.Agent().selects("x").on_message
    async def pick(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.select("x")

    body = (time.agent("a"), pick_of(pick), GROUPS[group](bb.Chain([bb.Respond()])))
    async with called(time.app(start=(later(bb.Webhook("w", *body), id="f"),))) as http:
        answer = await http.post("/v1/hooks/w")
        assert (answer.status_code, answer.text) == (200, "a")


def pick_of(pick: bb.Agent) -> bb.Flow:
    return bb.Flow().with_agent(pick)


async def test_an_answer_without_utf8_is_told_as_far_as_it_goes() -> None:
    async def odd(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.reply("a\ud800b")

    app = bb.App()
    app.on_start(bb.Webhook("w", agent(odd), bb.Respond()).next(bb.Emit("ready")).with_id("f"))
    async with called(app) as http:
        assert (await http.post("/v1/hooks/w")).text == "a?b"


@pytest.mark.parametrize("debug", [True, False])
async def test_case_95_a_body_that_fails_is_a_500_with_its_run_and_is_logged(time: Timetable, debug: bool) -> None:
    time.fails["a"] = 1
    app = time.app(start=(later(bb.Webhook("w", time.agent("a"), bb.Respond()), id="f"),))
    with structlog.testing.capture_logs() as logs:
        async with called(app, debug=debug) as http:
            answer = await http.post("/v1/hooks/w", headers={"X-Run-Id": "r"})
    assert (answer.status_code, answer.headers["x-run-id"]) == (500, "r")
    told = answer.json()["error"]
    assert told["run_id"] == "r" and ("a fails" in told["message"]) is debug
    assert debug or told["message"] == "the run failed (run r)"
    (log,) = [log for log in logs if log["event"] == "a request failed"]
    assert (log["run_id"], log["flow"]) == ("r", "f") and "a fails" in log["error"]


async def test_case_95_a_body_that_fails_in_the_background_is_logged(time: Timetable) -> None:
    time.fails["a"] = 1
    with structlog.testing.capture_logs() as logs:
        async with called(time.app(start=(later(bb.Webhook("w", time.agent("a")), id="f"),))) as http:
            answer = await http.post("/v1/hooks/w", headers={"X-Run-Id": "r"})
            await rest()
    assert answer.status_code == 202
    assert [(log["run_id"], "a fails" in log["error"]) for log in logs if log["event"] == "a job failed"] == [
        ("r", True)
    ]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/v1/hooks/none", 404), ("GET", "/v1/hooks/w", 405), ("POST", "/v1/hooks/", 404)],
)
async def test_case_95_what_is_no_webhook_is_told(time: Timetable, method: str, path: str, status: int) -> None:
    async with called(time.app(start=(later(bb.Webhook("w", time.agent("a")), id="f"),))) as http:
        answer = await http.request(method, path)
        assert answer.status_code == status
        assert answer.json()["error"]["run_id"] == answer.headers["x-run-id"]
        assert time.heard == []


# --- who calls ---


async def test_credentials_are_not_kept(time: Timetable) -> None:
    secret = "s3cret-of-the-house"
    names = [
        "Authorization",
        "Proxy-Authorization",
        "Cookie",
        "X-Api-Key",
        "Api-Key",
        "X-Auth-Key",
        "X-Gitlab-Token",
        "Cf-Access-Jwt-Assertion",
        "X-Amzn-Oidc-Data",
        "X-Forwarded-Access-Token",
        "X-Secret",
        "X-Forwarded-Client-Cert",
        "X-User-Password",
        "X-Webhook-Auth",
        "X-Functions-Key",
        "X-Access-Key",
        "Ocp-Apim-Subscription-Key",
    ]
    harmless = {"X-Hub-Signature-256": "abc", "Idempotency-Key": "k", "X-Author": "ann", "X-Routing-Key": "r"}
    app = time.app(start=(later(bb.Webhook("w", time.agent("a")), id="f"),))
    async with called(app) as http:
        headers = {**dict.fromkeys(names, secret), **harmless}
        assert (await http.post("/v1/hooks/w", headers=headers)).status_code == 202
        await until(lambda: time.count("a") == 1)
    kept = time.last("a").metadata
    assert isinstance(kept, dict) and secret not in kept.values()
    assert harmless.items() <= kept.items()
    for stream in await time.store.list(""):
        assert all(secret.encode() not in record for record in await time.store.read(stream.name))


async def test_who_is_not_let_in_starts_nothing(time: Timetable) -> None:
    app = time.app(start=(later(bb.Webhook("w", time.agent("a")), id="f"),))

    def authorize(request: Request) -> bool:
        return request.headers.get("authorization") == "Bearer me"

    async with called(app, authorize=authorize, max_body=10) as http:
        assert (await http.post("/v1/hooks/w")).status_code == 403
        header = {"Authorization": "Bearer me"}
        assert (await http.post("/v1/hooks/w", content=b"x" * 11, headers=header)).status_code == 413
        assert (await http.post("/v1/hooks/w", headers={**header, "X-Run-Id": "a/b"})).status_code == 400
        assert await app.runs() == []
        assert (await http.post("/v1/hooks/w", content=b"x" * 10, headers=header)).status_code == 202


def owner(request: Request) -> str:
    return request.headers["x-owner"]


async def test_a_webhook_that_a_tenants_run_has_reached_is_this_tenants(time: Timetable) -> None:
    """Also one that a body has reached which a tenant's run has started; one of the app itself is there for all."""

    async def said(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.reply(" ".join(message.content for message in turn.messages if message.role == "user"))

    flow = later(bb.Webhook("own", bb.Webhook("inner", agent(said), bb.Respond()), agent(said), bb.Respond()), id="f")
    app = time.app(flow.durable(), start=(later(bb.Webhook("all", time.agent("all"), bb.Respond()), id="site"),))
    async with called(app, tenant=owner) as http:

        async def say(who: str, text: str) -> None:
            path = "/v1/chat/completions"
            assert (await http.post(path, json=body_of(path, text, "f"), headers={"X-Owner": who})).status_code == 200

        async def call(who: str, id: str, run_id: str = "r") -> str | int:
            headers = {"X-Owner": who, "X-Run-Id": f"{id}-{run_id}"}
            answer = await http.post(f"/v1/hooks/{id}", headers=headers)
            assert answer.headers["x-run-id"] == f"{id}-{run_id}"
            return answer.text if answer.status_code == 200 else answer.status_code

        await say("a", "I am a")
        assert await call("b", "own") == 404
        await say("b", "I am b")
        assert (await call("a", "own"), await call("b", "own")) == ("I am a", "I am b")
        assert (await call("a", "inner"), await call("b", "inner"), await call("c", "inner")) == (
            "I am a",
            "I am b",
            404,
        )
        assert (await call("a", "all"), await call("c", "all")) == ("all", "all")

        assert (await http.get("/v1/runs/all-r/events", headers={"X-Owner": "a"})).status_code == 200
        assert (await http.get("/v1/runs/own-r/events", headers={"X-Owner": "c"})).status_code == 404

        with pytest.raises(bb.UnknownWebhook):
            await app.fire("own", b"", {})
        assert (await app.fire("own", b"", {}, tenant="a")).answer == "I am a"


async def test_the_timetable_of_a_tenant_is_not_that_of_another(time: Timetable) -> None:
    app = time.app(later(bb.Every("* * * * *", time.agent("a")), id="f").durable())
    async with app:
        for tenant in ("a", "b", None):
            await app.run("f", f"for {tenant}", tenant=tenant)
        await time.pass_(minutes=1)
    assert sorted(one.chat[0] for one in time.heard) == ["for None", "for a", "for b"]


async def test_no_client_takes_the_run_id_of_a_tick_before_it_is_due(time: Timetable) -> None:
    app = time.app(
        time.agent("chat").with_id("chat").durable(), start=(later(bb.Every("* * * * *", time.agent("a")), id="f"),)
    )
    asked = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
    async with called(app, tenant=lambda request: request.headers.get("X-Owner", "acme"), default="chat") as http:
        (job,) = await app.jobs()
        assert job.next is not None
        taken = f"{job.id}:{job.next.timestamp() * 1000:.0f}"
        kind, _, rest_of_it = taken.partition(":")
        for header in ("X-Run-Id", "X-Session-Id"):
            refused = await http.post("/v1/chat/completions", json=asked, headers={header: taken})
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_id")
        owned = await http.post("/v1/chat/completions", json=asked, headers={"X-Run-Id": rest_of_it, "X-Owner": kind})
        assert owned.status_code == 500  # the function that names tenants is wrong, not the request
        await time.pass_(minutes=1)
    assert [one.agent for one in time.heard] == ["a"]


@pytest.mark.parametrize("kind", ["at", "every", "start", "webhook"])
async def test_what_starts_by_itself_has_ids_that_no_client_may_give(time: Timetable, kind: str) -> None:
    triggers: dict[str, Any] = {
        "at": bb.At(time.clock.now(), time.agent("x")),
        "every": bb.Every("* * * * *", time.agent("y")),
        "webhook": bb.Webhook("w", time.agent("z")),
    }
    app = time.app(start=tuple(later(each, id=name).durable() for name, each in triggers.items()))
    async with app:
        await time.pass_(minutes=1)
        await app.fire("w", b"", {})
        assert {run.run_id.partition(":")[0] for run in await app.runs()} == {"at", "every", "start", "webhook"}
    async with asgi(app.asgi()) as http:
        refused = await http.get("/v1/models", headers={"X-Run-Id": f"{kind}:x"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_id")


@pytest.mark.parametrize("answers", [True, False])
async def test_a_turn_of_a_tenants_conversation_is_the_tenants(time: Timetable, answers: bool) -> None:
    flow = bb.Await("user", bind="x").next(bb.Webhook("w", time.agent("a"), *[bb.Respond()] * answers))
    app = time.app(flow.next(bb.Emit("done")).with_id("f").durable())
    async with app:
        session = app.session("f", "s", tenant="a")
        await session.start()
        await session.send("hi")
        with pytest.raises(bb.UnknownWebhook):
            await app.fire("w", b"", {}, tenant="b")
        assert (await app.fire("w", b"", {}, tenant="a")).answer == ("a" if answers else None)


# --- an app that was not started ---


async def test_an_app_that_is_mounted_without_its_lifespan_says_so_once_and_takes_no_call() -> None:
    app = app_of(durable(hello))
    app.on_start(later(bb.Webhook("w", agent(hello), bb.Respond()), id="site"))
    service = app.asgi()
    mounted = Starlette(routes=[Mount("/ai", service)])
    path = "/v1/chat/completions"
    with structlog.testing.capture_logs() as logs:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(mounted), base_url="http://site/ai") as http:
            assert (await http.post(path[1:], json=body_of(path, "hi", "f"))).status_code == 200
            refused = await http.post("v1/hooks/w")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_started")
    told = [log for log in logs if "lifespan=service.lifespan" in log["event"]]
    assert len(told) == 1 and told[0]["log_level"] == "error"

    served = app.asgi()
    with structlog.testing.capture_logs() as logs:
        async with (
            serving(Starlette(routes=[Mount("/ai", served)], lifespan=served.lifespan)) as url,
            httpx2.AsyncClient(base_url=url) as http,
        ):
            assert (await http.post("/ai/v1/hooks/w")).status_code == 200
    assert not [log for log in logs if log["log_level"] == "error"]


# --- a call that comes again ---


@pytest.mark.parametrize("answers", [True, False])
async def test_a_call_that_comes_again_is_the_same_call(time: Timetable, answers: bool) -> None:
    webhook = bb.Webhook("w", time.agent("a"), *[bb.Respond()] * answers)
    app = time.app(start=(later(webhook, id="f"), later(bb.Webhook("v", time.agent("b")), id="g")))
    async with called(app) as http:

        async def call(body: bytes, delivery: str, path: str = "w") -> httpx2.Response:
            headers = {"X-Run-Id": "r", "X-Delivery": delivery}
            return await http.post(f"/v1/hooks/{path}", content=body, headers=headers)

        both = await asyncio.gather(call(b"x", "1"), call(b"x", "2"))
        await until(lambda: time.count("a") == 1)
        await rest()
        again = await call(b"x", "3")
        await rest()
        assert {(answer.status_code, answer.text) for answer in (*both, again)} == {
            (200, "a") if answers else (202, ""),
        }
        assert time.count("a") == 1

        other = await call(b"y", "4")
        assert (other.status_code, other.json()["error"]["code"]) == (409, "input_conflict")
        elsewhere = await call(b"x", "5", "v")
        assert (elsewhere.status_code, elsewhere.json()["error"]["code"]) == (409, "run_id_in_use")
        assert (time.count("a"), time.count("b")) == (1, 0)


@pytest.mark.parametrize("answers", [True, False])
async def test_a_call_that_comes_to_two_processes_at_once_is_the_same_call(time: Timetable, answers: bool) -> None:
    time.holds["a"] = asyncio.Event()
    flow = later(bb.Webhook("w", time.agent("a"), *[bb.Respond()] * answers), id="f")
    one, two = time.app(start=(flow,)), time.app(start=(flow,))
    async with one, two:
        calls = [asyncio.ensure_future(app.fire("w", b"x", {}, run_id="r")) for app in (one, two)]
        await until(lambda: time.count("a") == 1)
        await rest()  # the other waits for the lease
        time.holds["a"].set()
        fired = await asyncio.gather(*calls)
        assert {(call.run_id, call.answer) for call in fired} == {("r", "a" if answers else None)}
        await asyncio.sleep(0.5)  # who waited looks at the lease now and then
        assert time.count("a") == 1


@pytest.mark.parametrize("answers", [True, False])
async def test_a_call_that_failed_goes_on_when_it_comes_again(time: Timetable, answers: bool) -> None:
    body = later(time.agent("a").with_id("a"), time.agent("b").with_id("b"), *[bb.Respond()] * answers, id="body")
    app = time.app(start=(later(bb.Webhook("w", body.durable()), id="f"),))
    time.fails["b"] = 1
    async with called(app) as http:
        first = await http.post("/v1/hooks/w", content=b"x", headers={"X-Run-Id": "r"})
        await until(lambda: time.count("b") == 1)
        await rest()
        second = await http.post("/v1/hooks/w", content=b"x", headers={"X-Run-Id": "r"})
        await until(lambda: time.count("b") == 2)
        await rest()
        assert (first.status_code, second.status_code) == ((500, 200) if answers else (202, 202))
        assert [(run.run_id, run.status) for run in await app.runs() if run.run_id == "r"] == [("r", "finished")]
        assert time.count("a") == 1


async def test_a_run_that_was_dropped_for_its_age_is_not_begun_again(time: Timetable) -> None:
    app = time.app(start=(later(bb.Webhook("w", time.agent("a")), id="f"),))
    await app.start()
    await app.stop()  # nobody takes it up
    await app.fire("w", b"x", {}, run_id="r")
    assert (await app.fire("w", b"x", {}, run_id="r")).run_id == "r"
    await app.cancel("r")
    await app.fire("w", b"x", {}, run_id="r")  # a cancelled one goes on, as a job that is submitted again does
    async with app:
        await until(lambda: time.count("a") == 1)
        assert time.last("a").run_id == "r"


# --- callers that leave ---


def _wrapped(service: Service, times: int) -> Callable[[Scope, Receive, Send], Any]:
    app: Any = service
    for _ in range(times):

        async def through(request: Request, call_next: Any) -> Any:
            return await call_next(request)

        app = BaseHTTPMiddleware(app, through)
    return app


@pytest.mark.parametrize("middleware", [0, 2])
async def test_case_95_a_caller_that_leaves_stops_nothing(middleware: int) -> None:
    stage = Stage()
    app = bb.App()
    app.on_start(bb.Webhook("w", stage.flow("a"), bb.Respond()).next(bb.Emit("ready")).with_id("f"))
    leave = asyncio.Event()
    async with app:
        asking = asyncio.ensure_future(
            raw(_wrapped(app.asgi(), middleware), b"x", [(b"x-run-id", b"r")], leave=leave, path="/v1/hooks/w")
        )
        await stage.began.wait()
        leave.set()
        await rest()
        stage.may.set()
        await asyncio.wait([asking])
        await until(lambda: stage.ended == ["done"])
        await rest()
        (run,) = [run for run in await app.runs() if run.run_id == "r"]
        assert run.status == "finished"


@pytest.mark.parametrize("path", ["/v1/hooks/w", "/v1/chat/completions", "/v1/messages"])
async def test_a_caller_that_leaves_before_it_has_said_everything_starts_nothing(time: Timetable, path: str) -> None:
    app = time.app(start=(later(bb.Webhook("w", time.agent("a")), id="f"),))
    parts: list[Any] = [
        {"type": "http.disconnect"},
        {"type": "http.request", "body": b"half", "more_body": True},
    ]
    statuses: list[int] = []

    async def receive() -> Any:
        return parts.pop()

    async def send(message: Any) -> None:
        statuses.append(message.get("status", 0))

    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b"", "root_path": ""}
    async with app:
        with structlog.testing.capture_logs() as logs:
            await app.asgi()(scope, receive, send)
        assert (statuses[0], logs, await app.runs()) == (499, [], [])


# --- a server ---


async def test_cases_84_85_a_served_app_without_a_store_starts_what_triggers_start() -> None:
    """Also what stands in a body, and what a request has reached."""
    clock = Timetable().clock

    async def say(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.reply(" ".join([message.content for message in turn.messages]) + "!")

    inner = bb.Webhook("inner", agent(say), bb.Respond())
    app = bb.App(clock=clock)
    app.register(later(bb.At(clock.now() + timedelta(minutes=1), bb.At(clock.now(), inner)), bb.Emit("ok"), id="f"))
    path = "/v1/chat/completions"
    async with serving(app.asgi()) as url, httpx2.AsyncClient(base_url=url) as http:
        assert (await http.post(path, json=body_of(path, "hi", "f"))).status_code == 200
        assert (await http.post("/v1/hooks/inner")).status_code == 404
        clock.advance(60)
        answer = None
        for _ in range(100):
            await rest()
            if (answer := await http.post("/v1/hooks/inner")).status_code != 404:
                break
        assert answer is not None and (answer.status_code, answer.text) == (200, "hi!")


# --- servers that die ---


async def test_case_95_trial_l4_what_was_accepted_runs_though_the_server_dies_at_once(hooked: Site) -> None:
    accepted = []
    for number in range(3):
        hooked.start()
        async with httpx2.AsyncClient(base_url=hooked.url, timeout=30) as http:
            headers = {"X-Kind": f"kind-{number}"}
            answer = await http.post("/v1/hooks/quiet", content=f"call-{number}".encode(), headers=headers)
            hooked.kill()
        assert (answer.status_code, hooked.notes()) == (202, [])
        accepted.append(answer.headers["x-run-id"])

    for run_id in accepted:
        hooked.open(f"quiet.{run_id}")
    hooked.start()
    await until(lambda: len(hooked.notes()) >= 3)

    expected = [f"quiet {run_id} call-{number} kind-{number}" for number, run_id in enumerate(accepted)]
    assert sorted(hooked.notes()) == sorted(expected)


async def test_an_answer_that_was_cut_off_is_had_by_calling_again(hooked: Site) -> None:
    hooked.start()
    async with httpx2.AsyncClient(base_url=hooked.url, timeout=30) as http:
        asking = asyncio.ensure_future(http.post("/v1/hooks/answers", content=b"x", headers={"X-Run-Id": "r"}))
        await hooked.waits("last.r")
        hooked.kill()
        with pytest.raises(httpx2.TransportError):
            await asking

    hooked.open("last.r")
    hooked.start()
    async with httpx2.AsyncClient(base_url=hooked.url, timeout=30) as http:
        answer = await http.post("/v1/hooks/answers", content=b"x", headers={"X-Run-Id": "r"})
    assert (answer.status_code, answer.text) == (200, "first\n\nlast")
    assert hooked.notes() == ["first r", "last r x None"]


async def test_who_calls_is_told_that_the_server_goes_whatever_is_still_tidied_up(hooked: Site) -> None:
    hooked.start("--grace", "0.1")
    async with httpx2.AsyncClient(base_url=hooked.url, timeout=30) as http:
        asking = asyncio.ensure_future(http.post("/v1/hooks/tidy", content=b"x", headers={"X-Run-Id": "r"}))
        await hooked.waits("tidy.r")
        hooked.terminate()
        answer = await asking
    assert answer.status_code == 503 and "X-Run-Id: r" in answer.text
    assert answer.headers["x-run-id"] == "r" and answer.headers["retry-after"] == "1"
    await hooked.ended()


async def test_trial_l4_a_webhook_wakes_a_run_that_waits_on_the_server(hooked: Site) -> None:
    hooked.start()
    path = "/v1/chat/completions"
    async with httpx2.AsyncClient(base_url=hooked.url, timeout=30) as http:

        async def ask() -> str:
            answer = await http.post(path, json=body_of(path, "hi", "waits"), headers={"X-Run-Id": "w"})
            return str(answer.json()["choices"][0]["message"]["content"])

        assert await ask() == "Waiting for bell."
        assert (await http.post("/v1/hooks/bell", content=b"w")).status_code == 202
        said = ""
        for _ in range(200):
            if (said := await ask()) != "Waiting for bell.":
                break
            await asyncio.sleep(0.05)
        assert said == "The bell was rung."
