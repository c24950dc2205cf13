"""Events: where they go, what they say, and in which order they may come."""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter
from datetime import UTC, datetime

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

import bb
from bb.trace import fields
from tests.strategies import Plot, World, plots

AT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
EVENT = bb.Event(
    kind="flow.end",
    run_id="r-1",
    path="f/x",
    at=AT,
    flow="x",
    dur_ns=7,
    usage=bb.Usage(input=1, reasoning=2),
    attempt=3,
)
BARE = bb.Event(kind="respond", run_id="r-1", path="f", at=AT)


def talk(text: str) -> bb.Flow:
    return bb.Flow().with_agent(bb.Agent(text).with_model(bb.FixedModel(text)))


# --- where they go ---


def test_fields_leaves_out_what_is_empty() -> None:
    assert fields(BARE) == {
        "kind": "respond",
        "run_id": "r-1",
        "path": "f",
        "at": "2030-01-02T03:04:05+00:00",
        "attempt": 1,
    }
    assert fields(EVENT) == {
        **fields(BARE),
        "kind": "flow.end",
        "path": "f/x",
        "flow": "x",
        "dur_ns": 7,
        "usage": {"input": 1, "output": 0, "cache_read": 0, "cache_write": 0, "reasoning": 2},
        "attempt": 3,
    }
    call = evolve(BARE, detail="gpt-9", error="OSError", entry="0/ask/a/1", provider="acme", first_ns=3)
    assert fields(call) == {
        **fields(BARE),
        "detail": "gpt-9",
        "error": "OSError",
        "entry": "0/ask/a/1",
        "provider": "acme",
        "first_ns": 3,
    }


def test_json_lines_are_one_object_per_line_and_hold_no_secret() -> None:
    out = io.StringIO()
    tracer = bb.JSONLines(out)
    tracer.event(EVENT)
    bb.redact('"sk-\n12345')
    tracer.event(bb.Event(kind="flow.error", run_id="r", path="f", at=AT, detail='key "sk-\n12345 ☃\nline'))
    lines = out.getvalue().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["flow.end", "flow.error"]
    assert json.loads(lines[1])["detail"] == "key [redacted] ☃\nline"
    assert json.loads(lines[0]) == fields(EVENT)


def test_structlog_gets_the_same_fields() -> None:
    bb.redact("sk-12345")
    with capture_logs() as logs:
        bb.StructlogTracer().event(EVENT)
        bb.StructlogTracer().event(bb.Event(kind="flow.error", run_id="r", path="f", at=AT, detail="sk-12345"))
    expected = fields(EVENT)
    assert logs[0] == {"event": expected.pop("kind"), "log_level": "debug", **expected}
    assert logs[1]["detail"] == "[redacted]"


def test_a_tee_reaches_everyone_though_one_fails() -> None:
    class Broken:
        def event(self, event: bb.Event, /) -> None:
            raise OSError("disk")

    before, after = bb.Recorder(), bb.Recorder()
    with pytest.raises(ExceptionGroup, match="tracers failed"):
        bb.Tee(before, Broken(), after).event(EVENT)
    assert before.events == after.events == [EVENT]
    bb.Tee(before, after).event(BARE)
    assert before.kinds() == after.kinds() == ["flow.end", "respond"]
    assert before.paths("respond") == ["f"]
    assert before.flows("flow.end") == ["x"]


async def test_a_tracer_that_fails_breaks_no_run() -> None:
    class Broken:
        def event(self, event: bb.Event, /) -> None:
            raise OSError("disk")

    with capture_logs() as logs:
        outcome = await bb.App(trace=Broken()).run(talk("a").with_id("f").durable(), "hi")
    assert outcome.answer == "a"
    assert {log["event"] for log in logs} == {"a tracer failed"}


# --- what they say ---


async def test_every_event_tells_run_place_time_and_attempt() -> None:
    trace = bb.Recorder()
    flow = (talk("a").with_id("a") >> bb.All(talk("b")) >> bb.Respond()).with_id("f").durable()
    app = bb.App(trace=trace)
    await app.run(flow, "hi", run_id="r-1")
    assert {event.run_id for event in trace.events} == {"r-1"}
    assert all(event.at.tzinfo is not None for event in trace.events)
    assert [event.at for event in trace.events] == sorted(event.at for event in trace.events)
    assert [(event.kind, event.path, event.flow) for event in trace.events] == [
        ("run.start", "f", "f"),
        ("flow.start", "f/a", "a"),
        ("model.start", "f/a", "a"),
        ("model.end", "f/a", "a"),
        ("flow.end", "f/a", "a"),
        ("all.start", "f/body~all.1", "f"),
        ("flow.start", "f/body~all.1/branch~agents.0", "f"),
        ("model.start", "f/body~all.1/branch~agents.0", "f"),
        ("model.end", "f/body~all.1/branch~agents.0", "f"),
        ("flow.end", "f/body~all.1/branch~agents.0", "f"),
        ("respond", "f/body~respond.2", "f"),
        ("run.end", "f", "f"),
    ]
    assert trace.events[-1].detail == "finished"
    assert trace.events[4].dur_ns > trace.events[3].dur_ns > 0


async def test_attempts_are_counted() -> None:
    trace = bb.Recorder()
    broken = [True]

    async def wavers(turn: bb.Turn, chat: bb.ModelChat) -> None:
        if broken[0]:
            raise ValueError("crash")

    flow = (talk("a").with_id("a") >> bb.Flow().with_agent(bb.Agent().on_message(wavers))).with_id("f").durable()
    app = bb.App(trace=trace)
    with pytest.raises(bb.AgentFailed):
        await app.run(flow, "hi", run_id="r-1")
    broken[0] = False
    await app.run(flow, "hi", run_id="r-1")
    assert [(event.kind, event.attempt) for event in trace.events if event.kind.startswith("run.")] == [
        ("run.start", 1),
        ("run.end", 1),
        ("run.resumed", 2),
        ("run.end", 2),
    ]
    assert trace.paths("flow.cached") == ["f/a"]
    errors = [(event.path, event.detail) for event in trace.events if event.kind == "flow.error"]
    assert errors == [("f/body~agents.1", "AgentFailed")]


async def test_a_changed_graph_is_told_in_words() -> None:
    trace = bb.Recorder()
    app = bb.App(trace=trace)

    async def breaks(turn: bb.Turn, chat: bb.ModelChat) -> None:
        raise ValueError("crash")

    crash = bb.Flow().with_agent(bb.Agent().on_message(breaks))
    with pytest.raises(bb.AgentFailed):
        await app.run((talk("a").with_id("a") >> crash).with_id("f").durable(), "hi", run_id="r-1")
    await app.run((talk("a").with_id("a") >> talk("b")).with_id("f").durable(), "hi", run_id="r-1")
    told = [event.detail for event in trace.events if event.kind == "durable.discarded"]
    assert len(told) == 1
    assert told[0].startswith("replaced f/body~agents.1: agents breaks became agents b; ")


# --- in which order they come ---


def well_formed(events: list[bb.Event]) -> None:
    """One start, one end, everything between; what starts ends or fails once, losers of a race included, an ask in its flow."""
    assert events[0].kind in ("run.start", "run.resumed")
    assert events[-1].kind == "run.end"
    between = Counter(event.kind for event in events[1:-1])
    assert not between.keys() & {"run.start", "run.resumed", "run.end"}
    running: Counter[str] = Counter()
    for event in events:
        if event.kind == "flow.start":
            running[event.path] += 1
            assert running[event.path] == 1, f"{event.path} started twice"
        elif event.kind in ("flow.end", "flow.error"):
            running[event.path] -= 1
            assert running[event.path] == 0, f"{event.path} ended without a start"
            assert not any(inside.startswith(f"{event.path}#") for inside in +running), "a call outlives its flow"
        elif event.kind in ("model.start", "tool.start", "step.start"):
            assert running[event.path] == 1, "a call is made in a flow that runs"
            running[f"{event.path}#{event.entry}"] += 1
            assert running[f"{event.path}#{event.entry}"] == 1, f"{event.entry} started twice"
        elif event.entry and not event.kind.endswith(".cached"):
            running[f"{event.path}#{event.entry}"] -= 1
            assert running[f"{event.path}#{event.entry}"] == 0, f"{event.entry} ended without a start"
        elif event.kind in ("flow.cached", "select"):
            assert running[event.path] in (0, 1)
    assert not +running, "started and never ended"


@given(plot=plots(max_leaves=6), data=st.data())
@settings(max_examples=40)
def test_trial_m5_an_attempt_has_one_start_and_one_end(plot: Plot, data: st.DataObject) -> None:
    agents = plot.agents
    failing = data.draw(st.sampled_from(agents)) if agents else "nobody"

    async def go() -> None:
        trace, world = bb.Recorder(), World()
        world.fails[failing] = 1
        app, flow = bb.App(trace=trace), plot.durable(world)
        starts: list[str] = []
        for _ in range(3):
            trace.events.clear()
            try:
                await app.run(flow, "hi", run_id="r-1")
            except bb.AgentFailed:
                assert trace.events[-1].detail == "failed"
            else:
                assert trace.events[-1].detail == "finished"
            well_formed(trace.events)
            starts.append(trace.events[0].kind)
        assert starts == ["run.start", "run.resumed", "run.resumed"]
        assert not trace.paths("flow.start")  # the third attempt only replays

    asyncio.run(go())


async def test_trial_i5_a_cancelled_run_says_so_once() -> None:
    started = asyncio.Event()

    async def hangs(turn: bb.Turn, chat: bb.ModelChat) -> None:
        started.set()
        await asyncio.Event().wait()

    trace = bb.Recorder()
    app = bb.App(trace=trace)
    flow = (talk("a") >> bb.Flow().with_agent(bb.Agent().on_message(hangs))).with_id("f").durable()
    task = asyncio.ensure_future(app.run(flow, "hi", run_id="r-1"))
    await started.wait()
    await app.cancel("r-1")
    async with asyncio.timeout(5):
        with pytest.raises(bb.RunCancelled):
            await task
    assert [event.detail for event in trace.events if event.kind == "run.end"] == ["cancelled"]
    assert [info.status for info in await app.runs()] == ["cancelled"]


@pytest.mark.parametrize("durable", [False, True])
async def test_an_interrupted_run_says_so_once(durable: bool) -> None:
    async def hangs(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await asyncio.Event().wait()

    trace = bb.Recorder()
    named = bb.Flow().with_agent(bb.Agent().on_message(hangs)).with_id("f")
    task = asyncio.ensure_future(bb.App(trace=trace).run(named.durable() if durable else named, "hi"))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    well_formed(trace.events)
    assert trace.kinds() == ["run.start", "flow.start", "flow.error", "run.end"]
    assert [event.detail for event in trace.events[2:]] == [
        "CancelledError",
        "interrupted" if durable else "cancelled",
    ]


@pytest.mark.parametrize(("kind", "event"), [(bb.All, "all.start"), (bb.One, "one.start"), (bb.Group, "group.start")])
async def test_a_composite_says_that_it_begins_and_where(kind: type[bb.All | bb.One | bb.Group], event: str) -> None:
    seen = bb.Recorder()

    await bb.run(kind(talk("a").with_id("a")).with_id("side").next(bb.Respond()).with_id("job"), "hi", trace=seen)

    inside = ["flow.start", "model.start", "model.end", "flow.end"]
    assert seen.kinds() == ["run.start", event, *inside, "respond", "run.end"]
    (begins,) = [one for one in seen.events if one.kind == event]
    assert (begins.path, begins.flow) == ("job/side", "side") and begins.at.tzinfo is not None
