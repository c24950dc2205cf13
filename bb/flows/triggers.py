"""The kinds whose body runs later, as a job of its own: by a timetable, at a time, or when somebody calls.

A trigger that is given a body schedules that, and the flow goes on. One without takes the rest of the statements around it
as its body: they run later, and the present run is over there.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias, final

from attrs import field, frozen

from bb.cron import as_moment, check_cron, to_moment
from bb.flows.base import Chainable, changed, flat, refuse_twins
from bb.flows.expressions import Lit, as_value
from bb.ids import check_id

if TYPE_CHECKING:
    from bb.flows.expressions import Value
    from bb.flows.tree import AnyFlow


@final
@frozen(init=False, eq=False, repr=False)
class Every(Chainable):
    """The body at every time of a cron expression, in the time zone `tz` (an IANA name; the local one by default).

    Raises:
        InvalidCron: it is no cron expression, or never comes due, or there is no such zone.
    """

    kind: ClassVar[str] = "every"
    cron: str
    body: tuple[AnyFlow, ...] = field(default=(), converter=flat)
    tz: str | None = None

    def __init__(self, cron: str, *body: AnyFlow, tz: str | None = None) -> None:
        self.__attrs_init__(cron, body, tz)

    def __attrs_post_init__(self) -> None:
        check_cron(self.cron, self.tz)
        object.__setattr__(self, "cron", " ".join(self.cron.split()))
        refuse_twins("Every", self.body)


def as_time(value: object) -> datetime | Value:
    """A time in UTC; or what comes to one in a run, which a text with braces is too.

    Raises:
        InvalidCron: it is a literal, and no time with a zone.
        NotSavable: it holds something that has no literal form.
    """
    if isinstance(value, datetime):
        return as_moment(value)
    match as_value(value):
        case Lit(value=literal) as found:
            return found if isinstance(literal, str) and "{" in literal else to_moment(literal)
        case found:
            return found


@final
@frozen(init=False, eq=False, repr=False)
class At(Chainable):
    """The body once, at this time or as soon after it as an app is started; to the millisecond.

    The time is a datetime or a text in ISO 8601, with a zone, or a value that comes to one when the trigger is reached.

    Raises:
        InvalidCron: the time has no zone, or is none.
    """

    kind: ClassVar[str] = "at"
    when: datetime | Value = field(converter=as_time)
    body: tuple[AnyFlow, ...] = field(default=(), converter=flat)

    def __init__(self, when: datetime | str | Value, *body: AnyFlow) -> None:
        self.__attrs_init__(when, body)

    def __attrs_post_init__(self) -> None:
        refuse_twins("At", self.body)


@final
@frozen(init=False, eq=False, repr=False)
class Webhook(Chainable):
    """The body whenever somebody calls `id`, with what they sent as its payload.

    Raises:
        InvalidId: not 1 to 128 characters of `[A-Za-z0-9._:-]`.
    """

    kind: ClassVar[str] = "webhook"
    id: str
    body: tuple[AnyFlow, ...] = field(default=(), converter=flat)

    def __init__(self, id: str, *body: AnyFlow) -> None:
        self.__attrs_init__(id, body)

    def __attrs_post_init__(self) -> None:
        check_id(self.id, "webhook id")
        refuse_twins("Webhook", self.body)


Trigger: TypeAlias = Every | At | Webhook
TRIGGERS: Final = (Every, At, Webhook)


def takes_rest(flow: object) -> bool:
    """Whether it is a trigger without a body, to which what follows belongs."""
    return isinstance(flow, Every | At | Webhook) and not flow.body


def gathered(steps: Sequence[AnyFlow]) -> tuple[AnyFlow, ...]:
    """Statements as they run: what follows a trigger without a body is its body."""
    for index, step in enumerate(steps):
        if isinstance(step, Every | At | Webhook) and not step.body:
            rest = tuple(steps[index + 1 :])
            return (*steps[:index], changed(step, body=rest)) if rest else tuple(steps)
    return tuple(steps)
