"""The claims of onces whose body did not come to its end: who may run it now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from bb.engine.memory.journal import to_its_end
from bb.errors import Interruption

if TYPE_CHECKING:
    from bb.engine.frame.context import Context

Claim: TypeAlias = tuple[str, str]
"""The key of a once, and where this run was in its body."""


async def give_up(error: BaseException, claims: Sequence[Claim], ctx: Context) -> None:
    """The bodies have failed, or were cancelled for good: others may run them. An interrupted run keeps its claims.

    In a member that a `One` has given up it is not sure yet which of these it was; that `One` will tell.
    """
    if isinstance(error, Interruption):
        return
    if ctx.lane.closed:
        if ctx.cut_off is not None:
            ctx.cut_off.extend(claims)
    elif isinstance(error, Exception) or ctx.for_good:
        await free(claims, ctx)


async def free(claims: Sequence[Claim], ctx: Context) -> None:
    """Let others run the bodies."""
    for key, path in claims:
        await to_its_end(ctx.run.session(True).free(key, path))
