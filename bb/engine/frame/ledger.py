"""The journal as one handler sees it: asks, tool runs and steps, each remembered by its request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeVar, cast

from bb.codec import Codec
from bb.engine.frame.context import Context
from bb.errors import Closed, NotSavable, root_of
from bb.messages import NO_USAGE, Usage
from bb.place import Place, Work, here, leave
from bb.redaction import redacted
from bb.trace import EventKind

T = TypeVar("T")


class _Kinds(NamedTuple):
    """The events of one kind of entry."""

    start: EventKind
    end: EventKind
    error: EventKind
    cached: EventKind


_KINDS: Final[Mapping[str, _Kinds]] = {
    "ask": _Kinds("model.start", "model.end", "model.error", "model.cached"),
    "tool": _Kinds("tool.start", "tool.end", "tool.error", "tool.cached"),
    "step": _Kinds("step.start", "step.end", "step.error", "step.cached"),
}


def entry_of(key: str) -> tuple[EventKind, str]:
    """What the key of an entry says: the event that tells that it was done, and the name it was given."""
    _, kind, rest = key.split("/", 2)
    return _KINDS[kind].end, rest.rsplit("/", 2)[0]


class HandlerLedger:
    """What one handler remembers in one attempt; closed when the handler returns."""

    def __init__(self, ctx: Context, path: str, agent: int, flow: str) -> None:
        self.usage = NO_USAGE
        self.opened: tuple[str, ...] = ()
        self._ctx = ctx
        self._path = path
        self._agent = agent
        self._flow = flow
        self._seen: dict[str, int] = {}
        self._failed: dict[str, list[int]] = {}
        self._last_asks: dict[str, int] = {}
        """The answers the handler looks at now, each with the task that asked."""
        self._asking = 0
        self._closed = False

    async def entry(
        self, kind: str, name: str, request: object, run: Callable[[], Awaitable[T]], work: Work | None = None
    ) -> T:
        self._check()
        work = work or Work(name)
        name = redacted(name)  # it is part of what is stored
        scope = self._ctx.scope
        asks = int(kind == "ask")
        task = id(asyncio.current_task()) if asks else 0
        if asks:
            self._go_on(task)
        base = f"{self._agent}/{kind}/{name}"
        if scope is not None:
            base += f"/{_fingerprint(scope.journal.codec, kind, name, request, self._path)}"
        nth = self._number(base)
        key = f"{base}/{nth}"
        if scope is None:
            return await self._run(kind, key, run, work)
        known, plain = scope.entry(self._path, key)
        if not known:
            self._asking += asks
            try:
                value = await self._run(kind, key, run, work)
            except BaseException:  # the handler may try again: that is the same entry, and a replay must find it
                self._failed.setdefault(base, []).append(nth)
                raise
            finally:
                self._asking -= asks
            self._check()
            try:
                plain = scope.journal.codec.dump(value, f"{kind} {name!r}")
            except NotSavable as error:
                error.path, error.flow = self._path, scope.flow
                raise
            await scope.enter(self._path, key, plain)
        elif self._ctx.run.tracer is not None:
            self._tell(_KINDS[kind].cached, key, work)
        if asks:
            self._last_asks[key] = task if known else 0
        return cast(T, scope.journal.codec.load(plain))

    def _go_on(self, task: int) -> None:
        """A new question: the answers before were good enough to go on from.

        Not those to questions asked beside it: one that is replayed is answered before the next is even asked.
        """
        if not self._asking:
            beside = {key: by for key, by in self._last_asks.items() if by and by != task}
            self._last_asks = beside

    def _number(self, base: str) -> int:
        """Which among equal entries this is; one that failed gives its number to the next."""
        if failed := self._failed.get(base):
            return failed.pop()
        nth = self._seen[base] = self._seen.get(base, 0) + 1
        return nth

    def place(self) -> Place:
        """Where the handler is at work."""
        return self._place("")

    def _place(self, entry: str) -> Place:
        run = self._ctx.run
        return Place(run.run_id, self._path, self._agent, entry, run.spent)

    def spend(self, usage: Usage) -> None:
        self.usage = self.usage + usage
        self._ctx.run.spend(usage)

    def open(self, name: str) -> None:
        """Open a gate of the run; a replay has to open it again."""
        self.opened += (name,)
        self._ctx.run.gates.open(name)

    async def wait(self, name: str) -> None:
        """Wait at a gate of the run."""
        await self._ctx.run.gates.wait(name)

    def close(self) -> None:
        """Refuse everything from now on."""
        self._closed = True

    async def forget_last_answer(self) -> None:
        """The handler raised on the last answer it got, or on one of several asked for at once: a retry asks anew."""
        if self._ctx.scope is not None:
            for key in self._last_asks:
                await self._ctx.scope.forget(self._path, key)

    async def _run(self, kind: str, key: str, run: Callable[[], Awaitable[T]], work: Work) -> T:
        token = here.set(lambda: self._place(key))
        try:
            return await (run() if self._ctx.run.tracer is None else self._traced(_KINDS[kind], key, run, work))
        finally:
            leave(token)

    async def _traced(self, kinds: _Kinds, key: str, run: Callable[[], Awaitable[T]], work: Work) -> T:
        clock = work.clock = self._ctx.run.clock.monotonic
        self._tell(kinds.start, key, work)
        began = clock()
        try:
            value = await run()
        except BaseException as error:  # an answer that nobody waits for any more is cancelled, and ends as well
            work.error = type(root_of(error)).__name__
            raise
        finally:
            self._tell(kinds.error if work.error else kinds.end, key, work, began, clock())
        return value

    def _tell(self, kind: EventKind, key: str, work: Work, began: float = 0.0, ended: float = 0.0) -> None:
        self._ctx.run.emit(
            kind,
            self._path,
            self._flow,
            redacted(work.name),
            ended - began,
            None if work.usage is NO_USAGE else work.usage,
            error=work.error,
            entry=key,
            provider=work.provider,
            first=work.heard - began if work.heard is not None else 0.0,
        )

    def _check(self) -> None:
        if self._closed:
            raise Closed("the handler has returned", path=self._path, remedy="await what you start inside the handler")
        self._ctx.lane.begin()
        if self._ctx.scope is not None:
            self._ctx.scope.journal.check()


def _fingerprint(codec: Codec, kind: str, name: str, request: object, path: str) -> str:
    try:
        return codec.fingerprint(request)
    except NotSavable as error:
        raise NotSavable(
            f"the arguments of {kind} {name!r} are not plain data: {error.message}",
            part=error.part,
            path=path,
            remedy="pass what tells this request from others, and let the function close over the rest",
        ) from error
