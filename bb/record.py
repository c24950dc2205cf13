"""`Record`: equality, hash and repr of attrs classes, worked out when they are asked for.

attrs writes and compiles the three for each class, which for all kinds of flows and facts would be most of the time that
`import bb` takes. A class that is compared or shown seldom is `@frozen(eq=False, repr=False)` and has these instead.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from attrs import fields


class Record:
    """Two records are equal if they are of one class and their fields are, but for those that do not count."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        if self is other:
            return True
        for name, key in _counting(cast(Any, type(self))):  # one by one: deep trees have little stack to spare
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is not theirs and (mine != theirs if key is None else key(mine) != key(theirs)):
                return False
        return True

    def __hash__(self) -> int:
        return hash((type(self), *_compared(self)))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in _shown(cast(Any, type(self))))
        return f"{type(self).__qualname__}({shown})"


def _compared(record: object) -> tuple[object, ...]:
    return tuple(
        getattr(record, name) if key is None else key(getattr(record, name))
        for name, key in _counting(cast(Any, type(record)))
    )


@cache
def _counting(cls: type[Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((part.name, part.eq_key) for part in fields(cls) if part.eq)


@cache
def _shown(cls: type[Any]) -> tuple[str, ...]:
    return tuple(part.name for part in fields(cls) if part.repr)
