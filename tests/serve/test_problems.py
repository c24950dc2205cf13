"""What clients are told of errors, on both wires."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from structlog.testing import capture_logs

import bb
from bb.errors import GraphChanged
from bb.serve.anthropic import AnthropicWire
from bb.serve.openai import OpenAIWire
from bb.serve.problems import Problem, Refused, problem_of
from bb.serve.wire import Asked
from bb.testing import ScriptedModel
from tests.serve.kit import PATHS, body_of, text_of
from tests.serve.stage import asgi

ERRORS: list[tuple[Exception, int, str, str]] = [
    (Refused("no"), 400, "invalid_request", "no"),
    (Refused("too much", 413, "too_large"), 413, "too_large", "too much"),
    (HTTPException(404), 404, "http_error", "Not Found"),
    (bb.InvalidId("'a b' is no run id"), 400, "invalid_id", "'a b' is no run id"),
    (bb.InvalidInput("what?"), 400, "invalid_input", "what?"),
    (bb.NotSavable("what?"), 400, "not_savable", "what?"),
    (bb.TooLarge("big"), 413, "too_large", "too large"),
    (bb.InputConflict("t:r was"), 409, "input_conflict", "run r is known with another request"),
    (bb.RunIdInUse("t:r is"), 409, "run_id_in_use", "run r belongs to something else"),
    (bb.AlreadyParked("run x is"), 409, "already_parked", "waits for a reply"),
    (bb.NotWaiting("run x"), 409, "not_waiting", "turn r answers nothing"),
    (bb.RunCancelled("t:r was"), 409, "run_cancelled", "run r was cancelled"),
    (bb.RunExpired("t:r made"), 410, "run_expired", "use another run id"),
    (bb.RunBusy("t:r is", after=timedelta(seconds=2.1)), 409, "run_busy", "again with X-Run-Id: r"),
    (bb.Throttled("t:r", after=timedelta(milliseconds=3)), 429, "throttled", "again with X-Run-Id: r"),
    (bb.StreamBroken("t:r", run_id="t:r"), 503, "stream_broken", "again with X-Run-Id: r"),
    (bb.Interrupted("t:r"), 503, "interrupted", "again with X-Run-Id: r"),
    (bb.Fenced("t:r"), 503, "fenced", "nothing is lost"),
    (bb.StoreError("/secret/path"), 503, "store_error", "nothing is lost"),
    (bb.OnceBusy("t:r"), 503, "once_busy", "nothing is lost"),
    (bb.UnknownRun("no run t:r"), 404, "unknown_run", "run r is not kept"),
    (bb.AgentFailed("the secret"), 500, "run_failed", "the run failed (run r)"),
    (bb.ApproverFailed("the secret", path="f/a"), 500, "run_failed", "the run failed (run r)"),
    (bb.InvalidInput("the secret", path="f/a"), 500, "run_failed", "the run failed (run r)"),
    (bb.TooLarge("the secret", path="f/a"), 500, "run_failed", "the run failed (run r)"),
    (GraphChanged("the secret"), 500, "run_failed", "the run failed (run r)"),
    (ValueError("the secret"), 500, "run_failed", "the run failed (run r)"),
]


@pytest.mark.parametrize(("error", "status", "code", "told"), ERRORS, ids=lambda one: str(one)[:20])
def test_an_error_has_a_status_and_says_what_to_do(error: Exception, status: int, code: str, told: str) -> None:
    problem = problem_of(error, "r", debug=False, resends=True)

    assert (problem.status, problem.code) == (status, code) and told in problem.message
    assert not any(secret in problem.message for secret in ("t:r", "secret"))
    later = status in (429, 503) or isinstance(error, bb.RunBusy)
    assert ("Retry-After" in problem.headers) is later
    assert (problem.headers.get("X-Should-Retry") == "false") is (status in (409, 410) and not later)
    theirs = OpenAIWire().problem(problem, "r")["error"]
    others = AnthropicWire().problem(problem, "r")
    assert isinstance(theirs, dict) and theirs["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    kinds = {404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error"}
    kind = kinds.get(status, "api_error" if status >= 500 else "invalid_request_error")
    assert others == {"type": "error", "error": {"type": kind, "message": problem.message}, "request_id": "r"}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (409, "invalid_request_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "api_error"),
        (529, "overloaded_error"),
    ],
)
def test_the_type_of_an_error_follows_its_status(status: int, kind: str) -> None:
    problem = Problem(status, "no", "no")
    assert AnthropicWire().problem(problem, "r")["error"] == {"type": kind, "message": "no"}
    said = AnthropicWire().voice(Asked(bb.Input(), stream=True), "f").fail(problem)
    assert f'"type":"{kind}"' in said[-1].data


def test_a_client_is_asked_to_wait_for_whole_seconds() -> None:
    for after, said in ((timedelta(seconds=2.1), "3"), (timedelta(0), "1")):
        problem = problem_of(bb.RunBusy("busy", after=after), "r", debug=False, resends=True)
        assert problem.headers == {"Retry-After": said}


@pytest.mark.parametrize("error", [bb.AgentFailed("no"), bb.Interrupted("cut"), bb.OnceBusy("busy")])
def test_a_client_that_would_start_over_is_told_not_to(error: Exception) -> None:
    assert problem_of(error, "r", debug=False, resends=False).headers["X-Should-Retry"] == "false"
    assert "X-Should-Retry" not in problem_of(error, "r", debug=False, resends=True).headers


def test_developers_are_told_what_happened() -> None:
    problem = problem_of(ValueError("a secret"), "r", debug=True, resends=False)
    assert problem.message == "ValueError: a secret (run r)" and problem.code == "value_error"
    assert problem.headers == {"X-Should-Retry": "false"}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shown", ["stage", "stage.result"])
async def test_clients_are_not_told_why_an_approver_failed_and_the_same_request_asks_it_again(
    path: str, shown: str
) -> None:
    class Desk:
        def __init__(self) -> None:
            self.is_down = True

        async def approve(self, _request: bb.Approval, /) -> bb.Decision:
            if self.is_down:
                raise ConnectionError("the secret token is bad")
            return bb.Decision.deny("not today")

    @bb.op(risk="high")
    def pay() -> None:
        raise AssertionError("nobody said yes")

    desk, model = Desk(), ScriptedModel(bb.ToolCall("c", "pay", "{}"), "I paid.")
    flow = bb.Bind("stage", bb.AiSegment("Pay.", [pay])).next(bb.Emit(f"{{{shown}}}")).with_id("f").durable()
    app = bb.App(model=model, approver=desk)
    app.register(flow)
    async with asgi(app.asgi()) as http:
        ask: dict[str, Any] = {"json": body_of(path, "hi"), "headers": {"X-Run-Id": "r"}}
        with capture_logs() as logs:
            failed = await http.post(path, **ask)
        desk.is_down = False
        answered = await http.post(path, **ask)

    assert failed.status_code == 500 and "secret" not in failed.text
    assert any(log["event"] == "an approver failed" and "secret" in log["error"] for log in logs)
    assert answered.status_code == 200 and "secret" not in answered.text
    assert "not today" in text_of(path, answered)
