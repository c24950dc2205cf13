"""What the other streams of a session come to: once, checkpoints, symbols, rates, parked runs."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, ClassVar, Final, TypeAlias, assert_never

from attrs import Factory, define, evolve, field

from bb.log.rows import (
    Arrived,
    Began,
    Bound,
    Claimed,
    Finished,
    Freed,
    Gone,
    Kept,
    Named,
    Parked,
    Passed,
    Row,
    Stamped,
    Window,
)
from bb.record import Record

PLACES: Final = 32  # places remembered only because they may write the same again

_At: TypeAlias = tuple[str, str, str]
"""A run, its life, and a place in it."""


@define(eq=False, repr=False)
class Memo(Record):
    """The value of a memo: the first that was kept."""

    kinds: ClassVar[tuple[type[Any], ...]] = (Kept,)

    kept: Kept | None = None

    def add(self, row: Kept) -> None:
        """Fold in one row."""
        self.kept = self.kept or row

    def shortest(self) -> None:
        """It has one row."""


@define(eq=False, repr=False)
class OnceTable(Record):
    """Who runs the body of a once, and what it came to first."""

    kinds: ClassVar[tuple[type[Any], ...]] = (Claimed, Freed, Finished)

    claim: Claimed | None = None
    """The last one that was not freed; whether it counts depends on its run being alive."""
    finished: Finished | None = None

    def add(self, row: Claimed | Freed | Finished) -> None:
        """Fold in one row."""
        match row:
            case Claimed():
                self.claim = row
            case Freed(run=run, path=path):
                if self.claim is not None and (self.claim.run, self.claim.path) == (run, path):
                    self.claim = None
            case Finished():
                self.finished = self.finished or row
            case unreachable:
                assert_never(unreachable)

    def shortest(self) -> None:
        """Never rewritten: a claim made over others unseen could not be told from a good one."""


@define(eq=False, repr=False)
class Points(Record):
    """For each signature of a flow and each input, the furthest checkpoint; of equal ones the latest."""

    kinds: ClassVar[tuple[type[Any], ...]] = (Passed,)

    furthest: dict[tuple[str, str], Passed] = Factory(dict)

    def add(self, row: Passed) -> None:
        """Fold in one row."""
        key = (row.signature, row.fingerprint)
        known = self.furthest.get(key)
        if known is None or known.position <= row.position:
            self.furthest[key] = row

    def shortest(self) -> list[Row]:
        """The rows that count."""
        return list(self.furthest.values())


@define(eq=False, repr=False)
class Symbols(Record):
    """What the runs of a session bound; of each name the latest."""

    kinds: ClassVar[tuple[type[Any], ...]] = (Bound,)

    rows: OrderedDict[_At, Bound] = Factory(OrderedDict)
    """What still counts of each row, by its run, the life of that, and its place."""
    _owner: dict[str, _At] = field(factory=dict, alias="owner")

    def values(self, *, but: tuple[str, str] | None = None) -> dict[str, object]:
        """The symbols in codec form, without those that the run `but`, by id and life, was the last to bind."""
        owned = {name: spot for name, spot in self._owner.items() if spot[:2] != but}
        return {name: self.rows[spot].symbols[name] for name, spot in owned.items()}

    def add(self, row: Bound) -> None:
        """Fold in one row; a second one of the same run and place is none."""
        spot = (row.run, row.life, row.place)
        if spot in self.rows:
            return
        for name in row.symbols:
            if name in self._owner:
                before = self.rows[self._owner[name]]
                left = {known: value for known, value in before.symbols.items() if known != name}
                self.rows[self._owner[name]] = evolve(before, symbols=left)
            self._owner[name] = spot
        self.rows[spot] = row
        if len(self.rows) > PLACES + len(self._owner):
            del self.rows[next(spot for spot, bound in self.rows.items() if not bound.symbols)]

    def shortest(self) -> list[Row]:
        """The rows as far as they count."""
        return list(self.rows.values())


RateRow: TypeAlias = Named | Stamped | Window | Arrived


@define(eq=False, repr=False)
class Rates(Record):
    """The calls under the name of a throttle as far back as anyone looks, and the last arrivals at a debounce."""

    kinds: ClassVar[tuple[type[Any], ...]] = (Named, Stamped, Window, Arrived)

    name: str | None = None
    per: int = 0
    """Milliseconds that anyone looks back."""
    stamps: OrderedDict[str, Stamped] = Factory(OrderedDict)
    arrivals: OrderedDict[_At, Arrived] = Factory(OrderedDict)

    def add(self, row: RateRow) -> None:
        """Fold in one row."""
        match row:
            case Stamped():
                self.stamps.setdefault(row.id, row)
                self.per = max(self.per, row.per)
                while self.stamps and next(iter(self.stamps.values())).at < row.at - self.per:
                    self.stamps.popitem(last=False)
            case Arrived():
                self.arrivals.setdefault((row.run, row.life, row.path), row)
                if len(self.arrivals) > PLACES:
                    self.arrivals.popitem(last=False)
            case Window(per=per):
                self.per = max(self.per, per)
            case Named(text=text):
                self.name = text
            case unreachable:
                assert_never(unreachable)

    def shortest(self) -> list[Row]:
        """The fewest rows that come to the same state."""
        named: list[Row] = [] if self.name is None else [Named(self.name)]
        window: list[Row] = [Window(self.per)] if self.per else []
        return [*named, *window, *self.stamps.values(), *self.arrivals.values()]


@define(eq=False, repr=False)
class OpenRuns(Record):
    """The parked runs of a session, by run, in the order they parked, and of each flow the conversation begun last."""

    kinds: ClassVar[tuple[type[Any], ...]] = (Parked, Began, Gone)

    parked: dict[str, Parked] = Factory(dict)
    begun: dict[str, Began] = Factory(dict)

    def add(self, row: Parked | Began | Gone) -> None:
        """Fold in one row."""
        match row:
            case Parked(run=run):
                self.parked.pop(run, None)
                self.parked[run] = row
            case Began(flow=flow):
                self.begun[flow] = row
            case Gone(run=run):
                self.parked.pop(run, None)
            case unreachable:
                assert_never(unreachable)

    def shortest(self) -> list[Row]:
        """The runs that are parked, and what was begun last."""
        return [*self.begun.values(), *self.parked.values()]
