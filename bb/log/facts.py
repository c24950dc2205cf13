"""The facts of a run, and a fact as a record.

A record is the JSON array `[version, fence, tag, ...fields]`. Times are Unix milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias, cast

from attrs import frozen

from bb.codec import dumps
from bb.errors import root_of
from bb.log.records import unpacked
from bb.record import Record
from bb.redaction import redacted

VERSION: Final = 1

Origin: TypeAlias = Literal["caller", "job"]
EndStatus: TypeAlias = Literal["finished", "cancelled", "expired"]

_LONGEST_DETAIL: Final = 2000  # characters


@frozen(eq=False, repr=False)
class Started(Record):
    """The first fact of a run."""

    flow: str
    session: str
    origin: Origin
    at: int
    fingerprint: str
    given: object
    """Input and params in codec form; decoded only when they are needed."""
    life: str = ""
    """Tells the run from one that was dropped, and had its id before."""


@frozen(eq=False, repr=False)
class Seen(Record):
    """What the symbols of the session held, in codec form, when the run started, or at `path` when it resumed there.

    Other runs change them, and a replay has to see them as they were.
    """

    at: int
    symbols: object
    path: str = ""


@frozen(eq=False, repr=False)
class Attempted(Record):
    """A runner took the run up again: a caller (`call`) or the app by itself (`recovery`)."""

    at: int
    reason: Literal["call", "recovery"]


@frozen(eq=False, repr=False)
class Entered(Record):
    """A durable flow was entered under a signature it had not here before; from now on `number` stands for both.

    `adopted` lists `[scope, path, new path]` of what a forward-compatible flow took over from earlier signatures.
    """

    number: int
    path: str
    signature: str
    adopted: tuple[tuple[int, str, str], ...] = ()


@frozen(eq=False, repr=False)
class Saved(Record):
    """A savepoint: the delta of the step at `path`, in codec form, for the durable flow numbered `scope`."""

    scope: int
    path: str
    at: int
    took: int
    """Milliseconds."""
    delta: object


@frozen(eq=False, repr=False)
class Decided(Record):
    """A decision from outside the run, such as the winner of a `One`."""

    scope: int
    path: str
    at: int
    choice: str


@frozen(eq=False, repr=False)
class Entry(Record):
    """A journal entry of one handler: an ask, a tool run or a step; `value` in codec form."""

    scope: int
    path: str
    at: int
    key: str
    value: object


@frozen(eq=False, repr=False)
class Forgotten(Record):
    """What was remembered at `path` no longer counts: everything, or the one entry `key`."""

    path: str
    key: str = ""


@frozen(eq=False, repr=False)
class Failed(Record):
    """The durable flow at `path` failed, or with `final` the whole run. For people to read, never replayed."""

    path: str
    at: int
    final: bool
    error: str
    """The class of what failed, be it that bb raised another for it."""
    detail: str
    place: str = ""
    """Where the error came from, if that is not `path`; left out of the record if it is."""

    @classmethod
    def of(cls, error: Exception, path: str, at: int, *, final: bool) -> Failed:
        """The record of an error; of a long message its beginning."""
        place = getattr(error, "path", "")
        place = "" if place == path else place
        return cls(path, at, final, type(root_of(error)).__name__, redacted(str(error))[:_LONGEST_DETAIL], place)


@frozen(eq=False, repr=False)
class Unwinding(Record):
    """What the saga, scope or timeout at `path` did is being undone, because of this error: it never goes forward again.

    `fatal` tells whether trying again was pointless.
    """

    scope: int
    path: str
    at: int
    error: str
    detail: str
    fatal: bool


@frozen(eq=False, repr=False)
class UndoFailed(Record):
    """The cleanup at `path` failed for good; a later run tries it again, unless it is forgotten first."""

    scope: int
    path: str
    at: int
    detail: str


@frozen(eq=False, repr=False)
class Unwound(Record):
    """Everything at `path` is undone: running it again is a new attempt."""

    scope: int
    path: str
    at: int


@frozen(eq=False, repr=False)
class Parked(Record):
    """The run waits at `path` for an event of this source, and showed `prompt`.

    It repeats whose run it is, so that whoever looks for runs to wake reads one record per run.
    """

    path: str
    at: int
    source: str
    prompt: str
    flow: str
    session: str


@frozen(eq=False, repr=False)
class Submitted(Record):
    """A run that a caller had begun, or that had ended without success, was handed to the app: now it is a job."""

    at: int


@frozen(eq=False, repr=False)
class Stopped(Record):
    """A runner stopped in good order before it recorded anything, so this attempt does not count as a crash."""

    at: int


@frozen(eq=False, repr=False)
class Answered(Record):
    """What the body of a webhook has answered: who calls again gets it, without running anything."""

    at: int
    answer: str


@frozen(eq=False, repr=False)
class Ended(Record):
    """The run is over. It repeats what `runs()` lists, so that a listing reads one record per run."""

    status: EndStatus
    at: int
    flow: str
    started: int
    attempts: int
    session: str = ""
    """Empty for a run of none but its own."""


Fact: TypeAlias = (
    Started
    | Seen
    | Attempted
    | Entered
    | Saved
    | Decided
    | Entry
    | Forgotten
    | Failed
    | Unwinding
    | UndoFailed
    | Unwound
    | Parked
    | Submitted
    | Stopped
    | Answered
    | Ended
)

_TAGS: Final[Mapping[str, type[Any]]] = {
    "run": Started,
    "see": Seen,
    "try": Attempted,
    "in": Entered,
    "s": Saved,
    "d": Decided,
    "e": Entry,
    "forget": Forgotten,
    "fail": Failed,
    "undo": Unwinding,
    "undo!": UndoFailed,
    "undone": Unwound,
    "park": Parked,
    "job": Submitted,
    "stop": Stopped,
    "say": Answered,
    "end": Ended,
}
_GROWN: Final = frozenset({Started, Failed, Ended})
"""Those whose last field came later: where it is empty, it is left out."""
_TAG_OF: Final[Mapping[type[Any], str]] = {cls: tag for tag, cls in _TAGS.items()}


def _values_of(cls: type[Any]) -> Callable[[Any], tuple[object, ...]]:
    first, *rest = (a.name for a in cls.__attrs_attrs__)
    return attrgetter(first, *rest) if rest else lambda fact: (getattr(fact, first),)


_VALUES: Final[Mapping[type[Any], Callable[[Any], tuple[object, ...]]]] = {
    cls: _values_of(cls) for cls in _TAGS.values()
}


def encode(fact: Fact, fence: int) -> bytes:
    """A fact as a record. The fence makes it differ from what a rival would write at the same position."""
    cls = type(fact)
    values = _VALUES[cls](fact)
    if cls in _GROWN and not values[-1]:
        values = values[:-1]  # as the first release wrote it
    return dumps([VERSION, fence, _TAG_OF[cls], *values])


def decode(record: bytes, where: str) -> Fact:
    """A record as a fact.

    Raises:
        CorruptRecord: it is none, or of a version this release does not know; `where` names it.
    """
    return unpacked(record, where, VERSION, "fact of a run", _fact)


def _fact(fields: list[Any]) -> Fact:
    _, tag, *values = fields
    cls = _TAGS[tag]
    if cls is Entered:
        number, path, signature, adopted = values
        return Entered(number, path, signature, tuple((s, old, new) for s, old, new in adopted))
    return cast(Fact, cls(*values))
