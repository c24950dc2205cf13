"""`Types`: the classes whose values may be saved, and the only ones a record can bring back."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from enum import Enum, Flag
from functools import cached_property, lru_cache
from typing import Any, Final, Literal, TypeAlias, TypeVar, overload

import attrs
from attrs import frozen

from bb.errors import WiringError
from bb.messages import Input, Message, Request, ToolCall, ToolResult, ToolSpec, Usage
from bb.record import Record
from bb.trace import Event

C = TypeVar("C")

Kind: TypeAlias = Literal["enum", "flag", "named", "fields", "custom"]

UNSET: Final = object()
_HEAP: Final = 1 << 9  # the flag of classes made by a class statement; others keep state that Python does not show


@frozen(eq=False, repr=False)
class Part(Record):
    """A field of a class: its name, a maker of its default (or None).

    `always` says that `__init__` always sets it, `counts` that it counts in equality.
    """

    name: str
    default: Callable[[], object] | None = None
    always: bool = True
    counts: bool = True


@frozen(eq=False, repr=False)
class Kept:
    """How values of one class are kept."""

    name: str
    cls: Any
    kind: Kind
    parts: tuple[Part, ...] = ()
    names: frozenset[str] = frozenset()
    """Names that may stand in an instance's `__dict__`: fields, and caches that can be made again."""
    rehash: bool = False
    """The class caches its hash in a slot that only `__init__` fills."""
    dump: Callable[[Any], object] | None = None
    load: Callable[[Any], Any] | None = None


class Types:
    """The registry of an app: `app.types.register(Report)`, or `@app.types.register` above the class.

    A class is saved under the name `module:qualname`. The classes that fields are annotated with come along.
    """

    def __init__(self) -> None:
        self._by_class: dict[type, Kept] = {}
        self._by_name: dict[str, Kept] = {}
        self.register(Message, ToolCall, ToolResult, ToolSpec, Usage, Request, Input, Event)

    @overload
    def register(
        self,
        cls: type[C],
        /,
        *,
        dump: Callable[[C], object] | None = None,
        load: Callable[[Any], C] | None = None,
        former: tuple[str, ...] = (),
    ) -> type[C]: ...

    @overload
    def register(self, *classes: type) -> None: ...

    def register(
        self,
        *classes: type,
        dump: Callable[[Any], object] | None = None,
        load: Callable[[Any], Any] | None = None,
        former: tuple[str, ...] = (),
    ) -> Any:
        """Let values of these classes be saved: attrs classes, dataclasses, named tuples and Enums.

        Any other class takes `dump`, which gives a value that can be saved, and `load`, which takes it back. `former` are
        names (`module:qualname`) the class had when older records were written.

        Raises:
            WiringError: the class is of another kind, or a second class of one name.
        """
        if (dump is None) != (load is None):
            raise WiringError("dump without load, or load without dump", remedy="give both, or neither")
        for cls in classes:
            custom = dump is not None and isinstance(cls, type)
            kept = Kept(name_of(cls), cls, "custom", dump=dump, load=load) if custom else describe(cls)
            if kept is None:
                raise WiringError(
                    f"{getattr(cls, '__qualname__', cls)!s} cannot be registered as it is",
                    remedy="give dump= and load=",
                )
            self._keep(kept, former)
        return classes[0] if len(classes) == 1 else None

    def register_annotations(self, type_: Any) -> None:
        """Register every attrs class, dataclass, named tuple and Enum that an annotation names, at any depth."""
        if isinstance(type_, type) and not typing.get_args(type_):
            kept = None if type_ in self._by_class else describe(type_)
            if kept is not None:
                self._keep(kept, ())
        elif isinstance(type_, typing.NewType):
            self.register_annotations(type_.__supertype__)
        elif hasattr(type_, "__value__"):  # an alias by `type X = ...`
            self.register_annotations(type_.__value__)
        else:
            if isinstance(typing.get_origin(type_), type):
                self.register_annotations(typing.get_origin(type_))
            for arg in typing.get_args(type_):
                self.register_annotations(type(arg) if isinstance(arg, Enum) else arg)

    def of(self, cls: type) -> Kept | None:
        """How values of a class are kept; None when it is not registered."""
        return self._by_class.get(cls)

    def named(self, name: str) -> Kept | None:
        """The class of a name in a record; None when it is not registered."""
        return self._by_name.get(name)

    def _keep(self, kept: Kept, former: tuple[str, ...]) -> None:
        for name in (kept.name, *former):
            other = self._by_name.get(name)
            if other is not None and other.cls is not kept.cls:
                raise WiringError(f"two classes are named {name}", remedy="rename one of them")
        known = kept.cls in self._by_class
        if known and kept.kind != "custom":
            kept = self._by_class[kept.cls]  # registered twice, or with functions of its own before
        self._by_class[kept.cls] = kept
        self._by_name.update(dict.fromkeys((kept.name, *former), kept))
        if not known and kept.kind in ("fields", "named"):
            for hint in _hints(kept.cls).values():
                self.register_annotations(hint)


def name_of(cls: type) -> str:
    """The name a class is saved under."""
    return f"{cls.__module__}:{cls.__qualname__}"


@lru_cache(maxsize=1024)
def describe(cls: Any) -> Kept | None:
    """How values of a class are kept by its own structure; None when it has none that bb knows."""
    if not isinstance(cls, type):
        return None
    name = name_of(cls)
    if issubclass(cls, Enum):
        return Kept(name, cls, "flag" if issubclass(cls, Flag) else "enum") if cls.__members__ else None
    named = getattr(cls, "_fields", None)
    if issubclass(cls, tuple) and isinstance(named, tuple):
        return Kept(name, cls, "named", tuple(Part(str(part)) for part in named))
    if any(map(_hidden, cls.__mro__)):
        return None
    if attrs.has(cls):
        parts = tuple(_attrs_part(attribute) for attribute in attrs.fields(cls))
    elif dataclasses.is_dataclass(cls):
        parts = tuple(_dataclass_part(field) for field in dataclasses.fields(cls))
    else:
        return None
    caches = {key for base in cls.__mro__ for key, value in vars(base).items() if isinstance(value, cached_property)}
    names = frozenset({part.name for part in parts} | caches | {"__orig_class__", "_attrs_cached_hash"})
    rehash = "_attrs_cached_hash" in getattr(getattr(cls.__hash__, "__code__", None), "co_names", ())
    return Kept(name, cls, "fields", parts, names, rehash)


def _hidden(base: type) -> bool:
    """Whether a base keeps state that is in no field: one written in C, or with slots of its own."""
    if base is object:
        return False
    own = vars(base)
    if not base.__flags__ & _HEAP:
        return True
    if "__attrs_attrs__" in own or "__dataclass_fields__" in own:
        return False
    slots = own.get("__slots__", ())
    return bool(({slots} if isinstance(slots, str) else set(slots)) - {"__dict__", "__weakref__"})


def _attrs_part(attribute: attrs.Attribute[Any]) -> Part:
    default: Any = attribute.default
    if default is attrs.NOTHING:
        return Part(attribute.name, None, attribute.init, bool(attribute.eq))
    if not isinstance(default, attrs.Factory):  # type: ignore[arg-type]  # a class that is typed as a function
        return Part(attribute.name, lambda: default, counts=bool(attribute.eq))
    return Part(attribute.name, None if default.takes_self else default.factory, counts=bool(attribute.eq))


def _dataclass_part(field: dataclasses.Field[Any]) -> Part:
    if field.default_factory is not dataclasses.MISSING:
        return Part(field.name, field.default_factory, counts=bool(field.compare))
    if field.default is not dataclasses.MISSING:
        return Part(field.name, lambda: field.default, counts=bool(field.compare))
    return Part(field.name, None, field.init, bool(field.compare))


def _hints(cls: type) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except Exception:  # a name that exists for the type checker only; what it names is refused when it is saved
        return {}
