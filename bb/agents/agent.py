"""`Agent`: a value that says who answers, by which model, and in which shape."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, cast, final

from attrs import Attribute, evolve, field, frozen
from typing_extensions import TypeVar

from bb.agents.invoke import is_async, takes
from bb.errors import WiringError
from bb.ids import check_id
from bb.messages import Message, Role
from bb.models.base import Model, check_model
from bb.schema import Schema

if TYPE_CHECKING:
    from bb.agents.chat import ModelChat
    from bb.agents.turn import Turn

T = TypeVar("T", default=str)
S = TypeVar("S")

Handler: TypeAlias = "Callable[[Turn, ModelChat[T]], Awaitable[None]]"


def _named(value: str | None) -> str | None:
    if callable(value):  # a bare decorator hands over the function
        raise WiringError(
            f"Agent was given the function {getattr(value, '__name__', value)!r} as its name",
            remedy="call it first: @bb.Agent().on_message",
        )
    return value if value is None else check_id(value, "agent name")


def _a_model(_agent: object, _field: Attribute[Model | None], value: object) -> None:
    check_model(value)


@final
@frozen
class Agent(Generic[T]):
    """Who answers in a flow. Every builder call gives a new value; an agent cannot act by itself.

    `T` is what the agent's answers hold: `str`, or the class given to `with_schema`. `name` (by default the name of the
    handler) and `version` count in the identity of a flow: a new version says that the agent's meaning has changed.
    """

    name: str | None = field(default=None, converter=_named)
    version: str | None = None
    exits: tuple[str, ...] = field(default=(), kw_only=True)
    model: Model | None = field(default=None, eq=False, kw_only=True, repr=False, validator=_a_model)
    role: Message | None = field(default=None, eq=False, kw_only=True, repr=False)
    schema: Schema[T] | None = field(default=None, eq=False, kw_only=True, repr=False)
    handler: Handler[T] | None = field(default=None, eq=False, kw_only=True, repr=False)

    @property
    def named(self) -> bool:
        """Whether the name was given, not taken from the handler."""
        return self.name is not None and self.name != getattr(self.handler, "__name__", None)

    def with_model(self, model: Model) -> Agent[T]:
        """The model this agent asks, before any its flows name.

        Raises:
            WiringError: it is no model, such as the name of one.
        """
        return evolve(self, model=model)

    def with_role(self, role: str | Message) -> Agent[T]:
        """The persona: a system message sent ahead of everything else."""
        return evolve(self, role=Role(role) if isinstance(role, str) else role)

    def with_schema(self, schema: type[S] | Schema[S]) -> Agent[S]:
        """The shape of the answers: an attrs class; a reply's `value` is then one of it.

        Raises:
            WiringError: the class has no JSON schema.
        """
        fitted = schema if isinstance(schema, Schema) else Schema(schema)
        return cast("Agent[S]", evolve(self, schema=cast(Any, fitted)))

    def selects(self, *exits: str) -> Agent[T]:
        """Declare ids this agent may select, in addition to those declared before.

        Raises:
            InvalidId: not an id.
        """
        return evolve(self, exits=self.exits + tuple(check_id(exit, "exit") for exit in exits))

    def on_message(self, handler: Handler[T], /) -> Agent[T]:
        """What the agent does with a message; also as a decorator. Without one it asks its model and relays the answer.

        Raises:
            WiringError: the handler is no async function of two arguments.
        """
        if not is_async(handler):
            raise WiringError(f"handler {handler!r} is not async", remedy="write async def handler(turn, chat)")
        if not takes(handler, 2):
            raise WiringError(
                f"handler {handler!r} does not take two arguments", remedy="write async def handler(turn, chat)"
            )
        default = getattr(handler, "__name__", None)
        name = self.name or (default if default and default.isidentifier() else None)
        return evolve(self, handler=handler, name=name)
