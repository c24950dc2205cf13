"""Running a flow once, without an app of one's own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Literal

from bb.app import RESUME, App, Resume
from bb.engine.outcome import Outcome
from bb.errors import WiringError
from bb.flows.tree import AnyFlow, flow_id
from bb.messages import InputLike
from bb.models.base import Model
from bb.trace import Tracer


async def run(
    flow: AnyFlow,
    input: InputLike | Literal[Resume.RESUME] = RESUME,
    *,
    params: Mapping[str, object] | None = None,
    model: Model | None = None,
    trace: Tracer | None = None,
) -> Outcome:
    """Run a flow once, over an app in memory that is thrown away.

    Raises as `App.run` does, and
        WiringError: it parked, and nobody could ever answer.
    """
    app = App(model=model, trace=trace)
    try:
        outcome = await app.run(flow, input, params=params)
        if outcome.waiting_for is not None:
            raise WiringError(
                f"the flow waits for {outcome.waiting_for!r}, and a run of bb.run ends with the call",
                flow=flow_id(flow),
                remedy="hold a bb.App: app.session(flow, ...) for a conversation, app.run and app.deliver for events",
            )
        return outcome
    finally:
        await app.stop(timedelta(0))


def run_sync(
    flow: AnyFlow,
    input: InputLike | Literal[Resume.RESUME] = RESUME,
    *,
    params: Mapping[str, object] | None = None,
    model: Model | None = None,
    trace: Tracer | None = None,
) -> Outcome:
    """`run` for programs without an event loop.

    Raises:
        WiringError: an event loop is running in this thread; it would wait for itself.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run(flow, input, params=params, model=model, trace=trace))
    raise WiringError("run_sync was called inside a running event loop", remedy="await bb.run(...) there")
