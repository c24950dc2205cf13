"""Flows with something to undo, and a look at what became of their runs."""

from __future__ import annotations

from typing import Any

import bb
from bb.flows.refs import ref
from bb.flows.tree import Emit, Saga, Scope, Step
from bb.log import decode, run_stream
from bb.testing.clock import ManualClock
from tests.conformance.acts import Acts, durable


def clock() -> ManualClock:
    """Time that nobody has to wait for."""
    return ManualClock(auto=True)


async def facts(store: bb.Store, run_id: str = "r") -> list[object]:
    """The log of a run."""
    return [decode(record, "a record") for record in await store.read(run_stream(run_id))]


async def status(app: bb.App, run_id: str = "r") -> str:
    """How a run is listed."""
    return next(run.status for run in await app.runs() if run.run_id == run_id)


def open_flow(acts: Acts, **options: Any) -> bb.DurableFlow:
    """A saga with a step done, and a scope open in the next."""
    scope = Scope(acts("body"), acts("slow"), acquire=acts("acquire"), bind="h", finally_=acts(ref("h")))
    return durable(Saga(acts.step("a"), Step(scope, undo=acts("never"))), Emit("end"), **options)


UNDONE = ["acquire done", "undo a"]
"""What is done when that is given up at `slow`."""


def refunding(acts: Acts, **options: Any) -> bb.DurableFlow:
    """A saga of two steps, and one that may fail."""
    return durable(acts("before"), acts.saga("a", "b", "bad"), Emit("end"), **options)
