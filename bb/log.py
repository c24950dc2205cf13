"""What a run remembers: facts, appended to one stream per run, and the fold over them. History is never rewritten.

A record is the JSON array `[version, fence, tag, ...fields]`. Times are Unix milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias, cast

from attrs import Factory, define, evolve, field, frozen

from bb.codec import Codec, dumps, loads
from bb.errors import CorruptRecord
from bb.messages import Input, Message, ToolCall, ToolResult, Usage
from bb.redaction import has_secrets, redacted

VERSION: Final = 1

Origin: TypeAlias = Literal["caller", "job"]
Status: TypeAlias = Literal["running", "interrupted", "failed", "finished", "cancelled", "expired", "stuck"]
EndStatus: TypeAlias = Literal["finished", "cancelled", "expired"]

_LONGEST_DETAIL: Final = 2000  # characters
STUCK_AFTER: Final = 5  # attempts in a row that recorded nothing: the run kills its process


@frozen
class Delta:
    """What one step adds to a run: new messages, the selection, the value of its last reply, tokens, gates opened."""

    messages: tuple[Message, ...] = ()
    selected: str | None = None
    value: object = None
    usage: Usage | None = None
    gates: tuple[str, ...] = ()


@frozen
class Started:
    """The first fact of a run."""

    flow: str
    session: str
    origin: Origin
    at: int
    fingerprint: str
    input: object
    """The input in codec form; decoded only when it is needed."""


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


# --- deltas ---------------------------------------------------------------------------------------------------------


def dump_delta(delta: Delta, codec: Codec, root: str) -> dict[str, object]:
    """A delta in codec form; what is empty is left out, and a value that is just the last text is not stored twice.

    Raises:
        NotSavable: its value cannot be kept exactly; `root` names it.
    """
    out: dict[str, object] = {}
    if delta.messages:
        out["m"] = [_dump_message(message) for message in delta.messages]
    if delta.selected is not None:
        out["s"] = delta.selected
    if delta.value is not None:
        last = delta.messages[-1].content if delta.messages else None
        if type(delta.value) is str and delta.value == last:
            out["t"] = 1
        else:
            out["v"] = codec.dump(delta.value, root)
    if delta.usage is not None and delta.usage.total:
        usage = delta.usage
        out["u"] = [usage.input, usage.output, usage.cache_read, usage.cache_write, usage.reasoning]
    if delta.gates:
        out["g"] = list(delta.gates)
    return out


def load_delta(plain: object, codec: Codec) -> Delta:
    """The delta of a codec form, sharing nothing mutable with it.

    Raises:
        CorruptRecord: it is none, or holds a class the registry does not know.
    """
    try:
        form = cast("dict[str, Any]", plain)
        messages = tuple([_load_message(m) for m in form.get("m", ())])
        value: object = messages[-1].content if "t" in form else codec.load(form["v"]) if "v" in form else None
        usage = Usage(*form["u"]) if "u" in form else None
        return Delta(messages, form.get("s"), value, usage, tuple(form.get("g", ())))
    except CorruptRecord:
        raise
    except Exception as error:
        raise CorruptRecord(f"a savepoint cannot be read: {error}", remedy="forget it, or restore the store") from error


def _dump_message(message: Message) -> list[object]:
    if not (message.calls or message.results or has_secrets()):
        return [message.role, message.content]
    clean: Callable[[str], str] = redacted
    out: list[object] = [clean(message.role), clean(message.content)]
    if message.calls or message.results:
        out.append([[call.id, call.name, clean(call.input)] for call in message.calls])
        out.append([[result.call_id, clean(result.content), result.is_error] for result in message.results])
    return out


def _load_message(form: Sequence[Any]) -> Message:
    if len(form) == 2:
        return Message(form[1], form[0])
    role, content, calls, results = form
    return Message(content, role, [ToolCall(*call) for call in calls], [ToolResult(*result) for result in results])


# --- the fold -------------------------------------------------------------------------------------------------------


@define
class Scope:
    """What is remembered for one durable flow under one signature."""

    number: int
    path: str
    signature: str
    saved: dict[str, object] = Factory(dict)
    decided: dict[str, str] = Factory(dict)
    entries: dict[str, dict[str, object]] = Factory(dict)
    entered: Entered | None = None
    """The fact that opened it, until that goes out with the first fact inside."""

    def remembered(self) -> set[str]:
        """The paths at which anything is remembered."""
        return self.saved.keys() | self.decided.keys() | self.entries.keys()

    def adopt(self, other: Scope, old: str, new: str) -> None:
        """Take over what another scope remembers at one place."""
        if old in other.saved:
            self.saved[new] = other.saved[old]
        if old in other.decided:
            self.decided[new] = other.decided[old]
        if old in other.entries:
            self.entries[new] = dict(other.entries[old])

    def forget(self, path: str, key: str) -> None:
        """Drop what is remembered at one place and below it, or one entry of it."""
        if key:
            self.entries.get(path, {}).pop(key, None)
            return
        below = path + "/"
        for held in (self.saved, self.decided, self.entries):
            kept = cast("dict[str, object]", held)
            for place in [p for p in kept if p == path or p.startswith(below)]:
                del kept[place]


@define
class History:
    """The state of a run: the fold over its facts."""

    run_id: str
    length: int = 0
    tail: list[bytes] = Factory(list)
    """The last record that was read, if any: the same place holds another when the run was started over."""
    started: Started | None = None
    scopes: dict[int, Scope] = Factory(dict)
    attempts: int = 0
    failures: dict[str, int] = Factory(dict)
    """Failures that count against the retries of each durable flow, by path."""
    last_failure: Failed | None = None
    failed: bool = False
    ended: Ended | None = None
    progress: int = 0
    """When the last fact that is progress was recorded."""
    idle_attempts: int = 0
    """Attempts in a row that recorded nothing."""
    _current: dict[str, Scope] = field(factory=dict, alias="current")

    def scope(self, path: str) -> Scope | None:
        """The durable flow at this path, under the signature it had last."""
        return self._current.get(path)

    def read(self, records: Iterable[bytes]) -> list[Fact]:
        """Fold in stored records, and give the facts they are.

        Raises:
            CorruptRecord: one of them is no fact, or does not fit those before it.
        """
        facts: list[Fact] = []
        for record in records:
            where = f"record {self.length} of run {self.run_id}"
            fact = decode(record, where)
            try:
                self.add(fact)
            except Exception as error:
                raise CorruptRecord(
                    f"{where} does not fit those before it: {error!r}", remedy="restore the store from a copy"
                ) from error
            self.tail = [record]
            facts.append(fact)
        return facts

    def add(self, fact: Fact) -> None:
        """Fold in one fact."""
        self.length += 1
        match fact:
            case Saved(scope=number, path=path, delta=delta, at=at):
                self.scopes[number].saved[path] = delta
                self._progress(at)
            case Entry(scope=number, path=path, at=at, key=key, value=value):
                self.scopes[number].entries.setdefault(path, {})[key] = value
                self._progress(at)
            case Decided(scope=number, path=path, at=at, choice=choice):
                self.scopes[number].decided[path] = choice
                self._progress(at)
            case Started(at=at, origin=origin):
                self.started = fact
                self.progress = at
                self.attempts = self.idle_attempts = 0 if origin == "job" else 1  # a job is only put on record
            case Attempted():
                if self.failed or self.ended is not None:
                    self.failures.clear()  # who runs a failed run again starts a new budget
                self.failed, self.ended = False, None
                self.attempts += 1
                self.idle_attempts += 1
            case Entered(number=number):
                if number not in self.scopes:
                    self.enter(fact)
            case Forgotten(path=path, key=key):
                for scope in self.scopes.values():
                    scope.forget(path, key)
                if not key:
                    self.ended = None
            case Failed(path=path, final=final, at=at):
                self.last_failure = fact
                self._progress(at)
                if final:
                    self.failed = True
                else:
                    self.attempts += 1
                    self.failures[path] = self.failures.get(path, 0) + 1
                    for inner in [p for p in self.failures if p.startswith(path + "/")]:
                        del self.failures[inner]  # a retry outside restarts the budgets inside
            case Submitted(at=at):
                assert self.started is not None
                self.started = evolve(self.started, origin="job")
                if self.failed or self.ended is not None:
                    self.failures.clear()
                self.failed, self.ended = False, None
                self._progress(at)
            case Stopped():
                self.idle_attempts = 0
            case Ended(at=at):
                self.ended = fact
                self.failed = False
                self._progress(at)

    def enter(self, fact: Entered) -> Scope:
        """The scope that an `Entered` opens; its record may follow with the first fact inside."""
        scope = Scope(fact.number, fact.path, fact.signature)
        for number, old, new in fact.adopted:
            scope.adopt(self.scopes[number], old, new)
        self.scopes[fact.number] = scope
        self._current[fact.path] = scope
        return scope

    def _progress(self, at: int) -> None:
        self.progress = max(self.progress, at)
        self.idle_attempts = 0

    def remembers_below(self, path: str) -> bool:
        """Whether anything inside `path` may replay, in whichever durable flow."""
        below = path + "/"
        return any(place.startswith(below) for scope in self.scopes.values() for place in scope.remembered())

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.ended is not None and self.ended.status == "finished"

    @property
    def is_waiting_job(self) -> bool:
        """Whether the app runs it by itself."""
        return self.started is not None and self.started.origin == "job" and not self.failed and self.ended is None

    @property
    def is_stuck(self) -> bool:
        """Whether the last attempts all ended without a trace: the run seems to kill its process."""
        return self.ended is None and not self.failed and self.idle_attempts >= STUCK_AFTER

    def status(self, held: bool) -> Status:
        """Where the run stands; `held` says whether a runner has its lease."""
        if self.ended is not None:
            return self.ended.status
        if held:
            return "running"
        if self.failed:
            return "failed"
        return "stuck" if self.is_stuck else "interrupted"


def load_input(started: Started, codec: Codec) -> tuple[Input, Mapping[str, object]]:
    """The input and the params a run was started with.

    Raises:
        CorruptRecord: they cannot be read.
    """
    input, params = cast("list[object]", codec.load(started.input))
    assert isinstance(input, Input) and isinstance(params, dict)
    return input, params


_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_MILLI: Final = timedelta(milliseconds=1)


def millis(at: datetime) -> int:
    """An aware time as Unix milliseconds."""
    return (at - _EPOCH) // _MILLI


def moment(at: int) -> datetime:
    """Unix milliseconds as a UTC time."""
    return _EPOCH + at * _MILLI


# --- stream names ---------------------------------------------------------------------------------------------------
# Ids hold no "/", so no id can reach into another's streams.

RUNS: Final = "run/"
CONTROLS: Final = "control/"


def run_stream(run_id: str) -> str:
    """The stream of a run's facts; also the name of its lease."""
    return RUNS + run_id


def control_stream(run_id: str) -> str:
    """Where others ask the holder of a run for something."""
    return CONTROLS + run_id


def tree_stream(signature: str) -> str:
    """Where the canonical form behind a signature is kept, once."""
    return f"tree/{signature}"
