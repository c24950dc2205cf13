"""What must not type-check: each line marked `# E: ...` is an error of that kind, and no other line is."""

from __future__ import annotations

from datetime import timedelta

import bb


@bb.op()
async def quote(book: str, copies: int = 1) -> float:
    return 1.0 * copies


def arguments() -> None:
    quote()  # E: Missing positional argument "book"
    quote(3)  # E: Argument 1 to "__call__" of "Op" has incompatible type "int"
    quote("x", pages=2)  # E: Unexpected keyword argument "pages"
    quote(bb.ref("n", int))  # E: Argument 1 to "__call__" of "Op" has incompatible type "int"
    quote(quote("x"))  # E: has incompatible type "Call\[float\]"
    quote(bb.ref(quote("x")))  # E: has incompatible type "float"
    bb.op(risk="terrible")  # E: incompatible type "Literal\['terrible'\]"


def states() -> None:
    quote("x").durable()  # E: "Call\[float\]" has no attribute "durable"
    bb.Once("a", quote("x")).durable()  # E: "Once" has no attribute "durable"
    bb.Saga(bb.Step(quote("x"))).with_agent(bb.Agent("a"))  # E: "Saga" has no attribute "with_agent"
    bb.Emit("x").with_id("a").durable().with_id("b")  # E: "DurableFlow" has no attribute "with_id"
    bb.Lit(3).next(quote("x"))  # E: "Lit" has no attribute "next"
    quote("x") >> bb.Lit(3)  # E: Unsupported operand types for >>


def nodes() -> None:
    bb.Saga(quote("x"))  # E: incompatible type "Call\[float\]"; expected "Step"
    bb.Once(quote("x"))  # E: incompatible type "Call\[float\]"; expected "str"
    bb.When(True, 3)  # E: incompatible type "int"
    bb.Each("x", [1], body=quote("x"))  # E: Unexpected keyword argument "body"
    bb.Timeout(5, quote("x"))  # E: incompatible type "int"; expected "timedelta"
    bb.Throttle("x", quote("x"), per=timedelta(seconds=1))  # E: Missing named argument "max"
    bb.Retry(3, quote("x"), backoff="wild")  # E: incompatible type "Literal\['wild'\]"
    bb.Memo("x", bb.Peek("y"))  # E: incompatible type "Peek"
    bb.Run(quote)  # E: incompatible type "Op
