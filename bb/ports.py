"""What a program hands to bb to be called: any object with the right methods."""

from __future__ import annotations

from bb.errors import WiringError


def check_port(value: object, what: str, methods: tuple[str, ...], remedy: str) -> None:
    """Raises:
    WiringError: the value is neither None nor an object with these methods; the class of one is none.
    """
    if value is None or (not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in methods)):
        return
    shown = getattr(value, "__name__", None) or repr(value)  # print, not <built-in function print>
    raise WiringError(f"{shown} is no {what}", remedy=remedy)


def check_clock(clock: object) -> None:
    """Raises:
    WiringError: it is neither None nor an object with the methods of a `Clock`.
    """
    methods = ("now", "monotonic", "sleep", "random")
    check_port(clock, "clock", methods, "give an object with now(), monotonic(), sleep(seconds) and random()")
