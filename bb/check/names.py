"""Rules of names: what may be one, what is bound, and what a literal certainly is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, assert_never

from bb.check.scene import Rule, Scene
from bb.check.sites import Site, sites
from bb.check.spots import Spot, spots
from bb.flows.expressions import List_, Lit, Var
from bb.flows.names import is_symbol
from bb.flows.tree import (
    AiSegment,
    All,
    AnyFlow,
    Assert,
    At,
    Await,
    Bare,
    Bind,
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
    Peek,
    Repeat,
    Respond,
    Retry,
    Return,
    Run,
    Saga,
    Scope,
    Select,
    Throttle,
    Timeout,
    Try,
    Unless,
    Webhook,
    When,
    WithTools,
    flow_id,
)
from bb.flows.types import EFFECTS

if TYPE_CHECKING:
    from bb.flows.expressions import Value


def declared(body: Bare) -> tuple[str, ...]:
    """The symbols that a statement itself binds, without those of the statements and values inside it."""
    match body:
        case Bind(name=name) | Memo(name=name):
            return (name,)
        case Each(item=item, collect=collect):
            return (item, collect) if collect is not None else (item,)
        case (
            Repeat(collect=name)
            | Try(catch=name)
            | Retry(bind=name)
            | Timeout(bind=name)
            | WithTools(bind=name)
            | Run(bind=name)
            | Await(bind=name)
            | Once(bind=name)
            | Scope(bind=name)
        ):
            return (name,) if name is not None else ()
        case (
            Flow()
            | Chain()
            | Select()
            | All()
            | One()
            | Group()
            | Respond()
            | Notify()
            | Every()
            | At()
            | Webhook()
            | Call()
            | AiSegment()
            | Emit()
            | When()
            | Unless()
            | Return()
            | Assert()
            | Throttle()
            | Debounce()
            | Peek()
            | Checkpoint()
            | Saga()
        ):
            return ()
        case unreachable:
            assert_never(unreachable)


def _fit(name: object) -> bool:
    """Whether it can be bound; what comes from a builder may not even be a text."""
    return isinstance(name, str) and is_symbol(name)


def defined(found: Sequence[Site]) -> Iterator[str]:
    """Every symbol that something in a tree binds, wherever: the order does not count."""
    for site in found:
        yield from filter(_fit, declared(site.body))
        if isinstance(site.flow, NamedFlow | DurableFlow):
            yield from (param.name for param in site.flow.params)
        if isinstance(site.body, All):
            yield from filter(is_symbol, map(flow_id, site.body.members))
        for spot in spots(site):
            if isinstance(spot.value, AiSegment) and spot.value.until is not None:
                yield spot.value.until


def _name(site: Site, _: Scene) -> Iterator[str]:
    params = site.flow.params if isinstance(site.flow, NamedFlow | DurableFlow) else ()
    for name in (*(param.name for param in params), *declared(site.body)):
        if not _fit(name):
            yield (
                f"{name!r} is no name of a symbol; use letters, digits and _, not beginning with a digit, and no word of "
                "the language"
            )


def _param_dup(site: Site, _: Scene) -> Iterator[str]:
    names = [param.name for param in site.flow.params] if isinstance(site.flow, NamedFlow | DurableFlow) else []
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield f"two parameters are named {name!r}; rename one"


def _unbound(spot: Spot, scene: Scene) -> Iterator[str]:
    if isinstance(spot.value, Var) and spot.value.name not in scene.defined:
        yield (
            f"nothing binds {spot.value.name!r}; bind it, declare it with with_params(...), or use Peek for what may be missing"
        )


def _branch_binds(site: Site, _: Scene) -> Iterator[str]:
    if not isinstance(site.body, All | Group):
        return
    taken: dict[str, int] = {}
    told: set[str] = set()
    for index, member in enumerate(site.body.members):
        names = set(_bound_by(member))
        if isinstance(site.body, All) and isinstance(member, NamedFlow | DurableFlow) and is_symbol(member.id):
            names.add(member.id)
        for name in sorted(names):
            if taken.setdefault(name, index) != index and name not in told:
                told.add(name)
                yield f"two members bind {name!r}, and run at once; use a name of its own in each"


def _bound_by(member: AnyFlow) -> Iterator[str]:
    """The symbols that are different after a member has run; a loop gives the symbol of its item back."""
    for site in sites(member):
        names = declared(site.body)
        yield from filter(_fit, names[1:] if isinstance(site.body, Each) else names)


def _effect(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Bind | Memo) and site.body.effect is not None and site.body.effect not in EFFECTS:
        yield f"{site.body.effect!r} is no effect; use one of {', '.join(EFFECTS)}"


def _type_clash(site: Site, _: Scene) -> Iterator[str]:
    body = site.body
    if isinstance(body, Bind) and body.type is not None and not _fits(body.value, body.type):
        yield f"{body.name} is declared {body.type}, and its value is certainly none; change one of them"


def _fits(value: Value, type: str) -> bool:
    """Whether a value may be of a type; only literals, and lists of them, are known for certain not to be."""
    match value:
        case Lit(value=literal):
            return _is(literal, type)
        case List_(items=items):
            return _list_fits(type, lambda of: all(_fits(item, of) for item in items))
        case _:
            return True


_SCALARS: Final = {"Bool": (bool,), "Number": (int, float), "String": (str,)}


def _is(literal: object, type: str) -> bool:
    if isinstance(literal, list | tuple):
        items = literal
        return _list_fits(type, lambda of: all(_is(item, of) for item in items))
    if not isinstance(literal, bool | int | float | str):
        return True
    if type in _SCALARS:
        return isinstance(literal, _SCALARS[type]) and isinstance(literal, bool) == (type == "Bool")
    return not type.startswith("List<")


def _list_fits(type: str, items_are: Callable[[str], bool]) -> bool:
    if type.startswith("List<"):
        return items_are(type.removeprefix("List<").removesuffix(">"))
    return type not in _SCALARS


SITES: Final = (
    Rule("name", _name),
    Rule("param-dup", _param_dup),
    Rule("branch-binds", _branch_binds),
    Rule("effect", _effect),
    Rule("type-clash", _type_clash),
)
SPOTS: Final = (Rule("unbound", _unbound),)
