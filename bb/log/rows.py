"""The rows of a session: what its runs keep for each other, in small streams beside those of the runs.

A record is the JSON array `[version, tag, ...fields]`. Times are Unix milliseconds. A row names the run and the place that
wrote it, so that a run which crashed before its own record finds here what it had done; its `life` is that of the run, as
another run may have had the id before. Writers may be many and outside a
run, and a stream is rewritten when it has grown long: so a fold takes no notice of a row that comes twice or too late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol, TypeAlias, cast

from attrs import astuple, field, frozen

from bb.codec import dumps
from bb.errors import CorruptRecord
from bb.log.records import unpacked
from bb.record import Record

VERSION: Final = 1

Spot: TypeAlias = tuple[str, str]
"""A run and the path of a place in it."""


def _spot(value: Sequence[str] | None) -> Spot | None:
    return None if value is None else (value[0], value[1])


def _texts(value: Iterable[str]) -> tuple[str, ...]:
    return tuple(value)


# --- memo, once, checkpoints, symbols ---


@frozen(eq=False, repr=False)
class Kept(Record):
    """The value of a memo, in codec form."""

    run: str
    path: str
    at: int
    value: object
    life: str = ""


@frozen(eq=False, repr=False)
class Claimed(Record):
    """A run is about to run the body of a once; `fence` is that of its lease."""

    run: str
    path: str
    at: int
    fence: int
    label: str


@frozen(eq=False, repr=False)
class Freed(Record):
    """The body failed, so that others may run it."""

    run: str
    path: str


@frozen(eq=False, repr=False)
class Finished(Record):
    """The body of a once came to its end; `block` in codec form."""

    run: str
    path: str
    at: int
    block: object
    life: str = ""


@frozen(eq=False, repr=False)
class Passed(Record):
    """A run came past a checkpoint at index `position` of its flow's body; `block` is the prefix, in codec form."""

    run: str
    path: str
    at: int
    signature: str
    fingerprint: str
    """Of the run's input."""
    position: int
    label: str
    block: object
    life: str = ""


@frozen(eq=False, repr=False)
class Bound(Record):
    """What a run bound until the end of a leg, each value in codec form; `place` names the leg."""

    run: str
    place: str
    at: int
    symbols: Mapping[str, object]
    life: str = ""


# --- mail and rates ---


@frozen(eq=False, repr=False)
class Named(Record):
    """The source or name that a stream is for, which its own name only hashes."""

    text: str


@frozen(eq=False, repr=False)
class Put(Record):
    """An event, its payload in codec form; with `to` the answer to one wait, else for whoever waits longest."""

    delivery_id: str
    payload: object
    at: int
    to: Spot | None = field(default=None, converter=_spot)
    said: bool = False
    """Whether a person said it, as a turn of the session."""
    turn: str | None = None


@frozen(eq=False, repr=False)
class Wait(Record):
    """A run waits for an event."""

    run: str
    path: str
    at: int


@frozen(eq=False, repr=False)
class Left(Record):
    """A run waits no longer. With `over` it also forgets what it was given: a run of that id may start from nothing."""

    run: str
    over: bool = False


@frozen(eq=False, repr=False)
class Back(Record):
    """A run is gone that had not taken an event it was given: that is for the next who waits, before all later ones."""

    run: str
    path: str
    delivery_id: str


@frozen(eq=False, repr=False)
class Paired(Record):
    """An event and the wait that got it, in a stream that was rewritten; `settled`: the run has gone on since."""

    run: str
    path: str
    settled: bool
    delivery_id: str
    payload: object
    at: int
    said: bool
    turn: str | None


@frozen(eq=False, repr=False)
class Seen(Record):
    """The delivery ids that are remembered, in a stream that was rewritten."""

    ids: tuple[str, ...] = field(converter=_texts)


@frozen(eq=False, repr=False)
class Stamped(Record):
    """So many calls were made inside a throttle; `id` tells apart what one place did in several attempts."""

    id: str
    run: str
    path: str
    at: int
    count: int
    per: int
    """Milliseconds that the throttle looks back."""


@frozen(eq=False, repr=False)
class Window(Record):
    """The longest `per` among the stamps, in a stream that was rewritten."""

    per: int


@frozen(eq=False, repr=False)
class Arrived(Record):
    """A run reached a debounce."""

    run: str
    path: str
    at: int
    life: str = ""


# --- jobs ---


@frozen(eq=False, repr=False)
class Armed(Record):
    """A run reached a trigger: what its body begins with, in codec form, and when it comes due."""

    kind: str
    path: str
    """Of the trigger, from its registered flow."""
    run: str
    """The run that reached it; "" when an app started with it."""
    at: int
    due: int | None
    """None: whenever it is called."""
    spec: tuple[str, ...] = field(converter=_texts)
    """The timetable and its zone, the time, or the id of the webhook."""
    given: object


@frozen(eq=False, repr=False)
class Fired(Record):
    """What came due at `due` is on record as a run, and comes due `next`; None: never again."""

    run: str
    at: int
    due: int
    next: int | None


@frozen(eq=False, repr=False)
class Dropped(Record):
    """The job was unscheduled."""

    at: int


# --- runs ---


@frozen(eq=False, repr=False)
class Parked(Record):
    """A run waits for an event of `source` at `path`, and nothing of it is in memory."""

    run: str
    flow: str
    path: str
    source: str
    at: int


@frozen(eq=False, repr=False)
class Began(Record):
    """A conversation of a flow began with this turn, and this input; its run is known by the turn."""

    flow: str
    turn: str
    fingerprint: str
    at: int


@frozen(eq=False, repr=False)
class Gone(Record):
    """A run is parked no longer."""

    run: str


@frozen(eq=False, repr=False)
class Sealed(Record):
    """Nothing may be appended before the stream is rewritten."""


@frozen(eq=False, repr=False)
class Mark(Record):
    """A long stream that has the same mark at the same position has the same records before it: `id` is used once.

    A stream that is rewritten or begun anew has lost its marks. So who knows what it had come to at a mark reads on from there.
    """

    id: str


Row: TypeAlias = (
    Kept
    | Claimed
    | Freed
    | Finished
    | Passed
    | Bound
    | Named
    | Put
    | Wait
    | Left
    | Back
    | Paired
    | Seen
    | Stamped
    | Window
    | Arrived
    | Armed
    | Fired
    | Dropped
    | Parked
    | Began
    | Gone
    | Sealed
    | Mark
)

_TAGS: Final[Mapping[str, type[Any]]] = {
    "memo": Kept,
    "claim": Claimed,
    "free": Freed,
    "done": Finished,
    "point": Passed,
    "bound": Bound,
    "name": Named,
    "put": Put,
    "wait": Wait,
    "left": Left,
    "back": Back,
    "pair": Paired,
    "seen": Seen,
    "stamp": Stamped,
    "window": Window,
    "arrive": Arrived,
    "arm": Armed,
    "fire": Fired,
    "drop": Dropped,
    "park": Parked,
    "begin": Began,
    "gone": Gone,
    "seal": Sealed,
    "mark": Mark,
}
_TAG_OF: Final[Mapping[type[Any], str]] = {cls: tag for tag, cls in _TAGS.items()}
_GROWN: Final = frozenset({Kept, Finished, Passed, Bound, Arrived})
"""Rows that have got a last field since the first release, which is left out where it is empty."""
_MARK: Final = dumps([VERSION, "mark"])[:-1] + b","


def encode_row(row: Row) -> bytes:
    """A row as a record."""
    cls = type(row)
    values = astuple(row, recurse=False)
    if cls in _GROWN and not values[-1]:
        values = values[:-1]
    return dumps([VERSION, _TAG_OF[cls], *values])


def is_mark(record: bytes) -> bool:
    """Whether a record is a mark."""
    return record.startswith(_MARK)


def decode_row(record: bytes, where: str) -> Row:
    """A record as a row.

    Raises:
        CorruptRecord: it is none, or of a version this release does not know; `where` names it.
    """
    return unpacked(record, where, VERSION, "row of a session or job", _row)


def _row(fields: list[Any]) -> Row:
    tag, *values = fields
    return cast(Row, _TAGS[tag](*values))


class Fold(Protocol):
    """The state that the rows of one stream come to."""

    kinds: ClassVar[tuple[type[Any], ...]]
    """The rows that belong in the stream."""

    def add(self, row: Any) -> None:
        """Fold in one row of these kinds."""
        ...

    def shortest(self) -> Sequence[Row] | None:
        """The fewest rows that come to the same state; None: the stream is never rewritten."""
        ...


def fold_rows(fold: Fold, records: Iterable[bytes], stream: str, start: int = 0) -> bool:
    """Fold in stored records, of which the first stands at `start` in the stream; whether one of them is a seal.

    Raises:
        CorruptRecord: one of them is no row, or belongs in another stream.
    """
    sealed = False
    for position, record in enumerate(records, start):
        where = f"record {position} of {stream}"
        row = decode_row(record, where)
        if isinstance(row, Sealed):
            sealed = True
        if isinstance(row, Sealed | Mark):
            continue
        try:
            if not isinstance(row, fold.kinds):
                raise TypeError(f"{type(row).__name__} belongs in another stream")
            fold.add(row)
        except Exception as error:
            raise CorruptRecord(
                f"{where} does not fit those before it: {error!r}", remedy="restore the store from a copy"
            ) from error
    return sealed
