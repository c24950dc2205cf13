"""The rows of a session, and the folds over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from attrs import define, evolve, field
from hypothesis import given
from hypothesis import strategies as st

import bb
from bb.codec import Codec, Types
from bb.log.mailbox import DELIVERIES, PAIRS, Mailbox
from bb.log.rows import (
    Arrived,
    Back,
    Bound,
    Claimed,
    Finished,
    Fold,
    Freed,
    Gone,
    Kept,
    Left,
    Mark,
    Named,
    Paired,
    Parked,
    Passed,
    Put,
    Row,
    Sealed,
    Seen,
    Stamped,
    Wait,
    Window,
    decode_row,
    encode_row,
    fold_rows,
)
from bb.log.session import Block, dump_block, load_block
from bb.log.streams import (
    mail_stream,
    memo_stream,
    once_stream,
    parked_stream,
    points_stream,
    rate_stream,
    session_streams,
    symbols_stream,
)
from bb.log.tables import PLACES, Memo, OnceTable, OpenRuns, Points, Rates, Symbols
from bb.messages import Message, Usage, assistant

CODEC = Codec(Types())

# What release 1 of the format wrote. These lines are never changed: a later release reads them as they stand.
GOLDEN: dict[bytes, Row] = {
    b'[1,"memo","r","f/m",5,{"x":1}]': Kept("r", "f/m", 5, {"x": 1}),
    b'[1,"claim","r","f/o",5,7,"charge"]': Claimed("r", "f/o", 5, 7, "charge"),
    b'[1,"free","r","f/o"]': Freed("r", "f/o"),
    b'[1,"done","r","f/o",6,{"n":1}]': Finished("r", "f/o", 6, {"n": 1}),
    b'[1,"point","r","f/c",7,"cafe","ab12",3,"phase-1",{}]': Passed("r", "f/c", 7, "cafe", "ab12", 3, "phase-1", {}),
    b'[1,"bound","r","end",8,{"x":1}]': Bound("r", "end", 8, {"x": 1}),
    b'[1,"name","the form"]': Named("the form"),
    b'[1,"put","d1",{"x":1},9,null,false,null]': Put("d1", {"x": 1}, 9),
    b'[1,"put","t1","yes",9,["r","f/a"],true,"t1"]': Put("t1", "yes", 9, ("r", "f/a"), True, "t1"),
    b'[1,"wait","r","f/a",10]': Wait("r", "f/a", 10),
    b'[1,"left","r",false]': Left("r"),
    b'[1,"back","r","f/a","d1"]': Back("r", "f/a", "d1"),
    b'[1,"pair","r","f/a",true,"d1",1,9,false,null]': Paired("r", "f/a", True, "d1", 1, 9, False, None),
    b'[1,"seen",["d1","d2"]]': Seen(("d1", "d2")),
    b'[1,"stamp","1f","r","f/t",11,2,60000]': Stamped("1f", "r", "f/t", 11, 2, 60000),
    b'[1,"window",60000]': Window(60000),
    b'[1,"arrive","r","f/d",12]': Arrived("r", "f/d", 12),
    b'[1,"park","r","f","f/a","the form",13]': Parked("r", "f", "f/a", "the form", 13),
    b'[1,"gone","r"]': Gone("r"),
    b'[1,"seal"]': Sealed(),
    b'[1,"mark","1f"]': Mark("1f"),
}

GROWN: dict[bytes, Row] = {
    b'[1,"memo","r","f/m",5,1,"l"]': Kept("r", "f/m", 5, 1, "l"),
    b'[1,"done","r","f/o",6,{},"l"]': Finished("r", "f/o", 6, {}, "l"),
    b'[1,"point","r","f/c",7,"cafe","ab12",3,"x",{},"l"]': Passed("r", "f/c", 7, "cafe", "ab12", 3, "x", {}, "l"),
    b'[1,"bound","r","end",8,{"x":1},"l"]': Bound("r", "end", 8, {"x": 1}, "l"),
    b'[1,"arrive","r","f/d",12,"l"]': Arrived("r", "f/d", 12, "l"),
}
"""What they are written like since they name the life of their run."""
GOLDEN |= GROWN


@pytest.mark.parametrize("record", GOLDEN, ids=lambda record: record.decode()[:30])
def test_the_format_of_release_1_is_written_and_read(record: bytes) -> None:
    row = GOLDEN[record]
    assert encode_row(row) == record
    assert decode_row(record, "it") == row


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"nonsense",
        b"{}",
        b"[]",
        b"[1]",
        b'[1,"zap",1]',
        b'[1,"memo","r"]',
        b'[1,"seen",7]',
        b'[1,"put","d",1,1,"r"]',
    ],
)
def test_what_is_no_row_is_an_error_with_its_place(record: bytes) -> None:
    with pytest.raises(bb.CorruptRecord, match="record 4 of it"):
        decode_row(record, "record 4 of it")


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(bb.CorruptRecord, match="format version 2, known is 1: upgrade bb"):
        decode_row(b'[2,"seal"]', "record 0 of it")


@pytest.mark.parametrize("row", [Gone("r"), Put("d", 1, 1)], ids=["of another stream", "that is damaged"])
def test_a_row_that_does_not_fit_is_an_error_with_its_stream_and_place(row: Row) -> None:
    records = [encode_row(Named("x")), encode_row(row).replace(b'"d"', b"{}")]
    with pytest.raises(bb.CorruptRecord, match="record 1 of session/s/mail/x does not fit"):
        fold_rows(Mailbox(), records, "session/s/mail/x")


def test_streams_of_a_session_lie_together_and_hold_no_free_text() -> None:
    wild = "the form / \x00 \ud800" * 100
    key = "0" * 32
    names = [
        memo_stream("s", key),
        once_stream("s", key),
        points_stream("s", "flow"),
        mail_stream("s", wild),
        symbols_stream("s"),
        rate_stream("s", wild),
        parked_stream("s"),
    ]
    assert len(set(names)) == len(names)
    for name in names:
        assert name.startswith(session_streams("s")) and name.isprintable() and len(name) < 200
    assert mail_stream("s", "a") != mail_stream("s", "b") and mail_stream("s", "a") == mail_stream("s", "a")
    assert not symbols_stream("s-1").startswith(session_streams("s"))


# --- blocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block",
    [
        Block(),
        Block((assistant("hi"),), "hi"),
        Block(
            (Message("a", "user"), assistant("b")), {1: b"x"}, (2,), {"n": 2.5, "no": None}, "z", Usage(1, 2), True, 1
        ),
        Block(sent=0),
        Block(value=[None], returned=True),
    ],
)
def test_a_block_comes_back_as_it_was(block: Block) -> None:
    assert load_block(dump_block(block, CODEC), CODEC) == block


def test_what_is_empty_in_a_block_takes_no_room() -> None:
    assert dump_block(Block(), CODEC) == {}
    assert dump_block(Block((assistant("hi"),), "hi", sent=1), CODEC) == {
        "d": {"m": [["assistant", "hi"]], "t": 1},
        "n": 1,
    }


def test_a_block_shares_nothing_mutable_with_what_was_kept() -> None:
    items = [1]
    plain = dump_block(Block(value=items, symbols={"x": items}), CODEC)
    items.append(2)
    block = load_block(plain, CODEC)
    assert block.value == [1] and block.symbols == {"x": [1]} and block.value is not block.symbols["x"]


def test_what_cannot_be_kept_is_refused_by_name() -> None:
    with pytest.raises(bb.NotSavable, match="client is "):
        dump_block(Block(symbols={"client": object()}), CODEC)
    with pytest.raises(bb.NotSavable, match="value is "):
        dump_block(Block(value=object()), CODEC)


@pytest.mark.parametrize("plain", [7, [], {"d": 7}, {"y": 7}, {"y": {"x": {"~": "zap"}}}])
def test_a_block_that_cannot_be_read_is_an_error(plain: object) -> None:
    with pytest.raises(bb.CorruptRecord):
        load_block(plain, CODEC)


# --- folds ------------------------------------------------------------------------------------------------------------


def folded(fold: Fold, rows: Iterable[Row]) -> Any:
    """The fold with these rows in it, as they come back from a store."""
    assert not fold_rows(fold, [encode_row(row) for row in rows], "it")
    return fold


def put(id: str, *, to: tuple[str, str] | None = None, turn: str | None = None) -> Put:
    return Put(id, f"payload of {id}", 1, to, turn is not None, turn)


def got(box: Mailbox, run: str, path: str = "a") -> str | None:
    event = box.given(run, path)
    return None if event is None else event.delivery_id


def test_events_and_waits_meet_first_in_first_out() -> None:
    early = folded(Mailbox(), [put("1"), put("2"), Wait("r", "a", 1), Wait("s", "a", 1), Wait("t", "a", 1)])
    late = folded(Mailbox(), [Wait("r", "a", 1), Wait("s", "a", 1), Wait("t", "a", 1), put("1"), put("2")])
    for box in (early, late):
        assert [got(box, run) for run in "rst"] == ["1", "2", None] and list(box.waits) == ["t"]


def test_one_event_is_consumed_by_one_wait_and_found_by_it_again() -> None:
    rows: list[Row] = [put("1"), Wait("r", "a#1", 1), Wait("r", "a#1", 1), Wait("r", "a#2", 1)]
    box = folded(Mailbox(), rows)
    assert got(box, "r", "a#1") == "1" and got(box, "r", "a#2") is None
    box = folded(Mailbox(), [*rows, put("2"), put("3")])
    assert got(box, "r", "a#1") == "1" and got(box, "r", "a#2") == "2" and list(box.queue) == ["3"]


def test_a_delivery_that_comes_twice_is_one() -> None:
    wait = Wait("r", "a", 1)
    histories: list[list[Row]] = [[put("1"), put("1")], [put("1"), wait, put("1")], [wait, put("1"), put("1")]]
    for rows in histories:
        box = folded(Mailbox(), [*rows, Wait("r", "a", 1), Wait("s", "a", 1)])
        assert got(box, "r") == "1" and got(box, "s") is None and not box.queue


def test_an_answer_meets_its_own_wait_or_nothing() -> None:
    box = folded(Mailbox(), [Wait("r", "a", 1), Wait("s", "a", 1), put("t1", to=("s", "a"), turn="t1"), put("1")])
    assert got(box, "s") == "t1" and got(box, "r") == "1"
    unasked: list[Row] = [put("t1", to=("s", "a"), turn="t1"), Wait("s", "b", 1), put("t2", to=("s", "a"), turn="t2")]
    box = folded(Mailbox(), [*unasked, Wait("s", "a", 1)])
    assert got(box, "s", "a") is None and got(box, "s", "b") is None and not box.queue and not box.seen


def test_who_leaves_is_passed_over_and_keeps_what_it_got() -> None:
    box = folded(Mailbox(), [Wait("r", "a", 1), Wait("s", "a", 1), Left("r"), put("1"), Left("s")])
    assert got(box, "r") is None and got(box, "s") == "1"
    assert got(folded(box, [put("2"), Wait("s", "a", 1)]), "s") == "1"  # the same wait, not a new one
    assert got(folded(box, [Left("s", over=True), Wait("s", "a", 1)]), "s") == "2"
    assert not box.queue


def test_a_run_waits_at_one_place_at_a_time() -> None:
    box = folded(Mailbox(), [Wait("r", "old", 1), Wait("s", "a", 1), Wait("r", "new", 2), put("1"), put("2")])
    assert got(box, "s") == "1" and got(box, "r", "new") == "2" and got(box, "r", "old") is None


def test_a_mailbox_remembers_only_so_much() -> None:
    rows: list[Row] = []
    for n in range(DELIVERIES + 50):
        rows += [put(f"d{n}"), Wait("r", f"a#{n}", 1)]
    box = folded(Mailbox(), rows)
    last = f"d{DELIVERIES + 49}"
    assert len(box.seen) == DELIVERIES and len(box.settled) == PAIRS
    assert not box.knows("d49") and box.knows("d50") and got(box, "r", "a#0") is None
    assert box.taker("d0") is None and box.taker(last) == ("r", f"a#{DELIVERIES + 49}")
    assert len(box.shortest()) <= PAIRS + 3
    assert folded(Mailbox(), box.shortest()) == box


def test_what_a_run_may_not_have_recorded_yet_is_never_dropped() -> None:
    rows: list[Row] = []
    for n in range(3 * PAIRS):
        rows += [Wait(f"r{n}", "a", 1), put(f"d{n}")]
    box = folded(Mailbox(), rows)
    assert all(got(box, f"r{n}") == f"d{n}" for n in range(3 * PAIRS))


def test_an_event_that_waits_is_known_however_many_came_since() -> None:
    box = folded(Mailbox(), [put(f"d{n}") for n in range(DELIVERIES + 5)] + [put("d0")])
    assert "d0" not in box.seen and len(box.queue) == DELIVERIES + 5


RUNS = st.sampled_from("rst")
SPOTS = st.tuples(RUNS, st.sampled_from("ab"))
MAIL: st.SearchStrategy[Row] = st.one_of(
    st.builds(put, st.sampled_from("1234567")),
    st.builds(lambda spot: Wait(spot[0], spot[1], 1), SPOTS),
    st.builds(lambda spot, turn: put(turn, to=spot, turn=turn), SPOTS, st.sampled_from(["t1", "t2"])),
    st.builds(Left, RUNS, st.booleans()),
    st.builds(lambda spot, event: Back(spot[0], spot[1], event), SPOTS, st.sampled_from("1234567")),
)


@define
class Model:
    """A mailbox in the plainest words: two lists, and who got what."""

    events: list[str] = field(factory=list)
    waits: list[tuple[str, str]] = field(factory=list)
    got: dict[tuple[str, str], str] = field(factory=dict)
    latest: dict[str, str] = field(factory=dict)
    ids: set[str] = field(factory=set)

    def play(self, row: Row) -> None:
        match row:
            case Put(delivery_id=id, to=None):
                if id not in self.ids:
                    self.ids.add(id)
                    self.events.append(id)
            case Put(delivery_id=id, to=spot):
                if spot is not None and spot in self.waits:
                    self.meet(spot, id)
            case Wait(run=run, path=path):
                if (run, path) not in self.waits and (run, path) not in self.got:
                    self.latest.pop(run, None)
                    self.waits = [*(spot for spot in self.waits if spot[0] != run), (run, path)]
            case Left(run=run, over=over):
                self.waits = [spot for spot in self.waits if spot[0] != run]
                self.got = {spot: id for spot, id in self.got.items() if not over or spot[0] != run}
                self.latest.pop(run, None)
            case Back(run=run, path=path, delivery_id=id):
                if self.latest.get(run) == path and self.got[run, path] == id:
                    del self.latest[run], self.got[run, path]
                    self.events.insert(0, id)
        while self.events and self.waits:
            self.meet(self.waits[0], self.events.pop(0))

    def meet(self, spot: tuple[str, str], id: str) -> None:
        self.waits.remove(spot)
        self.got[spot] = id
        self.latest[spot[0]] = spot[1]


@given(st.lists(MAIL, max_size=60))
def test_a_mailbox_does_as_its_model(rows: list[Row]) -> None:
    box, model = Mailbox(), Model()
    for row in rows:
        folded(box, [row])
        model.play(row)
        assert list(box.queue) == model.events
        assert [(run, path) for run, (path, _) in box.waits.items()] == model.waits
        assert {(r, p): got(box, r, p) for r in "rst" for p in "ab" if got(box, r, p)} == model.got
        assert set(box.seen) == model.ids


@given(st.lists(MAIL, max_size=40), st.lists(MAIL, max_size=10))
def test_a_mailbox_that_is_rewritten_is_the_same(rows: list[Row], more: list[Row]) -> None:
    box = folded(Mailbox(), [Named("the form"), *rows])
    again = folded(Mailbox(), box.shortest())
    assert again == box
    assert folded(again, more) == folded(box, more)


def bound(run: str, place: str, **symbols: object) -> Bound:
    return Bound(run, place, 1, symbols)


def test_of_a_symbol_the_latest_counts() -> None:
    table = folded(Symbols(), [bound("r", "1", x=1, y=1), bound("r", "2", x=2), bound("s", "1", z=3, x=3)])
    assert table.values() == {"x": 3, "y": 1, "z": 3}
    assert folded(table, [bound("r", "2", x=9)]).values() == {"x": 3, "y": 1, "z": 3}  # it was here before
    assert table.values(but=("s", "")) == {"y": 1} and table.values(but=("r", "")) == {"x": 3, "z": 3}
    assert table.values(but=("s", "another life")) == table.values()
    again = folded(table, [evolve(bound("r", "2", x=9), life="another life")])  # of another run, with the same id
    assert again.values() == {"x": 9, "y": 1, "z": 3} and again.values(but=("r", "")) == {"x": 9, "z": 3}


def test_symbols_that_no_longer_count_are_dropped_after_a_while() -> None:
    table = folded(Symbols(), [bound("r", f"{n}", x=n) for n in range(5 * PLACES)] + [bound("r", "keep", y=1)])
    assert table.values() == {"x": 5 * PLACES - 1, "y": 1} and len(table.rows) <= PLACES + 2


BOUND = st.builds(
    lambda run, place, symbols: Bound(run, place, 1, symbols),
    RUNS,
    st.sampled_from("1234"),
    st.dictionaries(st.sampled_from("xyz"), st.integers(0, 9), min_size=1),
)
PASSED = st.builds(
    lambda run, signature, given, position: Passed(run, f"c{position}", 1, signature, given, position, "", {}),
    RUNS,
    st.sampled_from("fg"),
    st.sampled_from("12"),
    st.integers(0, 3),
)
STAMPED = st.builds(
    lambda n, at, per: Stamped(str(n), "r", "t", at, 1, per), st.integers(0, 20), st.integers(0, 50), st.integers(0, 30)
)
RATES = st.one_of(STAMPED, st.builds(lambda spot: Arrived(spot[0], spot[1], 1), SPOTS), st.just(Named("x")))
PARKED = st.one_of(st.builds(lambda run, path: Parked(run, "f", path, "s", 1), RUNS, st.text()), st.builds(Gone, RUNS))
TABLES: list[tuple[Callable[[], Fold], st.SearchStrategy[Any]]] = [
    (Symbols, BOUND),
    (Points, PASSED),
    (Rates, RATES),
    (OpenRuns, PARKED),
]


@pytest.mark.parametrize(("fold", "rows"), TABLES, ids=[fold.__name__ for fold, _ in TABLES])
@given(data=st.data())
def test_a_table_that_is_rewritten_is_the_same(
    fold: Callable[[], Fold], rows: st.SearchStrategy[Row], data: st.DataObject
) -> None:
    table = folded(fold(), data.draw(st.lists(rows, max_size=30)))
    shortest = table.shortest()
    again = folded(fold(), shortest)
    assert again == table and again.shortest() == shortest
    more = data.draw(st.lists(rows, max_size=5))
    assert folded(again, more) == folded(table, more)


def test_the_furthest_point_wins_for_each_signature_and_input() -> None:
    def at(run: str, position: int, signature: str = "f", input: str = "1") -> Passed:
        return Passed(run, f"c{position}", 1, signature, input, position, "", {})

    rows = [at("r", 1), at("r", 3), at("s", 2), at("s", 3), at("s", 0, "g"), at("s", 7, input="2")]
    table = folded(Points(), rows)
    assert table.furthest == {("f", "1"): at("s", 3), ("g", "1"): at("s", 0, "g"), ("f", "2"): at("s", 7, input="2")}


def test_stamps_are_kept_as_long_as_anyone_looks_back() -> None:
    def stamp(id: str, at: int, per: int) -> Stamped:
        return Stamped(id, "r", "t", at, 1, per)

    table = folded(Rates(), [stamp("1", 0, 100), stamp("2", 100, 10), stamp("3", 101, 10)])
    assert list(table.stamps) == ["2", "3"] and table.per == 100
    assert folded(table, [stamp("3", 101, 10)]).stamps.keys() == {"2", "3"}


def test_a_row_that_comes_twice_changes_nothing() -> None:
    kept, done = Kept("r", "m", 1, 1), Finished("r", "o", 2, {})
    assert folded(Memo(), [kept, Kept("s", "m", 1, 2)]).kept == kept
    assert folded(OnceTable(), [done, evolve(done, run="s")]).finished == done
    arrivals = folded(Rates(), [Arrived("r", "d", 1), Arrived("s", "d", 2), Arrived("r", "d", 3)]).arrivals
    assert list(arrivals) == [("r", "", "d"), ("s", "", "d")]


def test_of_the_arrivals_only_the_last_are_kept() -> None:
    table = folded(Rates(), [Arrived("r", f"d#{n}", n) for n in range(PLACES + 5)])
    assert list(table.arrivals) == [("r", "", f"d#{n}") for n in range(5, PLACES + 5)]


def test_a_claim_lasts_until_its_place_frees_it() -> None:
    claim = Claimed("r", "o", 1, 7, "charge")
    assert folded(OnceTable(), [claim, Freed("r", "x"), Freed("s", "o")]).claim == claim
    assert folded(OnceTable(), [claim, Freed("r", "o")]).claim is None
    assert folded(OnceTable(), [claim, evolve(claim, run="s")]).claim == evolve(claim, run="s")


def test_what_must_not_be_rewritten_says_so() -> None:
    folds: list[Fold] = [Memo(), OnceTable()]
    assert [fold.shortest() for fold in folds] == [None, None]


def test_parked_runs_are_listed_until_they_are_gone() -> None:
    rows = [Parked("r", "f", "f/a", "x", 1), Parked("s", "f", "f/a", "x", 2), Parked("r", "f", "f/b", "y", 3)]
    assert list(folded(OpenRuns(), rows).parked.values()) == [rows[1], rows[2]]
    assert list(folded(OpenRuns(), [*rows, Gone("s"), Gone("s"), Gone("t")]).parked.values()) == [rows[2]]
