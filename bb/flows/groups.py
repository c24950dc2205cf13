"""The kinds of flow that speak: agents over the chat, several flows side by side, and what delivers."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, final

from attrs import evolve, field, frozen

from bb.agents.agent import Agent
from bb.agents.invoke import is_async, takes
from bb.errors import WiringError
from bb.flows.base import Nameable, a_flow, flow_id, model_field, refuse_twins
from bb.flows.types import as_text
from bb.models.base import Model

if TYPE_CHECKING:
    from bb.flows.tree import AnyFlow

Send: TypeAlias = Callable[[str], Awaitable[object]]
"""Sends a text outward; whatever it returns is ignored, an exception fails the run."""


def _agents(agents: Sequence[Agent[Any]]) -> tuple[Agent[Any], ...]:
    if not isinstance(agents, Iterable):
        raise WiringError(f"Flow was given {agents!r}", remedy="add agents by bb.Flow().with_agent(agent)")
    for agent in agents:
        if not isinstance(agent, Agent):
            raise WiringError(f"{agent!r} is no Agent", remedy="pass bb.Agent(...) values")
    return tuple(agents)


@final
@frozen(eq=False, repr=False)
class Flow(Nameable):
    """Agents over the chat: 0 to n of them, concurrent when several. The only kind whose result is a savepoint of agents."""

    kind: ClassVar[str] = "agents"
    agents: tuple[Agent[Any], ...] = field(default=(), converter=_agents)
    model: Model | None = model_field()

    def with_agent(self, *agents: Agent[Any]) -> Flow:
        """The flow with these agents added.

        Raises:
            WiringError: something is not an `Agent`.
        """
        return evolve(self, agents=(*self.agents, *agents))


class _Members(Nameable):
    """What holds several flows side by side."""

    __slots__ = ()
    members: tuple[AnyFlow, ...]

    def __init__(self, *members: AnyFlow, model: Model | None = None) -> None:
        """Raises:
        WiringError: two members have one id.
        """
        kept = tuple(map(a_flow, members))
        refuse_twins(type(self).__name__, kept)
        self.__attrs_init__(kept, model=model)  # type: ignore[attr-defined]  # attrs makes it for init=False

    def with_model(self, model: Model, /) -> Self:
        """The model for every agent inside that has none nearer to it."""
        return type(self)(*self.members, model=model)


@final
@frozen(init=False, eq=False, repr=False)
class Select(_Members):
    """The member an upstream agent picked by id; with no pick the state passes through."""

    kind: ClassVar[str] = "select"
    members: tuple[AnyFlow, ...]
    model: Model | None = model_field()

    def __init__(self, *members: AnyFlow, model: Model | None = None) -> None:
        """Members without an id are dropped with a warning: nobody could pick them.

        Raises:
            WiringError: two members have one id.
        """
        kept = [member for member in map(a_flow, members) if flow_id(member)]
        if len(kept) < len(members):
            warnings.warn("Select: a member without an id can never be picked and is ignored", stacklevel=2)
        super().__init__(*kept, model=model)


@final
@frozen(init=False, eq=False, repr=False)
class All(_Members):
    """Every member at once over private chats, merged in declaration order.

    What a member with an id came to is bound to that id, where the id is a symbol.
    """

    kind: ClassVar[str] = "all"
    members: tuple[AnyFlow, ...]
    model: Model | None = model_field()


@final
@frozen(init=False, eq=False, repr=False)
class One(_Members):
    """Every member at once over private chats; the first to succeed is kept, the others are cancelled."""

    kind: ClassVar[str] = "one"
    members: tuple[AnyFlow, ...]
    model: Model | None = model_field()


@final
@frozen(init=False, eq=False, repr=False)
class Group(_Members):
    """Every member at once over one live shared chat; the output is merged in declaration order."""

    kind: ClassVar[str] = "group"
    members: tuple[AnyFlow, ...]
    model: Model | None = model_field()


@final
@frozen(eq=False, repr=False)
class Respond(Nameable):
    """A stage boundary: what was said since the last one is delivered to the client."""

    kind: ClassVar[str] = "respond"
    model: Model | None = model_field()


@final
@frozen(eq=False, repr=False)
class Notify(Nameable):
    """Send the chat's last message outward. Inside a durable flow it is remembered and not sent twice.

    `Notify(send)` takes its name from the function; with a name alone, the app must know the sender (`App(senders=...)`).

    Raises:
        WiringError: `send` is no async function of one argument, or there is neither a function nor a name.
    """

    kind: ClassVar[str] = "notify"
    send: Send | None = field(default=None, eq=False)
    name: str = field(default="", converter=as_text)
    model: Model | None = model_field()

    def __attrs_post_init__(self) -> None:
        if self.send is None:
            if not self.name:
                raise WiringError("Notify has neither a sender nor a name", remedy="write async def send(text)")
        elif not is_async(self.send) or not takes(self.send, 1):
            raise WiringError(
                f"Notify was given {self.send!r}, which is no async function of one argument",
                remedy="write async def send(text)",
            )
        if not self.name:
            object.__setattr__(self, "name", getattr(self.send, "__name__", "").strip("<>"))
