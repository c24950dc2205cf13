"""`CrashReport`: what an exploration found, as tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from attrs import frozen


@frozen
class Row:
    """One effect at one place: how often it runs without a crash, how often at most with one, and at which."""

    path: str
    effect: str
    runs: int
    most: int
    when: str

    @property
    def twice(self) -> bool:
        """Whether a crash made it run more often than it would have."""
        return self.most > self.runs


@frozen
class Finding:
    """One thing that came out wrong, and in which case."""

    case: str
    what: str


@frozen
class CrashReport:
    """What an exploration found: `str(report)` shows, per place, what a crash would run twice, and what came out wrong.

    `appends` says in words what the flow wrote, in order; `cases` is how many ways to die (or to race) were tried.
    """

    flow: str
    appends: tuple[str, ...]
    cases: int
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...] = ()
    waits_for: str | None = None
    """What the flow waited for in the end, with no event to come: what follows was not explored."""

    @property
    def twice(self) -> tuple[Row, ...]:
        """The effects that a crash may run again: make them idempotent (`bb.idempotency_key`)."""
        return tuple(row for row in self.rows if row.twice)

    def __str__(self) -> str:
        parts = [f"{self.flow}: {len(self.appends)} appends, {self.cases} cases"]
        if self.waits_for is not None:
            parts.append(
                f"It waits for {self.waits_for!r}, and nothing comes: events=[({self.waits_for!r}, ...)] goes on from there."
            )
        if self.rows:
            lines = [(row.path or "-", row.effect, str(row.runs), str(row.most), row.when) for row in self.rows]
            parts.append(_table(("place", "effect", "runs", "at most", "when"), lines))
        if self.findings:
            alike: dict[str, list[Finding]] = {}
            for finding in self.findings:
                alike.setdefault(_gist(finding.what), []).append(finding)
            found = [(some[0].what, str(len(some)), some[0].case) for some in alike.values()]
            parts.append(_table(("what came out wrong", "cases", "such as"), found))
            if any(len({finding.what for finding in some}) > 1 for some in alike.values()):
                parts.append(_DICE)
        return "\n\n".join(parts)


class NotCrashSafe(AssertionError):
    """A flow came out differently after a crash, did something too often or not at all; `report` has it all."""

    report: CrashReport

    def __init__(self, report: CrashReport) -> None:
        number = len(report.findings)
        super().__init__(f"{number} finding{'' if number == 1 else 's'}\n{report}")
        self.report = report


_VALUES: Final = re.compile(
    r".* (was streamed), but .*|(the (?:answer|value|messages) is|a replay streamed|one app answers) .*", re.DOTALL
)
_DICE: Final = (
    "What comes out differently in each case cannot be compared: no dice or clock in answers. "
    "Hand such values in as input, or fix them for the test."
)


def _gist(what: str) -> str:
    """A finding without the values in it: those of dice and clocks differ from case to case."""
    return _VALUES.sub(r"\1\2", what)


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(cells[i]) for cells in (head, *lines)) for i in range(len(head))]
    rule = tuple("-" * width for width in widths)
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in (head, rule, *lines)
    )
