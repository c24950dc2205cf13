"""What the rows of a job come to: when a trigger that was reached comes due, and what its body begins with."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, ClassVar, TypeAlias, assert_never

from attrs import Factory, define, evolve

from bb.log.given import Body, body_in
from bb.log.rows import Armed, Dropped, Fired, Row
from bb.log.tables import PLACES
from bb.record import Record

JobRow: TypeAlias = Armed | Fired | Dropped


@define(eq=False, repr=False)
class Job(Record):
    """A trigger that was reached. One `At` counts once; of the others the latest."""

    kinds: ClassVar[tuple[type[Any], ...]] = (Armed, Fired, Dropped)

    armed: Armed | None = None
    body: Body | None = None
    """What it starts; None where an old record does not tell."""
    due: int | None = None
    """When it comes due next, in Unix milliseconds; None: when it is called, or never."""
    over: int | None = None
    """Since when it does not count any more."""
    heard: OrderedDict[tuple[str, int], None] = Factory(OrderedDict)
    """Who armed it last, and when: of two who do at once, none has to do it again."""

    def add(self, row: JobRow) -> None:
        """Fold in one row."""
        match row:
            case Armed():
                spot, known, before = (row.run, row.at), self.armed, self.body
                if spot in self.heard or (known is not None and row.kind == "at"):
                    return
                self.heard[spot] = None
                if len(self.heard) > PLACES:
                    self.heard.popitem(last=False)
                self.body = body_in(row.given) or (Body(row.kind, row.spec) if row.kind == "webhook" else None)
                other = before is not None and self.body is not None and not before.goes_on_as(self.body)
                if known is None or self.over is not None or known.spec != row.spec or other:
                    self.due = row.due  # else the same timetable goes on: a tick that was missed is still to come
                self.armed, self.over = row, None
            case Fired(at=at, due=due, next=next):
                if self.over is None and self.due == due:
                    self.due, self.over = next, at if next is None else None
            case Dropped(at=at):
                if self.armed is not None and self.over is None:
                    self.due, self.over = None, at
            case unreachable:
                assert_never(unreachable)

    def shortest(self) -> list[Row]:
        """The fewest rows that come to the same state."""
        if self.armed is None:
            return []
        over: list[Row] = [] if self.over is None else [Dropped(self.over)]
        return [evolve(self.armed, due=self.due), *over]
