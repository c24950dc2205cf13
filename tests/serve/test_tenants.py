"""What is a tenant's is nobody else's: runs, sessions and conversations, in programs and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
import structlog
from starlette.requests import Request

import bb
from bb.flows.tree import Await, Bind, Emit, Peek
from tests.serve.kit import PATHS, agent, body_of, error_of
from tests.serve.stage import Stage, app_of, asgi, durable, hello
from tests.trials.kit import until

Reach = Callable[[bb.App, str | None], Awaitable[Any]]


async def _stream(app: bb.App, tenant: str | None) -> None:
    async with app.stream("f", "hi", run_id="r", tenant=tenant) as text:
        async for _ in text:
            pass


async def _resume(app: bb.App, tenant: str | None) -> None:
    await app.run("f", run_id="r", tenant=tenant)


async def _repeat(app: bb.App, tenant: str | None) -> None:
    await app.run("f", "hi", run_id="r", tenant=tenant)


async def _replace(app: bb.App, tenant: str | None) -> None:
    await app.run("f", "hi", run_id="r", replace=True, tenant=tenant)


async def _other_flow(app: bb.App, tenant: str | None) -> None:
    await app.run("g", "hi", run_id="r", tenant=tenant)


async def _submit(app: bb.App, tenant: str | None) -> None:
    await app.submit("f", "hi", run_id="r", tenant=tenant)


REACHES = [_stream, _resume, _repeat, _replace, _other_flow, _submit]


@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("tenant", ["b", None])
async def test_a_run_id_that_another_tenant_has_is_in_use(reach: Reach, tenant: str | None) -> None:
    app = app_of(durable(hello), durable(hello, "g"))
    first = await app.run("f", "hi", run_id="r", tenant="a")
    before = await app.events("r")
    with pytest.raises(bb.RunIdInUse, match="another tenant") as told:
        await reach(app, tenant)
    assert "'f'" not in str(told.value)  # not even of which flow it is
    assert await app.events("r") == before
    again = await app.run("f", "hi", run_id="r", tenant="a")
    assert again.answer == first.answer and again.replayed


@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("tenant", ["b", None])
async def test_nobody_joins_a_run_of_another_tenant_while_it_goes_on(reach: Reach, tenant: str | None) -> None:
    stage = Stage()
    app = app_of(durable(stage), durable(hello, "g"))
    going = asyncio.ensure_future(app.run("f", "hi", run_id="r", tenant="a"))
    await stage.began.wait()
    with pytest.raises(bb.RunIdInUse, match="another tenant"):
        await reach(app, tenant)
    joined = asyncio.ensure_future(app.run("f", run_id="r", tenant="a"))
    await asyncio.sleep(0)
    stage.may.set()
    assert (await going).answer == (await joined).answer == "half whole" and stage.ended == ["done"]


async def test_who_comes_before_the_run_was_let_in_waits_and_is_refused_then() -> None:
    app = app_of(durable(hello))
    mine, theirs = await asyncio.gather(
        app.run("f", "hi", run_id="r", tenant="a"),
        app.run("f", "hi", run_id="r", tenant="b"),
        return_exceptions=True,
    )
    assert isinstance(mine, bb.Outcome) and isinstance(theirs, bb.RunIdInUse)


async def test_a_run_of_nobody_is_no_tenants() -> None:
    app = app_of(durable(hello))
    await app.run("f", "hi", run_id="r")
    with pytest.raises(bb.RunIdInUse, match="another tenant"):
        await app.run("f", "hi", run_id="r", tenant="a")


async def test_the_operator_sees_and_ends_the_runs_of_all() -> None:
    down = [True]

    async def fragile(turn: bb.Turn, chat: bb.ModelChat) -> None:
        if down:
            raise RuntimeError("down")
        turn.reply("up")

    app = app_of(durable(fragile))
    async with app:
        with pytest.raises(bb.AgentFailed):
            await app.run("f", "hi", run_id="r", tenant="a")
        assert [run.run_id for run in await app.runs()] == ["r"] and await app.events("r")
        down.clear()
        await app.retry("r")
        assert (await app.run("f", "hi", run_id="r", tenant="a")).answer == "up"
        await app.cancel("r")


async def test_a_call_of_a_webhook_that_another_tenant_made_is_in_use() -> None:
    app = bb.App()
    app.on_start(bb.Chain([bb.Webhook("w", agent(hello), bb.Respond())]).with_id("site"))
    async with app:
        assert (await app.fire("w", b"x", {}, run_id="r", tenant="a")).answer == "hello r"
        for other in ("b", None):
            with pytest.raises(bb.RunIdInUse, match="another tenant"):
                await app.fire("w", b"x", {}, run_id="r", tenant=other)
        assert (await app.fire("w", b"x", {}, run_id="r", tenant="a")).answer == "hello r"


def counting() -> bb.DurableFlow:
    """Says what the session held before."""

    @bb.op(effects=["pure"])
    def more(known: list[str] | None, said: str) -> list[str]:
        return [*(known or ()), said]

    known = bb.ref("known", list)
    steps = Bind("known", Peek("known")).next(Bind("known", more(known, bb.ref("input", str)))).next(Emit("{known}"))
    return steps.next(bb.Respond()).with_id("f").with_params(input=str).durable()


async def test_a_session_holds_within_a_tenant() -> None:
    app = app_of(counting())

    async def say(said: str, tenant: str | None, session: str = "s", run_id: str | None = None) -> str:
        prefix = "" if tenant is None else f"{tenant}:"
        outcome = await app.run("f", said, session_id=session, tenant=tenant, run_id=run_id)
        assert outcome.session_id == (session if session.startswith(prefix) else prefix + session)
        return outcome.answer

    assert "one" in await say("one", "a")
    assert "one" not in await say("two", "b")
    assert "one" not in await say("three", None)
    assert "one" in await say("four", "a", "a:s")  # as it is kept is as good
    assert "one" in await say("five", None, "a:s")  # which is how the operator names it
    assert "one" not in await say("six", "b", "a:s", "a:s")
    assert (await app.run("f", "seven", tenant="b", run_id="a:s:2")).session_id == "b:a:s:2"


async def test_the_session_of_a_run_goes_with_it() -> None:
    app = bb.App(retention=timedelta(0))
    app.register(asking())
    await app.run("f", run_id="r", tenant="a")
    await app.deliver("later", "news", session_id="a:r")

    async def kept() -> list[str]:
        return [info.name for info in await app.store.list("") if "a:r" in info.name]

    assert await kept()
    await app.cancel("r")
    await asyncio.sleep(0.01)
    assert await app.prune() == 1 and not await kept()


def asking(id: str = "f") -> bb.DurableFlow:
    return (Emit("Who?") >> Await("user", bind="x")).next(Emit("Hello {x}.")).with_id(id).durable()


async def test_a_conversation_is_a_tenants() -> None:
    app = app_of(asking())
    a, b, nobody = (app.session("f", "s", tenant=tenant) for tenant in ("a", "b", None))
    assert (await a.start()).prompt == "Who?"
    assert a.session_id == "a:s"
    for other in (b, nobody):
        assert await other.waiting_for() is None and await other.current() is None
        with pytest.raises(bb.NotWaiting):
            await other.send("Bob")

    under_its_name = app.session("f", "a:s")
    reaches: list[Callable[[], Awaitable[Any]]] = [
        under_its_name.start,
        under_its_name.waiting_for,
        under_its_name.current,
        under_its_name.abandon,
        lambda: under_its_name.send("Bob"),
        lambda: under_its_name.accept("Bob"),
    ]
    for reach in reaches:
        with pytest.raises(bb.RunIdInUse, match="another tenant"):
            await reach()
    assert (await a.send("Ann")).outcome.answer.endswith("Hello Ann.")


async def test_what_a_tenants_run_waits_for_can_be_answered_in_its_own_session() -> None:
    app = app_of(asking())
    async with app:
        parked = await app.run("f", run_id="r", tenant="a")
        assert (parked.session_id, parked.waiting_for) == ("a:r", "user")
        assert (await app.session("f", "r", tenant="a").send("Ann")).outcome.answer.endswith("Hello Ann.")


@pytest.mark.parametrize("tenant", ["", "a:b", "x" * 64, "ann@site", "at", 5])
async def test_a_tenant_is_the_same_in_a_program_as_over_http(tenant: Any) -> None:
    app = app_of(durable(hello))
    with pytest.raises(bb.InvalidId, match="is no tenant"):
        await app.run("f", "hi", tenant=tenant)
    with pytest.raises(bb.InvalidId, match="is no tenant"):
        app.session("f", "s", tenant=tenant)
    with pytest.raises(bb.InvalidId, match="is no tenant"):
        await app.fire("w", b"", {}, tenant=tenant)


@pytest.fixture
def shared() -> tuple[bb.App, bb.App]:
    """Two apps over one store: one has tenants."""
    store = bb.MemStore()
    return app_of(durable(hello), asking("g"), store=store), app_of(durable(hello), asking("g"), store=store)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_service_without_tenants_gives_nothing_of_theirs_away(
    path: str, stream: bool, shared: tuple[bb.App, bb.App]
) -> None:
    theirs, open_to_all = shared
    headers = {"X-Run-Id": "r", "X-Owner": "a"}
    async with asgi(theirs.asgi(tenant=lambda request: request.headers["x-owner"], default="f")) as http:
        assert (await http.post(path, json=body_of(path, "hi", "f"), headers=headers)).status_code == 200
        assert (await http.get("/v1/runs/r/events", headers=headers)).status_code == 200
        talk = {"X-Session-Id": "s", "X-Owner": "a"}
        assert "Who?" in (await http.post(path, json=body_of(path, "hi", "g"), headers=talk)).text

    async with asgi(open_to_all.asgi(default="f")) as http:
        asked = body_of(path, "hi", "f", stream=stream)
        status, _, told = error_of(path, await http.post(path, json=asked, headers={"X-Run-Id": "a:r"}))
        assert status == 409 and "a:r belongs to something else" in told
        unknown = await http.get("/v1/runs/a:q/events", headers={"X-Run-Id": "x"})
        known = await http.get("/v1/runs/a:r/events", headers={"X-Run-Id": "x"})
        assert known.status_code == unknown.status_code == 404
        assert known.text == unknown.text.replace("a:q", "a:r")
        said = body_of(path, "Bob", "g", stream=stream)
        status, _, told = error_of(path, await http.post(path, json=said, headers={"X-Session-Id": "a:s"}))
        assert status == 409 and "Who" not in told
    assert (await theirs.session("g", "s", tenant="a").current()) is not None


async def test_a_tenant_follows_no_run_that_a_program_began_for_another(shared: tuple[bb.App, bb.App]) -> None:
    app, _ = shared
    await app.run("f", "hi", run_id="a:r", tenant="b")
    async with asgi(app.asgi(tenant=lambda request: request.headers["x-owner"], default="f")) as http:
        assert (await http.get("/v1/runs/r/events", headers={"X-Owner": "a"})).status_code == 404
        answer = await http.post(PATHS[0], json=body_of(PATHS[0], "hi"), headers={"X-Owner": "a", "X-Run-Id": "r"})
        assert error_of(PATHS[0], answer)[0] == 409


@pytest.mark.parametrize("returned", ["a:b", None, 5])
async def test_a_hook_that_names_no_tenant_is_the_sites_fault_and_logged(returned: Any) -> None:
    def tenant(_: Request) -> str:
        return returned

    with structlog.testing.capture_logs() as logs:
        async with asgi(app_of(durable(hello)).asgi(tenant=tenant)) as http:
            answer = await http.post(PATHS[0], json=body_of(PATHS[0], "hi"), headers={"X-Run-Id": "r"})
    status, _, told = error_of(PATHS[0], answer)
    assert (status, told) == (500, "the request failed (run r)")
    assert any("tenant returned" in log.get("error", "") for log in logs)


async def test_a_job_is_its_tenants_whoever_runs_it() -> None:
    flow = (Peek("n") >> Bind("n", "{word}") >> Await("go", bind="x") >> Emit("{x}")).with_id("f")
    app = app_of(flow.with_params(word=str).durable())
    await app.submit("f", params={"word": "mine"}, run_id="r", session_id="s", tenant="a")
    with pytest.raises(bb.RunIdInUse, match="another tenant"):
        await app.submit("f", run_id="r", session_id="s", tenant="b")
    await app.start()
    try:
        await until(lambda: _is(app, "parked"))
        assert {run.session_id for run in await app.runs()} == {"a:s"}
        await app.deliver("go", "gone on", session_id="a:s")
        await until(lambda: _is(app, "finished"))
    finally:
        await app.stop()
    with pytest.raises(bb.RunIdInUse, match="another tenant"):
        await app.run("f", run_id="r")
    assert (await app.run("f", run_id="r", tenant="a")).answer == "gone on"


async def _is(app: bb.App, status: str) -> bool:
    return [run.status for run in await app.runs()] == [status]
