"""What a user handed over: calling it, async or plain, and saying what it is."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable


def is_async(fn: object) -> bool:
    """Whether calling `fn` gives something to await: an async function, or an object whose call is one."""
    call = getattr(fn, "__call__", None)  # noqa: B004 - its kind is asked, not whether it can be called
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(call)


def takes(fn: Callable[..., object], count: int) -> bool:
    """Whether `fn` can be called with that many positional arguments; true where nobody can tell."""
    try:
        inspect.signature(fn).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # it has no signature to read
        return True
    return True


def told(value: object) -> tuple[str, str]:
    """What a value in the wrong place is, and what may help ("" when nothing is plain); a coroutine is closed."""
    if inspect.iscoroutine(value):
        value.close()  # nobody will await it now
        return "a coroutine", "forgot await?"
    name = type(value).__name__
    what = "None" if value is None else f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"
    return what, "forgot await?" if inspect.isawaitable(value) else ""


async def invoke(fn: Callable[..., object], /, *args: object, **kwargs: object) -> object:
    """The result of `fn`: awaited if it is async, else run in a thread that keeps the context variables."""
    result = fn(*args, **kwargs) if is_async(fn) else await asyncio.to_thread(_plainly, fn, args, kwargs)
    return await result if inspect.isawaitable(result) else result


def _plainly(fn: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """Call in a thread; a future cannot hold a `StopIteration`, and whoever waits for it would wait for ever."""
    try:
        return fn(*args, **kwargs)
    except StopIteration as error:
        raise RuntimeError(f"{getattr(fn, '__name__', fn)!r} raised StopIteration") from error
