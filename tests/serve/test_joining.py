"""One run, and several requests for it."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest

import bb
from bb.flows.tree import Await, Emit
from tests.crashes.processes import until
from tests.serve.kit import PATHS, agent, body_of, error_of, serving, text_of
from tests.serve.stage import Stage, app_of, asgi, durable, hello, raw


@pytest.mark.parametrize("path", PATHS)
async def test_trial_h10_who_comes_again_joins_and_gets_everything(path: str) -> None:
    stage = Stage()
    flow = (agent(hello, "h") >> bb.Respond() >> agent(stage, "s") >> bb.Respond()).with_id("f").durable()
    async with serving(app_of(flow).asgi()) as url, httpx2.AsyncClient(base_url=url) as http:

        async def ask(stream: bool) -> httpx2.Response:
            return await http.post(path, json=body_of(path, "hi", stream=stream), headers={"X-Run-Id": "r"})

        first = asyncio.ensure_future(ask(True))
        await stage.began.wait()
        others = [asyncio.ensure_future(ask(stream)) for stream in (True, False)]
        await until(lambda: not first.done())
        stage.may.set()
        answers = [await first, *[await other for other in others]]

    texts = [text_of(path, answer) for answer in answers]
    assert set(texts) == {"hello r\n\nhalf whole"} and stage.ended == ["done"]


@pytest.mark.parametrize("stream", [False, True])
async def test_trials_c5_h8_a_run_is_one_run_over_http_and_in_the_process(stream: bool) -> None:
    stage = Stage()
    app = app_of(durable(stage))
    given = bb.Input((bb.Message("hi"),), bb.Request(model="f"))
    async with serving(app.asgi()) as url, httpx2.AsyncClient(base_url=url) as http:
        inside = asyncio.ensure_future(app.run("f", given, run_id="r"))
        body = body_of(PATHS[0], "hi", "f", stream=stream)
        outside = asyncio.ensure_future(http.post(PATHS[0], json=body, headers={"X-Run-Id": "r"}))
        await stage.began.wait()
        stage.may.set()
        assert (await inside).answer == text_of(PATHS[0], await outside) == "half whole"
    assert stage.ended == ["done"]


@pytest.mark.parametrize("first", ["served", "called"])
async def test_trial_c5_what_a_flow_remembers_holds_over_http_and_in_the_process(first: str) -> None:
    done: list[str] = []

    @bb.op()
    def act(what: str) -> str:
        done.append(what)
        return f"{what} {len(done)}"

    parts = (bb.Memo("x", act("memo")), bb.Once("charge", act("once"), bind="y"), bb.Checkpoint("c"))
    flow = bb.Chain([*parts, Emit("{x}, {y}")])
    app = app_of(flow.with_id("f").durable(), flow.with_id("g"))
    given = bb.Input((bb.Message("hi"),), bb.Request(model="f"))
    async with serving(app.asgi()) as url, httpx2.AsyncClient(base_url=url) as http:

        async def served(model: str, run_id: str) -> str:
            headers = {"X-Run-Id": run_id, "X-Session-Id": "s"}
            return text_of(PATHS[0], await http.post(PATHS[0], json=body_of(PATHS[0], "hi", model), headers=headers))

        async def called(run_id: str) -> str:
            return (await app.run("f", given, run_id=run_id, session_id="s")).answer

        answers = [await served("f", "r") if first == "served" else await called("r")]
        answers += [await called("r"), await served("f", "r"), await called("q"), await served("f", "p")]
        assert answers == ["memo 1, once 2"] * 5 and done == ["memo", "once"]

        models = (await http.get("/v1/models")).json()["data"]
        assert [(model["id"], model["durable"]) for model in models] == [("f", True), ("g", False)]
        await served("g", "o")
        await served("g", "o")
    assert done.count("once") == 3  # what is not durable remembers nothing of it


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_run_that_is_busy_elsewhere_is_a_409_for_later(tmp_path: Path, path: str, stream: bool) -> None:
    stage = Stage()
    holder = app_of(durable(stage), store=bb.FileStore(tmp_path))
    other = app_of(durable(stage), store=bb.FileStore(tmp_path))
    given = bb.Input((bb.Message("hi"),))
    holding = asyncio.ensure_future(holder.run("f", given, run_id="r"))
    await stage.began.wait()

    async with asgi(other.asgi(wait=timedelta(milliseconds=50))) as http:
        answer = await http.post(path, json=body_of(path, "hi", stream=stream), headers={"X-Run-Id": "r"})
        status, _, message = error_of(path, answer)
        assert status == 409 and int(answer.headers["retry-after"]) >= 1 and "X-Run-Id: r" in message

        stage.may.set()
        await holding
        answer = await http.post(path, json=body_of(path, "hi", stream=stream), headers={"X-Run-Id": "r"})
        assert text_of(path, answer) == "half whole"
    await other.stop()
    await holder.stop()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_session_that_is_taken_is_a_conflict(path: str, stream: bool) -> None:
    flows = [(Emit("Who?") >> Await("user", bind="x")).next(Emit("Hello.")).with_id(id).durable() for id in "fg"]
    async with asgi(app_of(*flows).asgi()) as http:
        headers = {"X-Session-Id": "s"}
        assert (await http.post(path, json=body_of(path, "hi", "f"), headers=headers)).status_code == 200
        answer = await http.post(path, json=body_of(path, "hi", "g", stream=stream), headers=headers)
        assert error_of(path, answer)[0] == 409

        body = {"model": "f", "messages": [{"role": "system", "content": "be brief"}], "stream": stream}
        assert error_of(path, await http.post(path, json=body, headers=headers))[0] == 400


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tenant", [None, "ann"])
@pytest.mark.parametrize("session", [None, "s"])
async def test_each_request_of_a_conversation_gets_its_own_answer_whenever_it_comes_again(
    path: str, stream: bool, tenant: str | None, session: str | None
) -> None:
    """Also the first, which may not have named the session, and those of a conversation that is over."""
    first = (Emit("Where to?") >> Await("city", bind="c")).next(Emit("When in {c}?"))
    trip = first.next(Await("day", bind="d")).next(Emit("{c} on {d}.")).with_id("trip").durable()
    app = app_of(trip)
    async with asgi(app.asgi(tenant=None if tenant is None else lambda _: tenant)) as http:

        async def say(said: str, run_id: str, session: str | None) -> str:
            headers = {"X-Run-Id": run_id} | ({"X-Session-Id": session} if session else {})
            answer = await http.post(path, json=body_of(path, said, stream=stream), headers=headers)
            assert answer.headers["x-run-id"] == run_id
            assert answer.headers["x-session-id"] == (session or run_id)
            return text_of(path, answer)

        later = session or "r1"
        said = [("hi", "r1", session), ("Rome", "r2", later), ("Monday", "r3", later)]
        heard = ["Where to?", "When in Rome?", "Rome on Monday."]
        for count in (1, 2, 3):
            assert await say(*said[count - 1]) == heard[count - 1]
            assert [await say(*turn) for turn in said[:count]] == heard[:count]
            assert await say("hi", "r1", later) == "Where to?"
        assert await say("hello", "r4", later) == "Where to?"  # another conversation
        assert [await say(*turn) for turn in said] == heard
        assert await say("Oslo", "r5", later) == "When in Oslo?"
        assert [await say(*turn) for turn in said] == heard
        assert len(await app.runs()) == 2


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_run_that_was_cancelled_is_a_conflict(path: str, stream: bool) -> None:
    stage = Stage()
    app = app_of(durable(stage))
    async with serving(app.asgi()) as url, httpx2.AsyncClient(base_url=url) as http:
        body = body_of(path, "hi", stream=stream)
        asking = asyncio.ensure_future(http.post(path, json=body, headers={"X-Run-Id": "r"}))
        await stage.began.wait()
        await app.cancel("r")
        answer = await asking
    assert "run r was cancelled" in answer.text
    assert stream or error_of(path, answer)[0] == 409


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failed_run_is_not_retried_by_clients_that_would_start_another(stream: bool) -> None:
    async def fail(turn: bb.Turn, chat: bb.ModelChat) -> None:
        raise RuntimeError("a secret")

    async with asgi(app_of(durable(fail)).asgi(debug=True)) as http:
        for headers, said in (({}, "false"), ({"X-Run-Id": "r"}, None)):
            answer = await http.post(PATHS[0], json=body_of(PATHS[0], "hi", stream=stream), headers=headers)
            assert "a secret" in answer.text
            assert stream or answer.headers.get("x-should-retry") == said


@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_whose_text_became_void_says_where_to_go_on(path: str) -> None:
    heard = asyncio.Event()
    tries: list[int] = []

    async def flaky(turn: bb.Turn, chat: bb.ModelChat) -> None:
        tries.append(1)
        async with turn.stream() as out:
            await out.write("half ")
            if len(tries) == 1:
                await heard.wait()
                raise RuntimeError("not yet")
            await out.write("whole")

    app = app_of((agent(flaky) >> bb.Respond()).with_id("f").durable(retries=1))

    def listening(got: bytes) -> bool:
        if b"half" in got:
            heard.set()
        return False

    body, headers = body_of(path, "hi", stream=True), {"X-Run-Id": "r"}
    _, _, broken = await raw(app.asgi(), json.dumps(body).encode(), [(b"x-run-id", b"r")], listening, path=path)
    assert b"the run goes on: send the same request again with X-Run-Id: r" in broken

    async with asgi(app.asgi()) as http:
        assert text_of(path, await http.post(path, json=body, headers=headers)) == "half whole" and len(tries) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_that_a_program_named_comes_back_only_as_an_id(stream: bool) -> None:
    flow = (Emit("Who?") >> Await("user", bind="x")).next(Emit("Hello.")).with_id("f").durable()
    app = app_of(flow)
    given = bb.Input((bb.Message("hi"),), bb.Request(model="f"))
    await app.session("f", "s").start(given, turn_id="t\r\nX-Evil: \u2028")

    body = json.dumps(body_of(PATHS[0], "hi", "f", stream=stream)).encode()
    status, headers, _ = await raw(app.asgi(), body, [(b"x-session-id", b"s")])
    assert status == 200 and headers["x-run-id"].isalnum() and "x-evil" not in headers
