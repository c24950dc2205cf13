"""What a flow has others do: ops, and models that may use some."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, TypeAlias, final

from attrs import field, frozen
from typing_extensions import TypeVar

from bb.errors import WiringError
from bb.flows.base import Nameable, model_field
from bb.flows.expressions import Valued, as_value, as_values
from bb.flows.statement import as_names
from bb.flows.types import as_optional_text, as_text
from bb.models.base import Model

if TYPE_CHECKING:
    from bb.flows.expressions import Value

T = TypeVar("T", default=Any)

OnExhausted: TypeAlias = Literal["return", "error"]
ON_EXHAUSTED: Final[tuple[OnExhausted, ...]] = ("return", "error")


@final
@frozen(eq=False, repr=False)
class Call(Nameable, Valued, Generic[T]):
    """Dispatch an operation, by its name, through the envelope. Made by calling an op; a value of type `T` in a run.

    `args` is empty, or one value: a record (`Obj`) of the named arguments, or the only argument.
    """

    kind: ClassVar[str] = "call"
    op: str = field(converter=as_text)
    args: tuple[Value, ...] = field(default=(), converter=as_values)
    bound: Any = field(default=None, eq=False, repr=False, kw_only=True)
    """The `Op` it was made by; None where only the name is known, as in text."""
    model: Model | None = model_field()


@final
@frozen(init=False, eq=False, repr=False)
class AiSegment(Nameable, Valued):
    """A bounded model stage: a model works towards `goal` with the ops in `tools` only, for at most `max_rounds` rounds.

    Ops that only read run at once, and the model sees their results. All others are proposals: when the model finishes, they
    are put up for one approval and run in order, up to the first that fails. It finishes with an answer that calls nothing,
    or with a tool of the stage itself: `finalize`, or `decide` with a value.

    It comes to a record of `result` (the last text; if it was refused, the approver's reason), `reason` and `rounds`
    (answers used, over all resumes), `decision` if there is one, and `actions` (`id`, `op`, `status`, `result` of each
    proposal) if something was proposed. Reasons are `answer`, `decision`, `until`, `exhausted` (no rounds left: what was
    proposed is skipped) and `refused` (not approved: nothing proposed ran). With `on_exhausted="error"` a stage without
    rounds left fails instead, with `MaxRounds`.

    `until` names a symbol that the stage is to fill. Already filled, no model is asked; else the model fills it by `decide`
    with a value that is not None and not an empty text, list or record. Only that binds it: bind the record to another name.
    """

    kind: ClassVar[str] = "ai_segment"
    goal: Value = field(converter=as_value)
    tools: tuple[str, ...] = field(default=(), converter=as_names)
    max_rounds: int = 8
    until: str | None = field(default=None, converter=as_optional_text)
    on_exhausted: OnExhausted = field(default="return", kw_only=True)
    bound: tuple[Any, ...] = field(default=(), eq=False, repr=False, kw_only=True)
    """The ops among `tools` that were given as such, not by name."""
    model: Model | None = model_field()

    def __init__(
        self,
        goal: object,
        tools: Iterable[object] = (),
        max_rounds: int = 8,
        until: str | None = None,
        model: Model | None = None,
        *,
        on_exhausted: OnExhausted = "return",
    ) -> None:
        given = tools if isinstance(tools, str) else tuple(tools)
        bound = tuple(tool for tool in given if not isinstance(tool, str))
        self.__attrs_init__(goal, given, max_rounds, until, on_exhausted=on_exhausted, bound=bound, model=model)

    def __attrs_post_init__(self) -> None:
        if self.on_exhausted not in ON_EXHAUSTED:
            raise WiringError(
                f"{self.on_exhausted!r} says nothing of a stage without rounds",
                remedy=f"use one of {', '.join(ON_EXHAUSTED)}",
            )
