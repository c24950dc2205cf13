"""`Problem`: one thing wrong with a flow."""

from __future__ import annotations

from attrs import frozen

from bb.errors import WiringError
from bb.flows.tree import AnyFlow, flow_id
from bb.record import Record


@frozen(eq=False, repr=False)
class Problem(Record):
    """One thing wrong with a flow: a stable code, what is wrong and what to do, and where. A warning refuses nothing.

    The path is that of the statement; a value inside it is told by the names of fields that follow: `f/body~call.0.args.to`.
    """

    code: str
    message: str
    path: str
    warning: bool = False

    def __str__(self) -> str:
        return f"{self.code} at {self.path}: {self.message}"


def refuse(flow: AnyFlow, problems: tuple[Problem, ...]) -> None:
    """Raise if any of the problems is an error.

    Raises:
        WiringError: it lists all of them; its path is that of the first.
    """
    errors = [problem for problem in problems if not problem.warning]
    if errors:
        raise WiringError(
            "; ".join(map(str, errors)),
            flow=flow_id(flow),
            path=errors[0].path,
            remedy="mend the flow: nothing has run",
        )
