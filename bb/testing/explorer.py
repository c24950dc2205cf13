"""What every exploration of a flow has in common: lives, cases, and the laws that each case must keep."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import copy_context
from datetime import UTC, datetime
from typing import Final, Literal

from bb.app import RESUME, App, Resume
from bb.errors import BBError, Interruption, StreamBroken, WiringError
from bb.flows.base import a_flow, slot
from bb.flows.tree import (
    TRIGGERS,
    AnyFlow,
    DurableFlow,
    NamedFlow,
    One,
    Saga,
    Scope,
    body_of,
    flow_id,
    is_durable,
    slots,
    walk,
)
from bb.log import History, decode, run_stream
from bb.log import Scope as ScopeLog
from bb.messages import InputLike
from bb.stores.base import Store
from bb.testing.clock import ManualClock
from bb.testing.effects import Effects
from bb.testing.mock_store import Crash
from bb.testing.process import RUN_ID, Answers, Process, Ran, Strike, World, current, place_in, with_models
from bb.testing.report import CrashReport, Finding, NotCrashSafe, Row
from bb.testing.story import Case, Key, Read, Reads, differing, plain_path, short, stands, upwards
from bb.testing.words import described, entry_named, said_again

_SESSION: Final = "explored-session"
_LIVES: Final = 4  # processes after the last one that was to die: a run that needs more does not come to its end


class Explorer:
    """Runs a flow over and over, each time in a world of its own."""

    def __init__(
        self,
        flow: AnyFlow,
        input: InputLike,
        *,
        app: Callable[[Store], App] | None,
        effects: Effects | None,
        params: Mapping[str, object] | None,
        events: Iterable[tuple[str, object]],
        runs: int,
        fails: bool,
        stream: bool,
        patience: float,
    ) -> None:
        if app is not None and not callable(app):
            raise WiringError(
                "app= says how an app is made for each case, and this is one",
                remedy="app=lambda store: bb.App(store=store, ...)",
            )
        if not is_durable(a_flow(flow)):
            raise WiringError(f"no part of flow {flow_id(flow)!r} is durable", remedy="call .durable() on it")
        self.flow = flow
        self.reference: Case = Case("no crash")
        self.cases: list[Case] = []
        self._input = input
        self._app = app if app is not None else _app
        self._effects = effects
        self._params = params
        self._events = tuple(events)
        self._run_ids = [RUN_ID, *(f"{RUN_ID}-{number}" for number in range(2, runs + 1))]
        self._session = _SESSION if runs > 1 else None
        self._fails = fails
        self._stream = stream
        self._patience = patience
        self._answers: Answers = {}
        parts = list(walk(flow))
        self._durable = [path for path, part in parts if isinstance(part, DurableFlow)]
        self._schedules = any(isinstance(body_of(part), TRIGGERS) for _, part in parts)
        self._races = [path for path, part in parts if isinstance(body_of(part), One)]
        self._cleanups = {
            path: [f"{path}/{name}" for name, _ in cleanups(part)]
            for path, part in parts
            if isinstance(body_of(part), Saga | Scope)
        }

    # --- lives ---

    def begin(self, name: str) -> Case:
        """A new case, in a new world."""
        if self._effects is not None:
            self._effects.reset()
        case = Case(name)
        self.cases.append(case)
        return case

    def process(self, case: Case, strike: Strike | None = None) -> tuple[Process, asyncio.Task[Reads]]:
        """Start a process that tells the story, or goes on with it."""
        process = Process(case.world, self._answers, strike)
        case.lives.append(process)
        context = copy_context()
        context.run(current.set, process)
        return process, asyncio.get_running_loop().create_task(self._live(process), context=context)

    async def _live(self, process: Process) -> Reads:
        """The runs, one after the other; each is given the events that are still to come, for as long as it waits."""
        app = self._app(process)
        process.instrument(app)
        flow = with_models(self.flow, process.watched)
        if self._schedules and isinstance(flow, NamedFlow | DurableFlow):
            app.register(flow)  # what triggers are to start is found by the id of the flow
        reads: list[Read] = []
        try:
            for run_id in self._run_ids:
                read = await self._read(app, flow, run_id, process)
                while read.is_parked and process.world.delivered < len(self._events):
                    assert read.outcome is not None
                    await self._deliver(app, read.outcome.session_id, process.world)
                    read = await self._read(app, flow, run_id, process)
                reads.append(read)
            return tuple(reads)
        finally:
            if process.dead:
                for live in app._runner.running:
                    live.interrupt()
                    await live.wait_done(1.0)

    async def _deliver(self, app: App, session_id: str, world: World) -> None:
        """Deliver the next event; who crashed meanwhile cannot know whether it was, and delivers it again."""
        number = world.delivered
        source, payload = self._events[number]
        await app.deliver(source, payload, session_id=session_id, delivery_id=f"event-{number}")
        world.delivered = number + 1

    async def _read(self, app: App, flow: AnyFlow, run_id: str, process: Process) -> Read:
        history = await _history(process.world, run_id) if self._fails else None
        if history is not None and history.failed and history.last_failure is not None:
            return Read(None, None, history.last_failure.detail)  # running it again would be another attempt
        given: InputLike | Literal[Resume.RESUME] = self._input
        while True:
            try:
                return await self._once(app, flow, given, run_id)
            except StreamBroken:
                given = RESUME  # as a client does: reconnect by the run id
            except Interruption:
                raise
            except BBError as error:
                if not self._fails or isinstance(error, WiringError):
                    raise
                return Read(None, None, error.message)

    async def _once(self, app: App, flow: AnyFlow, given: InputLike | Literal[Resume.RESUME], run_id: str) -> Read:
        params = None if given is RESUME else self._params
        if not self._stream:
            return Read(await app.run(flow, given, run_id=run_id, params=params, session_id=self._session))
        async with app.stream(
            flow, given, run_id=run_id, params=params, session_id=self._session, detach=True
        ) as stream:
            text = "".join([chunk async for chunk in stream])
            return Read(await stream.outcome(), text)

    async def ended(self, case: Case, process: Process, task: asyncio.Task[Reads]) -> Reads | None:
        """Wait until the process has ended the story (what it read), or has died or given up (None)."""
        death = asyncio.ensure_future(process.died.wait())
        await asyncio.wait({task, death}, timeout=self._patience, return_when=asyncio.FIRST_COMPLETED)
        death.cancel()
        if not process.dead and not task.done():
            case.found.append(f"it did not end within {self._patience} seconds")
            process.die()
        if process.dead:
            case.cuts += 1
            await _bury(task)
            case.world.store.revive()
            return None
        error = task.exception()
        if error is None:
            return task.result()
        case.cuts += 1
        if not isinstance(error, Interruption):
            case.found.append(f"it failed with {type(error).__name__}: {error}")
        return None

    async def tell(self, name: str, *strikes: Strike) -> Case:
        """A whole case: each process dies as told, the last one ends the run, and one more replays it."""
        case = self.begin(name)
        for strike in (*strikes, *(None,) * _LIVES):
            process, task = self.process(case, strike)
            case.read = await self.ended(case, process, task)
            if case.read is not None or case.found:
                break
        else:
            case.found.append(f"it was not at its end after {_LIVES} more processes")
        await self.check(case)
        return case

    # --- the laws ---

    async def check(self, case: Case, *, exactly: bool = False) -> None:
        """Note what came out wrong; `exactly`: nothing was to run more often than in the reference."""
        if case.read is None:
            return
        await self._judge_races(case)
        effects = sorted(case.world.effects, key=lambda ran: ran.log)
        saved: set[str] = set()
        for run_id, read in zip(self._run_ids, case.read, strict=True):
            history, doubles = await self._log(case, run_id, [ran for ran in effects if ran.run == run_id])
            case.found += doubles
            saved |= {place_in(run_id, path) for scope in history.scopes.values() for path in scope.saved}
            if not stands(history, read):
                case.found.append(f"the log of {run_id} does not say that it {read.state}")
        case.found += self._misread(case, case.read)
        case.found += self._miscounted(case, saved, exactly=exactly)
        case.found += await self._replayed(case, case.read)

    def _misread(self, case: Case, reads: Reads) -> Iterator[str]:
        for read in reads:
            if read.outcome is not None and read.text is not None and read.text != read.outcome.answer:
                yield f"{short(read.text)} was streamed, but the answer is {short(read.outcome.answer)}"
        if self.reference.read is None or case.undecided:
            return  # a race that had no winner yet may be won by another
        if difference := differing(reads, self.reference.read):
            yield difference

    def _miscounted(self, case: Case, saved: set[str], *, exactly: bool) -> Iterator[str]:
        usual, counts = self.reference.counts(), case.counts()
        for place, what in usual:
            if counts[place, what] == 0 and (place in saved or not self._in_race(place)):
                yield f"{what} at {place or 'no place'} never ran"
        for (place, what), count in counts.items():
            most = usual[place, what] if exactly else usual[place, what] * (1 + case.cuts)
            if count > most and not self._in_race(place):
                yield f"{what} at {place or 'no place'} ran {count} times, not at most {most}"

    async def _replayed(self, case: Case, reads: Reads) -> list[str]:
        """What goes wrong when the story is told again."""
        found: list[str] = []
        effects, length = len(case.world.effects), case.world.length.copy()
        process, task = self.process(case)
        again = Case(case.name, case.world)
        replay = await self.ended(again, process, task)
        found += [f"a replay: {what}" for what in again.found]
        new = {(ran.what, ran.place) for ran in case.world.effects[effects:] if self._is_kept(ran)}
        found += [f"a replay ran {what} at {path}" for what, path in sorted(new)]
        del case.world.effects[effects:]
        wrote = [described(*one) for one in process.appended]
        if any(read.is_parked for read in reads):
            wrote = [what for what in wrote if not what.endswith("take up")]  # who looks for an event takes it up
        elif not wrote and case.world.length != length:
            wrote = ["something"]
        if wrote:
            found.append(f"a replay appended {', '.join(wrote)}")
        for read in replay or ():
            if read.outcome is not None and read.text is not None and read.text != read.outcome.answer:
                found.append(f"a replay streamed {short(read.text)}, but the answer is {short(read.outcome.answer)}")
        if replay is not None and (difference := differing(replay, reads)):
            found.append(f"a replay: {difference}")
        return found

    async def _log(self, case: Case, run_id: str, ran: Sequence[Ran]) -> tuple[History, list[str]]:
        """The state of a run at the end, and what its log holds twice or shows to have run though it was kept."""
        history = History(run_id)
        found: list[str] = []
        effects = deque(ran)
        for record in await case.world.store.read(run_stream(run_id)):
            while effects and effects[0].log <= history.length:
                found += self._ran_though_kept(effects.popleft(), history)
            fact = decode(record, "a record")
            if again := said_again(fact, history):
                found.append(f"the log holds a second {again}")
            history.add(fact)
        for one in effects:
            found += self._ran_though_kept(one, history)
        return history, found

    def _ran_though_kept(self, ran: Ran, history: History) -> Iterator[str]:
        if ran.process.lapsed:
            return  # it could not know what its successor had saved
        for scope in history.scopes.values():
            if undone := next((path for path in upwards(ran.path) if self._goes_forward(ran, path, scope)), None):
                yield f"{ran.what} at {ran.path} ran though {undone} was being undone"
            if kept := next((path for path in upwards(ran.path) if path in scope.saved), None):
                savepoint = "its savepoint" if kept == ran.path else f"the savepoint of {kept}"
                yield f"{ran.what} at {ran.path} ran though {savepoint} was in the log"
            elif ran.entry in scope.entries.get(ran.path, {}):
                yield f"{ran.what} at {ran.path} ran though {entry_named(ran.entry)} was in the log"

    def _goes_forward(self, ran: Ran, path: str, scope: ScopeLog) -> bool:
        """Whether an effect is part of what is being undone at a place, and not of a cleanup."""
        inside, place = plain_path(ran.path), plain_path(path)
        if path not in scope.unwinding or place not in self._cleanups:
            return False
        cleaning = [
            one
            for base, some in self._cleanups.items()
            if base == place or base.startswith(f"{place}/")
            for one in some
        ]
        return not any(inside == one or inside.startswith(f"{one}/") for one in cleaning)

    async def _judge_races(self, case: Case) -> None:
        """Note the races that the reference decided, and this case had not when something went wrong."""
        if not self._races:
            return
        for run_id in self._run_ids:
            wanted = await _decided(self.reference.world, run_id)
            for process in case.lives:
                if process.struck_at is not None:
                    case.undecided |= wanted - await _decided(case.world, run_id, process.struck_at[run_id])

    def _is_kept(self, ran: Ran) -> bool:
        """Whether an effect is at a place that a durable flow keeps."""
        if not ran.path:
            return isinstance(self.flow, DurableFlow)
        return any(ran.path == path or ran.path.startswith(path + "/") for path in self._durable)

    def _in_race(self, place: str) -> bool:
        path = place.rpartition(": ")[2]
        return any(path.startswith(race + "/") for race in self._races)

    # --- the report ---

    async def refer(self) -> Case:
        """Run the flow undisturbed: what every other case is measured by.

        Raises:
            BBError: the flow fails without any crash.
            NotCrashSafe: it does not come to an end even then, or does not fail, though it is meant to.
        """
        case = self.begin("no crash")
        process, task = self.process(case)
        case.read = await self.ended(case, process, task)
        if case.read is None:
            if task.done() and not task.cancelled() and isinstance(task.exception(), BBError):
                await task
            raise NotCrashSafe(self.report())
        if self._fails and all(read.outcome is not None for read in case.read):
            case.found.append(f"it is meant to fail, and {case.read[-1].state}")
            raise NotCrashSafe(self.report())
        self.reference = case
        await self.check(case)
        return case

    def report(self) -> CrashReport:
        """What was found up to now."""
        usual = self.reference.counts()
        most: dict[Key, tuple[int, str]] = {key: (runs, "") for key, runs in usual.items()}
        for case in self.cases:
            for key, runs in case.counts().items():
                if runs > most.get(key, (0, ""))[0]:
                    most[key] = (runs, case.name)
        first = self.reference.lives[0] if self.reference.lives else None
        return CrashReport(
            flow=flow_id(self.flow) or "flow",
            appends=tuple(described(*one) for one in first.appended) if first is not None else (),
            cases=len(self.cases),
            rows=tuple(Row(path, what, usual[path, what], runs, when) for (path, what), (runs, when) in most.items()),
            findings=tuple(Finding(case.name, what) for case in self.cases for what in dict.fromkeys(case.found)),
            waits_for=self._waits_for(),
        )

    def _waits_for(self) -> str | None:
        last = self.reference.read[-1] if self.reference.read else None
        return last.outcome.waiting_for if last is not None and last.outcome is not None else None

    def verdict(self) -> CrashReport:
        """The report.

        Raises:
            NotCrashSafe: something came out wrong.
        """
        report = self.report()
        if report.findings:
            raise NotCrashSafe(report)
        return report


def cleanups(flow: AnyFlow) -> Iterator[tuple[str, AnyFlow]]:
    """The parts of a saga or scope that clean up, each with its path segment."""
    for name, parts in slots(flow):
        if name.startswith("undo") or name == "finally":
            yield from slot(name, parts)


async def _history(world: World, run_id: str, length: int | None = None) -> History:
    history = History(run_id)
    history.read((await world.store.read(run_stream(run_id)))[:length])
    return history


async def _decided(world: World, run_id: str, length: int | None = None) -> set[Key]:
    """The races that have a winner in the log, or in its first records."""
    history = await _history(world, run_id, length)
    return {(run_id, path) for scope in history.scopes.values() for path in scope.decided}


async def _bury(task: asyncio.Task[Reads]) -> None:
    """Let the remains of a dead process unwind; whatever they still try is refused."""
    task.cancel()
    await asyncio.wait({task}, timeout=5.0)
    if task.done() and not task.cancelled() and (error := task.exception()) is not None:
        assert isinstance(error, Crash | Exception)


def _app(store: Store) -> App:
    return App(store=store, clock=ManualClock(datetime.now(UTC), auto=True))
