"""One story that an exploration tells: the processes in it, and what was read of its runs at the end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final, TypeAlias

from attrs import define, field, frozen

from bb.engine.outcome import Outcome
from bb.log import History
from bb.testing.process import Process, World

_ROUNDS: Final = re.compile(r"[#@]\d+")  # no id holds these signs
_WIDE: Final = 120  # characters of a value in a report

Key = tuple[str, str]
"""A place and what is done there."""


@frozen
class Read:
    """How a run looked from outside: its outcome, the text as it was streamed (None: nobody streamed it), or its failure."""

    outcome: Outcome | None
    text: str | None = None
    failure: str = ""

    @property
    def is_parked(self) -> bool:
        """Whether it waits for an event that never came."""
        return self.outcome is not None and self.outcome.waiting_for is not None

    @property
    def state(self) -> str:
        """Where the run stands."""
        return "failed" if self.outcome is None else "parked" if self.is_parked else "finished"


Reads: TypeAlias = tuple[Read, ...]
"""What was read of each run of a story."""


@define(eq=False)
class Case:
    """One story: processes that came one after the other, and what the last one read."""

    name: str
    world: World = field(factory=World)
    lives: list[Process] = field(factory=list)
    cuts: int = 0
    """How often the run was cut off."""
    undecided: set[Key] = field(factory=set)
    """The races, by run and path, that had no winner on record when an append went wrong."""
    read: Reads | None = None
    found: list[str] = field(factory=list)

    def counts(self) -> Counter[Key]:
        """How often each effect ran."""
        return Counter((ran.place, ran.what) for ran in self.world.effects)


def differing(now: Reads, was: Reads) -> str:
    """The first thing in which two readings of a story differ; "" when there is none."""
    for one, other in zip(now, was, strict=True):
        if one.state != other.state:
            return f"a run {one.state}, and did not come to be {other.state}: {one.failure or other.failure}"
        if one.outcome is None or other.outcome is None:
            if other.failure not in one.failure and one.failure not in other.failure:
                return f"the failure is {short(one.failure)}, not {short(other.failure)}"
            continue
        for name in ("answer", "value", "messages"):
            is_, was_ = getattr(one.outcome, name), getattr(other.outcome, name)
            if is_ != was_:
                return f"the {name} is {short(is_)}, not {short(was_)}"
    return ""


def stands(history: History, read: Read) -> bool:
    """Whether the log of a run agrees with what was read of it."""
    match read.state:
        case "finished":
            return history.finished
        case "parked":
            return history.parked is not None
        case _:
            return history.failed


def upwards(path: str) -> Iterator[str]:
    """A path and those above it."""
    while path:
        yield path
        path = path.rpartition("/")[0]


def plain_path(path: str) -> str:
    """A path in the tree: that of a place without its rounds and attempts."""
    return _ROUNDS.sub("", path)


def short(value: object) -> str:
    """A value in a report."""
    text = repr(value)
    return text if len(text) <= _WIDE else f"{text[: _WIDE // 2]} … {text[-_WIDE // 2 :]}"
