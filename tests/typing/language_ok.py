"""What must type-check: ops, references and the nodes of the language."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type

from attrs import frozen

import bb


@frozen
class Quote:
    book: str
    price: float


@bb.op(effects=["read"])
async def quote(book: str, copies: int = 1) -> Quote:
    return Quote(book, 10.0 * copies)


@bb.op(effects=["money"], risk="high")
def charge(amount: float) -> bb.Viewed[str]:
    return bb.Viewed("receipt", "Charged.")


@bb.op()
async def later(text: str) -> bb.Viewed[int]:
    return bb.Viewed(len(text), text)


@bb.op("calendar.read")
def read() -> list[str]:
    return []


assert_type(quote("x"), bb.Call[Quote])
assert_type(quote(book="x", copies=2), bb.Call[Quote])
assert_type(charge(1.0), bb.Call[str])
assert_type(later("x"), bb.Call[int])
assert_type(read(), bb.Call[list[str]])

# a call nested as an argument, a symbol, a part of one
charge(bb.ref(quote("x")).price)
charge(bb.ref("total", float))
quote(bb.ref("book"), copies=bb.ref("n", int) + 1)
assert_type(bb.ref("n", int), int)
assert_type(bb.ref("anything"), Any)
assert_type(bb.ref("quote", Quote).price > 3, bool)
assert_type(bb.ref(quote("x")), Quote)
assert_type(bb.negate(bb.ref("done", bool)), bool)
assert_type(bb.optional(bb.ref("quote", Quote).book), str | None)

# the function itself, for tests
assert_type(quote.name, str)
quote.fn("x")

flow = (
    bb.Bind("q", quote("x"), type=Quote)
    >> bb.When(bb.ref("q", Quote).price > 3, bb.Emit("costly"), otherwise=bb.Emit("cheap"))
    >> bb.Memo("again", quote("x"))
    >> bb.Once("charge", charge(1.0), bind="receipt")
    >> bb.Scope(read(), acquire=quote("y"), bind="h", finally_=charge(0.0))
    >> bb.Saga(bb.Step(charge(1.0), undo=charge(-1.0)), bb.Step(read()))
    >> bb.Each("i", [1, 2], bb.Emit("{i}"), collect="xs")
    >> bb.Repeat(3, read(), until=bb.Peek("done"))
    >> bb.Try(read(), catch="error", handler=(bb.Emit("{error}"), bb.Return()))
    >> bb.Retry(2, read(), backoff="linear", delay=timedelta(seconds=1))
    >> bb.Timeout(timedelta(seconds=1), read())
    >> bb.WithTools([read, "calendar.write"], read())
    >> bb.Throttle("api", read(), max=2, per=timedelta(minutes=1))
    >> bb.Debounce("save", read(), wait=timedelta(seconds=1))
    >> bb.Await("form", bind="n", type=float, when=bb.ref("q", Quote).price > 3)
    >> bb.Checkpoint("here")
    >> bb.AiSegment("find a slot", tools=[read], max_rounds=3)
    >> bb.Assert(bb.ref("n", float) > 0, "n must be positive")
    >> bb.Run("other", bind="reply")
    >> bb.Return(bb.ref("receipt"))
)
assert_type(flow, bb.Chain)
assert_type(flow.with_id("f").with_params(book=str), bb.NamedFlow)
assert_type(flow.with_id("f").with_params(book=str).durable(retries=1), bb.DurableFlow)
assert_type(bb.Peek("x").with_id("p"), bb.NamedFlow)
assert_type(bb.text.parse("flow f\n  respond\n")["f"], bb.NamedFlow | bb.DurableFlow)
assert_type(bb.wire.from_wire({}), bb.AnyFlow)
assert_type(bb.text.format(flow), str)
