"""`Mailbox`: the events of one source in a session, and who waits for them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, ClassVar, Final, TypeAlias, assert_never

from attrs import Factory, define, frozen

from bb.log.rows import Back, Left, Named, Paired, Put, Row, Seen, Spot, Wait
from bb.record import Record

DELIVERIES: Final = 1000  # delivery ids remembered: one that comes again later than that is new
PAIRS: Final = 32  # settled pairs remembered, for replies that come again

MailRow: TypeAlias = Named | Put | Wait | Left | Back | Paired | Seen


@frozen(eq=False, repr=False)
class Event(Record):
    """What came in: `payload` in codec form inside a `Mailbox`, decoded outside; `at` in Unix milliseconds."""

    delivery_id: str
    payload: object
    at: int
    said: bool = False
    turn: str | None = None


@define(eq=False, repr=False)
class Mailbox(Record):
    """Events meet waits first in, first out; an answer meets the wait it is for, or nothing.

    A run waits at one place at a time, so a wait elsewhere replaces its earlier one, and says that the run has kept what
    that had brought. Never are there both events and waits left over.
    """

    kinds: ClassVar[tuple[type[Any], ...]] = (Named, Put, Wait, Left, Back, Paired, Seen)

    source: str | None = None
    waits: OrderedDict[str, tuple[str, int]] = Factory(OrderedDict)
    """By run: the path, and since when; the oldest first."""
    queue: OrderedDict[str, Event] = Factory(OrderedDict)
    """Events that wait to be waited for, by delivery id."""
    latest: dict[str, tuple[str, Event]] = Factory(dict)
    """By run, what it was given last: it may not have recorded that yet, so it is kept."""
    settled: OrderedDict[Spot, Event] = Factory(OrderedDict)
    """What was given before; the last ones."""
    seen: OrderedDict[str, None] = Factory(OrderedDict)

    def given(self, run: str, path: str) -> Event | None:
        """What the wait at a place has got."""
        last = self.latest.get(run)
        return last[1] if last is not None and last[0] == path else self.settled.get((run, path))

    def is_waiting(self, run: str, path: str) -> bool:
        """Whether a wait at a place is open."""
        return run in self.waits and self.waits[run][0] == path

    def has_come(self, run: str) -> bool:
        """Whether what a parked run waits for is here."""
        return run in self.latest and run not in self.waits

    def untaken(self, run: str, path: str) -> Event | None:
        """The delivery that the wait at a place has got last; no answer, which is for nobody else."""
        last = self.latest.get(run)
        return last[1] if last is not None and last[0] == path and last[1].turn is None else None

    def answered(self, turn: str) -> Spot | None:
        """The wait that a turn has answered, as far as it is remembered."""
        for run, (path, event) in self.latest.items():
            if event.turn == turn:
                return (run, path)
        return next((spot for spot, event in self.settled.items() if event.turn == turn), None)

    def knows(self, delivery_id: str) -> bool:
        """Whether this delivery is here already."""
        return delivery_id in self.seen or delivery_id in self.queue

    def taker(self, delivery_id: str) -> Spot | None:
        """The wait that a delivery went to, as far as it is remembered."""
        for run, (path, event) in self.latest.items():
            if event.turn is None and event.delivery_id == delivery_id:
                return (run, path)
        for spot, event in self.settled.items():
            if event.turn is None and event.delivery_id == delivery_id:
                return spot
        return None

    def add(self, row: MailRow) -> None:
        """Fold in one row."""
        match row:
            case Put(to=None):
                if not self.knows(row.delivery_id):
                    self._put(_event(row))
            case Put():
                assert row.to is not None  # mypy does not see what the case above leaves
                run, path = row.to
                if self.is_waiting(run, path):
                    del self.waits[run]
                    self.latest[run] = (path, _event(row))
            case Wait(run=run, path=path, at=at):
                if not self.is_waiting(run, path) and self.given(run, path) is None:
                    self._wait(run, path, at)
            case Left(run=run, over=over):
                self.waits.pop(run, None)
                self._settle(run)
                if over:
                    for spot in [spot for spot in self.settled if spot[0] == run]:
                        del self.settled[spot]
            case Back(run=run, path=path, delivery_id=id):
                event = self.untaken(run, path)
                if event is not None and event.delivery_id == id:
                    del self.latest[run]
                    self._offer(event)
                    if id in self.queue:
                        self.queue.move_to_end(id, last=False)
            case Named(text=text):
                self.source = text
            case Paired(run=run, path=path, settled=True):
                self.settled[run, path] = _event(row)
            case Paired(run=run, path=path):
                self.latest[run] = (path, _event(row))
            case Seen(ids=ids):
                self.seen = OrderedDict.fromkeys(ids)
            case unreachable:
                assert_never(unreachable)

    def shortest(self) -> list[Row]:
        """The fewest rows that come to the same mailbox."""
        rows: list[Row] = [] if self.source is None else [Named(self.source)]
        rows += [_paired(spot, event, settled=True) for spot, event in self.settled.items()]
        rows += [_paired((run, path), event, settled=False) for run, (path, event) in self.latest.items()]
        rows += [Put(e.delivery_id, e.payload, e.at, None, e.said, e.turn) for e in self.queue.values()]
        rows += [Wait(run, path, at) for run, (path, at) in self.waits.items()]
        if self.seen:
            rows.append(Seen(tuple(self.seen)))
        return rows

    def _put(self, event: Event) -> None:
        self.seen[event.delivery_id] = None
        if len(self.seen) > DELIVERIES:
            self.seen.popitem(last=False)
        self._offer(event)

    def _offer(self, event: Event) -> None:
        if self.waits:
            run, (path, _) = self.waits.popitem(last=False)
            self.latest[run] = (path, event)
        else:
            self.queue[event.delivery_id] = event

    def _wait(self, run: str, path: str, at: int) -> None:
        self._settle(run)
        self.waits.pop(run, None)
        if self.queue:
            _, event = self.queue.popitem(last=False)
            self.latest[run] = (path, event)
        else:
            self.waits[run] = (path, at)

    def _settle(self, run: str) -> None:
        if run in self.latest:
            path, event = self.latest.pop(run)
            self.settled[run, path] = event
            if len(self.settled) > PAIRS:
                self.settled.popitem(last=False)


def _event(row: Put | Paired) -> Event:
    return Event(row.delivery_id, row.payload, row.at, row.said, row.turn)


def _paired(spot: Spot, event: Event, *, settled: bool) -> Paired:
    return Paired(*spot, settled, event.delivery_id, event.payload, event.at, event.said, event.turn)
