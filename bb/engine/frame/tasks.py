"""Running members side by side, with every ending accounted for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeVar

from bb.errors import Interruption

T = TypeVar("T")

LOSER_GRACE: Final = 5.0  # seconds a cancelled member has to end; then it is left behind, its lane closed


async def together(members: Sequence[Coroutine[Any, Any, T]], *, to_end: bool) -> list[T]:
    """Run all members and give their results in order.

    With `to_end` every member runs to its end before the first error in order is raised (an `Interruption` stops the
    others at once); without it the first error cancels the rest. All have ended when this returns.
    """
    tasks: list[asyncio.Future[T]] = [asyncio.ensure_future(member) for member in members]
    waiting = set(tasks)
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
            broken = [task for task in done if _error(task) is not None]
            if broken and (not to_end or any(isinstance(_error(task), Interruption) for task in broken)):
                break
    finally:
        await stop(waiting)
    first: BaseException | None = None
    for task in tasks:
        error = _error(task)
        if error is not None and (first is None or isinstance(error, Interruption)):
            first = error
            if isinstance(error, Interruption):
                break
    if first is not None:
        raise first
    return [task.result() for task in tasks]


async def stop(tasks: AbstractSet[asyncio.Future[T]], grace: float | None = None) -> AbstractSet[asyncio.Future[T]]:
    """Cancel tasks and wait for them, for good or for `grace` seconds; gives back those that would not end."""
    if not tasks:
        return set()
    for task in tasks:
        task.cancel()
    cancelled: asyncio.CancelledError | None = None
    pending: AbstractSet[asyncio.Future[T]] = tasks
    deadline = None if grace is None else asyncio.get_running_loop().time() + grace
    while pending:
        left = None if deadline is None else deadline - asyncio.get_running_loop().time()
        if left is not None and left <= 0:
            break
        try:
            _, pending = await asyncio.wait(pending, timeout=left)
        except asyncio.CancelledError as error:
            cancelled = error
            for task in pending:
                task.cancel()
    for task in tasks - pending:
        _error(task)
    if cancelled is not None:
        raise cancelled
    return pending


def is_cancelled() -> bool:
    """Whether the running task was told to stop; a `CancelledError` without that came from something it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _error(task: asyncio.Future[Any]) -> BaseException | None:
    if not task.done() or task.cancelled():
        return None
    return task.exception()
