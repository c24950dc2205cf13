"""`History`: the state of a run, which is the fold over its facts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias, cast

from attrs import Factory, define, evolve, field

from bb.errors import CorruptRecord
from bb.log.facts import (
    Answered,
    Attempted,
    Decided,
    Ended,
    EndStatus,
    Entered,
    Entry,
    Fact,
    Failed,
    Forgotten,
    Parked,
    Saved,
    Seen,
    Started,
    Stopped,
    Submitted,
    UndoFailed,
    Unwinding,
    Unwound,
    decode,
)
from bb.record import Record

Status: TypeAlias = Literal[
    "queued", "running", "parked", "interrupted", "failed", "finished", "cancelled", "expired", "stuck"
]

STUCK_AFTER: Final = 5  # attempts in a row that recorded nothing: the run kills its process


@define(eq=False, repr=False)
class Scope(Record):
    """What is remembered for one durable flow under one signature."""

    number: int
    path: str
    signature: str
    saved: dict[str, object] = Factory(dict)
    decided: dict[str, str] = Factory(dict)
    entries: dict[str, dict[str, object]] = Factory(dict)
    unwinding: dict[str, Unwinding] = Factory(dict)
    """What is being undone, by place."""
    unwound: dict[str, int] = Factory(dict)
    """How often each place was undone: the number of its next attempt."""
    over: dict[str, Unwinding] = Factory(dict)
    """The failures that were undone, by place without its attempt, as long as no caller has heard of them."""
    undo_failed: dict[str, str] = Factory(dict)
    """Cleanups that failed for good, each with its error."""
    settled: set[str] = Factory(set)
    """Failed cleanups that people have taken care of."""
    entered: Entered | None = None
    """The fact that opened it, until that goes out with the first fact inside."""

    def remembered(self) -> set[str]:
        """The paths at which anything is remembered."""
        kept = self.saved.keys() | self.decided.keys() | self.entries.keys()
        return kept | self.unwinding.keys() | self.unwound.keys() | self.undo_failed.keys()

    def attempt(self, path: str) -> str:
        """A place that can be undone, as its present attempt."""
        count = self.unwound.get(path, 0)
        return f"{path}@{count}" if count else path

    def is_undone(self, place: str) -> bool:
        """Whether a place belongs to an attempt that was undone, so that what is remembered there never counts again."""
        dead = (f"{base}@{n}/" if n else f"{base}/" for base, count in self.unwound.items() for n in range(count))
        return any(map(place.startswith, dead))

    def adopt(self, other: Scope, old: str, new: str) -> None:
        """Take over what another scope remembers at one place."""
        if old in other.saved:
            self.saved[new] = other.saved[old]
        if old in other.decided:
            self.decided[new] = other.decided[old]
        if old in other.entries:
            self.entries[new] = dict(other.entries[old])
        if old in other.unwinding:
            self.unwinding[new] = other.unwinding[old]
        if old in other.unwound:
            self.unwound[new] = other.unwound[old]
        if old in other.undo_failed:
            self.undo_failed[new] = other.undo_failed[old]

    def forget(self, path: str, key: str) -> None:
        """Drop what is remembered at one place and below it, or one entry of it."""
        if key:
            self.entries.get(path, {}).pop(key, None)
            return
        below = path + "/"
        self.settled |= {p for p in self.undo_failed if p == path or p.startswith(below)}
        for held in (self.saved, self.decided, self.entries, self.undo_failed, self.over):
            kept = cast("dict[str, object]", held)
            for place in [p for p in kept if p == path or p.startswith(below)]:
                del kept[place]


@define(eq=False, repr=False)
class History(Record):
    """The state of a run: the fold over its facts."""

    run_id: str
    length: int = 0
    tail: list[bytes] = Factory(list)
    """The last record that was read, if any: the same place holds another when the run was started over."""
    started: Started | None = None
    seen: dict[str, object] = Factory(dict)
    """What the symbols of the session held, in codec form: when it started (""), and where it resumed."""
    scopes: dict[int, Scope] = Factory(dict)
    attempts: int = 0
    failures: dict[str, int] = Factory(dict)
    """Failures that count against the retries of each durable flow, by path."""
    last_failure: Failed | None = None
    failed: bool = False
    ended: Ended | None = None
    answer: str | None = None
    """What it answered, if it is the body of a webhook."""
    progress: int = 0
    """When the last fact that is progress was recorded."""
    queued: bool = False
    """Whether it was put on record as a job, and has not begun since."""
    idle_attempts: int = 0
    """Attempts in a row that recorded nothing."""
    parked: Parked | None = None
    """Where the run waits, if it does."""
    still: bool = False
    """Whether it parked, and has done nothing since."""
    legs: list[Parked] = Factory(list)
    """Every time it parked."""
    turns: dict[str, str] = Factory(dict)
    """The turns of a conversation that the run has heard, each with the place that asked for it."""
    told: set[str] = Factory(set)
    """The places being undone whose failure a caller has heard of."""
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
        self.still = self.still and isinstance(fact, Attempted | Stopped | Submitted)
        match fact:
            case Saved(scope=number, path=path, delta=delta, at=at):
                self.scopes[number].saved[path] = delta
                if self.legs:
                    self._hear(path, delta)
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
                self.queued = origin == "job"
                self.attempts = self.idle_attempts = 0 if self.queued else 1
            case Seen(at=at, symbols=symbols, path=path):
                self.seen[path] = symbols
                self._progress(at)
            case Attempted():
                self._reopen()
                self.queued = False
                self.attempts += 1
                self.idle_attempts += 1
            case Entered(number=number):
                if number not in self.scopes:
                    self.enter(fact)
            case Forgotten(path=path, key=key):
                for scope in self.scopes.values():
                    scope.forget(path, key)
                self.seen.pop(path, None)
                if not key:
                    self.ended = None
                self.answer = None
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
                    for scope in self.scopes.values():  # and has heard of what was undone inside
                        for base in [p for p in scope.over if p == path or p.startswith(path + "/")]:
                            del scope.over[base]
            case Submitted(at=at):
                assert self.started is not None
                self.started = evolve(self.started, origin="job")
                self._reopen()
                self.queued = True
                self._progress(at)
            case Unwinding(scope=number, path=path, at=at):
                self.scopes[number].unwinding[path] = fact
                self._progress(at)
            case UndoFailed(scope=number, path=path, at=at, detail=detail):
                self.scopes[number].undo_failed[path] = detail
                self.scopes[number].settled.discard(path)
                self._progress(at)
            case Unwound(scope=number, path=path, at=at):
                scope = self.scopes[number]
                failure = scope.unwinding.pop(path, None)
                base = path.rpartition("@")[0] if "@" in path.rpartition("/")[2] else path
                if failure is not None and path not in self.told:
                    scope.over[base] = failure
                scope.unwound[base] = scope.unwound.get(base, 0) + 1
                self._progress(at)
            case Parked(at=at):
                self.parked, self.still = fact, True
                self.legs.append(fact)
                self._progress(at)
            case Stopped():
                self.idle_attempts = 0
            case Answered(at=at, answer=answer):
                self.answer = answer
                self._progress(at)
            case Ended(at=at):
                self.ended = fact
                self.failed = False
                self._progress(at)

    @property
    def session(self) -> str:
        """The session that the run belongs to; empty if that is none but its own."""
        return self.started.session if self.started is not None and self.started.session != self.run_id else ""

    def enter(self, fact: Entered) -> Scope:
        """The scope that an `Entered` opens; its record may follow with the first fact inside."""
        scope = Scope(fact.number, fact.path, fact.signature)
        if (before := self._current.get(fact.path)) is not None:
            # what was undone is over, also when the flow has changed since: a new attempt has keys of its own
            scope.unwound = dict(before.unwound)
        for number, old, new in fact.adopted:
            scope.adopt(self.scopes[number], old, new)
        self.scopes[fact.number] = scope
        self._current[fact.path] = scope
        return scope

    def _hear(self, path: str, delta: object) -> None:
        """If this is what a place where the run parked has waited for, the run goes on, and knows which turn it was."""
        if self.parked is not None and self.parked.path == path:
            self.parked = None
        turn = cast("dict[str, str]", delta).get("f")
        if turn is not None and any(leg.path == path for leg in self.legs):
            self.turns[turn] = path

    def _reopen(self) -> None:
        """Who runs a run again that had failed or ended starts a new budget, and has heard of the failure."""
        if self.failed or self.ended is not None:
            self.failures.clear()
            self.told |= {path for scope in self.scopes.values() for path in scope.unwinding}
            for scope in self.scopes.values():
                scope.over.clear()
        self.failed, self.ended = False, None

    def _progress(self, at: int) -> None:
        self.progress = max(self.progress, at)
        self.idle_attempts = 0

    def end(self, status: EndStatus, at: int) -> Ended:
        """The fact that the run is over: never before its last progress, for a clock that went back must not age it."""
        started = self.started
        assert started is not None
        return Ended(status, max(at, self.progress), started.flow, started.at, self.attempts, self.session)

    def remembers_below(self, path: str) -> bool:
        """Whether anything inside `path` may replay, in whichever durable flow."""
        below = path + "/"
        return any(place.startswith(below) for scope in self.scopes.values() for place in scope.remembered())

    def owes_below(self, path: str) -> bool:
        """Whether something inside `path` is still to be undone, in whichever durable flow."""
        below = path + "/"
        return any(place.startswith(below) for scope in self.scopes.values() for place in scope.unwinding)

    def saved_below(self, path: str) -> list[tuple[str, object]]:
        """The savepoints that count inside `path`, in whichever durable flow, each with its place."""
        below = path + "/"
        return [one for scope in self._current.values() for one in scope.saved.items() if one[0].startswith(below)]

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.ended is not None and self.ended.status == "finished"

    @property
    def is_waiting_job(self) -> bool:
        """Whether the app runs it by itself."""
        return self.started is not None and self.started.origin == "job" and not self.failed and self.ended is None

    @property
    def is_compensating(self) -> bool:
        """Whether a crash cut it off while something was being undone; then the app goes on with that by itself."""
        open_ = any(scope.unwinding for scope in self.scopes.values())
        return open_ and not self.failed and self.ended is None

    @property
    def resumes(self) -> bool:
        """Whether it is open, and the app goes on with it by itself: a job, or a run that something was delivered to."""
        if self.failed or self.ended is not None:
            return False
        return self.is_waiting_job or self.is_compensating or bool(self.legs)

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
        if self.parked is not None and not self.failed:
            return "parked"
        if self.failed:
            return "failed"
        if self.queued:
            return "queued"
        return "stuck" if self.is_stuck else "interrupted"
