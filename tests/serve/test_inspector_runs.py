"""What the inspector tells of runs, over HTTP."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import httpx2
import pytest
from attrs import frozen

import bb
from bb.codec import Codec, Types
from bb.flows.tree import Await, Emit
from bb.identity import tree
from bb.log import run_stream
from bb.redaction import redact
from bb.serve.inspector.view import plain, title_of
from bb.trace import Event
from tests.serve.kit import PATHS, agent, body_of, error_of, frames_of
from tests.serve.stage import Stage, app_of, durable, hello
from tests.serve.test_inspector_access import local
from tests.trials.kit import until


async def fail(turn: bb.Turn, chat: bb.ModelChat) -> None:
    """Fails."""
    raise RuntimeError("<script>alert(1)</script>")


def asking() -> bb.DurableFlow:
    return (Emit("Who?") >> Await("user", bind="x") >> Emit("Hello {x}.")).with_id("asks").durable()


async def got(http: httpx2.AsyncClient, address: str, **query: str) -> Any:
    answer = await http.get(address, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def parts(step: dict[str, Any]) -> dict[str, str]:
    """The standing of every part by path."""
    out = {step["path"]: step["standing"]}
    for part in step.get("parts", []):
        out |= parts(part)
    return out


async def test_the_list_tells_what_people_want_to_know() -> None:
    app = app_of(durable(hello, "ok"), durable(fail, "bad"), asking())
    await app.run("ok", "hi", run_id="r1")
    with pytest.raises(bb.AgentFailed):
        await app.run("bad", "hi", run_id="r2")
    await app.run("asks", "hi", run_id="r3")
    async with local(app.asgi(inspector=True)) as http:
        page = await got(http, "/runs/api/runs")
        assert page["flows"] == ["asks", "bad", "ok"] and page["kept"] == 3 and page["next"] is None
        runs = {run["id"]: run for run in page["runs"]}
        assert {id: run["status"] for id, run in runs.items()} == {"r1": "finished", "r2": "failed", "r3": "parked"}
        assert runs["r3"]["waiting_for"] == "user" and "alert(1)" in runs["r2"]["error"]
        assert [run["id"] for run in (await got(http, "/runs/api/runs", status="failed"))["runs"]] == ["r2"]
        assert [run["id"] for run in (await got(http, "/runs/api/runs", flow="ok"))["runs"]] == ["r1"]
        assert [run["id"] for run in (await got(http, "/runs/api/runs", text="3"))["runs"]] == ["r3"]
        assert {run["session"] for run in page["runs"]} == {"r1", "r2", "r3"}
        for id, flow in (("r4", "ok"), ("r5", "asks")):
            await app.run(flow, "hi", run_id=id, session_id="talk")
        found = (await got(http, "/runs/api/runs", text="tal"))["runs"]
        assert sorted((run["id"], run["status"], run["session"]) for run in found) == [
            ("r4", "finished", "talk"),
            ("r5", "parked", "talk"),
        ]
        for limit in ("0", "201", "-1", "x", "²", "9" * 5000, "0000000019999999", "000000001" + "0" * 5000):
            assert error_of("", await http.get("/runs/api/runs", params={"limit": limit}))[0] == 400
        first = await got(http, "/runs/api/runs")
        for start in ("x", "-", "²-x", f"{'9' * 5000}-x"):
            assert (await got(http, "/runs/api/runs", start=start))["runs"] == first["runs"]


async def test_thousands_of_runs_come_page_by_page() -> None:
    app = app_of(durable(hello))
    await app.run("f", "hi", run_id="first")
    records = await app.store.read("run/first")
    for number in range(2000):
        await app.store.append(run_stream(f"r{number:04}"), 0, records)
    async with local(app.asgi(inspector=True)) as http:
        ids: list[str] = []
        start, slowest = "", 0.0
        for _ in range(11):
            began = time.perf_counter()
            page = await got(http, "/runs/api/runs", limit="200", start=start)
            slowest = max(slowest, time.perf_counter() - began)
            ids += [run["id"] for run in page["runs"]]
            start = page["next"]
            if start is None:
                break
        assert sorted(ids) == ["first", *(f"r{number:04}" for number in range(2000))]
        assert ids[-1] == "first" and slowest < 2.0
        assert len((await got(http, "/runs/api/runs", text="r19"))["runs"]) == 50


@pytest.mark.parametrize(
    "key", ["flow", "status", "text", "start", "limit", "order", "'; DROP TABLE Cache; --", "a[b]"]
)
async def test_trial_r5_what_is_asked_for_is_text_and_never_a_statement(tmp_path: Path, key: str) -> None:
    app = bb.App(store=bb.FileStore(tmp_path))
    app.register(durable(hello))
    await app.run("f", "hi", run_id="r")
    known = key in {"flow", "status", "text"}
    async with local(app.asgi(inspector=True)) as http:
        for value in ("r' OR '1'='1", "'; DROP TABLE Cache; --", "%", "_", '"', "\0", "9-' OR 1=1 --", "٣-r"):
            answer = await http.get("/runs/api/runs", params={key: value})
            assert answer.status_code == (400 if key == "limit" else 200)
            if known:
                assert answer.json()["runs"] == []
        assert [run["id"] for run in (await http.get("/runs/api/runs")).json()["runs"]] == ["r"]
    await app.stop()


async def test_one_run_as_a_tree_and_one_place_of_it_in_full() -> None:
    async def step(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await turn.step("look", _look, 3)
        turn.reply("said", value=[1, 2])

    app = app_of((agent(step, "s").with_id("one") >> agent(fail, "b").with_id("two")).with_id("f").durable(retries=1))
    with pytest.raises(bb.AgentFailed):
        await app.run("f", "hi", run_id="r")
    async with local(app.asgi(inspector=True)) as http:
        run = await got(http, "/runs/api/runs/r")
        assert parts(run["root"]) == {"f": "failed", "f/one": "done", "f/two": "failed"}
        one, two = run["root"]["parts"]
        assert one["replays"] == 1 and [failure["attempt"] for failure in two["failures"]] == [1, 2]
        assert [attempt["cause"] for attempt in run["tries"]] == ["start", "retry"]
        assert run["started"] <= one["began"] <= one["ended"] <= run["now"]
        assert "said" not in json.dumps(run)  # what was said is there when asked for
        place = await got(http, "/runs/api/runs/r/at", path="f/one")
        assert [message["text"] for message in place["messages"]] == ["said"] and place["value"] == [1, 2]
        assert place["entries"] == [{"kind": "step", "name": "look", "value": {"found": 3}}]
        given = await got(http, "/runs/api/runs/r/at")
        assert [(message["role"], message["text"]) for message in given["messages"]] == [("user", "hi")]
        assert error_of("", await http.get("/runs/api/runs/r/at", params={"path": "f/none"}))[0] == 404


class Size(Enum):
    S = 1


@frozen
class Cake:
    name: str
    price: Decimal
    size: Size | None = None


def test_values_are_shown_without_what_only_the_codec_needs() -> None:
    types = Types()
    types.register(Cake, Size)
    codec = Codec(types, 2**20)
    for value, shown in (
        ((1, {2}, [None]), [1, [2], [None]]),
        ({"a": b"hi", "b": None}, {"a": "hi", "b": None}),
        (Cake("plum", Decimal("1.50")), {"Cake": {"name": "plum", "price": "1.50", "size": None}}),
        (Size.S, "Size.S"),
        (bb.Request(model="m", stop=("x",)), {"model": "m", "stop": ["x"]}),
        ({1: "a"}, {"~": "dict", "v": [[1, "a"]]}),  # JSON has no such object
        (b"\xff", {"~": "bytes", "v": "/w=="}),
    ):
        assert plain(codec.dump(value, "x")) == shown


async def test_runs_that_start_by_themselves_are_named_by_what_starts_them() -> None:
    app = bb.App()
    app.on_start((agent(hello) >> bb.Webhook("orders", agent(hello, "b"))).with_id("f").durable())
    async with app, local(app.asgi(inspector=True)) as http:
        fired = await app.fire("orders", b"{}", {})
        await until(lambda: not app._runner.running)
        runs = {run["id"]: run["trigger"] for run in (await got(http, "/runs/api/runs"))["runs"]}
        assert runs.pop(fired.run_id) == "webhook orders" and set(runs.values()) == {""}
        assert (await got(http, f"/runs/api/runs/{fired.run_id}"))["trigger"] == "webhook orders"
        given = await got(http, f"/runs/api/runs/{fired.run_id}/at")
        assert given["value"]["payload"] == "{}"


async def _look(what: int) -> dict[str, int]:
    return {"found": what}


@pytest.mark.parametrize("path", ["", "/at?path=f", "/events"])
async def test_a_run_that_is_not_kept(path: str) -> None:
    async with local(app_of(durable(hello)).asgi(inspector=True)) as http:
        answer = await http.get(f"/runs/api/runs/nobody{path}")
        assert error_of("", answer)[0] == 404 and answer.headers["x-run-id"] == "nobody"
        assert error_of("", await http.get(f"/runs/api/runs/a b{path}"))[0] == 400
        for action in ("retry", "cancel"):
            assert error_of("", await http.post(f"/runs/api/runs/nobody/{action}", json={}))[0] == 404


async def test_a_run_that_cannot_be_read_says_so() -> None:
    app = app_of(durable(hello))
    await app.store.append("run/r", 0, [b"junk"])
    async with local(app.asgi(inspector=True)) as http:
        status, _, message = error_of("", await http.get("/runs/api/runs/r"))
    assert status == 422 and "cannot be read" in message


async def test_a_run_whose_flow_is_not_registered_and_one_of_an_older_tree() -> None:
    store = bb.MemStore()
    old = agent(hello, "a").with_id("a") >> agent(fail, "b").with_id("b")
    before = app_of(old.with_id("f").durable(), old.with_id("gone").durable(), store=store)
    for flow in ("f", "gone"):
        with pytest.raises(bb.AgentFailed):
            await before.run(flow, "hi", run_id=flow)
    app = app_of((agent(hello, "a").with_id("a") >> agent(hello, "c").with_id("c")).with_id("f").durable(), store=store)
    async with local(app.asgi(inspector=True)) as http:
        gone, older = [await got(http, f"/runs/api/runs/{run_id}") for run_id in ("gone", "f")]
        assert parts(gone["root"]) == {"gone": "failed", "gone/a": "done", "gone/b": "failed"}
        assert (gone["is_known"], gone["is_changed"]) == (False, False)
        assert parts(older["root"]) == {"f": "failed", "f/a": "done", "f/b": "failed"}
        assert (older["is_known"], older["is_changed"]) == (True, True)
        status, _, message = error_of("", await http.post("/runs/api/runs/gone/retry", json={}))
        assert status == 409 and "not registered" in message


@pytest.mark.parametrize(
    ("when", "title"),
    [
        ("2026-03-01T08:00Z", "2026-03-01T08:00:00Z"),
        (bb.ref("order").due, "order.due"),
        ("{day}T08:00Z", '"{day}T08:00Z"'),
    ],
)
def test_a_trigger_is_called_by_its_time(when: str, title: str) -> None:
    assert title_of("at", tree(bb.At(when))["of"]) == title


async def test_an_event_is_delivered_to_a_parked_run_once() -> None:
    app = app_of(asking())
    service = app.asgi(inspector=True)
    async with service.lifespan(), local(service) as http:
        await app.run("asks", "hi", run_id="r", session_id="s")
        run = await got(http, "/runs/api/runs/r")
        assert parts(run["root"])["asks/body~await.1"] == "waiting"
        assert (run["asks"], run["session"], run["waiting_for"]) == ("Who?", "s", "user")
        deliver = "/runs/api/runs/r/deliver"
        for wrong in ({}, {"source": 1}, {"source": "user", "delivery_id": 1}):
            assert error_of("", await http.post(deliver, json=wrong))[0] == 400
        assert error_of("", await http.post(deliver, json={"source": "other", "payload": 1}))[0] == 409
        sent = {"source": "user", "payload": "Ann", "delivery_id": "d"}
        assert (await http.post(deliver, json=sent)).json() == {"ok": True}
        await until(_status(http, "r", "finished"))
        assert error_of("", await http.post(deliver, json=sent))[0] == 409
        assert (await app.run("asks", "hi", run_id="r", session_id="s")).answer.endswith("Hello Ann.")


def _status(http: httpx2.AsyncClient, run_id: str, status: str) -> Any:
    async def look() -> bool:
        return bool((await got(http, f"/runs/api/runs/{run_id}"))["status"] == status)

    return look


async def test_a_run_is_cancelled_and_retried() -> None:
    stage = Stage()
    app = app_of(durable(stage))
    service = app.asgi(inspector=True)
    async with service.lifespan(), local(service) as http:
        await app.submit("f", "hi", run_id="r")
        await stage.began.wait()
        assert error_of("", await http.post("/runs/api/runs/r/retry", json={}))[0] == 409  # it is going on
        assert (await http.post("/runs/api/runs/r/cancel", json={})).json() == {"ok": True}
        assert (await got(http, "/runs/api/runs/r"))["status"] == "cancelled" and stage.ended == ["cancelled"]
        stage.may.set()
        assert (await http.post("/runs/api/runs/r/retry", json={})).json() == {"ok": True}
        await until(_status(http, "r", "finished"))


async def test_a_run_is_followed_from_what_was_seen() -> None:
    app = app_of(durable(hello))
    await app.run("f", "hi", run_id="r")
    async with local(app.asgi(inspector=True)) as http:
        run = await got(http, "/runs/api/runs/r")
        told = await http.get("/runs/api/runs/r/events")
        assert [event for event, _ in frames_of(told.text)] == ["run.start", "flow.end", "run.end"]
        seen = {"Last-Event-ID": f"r:{run['length'] - 1}"}
        assert (await http.get("/runs/api/runs/r/events", headers=seen)).status_code == 204


async def test_case_97_what_was_replayed_shows_in_the_trace() -> None:
    calls: list[str] = []

    async def effect(turn: bb.Turn, chat: bb.ModelChat) -> None:
        calls.append(turn.run_id)
        turn.reply("done")

    app = app_of(durable(effect))
    async with local(app.asgi(inspector=True)) as http:
        for _ in range(2):
            answer = await http.post(PATHS[0], json=body_of(PATHS[0], "hi"), headers={"X-Run-Id": "r"})
            assert answer.status_code == 200 and answer.headers["x-run-id"] == "r"
        assert calls == ["r"]
        trace = await got(http, "/v1/diagnostics/trace")
        assert [(event["kind"], event["path"]) for event in trace if event["kind"].startswith("flow.")] == [
            ("flow.start", "f/body~agents.0"),
            ("flow.end", "f/body~agents.0"),
            ("flow.cached", "f/body~agents.0"),
        ]
        await app.run("f", "hi", run_id="q")
        assert {event["run_id"] for event in await got(http, "/runs/api/runs/r/trace")} == {"r"}
        assert {event["run_id"] for event in await got(http, "/v1/diagnostics/trace")} == {"r", "q"}


async def test_the_trace_is_bounded_and_shows_kinds_that_are_new() -> None:
    app = app_of(durable(hello))
    service = app.asgi(inspector=True)
    for number in range(3000):
        app._recent.event(Event("model.ask", f"r{number}", "f", datetime.now(UTC)))  # type: ignore[arg-type]  # not known yet
    async with local(service) as http:
        trace = await got(http, "/v1/diagnostics/trace")
    assert len(trace) == 2000 and trace[-1]["run_id"] == "r2999" and trace[0]["kind"] == "model.ask"


async def test_an_app_that_is_traced_already_still_is() -> None:
    recorder = bb.Recorder()
    app = bb.App(trace=recorder)
    app.register(durable(hello))
    async with local(app.asgi(inspector=True)) as http:
        app.asgi(inspector=True)  # twice is once
        await app.run("f", "hi", run_id="r")
        trace = await got(http, "/v1/diagnostics/trace")
    assert [event["kind"] for event in trace] == recorder.kinds() != []


async def test_secrets_are_not_shown_whenever_they_were_registered() -> None:
    async def blab(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.reply("the key is hunter22", value={"hunter22": ["hunter22"]})

    app = app_of(durable(blab))
    await app.run("f", "hunter22", run_id="r")
    redact("hunter22")
    async with local(app.asgi(inspector=True)) as http:
        texts = [
            (await http.get(f"/runs/api/runs/r{path}")).text
            for path in ("", "/at?path=f/body~agents.0", "/at", "/trace", "/events")
        ]
        texts.append((await http.get("/runs/api/runs")).text)
    assert not any("hunter22" in text for text in texts) and "[redacted]" in texts[1]


async def test_text_that_is_no_unicode_comes_through() -> None:
    async def odd(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.reply("\ud800 \x00 </script>", value={"a": float("inf"), "b": b"\x00"})

    app = app_of(durable(odd))
    await app.run("f", "hi", run_id="r")
    async with local(app.asgi(inspector=True)) as http:
        answer = await http.get("/runs/api/runs/r/at", params={"path": "f/body~agents.0"})
    assert json.loads(answer.content.decode("ascii"))["messages"][0]["text"] == "\ud800 \x00 </script>"


async def test_a_run_of_many_steps_is_told_quickly() -> None:
    many = bb.All(*(agent(hello, f"a{number}").with_id(f"s{number}") for number in range(1000)))
    app = app_of(many.with_id("f").durable())
    await app.run("f", "hi", run_id="r")
    async with local(app.asgi(inspector=True)) as http:
        began = time.perf_counter()
        run = await got(http, "/runs/api/runs/r")
        took = time.perf_counter() - began
    assert len(run["root"]["parts"]) == 1000 and took < 3.0
