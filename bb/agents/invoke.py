"""Calling what a user handed over, async or plain."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable


def is_async(fn: object) -> bool:
    """Whether calling `fn` gives something to await: an async function, or an object whose call is one."""
    call = getattr(fn, "__call__", None)  # noqa: B004 - its kind is asked, not whether it can be called
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(call)


async def invoke(fn: Callable[..., object], /, *args: object, **kwargs: object) -> object:
    """The result of `fn`: awaited if it is async, else run in a thread that keeps the context variables."""
    result = fn(*args, **kwargs) if is_async(fn) else await asyncio.to_thread(fn, *args, **kwargs)
    return await result if inspect.isawaitable(result) else result
