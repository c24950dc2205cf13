"""One process of an exploration: what it sees of the world, and how it dies."""

from __future__ import annotations

import asyncio
import builtins
from asyncio import Future
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import ContextVar
from typing import Final, Literal, TypeAlias

from attrs import define, evolve, field, frozen

from bb.app import App
from bb.engine.keeper import Keeper
from bb.errors import Fenced, StoreError
from bb.flows.tree import AnyFlow, Chain, DurableFlow, Flow, NamedFlow, Notify, Respond, body_of
from bb.log import run_stream
from bb.models.base import Chunk, Model, ModelRequest
from bb.place import current_place
from bb.stores.base import Lease, StreamInfo
from bb.testing.mock_store import Crash, MockStore
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


@frozen
class Strike:
    """Append number `at` of a process (from 1) goes wrong in this way."""

    at: int
    when: When


@frozen
class Ran:
    """One effect: what and where, within which journal entry, and how many records the run's log had by then."""

    what: str
    path: str
    entry: str
    log: int
    process: Process


@define(eq=False)
class World:
    """What outlives the processes of one case: the store, and what was done."""

    store: MockStore = field(factory=MockStore)
    length: int = 0
    """Records in the run's stream."""
    effects: list[Ran] = field(factory=list)
    answered: dict[tuple[str, str], int] = field(factory=dict)


Answers: TypeAlias = dict[tuple[str, str], list[list[Chunk | Exception]]]
"""What models have answered, by path and journal entry: the same question gets the same answer in every case."""

current: ContextVar[Process | None] = ContextVar("bb_testing_process", default=None)


class Process:
    """The store and the tracer that one process has, until it dies. Then every use of them raises `Crash`, for good."""

    def __init__(self, world: World, answers: Answers, strike: Strike | None = None) -> None:
        self.appended: builtins.list[tuple[str, tuple[bytes, ...]]] = []
        self.struck_at: int | None = None
        """How many records the run's log had when an append went wrong: from then on time runs differently."""
        self.lapsed = False
        """Whether another may hold the lease of what this one runs."""
        self.dead = False
        self.died = asyncio.Event()
        self.held = asyncio.Event()
        self._world = world
        self._answers = answers
        self._strike = strike
        self._hanging: builtins.list[Future[int]] = []
        self._go: Callable[[], object] = lambda: None

    def instrument(self, app: App) -> None:
        """Look over the shoulder of an app: there is no public way, since no program should need one."""
        runner = app._runner
        runner._tracer = self if runner._tracer is None else Tee(runner._tracer, self)
        runner._model = self.watched(runner._model)
        runner.leases.keeper = _NoKeeper(runner.store, 1.0)

    def watched(self, model: Model | None) -> Model | None:
        """The same model, its answers counted and kept."""
        return None if model is None else _Watched(model, self)

    def ran(self, what: str, path: str, entry: str = "") -> None:
        """Note an effect.

        Raises:
            Crash: the process is dead, so it has none.
        """
        self._alive()
        self._world.effects.append(Ran(what, path, entry, self._world.length, self))

    def die(self) -> None:
        """Let the process die now."""
        self.dead = True
        self.died.set()
        for future in self._hanging:
            _fail(future, _crash())

    def let_go(self) -> None:
        """Carry out the append that is held."""
        self._go()

    # --- the tracer ---

    def event(self, event: Event, /) -> None:
        if not self.dead:
            match event.kind:
                case "flow.start":
                    self.ran("agents", event.path)
                case "notify":
                    self.ran("notify", event.path)
                case _:
                    pass

    # --- the store ---

    def append(self, stream: str, expected: int, records: Sequence[bytes], lease: Lease | None = None) -> Future[int]:
        loop = asyncio.get_running_loop()
        reply: Future[int] = loop.create_future()
        if self.dead:
            _fail(reply, _crash())
            return reply
        self.appended.append((stream, tuple(records)))
        strike = self._strike
        when = strike.when if strike is not None and strike.at == len(self.appended) else None

        def write() -> StoreError | Fenced | None:
            """Write, and answer a turn of the loop later, as a store does that is not in memory."""
            done = self._world.store.append(stream, expected, records, lease)
            error = done.exception()
            if error is None:
                if stream == run_stream(RUN_ID):
                    self._world.length = done.result()
                if when in {None, "held"}:
                    loop.call_soon(_give, reply, done.result())
                return None
            loop.call_soon(_fail, reply, error)
            assert isinstance(error, StoreError | Fenced)
            return error

        written = when in {None, "after", "written", "lost"} and write() is None
        if when is not None:
            self.struck_at = self._world.length
        match when:
            case None:
                pass
            case "before" | "after":
                self.die()
                _fail(reply, _crash())
            case "unwritten" | "written":
                self._hanging.append(reply)
                self._doom = loop.create_task(self._die_soon())
            case "lost" | "refused":
                if written or when == "refused":
                    loop.call_soon(_fail, reply, StoreError("the connection broke, as scripted"))
            case "held":
                self._go = write
                self.held.set()
        return reply

    async def read(self, stream: str, start: int = 0) -> builtins.list[bytes]:
        self._alive()
        return await self._world.store.read(stream, start)

    async def list(self, prefix: str) -> builtins.list[StreamInfo]:
        self._alive()
        return await self._world.store.list(prefix)

    async def delete(self, stream: str, lease: Lease | None = None, *, leave: Sequence[bytes] = ()) -> None:
        self._alive()
        await self._world.store.delete(stream, lease, leave=leave)

    async def acquire(self, name: str, owner: str, seconds: float) -> Lease | None:
        self._alive()
        return await self._world.store.acquire(name, owner, seconds)

    async def renew(self, lease: Lease, seconds: float) -> bool:
        self._alive()
        return await self._world.store.renew(lease, seconds)

    async def release(self, lease: Lease) -> None:
        self._alive()
        await self._world.store.release(lease)

    async def holder(self, name: str) -> str | None:
        self._alive()
        return await self._world.store.holder(name)

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
        key = (place.path, place.entry) if place is not None else ("", "")
        self.ran("model", *key)
        asked = self._world.answered[key] = self._world.answered.get(key, 0) + 1
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


def with_models(flow: AnyFlow, wrap: Callable[[Model | None], Model | None]) -> AnyFlow:
    """The same flow with every model in it wrapped; models do not count in the identity of a flow."""
    match flow:
        case NamedFlow(body=body) | DurableFlow(body=body):
            return evolve(flow, body=body_of(with_models(body, wrap)))
        case Flow(agents=agents, model=model):
            watched = tuple(evolve(agent, model=wrap(agent.model)) for agent in agents)
            return evolve(flow, agents=watched, model=wrap(model))
        case Chain(steps=steps, model=model):
            return evolve(flow, steps=tuple(with_models(step, wrap) for step in steps), model=wrap(model))
        case Respond() | Notify():
            return flow
        case _:
            return type(flow)(*(with_models(member, wrap) for member in flow.members), model=wrap(flow.model))


def _crash() -> Crash:
    return Crash("the process died, as scripted")


def _give(future: Future[int], value: int) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: Future[int], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # a dead process does not complain that nobody looked
