"""Following a run: trials M1 to M5."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest

import bb
from bb.flows.tree import Await, Emit, Respond
from tests.serve.kit import PATHS, agent, body_of, error_of, frames_of, serving
from tests.serve.stage import Stage, app_of, asgi, durable, hello


def ids_of(text: str) -> list[str]:
    return [line.removeprefix("id: ") for line in text.splitlines() if line.startswith("id: ")]


def kinds_of(text: str) -> list[str | None]:
    return [event for event, _ in frames_of(text)]


@asynccontextmanager
async def following(http: httpx2.AsyncClient, run_id: str, last: str = "") -> AsyncIterator[AsyncIterator[str]]:
    """The lines of the events of a run."""
    headers = {"Last-Event-ID": last} if last else {}
    async with http.stream("GET", f"/v1/runs/{run_id}/events", headers=headers) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-run-id"] == run_id
        yield answer.aiter_lines()


async def next_id(lines: AsyncIterator[str]) -> str:
    async for line in lines:
        if line.startswith("id: "):
            return line.removeprefix("id: ")
    raise AssertionError("there was no event")


async def test_trial_m1_ids_increase_and_each_is_a_place_to_go_on_from() -> None:
    steps = [agent(hello, f"a{number}").with_id(f"s{number}") for number in range(60)]
    flow = steps[0]
    chain = bb.All(*steps[1:])
    app = app_of((flow >> chain >> Respond()).with_id("f").durable())
    await app.run("f", "hi", run_id="r")

    async with asgi(app.asgi()) as http:
        everything = (await http.get("/v1/runs/r/events")).text
        ids = ids_of(everything)
        assert len(ids) == 62 and all(id.startswith("r:") for id in ids)
        positions = [int(id.removeprefix("r:")) for id in ids]
        assert positions == sorted(set(positions))
        for at, id in enumerate(ids[:-1]):
            rest = await http.get("/v1/runs/r/events", headers={"Last-Event-ID": id})
            assert ids_of(rest.text) == ids[at + 1 :]
        assert (await http.get("/v1/runs/r/events", headers={"Last-Event-ID": ids[-1]})).status_code == 204


async def test_a_long_log_does_not_keep_others_waiting() -> None:
    async def steps(turn: bb.Turn, chat: bb.ModelChat) -> None:
        for number in range(500):
            await turn.step(f"s{number}", str, number)

    app = app_of(durable(steps))
    await app.run("f", "hi", run_id="r")
    told = asyncio.ensure_future(app.events("r"))
    turns = 0
    while not told.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(await told) > 500 and turns > 5


async def test_trial_m1_ten_thousand_events_in_a_tight_loop() -> None:
    async def send(text: str) -> None:
        """Sends nothing."""

    app = app_of(bb.Repeat(10_000, bb.Notify(send)).with_id("f").durable())
    await app.run("f", "hi", run_id="r")
    async with asgi(app.asgi()) as http:
        ids = ids_of((await http.get("/v1/runs/r/events")).text)
        positions = [int(id.removeprefix("r:")) for id in ids]
        assert len(ids) == 10_002 and positions == sorted(set(positions))
        for at in (0, 1, 4_999, 9_998, 10_000):
            rest = await http.get("/v1/runs/r/events", headers={"Last-Event-ID": ids[at]})
            assert ids_of(rest.text) == ids[at + 1 :]


async def test_trials_m2_m4_everybody_sees_everything_whoever_drops_when(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bb.engine.runs.trail._LOOK", 3600.0)  # so what is recorded here has to wake them
    stages = [Stage() for _ in range(4)]
    flow = stages[0].flow("s0") >> stages[1].flow("s1") >> stages[2].flow("s2") >> stages[3].flow("s3")
    app = app_of(flow.with_id("f").durable())
    async with serving(app.asgi()) as url, httpx2.AsyncClient(base_url=url, timeout=30) as http:
        run = asyncio.ensure_future(app.run("f", "hi", run_id="r"))
        await stages[0].began.wait()
        steady = [asyncio.ensure_future(http.get("/v1/runs/r/events")) for _ in range(2)]
        seen: list[str] = []
        for stage in stages:
            async with following(http, "r", seen[-1] if seen else "") as lines:
                if not seen:
                    seen.append(await next_id(lines))
                for _ in range(2):  # and twice it drops before anything comes
                    async with following(http, "r", seen[-1]):
                        pass
                stage.may.set()
                seen.append(await next_id(lines))
        await run
        seen += ids_of((await http.get("/v1/runs/r/events", headers={"Last-Event-ID": seen[-1]})).text)
        texts = {(await one).text for one in steady}
        assert len(texts) == 1 and ids_of(texts.pop()) == seen and len(seen) == 6


async def test_trial_m5_a_run_that_waits_begins_once_and_ends_once() -> None:
    flow = (Emit("Who?") >> Await("user", bind="x")).next(Emit("Hello {x}.")).with_id("f").durable()
    app = app_of(flow)
    async with asgi(app.asgi()) as http:
        asked = await http.post(PATHS[0], json=body_of(PATHS[0], "hi"), headers={"X-Run-Id": "r"})
        assert asked.headers["x-session-id"] == "r"
        parked = (await http.get("/v1/runs/r/events")).text
        assert kinds_of(parked) == ["run.start", "run.parked"]
        last = {"Last-Event-ID": ids_of(parked)[-1]}
        assert (await http.get("/v1/runs/r/events", headers=last)).status_code == 204

        await http.post(PATHS[0], json=body_of(PATHS[0], "Ann"), headers={"X-Session-Id": "r"})
        rest = (await http.get("/v1/runs/r/events", headers=last)).text
        assert kinds_of(rest) == ["run.resumed", "flow.end", "run.end"]


@pytest.mark.parametrize("debug", [False, True])
async def test_a_failure_is_an_event_and_quotes_the_error_only_to_developers(debug: bool) -> None:
    async def fail(turn: bb.Turn, chat: bb.ModelChat) -> None:
        raise RuntimeError("the secret of the house")

    app = app_of((agent(fail) >> Respond()).with_id("f").durable(retries=1))
    with pytest.raises(bb.AgentFailed):
        await app.run("f", "hi", run_id="r")
    async with asgi(app.asgi(debug=debug)) as http:
        told = (await http.get("/v1/runs/r/events")).text
    assert kinds_of(told) == ["run.start", "run.retry", "run.end"] and ("secret" in told) is debug
    assert ('"error":"RuntimeError"' in told) is debug


async def test_a_run_that_is_dropped_while_it_is_followed_ends_the_stream() -> None:
    stage = Stage()
    app = app_of(durable(stage))
    async with serving(app.asgi()) as url, httpx2.AsyncClient(base_url=url, timeout=30) as http:
        run = asyncio.ensure_future(app.run("f", "hi", run_id="r"))
        await stage.began.wait()
        async with following(http, "r") as lines:
            assert await next_id(lines) == "r:0"
            await app._runner.store.delete("run/r")
            assert not [line async for line in lines if line.startswith("id: ")]
        run.cancel()
        with pytest.raises((asyncio.CancelledError, bb.Interruption)):
            await run


async def test_a_store_that_fails_ends_the_stream_and_not_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    app = app_of(durable(stage))
    async with serving(app.asgi()) as url, httpx2.AsyncClient(base_url=url, timeout=30) as http:
        run = asyncio.ensure_future(app.run("f", "hi", run_id="r"))
        await stage.began.wait()
        async with following(http, "r") as lines:
            first = await next_id(lines)
            with monkeypatch.context() as broken:
                broken.setattr(app.store, "read", _fails)
                assert not [line async for line in lines if line.startswith("id: ")]
        stage.may.set()
        await run
        rest = await http.get("/v1/runs/r/events", headers={"Last-Event-ID": first})
        assert kinds_of(rest.text) == ["flow.end", "run.end"]


async def _fails(stream: str, start: int = 0) -> list[bytes]:
    raise bb.StoreError("the disk is gone")


@pytest.mark.parametrize("last", ["r", "s:1", "r:x", "r:-1", "r:²", "r:", "r:" + "9" * 30])
async def test_a_place_that_is_none_of_the_run_is_refused(last: str) -> None:
    app = app_of(durable(hello))
    await app.run("f", "hi", run_id="r")
    async with asgi(app.asgi()) as http:
        answer = await http.get("/v1/runs/r/events", headers=[(b"Last-Event-ID", last.encode())])
    assert error_of("/v1/runs/r/events", answer)[0] == 400


@pytest.mark.parametrize(("run_id", "status"), [("nobody", 404), ("a b", 400), ("x" * 129, 400), ("a%2Fb", 404)])
async def test_a_run_that_is_not_kept_cannot_be_followed(run_id: str, status: int) -> None:
    async with asgi(app_of(durable(hello)).asgi()) as http:
        answer = await http.get(f"/v1/runs/{run_id}/events")
    assert error_of("/v1/runs", answer)[0] == status


async def test_an_event_says_when_and_where() -> None:
    app = app_of(durable(hello))
    await app.run("f", "hi", run_id="r")
    async with asgi(app.asgi()) as http:
        (_, first), *_ = frames_of((await http.get("/v1/runs/r/events")).text)
    told = json.loads(first)
    assert told["kind"] == "run.start" and told["run_id"] == "r" and told["path"] == "f"


@pytest.mark.parametrize("tenant", [None, "ann"])
async def test_the_events_of_a_turn_are_those_of_its_run(tenant: str | None) -> None:
    flow = (Emit("Who?") >> Await("user", bind="x")).next(Emit("Hello {x}.")).with_id("f").durable()
    of = None if tenant is None else (lambda _: tenant)
    async with asgi(app_of(flow).asgi(tenant=of)) as http:
        for session, named in (("s", "t1"), ("s", "t3"), ("made-up", "")):
            turns = []
            for said, turn in (("hi", named), ("Ann", named and f"{named}-2")):
                headers = {"X-Session-Id": session} | ({"X-Run-Id": turn} if turn else {})
                answer = await http.post(PATHS[0], json=body_of(PATHS[0], said, "f"), headers=headers)
                turns.append(answer.headers["x-run-id"])
            told = []
            for turn in turns:
                events = await http.get(f"/v1/runs/{turn}/events", headers={"X-Session-Id": session})
                ids = ids_of(events.text)
                assert all(id.startswith(f"{turn}:") for id in ids)
                told.append(kinds_of(events.text))
                again = await http.get(
                    f"/v1/runs/{turn}/events", headers={"X-Session-Id": session, "Last-Event-ID": ids[-2]}
                )
                assert ids_of(again.text) == ids[-1:]
            assert turns[0] != turns[1] and told[0] == told[1] and {"run.parked", "run.end"} <= {*told[0]}
            for other in ({}, {"X-Session-Id": "other"}):
                assert (await http.get(f"/v1/runs/{turns[1]}/events", headers=other)).status_code == 404


async def test_the_events_of_a_turn_in_a_session_that_is_named_after_its_first_run() -> None:
    flow = (Emit("Who?") >> Await("user", bind="x")).next(Emit("Hello {x}.")).with_id("f").durable()
    async with asgi(app_of(flow, durable(hello, "g")).asgi()) as http:
        first = await http.post(PATHS[0], json=body_of(PATHS[0], "hi", "f"))
        headers = {"X-Session-Id": first.headers["x-session-id"]}
        second = await http.post(PATHS[0], json=body_of(PATHS[0], "Ann", "f"), headers=headers)
        for answer in (first, second):
            events = await http.get(f"/v1/runs/{answer.headers['x-run-id']}/events", headers=headers)
            assert kinds_of(events.text)[-1] == "run.end"
        alone = await http.post(PATHS[0], json=body_of(PATHS[0], "hi", "g"), headers=headers)
        events = await http.get(f"/v1/runs/{alone.headers['x-run-id']}/events", headers=headers)  # no turn, but a run
        assert kinds_of(events.text)[-1] == "run.end"
