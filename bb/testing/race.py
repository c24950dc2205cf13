"""`race_everywhere`: lets two processes run one run id at once, and looks whether they are one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from bb.app import App
from bb.flows.tree import AnyFlow
from bb.messages import InputLike
from bb.stores.base import Store
from bb.testing.effects import Effects
from bb.testing.explorer import Explorer
from bb.testing.process import Strike
from bb.testing.report import CrashReport
from bb.testing.story import Case, differing
from bb.testing.words import described

_TURNS = 30  # turns of the loop that the second process has before the first goes on


async def race_everywhere(
    flow: AnyFlow,
    input: InputLike = (),
    *,
    app: Callable[[Store], App] | None = None,
    effects: Effects | None = None,
    params: Mapping[str, object] | None = None,
    events: Iterable[tuple[str, object]] = (),
    runs: int = 1,
    patience: float = 10.0,
) -> CrashReport:
    """Hold a durable flow at each of its appends while a second app runs the same run id over the same store.

    Two cases per append. *held*: the first app has the lease, so the second must wait; nothing runs more often than with one
    app. *lapsed*: the first app has lost its lease (as one that was asleep), the second runs to the end, and what the first
    then writes must be refused. In both cases both apps give the outcome of the undisturbed run, and the log holds one
    savepoint per place. Arguments as for `crash_everywhere`.

    Raises:
        NotCrashSafe: a case broke a law; its message is a table.
        WiringError: no part of the flow is durable.
        BBError: the flow fails without any race.
    """
    explorer = Explorer(
        flow,
        input,
        app=app,
        effects=effects,
        params=params,
        events=events,
        runs=runs,
        fails=False,
        stream=False,
        patience=patience,
    )
    reference = await explorer.refer()
    for at, append in enumerate(reference.lives[0].appended, 1):
        what = described(*append)
        await _race(explorer, explorer.begin(f"held {at}: {what}"), at, lapse=False)
        await _race(explorer, explorer.begin(f"lapsed {at}: {what}"), at, lapse=True)
    return explorer.verdict()


async def _race(explorer: Explorer, case: Case, at: int, *, lapse: bool) -> None:
    first, running = explorer.process(case, Strike(at, "held"))
    held = asyncio.ensure_future(first.held.wait())
    await asyncio.wait({held, running}, return_when=asyncio.FIRST_COMPLETED)
    held.cancel()
    if lapse:
        first.lapsed = True
        case.world.store.revive()  # the store holds the leases of the dead no longer, whoever believes to have one
    second, rival = explorer.process(case)
    if lapse:
        case.read = await explorer.ended(case, second, rival)
        first.let_go()
        other = await explorer.ended(case, first, running)
        case.cuts = 1
    else:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        first.let_go()
        other = await explorer.ended(case, first, running)
        case.read = await explorer.ended(case, second, rival)
    if case.read is not None and other is not None and (difference := differing(other, case.read)):
        case.found.append(f"one app differs from the other: {difference}")
    if case.read is None and not case.found:
        case.found.append("the second app did not come to an outcome")
    if other is None and not case.found:
        case.found.append("the first app did not come to an outcome")
    await explorer.check(case, exactly=not lapse)
