"""A registered secret in a flow is refused before anything is stored."""

from __future__ import annotations

import pytest

import bb

SECRET = "hunter2-hunter2"


@pytest.mark.parametrize(
    "step",
    [
        bb.Emit(f"key {SECRET}"),
        bb.Emit(bb.Format(f"key {SECRET}")),
        bb.Return({"key": [SECRET]}),
        bb.Once(SECRET, bb.Emit("x")),
        bb.When(bb.Lit(True), bb.Assert(True, SECRET)),
    ],
)
async def test_a_flow_that_holds_a_secret_is_refused_and_not_stored(
    step: bb.Emit | bb.Return | bb.Once | bb.When,
) -> None:
    flow, store = step.with_id("f").durable(), bb.MemStore()
    assert [problem.code for problem in bb.check(flow)] == []
    bb.redact(SECRET)

    problems = bb.check(flow)
    assert [problem.code for problem in problems] == ["secret"]
    assert SECRET not in str(problems[0])
    with pytest.raises(bb.WiringError, match="registered secret"):
        await bb.App(store=store).run(flow, run_id="r")
    assert await store.list("") == []
