"""What was appended, in words; and what a log says twice."""

from __future__ import annotations

from bb.log import (
    Decided,
    Ended,
    Entered,
    Entry,
    Fact,
    Failed,
    Forgotten,
    History,
    Parked,
    Saved,
    Started,
    UndoFailed,
    Unwinding,
    Unwound,
    decode,
    run_stream,
)
from bb.log.rows import decode_row
from bb.log.streams import RUNS, SESSIONS
from bb.testing.process import RUN_ID


def described(stream: str, records: tuple[bytes, ...]) -> str:
    """An append in words."""
    if stream.startswith(SESSIONS):
        tags = [type(decode_row(record, "a record")).__name__.lower() for record in records]
        return f"{' of '.join(stream.split('/')[2:3] + stream.split('/')[:1])}: {' + '.join(tags)}"
    if not stream.startswith(RUNS):
        return stream.split("/", maxsplit=1)[0]
    facts = [_described(record) for record in records]
    said = " + ".join(facts if len(facts) <= 2 else [*facts[:2], f"{len(facts) - 2} more"])
    return said if stream == run_stream(RUN_ID) else f"{stream.removeprefix(RUNS)}: {said}"


def _described(record: bytes) -> str:
    match decode(record, "a record"):
        case Started():
            return "start"
        case Entered(path=path):
            return f"enter {path}"
        case Saved(path=path):
            return f"save {path}"
        case Decided(path=path, choice=choice):
            return f"decide {path}: {choice}"
        case Entry(path=path, key=key):
            return f"{entry_named(key)} of {path}"
        case Forgotten(path=path):
            return f"forget {path}"
        case Failed(path=path):
            return f"failure of {path}"
        case Unwinding(path=path):
            return f"undoing {path}"
        case UndoFailed(path=path):
            return f"failed cleanup {path}"
        case Unwound(path=path):
            return f"undone {path}"
        case Parked(path=path):
            return f"park at {path}"
        case Ended(status=status):
            return f"end: {status}"
        case _:
            return "take up"


def entry_named(key: str) -> str:
    """The kind and the name of a journal entry."""
    _, kind, rest = key.split("/", 2)
    return f"{kind} {rest.rsplit('/', 2)[0]}"


def said_again(fact: Fact, history: History) -> str:
    """What a fact says that the log said before; "" when it is news."""
    match fact:
        case Started() if history.started is not None:
            return "start"
        case Saved(scope=number, path=path) if path in history.scopes[number].saved:
            return f"savepoint of {path}"
        case Decided(scope=number, path=path) if path in history.scopes[number].decided:
            return f"decision at {path}"
        case Entry(scope=number, path=path, key=key) if key in history.scopes[number].entries.get(path, {}):
            return f"{entry_named(key)} of {path}"
        case Unwinding(scope=number, path=path) if path in history.scopes[number].unwinding:
            return f"failure of {path}"
        case Unwound(scope=number, path=path) if path not in history.scopes[number].unwinding:
            return f"end of undoing {path}"
        case Parked(path=path) if any(leg.path == path for leg in history.legs):
            return f"park at {path}"
        case _:
            return ""
