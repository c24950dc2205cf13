"""The tree: the sealed union of all kinds of flow, and how to go down it.

    AnyFlow = Body | Trigger | NamedFlow | DurableFlow

`Body` are the kinds that can be named: those that speak (`bb.flows.groups`), `Chain`, and each `LanguageNode` (`bb.flows.calls`,
`bb.flows.control`, `bb.flows.durability`). A `Trigger` (`bb.flows.triggers`) has neither an id nor a model: what it starts
later has its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias, assert_never

from bb.flows.base import Chain, DurableFlow, NamedFlow, Param, body_of, flow_id, segment, slot
from bb.flows.calls import AiSegment, Call
from bb.flows.control import Assert, Bind, Each, Emit, Repeat, Retry, Return, Run, Timeout, Try, Unless, When, WithTools
from bb.flows.durability import Await, Checkpoint, Debounce, Memo, Once, Peek, Saga, Scope, Step, Throttle
from bb.flows.groups import All, Flow, Group, Notify, One, Respond, Select, Send
from bb.flows.triggers import TRIGGERS, At, Every, Trigger, Webhook, gathered, takes_rest

LanguageNode: TypeAlias = (
    Call[Any]
    | AiSegment
    | Bind
    | Emit
    | When
    | Unless
    | Each
    | Repeat
    | Return
    | Assert
    | Try
    | Retry
    | Timeout
    | WithTools
    | Throttle
    | Debounce
    | Run
    | Memo
    | Peek
    | Await
    | Checkpoint
    | Once
    | Scope
    | Saga
)
"""The nodes of the language: the statements that do something else than speak over the chat."""
Body: TypeAlias = Flow | Chain | Select | All | One | Group | Respond | Notify | LanguageNode
Bare: TypeAlias = Body | Trigger
"""Every kind of flow but the two that name one."""
AnyFlow: TypeAlias = Bare | NamedFlow | DurableFlow
"""Every kind of flow. A `match` over it that ends in `assert_never` is exhaustive."""

KINDS: Final[tuple[type[Bare], ...]] = (
    Flow,
    Chain,
    Select,
    All,
    One,
    Group,
    Respond,
    Notify,
    Every,
    At,
    Webhook,
    Call,
    AiSegment,
    Bind,
    Emit,
    When,
    Unless,
    Each,
    Repeat,
    Return,
    Assert,
    Try,
    Retry,
    Timeout,
    WithTools,
    Throttle,
    Debounce,
    Run,
    Memo,
    Peek,
    Await,
    Checkpoint,
    Once,
    Scope,
    Saga,
)


def slots(flow: AnyFlow) -> tuple[tuple[str, tuple[AnyFlow, ...]], ...]:
    """The bodies of a flow by the name of their slot, in the order of its fields."""
    match body_of(flow):
        case Chain(steps=steps):
            return (("body", steps),)
        case Select(members=members) | All(members=members) | One(members=members) | Group(members=members):
            return (("branch", members),)
        case When(then=then, otherwise=otherwise):
            return (("then", then), ("otherwise", otherwise))
        case Try(body=body, handler=handler):
            return (("body", body), ("handler", handler))
        case Scope(body=body, finally_=finally_):
            return (("body", body), ("finally", finally_))
        case Saga(steps=arms):
            return tuple(
                arm for i, step in enumerate(arms) for arm in ((f"step{i}", step.body), (f"undo{i}", step.undo))
            )
        case (
            Unless(body=body)
            | Each(body=body)
            | Repeat(body=body)
            | Retry(body=body)
            | Timeout(body=body)
            | WithTools(body=body)
            | Throttle(body=body)
            | Debounce(body=body)
            | Once(body=body)
            | Every(body=body)
            | At(body=body)
            | Webhook(body=body)
        ):
            return (("body", body),)
        case (
            Flow()
            | Respond()
            | Notify()
            | Call()
            | AiSegment()
            | Bind()
            | Emit()
            | Return()
            | Assert()
            | Run()
            | Memo()
            | Peek()
            | Await()
            | Checkpoint()
        ):
            return ()
        case unreachable:
            assert_never(unreachable)


def children(flow: AnyFlow) -> tuple[tuple[str, AnyFlow], ...]:
    """The direct parts of a flow, each with the path segment it has there.

    A named child is its id; an unnamed one `slot~kind.index`, unique among its siblings because ids hold no `~`.
    """
    return tuple(child for name, flows in slots(flow) for child in slot(name, flows))


def build(kind: Any, fields: dict[str, object]) -> Any:
    """A node of a kind from its fields by name.

    Raises:
        WiringError: a field is of the wrong kind.
    """
    if "__attrs_init__" not in kind.__dict__:
        return kind(**fields)
    made = kind.__new__(kind)
    made.__attrs_init__(**fields)
    return made


def walk(flow: AnyFlow, path: str = "") -> Iterator[tuple[str, AnyFlow]]:
    """Every flow of the tree with its absolute path, parents first. The root's segment is its id, or `flow~kind.0`."""
    path = path or segment("flow", 0, flow)
    yield path, flow
    for name, child in children(flow):
        yield from walk(child, f"{path}/{name}")


def picks_of(steps: Sequence[AnyFlow], outer: frozenset[str] | None = None) -> frozenset[str] | None:
    """The ids that the `Select` which a selection meets in `steps` offers; `outer` when it passes all of them.

    A selection survives whatever does not ask agents; None when it is dropped, or nobody can tell what it meets.
    """
    for index, step in enumerate(steps):
        match body_of(step):
            case Every(body=()) | At(body=()) | Webhook(body=()):
                return outer  # the rest runs later
            case Every() | At() | Webhook():
                continue
            case Select(members=members):
                return frozenset(map(flow_id, members))
            case Chain(steps=inner):
                return picks_of((*inner, *steps[index + 1 :]), outer)
            case Respond() | Notify() | Call() | Bind() | Emit() | Assert() | Memo() | Peek() | Await() | Checkpoint():
                continue
            case (
                Flow()
                | All()
                | One()
                | Group()
                | AiSegment()
                | When()
                | Unless()
                | Each()
                | Repeat()
                | Return()
                | Try()
                | Retry()
                | Timeout()
                | WithTools()
                | Throttle()
                | Debounce()
                | Run()
                | Once()
                | Scope()
                | Saga()
            ):
                return None
            case unreachable:
                assert_never(unreachable)
    return outer


def is_durable(flow: AnyFlow) -> bool:
    """Whether the flow or any part of it is durable, and so whether running it touches the store."""
    return any(isinstance(part, DurableFlow) for _, part in walk(flow))


__all__ = [
    "KINDS",
    "TRIGGERS",
    "AiSegment",
    "All",
    "AnyFlow",
    "Assert",
    "At",
    "Await",
    "Bare",
    "Bind",
    "Body",
    "Call",
    "Chain",
    "Checkpoint",
    "Debounce",
    "DurableFlow",
    "Each",
    "Emit",
    "Every",
    "Flow",
    "Group",
    "Memo",
    "NamedFlow",
    "Notify",
    "Once",
    "One",
    "Param",
    "Peek",
    "Repeat",
    "Respond",
    "Retry",
    "Return",
    "Run",
    "Saga",
    "Scope",
    "Select",
    "Send",
    "Step",
    "Throttle",
    "Timeout",
    "Trigger",
    "Try",
    "Unless",
    "Webhook",
    "When",
    "WithTools",
    "body_of",
    "build",
    "children",
    "flow_id",
    "gathered",
    "is_durable",
    "picks_of",
    "segment",
    "slots",
    "takes_rest",
    "walk",
]
