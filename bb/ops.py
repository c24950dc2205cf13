"""Operations: functions that a flow may call by name, and what an app knows of them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import (
    Any,
    Final,
    Generic,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeVar,
    cast,
    final,
    get_args,
    get_type_hints,
    overload,
)

from attrs import field, frozen

from bb.agents.agent import Agent
from bb.errors import WiringError
from bb.flows.expressions import Obj, Valued, as_value
from bb.flows.groups import Send
from bb.flows.names import is_op_name
from bb.flows.tree import Call
from bb.flows.types import EFFECTS
from bb.record import Record

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Risk: TypeAlias = Literal["low", "medium", "high", "destructive"]
RISKS: Final[tuple[str, ...]] = get_args(Risk)
"""From harmless to irreversible."""

_GATHER_SAFE: Final = frozenset({"pure", "read", "network"})


@frozen(eq=False, repr=False)
class Viewed(Record, Generic[T_co]):
    """What an op returns to say something: `value` is what it comes to, `view` what people and models see of it."""

    value: T_co
    view: str


@final
@frozen(eq=False, repr=False)
class Op(Record, Generic[P, T]):
    """An operation. Calling it in builder code gives a `Call`; `fn` is the function itself."""

    name: str
    fn: Callable[P, object] = field(eq=False, repr=False)
    effects: tuple[str, ...] = ()
    risk: Risk = "low"
    version: str | None = None
    """Counts in the identity of flows: a new one says that the op's meaning has changed."""
    signature: inspect.Signature = field(eq=False, repr=False, kw_only=True)
    returns: Any = field(default=Any, eq=False, repr=False, kw_only=True)
    params: tuple[str, ...] = field(init=False, eq=False, repr=False)
    """The names of the parameters."""
    required: tuple[str, ...] = field(init=False, eq=False, repr=False)
    """The parameters without a default."""

    def __attrs_post_init__(self) -> None:
        params = self.signature.parameters
        needed = tuple(name for name, param in params.items() if param.default is inspect.Parameter.empty)
        object.__setattr__(self, "params", tuple(params))
        object.__setattr__(self, "required", needed)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[T]:
        """The call of this op with these arguments, to stand in a flow.

        Raises:
            WiringError: the arguments do not fit the function.
        """
        try:
            given = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise WiringError(f"op {self.name}: {error}", remedy=f"its arguments are {self.signature}") from error
        if not given.arguments:
            return Call(self.name, (), bound=self)
        if len(args) == 1 and not kwargs and self.required == tuple(given.arguments):
            value = as_value(args[0])
            if isinstance(value, Valued) and not _is_record(value):
                return Call(self.name, (value,), bound=self)
        return Call(self.name, (Obj(given.arguments),), bound=self)

    @property
    def is_gather_safe(self) -> bool:
        """Whether a model stage may run it at once: its risk is low, and its effects say that it only reads.

        The network counts as reading only beside `read`. An op that declares nothing may do anything.
        """
        effects = set(self.effects)
        reads = bool(effects) and effects <= _GATHER_SAFE and ("network" not in effects or "read" in effects)
        return self.risk == "low" and reads


def _is_record(value: object) -> bool:
    """A sole bare record would be taken for the named arguments."""
    return isinstance(value, Obj) or isinstance(getattr(value, "value", None), dict)


class _Decorator:
    """What `@bb.op(...)` gives: typed by what the function returns, a `Viewed` and an awaitable looked through."""

    def __init__(self, make: Callable[[Callable[..., object]], Op[Any, Any]]) -> None:
        self._make = make

    @overload
    def __call__(self, fn: Callable[P, Awaitable[Viewed[T]]]) -> Op[P, T]: ...
    @overload
    def __call__(self, fn: Callable[P, Awaitable[T]]) -> Op[P, T]: ...
    @overload
    def __call__(self, fn: Callable[P, Viewed[T]]) -> Op[P, T]: ...
    @overload
    def __call__(self, fn: Callable[P, T]) -> Op[P, T]: ...
    def __call__(self, fn: Callable[..., object]) -> Op[Any, Any]:
        return self._make(fn)


def op(
    name: str | None = None, *, effects: Iterable[str] = (), risk: Risk = "low", version: str | None = None
) -> _Decorator:
    """Make an operation of an async or plain function; a plain one runs in a thread.

    Args:
        name: how flows call it, by default the function's name; identifiers joined by dots.
        effects: tags that say what it does to the world: `pure read model network write_file write_db send_external
            delete money human_visible`.
        risk: `low`, `medium`, `high` or `destructive`; an app's approver may be asked from some level on. Without one it has no effect.
        version: counts in the identity of flows.

    Raises:
        WiringError: an argument is out of range, or the function cannot be an op.
    """
    if callable(name):
        raise WiringError("op was used without parentheses", remedy="write @bb.op() above the function")
    tags = tuple(effects)
    if isinstance(effects, str) or not set(tags) <= set(EFFECTS):
        raise WiringError(f"effects is {effects!r}", remedy=f"give a list of {', '.join(EFFECTS)}")
    if risk not in RISKS:
        raise WiringError(f"risk is {risk!r}", remedy=f"give one of {', '.join(RISKS)}")

    def make(fn: Callable[..., object]) -> Op[Any, Any]:
        called = name if name is not None else getattr(fn, "__name__", "")
        if not is_op_name(called):
            raise WiringError(
                f"{called!r} is no name of an op",
                remedy="use identifiers joined by dots, the first no word of the language: calendar.read",
            )
        signature = inspect.signature(fn)
        for param in signature.parameters.values():
            if param.kind in (param.VAR_POSITIONAL, param.VAR_KEYWORD, param.POSITIONAL_ONLY):
                raise WiringError(
                    f"op {called}: parameter {param} cannot be given by name", remedy="give each parameter a name"
                )
        return Op(called, fn, tags, risk, version, signature=signature, returns=_returns(fn))

    return _Decorator(make)


def _returns(fn: Callable[..., object]) -> Any:
    try:
        return get_type_hints(fn).get("return", Any)
    except (NameError, TypeError):  # annotations that only a type checker can follow
        return Any


@frozen(eq=False, repr=False)
class Catalogue(Record):
    """What names in a flow stand for in one app: ops, agents, and the senders of `Notify`."""

    ops: Mapping[str, Op[Any, Any]] = field(factory=dict)
    agents: Mapping[str, Agent[Any]] = field(factory=dict)
    senders: Mapping[str, Send] = field(factory=dict)

    def op(self, call: Call[Any]) -> Op[Any, Any] | None:
        """The op that a call dispatches: the one it was made by, else the one of its name."""
        return cast("Op[Any, Any] | None", call.bound) if call.bound is not None else self.ops.get(call.op)

    def agent(self, agent: Agent[Any]) -> Agent[Any]:
        """The agent itself, or the one known by its name, version and exits if it is only a name."""
        if agent.handler is None and agent.model is None and agent.name is not None:
            known = self.agents.get(agent.name)
            if known == agent:
                return known
        return agent


def catalogue(
    ops: Iterable[Op[Any, Any]] = (), agents: Iterable[Agent[Any]] = (), senders: Iterable[Send] = ()
) -> Catalogue:
    """The catalogue of these.

    Raises:
        WiringError: something is of the wrong kind, has no name, or two of a kind have one name.
    """
    for what, given in (("ops", ops), ("agents", agents), ("senders", senders)):
        if not isinstance(given, Iterable):
            raise WiringError(f"{what} is {given!r}", remedy=f"give a list, such as {what}=[...]")
    known = Catalogue({}, {}, {})
    for one in ops:
        if not isinstance(one, Op):
            raise WiringError(f"{one!r} is no op", remedy="decorate the function with @bb.op()")
        _add(cast("dict[str, object]", known.ops), one.name, one, "op")
    for agent in agents:
        if not isinstance(agent, Agent) or agent.name is None:
            raise WiringError(f"{agent!r} is no agent with a name", remedy="write bb.Agent(name)")
        _add(cast("dict[str, object]", known.agents), agent.name, agent, "agent")
    for send in senders:
        _add(cast("dict[str, object]", known.senders), getattr(send, "__name__", ""), send, "sender")
    return known


def _add(known: dict[str, object], name: str, value: object, what: str) -> None:
    if not name:
        raise WiringError(f"{value!r} has no name", remedy=f"give the {what} a name")
    if known.setdefault(name, value) is not value:
        raise WiringError(f"two {what}s are named {name!r}", remedy="give one of them another name")
