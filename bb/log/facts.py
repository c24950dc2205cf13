"""The facts of a run, and a fact as a record.

A record is the JSON array `[version, fence, tag, ...fields]`. Times are Unix milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias, cast

from attrs import frozen

from bb.codec import dumps, loads
from bb.errors import CorruptRecord
from bb.redaction import redacted

VERSION: Final = 1

Origin: TypeAlias = Literal["caller", "job"]
EndStatus: TypeAlias = Literal["finished", "cancelled", "expired"]

_LONGEST_DETAIL: Final = 2000  # characters


@frozen
class Started:
    """The first fact of a run."""

    flow: str
    session: str
    origin: Origin
    at: int
    fingerprint: str
    given: object
    """Input and params in codec form; decoded only when they are needed."""


@frozen
class Attempted:
    """A runner took the run up again: a caller (`call`) or the app by itself (`recovery`)."""

    at: int
    reason: Literal["call", "recovery"]


@frozen
class Entered:
    """A durable flow was entered under a signature it had not here before; from now on `number` stands for both.

    `adopted` lists `[scope, path, new path]` of what a forward-compatible flow took over from earlier signatures.
    """

    number: int
    path: str
    signature: str
    adopted: tuple[tuple[int, str, str], ...] = ()


@frozen
class Saved:
    """A savepoint: the delta of the step at `path`, in codec form, for the durable flow numbered `scope`."""

    scope: int
    path: str
    at: int
    took: int
    """Milliseconds."""
    delta: object


@frozen
class Decided:
    """A decision from outside the run, such as the winner of a `One`."""

    scope: int
    path: str
    at: int
    choice: str


@frozen
class Entry:
    """A journal entry of one handler: an ask, a tool run or a step; `value` in codec form."""

    scope: int
    path: str
    at: int
    key: str
    value: object


@frozen
class Forgotten:
    """What was remembered at `path` no longer counts: everything, or the one entry `key`."""

    path: str
    key: str = ""


@frozen
class Failed:
    """The durable flow at `path` failed, or with `final` the whole run. For people to read, never replayed."""

    path: str
    at: int
    final: bool
    error: str
    detail: str

    @classmethod
    def of(cls, error: Exception, path: str, at: int, *, final: bool) -> Failed:
        """The record of an error; of a long message its beginning."""
        return cls(path, at, final, type(error).__name__, redacted(str(error))[:_LONGEST_DETAIL])


@frozen
class Submitted:
    """A run that a caller had begun, or that had ended without success, was handed to the app: now it is a job."""

    at: int


@frozen
class Stopped:
    """A runner stopped in good order before it recorded anything, so this attempt does not count as a crash."""

    at: int


@frozen
class Ended:
    """The run is over. It repeats what `runs()` lists, so that a listing reads one record per run."""

    status: EndStatus
    at: int
    flow: str
    started: int
    attempts: int


Fact: TypeAlias = (
    Started | Attempted | Entered | Saved | Decided | Entry | Forgotten | Failed | Submitted | Stopped | Ended
)

_TAGS: Final[Mapping[str, type[Any]]] = {
    "run": Started,
    "try": Attempted,
    "in": Entered,
    "s": Saved,
    "d": Decided,
    "e": Entry,
    "forget": Forgotten,
    "fail": Failed,
    "job": Submitted,
    "stop": Stopped,
    "end": Ended,
}
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
    return dumps([VERSION, fence, _TAG_OF[cls], *_VALUES[cls](fact)])


def decode(record: bytes, where: str) -> Fact:
    """A record as a fact.

    Raises:
        CorruptRecord: it is none, or of a version this release does not know; `where` names it.
    """
    try:
        version, _, tag, *values = cast("list[Any]", loads(record))
    except Exception as error:
        raise CorruptRecord(f"{where} cannot be read: {error}", remedy="restore the store from a copy") from error
    if version != VERSION:
        raise CorruptRecord(f"{where} has format version {version}, known is {VERSION}", remedy="upgrade bb")
    try:
        cls = _TAGS[tag]
        if cls is Entered:
            number, path, signature, adopted = values
            return Entered(number, path, signature, tuple((s, old, new) for s, old, new in adopted))
        return cast(Fact, cls(*values))
    except Exception as error:
        raise CorruptRecord(f"{where} is no fact of a run: {error}", remedy="restore the store from a copy") from error
