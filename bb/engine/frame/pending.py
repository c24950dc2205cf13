"""What stays open until a saga can undo nothing any more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import define, field

if TYPE_CHECKING:
    from bb.engine.frame.run import Run
    from bb.log import Block


@define(eq=False)
class Pending:
    """The onces that one attempt at a saga has come past.

    They are savepoints and claims of the run; their completion waits until the outermost saga has succeeded.
    """

    run: Run
    outer: Pending | None
    waits: list[Pending] = field(factory=list, init=False)
    """The sagas of this run that somebody inside waits for."""
    over: asyncio.Event = field(factory=asyncio.Event, init=False)
    """Set when nobody is in the attempt any more."""
    _blocks: dict[str, tuple[str, Block]] = field(factory=dict, init=False)
    """By key: where it was run, and what it came to."""

    def find(self, key: str) -> Block | None:
        """What a once of this saga, or of one around it, came to."""
        if key in self._blocks:
            return self._blocks[key][1]
        return self.outer.find(key) if self.outer is not None else None

    def place(self, key: str) -> str:
        """Where a once of this saga was run."""
        return self._blocks[key][0]

    def add(self, key: str, path: str, block: Block) -> None:
        """A once is over, and its claim goes on."""
        if self.find(key) is None:
            self._blocks[key] = (path, block)
            self.run.claims.add(key)
            self.run.held[key] = self

    async def settle(self) -> None:
        """The saga has succeeded: complete its onces, or leave that to the saga around it."""
        for key, (path, block) in self._blocks.items():
            if self.outer is not None:
                self.outer.add(key, path, block)
            else:
                await self.run.session(True).finish(key, path, block)
                self.run.claims.discard(key)
        self.leave()

    async def free(self) -> None:
        """The saga was undone: whoever comes to its onces runs them again."""
        for key, (path, _) in self._blocks.items():
            if self.outer is None or self.outer.find(key) is None:
                await self.run.session(True).free(key, path)
                self.run.claims.discard(key)
        self.leave()

    def leave(self) -> None:
        """The attempt has ended somehow: what it holds still is settled or freed when the run is tried again."""
        for key in self._blocks:
            if self.run.held.get(key) is self:
                del self.run.held[key]
        self.over.set()

    def around(self) -> list[Pending]:
        """This saga, and those around it."""
        return [self, *(self.outer.around() if self.outer is not None else ())]

    def needs(self, others: Sequence[Pending]) -> bool:
        """Whether this saga can only go on when one of the others has ended."""
        seen: list[Pending] = [self]
        for saga in seen:  # it grows
            seen += [one for one in saga.waits if one not in seen]
        return any(saga in others for saga in seen)
