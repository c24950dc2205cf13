"""What stays open until a saga can undo nothing any more."""

from __future__ import annotations

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
    _blocks: dict[str, tuple[str, Block]] = field(factory=dict, init=False)
    """By key: where it was run, and what it came to."""

    def find(self, key: str) -> Block | None:
        """What a once of this saga, or of one around it, came to."""
        if key in self._blocks:
            return self._blocks[key][1]
        return self.outer.find(key) if self.outer is not None else None

    def add(self, key: str, path: str, block: Block) -> None:
        """A once is over, and its claim goes on."""
        self._blocks.setdefault(key, (path, block))
        self.run.claims.add(key)

    async def settle(self) -> None:
        """The saga has succeeded: complete its onces, or leave that to the saga around it."""
        for key, (path, block) in self._blocks.items():
            if self.outer is not None:
                self.outer.add(key, path, block)
            else:
                await self.run.session(True).finish(key, path, block)
                self.run.claims.discard(key)

    async def free(self) -> None:
        """The saga was undone: whoever comes to its onces runs them again."""
        for key, (path, _) in self._blocks.items():
            if self.outer is None or self.outer.find(key) is None:
                await self.run.session(True).free(key, path)
                self.run.claims.discard(key)
