"""What steps hand on from one to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from attrs import frozen

from bb.engine.values.evaluation import text_of
from bb.errors import SelectConflict
from bb.log import Block, Delta
from bb.messages import SEPARATOR, Message, spoken
from bb.record import Record


@frozen(eq=False, repr=False)
class Park(Record):
    """Where a run waits, for what, and what it showed."""

    path: str
    source: str
    prompt: str


class Returned(Enum):
    """The type of `RETURNED`."""

    RETURNED = "RETURNED"


RETURNED: Final = Returned.RETURNED
"""A `Return` was met: the nearest named flow is over."""

NO_SYMBOLS: Final[Mapping[str, object]] = MappingProxyType({})


class State(NamedTuple):  # the cheapest of immutable values: every step makes one
    """What steps hand on.

    The chat, where this run's part of it begins, up to where it was delivered, the pick, the value of the last reply or
    return; what symbols hold, what the last statement came to, whether and why the flow is being left, and where the chat
    stood when the run last resumed from an await.
    """

    chat: tuple[Message, ...]
    seed: int
    sent: int | None = None
    selected: str | None = None
    value: object = None
    symbols: Mapping[str, object] = NO_SYMBOLS
    last: object = None
    left: Park | Literal[Returned.RETURNED] | None = None
    leg: int = 0

    def plus(self, delta: Delta) -> State:
        """The state after a step; a pick made earlier is gone."""
        messages, chat, seed = delta.messages, self.chat, self.seed
        if not messages:
            return State(chat, seed, self.sent, delta.selected, self.value, self.symbols, self.last, None, self.leg)
        value = delta.value
        return State(chat + messages, seed, self.sent, delta.selected, value, self.symbols, value, None, self.leg)

    def picked(self, selected: str | None) -> State:
        """The same state with another pick."""
        return self._replace(selected=selected)

    def delivered(self) -> State:
        """The state after a stage boundary."""
        return self._replace(sent=len(self.chat))

    def spoken(self, messages: tuple[Message, ...]) -> State:
        """The state after a statement has said something; a pick is still open."""
        return self._replace(chat=self.chat + messages) if messages else self

    def heard(self, messages: tuple[Message, ...]) -> State:
        """The state after an event has come, with what somebody said by it; a new leg begins."""
        chat = self.chat + messages
        return self._replace(chat=chat, leg=len(chat))

    def bound(self, name: str, value: object) -> State:
        """The state with a symbol bound."""
        return self._replace(symbols={**self.symbols, name: value})

    def restored(self, name: str, outer: Mapping[str, object]) -> State:
        """The state with one symbol as it was before."""
        symbols = {key: value for key, value in self.symbols.items() if key != name}
        if name in outer:
            symbols[name] = outer[name]
        return self._replace(symbols=symbols)

    def framed(self, symbols: Mapping[str, object]) -> State:
        """The state with other symbols: those of a flow of its own."""
        return self._replace(symbols=symbols)

    def came_to(self, value: object) -> State:
        """The state after a statement that came to a value."""
        return self._replace(last=value)

    def returned(self, value: object) -> State:
        """The state after a `Return`."""
        return self._replace(value=value, last=value, left=RETURNED)

    def parked(self, park: Park) -> State:
        """The state of a run that waits."""
        return self._replace(left=park)

    def arrived(self) -> State:
        """The state after the flow that a `Return` left."""
        return self._replace(left=None)

    def left_as(self, other: State) -> State:
        """The same state, having come to what another came to."""
        return self._replace(last=other.last, value=other.value, left=other.left)

    def since(self, start: State) -> Block:
        """What was said and bound since an earlier state."""
        return Block(
            messages=self.chat[len(start.chat) :],
            value=self.value,
            last=self.last,
            symbols=changed(start.symbols, self.symbols),
            selected=self.selected,
            returned=self.left is RETURNED,
            sent=None if self.sent is None or self.sent == start.sent else self.sent - len(start.chat),
        )

    def with_block(self, block: Block) -> State:
        """The state after something that is known already."""
        return self._replace(
            chat=self.chat + block.messages,
            sent=self.sent if block.sent is None else len(self.chat) + block.sent,
            selected=block.selected,
            value=block.value,
            symbols={**self.symbols, **block.symbols},
            last=block.last,
            left=RETURNED if block.returned else None,
        )

    @property
    def prompt(self) -> str:
        """The last thing said since the run last resumed."""
        return self.chat[-1].content if len(self.chat) > max(self.seed, self.leg) else ""

    @property
    def answer(self) -> str:
        """The buffered answer: all delivered stages, or without any what it returned, or the last thing said.

        Of a run that parks: the delivered stages, and what it asks.
        """
        if isinstance(self.left, Park):
            told = "" if self.sent is None else spoken(self.chat[self.seed : self.sent])
            if told and self.prompt and self.sent == len(self.chat):
                return told  # the question was the last of it
            return SEPARATOR.join(filter(None, (told, self.left.prompt)))
        if self.sent is not None:
            return spoken(self.chat[self.seed : self.sent])
        return text_of(self.value) if self.left is RETURNED else self.prompt


def changed(before: Mapping[str, object], after: Mapping[str, object]) -> Mapping[str, object]:
    """The symbols that hold something else now."""
    if before is after:
        return NO_SYMBOLS
    return {name: value for name, value in after.items() if name not in before or before[name] is not value}


def merged(state: State, outs: Sequence[State], where: str) -> State:
    """What concurrent members add up to, in declaration order.

    Raises:
        SelectConflict: they picked different ids.
    """
    chat, value, last, symbols = state.chat, state.value, state.last, state.symbols
    for out in outs:
        if said := out.chat[len(state.chat) :]:
            chat, value = chat + said, out.value
        if out.symbols is not state.symbols:
            symbols = {**symbols, **changed(state.symbols, out.symbols)}
        last = out.last
    selected = one_pick([out.selected for out in outs], where)
    return State(chat, state.seed, state.sent, selected, value, symbols, last, None, state.leg)


def one_pick(picks: Sequence[str | None], where: str) -> str | None:
    """The one id that was picked, or None.

    Raises:
        SelectConflict: there are several.
    """
    made = sorted({pick for pick in picks if pick is not None})
    if len(made) > 1:
        raise SelectConflict(
            f"concurrent agents selected {' and '.join(map(repr, made))}",
            path=where,
            remedy="let one agent decide, or make them agree",
        )
    return made[0] if made else None
