"""The tree: one frozen class per kind of flow, and the builder methods on them.

    AnyFlow = Flow | Chain | Select | All | One | Group | Respond | Notify | NamedFlow | DurableFlow

What a class does not offer cannot be done: only `Flow` takes agents, only `NamedFlow` can become durable, and a
`DurableFlow` can be neither renamed nor made durable twice. Every builder call gives a new value.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeAlias, assert_never, cast, final

from attrs import Attribute, evolve, field, frozen

from bb.agents.agent import Agent
from bb.agents.invoke import is_async, takes
from bb.errors import WiringError
from bb.flows.missing import missing
from bb.flows.options import DurableOptions
from bb.ids import check_id
from bb.models.base import Model, check_model

Send: TypeAlias = Callable[[str], Awaitable[object]]
"""Sends a text outward; whatever it returns is ignored, an exception fails the run."""


class _Sealed:
    """The kinds are a closed set: the interpreter must know every one."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__ != __name__:
            raise TypeError(f"{cls.__name__}: the kinds of flow are a closed set; compose them, or write an Agent")


class _Step(_Sealed):
    """What every flow can do."""

    __slots__ = ()

    def next(self, other: AnyFlow, /) -> Chain:
        """This flow, then `other`. Chains are flat, so chaining is associative."""
        return Chain((_flow(self), _flow(other)))

    def __rshift__(self, other: AnyFlow, /) -> Chain:
        """`a >> b` is `a.next(b)`."""
        return self.next(other)

    if not TYPE_CHECKING:  # a type checker sees what is missing by itself

        def __getattr__(self, name: str) -> object:
            """Say why a builder is missing here; there is none all the same."""
            raise AttributeError(missing(type(self).__name__, name))


class _Nameable(_Step):
    """What can be given an id and a model."""

    __slots__ = ()

    def with_id(self, id: str, /) -> NamedFlow:
        """Name everything composed so far.

        Raises:
            InvalidId: not 1 to 128 characters of `[A-Za-z0-9._:-]`.
        """
        return NamedFlow(cast("_Body", self), id)

    def with_model(self, model: Model, /) -> Self:
        """The model for every agent inside that has none nearer to it.

        Raises:
            WiringError: it is no model, such as the name of one.
        """
        return evolve(self, model=model)  # type: ignore[misc]  # every nameable kind is an attrs class with this field


def _a_model(_flow: object, _field: Attribute[Model | None], value: object) -> None:
    check_model(value)


def _model_field() -> Any:
    return field(default=None, eq=False, kw_only=True, repr=False, validator=_a_model)


def _agents(agents: Sequence[Agent[Any]]) -> tuple[Agent[Any], ...]:
    if not isinstance(agents, Iterable):
        raise WiringError(f"Flow was given {agents!r}", remedy="add agents by bb.Flow().with_agent(agent)")
    for agent in agents:
        if not isinstance(agent, Agent):
            raise WiringError(f"{agent!r} is no Agent", remedy="pass bb.Agent(...) values")
    return tuple(agents)


@final
@frozen
class Flow(_Nameable):
    """Agents over the chat: 0 to n of them, concurrent when several. The only kind whose result is a savepoint of agents."""

    kind: ClassVar[str] = "agents"
    agents: tuple[Agent[Any], ...] = field(default=(), converter=_agents)
    model: Model | None = _model_field()

    def with_agent(self, *agents: Agent[Any]) -> Flow:
        """The flow with these agents added.

        Raises:
            WiringError: something is not an `Agent`.
        """
        return evolve(self, agents=(*self.agents, *agents))


def _flat(flows: Iterable[AnyFlow]) -> tuple[AnyFlow, ...]:
    return tuple(step for flow in flows for step in _steps(_flow(flow)))


@final
@frozen
class Chain(_Nameable):
    """Flows in order, each taking the state its predecessor left. Made by `next`, never nested."""

    kind: ClassVar[str] = "chain"
    steps: tuple[AnyFlow, ...] = field(converter=_flat)
    model: Model | None = _model_field()

    def __attrs_post_init__(self) -> None:
        _refuse_twins("chain", self.steps)


def _members(members: Sequence[AnyFlow]) -> tuple[AnyFlow, ...]:
    return tuple(_flow(member) for member in members)


class _Members(_Nameable):
    """What holds several flows side by side."""

    __slots__ = ()
    members: tuple[AnyFlow, ...]

    def __init__(self, *members: AnyFlow, model: Model | None = None) -> None:
        """Raises:
        WiringError: two members have one id.
        """
        kept = _members(members)
        _refuse_twins(type(self).__name__, kept)
        self.__attrs_init__(kept, model=model)  # type: ignore[attr-defined]  # attrs makes it for init=False

    def with_model(self, model: Model, /) -> Self:
        """The model for every agent inside that has none nearer to it."""
        return type(self)(*self.members, model=model)


@final
@frozen(init=False)
class Select(_Members):
    """The member an upstream agent picked by id; with no pick the state passes through."""

    kind: ClassVar[str] = "select"
    members: tuple[AnyFlow, ...]
    model: Model | None = _model_field()

    def __init__(self, *members: AnyFlow, model: Model | None = None) -> None:
        """Members without an id are dropped with a warning: nobody could pick them.

        Raises:
            WiringError: two members have one id.
        """
        kept = [member for member in _members(members) if flow_id(member)]
        if len(kept) < len(members):
            warnings.warn("Select: a member without an id can never be picked and is ignored", stacklevel=2)
        super().__init__(*kept, model=model)


@final
@frozen(init=False)
class All(_Members):
    """Every member at once over private chats, merged in declaration order."""

    kind: ClassVar[str] = "all"
    members: tuple[AnyFlow, ...]
    model: Model | None = _model_field()


@final
@frozen(init=False)
class One(_Members):
    """Every member at once over private chats; the first to succeed is kept, the others are cancelled."""

    kind: ClassVar[str] = "one"
    members: tuple[AnyFlow, ...]
    model: Model | None = _model_field()


@final
@frozen(init=False)
class Group(_Members):
    """Every member at once over one live shared chat; the output is merged in declaration order."""

    kind: ClassVar[str] = "group"
    members: tuple[AnyFlow, ...]
    model: Model | None = _model_field()


@final
@frozen
class Respond(_Nameable):
    """A stage boundary: what was said since the last one is delivered to the client."""

    kind: ClassVar[str] = "respond"
    model: Model | None = _model_field()


@final
@frozen
class Notify(_Nameable):
    """Send the chat's last message outward. Inside a durable flow it is remembered and not sent twice.

    Raises:
        WiringError: `send` is no async function of one argument.
    """

    kind: ClassVar[str] = "notify"
    send: Send = field(eq=False)
    name: str = ""
    model: Model | None = _model_field()

    def __attrs_post_init__(self) -> None:
        if not is_async(self.send) or not takes(self.send, 1):
            raise WiringError(
                f"Notify was given {self.send!r}, which is no async function of one argument",
                remedy="write async def send(text)",
            )
        if not self.name:
            object.__setattr__(self, "name", getattr(self.send, "__name__", "").strip("<>"))


@final
@frozen
class NamedFlow(_Step):
    """A flow with an id: selectable, registrable, and the only thing that can become durable."""

    body: _Body
    id: str

    def __attrs_post_init__(self) -> None:
        check_id(self.id, "flow id")

    def with_id(self, id: str, /) -> NamedFlow:
        """The same body under another id."""
        return NamedFlow(self.body, id)

    def with_model(self, model: Model, /) -> NamedFlow:
        """The model for every agent inside that has none nearer to it."""
        return NamedFlow(self.body.with_model(model), self.id)

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
        return DurableFlow(self.body, self.id, options)


@final
@frozen
class DurableFlow(_Step):
    """A named flow that savepoints its sub-flows. It can be chained, and nothing else."""

    body: _Body
    id: str
    options: DurableOptions = DurableOptions()

    def __attrs_post_init__(self) -> None:
        check_id(self.id, "flow id")


_Body: TypeAlias = Flow | Chain | Select | All | One | Group | Respond | Notify
AnyFlow: TypeAlias = _Body | NamedFlow | DurableFlow
"""Every kind of flow. A `match` over it that ends in `assert_never` is exhaustive."""

KINDS: Final = (Flow, Chain, Select, All, One, Group, Respond, Notify)


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


def body_of(flow: AnyFlow) -> _Body:
    """The flow itself, or what a named or durable flow wraps."""
    return flow.body if isinstance(flow, NamedFlow | DurableFlow) else flow


def children(flow: AnyFlow) -> tuple[tuple[str, AnyFlow], ...]:
    """The direct parts of a flow, each with the path segment it has there.

    A named child is its id; an unnamed one `slot~kind.index`, unique among its siblings because ids hold no `~`.
    """
    match body_of(flow):
        case Chain(steps=steps):
            return tuple((segment("body", i, step), step) for i, step in enumerate(steps))
        case Select(members=members) | All(members=members) | One(members=members) | Group(members=members):
            return tuple((segment("branch", i, member), member) for i, member in enumerate(members))
        case Flow() | Respond() | Notify():
            return ()
        case unreachable:
            assert_never(unreachable)


def segment(slot: str, index: int, flow: AnyFlow) -> str:
    """The path segment of a child."""
    if isinstance(flow, NamedFlow | DurableFlow):
        return flow.id
    return f"{slot}~{flow.kind}.{index}"


def walk(flow: AnyFlow, path: str = "") -> Iterator[tuple[str, AnyFlow]]:
    """Every flow of the tree with its absolute path, parents first. The root's segment is its id, or `flow~kind.0`."""
    path = path or segment("flow", 0, flow)
    yield path, flow
    for name, child in children(flow):
        yield from walk(child, f"{path}/{name}")


def picks_of(steps: Sequence[AnyFlow], outer: frozenset[str] | None = None) -> frozenset[str] | None:
    """The ids that the `Select` which a selection meets in `steps` offers; `outer` when it passes all of them.

    A selection survives a `Respond` and a `Notify`; None when it is dropped, or there is nothing to meet.
    """
    for index, step in enumerate(steps):
        match body_of(step):
            case Respond() | Notify():
                continue
            case Select(members=members):
                return frozenset(map(flow_id, members))
            case Chain(steps=inner):
                return picks_of((*inner, *steps[index + 1 :]), outer)
            case Flow() | All() | One() | Group():
                return None
            case unreachable:
                assert_never(unreachable)
    return outer


def is_durable(flow: AnyFlow) -> bool:
    """Whether the flow or any part of it is durable, and so whether running it touches the store."""
    return any(isinstance(part, DurableFlow) for _, part in walk(flow))


def _flow(value: object) -> AnyFlow:
    if not isinstance(value, _Step):
        raise WiringError(
            f"{value!r} is no flow",
            remedy="pass flows, each as an argument of its own; an agent goes into Flow().with_agent(agent)",
        )
    return cast("AnyFlow", value)  # the kinds are the subclasses of _Step, and no others


def _steps(flow: AnyFlow) -> tuple[AnyFlow, ...]:
    """A chain's steps, its model handed down to those that have none; any other flow as one step."""
    if not isinstance(flow, Chain):
        return (flow,)
    if flow.model is None:
        return flow.steps
    return tuple(_defaulted(step, flow.model) for step in flow.steps)


def _defaulted(flow: AnyFlow, model: Model) -> AnyFlow:
    body = body_of(flow)
    if body.model is not None:
        return flow
    fitted = body.with_model(model)
    return evolve(flow, body=fitted) if isinstance(flow, NamedFlow | DurableFlow) else fitted


def _refuse_twins(where: str, flows: Sequence[AnyFlow]) -> None:
    seen: set[str] = set()
    for flow in flows:
        if isinstance(flow, NamedFlow | DurableFlow):
            if flow.id in seen:
                raise WiringError(
                    f"{where} holds two parts with the id {flow.id!r}", remedy="give one of them another id"
                )
            seen.add(flow.id)
