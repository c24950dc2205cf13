"""What tests of the durability nodes need: operations that note what they do, and fail or wait on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import bb
from bb.flows.tree import AnyFlow, Call, Saga, Step
from bb.ops import Op, op
from tests.trials.kit import Hold


class Acts:
    """One op, `act`, that comes to `<what> done`. Each act is known by what it does: `acts("charge")` is a call of it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        """What was done or tried, in order."""
        self.values: dict[str, object] = {}
        """What acts come to instead."""
        self._fails: dict[str, list[BaseException]] = {}
        self._holds: dict[str, list[Hold]] = {}
        self._broken: set[str] = set()
        self.op = self.named("act")

    def __call__(self, what: object) -> Call[Any]:
        """The call that does this."""
        return self.op(what)

    def named(self, name: str) -> Op[..., Any]:
        """The same op under another name."""

        @op(name)
        async def act(what: object) -> Any:
            what = what if isinstance(what, str) else repr(what)
            self.done.append(what)
            if self._fails.get(what):
                raise self._fails[what].pop(0)
            if what in self._broken:
                raise ConnectionError(f"{what} is broken")
            for hold in self._holds.pop(what, []):
                hold.reached.set()
                await hold.go.wait()
                if hold.error is not None:
                    raise hold.error
            return self.values.get(what, f"{what} done")

        return act

    def count(self, what: str) -> int:
        """How often this was done or tried."""
        return self.done.count(what)

    def fail(self, what: str, *errors: BaseException | int) -> None:
        """Let it fail the next times, with these errors or so many times."""
        for error in errors:
            said = [ConnectionError(f"{what} fails")] * error if isinstance(error, int) else [error]
            self._fails.setdefault(what, []).extend(said)

    def breaks(self, *whats: str) -> None:
        """Let these fail every time."""
        self._broken |= set(whats)

    def mend(self, *whats: str) -> None:
        """Let these succeed again."""
        self._broken -= set(whats)

    def hold(self, what: str) -> Hold:
        """Let it wait the next time."""
        hold = Hold()
        self._holds.setdefault(what, []).append(hold)
        return hold

    def step(self, name: str, *more: AnyFlow) -> Step:
        """A step of a saga, and what undoes it."""
        return Step(self(name), *more, undo=self(f"undo {name}"))

    def saga(self, *names: str) -> Saga:
        """A saga of such steps; a name with a `!` is a step without an undo."""
        return Saga(*(Step(self(n.rstrip("!"))) if n.endswith("!") else self.step(n) for n in names))


def durable(*steps: AnyFlow, id: str = "f", **options: Any) -> bb.DurableFlow:
    """These statements as a durable flow."""
    return plain(*steps, id=id).durable(**options)


def plain(*steps: AnyFlow, id: str = "f") -> bb.NamedFlow:
    """These statements as a flow that is not durable."""
    return _chained(steps).with_id(id)


def _chained(steps: Iterable[AnyFlow]) -> Any:
    first, *rest = steps
    flow: Any = first
    for step in rest:
        flow = flow >> step
    return flow


async def reached(hold: Hold, task: asyncio.Task[Any]) -> None:
    """Wait until the task has come to the hold."""
    waiting = asyncio.create_task(hold.reached.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED, timeout=10)
    waiting.cancel()
    if not hold.reached.is_set():
        task.cancel()
        raise AssertionError(f"the run did not come to the hold: {task}")
