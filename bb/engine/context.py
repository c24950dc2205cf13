"""What a step inherits from where it stands in the tree."""

from __future__ import annotations

import asyncio

from attrs import evolve, frozen

from bb.engine.run import Run
from bb.engine.scope import ActiveScope
from bb.engine.shared import Seat, Shared
from bb.models.base import Model


class Lane:
    """A branch that can be given up. What a given-up branch still tries to keep is refused."""

    def __init__(self, outer: Lane | None = None) -> None:
        self._outer = outer
        self._closed = False

    def close(self) -> None:
        """Give the branch up."""
        self._closed = True

    @property
    def closed(self) -> bool:
        """Whether the branch, or one around it, was given up."""
        lane: Lane | None = self
        while lane is not None:
            if lane._closed:
                return True
            lane = lane._outer
        return False

    def check(self) -> None:
        """Raise `CancelledError` in a branch that was given up and goes on all the same."""
        if self.closed:
            raise asyncio.CancelledError("this branch was given up")


@frozen
class Context:
    """What a step inherits; changed only where the tree branches."""

    run: Run
    lane: Lane
    model: Model | None = None
    """The nearest one: of a flow around, or the app's."""
    scope: ActiveScope | None = None
    shared: Shared | None = None
    seat: Seat | None = None
    aside: bool = False
    """Beside other members: a stage boundary here delivers nothing."""

    def under(self, model: Model | None) -> Context:
        """Below a flow that may name a model."""
        return self if model is None else evolve(self, model=model)
