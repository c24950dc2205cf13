"""`RunStream`: a run whose text is read while it is made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final, NoReturn, Self

from bb.engine.frame.delivery import Listener
from bb.engine.outcome import Outcome
from bb.engine.runs.live import Live, seen
from bb.errors import WiringError

STREAM_ADVICE: Final = "call it inside a running loop: async with app.stream(...) as text: async for chunk in text: ..."


class RunStream:
    """A run whose text is read while it is made: iterate it, then ask for the outcome."""

    def __init__(self, live: Live) -> None:
        self.run_id = live.run_id
        self._live = live
        self._listener: Listener = live.delivery.listen()
        self._outcome: asyncio.Future[Outcome] = asyncio.ensure_future(live.outcome())
        self._outcome.add_done_callback(seen)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Leave the run: unless others wait for it or it was started with `detach`, it is interrupted."""
        self._leave()
        if not self._outcome.done():
            await asyncio.wait([self._outcome])

    def _leave(self) -> None:
        self._live.delivery.leave(self._listener)
        # not at once: cancelled before its first step it would never be counted out, and the run go on for nobody
        if not self._outcome.done():
            self._outcome.get_loop().call_soon(self._outcome.cancel)

    async def __aiter__(self) -> AsyncIterator[str]:
        """The text as it comes, stage by stage; joined it is the answer.

        Raises:
            StreamBroken: streamed text became void, because its step failed and is tried again.
            BBError: the run failed.
        """
        async for chunk in self._listener.chunks():
            yield chunk
        await self.outcome()

    if not TYPE_CHECKING:  # a type checker sees by itself that these are not for streams

        def __await__(self) -> None:
            self._misused("awaited")

        def __enter__(self) -> None:
            self._misused("entered by a plain with")

        def __exit__(self, *exc: object) -> None:
            """Never called: `with` looks for it before it enters."""

        def _misused(self, how: str) -> NoReturn:
            self._leave()
            raise WiringError(f"a stream was {how}", remedy=STREAM_ADVICE)

    async def begun(self) -> None:
        """Return when the run was let in, or joined: what is wrong with the request is known by then.

        It waits for its reader from the start, as long as nobody asks for the outcome instead.

        Raises as `run` does, if it was refused.
        """
        self._listener.expected = True
        if not await self._live.begun():
            await self.outcome()

    async def outcome(self) -> Outcome:
        """How the run came out.

        Raises:
            BBError: it failed, was refused or was interrupted.
        """
        if self._listener.expected:
            self._listener.expected = False
            self._live.delivery.took()
        return await asyncio.shield(self._outcome)
