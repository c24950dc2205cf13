"""`Picture`: one run as the tree of its flow, with what became of each part of it.

The log tells what is saved, not what begins: where a run is at work is worked out from what is saved around that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Final, Literal, TypeAlias

from attrs import evolve, frozen

from bb.engine.outcome import RunInfo
from bb.engine.runs.marks import Attempt, Failure, Marks
from bb.engine.runs.shape import ALTERNATIVES, BESIDE, INSTANT, SAVED, Part
from bb.log import moment
from bb.messages import Usage

Standing: TypeAlias = Literal[
    "done", "running", "waiting", "failed", "undoing", "undone", "open", "unrecorded", "skipped", "pending"
]
"""How a part stands. `open`: it was at work when the run stopped. `unrecorded`: the run has gone by, and such a part leaves
no record. `skipped`: the run has gone by without it. `pending`: the run has not come there."""

_Phase: TypeAlias = Literal["past", "now", "fell", "ahead"]
"""Where the run is, seen from a part: it has gone by, is there, has failed there and gone on elsewhere, or has not come there."""


@frozen
class Step:
    """One part of a flow in one run."""

    path: str
    kind: str
    """The kind of flow; `round` for one round of a loop, `attempt` for one try of what may be tried again."""
    id: str
    slot: str
    """Which body of the part around it this is in, where that has several: `otherwise`, `undo 1`."""
    of: object
    """What its statement says, in the canonical form (`bb.identity.Tree`)."""
    standing: Standing
    began: datetime | None
    ended: datetime | None
    attempt: int
    """In which attempt of the run it was saved; 0 if it was not."""
    replays: int
    """How many later attempts had it from its savepoint."""
    waits_for: str | None
    """The source of the event that it waits for."""
    decided: str | None
    """What was decided there: the winner of a `One`, the error that a `Try` or `Retry` caught."""
    failures: tuple[Failure, ...]
    usage: Usage | None
    entries: int
    """How many asks, tool runs and steps its handlers remember."""
    parts: tuple[Step, ...]


@frozen
class Picture:
    """One run, to be looked at."""

    info: RunInfo
    session_id: str
    attempts: tuple[Attempt, ...]
    root: Step
    asks: str
    """What a parked run showed when it parked."""
    trigger: str
    """What starts it by itself, in a few words; empty if nothing does."""
    is_known: bool
    """Whether the flow is registered here, so that this app can go on with the run."""
    is_changed: bool
    """Whether the registered flow is another than the one that the run goes by."""
    length: int
    """How many records its log has."""


def steps_of(marks: Marks, root: Part, *, held: bool) -> Step:
    """What became of each part of a run; `held` says whether somebody is running it."""
    return _Painter(marks, held).root(root)


class _Painter:
    def __init__(self, marks: Marks, held: bool) -> None:
        self._marks = marks
        self._history = marks.history
        self._held = held

    def root(self, part: Part) -> Step:
        history = self._history
        since = moment(history.started.at if history.started is not None else self._marks.last)
        if history.finished:
            return self._step(part, "past", since)
        begun = history.attempts > 0 or history.ended is not None
        return self._step(part, "now" if begun else "ahead", since)

    def _step(self, part: Part, phase: _Phase, since: datetime) -> Step:
        """One part, which did not begin before `since`."""
        marks, path = self._marks, part.path
        mark = marks.saved.get(path)
        parts = tuple(self._parts(part, phase, since))
        tried = bool(parts) and parts[-1].kind == "attempt"  # then the first of them has the same path
        standing = self._standing(part, phase, parts)
        began, ended = self._span(path, parts, standing, since)
        parked = self._history.parked
        return Step(
            path=path,
            kind=part.kind,
            id=part.id,
            slot=part.slot,
            of=part.of,
            standing=standing,
            began=began,
            ended=ended,
            attempt=mark.attempt if mark is not None else 0,
            replays=max(0, self._history.attempts - mark.attempt) if mark is not None else 0,
            waits_for=parked.source if parked is not None and self._waits(path) else None,
            decided=None if tried else marks.decided(path),
            failures=() if tried else tuple(_not_before(since, one) for one in marks.failures.get(path, ())),
            usage=usage_of(mark.form) if mark is not None else None,
            entries=0 if tried else len(marks.entries.get(path, ())),
            parts=parts,
        )

    def _span(
        self, path: str, parts: tuple[Step, ...], standing: Standing, since: datetime
    ) -> tuple[datetime | None, datetime | None]:
        mark, parked = self._marks.saved.get(path), self._marks.parked(path)
        began = [inner.began for inner in parts if inner.began is not None]
        ended = [inner.ended for inner in parts if inner.ended is not None]
        if parked is not None:
            began.append(moment(parked.at))
        elif mark is not None and (mark.took or not began):
            began.append(moment(mark.at - mark.took))
        if mark is not None:
            ended.append(moment(mark.at))
        elif standing == "failed" and (failures := self._marks.failures.get(path)):
            began.append(_not_before(since, failures[-1]).began)
            ended.append(failures[-1].at)
        if standing == "running" and not began:
            last = self._marks.begun.get(self._history.attempts)
            began.append(since if last is None else max(since, moment(last)))
        over = standing not in ("running", "waiting", "undoing")
        return min(began, default=None), max(ended, default=None) if over else None

    def _waits(self, path: str) -> bool:
        history = self._history
        parked = history.parked
        return parked is not None and parked.path == path and history.ended is None and not history.failed

    def _standing(self, part: Part, phase: _Phase, parts: tuple[Step, ...]) -> Standing:
        marks, path = self._marks, part.path
        fails = path in marks.failures and not self._held and self._history.ended is None
        if fails and phase == "now" and path not in marks.saved and not (parts and parts[-1].kind == "attempt"):
            return "failed"
        if not part.slot.startswith("undo") and marks.is_undone(f"{path}/" if part.kind == "attempt" else path):
            return "undone"
        if marks.unwinding(path) is not None and self._history.ended is None:
            return "undoing" if self._held else "failed"
        if path in marks.saved:
            return "done"
        if self._waits(path):
            return "waiting"
        if part.kind == "attempt" and marks.decided(path) is not None:
            return "failed"
        if parts:
            return self._sum(phase, [inner.standing for inner in parts], tried=parts[-1].kind == "attempt")
        match phase:
            case "now":
                return "running" if self._held and not self._waits_elsewhere() else "open"
            case "fell":
                return "open"
            case "ahead":
                return "pending"
            case "past":
                return "skipped" if part.kind in SAVED and marks.is_kept(path) else "unrecorded"

    def _waits_elsewhere(self) -> bool:
        return self._history.parked is not None and self._history.still

    def _sum(self, phase: _Phase, standings: list[Standing], *, tried: bool) -> Standing:
        if tried:
            standings = standings[-1:]  # that one counts; those before it failed
        if phase in ("now", "fell"):
            for worst in _BY_WEIGHT:
                if worst in standings:
                    return worst
            if phase == "fell":
                return "open"
            return "running" if self._held and not self._waits_elsewhere() else "open"
        for one in ("failed", "undone", "done"):
            if one in standings:
                return one
        if phase == "ahead":
            return "pending"
        return "unrecorded" if "unrecorded" in standings else "skipped"

    # --- where the run is ---

    def _parts(self, part: Part, phase: _Phase, since: datetime) -> Iterator[Step]:
        marks = self._marks
        if part.kind == "attempt" and marks.decided(part.path) is not None:
            phase = "fell"
        elif part.path in marks.saved or (part.kind == "one" and marks.decided(part.path) is not None):
            phase = "past"
        caught = part.kind == "try" and marks.decided(part.path) is not None
        if part.kind in BESIDE:
            for inner in part.inner():
                yield self._step(inner, phase, since)
        elif phase in ("past", "ahead") and not caught:
            yield from self._in_order(list(part.inner()), phase, since)
        elif part.kind in ALTERNATIVES:
            yield from self._one_of(part, phase, since)
        elif any(inner.slot.startswith("undo") for inner in part.inner()):
            yield from self._saga(part, phase, since)
        else:
            yield from self._in_order(list(part.inner()), phase, since)

    def _one_of(self, part: Part, phase: _Phase, since: datetime) -> Iterator[Step]:
        """The body that the run took, as far as that shows; the first of a `Try` is always taken."""
        taken = max((at for at, row in enumerate(part.rows) if any(map(self._touched, row))), default=-1)
        caught = part.kind == "try" and self._marks.decided(part.path) is not None
        if part.kind == "try":
            taken = int(caught)
        rows: list[tuple[tuple[Part, ...], _Phase]] = [(part.values, phase if taken < 0 else "past")]
        for at, row in enumerate(part.rows):
            if at == taken:
                rows.append((row, phase))
            elif caught and at < taken:
                rows.append((row, "fell"))
            else:
                rows.append((row, "ahead" if taken < 0 or (part.kind == "try" and at > taken) else "past"))
        for row, each in rows:
            for step in self._in_order(list(row), each, since):
                since = max(since, step.ended or since)
                yield step

    def _saga(self, part: Part, phase: _Phase, since: datetime) -> Iterator[Step]:
        """The steps in order; an undo is only run when a later step fails."""
        steps = [inner for inner in part.inner() if not inner.slot.startswith("undo")]
        for step in self._in_order(steps, phase, since):
            since = max(since, step.ended or since)
            yield step
        undone = self._marks.unwinding(part.path) is not None or self._marks.is_undone(f"{part.path}/")
        for inner in part.inner():
            if inner.slot.startswith("undo"):
                yield self._step(inner, "past" if undone else "ahead", since)

    def _in_order(self, row: list[Part], phase: _Phase, since: datetime) -> Iterator[Step]:
        reached = max((at for at, inner in enumerate(row) if self._touched(inner)), default=-1)
        here = reached if reached >= 0 and not self._complete(row[reached]) else self._next(row, reached + 1)
        for at, inner in enumerate(row):
            step = self._step(inner, _phase_of(at, here, phase), since)
            since = max(since, step.ended or since)
            yield step

    @staticmethod
    def _next(row: list[Part], start: int) -> int:
        """The first part from there that takes time; what takes none is gone by at once."""
        return start + len(list(takewhile(_is_instant, row[start:])))

    def _touched(self, part: Part) -> bool:
        return part.path in self._marks.places or any(map(self._touched, part.inner()))

    def _complete(self, part: Part) -> bool:
        """Whether a part that left a record is surely over."""
        marks = self._marks
        if part.path in marks.saved:
            return True
        if marks.unwinding(part.path) is not None:
            return False
        match part.kind:
            case "one":
                return marks.decided(part.path) is not None
            case "each" | "repeat":
                return False  # how often it goes round does not show
            case "attempt" if marks.decided(part.path) is not None:
                return False
            case kind if kind in BESIDE:
                return all(map(self._complete, part.inner()))
            case kind if kind in ALTERNATIVES:
                return any(self._is_over(row) for row in part.rows if any(map(self._touched, row)))
        inner = [one for one in part.inner() if not one.slot.startswith("undo")]
        return bool(inner) and self._is_over(inner)

    def _is_over(self, row: Sequence[Part]) -> bool:
        lasting = [inner for inner in row if not _is_instant(inner)]
        return not lasting or self._complete(lasting[-1])


def _phase_of(at: int, here: int, phase: _Phase) -> _Phase:
    """How the run is to one part of a row, of which it is at the part `here`."""
    if phase in ("past", "ahead"):
        return phase
    if at == here:
        return phase
    return "ahead" if at > here and phase == "now" else "past"


def _not_before(since: datetime, failure: Failure) -> Failure:
    return evolve(failure, began=min(max(since, failure.began), failure.at))


def _is_instant(part: Part) -> bool:
    return part.kind in INSTANT and not part.values


_BY_WEIGHT: Final[tuple[Standing, ...]] = ("failed", "undoing", "waiting", "running", "open")


def usage_of(form: object) -> Usage | None:
    """The tokens that a savepoint says were billed."""
    held = form.get("d", form) if isinstance(form, dict) else None
    counts = held.get("u") if isinstance(held, dict) else None
    return Usage(*counts) if isinstance(counts, list) else None
