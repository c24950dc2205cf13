"""A run in memory: the task that runs it, and everybody who waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from bb.engine.frame.context import Lane
from bb.engine.frame.delivery import Delivery
from bb.engine.frame.tasks import is_cancelled
from bb.engine.outcome import Outcome
from bb.errors import Fenced, Interrupted, Interruption

T = TypeVar("T")

GRACE: Final = 5.0  # seconds that a cancelled caller waits for its run to save what it has


class Live:
    """One run being run in this process. Callers from any loop or thread join it, and all get the same outcome."""

    def __init__(self, run_id: str, flow: str, fingerprint: str | None, detached: bool) -> None:
        self.run_id = run_id
        self.flow = flow
        self.fingerprint = fingerprint
        self.detached = detached
        self.session_id: str | None = None
        self.tenant: str | None = None
        """Whose it is; until it has begun, whose its first caller says that it is."""
        self.delivery = Delivery(run_id)
        self.cancel_asked = False
        self._lost: Fenced | None = None
        self.lane = Lane()
        self.stopping = False
        self.on_lost: Callable[[Fenced], None] = lambda _: None
        self._joiners = 0
        self._left = False
        self._lock = threading.Lock()
        self._begun: Future[bool] = Future()
        self._done: Future[Outcome] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Outcome] | None = None

    def start(self, main: Coroutine[Any, Any, Outcome]) -> None:
        """Run it as a task of the running loop."""
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(main, name=f"bb run {self.run_id}")
        self._task.add_done_callback(self._ended)

    def begin(self) -> None:
        """It was let in: from now on it can fail, but not be refused."""
        if not self._begun.done():
            self._begun.set_result(True)

    @property
    def has_begun(self) -> bool:
        """Whether it was let in already."""
        return self._begun.done()

    async def begun(self) -> bool:
        """Wait until it was let in; False: it ended before."""
        return await asyncio.wrap_future(_view(self._begun))

    def enter(self) -> bool:
        """Count a joiner in; False when the last one has left already and the run is winding down."""
        with self._lock:
            if not self._left:
                self._joiners += 1
            joined = not self._left
        self.delivery.await_by(self._joiners)
        return joined

    async def outcome(self) -> Outcome:
        """Wait as one of the joiners counted in; when the last of them is cancelled, so is the run.

        Raises:
            Interruption: the run was stopped or lost its lease, by no fault of this joiner.
        """
        left = False
        try:
            if self._loop is asyncio.get_running_loop() and self._task is not None:
                try:
                    return (await asyncio.shield(self._task)).own()
                except asyncio.CancelledError:
                    if is_cancelled() or not self._task.cancelled():
                        raise
                    raise self._interrupted() from None
            return (await asyncio.wrap_future(_view(self._done))).own()
        except asyncio.CancelledError:
            left = True
            if self._leave():
                await self._wind_down()
            raise
        finally:
            if not left:
                self._leave()

    def interrupt(self) -> None:
        """Cancel the task, from any thread."""
        loop, task = self._loop, self._task
        if loop is not None and task is not None and not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)

    def lose(self, error: Fenced) -> None:
        """The lease went to another runner: write nothing more, and stop. From any thread."""
        loop, task = self._loop, self._task
        self._lost = error
        if self.dead and not self.ended:  # it can stop no more, but those who wait for it elsewhere can take it over
            self._done.set_exception(error)
            if not self._begun.done():
                self._begun.set_result(False)
        elif loop is not None and task is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self.on_lost, error)
            loop.call_soon_threadsafe(task.cancel)

    def ask_cancel(self) -> None:
        """Somebody asked for the run to be cancelled for good; asking again changes nothing."""
        if not self.cancel_asked:
            self.cancel_asked = True
            self.lane.halt()  # a handler may swallow the cancellation; what comes after it is refused
            self.interrupt()

    def wait_done(self, seconds: float) -> asyncio.Future[Any]:
        """A future of the running loop that is done when the run has ended or the time is up; it never fails."""

        async def wait() -> None:
            done = asyncio.wrap_future(_view(self._done))
            done.add_done_callback(seen)
            await asyncio.wait([done], timeout=seconds)

        return asyncio.ensure_future(wait())

    @property
    def ended(self) -> bool:
        """Whether the task is over."""
        return self._done.done()

    @property
    def is_local(self) -> bool:
        """Whether it runs in the loop that asks."""
        return self._loop is asyncio.get_running_loop()

    @property
    def dead(self) -> bool:
        """Whether its loop went away without ending it."""
        loop, task = self._loop, self._task
        return loop is not None and loop.is_closed() and task is not None and not task.done()

    def _leave(self) -> bool:
        """Count a joiner out; whether it was the last of a run that nobody else wants."""
        with self._lock:
            self._joiners -= 1
            self._left = left = self._joiners == 0 and not self.detached and not self.ended
        self.delivery.await_by(self._joiners)
        return left

    async def _wind_down(self) -> None:
        """The last caller has gone: wait, for a bounded time, until the run has saved what it has."""
        self.interrupt()
        # some cancel in every turn of the loop until they are obeyed: a caller cancelled twice does not wait for the run
        with contextlib.suppress(asyncio.CancelledError):
            await self.wait_done(GRACE)

    def _ended(self, task: asyncio.Task[Outcome]) -> None:
        self.delivery.close()
        if not self._begun.done():
            self._begun.set_result(False)
        if task.cancelled():
            self._done.set_exception(self._interrupted())
        elif (error := task.exception()) is not None:
            self._done.set_exception(error)
        else:
            self._done.set_result(task.result())

    def _interrupted(self) -> Interruption:
        if self._lost is not None:  # wherever the cancellation met the task, this is why
            return self._lost
        return Interrupted(f"run {self.run_id} was interrupted", flow=self.flow, remedy="run it again with its run id")


def seen(future: asyncio.Future[T]) -> None:
    """Take note of how a run ended, for those who never ask."""
    if not future.cancelled():
        future.exception()  # how it ended is told to those who ask for the outcome


def _view(done: Future[T]) -> Future[T]:
    """A future of one's own: cancelling it does not reach the others."""
    mine: Future[T] = Future()

    def copy(done: Future[T]) -> None:
        if not mine.set_running_or_notify_cancel():
            return
        error = done.exception()
        if error is not None:
            mine.set_exception(error)
        else:
            mine.set_result(done.result())

    done.add_done_callback(copy)
    return mine
