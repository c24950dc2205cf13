"""What a type is made of: its fields, its choices, and how the members of a union are told apart."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, Union, cast, get_args, get_origin

import attrs
from attrs import frozen
from typing_extensions import TypeAliasType

from bb.errors import WiringError
from bb.record import Record
from bb.redaction import redacted
from bb.schema.doc import Doc

Choice: typing.TypeAlias = tuple[type, object]

KIND: Final[Mapping[object, str]] = types.MappingProxyType(
    {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array", dict: "object"}
)
"""What JSON calls the plain types."""
ARRAYS: Final[Mapping[object, Any]] = types.MappingProxyType(
    {
        list: list,
        MutableSequence: list,
        tuple: tuple,
        Sequence: tuple,
        set: set,
        frozenset: frozenset,
        AbstractSet: frozenset,
    }
)
"""The types that are an array in JSON, and the class of their values."""
MAPS: Final = (dict, Mapping, MutableMapping)
_SCALARS: Final = (str, int, bool, float, type(None))


@frozen(eq=False, repr=False)
class Field(Record):
    """A field of a class: its Python name, its name in JSON, its type, whether it must be given, its description.

    One that is optional without having a default is filled with None when it is left out.
    """

    attribute: str
    name: str
    type: Any
    required: bool
    filled: bool
    doc: str


def label(type_: object) -> str:
    """The name of a type as its author wrote it."""
    if isinstance(type_, typing.NewType):
        return type_.__name__
    return type_.__qualname__ if isinstance(type_, type) and not get_args(type_) else str(type_)


def no_schema(type_: object, why: str = "") -> WiringError:
    """The error for a type that JSON cannot say."""
    return WiringError(
        f"{label(type_)} has no JSON schema{': ' if why else ''}{why}",
        remedy="use an attrs class of str, int, float, bool, Literal, Enum, list, dict and such classes",
    )


def got(value: object) -> str:
    """A value in an error message."""
    text = redacted(repr(value))  # before it is cut, as half a secret would not be found any more
    shown = text if len(text) <= 60 else text[:57] + "..."
    return f"{KIND.get(type(value), type(value).__name__)} {shown}"


def origin(type_: Any) -> Any:
    """`list` of `list[int]`; a type without arguments is its own."""
    found: Any = get_origin(type_)
    return type_ if found is None else found


def plain(type_: Any) -> Any:
    """The type without `Annotated`, `NewType`, `Final` and alias names."""
    while True:
        if get_origin(type_) in (Annotated, Final):
            type_ = get_args(type_)[0]
        elif isinstance(type_, TypeAliasType) or type(type_).__name__ == "TypeAliasType":
            type_ = type_.__value__
        elif isinstance(type_, typing.NewType):
            type_ = type_.__supertype__
        else:
            return type_


def is_class(type_: Any) -> bool:
    """An attrs class or a dataclass."""
    return isinstance(type_, type) and not get_args(type_) and (attrs.has(type_) or dataclasses.is_dataclass(type_))


def is_enum(type_: Any) -> bool:
    """An `Enum` class."""
    return isinstance(type_, type) and not get_args(type_) and issubclass(type_, Enum)


def is_union(type_: Any) -> bool:
    """`A | B`, `Union[A, B]` or `Optional[A]`."""
    return get_origin(type_) in (Union, types.UnionType)


def is_choice(type_: Any) -> bool:
    """An `Enum` or a `Literal`: one of a few values."""
    return is_enum(type_) or get_origin(type_) is Literal


def members(union: Any) -> list[Any]:
    """The members of a union, nested ones unfolded."""
    out: list[Any] = []
    for member in get_args(union):
        bare = plain(member)
        out += members(bare) if is_union(bare) else [type(None) if bare is None else bare]
    return out


def choices(type_: Any) -> dict[Choice, object]:
    """Which JSON value, with its exact type, stands for which member of an `Enum` or `Literal`."""
    out: dict[Choice, object] = {}
    for member in type_ if is_enum(type_) else get_args(type_):
        value = member.value if isinstance(member, Enum) else member
        if type(value) not in _SCALARS:
            raise no_schema(type_, f"{value!r} is no JSON value")
        out[type(value), value] = member
    return out


def choice(value: object) -> Choice | None:
    """The key of a JSON value in `choices`; None for what cannot be one."""
    return (type(value), value) if type(value) in _SCALARS else None


@lru_cache(maxsize=1024)
def fields(cls: type) -> tuple[Field, ...]:
    """The fields of a class that JSON gives, in order."""
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception as error:
        raise no_schema(cls, f"its annotations do not resolve ({error})") from error
    parts: Iterable[Any] = attrs.fields(cls) if attrs.has(cls) else dataclasses.fields(cls)
    return tuple(_field(part, hints.get(part.name, Any)) for part in parts if part.init)


def _field(part: Any, hint: Any) -> Field:
    missing = (attrs.NOTHING, dataclasses.MISSING)
    notes = [note.text for note in getattr(hint, "__metadata__", ()) if isinstance(note, Doc)]
    default = any(getattr(part, slot, missing[0]) not in missing for slot in ("default", "default_factory"))
    optional = is_union(plain(hint)) and type(None) in members(plain(hint))
    return Field(
        attribute=part.name,
        name=part.metadata.get("name") or getattr(part, "alias", None) or part.name,
        type=hint,
        required=not (default or optional),
        filled=optional and not default,
        doc=str(part.metadata.get("doc") or (notes[0] if notes else "")),
    )


@frozen(eq=False, repr=False)
class Cases(Record):
    """How the members of a union are told apart: by the kind of the JSON value, and classes by the value of a tag."""

    kinds: Mapping[str, Any]
    tag: str
    tagged: Mapping[Choice, Any]

    @classmethod
    def of(cls, union: Any) -> Cases:
        """The cases of a union, whatever the order of its members.

        Raises:
            WiringError: two members cannot be told apart.
        """
        every = members(union)
        classes = [member for member in every if is_class(member)]
        literals = tuple(value for member in every if get_origin(member) is Literal for value in get_args(member))
        others = [member for member in every if not is_class(member) and get_origin(member) is not Literal]
        if literals:
            others.append(Literal.__getitem__(literals))
        kinds: dict[str, Any] = {}
        for member in others + classes[:1]:
            for kind in _kinds(member):
                if kind in kinds:
                    raise WiringError(
                        f"union {union} is ambiguous: {label(kinds[kind])} and {label(member)} are both {kind} in JSON",
                        remedy="keep one of them, or make each a class with a Literal tag",
                    )
                kinds[kind] = member
        if len(classes) < 2:
            return cls(kinds, "", {})
        tag = _tag(union, classes)
        return cls(kinds, tag, {key: member for member in classes for key in choices(_tag_type(member, tag))})

    def pick(self, value: object) -> Any:
        """The member that a JSON value belongs to.

        Raises:
            ValueError: to none.
        """
        kind = KIND.get(type(value), "")
        if kind == "integer" and kind not in self.kinds:
            kind = "number"
        if kind not in self.kinds:
            raise ValueError(f"expected {' or '.join(sorted(self.kinds))}, got {got(value)}")
        if kind != "object" or not self.tag:
            return self.kinds[kind]
        given = cast("dict[str, object]", value)
        known = ", ".join(sorted(repr(tag) for _, tag in self.tagged))
        if self.tag not in given:
            raise ValueError(f"field {self.tag!r} is missing; it is one of {known}")
        key = choice(given[self.tag])
        if key is None or key not in self.tagged:
            raise ValueError(f"field {self.tag!r} is {got(given[self.tag])}, expected one of {known}")
        return self.tagged[key]


def _tag_type(cls: type, tag: str) -> Any:
    return next((plain(part.type) for part in fields(cls) if part.name == tag), None)


def _tag(union: Any, classes: list[type]) -> str:
    """The field that tells classes apart: a `Literal` in each, with no value in common."""
    for tag in sorted(part.name for part in fields(classes[0])):
        if all(get_origin(_tag_type(member, tag)) is Literal for member in classes):
            keys = [key for member in classes for key in choices(_tag_type(member, tag))]
            if len(keys) == len(set(keys)):
                return tag
    raise WiringError(
        f"union {union} is ambiguous: {', '.join(label(member) for member in classes)} share no tag",
        remedy='give each class a field such as kind: Literal["a"] = "a", with a value of its own',
    )


def _kinds(type_: Any) -> set[str]:
    if is_choice(type_):
        return {KIND[kind] for kind, _ in choices(type_)}
    if type_ in KIND:
        return {KIND[type_]}
    if origin(type_) in ARRAYS:
        return {"array"}
    if origin(type_) in MAPS or is_class(type_):
        return {"object"}
    raise no_schema(type_, "it cannot be told apart in a union")
