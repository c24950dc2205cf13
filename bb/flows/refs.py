"""`ref`: how builder code names a value that only a run will have, typed as the value it will be."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast, overload

from bb.errors import WiringError
from bb.flows.calls import AiSegment, Call
from bb.flows.durability import Peek
from bb.flows.expressions import Built, Expr, Field, Operator, Var, as_value

T = TypeVar("T")


def _binary(op: Operator, swapped: bool = False) -> Callable[[Ref, object], Ref]:
    def apply(self: Ref, other: object) -> Ref:
        left, right = (other, self) if swapped else (self, other)
        return Ref(Expr(op, (as_value(left), as_value(right))))

    return apply


class Ref(Built):
    """A value under construction. Attributes, items and operators on it build the expression that does the same in a run."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Ref:
        if name.startswith("__"):  # what copy, pickle and the like look for
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, part: str | int) -> Ref:
        inner = as_value(self)
        if isinstance(inner, Field) and not inner.optional:
            return Ref(Field(inner.value, (*inner.path, part)))
        return Ref(Field(inner, (part,)))

    def __bool__(self) -> NoReturn:
        raise WiringError(
            "a reference has no value while a flow is being built",
            remedy="use When(...) for a branch, and & | bb.negate(...) instead of and, or, not",
        )

    def __iter__(self) -> NoReturn:
        raise WiringError("a reference has no items while a flow is being built", remedy="use Each(...)")

    def __str__(self) -> NoReturn:
        raise WiringError(
            "a reference has no text while a flow is being built, so it cannot stand in an f-string or another text",
            remedy='write the name in a plain text, such as "{name}" or "{name.part}", which the run fills in',
        )

    def __format__(self, spec: str) -> NoReturn:
        self.__str__()

    def __repr__(self) -> str:
        return f"ref({as_value(self)!r})"

    __hash__ = None  # type: ignore[assignment]  # equality of references builds an expression
    __eq__ = _binary("==")  # type: ignore[assignment]  # see above
    __ne__ = _binary("!=")  # type: ignore[assignment]
    __lt__ = _binary("<")
    __le__ = _binary("<=")
    __gt__ = _binary(">")
    __ge__ = _binary(">=")
    __add__ = _binary("+")
    __sub__ = _binary("-")
    __mul__ = _binary("*")
    __truediv__ = _binary("/")
    __radd__ = _binary("+", swapped=True)
    __rsub__ = _binary("-", swapped=True)
    __rmul__ = _binary("*", swapped=True)
    __rtruediv__ = _binary("/", swapped=True)
    __and__ = _binary("&&")
    __or__ = _binary("||")
    __rand__ = _binary("&&", swapped=True)
    __ror__ = _binary("||", swapped=True)

    def __neg__(self) -> Ref:
        return Ref(Expr("neg", (as_value(self),)))


if TYPE_CHECKING:

    @overload
    def ref(name: Call[T], /) -> T: ...
    @overload
    def ref(name: Peek | AiSegment, /) -> Any: ...
    @overload
    def ref(name: str, type: type[T], /) -> T: ...
    @overload
    def ref(name: str, /) -> Any: ...


def ref(name: str | Call[Any] | Peek | AiSegment, type: object = None, /) -> Any:
    """What a symbol or a call will be in a run, typed as that: `bb.ref("n", int) > 3`, `send(to=bb.ref("user", User).mail)`.

    `type` is for the type checker; without it the result is `Any`. A call nested as an argument goes through here:
    `charge(bb.ref(price("book")))`.
    """
    return Ref(Var(name) if isinstance(name, str) else as_value(name))


def negate(value: object) -> bool:
    """What `not` would be for a reference: `bb.negate(bb.ref("done", bool))`."""
    return cast(bool, Ref(Expr("!", (as_value(value),))))


def optional(value: T) -> T | None:
    """The same part of a value, or None where it is missing: `bb.optional(bb.ref("user", User).mail)`.

    Raises:
        WiringError: it is no part of a reference.
    """
    inner = as_value(value)
    if not isinstance(inner, Field):
        raise WiringError(f"{value!r} is no part of a reference", remedy="pass bb.ref(name).part")
    return cast("T | None", Ref(Field(inner.value, inner.path, optional=True)))
