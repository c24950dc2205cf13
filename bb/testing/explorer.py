"""What every exploration of a flow has in common: lives, cases, and the laws that each case must keep."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextvars import copy_context
from datetime import UTC, datetime
from typing import Final, Literal

from attrs import define, field, frozen

from bb.app import RESUME, App, InputLike, Resume
from bb.engine.outcome import Outcome
from bb.errors import BBError, Interruption, StreamBroken, WiringError
from bb.flows.tree import AnyFlow, DurableFlow, One, body_of, flow_id, is_durable, walk
from bb.log import Decided, Ended, Entered, Entry, Fact, Failed, Forgotten, History, Saved, Started, decode, run_stream
from bb.stores.base import Store
from bb.testing.clock import ManualClock
from bb.testing.effects import Effects
from bb.testing.mock_store import Crash
from bb.testing.process import RUN_ID, Answers, Process, Ran, Strike, World, current, with_models
from bb.testing.report import CrashReport, Finding, NotCrashSafe, Row

_WIDE: Final = 120  # characters of a value in a report
_LIVES: Final = 4  # processes after the last one that was to die: a run that needs more does not come to its end

Key = tuple[str, str]
"""A place and what is done there."""


@frozen
class Read:
    """How a run looked from outside: its outcome, and the text as it was streamed (None: nobody streamed it)."""

    outcome: Outcome
    text: str | None


@define(eq=False)
class Case:
    """One story: processes that came one after the other, and what the last one read."""

    name: str
    world: World = field(factory=World)
    lives: list[Process] = field(factory=list)
    cuts: int = 0
    """How often the run was cut off."""
    undecided: set[str] = field(factory=set)
    """The races that had no winner on record when an append went wrong."""
    read: Read | None = None
    found: list[str] = field(factory=list)

    def counts(self) -> Counter[Key]:
        """How often each effect ran."""
        return Counter((ran.path, ran.what) for ran in self.world.effects)


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
        stream: bool,
        patience: float,
    ) -> None:
        if not is_durable(flow):
            raise WiringError(f"no part of flow {flow_id(flow)!r} is durable", remedy="call .durable() on it")
        self.flow = flow
        self.reference: Case = Case("no crash")
        self.cases: list[Case] = []
        self._input = input
        self._app = app if app is not None else _app
        self._effects = effects
        self._params = params
        self._stream = stream
        self._patience = patience
        self._answers: Answers = {}
        parts = list(walk(flow))
        self._durable = [path for path, part in parts if isinstance(part, DurableFlow)]
        self._races = [path for path, part in parts if isinstance(body_of(part), One)]

    # --- lives ---

    def begin(self, name: str) -> Case:
        """A new case, in a new world."""
        if self._effects is not None:
            self._effects.reset()
        case = Case(name)
        self.cases.append(case)
        return case

    def process(self, case: Case, strike: Strike | None = None) -> tuple[Process, asyncio.Task[Read]]:
        """Start a process that runs the flow, or goes on with it."""
        process = Process(case.world, self._answers, strike)
        case.lives.append(process)
        context = copy_context()
        context.run(current.set, process)
        return process, asyncio.get_running_loop().create_task(self._live(process), context=context)

    async def _live(self, process: Process) -> Read:
        app = self._app(process)
        process.instrument(app)
        flow = with_models(self.flow, process.watched)
        if not self._stream:
            return Read(await app.run(flow, self._input, run_id=RUN_ID, params=self._params), None)
        given: InputLike | Literal[Resume.RESUME] = self._input
        try:
            while True:
                try:
                    return await self._streamed(app, flow, given)
                except StreamBroken:
                    given = RESUME  # as a client does: reconnect by the run id
        finally:
            if process.dead and (live := app._runner.live.get(RUN_ID)) is not None:
                live.interrupt()
                await live.wait_done(1.0)

    async def _streamed(self, app: App, flow: AnyFlow, given: InputLike | Literal[Resume.RESUME]) -> Read:
        params = None if given is RESUME else self._params
        async with app.stream(flow, given, run_id=RUN_ID, params=params, detach=True) as stream:
            text = "".join([chunk async for chunk in stream])
            return Read(await stream.outcome(), text)

    async def ended(self, case: Case, process: Process, task: asyncio.Task[Read]) -> Read | None:
        """Wait until the process has ended the run (what it read), or has died or given up (None)."""
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
        history, doubles = await self._log(case)
        case.found += doubles
        if history.ended is None or history.ended.status != "finished":
            case.found.append("the log does not say that it finished")
        case.found += self._misread(case, case.read)
        case.found += self._miscounted(case, history, exactly=exactly)
        case.found += await self._replayed(case, case.read)

    def _misread(self, case: Case, read: Read) -> Iterator[str]:
        expected = self.reference.read
        outcome = read.outcome
        if read.text is not None and read.text != outcome.answer:
            yield f"{_short(read.text)} was streamed, but the answer is {_short(outcome.answer)}"
        if expected is None or case.undecided:
            return  # a race that had no winner yet may be won by another
        if difference := _difference(outcome, expected.outcome):
            yield difference

    def _miscounted(self, case: Case, history: History, *, exactly: bool) -> Iterator[str]:
        usual, counts = self.reference.counts(), case.counts()
        saved = {path for scope in history.scopes.values() for path in scope.saved}
        for (path, what), runs in usual.items():
            if counts[path, what] == 0 and (path in saved or not self._in_race(path)):
                yield f"{what} at {path or 'no place'} never ran"
            most = runs if exactly else runs * (1 + case.cuts)
            if counts[path, what] > most and not self._in_race(path):
                yield f"{what} at {path or 'no place'} ran {counts[path, what]} times, not at most {most}"

    async def _replayed(self, case: Case, read: Read) -> list[str]:
        """What goes wrong when the finished run is run again."""
        found: list[str] = []
        effects, length = len(case.world.effects), case.world.length
        process, task = self.process(case)
        again = Case(case.name, case.world)
        replay = await self.ended(again, process, task)
        found += [f"a replay: {what}" for what in again.found]
        new = {(ran.what, ran.path) for ran in case.world.effects[effects:] if self._is_kept(ran)}
        found += [f"a replay ran {what} at {path}" for what, path in sorted(new)]
        del case.world.effects[effects:]
        if process.appended or case.world.length != length:
            found.append(f"a replay appended {', '.join(described(*one) for one in process.appended)}")
        if replay is not None:
            if replay.text is not None and replay.text != replay.outcome.answer:
                found.append(
                    f"a replay streamed {_short(replay.text)}, but the answer is {_short(replay.outcome.answer)}"
                )
            if difference := _difference(replay.outcome, read.outcome):
                found.append(f"a replay: {difference}")
        return found

    async def _log(self, case: Case) -> tuple[History, list[str]]:
        """The state at the end, and what the log holds twice or shows to have run though it was kept."""
        history = History(RUN_ID)
        found: list[str] = []
        effects = deque(sorted(case.world.effects, key=lambda ran: ran.log))
        for record in await case.world.store.read(run_stream(RUN_ID)):
            while effects and effects[0].log <= history.length:
                found += self._ran_though_kept(effects.popleft(), history)
            fact = decode(record, "a record")
            if again := _known(fact, history):
                found.append(f"the log holds a second {again}")
            history.add(fact)
        for ran in effects:
            found += self._ran_though_kept(ran, history)
        return history, found

    def _ran_though_kept(self, ran: Ran, history: History) -> Iterator[str]:
        if ran.process.lapsed:
            return  # it could not know what its successor had saved
        for scope in history.scopes.values():
            if ran.path in scope.saved:
                yield f"{ran.what} at {ran.path} ran though its savepoint was in the log"
            elif ran.entry in scope.entries.get(ran.path, {}):
                yield f"{ran.what} at {ran.path} ran though {_entry(ran.entry)} was in the log"

    async def _judge_races(self, case: Case) -> None:
        """Note the races that the reference decided, and this case had not when something went wrong."""
        if not self._races:
            return
        wanted = await _decided(self.reference.world)
        for process in case.lives:
            if process.struck_at is not None:
                case.undecided |= wanted - await _decided(case.world, process.struck_at)

    def _is_kept(self, ran: Ran) -> bool:
        """Whether an effect is at a place that a durable flow keeps."""
        if not ran.path:
            return isinstance(self.flow, DurableFlow)
        return any(ran.path == path or ran.path.startswith(path + "/") for path in self._durable)

    def _in_race(self, path: str) -> bool:
        return any(path.startswith(race + "/") for race in self._races)

    # --- the report ---

    async def refer(self) -> Case:
        """Run the flow undisturbed: what every other case is measured by.

        Raises:
            BBError: the flow fails without any crash.
            NotCrashSafe: it does not come to an end even then.
        """
        case = self.begin("no crash")
        process, task = self.process(case)
        case.read = await self.ended(case, process, task)
        if case.read is None:
            if task.done() and not task.cancelled() and isinstance(task.exception(), BBError):
                await task
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
        )

    def verdict(self) -> CrashReport:
        """The report.

        Raises:
            NotCrashSafe: something came out wrong.
        """
        report = self.report()
        if report.findings:
            raise NotCrashSafe(report)
        return report


def _difference(now: Outcome, was: Outcome) -> str:
    """The first thing in which two outcomes differ; "" when there is none."""
    for name in ("answer", "value", "messages"):
        if getattr(now, name) != getattr(was, name):
            return f"the {name} is {_short(getattr(now, name))}, not {_short(getattr(was, name))}"
    return ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _WIDE else f"{text[: _WIDE // 2]} … {text[-_WIDE // 2 :]}"


def described(stream: str, records: tuple[bytes, ...]) -> str:
    """An append in words."""
    if stream != run_stream(RUN_ID):
        return stream.split("/", maxsplit=1)[0]
    facts = [_described(record) for record in records]
    return " + ".join(facts if len(facts) <= 2 else [*facts[:2], f"{len(facts) - 2} more"])


def _described(record: bytes) -> str:
    match decode(record, "a record"):
        case Started():
            return "start"
        case Entered(path=path):
            return f"enter {path}"
        case Saved(path=path):
            return f"save {path}"
        case Decided(path=path, choice=choice):
            return f"decide {path}: {choice}"
        case Entry(path=path, key=key):
            return f"{_entry(key)} of {path}"
        case Forgotten(path=path):
            return f"forget {path}"
        case Failed(path=path):
            return f"failure of {path}"
        case Ended(status=status):
            return f"end: {status}"
        case _:
            return "take up"


def _entry(key: str) -> str:
    """The kind and the name of a journal entry."""
    return " ".join(key.split("/")[1:3])


def _known(fact: Fact, history: History) -> str:
    """What a fact says that the log said before; "" when it is news."""
    match fact:
        case Started() if history.started is not None:
            return "start"
        case Saved(scope=number, path=path) if path in history.scopes[number].saved:
            return f"savepoint of {path}"
        case Decided(scope=number, path=path) if path in history.scopes[number].decided:
            return f"decision at {path}"
        case Entry(scope=number, path=path, key=key) if key in history.scopes[number].entries.get(path, {}):
            return f"{_entry(key)} of {path}"
        case _:
            return ""


async def _decided(world: World, length: int | None = None) -> set[str]:
    """The races that have a winner in the log, or in its first records."""
    history = History(RUN_ID)
    history.read((await world.store.read(run_stream(RUN_ID)))[:length])
    return {path for scope in history.scopes.values() for path in scope.decided}


async def _bury(task: asyncio.Task[Read]) -> None:
    """Let the remains of a dead process unwind; whatever they still try is refused."""
    task.cancel()
    await asyncio.wait({task}, timeout=5.0)
    if task.done() and not task.cancelled() and (error := task.exception()) is not None:
        assert isinstance(error, Crash | Exception)


def _app(store: Store) -> App:
    return App(store=store, clock=ManualClock(datetime.now(UTC), auto=True))
