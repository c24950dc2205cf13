"""The durability nodes and the statements around them: what a flow does besides letting agents speak."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, TypeAlias, final

from attrs import field, frozen
from typing_extensions import TypeVar

from bb.errors import WiringError
from bb.flows.base import Nameable, flat, model_field, refuse_twins
from bb.flows.expressions import Valued, as_optional_value, as_value
from bb.flows.types import as_optional_text, as_optional_type, as_span, as_text
from bb.models.base import Model
from bb.record import Record

if TYPE_CHECKING:
    from bb.flows.expressions import Value
    from bb.flows.tree import AnyFlow

T = TypeVar("T", default=Any)

Backoff: TypeAlias = Literal["none", "linear", "exponential"]
BACKOFFS: Final = ("none", "linear", "exponential")


def _values(values: Iterable[object]) -> tuple[Value, ...]:
    return tuple(map(as_value, values))


def _names(names: object) -> tuple[str, ...]:
    if isinstance(names, str):
        raise WiringError(f"{names!r} is one name", remedy="give a list of names")
    return tuple(str(getattr(name, "name", name)) for name in names)  # type: ignore[attr-defined]  # whatever can be iterated


class _Statement(Nameable):
    """A node whose bodies are given as further arguments; a body of several statements is a tuple."""

    __slots__ = ()

    def _made(self, *values: object, model: Model | None, **named: object) -> None:
        self.__attrs_init__(*values, **named, model=model)  # type: ignore[attr-defined]  # attrs makes it for init=False


def _body() -> Any:
    return field(converter=flat)


def _bodies() -> Any:
    return field(converter=flat, default=())


# --- operations ---


@final
@frozen(eq=False, repr=False)
class Call(Nameable, Valued, Generic[T]):
    """Dispatch an operation, by its name, through the envelope. Made by calling an op; a value of type `T` in a run.

    `args` is empty, or one value: a record (`Obj`) of the named arguments, or the only argument.
    """

    kind: ClassVar[str] = "call"
    op: str = field(converter=as_text)
    args: tuple[Value, ...] = field(default=(), converter=_values)
    bound: Any = field(default=None, eq=False, repr=False, kw_only=True)
    """The `Op` it was made by; None where only the name is known, as in text."""
    model: Model | None = model_field()


@final
@frozen(init=False, eq=False, repr=False)
class AiSegment(Nameable, Valued):
    """A bounded model stage: a model works towards `goal` with the ops in `tools` only, for at most `max_rounds` rounds.

    Ops that only read run at once, and the model sees their results. All others are proposals: when the model finishes, they
    are put up for one approval and run in order, up to the first that fails. It finishes with an answer that calls nothing,
    or with a tool of the stage itself: `finalize`, or `decide` with a value.

    It comes to a record of `result` (the last text), `reason` and `rounds` (answers used, over all resumes), `decision` if
    there is one, and `actions` (`id`, `op`, `status`, `result` of each proposal) if something was proposed. Reasons are
    `answer`, `decision`, `until`, `exhausted` (no rounds left: what was proposed is skipped) and `refused` (not approved:
    nothing proposed ran).

    `until` names a symbol that the stage is to fill. Already filled, no model is asked; else the model fills it by `decide`
    with a value that is not None and not an empty text, list or record. Only that binds it: bind the record to another name.
    """

    kind: ClassVar[str] = "ai_segment"
    goal: Value = field(converter=as_value)
    tools: tuple[str, ...] = field(default=(), converter=_names)
    max_rounds: int = 8
    until: str | None = field(default=None, converter=as_optional_text)
    bound: tuple[Any, ...] = field(default=(), eq=False, repr=False, kw_only=True)
    """The ops among `tools` that were given as such, not by name."""
    model: Model | None = model_field()

    def __init__(
        self,
        goal: object,
        tools: Iterable[object] = (),
        max_rounds: int = 8,
        until: str | None = None,
        model: Model | None = None,
    ) -> None:
        given = tools if isinstance(tools, str) else tuple(tools)
        bound = tuple(tool for tool in given if not isinstance(tool, str))
        self.__attrs_init__(goal, given, max_rounds, until, bound=bound, model=model)


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


# --- control ---


@final
@frozen(init=False, eq=False, repr=False)
class When(_Statement):
    """Branch on a condition."""

    kind: ClassVar[str] = "when"
    cond: Value = field(converter=as_value)
    then: tuple[AnyFlow, ...] = _body()
    otherwise: tuple[AnyFlow, ...] = _bodies()
    model: Model | None = model_field()

    def __init__(
        self, cond: object, *then: AnyFlow, otherwise: AnyFlow | Iterable[AnyFlow] = (), model: Model | None = None
    ) -> None:
        self._made(cond, then, otherwise, model=model)

    def __attrs_post_init__(self) -> None:
        refuse_twins("When", (*self.then, *self.otherwise))


@final
@frozen(init=False, eq=False, repr=False)
class Unless(_Statement):
    """The body, if the condition is false."""

    kind: ClassVar[str] = "unless"
    cond: Value = field(converter=as_value)
    body: tuple[AnyFlow, ...] = _body()
    model: Model | None = model_field()

    def __init__(self, cond: object, *body: AnyFlow, model: Model | None = None) -> None:
        self._made(cond, body, model=model)

    def __attrs_post_init__(self) -> None:
        refuse_twins("Unless", self.body)


@final
@frozen(init=False, eq=False, repr=False)
class Each(_Statement):
    """The body for each item of a list, in order; `collect` names the list of what the iterations came to.

    `flat` joins lists one level. Afterwards the item's symbol is what it was before.
    """

    kind: ClassVar[str] = "each"
    item: str = field(converter=as_text)
    items: Value = field(converter=as_value)
    body: tuple[AnyFlow, ...] = _body()
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
class Repeat(_Statement):
    """The body up to `max` times, until a condition holds after it."""

    kind: ClassVar[str] = "repeat"
    max: int
    body: tuple[AnyFlow, ...] = _body()
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
class Try(_Statement):
    """The body; if it fails, the handler, with the error's text in the symbol `catch`."""

    kind: ClassVar[str] = "try"
    body: tuple[AnyFlow, ...] = _body()
    catch: str | None = field(default=None, converter=as_optional_text)
    handler: tuple[AnyFlow, ...] = _bodies()
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
class Retry(_Statement):
    """The body, up to `max` times until it succeeds. Each attempt starts anew; what failed has been unwound."""

    kind: ClassVar[str] = "retry"
    max: int
    body: tuple[AnyFlow, ...] = _body()
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
class Timeout(_Statement):
    """The body within a time; past it the body is cancelled and unwound, and the flow fails with `TimedOut`."""

    kind: ClassVar[str] = "timeout"
    after: timedelta = field(converter=as_span)
    body: tuple[AnyFlow, ...] = _body()
    bind: str | None = field(default=None, converter=as_optional_text)
    model: Model | None = model_field()

    def __init__(self, after: timedelta, *body: AnyFlow, bind: str | None = None, model: Model | None = None) -> None:
        self._made(after, body, bind, model=model)

    def __attrs_post_init__(self) -> None:
        refuse_twins("Timeout", self.body)


@final
@frozen(init=False, eq=False, repr=False)
class WithTools(_Statement):
    """Only these ops may run inside; nested ones intersect. Anything else is a denial."""

    kind: ClassVar[str] = "with_tools"
    tools: tuple[str, ...] = field(converter=_names)
    body: tuple[AnyFlow, ...] = _body()
    bind: str | None = field(default=None, converter=as_optional_text)
    model: Model | None = model_field()

    def __init__(
        self, tools: Iterable[object], *body: AnyFlow, bind: str | None = None, model: Model | None = None
    ) -> None:
        self._made(tools, body, bind, model=model)

    def __attrs_post_init__(self) -> None:
        refuse_twins("WithTools", self.body)


@final
@frozen(init=False, eq=False, repr=False)
class Throttle(_Statement):
    """Fail with `Throttled` once `max` calls were dispatched under this name within `per`, in the session."""

    kind: ClassVar[str] = "throttle"
    name: str = field(converter=as_text)
    max: int
    per: timedelta = field(converter=as_span)
    body: tuple[AnyFlow, ...] = _body()
    model: Model | None = model_field()

    def __init__(self, name: str, *body: AnyFlow, max: int, per: timedelta, model: Model | None = None) -> None:
        self._made(name, max, per, body, model=model)

    def __attrs_post_init__(self) -> None:
        refuse_twins("Throttle", self.body)


@final
@frozen(init=False, eq=False, repr=False)
class Debounce(_Statement):
    """The body after a pause, unless another of this name in the session came meanwhile: the last one survives."""

    kind: ClassVar[str] = "debounce"
    name: str = field(converter=as_text)
    wait: timedelta = field(converter=as_span)
    body: tuple[AnyFlow, ...] = _body()
    model: Model | None = model_field()

    def __init__(self, name: str, *body: AnyFlow, wait: timedelta, model: Model | None = None) -> None:
        self._made(name, wait, body, model=model)

    def __attrs_post_init__(self) -> None:
        refuse_twins("Debounce", self.body)


@final
@frozen(eq=False, repr=False)
class Run(Nameable):
    """A registered named flow as a sub-flow: over the chat, with symbols of its own. `bind` names what it came to."""

    kind: ClassVar[str] = "run"
    flow: str = field(converter=as_text)
    bind: str | None = field(default=None, converter=as_optional_text)
    model: Model | None = model_field()


# --- durability ---


def _callable(value: Call[Any] | AiSegment) -> Call[Any] | AiSegment:
    if not isinstance(value, Call | AiSegment):
        raise WiringError(f"Memo was given {value!r}", remedy="give a call of an op, or an AiSegment")
    return value


@final
@frozen(eq=False, repr=False)
class Memo(Nameable):
    """Compute a call once per session: equal calls with equal arguments come to the same value."""

    kind: ClassVar[str] = "memo"
    name: str = field(converter=as_text)
    call: Call[Any] | AiSegment = field(converter=_callable)
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
class Once(_Statement):
    """Run the body to success once per session. `bind` names what it came to."""

    kind: ClassVar[str] = "once"
    label: str = field(converter=as_text)
    body: tuple[AnyFlow, ...] = _body()
    bind: str | None = field(default=None, converter=as_optional_text)
    model: Model | None = model_field()

    def __init__(self, label: str, *body: AnyFlow, bind: str | None = None, model: Model | None = None) -> None:
        self._made(label, body, bind, model=model)

    def __attrs_post_init__(self) -> None:
        refuse_twins("Once", self.body)


@final
@frozen(init=False, eq=False, repr=False)
class Scope(_Statement):
    """Acquire, bind, run the body, and clean up whatever became of it."""

    kind: ClassVar[str] = "scope"
    acquire: Value | None = field(converter=as_optional_value)
    bind: str | None = field(converter=as_optional_text)
    body: tuple[AnyFlow, ...] = _body()
    finally_: tuple[AnyFlow, ...] = _bodies()
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

    body: tuple[AnyFlow, ...] = _body()
    undo: tuple[AnyFlow, ...] = _bodies()

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
