"""What is known of a stream that is read on and on is what reading all of it gives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bb.engine.memory.known import Known
from bb.log.mailbox import Mailbox
from bb.log.rows import Left, Mark, Put, Row, Sealed, Wait, encode_row, fold_rows

RUNS = st.sampled_from("rst")
ROWS: st.SearchStrategy[list[Row]] = st.lists(
    st.one_of(
        st.builds(lambda name: Put(name, name, 1), st.sampled_from("123456789")),
        st.builds(lambda run, path: Wait(run, path, 1), RUNS, st.sampled_from("ab")),
        st.builds(Left, RUNS, st.booleans()),
    ),
    max_size=8,
)


def whole(records: list[bytes]) -> tuple[Mailbox, bool]:
    box = Mailbox()
    return box, fold_rows(box, records, "it")


@settings(max_examples=400)
@given(data=st.data())
def test_the_fold_that_reads_on_equals_the_fold_of_the_whole(data: st.DataObject) -> None:
    """Others append, mark, seal, rewrite and drop it meanwhile; looks overtake each other."""
    stream: list[bytes] = []
    known = Known("it", Mailbox)
    under_way: list[tuple[int, list[bytes], int]] = []  # where a look began, what it saw, and when
    marks = 0
    acts = st.sampled_from(["append", "append", "mark", "seal", "rewrite", "drop", "look", "look", "arrive"])
    for now, act in enumerate(data.draw(st.lists(acts, max_size=25))):
        if act in ("append", "mark"):
            marks += 1
            mark = [Mark(str(marks))] if act == "mark" else []
            stream += [encode_row(row) for row in [*mark, *data.draw(ROWS)]]
        elif act == "seal":
            stream.append(encode_row(Sealed()))
        elif act == "rewrite":
            stream = [encode_row(row) for row in whole(stream)[0].shortest()]
        elif act == "drop":
            stream = []
        elif act == "look":
            under_way.append((known.start, stream[known.start :], now))
        elif under_way:
            start, records, seen = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
            if not known.read_on(start, records):
                known, under_way = Known("it", Mailbox), []  # begun anew with what is read now
                assert known.read_on(0, stream)
                seen = now
            if seen >= now - 1:
                assert (known.state, known.sealed) == whole(stream)
                assert known.length == len(stream)
    if not known.read_on(known.start, stream[known.start :]):
        known = Known("it", Mailbox)
        assert known.read_on(0, stream)
    assert (known.state, known.sealed) == whole(stream)
    assert known.length == len(stream)


@pytest.mark.parametrize("shorter", [True, False])
def test_a_stream_without_a_mark_is_not_taken_for_an_earlier_one(shorter: bool) -> None:
    """Its first rows may be the same again after its session was dropped."""
    rows = [encode_row(Wait("r", "a", 1)), encode_row(Put("1", 1, 1)), encode_row(Left("r"))]
    known = Known("it", Mailbox)
    assert known.read_on(0, rows)
    assert not known.read_on(0, rows[:1] if shorter else [rows[0], rows[2], rows[1]])
