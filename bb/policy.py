"""Who may do what: the policy over names of ops, and the approvers that are asked about risky calls."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import sys
import threading
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, TextIO, cast, final

from attrs import field, frozen

from bb.agents.invoke import is_async, takes
from bb.errors import WiringError
from bb.ops import RISKS, Risk
from bb.plain import in_short
from bb.ports import check_port
from bb.record import Record

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_PATTERN: Final = re.compile(r"[A-Za-z0-9_.*?]+")
_ADVICE: Final = "give an object with async def approve(request), such as bb.ByRisk(consent=...)"
_SHOWN: Final = 1000  # characters of an argument
_POLL: Final = 0.1  # seconds after which a question that was given up is noticed


def _patterns(patterns: Iterable[str]) -> tuple[str, ...]:
    if isinstance(patterns, str):
        raise WiringError(f"{patterns!r} is one pattern", remedy="give a list of patterns")
    kept = tuple(patterns)
    for pattern in kept:
        # one that matches nothing would let through what it was meant to stop
        if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
            raise WiringError(f"{pattern!r} matches no name of an op", remedy="write calendar.read, calendar.* or *")
    return kept


@final
@frozen(eq=False, repr=False)
class Policy(Record):
    """Which ops may run: those that `allow` matches and `deny` does not.

    Patterns are names of ops with `*` for any text, dots included, and `?` for one character.
    """

    allow: tuple[str, ...] = field(default=("*",), converter=_patterns)
    deny: tuple[str, ...] = field(default=(), converter=_patterns)

    def refusal(self, op: str) -> str | None:
        """Why the op may not run; None when it may."""
        for pattern in self.deny:
            if fnmatchcase(op, pattern):
                return f"the policy denies {pattern}"
        if any(fnmatchcase(op, pattern) for pattern in self.allow):
            return None
        return "the policy allows no such op"


def _kept(arguments: Mapping[str, object]) -> Mapping[str, object]:
    return MappingProxyType(dict(arguments))


@final
@frozen(eq=False, repr=False)
class Proposed(Record):
    """A call that waits for approval."""

    op: str
    risk: Risk
    effects: tuple[str, ...]
    arguments: Mapping[str, object] = field(converter=_kept)
    """By name, as plain data to be looked at: a copy in which secrets are masked."""


@final
@frozen(eq=False, repr=False)
class Approval(Record):
    """What an approver is asked: all of these calls, or none. `path` is where in the flow of the run they stand."""

    calls: tuple[Proposed, ...]
    run_id: str
    path: str


@final
@frozen(eq=False, repr=False)
class Decision(Record):
    """An approver's answer, and its reason where that is no.

    Raises:
        WiringError: `allowed` is not True or False; nothing else is taken for a yes.
    """

    allowed: bool
    reason: str = ""

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.allowed, bool) or not isinstance(self.reason, str):
            given = f"{in_short(self.allowed)}, {in_short(self.reason)}"
            raise WiringError(f"{given} is no decision", remedy="give True or False, and a text")

    @classmethod
    def allow(cls) -> Decision:
        """The calls may run."""
        return cls(True)

    @classmethod
    def deny(cls, reason: str) -> Decision:
        """The calls may not run."""
        return cls(False, reason)


class Approver(Protocol):
    """Decides about calls before they run: nothing runs without a yes.

    One that raises has said neither yes nor no. The run fails with `ApproverFailed`, which is tried again like any failure
    unless the cause is `Fatal`, and the approver is asked again.
    """

    async def approve(self, request: Approval, /) -> Decision:
        """Whether all the calls of the request may run. It may take its time: the run waits, in memory."""
        ...


def check_approver(approver: object) -> None:
    """Raises:
    WiringError: it is neither None nor an object with an async method `approve(request)`.
    """
    check_port(approver, "approver", ("approve",), _ADVICE)
    if approver is not None and not (is_async(asks := cast("Approver", approver).approve) and takes(asks, 1)):
        raise WiringError(f"approve of {approver!r} is no async method of one argument", remedy=_ADVICE)


def _an_approver(_by: object, _field: object, value: object) -> None:
    if value is None:
        raise WiringError("None is no approver", remedy=_ADVICE)
    check_approver(value)


@final
@frozen(eq=False, repr=False)
class AllowAll(Record):
    """Approves everything."""

    async def approve(self, request: Approval, /) -> Decision:
        return Decision.allow()


@final
@frozen(eq=False, repr=False)
class DenyAll(Record):
    """Approves nothing."""

    async def approve(self, request: Approval, /) -> Decision:
        return Decision.deny("nothing is approved here")


def _a_risk(_by: object, _field: object, value: object) -> None:
    if value not in RISKS:
        raise WiringError(f"{value!r} is no risk", remedy=f"give one of {', '.join(RISKS)}")


@final
@frozen(eq=False, repr=False)
class ByRisk(Record):
    """Approves calls below a risk, and asks `consent` about all others.

    A request in which one call is that risky goes there as a whole, so that people see what they agree to.
    """

    threshold: Risk = field(default="high", validator=_a_risk)
    consent: Approver = field(default=DenyAll(), validator=_an_approver)

    def asks(self, risk: Risk) -> bool:
        """Whether a call of this risk needs consent."""
        return RISKS.index(risk) >= RISKS.index(self.threshold)

    async def approve(self, request: Approval, /) -> Decision:
        if any(self.asks(call.risk) for call in request.calls):
            return await self.consent.approve(request)
        return Decision.allow()


def _pool() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(1, thread_name_prefix="bb-terminal")  # one at a time: two questions would share an answer


@final
@frozen(eq=False, repr=False)
class AskOnTerminal(Record):
    """Shows the calls to whoever sits at the terminal, and approves on `y` or `yes`; without a terminal it denies.

    It asks on `sys.stderr` and reads `sys.stdin`, unless others are given. What was typed before the question is no answer.
    """

    source: TextIO | None = None
    sink: TextIO | None = None
    _asking: ThreadPoolExecutor = field(factory=_pool, init=False, eq=False, repr=False)

    async def approve(self, request: Approval, /) -> Decision:
        source, sink = self.source or sys.stdin, self.sink or sys.stderr
        if source is None or sink is None or not (source.isatty() and sink.isatty()):
            return Decision.deny("there is no terminal to ask at")
        stop = threading.Event()
        loop = asyncio.get_running_loop()
        try:
            answer = await loop.run_in_executor(self._asking, _ask, _question(request), source, sink, stop)
        finally:
            stop.set()  # a question that nobody waits for must not take the answer to the next one
        return Decision.allow() if answer.strip().lower() in ("y", "yes") else Decision.deny("refused at the terminal")


def _question(request: Approval) -> str:
    lines = [f"Run {request.run_id}, at {request.path}:"]
    for call in request.calls:
        lines.append(f"  {call.op} ({call.risk} risk{''.join(f', {effect}' for effect in call.effects)})")
        lines += (f"    {name}: {_shortened(value)}" for name, value in call.arguments.items())
    return "\n".join([*map(_printable, lines), "Allow this? Type yes or no: "])


def _shortened(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text):,} characters in all)"


def _printable(line: str) -> str:
    """A line that cannot move the cursor or turn the direction of the text, to make a call look like another."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)


def _ask(question: str, source: TextIO, sink: TextIO, stop: threading.Event) -> str:
    """The line that is typed after the question; "" when the terminal is closed or `stop` is set."""
    if stop.is_set():
        return ""
    if sys.platform != "win32":
        import termios

        termios.tcflush(
            source.fileno(), termios.TCIFLUSH
        )  # before the question is seen: after it, answers come at once
    sink.write(question)
    sink.flush()
    if sys.platform == "win32":
        return source.readline()  # nothing there waits for a line and for a stop at once
    terminal = source.fileno()
    typed = b""
    while not stop.is_set() and not typed.endswith(b"\n"):
        if select.select([terminal], [], [], _POLL)[0]:
            more = os.read(terminal, 1024)
            if not more:
                break
            typed += more
    return typed.decode("utf-8", "replace") if typed.endswith(b"\n") else ""
