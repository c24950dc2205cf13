"""What every kind of flow can do: `next` and `>>`, and for most `with_id` and `with_model`; and the three kinds that do it.

What a class does not offer cannot be done: only `NamedFlow` can become durable, and a `DurableFlow` can be neither renamed
nor made durable twice. Every builder call gives a new value.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast, final

from attrs import Attribute, field, frozen

from bb.errors import WiringError
from bb.flows.missing import missing
from bb.flows.options import DurableOptions
from bb.flows.types import as_type
from bb.ids import check_id
from bb.models.base import Model, check_model
from bb.record import Record

if TYPE_CHECKING:
    from bb.flows.tree import AnyFlow, Bare, Body

F = TypeVar("F", bound="Chainable")


class _Sealed(Record):
    """The kinds are a closed set: the interpreter must know every one."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.__module__.startswith("bb.flows."):
            raise TypeError(f"{cls.__name__}: the kinds of flow are a closed set; compose them, or write an Agent")


class Chainable(_Sealed):
    """What every flow can do."""

    __slots__ = ()
    kind: ClassVar[str]

    def next(self, other: AnyFlow, /) -> Chain:
        """This flow, then `other`. Chains are flat, so chaining is associative."""
        return Chain((a_flow(self), a_flow(other)))

    def __rshift__(self, other: AnyFlow, /) -> Chain:
        """`a >> b` is `a.next(b)`."""
        return self.next(other)

    if not TYPE_CHECKING:  # a type checker sees what is missing by itself

        def __getattr__(self, name: str) -> object:
            """Say why a builder is missing here; there is none all the same."""
            raise AttributeError(missing(type(self).__name__, name))


class Nameable(Chainable):
    """What can be given an id and a model."""

    __slots__ = ()
    model: Model | None

    def with_id(self, id: str, /) -> NamedFlow:
        """Name everything composed so far.

        Raises:
            InvalidId: not 1 to 128 characters of `[A-Za-z0-9._:-]`.
        """
        return NamedFlow(cast("Body", self), id)

    def with_model(self, model: Model, /) -> Self:
        """The model for every agent inside that has none nearer to it.

        Raises:
            WiringError: it is no model, such as the name of one.
        """
        check_model(model)
        return changed(self, model=model)


def changed(flow: F, /, **fields: object) -> F:
    """A copy of a flow with some fields replaced."""
    made = copy.copy(flow)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def _a_model(_flow: object, _field: Attribute[Model | None], value: object) -> None:
    check_model(value)


def model_field() -> Any:
    """The field every nameable kind has last; a model is no part of a flow's identity."""
    return field(default=None, eq=False, kw_only=True, repr=False, validator=_a_model)


def a_flow(value: object) -> AnyFlow:
    """The value, if it is a flow.

    Raises:
        WiringError: it is none.
    """
    if not isinstance(value, Chainable):
        raise WiringError(
            f"{value!r} is no flow",
            remedy="pass flows, each as an argument of its own; an agent goes into Flow().with_agent(agent), an op is "
            "called, op(...), and of the flows of a text one is taken by its id: module['id']",
        )
    return cast("AnyFlow", value)  # the kinds are the subclasses of Chainable, and no others


def flat(flows: AnyFlow | Iterable[AnyFlow]) -> tuple[AnyFlow, ...]:
    """Flows as the steps of a chain or a body: unnamed chains among them are taken apart."""
    if isinstance(flows, Chainable) or not isinstance(flows, Iterable):
        flows = (flows,)
    return tuple(step for flow in flows for step in _steps(a_flow(flow)))


def _steps(flow: AnyFlow) -> tuple[AnyFlow, ...]:
    """A chain's steps, its model handed down to those that have none; any other flow as one step."""
    if not isinstance(flow, Chain):
        return (flow,)
    if flow.model is None:
        return flow.steps
    return tuple(_defaulted(step, flow.model) for step in flow.steps)


def _defaulted(flow: AnyFlow, model: Model) -> AnyFlow:
    body = body_of(flow)
    if not isinstance(body, Nameable):  # a trigger has none: what it starts has its own
        return changed(flow, body=tuple(_defaulted(step, model) for step in body.body))
    if body.model is not None:
        return flow
    fitted = body.with_model(model)
    return changed(flow, body=fitted) if isinstance(flow, NamedFlow | DurableFlow) else fitted


def refuse_twins(where: str, flows: Iterable[AnyFlow]) -> None:
    """Two siblings with one id would be one place.

    Raises:
        WiringError: there are such.
    """
    seen: set[str] = set()
    for flow in flows:
        if isinstance(flow, NamedFlow | DurableFlow):
            if flow.id in seen:
                raise WiringError(
                    f"{where} holds two parts with the id {flow.id!r}", remedy="give one of them another id"
                )
            seen.add(flow.id)


@final
@frozen(eq=False, repr=False)
class Chain(Nameable):
    """Flows in order, each taking the state its predecessor left. Made by `next`, never nested."""

    kind: ClassVar[str] = "chain"
    steps: tuple[AnyFlow, ...] = field(converter=flat)
    model: Model | None = model_field()

    def __attrs_post_init__(self) -> None:
        refuse_twins("chain", self.steps)


@frozen(eq=False, repr=False)
class Param(Record):
    """A parameter of a named flow: a symbol that `run(params=...)` must give, and what it should be."""

    name: str
    type: str = field(default="Any", converter=as_type)


def _nameable(body: object) -> None:
    if not isinstance(body, Nameable):
        raise WiringError(
            f"a {type(body).__name__} cannot be given an id", remedy="name what it starts, or the chain it stands in"
        )


def _params(params: Iterable[Param]) -> tuple[Param, ...]:
    return tuple(params)


@final
@frozen(eq=False, repr=False)
class NamedFlow(Chainable):
    """A flow with an id: selectable, registrable, and the only thing that can become durable."""

    body: Body
    id: str
    params: tuple[Param, ...] = field(default=(), converter=_params)

    def __attrs_post_init__(self) -> None:
        check_id(self.id, "flow id")
        _nameable(self.body)

    def with_id(self, id: str, /) -> NamedFlow:
        """The same body under another id."""
        return NamedFlow(self.body, id, self.params)

    def with_model(self, model: Model, /) -> NamedFlow:
        """The model for every agent inside that has none nearer to it."""
        return NamedFlow(self.body.with_model(model), self.id, self.params)

    def with_params(self, **types: object) -> NamedFlow:
        """Declare symbols that every run is given by `params=`, each with its type: `with_params(name=str, n=int)`.

        A parameter `input` that is not given is the text of the last message of the run's input. Types are hints.
        """
        return NamedFlow(self.body, self.id, (*self.params, *(Param(name, type) for name, type in types.items())))

    def durable(
        self,
        *,
        forward_compatible: bool = False,
        retries: int = 0,
        ttl: timedelta | None = None,
        resume_on_reregister: bool = False,
    ) -> DurableFlow:
        """Save what the flow completes, so that a retry with the same run id goes on from there.

        Args:
            forward_compatible: match savepoints by path when the graph has changed, rather than start afresh.
            retries: how often the flow is run again after a failure (0 or more).
            ttl: an unfinished run is dropped when this long has passed since its last recorded progress.
            resume_on_reregister: a run that resumes by itself waits until the flow is registered after the app has started.

        Raises:
            WiringError: an argument is out of range.
        """
        options = DurableOptions(
            forward_compatible=forward_compatible, retries=retries, ttl=ttl, resume_on_reregister=resume_on_reregister
        )
        return DurableFlow(self.body, self.id, options, self.params)


@final
@frozen(eq=False, repr=False)
class DurableFlow(Chainable):
    """A named flow that savepoints its sub-flows. It can be chained, and nothing else."""

    body: Body
    id: str
    options: DurableOptions = DurableOptions()
    params: tuple[Param, ...] = field(default=(), converter=_params)

    def __attrs_post_init__(self) -> None:
        check_id(self.id, "flow id")
        _nameable(self.body)


def flow_id(flow: AnyFlow) -> str:
    """The id a flow answers to: its own, or that of the single named step of a chain; "" when there is none."""
    match flow:
        case NamedFlow(id=id) | DurableFlow(id=id):
            return id
        case Chain(steps=steps):
            ids = [id for id in map(flow_id, steps) if id]
            return ids[0] if len(ids) == 1 else ""
        case _:
            return ""


def body_of(flow: AnyFlow) -> Bare:
    """The flow itself, or what a named or durable flow wraps."""
    return flow.body if isinstance(flow, NamedFlow | DurableFlow) else flow


def segment(slot: str, index: int, flow: AnyFlow) -> str:
    """The path segment of a child: its id, or `slot~kind.index`, unique among siblings because ids hold no `~`."""
    if isinstance(flow, NamedFlow | DurableFlow):
        return flow.id
    return f"{slot}~{flow.kind}.{index}"


def slot(name: str, flows: Iterable[AnyFlow]) -> Iterator[tuple[str, AnyFlow]]:
    """The children in one slot, each with its path segment."""
    return ((segment(name, i, flow), flow) for i, flow in enumerate(flows))
