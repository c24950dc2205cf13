"""One process of an exploration: what it sees of the world, and how it dies."""

from __future__ import annotations

import asyncio
import builtins
from asyncio import Future
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

from attrs import define, evolve, field, fields, frozen

from bb.agents.agent import Agent
from bb.app import App
from bb.engine.runs.keeper import Keeper
from bb.errors import Fenced, StoreError
from bb.flows.base import Chainable, changed
from bb.flows.expressions import Lit, Valued
from bb.flows.tree import Step
from bb.log.streams import RUNS
from bb.models.base import Chunk, Model, ModelRequest
from bb.place import Place, current_place
from bb.stores.base import Lease, StreamInfo
from bb.testing.mock_store import Crash, MockStore, fail, give
from bb.trace import Event, Tee

When: TypeAlias = Literal["before", "unwritten", "written", "after", "lost", "refused", "held"]
"""How an append goes wrong.

before, after: the process dies at once, with nothing written, or with everything written.
unwritten, written: the same, but the store takes its time, and what runs beside it goes on for a while before the process dies.
lost, refused: the process lives and is told of an error, though all was written, or because nothing was.
held: the append waits until the test lets it go.
"""

CRASHES: Final[tuple[When, ...]] = ("before", "unwritten", "written", "after", "lost", "refused")

_TURNS: Final = 12  # turns of the loop that what runs beside a slow append gets before the process dies

RUN_ID: Final = "explored"

T = TypeVar("T")


@frozen
class Strike:
    """Append number `at` of a process (from 1) goes wrong in this way."""

    at: int
    when: When


@frozen
class Ran:
    """One effect: what, in which run and where, within which journal entry, and how long the run's log was by then."""

    what: str
    run: str
    path: str
    entry: str
    log: int
    process: Process

    @property
    def place(self) -> str:
        """The path; in any run but the first with the run's id before it."""
        return place_in(self.run, self.path)


@define(eq=False)
class World:
    """What outlives the processes of one case: the store, and what was done."""

    store: MockStore = field(factory=MockStore)
    length: Counter[str] = field(factory=Counter)
    """Records in the stream of each run."""
    effects: list[Ran] = field(factory=list)
    answered: Counter[Question] = field(factory=Counter)
    delivered: int = 0
    """How many of the events that are to come from outside have been delivered."""


Question: TypeAlias = tuple[str, str, str]
"""A run, a path in it, and the journal entry there."""

Answers: TypeAlias = dict[Question, list[list[Chunk | Exception]]]
"""What models have answered: the same question gets the same answer in every case."""

current: ContextVar[Process | None] = ContextVar("bb_testing_process", default=None)


class Process:
    """The store and the tracer that one process has, until it dies. Then every use of them raises `Crash`, for good."""

    def __init__(self, world: World, answers: Answers, strike: Strike | None = None) -> None:
        self.appended: builtins.list[tuple[str, tuple[bytes, ...]]] = []
        self.struck_at: Counter[str] | None = None
        """How many records the log of each run had when an append went wrong: from then on time runs differently."""
        self.lapsed = False
        """Whether another may hold the lease of what this one runs."""
        self.dead = False
        self.died = asyncio.Event()
        self.held = asyncio.Event()
        self.world = world
        self._answers = answers
        self._strike = strike
        self._hanging: builtins.list[Future[int]] = []
        self._go: Callable[[], object] = lambda: None

    def instrument(self, app: App) -> None:
        """Look over the shoulder of an app: there is no public way, since no program should need one."""
        runner, walker = app._runner, app._runner.walker
        walker.tracer = self if walker.tracer is None else Tee(walker.tracer, self)
        walker.model = self.watched(walker.model)
        runner.leases.keeper = _NoKeeper(runner.store, 1.0)
        for plan in list(app._flows.plans.values()):
            app._flows.add(with_models(cast("Any", plan.flow), self.watched))

    def watched(self, model: Model | None) -> Model | None:
        """The same model, its answers counted and kept."""
        return None if model is None else _Watched(model, self)

    def ran(self, what: str, place: Place | None) -> None:
        """Note an effect.

        Raises:
            Crash: the process is dead, so it has none.
        """
        self._alive()
        run, path, entry = question(place)
        self.world.effects.append(Ran(what, run, path, entry, self.world.length[run], self))

    def die(self) -> None:
        """Let the process die now."""
        self.dead = True
        self.died.set()
        for future in self._hanging:
            fail(future, _crash())

    def let_go(self) -> None:
        """Carry out the append that is held."""
        self._go()

    # --- the tracer ---

    def event(self, event: Event, /) -> None:
        if not self.dead:
            match event.kind:
                case "flow.start":
                    self.ran(event.detail or "agents", Place(event.run_id, event.path))  # a call says which op
                case "notify":
                    self.ran("notify", Place(event.run_id, event.path))
                case "tool.start":
                    self.ran(event.detail, current_place())  # of a handler or a model stage: the journal entry counts
                case _:
                    pass

    # --- the store ---

    def append(self, stream: str, expected: int, records: Sequence[bytes], lease: Lease | None = None) -> Future[int]:
        loop = asyncio.get_running_loop()
        reply: Future[int] = loop.create_future()
        if self.dead:
            fail(reply, _crash())
            return reply
        self.appended.append((stream, tuple(records)))
        strike = self._strike
        when = strike.when if strike is not None and strike.at == len(self.appended) else None

        def write() -> bool:
            """Write, and answer a turn of the loop later, as a store does that is not in memory; whether it was done."""
            try:
                length = self.world.store._append(stream, expected, records, lease)
            except (StoreError, Fenced) as error:
                loop.call_soon(fail, reply, error)
                return False
            if stream.startswith(RUNS):
                self.world.length[stream.removeprefix(RUNS)] = length
            if when in {None, "held"}:
                loop.call_soon(give, reply, length)
            return True

        written = when in {None, "after", "written", "lost"} and write()
        if when is not None:
            self.struck_at = self.world.length.copy()
        match when:
            case None:
                pass
            case "before" | "after":
                self.die()
                fail(reply, _crash())
            case "unwritten" | "written":
                self._hanging.append(reply)
                self._doom = loop.create_task(self._die_soon())
            case "lost" | "refused":
                if written or when == "refused":
                    loop.call_soon(fail, reply, StoreError("the connection broke, as scripted"))
            case "held":
                self._go = write
                self.held.set()
        return reply

    async def read(self, stream: str, start: int = 0) -> builtins.list[bytes]:
        self._alive()
        return await self.world.store.read(stream, start)

    async def list(self, prefix: str) -> builtins.list[StreamInfo]:
        self._alive()
        return await self.world.store.list(prefix)

    async def delete(self, stream: str, lease: Lease | None = None, *, leave: Sequence[bytes] = ()) -> None:
        self._alive()
        await self.world.store.delete(stream, lease, leave=leave)

    async def acquire(self, name: str, owner: str, seconds: float) -> Lease | None:
        self._alive()
        return await self.world.store.acquire(name, owner, seconds)

    async def renew(self, lease: Lease, seconds: float) -> bool:
        self._alive()
        return await self.world.store.renew(lease, seconds)

    async def release(self, lease: Lease) -> None:
        self._alive()
        await self.world.store.release(lease)

    async def holder(self, name: str) -> str | None:
        self._alive()
        return await self.world.store.holder(name)

    async def close(self) -> None:
        """Nothing to let go of."""

    def _alive(self) -> None:
        if self.dead:
            raise _crash()

    async def _die_soon(self) -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        self.die()

    # --- models ---

    async def answer(self, model: Model, request: ModelRequest) -> AsyncIterator[Chunk]:
        """What the model answered to this ask before, or else answers now."""
        place = current_place()
        key = question(place)
        self.ran("model", place)
        self.world.answered[key] += 1
        asked = self.world.answered[key]
        known = self._answers.setdefault(key, [])
        if asked <= len(known) or (known and not _broke_off(known[-1])):
            for chunk in known[min(asked, len(known)) - 1]:
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk
            return
        chunks: builtins.list[Chunk | Exception] = []
        try:
            async for chunk in model.stream(request):
                chunks.append(chunk)
                yield chunk
        except Exception as error:
            chunks.append(error)
            known.append(chunks)
            raise
        known.append(chunks)


def _broke_off(chunks: Sequence[Chunk | Exception]) -> bool:
    return bool(chunks) and isinstance(chunks[-1], Exception)


class _Watched:
    def __init__(self, model: Model, process: Process) -> None:
        self._model = model
        self._process = process

    def stream(self, request: ModelRequest, /) -> AsyncIterator[Chunk]:
        return self._process.answer(self._model, request)


class _NoKeeper(Keeper):
    """Leases do not run out here, and one thread per process would be many."""

    def hold(self, *_: object, **__: object) -> None:
        pass

    def drop(self, *_: object) -> None:
        pass


def place_in(run_id: str, path: str) -> str:
    """A path; in any run but the first with the run's id before it."""
    return path if run_id == RUN_ID or not path else f"{run_id}: {path}"


def question(place: Place | None) -> Question:
    """What is at work there; outside of a run nothing."""
    return (place.run_id, place.path, place.entry) if place is not None else (RUN_ID, "", "")


def with_models(part: T, wrap: Callable[[Model | None], Model | None]) -> T:
    """The same flow with every model in it wrapped, also in values; models do not count in the identity of a flow."""
    match part:
        case Agent():
            return cast("T", evolve(part, model=wrap(part.model)))
        case tuple():
            return cast("T", tuple(with_models(one, wrap) for one in part))
        case MappingProxyType():
            return cast("T", MappingProxyType({name: with_models(one, wrap) for name, one in part.items()}))
        case Lit():
            return part
        case Chainable() | Valued() | Step():
            parts: Mapping[str, object] = {a.name: getattr(part, a.name) for a in fields(cast("Any", type(part)))}
            return cast(
                "T",
                changed(
                    cast("Any", part),
                    **{
                        name: wrap(cast("Model | None", one)) if name == "model" else with_models(one, wrap)
                        for name, one in parts.items()
                    },
                ),
            )
        case _:
            return part


def _crash() -> Crash:
    return Crash("the process died, as scripted")
