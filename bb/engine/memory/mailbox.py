"""Events for runs of a session: delivered to whoever waits longest, or answering one question."""

from __future__ import annotations

from attrs import evolve

from bb.engine.memory.session_rows import SessionRows
from bb.engine.outcome import Delivery
from bb.errors import NotWaiting
from bb.log.mailbox import Event, Mailbox
from bb.log.rows import Back, Left, Named, Paired, Put, Row, Wait
from bb.log.streams import mail_stream, mail_streams
from bb.redaction import redacted


async def deliver(rows: SessionRows, source: str, payload: object, delivery_id: str, *, said: bool = False) -> Delivery:
    """Put an event into the mailbox of a source, for exactly one wait: the oldest open one, or else the next.

    A delivery id that was seen before is the same delivery, and changes nothing.

    Raises:
        NotSavable: the payload cannot be kept exactly.
        TooLarge: it is over the limit; nothing was written.
        StoreError: the store failed.
    """
    id = redacted(delivery_id)
    put = Put(id, rows.codec.dump(payload, "payload"), rows.now(), said=said)
    rows.encoded(put)

    def missing(box: Mailbox) -> list[Row]:
        return [] if box.knows(id) else _named(box, source, put)

    box = await rows.change(mail_stream(rows.session_id, source), Mailbox, missing)
    return Delivery(id, box.taker(id))


async def answer(
    rows: SessionRows,
    source: str,
    run: str,
    path: str,
    payload: object,
    turn: str,
    *,
    said: bool = True,
    anew: bool = False,
) -> Delivery:
    """Answer the wait of a run at a place. The same turn again is the same answer.

    With `anew` it takes the place of the answer that was given before, or of none.

    Raises:
        NotWaiting: that wait has another answer already, or there is none; or the turn has answered another.
        NotSavable: the payload cannot be kept exactly.
        TooLarge: it is over the limit; nothing was written.
        StoreError: the store failed.
    """
    turn = redacted(turn)
    put = Put(turn, rows.codec.dump(payload, "payload"), rows.now(), (run, path), said, turn)
    rows.encoded(put)

    def missing(box: Mailbox) -> list[Row]:
        given = box.given(run, path)
        if given is not None and given.turn == turn:
            return []
        if box.answered(turn) is not None:
            raise NotWaiting(
                f"turn {turn} has answered another question of this session",
                path=path,
                remedy="give each turn an id of its own",
            )
        if anew:
            return _named(box, source, Paired(run, path, False, put.delivery_id, put.payload, put.at, said, turn))
        if given is not None:
            raise NotWaiting(
                f"the question {source!r} of run {run} was answered already",
                path=path,
                remedy="look at what the session asks now, and answer that",
            )
        if not box.is_waiting(run, path):
            raise NotWaiting(
                f"run {run} does not wait for {source!r} here", path=path, remedy="start the flow, then answer it"
            )
        return _named(box, source, put)

    await rows.change(mail_stream(rows.session_id, source), Mailbox, missing)
    return Delivery(turn, (run, path))


async def wait(rows: SessionRows, source: str, run: str, path: str) -> Event | None:
    """The event for the wait of a run at a place, which takes its place in the queue now if it has none; None: not yet.

    Raises:
        Fenced, StoreError: the wait could not be kept.
    """

    def missing(box: Mailbox) -> list[Row]:
        if box.is_waiting(run, path) or box.given(run, path) is not None:
            return []
        return _named(box, source, Wait(run, path, rows.now()))

    box = await rows.change(mail_stream(rows.session_id, source), Mailbox, missing)
    event = box.given(run, path)
    return None if event is None else evolve(event, payload=rows.codec.load(event.payload))


async def given_to(rows: SessionRows, source: str, run: str, path: str) -> Event | None:
    """What the wait of a run at a place has got, as far as it is remembered.

    Raises:
        StoreError: it cannot be read.
    """
    event = (await rows.read(mail_stream(rows.session_id, source), Mailbox)).given(run, path)
    return None if event is None else evolve(event, payload=rows.codec.load(event.payload))


async def answered_in(rows: SessionRows, source: str, turn: str) -> str | None:
    """The run that a turn has answered, as far as it is remembered.

    Raises:
        StoreError: it cannot be read.
    """
    spot = (await rows.read(mail_stream(rows.session_id, source), Mailbox)).answered(turn)
    return None if spot is None else spot[0]


async def has_come(rows: SessionRows, source: str, run: str) -> bool:
    """Whether the event that a parked run waits for is here.

    Raises:
        StoreError: it cannot be read.
    """
    return (await rows.read(mail_stream(rows.session_id, source), Mailbox)).has_come(run)


async def leave(rows: SessionRows, source: str, run: str, *, over: bool = False) -> None:
    """Take a run out of the queue of a source. What it was given stays consumed, and is found by it again.

    With `over` it is not: a run of this id that starts from nothing waits for new events.

    Raises:
        Fenced, StoreError: it could not be recorded.
    """
    await _leave(rows, mail_stream(rows.session_id, source), run, over, None)


async def leave_all(rows: SessionRows, run: str, *, over: bool = False, parked: str | None = None) -> list[str]:
    """As `leave`, for every source of the session: a run that found its event there has never parked, and names none.

    What was delivered to a run that is still `parked` at a place it never took: it goes to the next who waits. Gives the runs
    that got something so.

    Raises:
        Fenced, StoreError: it could not be recorded.
    """
    takers = [
        await _leave(rows, info.name, run, over, parked)
        for info in await rows.store.list(mail_streams(rows.session_id))
    ]
    return [taker for taker in takers if taker is not None]


async def _leave(rows: SessionRows, stream: str, run: str, over: bool, parked: str | None) -> str | None:
    back: Event | None = None

    def missing(box: Mailbox) -> list[Row]:
        nonlocal back
        if parked is not None and (event := box.untaken(run, parked)) is not None:
            back = event
            return [Back(run, parked, event.delivery_id)]
        known = run in box.waits or run in box.latest or (over and any(spot[0] == run for spot in box.settled))
        return [Left(run, over)] if known else []

    box = await rows.change(stream, Mailbox, missing)
    taker = box.taker(back.delivery_id) if back is not None else None
    return None if taker is None else taker[0]


def _named(box: Mailbox, source: str, row: Row) -> list[Row]:
    return [row] if box.source is not None else [Named(redacted(source)), row]
