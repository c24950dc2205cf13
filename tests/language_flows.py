"""Hypothesis strategies that make flows with a spelling in every language: Python, text and JSON.

    @given(any_flow())
    def test_law(flow: bb.AnyFlow) -> None: ...

Every kind of flow and of value is drawn. Whatever needs a name has one, ids are unique within a flow, no model is set, and
what only one spelling could say is left out: a chain or a list with nothing to it, a record of bare literals outside a call,
a type for an event that nothing takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias, cast

from hypothesis import strategies as st

from bb.agents.agent import Agent
from bb.flows.calls import ON_EXHAUSTED
from bb.flows.control import BACKOFFS, Backoff
from bb.flows.expressions import (
    OPERATORS,
    PARSE_AS,
    UNARY,
    Expr,
    Field,
    Format,
    List_,
    Lit,
    Obj,
    Operator,
    Parse,
    ParseAs,
    Var,
)
from bb.flows.names import RESERVED
from bb.flows.options import DurableOptions
from bb.flows.tree import (
    TRIGGERS,
    AiSegment,
    All,
    AnyFlow,
    Assert,
    At,
    Await,
    Bare,
    Bind,
    Body,
    Call,
    Chain,
    Checkpoint,
    Debounce,
    DurableFlow,
    Each,
    Emit,
    Every,
    Flow,
    Group,
    Memo,
    NamedFlow,
    Notify,
    Once,
    One,
    Param,
    Peek,
    Repeat,
    Respond,
    Retry,
    Return,
    Run,
    Saga,
    Scope,
    Select,
    Step,
    Throttle,
    Timeout,
    Try,
    Unless,
    Webhook,
    When,
    WithTools,
)
from bb.flows.types import EFFECTS

Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]

_IDENTIFIER: Final = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True)
SYMBOLS: Final = st.sampled_from(["x", "y", "n", "user_1", "_"]) | _IDENTIFIER.filter(lambda name: name not in RESERVED)
"""Names that can be bound."""
KEYS: Final = SYMBOLS | st.sampled_from(sorted(RESERVED))
"""Names of arguments, which may be reserved words."""
IDS: Final = KEYS | st.from_regex(r"[A-Za-z0-9._:-]{1,8}", fullmatch=True)
"""Ids of flows and names of agents."""
OPS: Final = st.sampled_from(["read", "calendar.read", "a.when"]) | SYMBOLS
"""Names of operations."""
TEXTS: Final = st.sampled_from(["", "hello {name}", 'say "hi"\n\\{n}', "1", "ä €"]) | st.text(max_size=8)
"""Any text."""
TYPES: Final = st.recursive(
    st.sampled_from(["Any", "Bool", "Number", "String", "Order"]), lambda of: of.map("List<{}>".format), max_leaves=3
)
"""Types in the language's spelling."""
SPANS: Final = st.integers(0, 10**9).map(lambda ms: timedelta(milliseconds=ms)) | st.sampled_from(
    [timedelta(seconds=5), timedelta(minutes=2), timedelta(hours=24), timedelta(days=7)]
)
"""Lengths of time in whole milliseconds."""
CRONS: Final = st.sampled_from(["* * * * *", "*/5 9-17 * * MON-FRI", "30 2 1,15 * *", "0 0 29 2 *", "0 0 L * *"])
"""Cron expressions."""
ZONES: Final = st.sampled_from(["Europe/Berlin", "US/Pacific", "Australia/Lord_Howe", "UTC"])
"""Time zones."""
MOMENTS: Final = st.integers(0, 2**42).map(lambda ms: datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms))
"""Aware times in whole milliseconds."""
LITERALS: Final[st.SearchStrategy[object]] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**53, -(2**64), 10**30])
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda part: (
        st.lists(part, max_size=3) | st.dictionaries(st.sampled_from(["~", "kind", "v"]) | TEXTS, part, max_size=3)
    ),
    max_leaves=5,
)
"""Plain JSON data."""


def nameable(flow: Bare) -> Body:
    """The flow as something that can have a name: a trigger cannot, and a chain of it can."""
    return Chain((flow,)) if isinstance(flow, TRIGGERS) else flow


def at_the_top(flow: AnyFlow) -> NamedFlow | DurableFlow:
    """The flow as it can stand at the margin of a text."""
    return flow if isinstance(flow, NamedFlow | DurableFlow) else NamedFlow(nameable(flow), "top")


class _Maker:
    """One flow being drawn; it knows the ids given so far."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.ids: set[str] = set()

    def one(self, *choices: Callable[[int], Any]) -> Callable[[int], Any]:
        return cast("Callable[[int], Any]", self.draw(st.sampled_from(choices)))

    def maybe(self, strategy: st.SearchStrategy[Any]) -> Any:
        return self.draw(st.none() | strategy)

    def many(self, least: int, most: int) -> range:
        return range(self.draw(st.integers(least, most)))

    def symbol(self) -> str | None:
        return cast("str | None", self.maybe(SYMBOLS))

    # --- values ---

    def value(self, depth: int) -> Any:
        """Any value."""
        return self.literal(depth) if self.draw(st.booleans()) else self.dynamic(depth)

    def literal(self, _: int) -> Lit:
        return Lit(self.draw(LITERALS))

    def dynamic(self, depth: int) -> Any:
        """A value that is no literal, and holds none alone."""
        if depth <= 0:
            return self.one(self.var, self.peek, self.format)(0)
        return self.one(*self._values().values())(depth)

    def _values(self) -> Mapping[str, Callable[[int], Any]]:
        return {
            "var": self.var,
            "peek": self.peek,
            "fmt": self.format,
            "field": self.field,
            "parse": self.parse,
            "expr": self.expr,
            "obj": self.obj,
            "list": self.items,
            "call": self.call,
            "ai_segment": self.segment,
        }

    def var(self, _: int) -> Var:
        return Var(self.draw(SYMBOLS))

    def peek(self, _: int) -> Peek:
        return Peek(self.draw(SYMBOLS))

    def format(self, _: int) -> Format:
        return Format(self.draw(TEXTS))

    def field(self, depth: int) -> Field:
        inner: Any = self.var(0) if self.draw(st.booleans()) else self.call(depth - 1)
        part = KEYS | st.integers(0, 99) | TEXTS
        path = st.lists(part, min_size=1, max_size=3)
        if self.draw(st.booleans()):
            inner = Field(inner, self.draw(path), optional=True)
        return Field(inner, self.draw(path), optional=self.draw(st.booleans()))

    def parse(self, depth: int) -> Parse:
        return Parse(self.value(depth - 1), cast("ParseAs", self.draw(st.sampled_from(PARSE_AS))))

    def expr(self, depth: int) -> Expr:
        op = cast("Operator", self.draw(st.sampled_from(OPERATORS)))
        return Expr(op, tuple(self.value(depth - 1) for _ in range(1 if op in UNARY else 2)))

    def obj(self, depth: int) -> Obj:
        fields = {self.draw(KEYS | TEXTS): self.value(depth - 1) for _ in self.many(0, 2)}
        return Obj({**fields, self.draw(KEYS | TEXTS): self.dynamic(depth - 1)})

    def items(self, depth: int) -> List_:
        before, after = (tuple(self.value(depth - 1) for _ in self.many(0, 2)) for _ in "ab")
        return List_((*before, self.dynamic(depth - 1), *after))

    def call(self, depth: int) -> Call[Any]:
        op = self.draw(OPS)
        match self.draw(st.integers(0, 2)):
            case 0:
                return Call(op)
            case 1:
                return Call(op, (self.value(depth - 1),))
            case _:
                return Call(op, (Obj({self.draw(KEYS): self.value(depth - 1) for _ in self.many(1, 3)}),))

    def segment(self, depth: int) -> AiSegment:
        tools = self.draw(st.lists(OPS, max_size=2))
        rounds, until, then = (
            self.draw(st.integers(1, 9)),
            self.maybe(SYMBOLS),
            self.draw(st.sampled_from(ON_EXHAUSTED)),
        )
        return AiSegment(self.value(depth - 1), tools, rounds, until, on_exhausted=then)

    # --- flows ---

    def flow(self, depth: int) -> AnyFlow:
        """Any flow, named or not."""
        made = self.body_flow(depth)
        return self.named(made) if self.draw(st.integers(0, 2)) == 0 else made

    def named(self, made: Bare, *, params: bool = False) -> NamedFlow | DurableFlow:
        body = nameable(made)
        names = self.draw(st.lists(SYMBOLS, max_size=2, unique=True)) if params else ()
        kept = tuple(Param(name, self.draw(TYPES)) for name in names)
        if self.draw(st.booleans()):
            return NamedFlow(body, self.id(), kept)
        options = DurableOptions(
            forward_compatible=self.draw(st.booleans()),
            retries=self.draw(st.integers(0, 3)),
            ttl=self.maybe(SPANS.filter(bool)),
            resume_on_reregister=self.draw(st.booleans()),
        )
        return DurableFlow(body, self.id(), options, kept)

    def id(self) -> str:
        id = first = self.draw(IDS)
        while id in self.ids:
            id = f"{first}{len(self.ids)}"
        self.ids.add(id)
        return cast(str, id)

    def body_flow(self, depth: int) -> Bare:
        """Any flow without an id."""
        leaves, holders = self.leaves(), self.holders()
        kinds = leaves if depth <= 0 else {**leaves, **holders}
        return cast("Bare", self.one(*kinds.values())(depth))

    def body(self, depth: int) -> tuple[AnyFlow, ...]:
        """The statements of a block: at least one, and no unnamed chain among them."""
        made: list[AnyFlow] = []
        for _ in self.many(1, 3):
            step = self.flow(depth - 1)
            made.append(self.named(step) if isinstance(step, Chain) else step)
        return tuple(made)

    def rest(self, depth: int) -> tuple[AnyFlow, ...]:
        """A block that may be missing."""
        return self.body(depth) if self.draw(st.booleans()) else ()

    def leaves(self) -> Mapping[type, Callable[[int], Bare]]:
        draw, value = self.draw, self.value
        typed, effect = TYPES, st.sampled_from(EFFECTS)
        return {
            Flow: lambda _: Flow().with_agent(*(self.agent() for _ in self.many(0, 2))),
            Respond: lambda _: Respond(),
            Notify: lambda _: Notify(name=draw(IDS)),
            Call: lambda _: self.call(2),
            AiSegment: lambda _: self.segment(2),
            Bind: lambda _: Bind(draw(SYMBOLS), value(2), self.maybe(typed), self.maybe(effect)),
            Emit: lambda _: Emit(value(2)),
            Return: lambda _: Return(value(2)),
            Assert: lambda _: Assert(value(2), draw(TEXTS)),
            Run: lambda _: Run(draw(IDS), self.maybe(SYMBOLS)),
            Memo: lambda _: Memo(
                draw(SYMBOLS), self.one(self.call, self.segment)(1), self.maybe(typed), self.maybe(effect)
            ),
            Peek: lambda _: self.peek(0),
            Await: lambda _: self.wait(),
            Checkpoint: lambda _: Checkpoint(draw(TEXTS)),
        }

    def agent(self) -> Agent[Any]:
        return Agent(self.draw(IDS), self.maybe(TEXTS)).selects(*self.draw(st.lists(IDS, max_size=2)))

    def wait(self) -> Await:
        bind = self.maybe(SYMBOLS)
        type = self.maybe(TYPES) if bind else None
        return Await(self.draw(TEXTS), bind, type, self.value(1) if self.draw(st.booleans()) else None)

    def holders(self) -> Mapping[type, Callable[[int], Bare]]:
        draw, value, body, rest = self.draw, self.value, self.body, self.rest
        count = st.integers(1, 9)
        return {
            Chain: self.chain,
            Select: lambda depth: Select(*(self.member(depth, selectable=True) for _ in self.many(1, 2))),
            All: lambda depth: All(*(self.member(depth) for _ in self.many(1, 3))),
            One: lambda depth: One(*(self.member(depth) for _ in self.many(1, 3))),
            Group: lambda depth: Group(*(self.member(depth) for _ in self.many(1, 3))),
            When: lambda depth: When(value(2), *body(depth), otherwise=rest(depth)),
            Unless: lambda depth: Unless(value(2), *body(depth)),
            Each: self.each,
            Repeat: lambda depth: Repeat(
                draw(count), *body(depth), until=value(1) if draw(st.booleans()) else None, collect=self.symbol()
            ),
            Try: self.attempt,
            Retry: lambda depth: Retry(
                draw(count),
                *body(depth),
                backoff=cast("Backoff", draw(st.sampled_from(BACKOFFS))),
                delay=draw(SPANS),
                bind=self.symbol(),
            ),
            Timeout: lambda depth: Timeout(draw(SPANS), *body(depth), bind=self.symbol()),
            WithTools: lambda depth: WithTools(draw(st.lists(OPS, max_size=2)), *body(depth), bind=self.symbol()),
            Throttle: lambda depth: Throttle(draw(TEXTS), *body(depth), max=draw(count), per=draw(SPANS)),
            Debounce: lambda depth: Debounce(draw(TEXTS), *body(depth), wait=draw(SPANS)),
            Once: lambda depth: Once(draw(TEXTS), *body(depth), bind=self.symbol()),
            Scope: self.scope,
            Every: lambda depth: Every(draw(CRONS), *rest(depth), tz=self.maybe(ZONES)),
            At: lambda depth: At(draw(MOMENTS) if draw(st.booleans()) else self.dynamic(2), *rest(depth)),
            Webhook: lambda depth: Webhook(draw(IDS), *rest(depth)),
            Saga: lambda depth: Saga(*(Step(*body(depth), undo=rest(depth)) for _ in self.many(1, 2))),
        }

    def chain(self, depth: int) -> Chain:
        first, *others = self.body(depth)
        return Chain((first, *(others or self.body(depth))))

    def member(self, depth: int, *, selectable: bool = False) -> AnyFlow:
        made = self.flow(depth - 1)
        if selectable and not isinstance(made, NamedFlow | DurableFlow):
            return self.named(made)
        return made

    def each(self, depth: int) -> Each:
        collect = self.maybe(SYMBOLS)
        flat = collect is not None and self.draw(st.booleans())
        return Each(self.draw(SYMBOLS), self.value(2), *self.body(depth), collect=collect, flat=flat)

    def attempt(self, depth: int) -> Try:
        handler = self.rest(depth)
        return Try(*self.body(depth), catch=self.maybe(SYMBOLS) if handler else None, handler=handler)

    def scope(self, depth: int) -> Scope:
        held = self.draw(st.booleans())
        return Scope(
            *self.body(depth),
            acquire=self.value(2) if held else None,
            bind=self.draw(SYMBOLS) if held else None,
            finally_=self.rest(depth),
        )


@st.composite
def any_flow(draw: Draw, depth: int = 2) -> AnyFlow:
    """A flow of any kind, holding flows up to `depth` deep; named, durable and with parameters, or neither."""
    maker = _Maker(draw)
    made = maker.body_flow(depth)
    return maker.named(made, params=True) if draw(st.booleans()) else made


@st.composite
def named_flow(draw: Draw, depth: int = 2) -> NamedFlow | DurableFlow:
    """A flow as it stands at the top of a source text: with an id, durable or not, with parameters or without."""
    maker = _Maker(draw)
    return maker.named(maker.body_flow(depth), params=True)


@st.composite
def flow_of(draw: Draw, kind: type[Bare]) -> Bare:
    """A flow of one kind, with small parts."""
    maker = _Maker(draw)
    return {**maker.leaves(), **maker.holders()}[kind](1)


@st.composite
def any_value(draw: Draw, depth: int = 2) -> object:
    """A value of any kind, holding values up to `depth` deep."""
    return _Maker(draw).value(depth)
