"""`crash_everywhere`: lets a flow die at every append it makes, and looks how it comes back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping

from bb.app import App
from bb.flows.tree import AnyFlow
from bb.messages import InputLike
from bb.stores.base import Store
from bb.testing.effects import Effects
from bb.testing.explorer import Explorer
from bb.testing.process import CRASHES, Process, Strike
from bb.testing.report import CrashReport
from bb.testing.story import Case
from bb.testing.words import described


async def crash_everywhere(
    flow: AnyFlow,
    input: InputLike = (),
    *,
    app: Callable[[Store], App] | None = None,
    effects: Effects | None = None,
    params: Mapping[str, object] | None = None,
    events: Iterable[tuple[str, object]] = (),
    runs: int = 1,
    fails: bool = False,
    stream: bool = True,
    depth: int = 1,
    samples: int = 100,
    seed: int = 0,
    patience: float = 10.0,
) -> CrashReport:
    """Let a durable flow die at each of its appends, in every way there is, and resume in a new app over the same store.

    Each way is a case in a store of its own: dying before or after an append, or while it is under way (with what runs beside
    it going on for a while), and living on though the store reported an error. Then every case must keep these laws: answer,
    messages and value are those of the run without a crash; what was streamed is the answer; each effect ran at least once,
    at most once more per crash, and not at all where the log had its result; the log holds one savepoint per place; a single
    error of the store cuts nothing off; one more replay executes and appends nothing.

    Effects are the runs of agents, ops and tools, the calls of notifiers, the requests to models, and what handlers and ops
    count by `Effects`. The flow must be deterministic but for crashes; models are asked once, and later cases get the same answers.

    Args:
        flow: the flow, some part of it durable.
        input: what it starts with; left out, nothing, as for flows of statements.
        app: makes the app of each process over the given store; by default one whose clock never waits.
        effects: the counter that the flow's handlers use; every case starts with it at zero.
        params: as for `App.run`.
        events: what is delivered from outside while the flow waits, each a source and a payload, in order. Without one a run
            that waits has come as far as it can.
        runs: how often the flow is run in one session, one run after the other, to see what they leave each other.
        fails: the flow is meant to fail for good; then every case must fail, with everything undone as it was.
        stream: read the runs as streams.
        depth: 2 also lets the resuming process die, at places picked at random.
        samples: how many pairs of crashes `depth=2` tries.
        seed: picks them.
        patience: seconds of real time that one process may take.

    Raises:
        NotCrashSafe: a case broke a law; its message is a table.
        WiringError: no part of the flow is durable.
        BBError: the flow fails without any crash.
    """
    explorer = Explorer(
        flow,
        input,
        app=app,
        effects=effects,
        params=params,
        events=events,
        runs=runs,
        fails=fails,
        stream=stream,
        patience=patience,
    )
    reference = await explorer.refer()
    pairs: list[tuple[str, Strike, Strike]] = []
    for at, what in _appends(reference.lives[0]):
        for when in CRASHES:
            strike = Strike(at, when)
            case = await explorer.tell(f"{when} {at}: {what}", strike)
            if case.cuts and when in {"lost", "refused"}:
                case.found.append("the store failed for a moment, and the run was cut off")
            if depth > 1 and case.cuts:
                pairs += _second(case, strike)
    if pairs:
        for name, first, second in random.Random(seed).sample(pairs, min(samples, len(pairs))):
            await explorer.tell(name, first, second)
    return explorer.verdict()


def _appends(process: Process) -> list[tuple[int, str]]:
    return [(at, described(*append)) for at, append in enumerate(process.appended, 1)]


def _second(case: Case, first: Strike) -> list[tuple[str, Strike, Strike]]:
    """The crashes that may hit the process which resumed this case."""
    return [
        (f"{case.name}, then {when} {at}: {what}", first, Strike(at, when))
        for at, what in _appends(case.lives[1])
        for when in CRASHES
    ]
