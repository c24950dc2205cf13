"""`Marks`: what the log of a run says about each place, with the times that replaying has no need of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Literal, TypeAlias

from attrs import Factory, define, frozen

from bb.log import (
    Attempted,
    Entered,
    Failed,
    Forgotten,
    History,
    Parked,
    Saved,
    Scope,
    Started,
    Submitted,
    UndoFailed,
    Unwinding,
    moment,
)

Cause: TypeAlias = Literal["start", "job", "call", "recovery", "retry", "event"]


@frozen
class Attempt:
    """One attempt at a run: when it began, and why."""

    at: datetime
    cause: Cause
    """`start`; `job`: it was put on record to be run later; `call`: a caller came back; `recovery`: the app resumed it;
    `retry`: the durable flow allows another try after a failure; `event`: what it waited for came."""


@frozen
class Failure:
    """An error that ended an attempt, or that was met inside one."""

    at: datetime
    began: datetime
    """When what failed began, at the earliest."""
    error: str
    """The name of its class."""
    detail: str
    attempt: int
    final: bool


@frozen
class Mark:
    """A savepoint at a glance."""

    at: int
    took: int
    attempt: int
    """In which attempt of the run it was made."""
    form: object
    """What it holds, in codec form."""


@define
class Marks:
    """A fold over the facts of a run beside its `History`, for people to look at."""

    history: History
    saved: dict[str, Mark] = Factory(dict)
    entries: dict[str, set[str]] = Factory(dict)
    """The keys of the journal entries of each place."""
    failures: dict[str, list[Failure]] = Factory(dict)
    """By the place that the error came from."""
    attempts: list[Attempt] = Factory(list)
    begun: dict[int, int] = Factory(dict)
    """When each attempt began, by its number."""
    places: set[str] = Factory(set)
    """Every place of which anything is known that still counts."""
    last: int = 0
    """When anything was recorded last."""
    _undoing: int | None = None
    """When the undoing began that is under way: an error is recorded when that is over."""

    @classmethod
    def of(cls, run_id: str, records: Iterable[bytes]) -> Marks:
        """The marks of a log.

        Raises:
            CorruptRecord: it cannot be read.
        """
        marks = cls(History(run_id))
        for record in records:
            marks._add(record)
        marks._settle()
        return marks

    def _add(self, record: bytes) -> None:
        history = self.history
        waited = history.parked is not None
        (fact,) = history.read([record])
        at: int = getattr(fact, "at", self.last)
        self.last = max(self.last, at)
        match fact:
            case Started(origin=origin):
                self.attempts.append(Attempt(moment(at), "job" if origin == "job" else "start"))
            case Submitted():
                self.attempts.append(Attempt(moment(at), "job"))
            case Attempted(reason=reason):
                self.attempts.append(Attempt(moment(at), "event" if waited and reason == "recovery" else reason))
                self._undoing = None
            case Unwinding():
                self._undoing = at if self._undoing is None else self._undoing
            case Failed(path=path, place=place, final=final, error=error, detail=detail):
                place = place or path
                told = detail.replace(f" (at {place})", "", 1)  # that is where it is shown
                met = at if self._undoing is None else self._undoing
                self._failed(place, met, error, told, history.attempts - (not final), final=final)
                self._undoing = None
                if not final:
                    self.attempts.append(Attempt(moment(at), "retry"))
            case UndoFailed(path=path, detail=detail):
                self._failed(path, at, "UndoFailed", detail, history.attempts)
            case Saved(path=path, took=took, delta=form):
                self.saved[path] = Mark(at, took, history.attempts, form)
            case Entered(adopted=adopted):
                for _, old, new in adopted:
                    if old in self.saved:
                        self.saved[new] = self.saved[old]
            case Forgotten(path=path, key=""):
                for place in [place for place in self.failures if is_within(place, path)]:
                    del self.failures[place]
            case _:
                pass
        self.begun.setdefault(history.attempts, at)

    def _failed(self, place: str, at: int, error: str, detail: str, attempt: int, *, final: bool = False) -> None:
        begun = moment(self.begun.get(attempt, at))
        self.failures.setdefault(place, []).append(Failure(moment(at), begun, error, detail, attempt, final))

    def _settle(self) -> None:
        """Leave what still counts."""
        kept = {path for scope in self.current() for path in scope.saved}
        self.saved = {path: mark for path, mark in self.saved.items() if path in kept}
        for scope in self.current():
            for path, entries in scope.entries.items():
                self.entries.setdefault(path, set()).update(entries)
        self.places = {path for scope in self.current() for path in scope.remembered()}
        self.places |= self.failures.keys() | {leg.path for leg in self.history.legs}

    def current(self) -> Iterator[Scope]:
        """The durable flows of the run, each under the signature it had last."""
        for scope in self.history.scopes.values():
            if self.history.scope(scope.path) is scope:
                yield scope

    def is_kept(self, path: str) -> bool:
        """Whether a place is in a durable flow, so that what is done there leaves a savepoint."""
        return any(is_within(path, scope.path) for scope in self.current())

    def is_undone(self, place: str) -> bool:
        """Whether a place is in an attempt that was undone since."""
        return any(scope.is_undone(place) for scope in self.current())

    def unwinding(self, path: str) -> str | None:
        """The error that a place is being undone for, if it is."""
        return next((scope.unwinding[path].detail for scope in self.current() if path in scope.unwinding), None)

    def decided(self, path: str) -> str | None:
        """What was decided at a place."""
        return next((scope.decided[path] for scope in self.current() if path in scope.decided), None)

    def parked(self, path: str) -> Parked | None:
        """The last time the run parked at a place."""
        return next((leg for leg in reversed(self.history.legs) if leg.path == path), None)


def is_within(place: str, path: str) -> bool:
    """Whether a place is this one or below it."""
    return place == path or place.startswith(f"{path}/")
