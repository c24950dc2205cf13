"""Statements that name, say, branch, loop and catch."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias, final

from attrs import field, frozen

from bb.errors import WiringError
from bb.flows.base import Nameable, model_field, refuse_twins
from bb.flows.expressions import as_optional_value, as_value
from bb.flows.statement import Statement, as_names, bodies_field, body_field
from bb.flows.types import as_optional_text, as_optional_type, as_span, as_text
from bb.models.base import Model

if TYPE_CHECKING:
    from bb.flows.expressions import Value
    from bb.flows.tree import AnyFlow

Backoff: TypeAlias = Literal["none", "linear", "exponential"]
BACKOFFS: Final = ("none", "linear", "exponential")


@final
@frozen(eq=False, repr=False)
class Bind(Nameable):
    """Name a value."""

    kind: ClassVar[str] = "bind"
    name: str = field(converter=as_text)
    value: Value = field(converter=as_value)
    type: str | None = field(default=None, converter=as_optional_type)
    effect: str | None = field(default=None, converter=as_optional_text)
    model: Model | None = model_field()


@final
@frozen(eq=False, repr=False)
class Emit(Nameable):
    """Say something: the value's text becomes an assistant message."""

    kind: ClassVar[str] = "emit"
    value: Value = field(converter=as_value)
    model: Model | None = model_field()


@final
@frozen(init=False, eq=False, repr=False)
class When(Statement):
    """Branch on a condition."""

    kind: ClassVar[str] = "when"
    cond: Value = field(converter=as_value)
    then: tuple[AnyFlow, ...] = body_field()
    otherwise: tuple[AnyFlow, ...] = bodies_field()
    model: Model | None = model_field()

    def __init__(
        self, cond: object, *then: AnyFlow, otherwise: AnyFlow | Iterable[AnyFlow] = (), model: Model | None = None
    ) -> None:
        self._made(cond, then, otherwise, model=model)

    def __attrs_post_init__(self) -> None:
        refuse_twins("When", (*self.then, *self.otherwise))


@final
@frozen(init=False, eq=False, repr=False)
class Unless(Statement):
    """The body, if the condition is false."""

    kind: ClassVar[str] = "unless"
    cond: Value = field(converter=as_value)
    body: tuple[AnyFlow, ...] = body_field()
    model: Model | None = model_field()

    def __init__(self, cond: object, *body: AnyFlow, model: Model | None = None) -> None:
        self._made(cond, body, model=model)

    def __attrs_post_init__(self) -> None:
        refuse_twins("Unless", self.body)


@final
@frozen(init=False, eq=False, repr=False)
class Each(Statement):
    """The body for each item of a list, in order; `collect` names the list of what the iterations came to.

    `flat` joins lists one level. Afterwards the item's symbol is what it was before.
    """

    kind: ClassVar[str] = "each"
    item: str = field(converter=as_text)
    items: Value = field(converter=as_value)
    body: tuple[AnyFlow, ...] = body_field()
    collect: str | None = field(default=None, converter=as_optional_text)
    flat: bool = False
    model: Model | None = model_field()

    def __init__(
        self,
        item: str,
        items: object,
        *body: AnyFlow,
        collect: str | None = None,
        flat: bool = False,
        model: Model | None = None,
    ) -> None:
        self._made(item, items, body, collect, flat, model=model)

    def __attrs_post_init__(self) -> None:
        refuse_twins("Each", self.body)


@final
@frozen(init=False, eq=False, repr=False)
class Repeat(Statement):
    """The body up to `max` times, until a condition holds after it."""

    kind: ClassVar[str] = "repeat"
    max: int
    body: tuple[AnyFlow, ...] = body_field()
    until: Value | None = field(default=None, converter=as_optional_value)
    collect: str | None = field(default=None, converter=as_optional_text)
    model: Model | None = model_field()

    def __init__(
        self,
        max: int,
        *body: AnyFlow,
        until: object = None,
        collect: str | None = None,
        model: Model | None = None,
    ) -> None:
        self._made(max, body, until, collect, model=model)

    def __attrs_post_init__(self) -> None:
        refuse_twins("Repeat", self.body)


@final
@frozen(eq=False, repr=False)
class Return(Nameable):
    """Leave the nearest named flow with a value, which is what a run comes to."""

    kind: ClassVar[str] = "return"
    value: Value = field(default=None, converter=as_value)
    model: Model | None = model_field()


@final
@frozen(eq=False, repr=False)
class Assert(Nameable):
    """Fail for good unless the condition holds."""

    kind: ClassVar[str] = "assert"
    cond: Value = field(converter=as_value)
    message: str = field(converter=as_text, default="")
    model: Model | None = model_field()


@final
@frozen(init=False, eq=False, repr=False)
class Try(Statement):
    """The body; if it fails, the handler, with the error's text in the symbol `catch`."""

    kind: ClassVar[str] = "try"
    body: tuple[AnyFlow, ...] = body_field()
    catch: str | None = field(default=None, converter=as_optional_text)
    handler: tuple[AnyFlow, ...] = bodies_field()
    model: Model | None = model_field()

    def __init__(
        self,
        *body: AnyFlow,
        catch: str | None = None,
        handler: AnyFlow | Iterable[AnyFlow] = (),
        model: Model | None = None,
    ) -> None:
        self._made(body, catch, handler, model=model)

    def __attrs_post_init__(self) -> None:
        refuse_twins("Try", (*self.body, *self.handler))


@final
@frozen(init=False, eq=False, repr=False)
class Retry(Statement):
    """The body, up to `max` times until it succeeds. Each attempt starts anew; what failed has been unwound."""

    kind: ClassVar[str] = "retry"
    max: int
    body: tuple[AnyFlow, ...] = body_field()
    backoff: Backoff = "exponential"
    delay: timedelta = field(default=timedelta(milliseconds=500), converter=as_span)
    bind: str | None = field(default=None, converter=as_optional_text)
    model: Model | None = model_field()

    def __init__(
        self,
        max: int,
        *body: AnyFlow,
        backoff: Backoff = "exponential",
        delay: timedelta = timedelta(milliseconds=500),
        bind: str | None = None,
        model: Model | None = None,
    ) -> None:
        self._made(max, body, backoff, delay, bind, model=model)

    def __attrs_post_init__(self) -> None:
        refuse_twins("Retry", self.body)
        if self.backoff not in BACKOFFS:
            raise WiringError(f"{self.backoff!r} is no backoff", remedy=f"use one of {', '.join(BACKOFFS)}")


@final
@frozen(init=False, eq=False, repr=False)
class Timeout(Statement):
    """The body within a time; past it the body is cancelled and unwound, and the flow fails with `TimedOut`."""

    kind: ClassVar[str] = "timeout"
    after: timedelta = field(converter=as_span)
    body: tuple[AnyFlow, ...] = body_field()
    bind: str | None = field(default=None, converter=as_optional_text)
    model: Model | None = model_field()

    def __init__(self, after: timedelta, *body: AnyFlow, bind: str | None = None, model: Model | None = None) -> None:
        self._made(after, body, bind, model=model)

    def __attrs_post_init__(self) -> None:
        refuse_twins("Timeout", self.body)


@final
@frozen(init=False, eq=False, repr=False)
class WithTools(Statement):
    """Only these ops may run inside; nested ones intersect. Anything else is a denial."""

    kind: ClassVar[str] = "with_tools"
    tools: tuple[str, ...] = field(converter=as_names)
    body: tuple[AnyFlow, ...] = body_field()
    bind: str | None = field(default=None, converter=as_optional_text)
    model: Model | None = model_field()

    def __init__(
        self, tools: Iterable[object], *body: AnyFlow, bind: str | None = None, model: Model | None = None
    ) -> None:
        self._made(tools, body, bind, model=model)

    def __attrs_post_init__(self) -> None:
        refuse_twins("WithTools", self.body)


@final
@frozen(eq=False, repr=False)
class Run(Nameable):
    """A registered named flow as a sub-flow: over the chat, with symbols of its own. `bind` names what it came to."""

    kind: ClassVar[str] = "run"
    flow: str = field(converter=as_text)
    bind: str | None = field(default=None, converter=as_optional_text)
    model: Model | None = model_field()


# --- durability ---
