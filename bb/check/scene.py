"""`Scene`: what a rule may know beyond the statement before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from attrs import field, frozen

from bb.flows.tree import AnyFlow
from bb.ops import Catalogue
from bb.record import Record

N = TypeVar("N")


@frozen(eq=False, repr=False)
class Scene(Record):
    """The whole flow and what is known around it; None stands for what nobody has told."""

    flow: AnyFlow
    catalogue: Catalogue | None = None
    flows: Mapping[str, AnyFlow] | None = None
    """The registered flows by id."""
    defined: frozenset[str] = frozenset()
    """The symbols that something in the flow, its parameters or the session binds."""
    durable: bool = False
    """Whether any part of the flow is durable."""
    repeats: frozenset[str] = frozenset()
    """The paths of `Once`s that have the label and the body of one before them."""
    circles: Mapping[str, tuple[str, ...]] = field(factory=dict)
    """The flows that a `Run` here would come round from -> the way round."""
    used: frozenset[str] = frozenset()
    """The names of the ops that the flow brings along."""


@frozen(eq=False, repr=False)
class Rule(Record, Generic[N]):
    """One rule: its code, and what it has to say of a statement or value, a message for each thing wrong."""

    code: str
    find: Callable[[N, Scene], Iterable[str]]
    warning: bool = False
