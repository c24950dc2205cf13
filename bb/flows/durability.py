"""Nodes that remember beyond the run, that wait, and that clean up."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, final

from attrs import field, frozen

from bb.errors import WiringError
from bb.flows.base import Nameable, flat, model_field, refuse_twins
from bb.flows.calls import AiSegment, Call
from bb.flows.expressions import Valued, as_optional_value
from bb.flows.statement import Statement, bodies_field, body_field
from bb.flows.types import as_optional_text, as_optional_type, as_span, as_text
from bb.models.base import Model
from bb.record import Record

if TYPE_CHECKING:
    from bb.flows.expressions import Value
    from bb.flows.tree import AnyFlow


def _call_or_segment(value: Call[Any] | AiSegment) -> Call[Any] | AiSegment:
    if not isinstance(value, Call | AiSegment):
        raise WiringError(f"Memo was given {value!r}", remedy="give a call of an op, or an AiSegment")
    return value


@final
@frozen(eq=False, repr=False)
class Memo(Nameable):
    """Compute a call once per session: equal calls with equal arguments come to the same value."""

    kind: ClassVar[str] = "memo"
    name: str = field(converter=as_text)
    call: Call[Any] | AiSegment = field(converter=_call_or_segment)
    type: str | None = field(default=None, converter=as_optional_type)
    effect: str | None = field(default=None, converter=as_optional_text)
    model: Model | None = model_field()


@final
@frozen(eq=False, repr=False)
class Peek(Nameable, Valued):
    """The value of a symbol, None when it is unbound."""

    kind: ClassVar[str] = "peek"
    name: str = field(converter=as_text)
    model: Model | None = model_field()


@final
@frozen(eq=False, repr=False)
class Await(Nameable):
    """Suspend until an event of this source comes, and bind what it brought; with a false `when`, pass by."""

    kind: ClassVar[str] = "await"
    source: str = field(converter=as_text)
    bind: str | None = field(default=None, converter=as_optional_text)
    type: str | None = field(default=None, converter=as_optional_type)
    when: Value | None = field(default=None, converter=as_optional_value)
    model: Model | None = model_field()


@final
@frozen(eq=False, repr=False)
class Checkpoint(Nameable):
    """A durable position: a later run of this flow in the session, with the same input, starts after it."""

    kind: ClassVar[str] = "checkpoint"
    label: str = field(converter=as_text)
    model: Model | None = model_field()


@final
@frozen(init=False, eq=False, repr=False)
class Once(Statement):
    """Run the body to success once per session. `bind` names what it came to."""

    kind: ClassVar[str] = "once"
    label: str = field(converter=as_text)
    body: tuple[AnyFlow, ...] = body_field()
    bind: str | None = field(default=None, converter=as_optional_text)
    model: Model | None = model_field()

    def __init__(self, label: str, *body: AnyFlow, bind: str | None = None, model: Model | None = None) -> None:
        self._made(label, body, bind, model=model)

    def __attrs_post_init__(self) -> None:
        refuse_twins("Once", self.body)


@final
@frozen(init=False, eq=False, repr=False)
class Throttle(Statement):
    """Fail with `Throttled` once `max` calls were dispatched under this name within `per`, in the session."""

    kind: ClassVar[str] = "throttle"
    name: str = field(converter=as_text)
    max: int
    per: timedelta = field(converter=as_span)
    body: tuple[AnyFlow, ...] = body_field()
    model: Model | None = model_field()

    def __init__(self, name: str, *body: AnyFlow, max: int, per: timedelta, model: Model | None = None) -> None:
        self._made(name, max, per, body, model=model)

    def __attrs_post_init__(self) -> None:
        refuse_twins("Throttle", self.body)


@final
@frozen(init=False, eq=False, repr=False)
class Debounce(Statement):
    """The body after a pause, unless another of this name in the session came meanwhile: the last one survives."""

    kind: ClassVar[str] = "debounce"
    name: str = field(converter=as_text)
    wait: timedelta = field(converter=as_span)
    body: tuple[AnyFlow, ...] = body_field()
    model: Model | None = model_field()

    def __init__(self, name: str, *body: AnyFlow, wait: timedelta, model: Model | None = None) -> None:
        self._made(name, wait, body, model=model)

    def __attrs_post_init__(self) -> None:
        refuse_twins("Debounce", self.body)


@final
@frozen(init=False, eq=False, repr=False)
class Scope(Statement):
    """Acquire, bind, run the body, and clean up whatever became of it."""

    kind: ClassVar[str] = "scope"
    acquire: Value | None = field(converter=as_optional_value)
    bind: str | None = field(converter=as_optional_text)
    body: tuple[AnyFlow, ...] = body_field()
    finally_: tuple[AnyFlow, ...] = bodies_field()
    model: Model | None = model_field()

    def __init__(
        self,
        *body: AnyFlow,
        acquire: object = None,
        bind: str | None = None,
        finally_: AnyFlow | Iterable[AnyFlow] = (),
        model: Model | None = None,
    ) -> None:
        self._made(acquire, bind, body, finally_, model=model)

    def __attrs_post_init__(self) -> None:
        refuse_twins("Scope", (*self.body, *self.finally_))


@final
@frozen(init=False, eq=False, repr=False)
class Step(Record):
    """One step of a saga, with what compensates for it."""

    body: tuple[AnyFlow, ...] = body_field()
    undo: tuple[AnyFlow, ...] = bodies_field()

    def __init__(self, *body: AnyFlow, undo: AnyFlow | Iterable[AnyFlow] = ()) -> None:
        self.__attrs_init__(flat(body), flat(undo))

    def __attrs_post_init__(self) -> None:
        refuse_twins("a saga step", (*self.body, *self.undo))


def _steps(steps: Iterable[Step]) -> tuple[Step, ...]:
    kept = tuple(steps)
    for step in kept:
        if not isinstance(step, Step):
            raise WiringError(f"Saga was given {step!r}", remedy="give bb.Step(..., undo=...) values")
    return kept


@final
@frozen(init=False, eq=False, repr=False)
class Saga(Nameable):
    """Steps in order; when one fails for good, what the finished ones did is undone, the last first."""

    kind: ClassVar[str] = "saga"
    steps: tuple[Step, ...] = field(converter=_steps)
    model: Model | None = model_field()

    def __init__(self, *steps: Step, model: Model | None = None) -> None:
        self.__attrs_init__(steps, model=model)

    def __attrs_post_init__(self) -> None:
        refuse_twins("Saga", (flow for step in self.steps for flow in (*step.body, *step.undo)))
