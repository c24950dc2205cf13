"""Policies over names of ops, and the approvers that come with bb."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from io import StringIO
from typing import Any, TextIO

import attrs
import pytest

from bb.errors import WiringError
from bb.policy import AllowAll, Approval, Approver, AskOnTerminal, ByRisk, Decision, DenyAll, Policy, Proposed


def asked(*risks: str, **arguments: object) -> Approval:
    calls = tuple(Proposed(f"op.{risk}", risk, ("money",), arguments) for risk in risks)  # type: ignore[arg-type]
    return Approval(calls, "r-1", "root/pay")


class Consent:
    """Says what it is told to, and keeps what it was asked."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.requests: list[Approval] = []

    async def approve(self, request: Approval, /) -> Decision:
        self.requests.append(request)
        return self.decision


# --- policy ---


@pytest.mark.parametrize(
    ("policy", "op", "why"),
    [
        (Policy(), "anything.at.all", None),
        (Policy(["calendar.*"]), "calendar.read", None),
        (Policy(["calendar.*"]), "calendar.events.list", None),
        (Policy(["calendar.*"]), "calendar", "the policy allows no such op"),
        (Policy(["calendar.*"]), "Calendar.read", "the policy allows no such op"),
        (Policy(["calendar.rea?"]), "calendar.read", None),
        (Policy(["calendar.read"]), "calendar.readall", "the policy allows no such op"),
        (Policy(["calendar.read"]), "calendarxread", "the policy allows no such op"),
        (Policy([]), "x", "the policy allows no such op"),
        (Policy(deny=["*.delete"]), "calendar.delete", "the policy denies *.delete"),
        (Policy(["calendar.delete"], ["*.delete"]), "calendar.delete", "the policy denies *.delete"),
        (Policy(["a.*", "b.*"], ["c"]), "b.x", None),
    ],
)
def test_deny_wins_and_what_is_not_allowed_is_denied(policy: Policy, op: str, why: str | None) -> None:
    assert policy.refusal(op) == why


@pytest.mark.parametrize("patterns", ["calendar.*", [""], ["calendar-*"], ["a b"], ["[ab].x"], [3]])
def test_patterns_that_could_match_nothing_are_refused(patterns: Any) -> None:
    with pytest.raises(WiringError):
        Policy(allow=patterns)
    with pytest.raises(WiringError):
        Policy(deny=patterns)


def test_a_policy_does_not_change() -> None:
    names = ["a"]
    policy = Policy(names)
    names.append("b")
    assert policy.refusal("b") is not None
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        policy.allow = ("*",)  # type: ignore[misc]  # that is the test


# --- approvers ---


async def test_the_plain_approvers() -> None:
    assert await AllowAll().approve(asked("destructive")) == Decision.allow()
    assert await DenyAll().approve(asked("low")) == Decision.deny("nothing is approved here")


@pytest.mark.parametrize(
    ("threshold", "risks", "asks"),
    [
        ("high", ["low", "medium"], False),
        ("high", ["high"], True),
        ("high", ["destructive"], True),
        ("high", ["low", "high"], True),
        ("low", ["low"], True),
        ("destructive", ["high"], False),
    ],
)
async def test_risk_decides_who_is_asked(threshold: Any, risks: list[str], asks: bool) -> None:
    consent = Consent(Decision.deny("not today"))
    decision = await ByRisk(threshold, consent).approve(asked(*risks))
    assert decision == (Decision.deny("not today") if asks else Decision.allow())
    assert consent.requests == ([asked(*risks)] if asks else [])  # the request as a whole


async def test_by_default_high_risk_is_denied() -> None:
    assert (await ByRisk().approve(asked("medium"))).allowed
    assert not (await ByRisk().approve(asked("high"))).allowed


def test_an_unknown_risk_is_refused() -> None:
    with pytest.raises(WiringError, match="'severe' is no risk"):
        ByRisk("severe")  # type: ignore[arg-type]  # that is the test


@pytest.mark.parametrize("allowed", ["no", 1, None])
def test_nothing_but_true_is_a_yes(allowed: Any) -> None:
    with pytest.raises(WiringError, match="give True or False"):
        Decision(allowed)


def test_a_reason_is_a_text() -> None:
    with pytest.raises(WiringError, match="and a text"):
        Decision(False, 5)  # type: ignore[arg-type]  # that is the test


@pytest.mark.parametrize("consent", [None, 1, DenyAll])
def test_consent_is_given_by_an_approver(consent: Any) -> None:
    with pytest.raises(WiringError, match=r"is no approver: give an object with async def approve\(request\)"):
        ByRisk(consent=consent)


def test_what_is_shown_is_a_copy_that_does_not_change() -> None:
    given: dict[str, object] = {"n": 1}
    shown = Proposed("op", "low", (), given)
    given["n"] = 2
    assert shown.arguments == {"n": 1}
    with pytest.raises(TypeError):
        shown.arguments["n"] = 3  # type: ignore[index]  # that is the test


# --- the terminal ---


class Terminal:
    """A person at a pseudo-terminal."""

    def __init__(self) -> None:
        self._person, self._program = os.openpty()
        os.set_blocking(self._person, False)
        self.source: TextIO = os.fdopen(self._program, "r")
        self.sink: TextIO = os.fdopen(os.dup(self._program), "w")
        self.seen = ""

    async def sees(self, text: str) -> None:
        while text not in self.seen:
            await asyncio.sleep(0.01)
            try:
                self.seen += os.read(self._person, 65536).decode()
            except BlockingIOError:
                continue

    def type(self, text: str) -> None:
        os.write(self._person, text.encode())

    def hang_up(self) -> None:
        os.close(self._person)
        self._person = -1

    def close(self) -> None:
        if self._person != -1:
            self.hang_up()
        self.source.close()
        self.sink.close()


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


async def answered(terminal: Terminal, approver: Approver, answer: str, request: Approval | None = None) -> Decision:
    task = asyncio.ensure_future(approver.approve(request or asked("high", to="Ada", amount=5)))
    await terminal.sees("yes or no: ")
    terminal.seen = ""
    terminal.type(answer)
    return await asyncio.wait_for(task, 10)


@pytest.mark.parametrize(
    ("answer", "allowed"),
    [("y\n", True), (" YES \n", True), ("no\n", False), ("\n", False), ("yes please\n", False), ("\x04", False)],
)
async def test_only_yes_is_yes(terminal: Terminal, answer: str, allowed: bool) -> None:
    decision = await answered(terminal, AskOnTerminal(terminal.source, terminal.sink), answer)
    assert decision == (Decision.allow() if allowed else Decision.deny("refused at the terminal"))


async def test_the_question_shows_the_calls(terminal: Terminal) -> None:
    task = asyncio.ensure_future(
        AskOnTerminal(terminal.source, terminal.sink).approve(asked("high", "low", to="Ada ü", rows=["x" * 2000]))
    )
    await terminal.sees("yes or no: ")
    shown = terminal.seen
    terminal.type("n\n")
    await task
    assert "Run r-1, at root/pay:" in shown
    assert "op.high (high risk, money)" in shown
    assert "op.low (low risk, money)" in shown
    assert 'to: "Ada ü"' in shown
    assert "… (2,004 characters in all)" in shown


async def test_an_argument_cannot_disguise_a_call(terminal: Terminal) -> None:
    request = asked("high", to="a\n  op.low\r\x1b[2J\u202eevil\x9b")
    task = asyncio.ensure_future(AskOnTerminal(terminal.source, terminal.sink).approve(request))
    await terminal.sees("yes or no: ")
    shown = terminal.seen
    terminal.type("n\n")
    await task
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\x9b" not in shown
    assert shown.count("\n") == 3


async def test_what_was_typed_before_the_question_is_no_answer(terminal: Terminal) -> None:
    terminal.type("yes\n")
    assert not (await answered(terminal, AskOnTerminal(terminal.source, terminal.sink), "no\n")).allowed


async def test_questions_are_asked_one_at_a_time(terminal: Terminal) -> None:
    approver = AskOnTerminal(terminal.source, terminal.sink)
    one = asyncio.ensure_future(approver.approve(asked("high", n=1)))
    other = asyncio.ensure_future(approver.approve(asked("high", n=2)))
    await terminal.sees("yes or no: ")
    assert "n: 2" not in terminal.seen
    terminal.type("yes\n")
    await terminal.sees("n: 2")
    await terminal.sees("no: ")
    assert (await one).allowed
    await asyncio.sleep(0.05)
    terminal.type("no\n")
    assert not (await asyncio.wait_for(other, 10)).allowed


async def test_a_question_that_was_given_up_takes_no_answer(terminal: Terminal) -> None:
    approver = AskOnTerminal(terminal.source, terminal.sink)
    task = asyncio.ensure_future(approver.approve(asked("high")))
    await terminal.sees("yes or no: ")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    terminal.seen = ""
    assert (await answered(terminal, approver, "yes\n")).allowed


async def test_a_terminal_that_hangs_up_denies_or_fails(terminal: Terminal) -> None:
    task = asyncio.ensure_future(AskOnTerminal(terminal.source, terminal.sink).approve(asked("high")))
    await terminal.sees("yes or no: ")
    terminal.hang_up()
    try:
        assert not (await asyncio.wait_for(task, 10)).allowed
    except OSError:  # some systems report it so; the envelope makes a denial of it
        assert task.done()


async def test_without_a_terminal_nothing_is_approved(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = Decision.deny("there is no terminal to ask at")
    assert await AskOnTerminal(StringIO("yes\n"), terminal.sink).approve(asked("high")) == nobody
    assert await AskOnTerminal(terminal.source, StringIO()).approve(asked("high")) == nobody
    monkeypatch.setattr("sys.stdin", None)
    assert await AskOnTerminal(sink=terminal.sink).approve(asked("high")) == nobody


async def test_it_asks_on_the_streams_of_the_program(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", terminal.source)
    monkeypatch.setattr("sys.stderr", terminal.sink)
    assert (await answered(terminal, AskOnTerminal(), "yes\n")).allowed
