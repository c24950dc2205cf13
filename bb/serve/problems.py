"""What a client is told when something goes wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Final

from attrs import evolve, field, frozen
from starlette.exceptions import HTTPException

from bb.errors import (
    AlreadyParked,
    BBError,
    InputConflict,
    Interruption,
    InvalidId,
    InvalidInput,
    NotSavable,
    NotWaiting,
    OnceBusy,
    RunBusy,
    RunCancelled,
    RunExpired,
    RunIdInUse,
    StreamBroken,
    Throttled,
    TooLarge,
    UnknownRun,
    UnknownWebhook,
)

_SECOND: Final = timedelta(seconds=1)
_WORDS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


@frozen
class Problem:
    """An error as both wires tell it."""

    status: int
    message: str
    code: str
    """The name of the error, for programs: `input_conflict`."""
    headers: Mapping[str, str] = field(factory=dict)


class Refused(Exception):
    """A request that is wrong in itself."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        code: str = "invalid_request",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers


class ClientGone(Exception):
    """Nobody is there any more to be answered."""


def problem_of(error: Exception, run_id: str, *, debug: bool, resends: bool, ran: bool = True) -> Problem:
    """What went wrong, without what is nobody's business outside unless `debug`.

    `resends` tells whether a client that just sends its request again does no harm: it goes on with the same run. `ran`
    tells whether a run was asked for by then, which may be what failed.
    """
    problem = _problem(error, run_id, debug, "run" if ran else "request")
    if resends or problem.status < 429 or isinstance(error, Refused | HTTPException):
        return problem
    # official clients send it again by themselves, and what was done would be done twice
    return evolve(problem, headers={**problem.headers, "X-Should-Retry": "false"})


def _problem(error: Exception, run_id: str, debug: bool, what: str) -> Problem:
    code = _WORDS.sub("_", type(error).__name__).lower()
    again = f"send the same request again with X-Run-Id: {run_id}"
    match error:
        case Refused():
            return Problem(error.status, str(error), error.code, error.headers)
        case HTTPException():
            return Problem(error.status_code, str(error.detail), "http_error", dict(error.headers or {}))
        case InputConflict():
            return _final(409, f"run {run_id} is known with another request: give each request an id of its own", code)
        case RunIdInUse():
            return _final(409, f"run {run_id} belongs to something else: use another run id", code)
        case AlreadyParked():
            return _final(409, "a conversation of the session waits for a reply, and this would start another", code)
        case NotWaiting():
            return _final(409, f"turn {run_id} answers nothing that is asked in this session", code)
        case RunCancelled():
            return _final(409, f"run {run_id} was cancelled", code)
        case RunExpired():
            return _final(410, f"run {run_id} made no progress for too long and was dropped: use another run id", code)
        case RunBusy():
            return _later(409, f"run {run_id} is going on elsewhere: {again}", code, error.after)
        case Throttled():
            return _later(429, f"too many requests for now: {again}", code, error.after)
        case StreamBroken():
            return _later(503, f"the text so far became void, and the run goes on: {again}", code, _SECOND)
        case Interruption() | OnceBusy():
            return _later(503, f"the run was interrupted, and nothing is lost: {again}", code, _SECOND)
        case UnknownRun():
            return Problem(404, f"run {run_id} is not kept", code)
        case UnknownWebhook():
            return Problem(404, "there is no such webhook", code)
        case TooLarge() if _is_of_request(error):
            return Problem(413, "the request is too large to be kept", code)
        case InvalidId() | InvalidInput() | NotSavable() if _is_of_request(error):
            return Problem(400, str(error), code)
        case _:
            told = f"{type(error).__name__}: {error}" if debug else f"the {what} failed"
            return Problem(500, f"{told} (run {run_id})", code if debug else f"{what}_failed")


def _final(status: int, message: str, code: str) -> Problem:
    # official clients try a 409 again by themselves, unless they are told not to
    return Problem(status, message, code, {"X-Should-Retry": "false"})


def _later(status: int, message: str, code: str, after: timedelta) -> Problem:
    return Problem(status, message, code, {"Retry-After": str(max(1, math.ceil(after.total_seconds())))})


def _is_of_request(error: BBError) -> bool:
    """Whether it was refused before anything ran."""
    return not error.path and not error.flow
