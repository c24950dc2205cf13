"""The facts of a run, and the fold over them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

import bb
from bb.codec import Codec, Types
from bb.log import (
    STUCK_AFTER,
    Attempted,
    Decided,
    Delta,
    Ended,
    Entered,
    Entry,
    Fact,
    Failed,
    Forgotten,
    History,
    Saved,
    Started,
    Submitted,
    control_stream,
    decode,
    dump_delta,
    encode,
    load_delta,
    millis,
    moment,
    run_stream,
    tree_stream,
)
from bb.messages import ToolCall, ToolResult, assistant

# What release 1 of the format wrote. These lines are never changed: a later release reads them as they stand.
GOLDEN: dict[bytes, Fact] = {
    b'[1,7,"run","job","s-1","caller",1000,"ab12",{"x":1}]': Started("job", "s-1", "caller", 1000, "ab12", {"x": 1}),
    b'[1,7,"run","job","s","caller",1,"ab12",0,"life"]': Started("job", "s", "caller", 1, "ab12", 0, "life"),
    b'[1,7,"try",1001,"recovery"]': Attempted(1001, "recovery"),
    b'[1,7,"in",0,"job","cafe",[]]': Entered(0, "job", "cafe"),
    b'[1,7,"in",1,"job","beef",[[0,"job/a","job/b"]]]': Entered(1, "job", "beef", ((0, "job/a", "job/b"),)),
    b'[1,7,"s",0,"job/a",1002,15,{"m":[["assistant","hi"]],"t":1}]': Saved(
        0, "job/a", 1002, 15, {"m": [["assistant", "hi"]], "t": 1}
    ),
    b'[1,7,"d",0,"job/one",1003,"left"]': Decided(0, "job/one", 1003, "left"),
    b'[1,7,"e",0,"job/a",1004,"0/ask//ff/1","answer"]': Entry(0, "job/a", 1004, "0/ask//ff/1", "answer"),
    b'[1,7,"forget","job/a",""]': Forgotten("job/a"),
    b'[1,7,"fail","job",1005,false,"ValueError","ValueError: no"]': Failed(
        "job", 1005, False, "ValueError", "ValueError: no"
    ),
    b'[1,7,"end","finished",1006,"job",1000,2]': Ended("finished", 1006, "job", 1000, 2),
}


@pytest.mark.parametrize("record", GOLDEN, ids=lambda record: record.decode()[:30])
def test_the_format_of_release_1_is_written_and_read(record: bytes) -> None:
    fact = GOLDEN[record]
    assert encode(fact, 7) == record
    assert decode(record, "it") == fact


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"x",
        b"[]",
        b"{}",
        b"7",
        b"null",
        b"[1,0]",
        b'[1,0,"what"]',
        b'[1,0,"s"]',
        b'[1,0,["s"],1]',
        b'[1,0,"in",1,2]',
    ],
)
def test_what_is_no_fact_is_refused_with_its_place(record: bytes) -> None:
    with pytest.raises(bb.CorruptRecord, match="record 3 of run r"):
        decode(record, "record 3 of run r")


@pytest.mark.parametrize("version", [0, 2, 99, None, "1"])
def test_a_format_that_is_not_known_says_so(version: Any) -> None:
    with pytest.raises(bb.CorruptRecord, match="format version"):
        decode(json.dumps([version, 0, "forget", "a", ""]).encode(), "it")


def test_a_failure_tells_where_it_came_from_unless_that_is_its_flow() -> None:
    error = bb.AgentFailed("no", path="job/a")
    elsewhere, here = Failed.of(error, "job", 5, final=False), Failed.of(error, "job/a", 5, final=True)
    assert (elsewhere.place, here.place) == ("job/a", "")
    assert all(decode(encode(fact, 7), "it") == fact for fact in (elsewhere, here))
    assert len(json.loads(encode(here, 7))) == 8 and len(json.loads(encode(elsewhere, 7))) == 9


def started(**changes: Any) -> Started:
    return evolve(Started("job", "r", "caller", 1, "f", 0), **changes)


def folded(*facts: Fact) -> History:
    history = History("r")
    history.read([encode(fact, 1) for fact in facts])
    return history


def failed(path: str = "job", *, final: bool = False, at: int = 2) -> Failed:
    return Failed(path, at, final, "E", "e")


def test_a_savepoint_of_a_scope_that_was_not_entered_is_corrupt() -> None:
    with pytest.raises(bb.CorruptRecord, match="record 1 of run r does not fit"):
        folded(started(), Saved(3, "job/a", 1, 1, {}))


def test_attempts_are_counted_over_resumes_and_retries() -> None:
    assert folded(started()).attempts == 1
    assert folded(started(origin="job")).attempts == 0
    assert folded(started(origin="job"), Attempted(1, "recovery")).attempts == 1
    assert folded(started(), Attempted(1, "call"), failed(), failed(final=True)).attempts == 3


def test_a_budget_is_used_up_by_failures_and_renewed_by_whoever_runs_a_failed_run_again() -> None:
    facts: list[Fact] = [started(), failed(), failed(), Attempted(3, "call")]
    assert folded(*facts).failures == {"job": 2}  # a crash does not renew it
    assert folded(*facts, failed(final=True), Attempted(4, "call")).failures == {}


def test_a_retry_outside_renews_the_budgets_inside() -> None:
    history = folded(started(), failed("job/in"), failed("job/in"), failed("job/inner"), failed("job"))
    assert history.failures == {"job": 1}
    assert folded(started(), failed("job"), failed("job/in")).failures == {"job": 1, "job/in": 1}
    assert folded(started(), failed("job2/in"), failed("job")).failures == {"job2/in": 1, "job": 1}


def test_what_is_remembered_is_forgotten_at_a_path_and_below_it() -> None:
    facts: list[Fact] = [
        started(),
        Entered(0, "job", "sig"),
        Saved(0, "job/a", 1, 1, {}),
        Saved(0, "job/a/b", 1, 1, {}),
        Saved(0, "job/ab", 1, 1, {}),
        Decided(0, "job/a/c", 1, "x"),
        Entry(0, "job/a", 1, "k1", 1),
        Entry(0, "job/a", 1, "k2", 2),
    ]
    all_of_it = folded(*facts, Forgotten("job/a")).scopes[0]
    assert all_of_it.remembered() == {"job/ab"}
    one = folded(*facts, Forgotten("job/a", "k1")).scopes[0]
    assert one.entries == {"job/a": {"k2": 2}} and "job/a" in one.saved


def test_forgetting_takes_up_a_finished_run_and_dropping_an_entry_does_not() -> None:
    over = Ended("finished", 5, "job", 1, 1)
    assert folded(started(), over).finished
    assert not folded(started(), over, Forgotten("job/a")).finished
    assert folded(started(), over, Forgotten("job/a", "k")).finished


def test_a_new_signature_starts_afresh_and_takes_over_what_it_adopts() -> None:
    history = folded(
        started(),
        Entered(0, "job", "old"),
        Saved(0, "job/a", 1, 1, {"m": [["assistant", "a"]]}),
        Saved(0, "job/b", 1, 1, {}),
        Decided(0, "job/c", 1, "left"),
        Entry(0, "job/d", 1, "k", 1),
        Entered(1, "job", "new", ((0, "job/a", "job/x"), (0, "job/c", "job/c"), (0, "job/d", "job/d"))),
    )
    scope = history.scope("job")
    assert scope is not None and scope.signature == "new"
    assert scope.saved == {"job/x": {"m": [["assistant", "a"]]}}
    assert scope.decided == {"job/c": "left"} and scope.entries == {"job/d": {"k": 1}}
    assert scope.entries["job/d"] is not history.scopes[0].entries["job/d"]


@pytest.mark.parametrize(
    "fact", [Saved(0, "job/a", 9, 1, {}), Entry(0, "job/a", 9, "k", 1), Decided(0, "job/a", 9, "x"), failed(at=9)]
)
def test_progress_is_what_was_recorded_and_no_mere_attempt(fact: Fact) -> None:
    entered = Entered(0, "job", "sig")
    assert folded(started(), entered, Attempted(50, "call")).progress == 1
    assert folded(started(), entered, fact, Attempted(50, "call")).progress == 9


def test_a_run_is_stuck_after_so_many_attempts_without_a_trace() -> None:
    tries: list[Fact] = [Attempted(n, "recovery") for n in range(STUCK_AFTER)]
    assert not folded(started(origin="job"), *tries[:-1]).is_stuck
    stuck = folded(started(origin="job"), *tries)
    assert stuck.is_stuck and stuck.status(False) == "stuck" and stuck.status(True) == "running"
    moved = folded(started(origin="job"), *tries[:-1], Entered(0, "job", "s"), Saved(0, "job/a", 1, 1, {}), tries[-1])
    assert not moved.is_stuck


def test_the_status_tells_where_a_run_stands() -> None:
    assert folded(started()).status(True) == "running"
    assert folded(started()).status(False) == "interrupted"
    assert folded(started(), failed(final=True)).status(False) == "failed"
    assert folded(started(), failed(final=True), Attempted(3, "call")).status(False) == "interrupted"
    job = started(origin="job")
    assert folded(job).status(False) == "queued" and folded(job).status(True) == "running"
    assert folded(job, Attempted(2, "recovery")).status(False) == "interrupted"
    assert folded(started(), failed(final=True), Submitted(3)).status(False) == "queued"
    for status in ("finished", "cancelled", "expired"):
        assert folded(started(), Ended(status, 3, "job", 1, 1)).status(True) == status


# --- deltas -----------------------------------------------------------------------------------------------------------

CODEC = Codec(Types())


@pytest.mark.parametrize(
    ("delta", "form"),
    [
        (Delta(), {}),
        (Delta((assistant("hi"),), value="hi"), {"m": [["assistant", "hi"]], "t": 1}),
        (Delta((assistant("hi"),), value="ho"), {"m": [["assistant", "hi"]], "v": "ho"}),
        (Delta((assistant("hi"),)), {"m": [["assistant", "hi"]]}),
        (Delta(selected="left", gates=("g", "h")), {"s": "left", "g": ["g", "h"]}),
        (Delta(usage=bb.Usage(1, 2, 3, 4, 5)), {"u": [1, 2, 3, 4, 5]}),
        (
            Delta((bb.Message("", "assistant", [ToolCall("c", "t", "{}")], [ToolResult("c", "no", True)]),)),
            {"m": [["assistant", "", [["c", "t", "{}"]], [["c", "no", True]]]]},
        ),
    ],
)
def test_a_delta_is_small_and_comes_back(delta: Delta, form: dict[str, object]) -> None:
    assert dump_delta(delta, CODEC, "value") == form
    assert load_delta(form, CODEC) == delta


def test_no_usage_and_an_empty_usage_are_the_same_to_a_replay() -> None:
    assert load_delta(dump_delta(Delta(usage=bb.Usage()), CODEC, "value"), CODEC).usage is None


def test_a_delta_shares_nothing_with_its_form() -> None:
    value = {"items": [1]}
    form = dump_delta(Delta(value=value), CODEC, "value")
    value["items"].append(2)
    first: Any = load_delta(form, CODEC).value
    first["items"].append(3)
    assert load_delta(form, CODEC).value == {"items": [1]}


@pytest.mark.parametrize("form", [None, 7, "x", [], {"m": 7}, {"m": [[]]}, {"m": [["a", "b", 1]]}, {"t": 1}])
def test_a_form_that_is_no_delta_is_corrupt(form: Any) -> None:
    with pytest.raises(bb.CorruptRecord):
        load_delta(form, CODEC)


# --- names and times --------------------------------------------------------------------------------------------------


@given(st.integers(min_value=0, max_value=4_102_444_800_000))
def test_times_are_exact_to_the_millisecond(at: int) -> None:
    assert millis(moment(at)) == at
    assert moment(at).tzinfo is UTC


def test_a_time_is_cut_to_the_millisecond() -> None:
    assert millis(datetime(2026, 1, 1, 0, 0, 0, 1999, UTC)) == 1_767_225_600_001


def test_kinds_of_streams_are_apart() -> None:
    assert {run_stream("a"), control_stream("a"), tree_stream("a")} == {"run/a", "control/a", "tree/a"}
