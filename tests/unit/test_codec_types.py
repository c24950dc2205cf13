"""The registry of the codec, and records whose classes changed."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Annotated, Any, Literal, NewType

import attrs
import pytest
from typing_extensions import TypeAliasType

from bb.codec import Codec, Types
from bb.errors import CorruptRecord, WiringError
from tests.unit.codec_values import (
    Inner,
    Level,
    Money,
    Outer,
    Perm,
    Point,
    Text,
    Tone,
    registry,
)


@pytest.fixture
def codec() -> Codec:
    return Codec(registry())


def test_a_class_that_is_gone_is_named(codec: Codec) -> None:
    data = codec.encode({"a": [Point(1)]})
    with pytest.raises(CorruptRecord, match=r"codec_values:Point.*app.types.register"):
        Codec(Types()).decode(data)


def test_a_record_that_needs_another_load_function(codec: Codec) -> None:
    data = codec.encode(Money(1))
    other = Types()
    other.register(Money, dump=lambda money: money.cents, load=lambda plain: Money(plain["euros"]))
    with pytest.raises(CorruptRecord, match=r"load function of .*Money raised KeyError"):
        Codec(other).decode(data)


def _class(**fields: Any) -> Any:
    cls = attrs.make_class("Report", fields, frozen=True)
    cls.__module__ = "program"
    return cls


def test_a_class_may_gain_fields_and_names() -> None:
    old, new = Types(), Types()
    before = _class(a=attrs.field())
    old.register(before)
    data = Codec(old).encode(before(1))
    after = _class(a=attrs.field(), b=attrs.field(factory=list))
    after.__qualname__ = "Renamed"
    new.register(after, former=("program:Report",))
    assert Codec(new).decode(data) == after(1, [])
    assert b"program:Renamed" in Codec(new).encode(after(1))


@pytest.mark.parametrize("fields", [{"a": attrs.field(), "b": attrs.field()}, {"b": attrs.field(default=1)}, {}])
def test_a_class_that_changed_too_much_is_an_error(fields: dict[str, Any]) -> None:
    old, new = Types(), Types()
    before = _class(a=attrs.field())
    old.register(before)
    new.register(_class(**fields))
    with pytest.raises(CorruptRecord, match=r"program:Report has"):
        Codec(new).decode(Codec(old).encode(before(1)))


# --- the registry ---


def test_register_is_a_decorator() -> None:
    types = Types()

    @types.register
    @attrs.frozen
    class Local:
        a: int

    assert Local(1) == Codec(types).decode(Codec(types).encode(Local(1)))
    assert types.register(Local) is Local


def test_two_classes_of_one_name() -> None:
    types = Types()
    types.register(_class(a=attrs.field()))
    with pytest.raises(WiringError, match="two classes are named program:Report"):
        types.register(_class(a=attrs.field()))


def test_what_cannot_be_registered() -> None:
    class Plain: ...

    class Base:
        __slots__ = ("hidden",)

    @attrs.frozen
    class Child(Base):
        a: int

    @attrs.define(order=False, eq=False)
    class Listing(list[int]):
        a: int

    @attrs.define
    class Oops(Exception):
        a: int

    refused: list[Any] = [Plain, Child, Listing, Oops, int, Text, enum.Enum, "Plain", Plain()]
    for cls in refused:
        with pytest.raises(WiringError, match="dump= and load="):
            Types().register(cls)
    with pytest.raises(WiringError, match="give both"):
        Types().register(Plain, dump=str)


def test_custom_functions_win() -> None:
    types = Types()
    types.register(Point)
    types.register(Point, dump=lambda point: [point.x], load=lambda plain: Point(plain[0], 9))
    types.register(Point)
    assert Codec(types).decode(Codec(types).encode(Point(1, 2))) == Point(1, 9)


def test_annotations_bring_their_classes() -> None:
    types = Types()
    types.register_annotations(list[Outer | None] | dict[str, Annotated[tuple[Point, ...], "doc"]] | Literal[Perm.R])
    codec = Codec(types)
    value = [Outer(Inner(Tone.WARM), {Level.LOW: Inner(Tone.LIST)}), Point(1), Perm.W]
    assert codec.decode(codec.encode(value)) == value
    for harmless in (None, int, Any, "Outer", list, Callable[[int], str], ...):
        types.register_annotations(harmless)


def test_registering_a_class_brings_its_fields() -> None:
    types = Types()
    types.register(Outer)
    assert Codec(types).decode(Codec(types).encode(Outer(Inner(Tone.WARM)))) == Outer(Inner(Tone.WARM))


def test_defaults_of_every_kind_fill_what_a_record_lacks() -> None:
    @dataclasses.dataclass
    class Report:
        a: int = 1
        b: list[int] = dataclasses.field(default_factory=list)

    types = Types()
    types.register(Report)
    name = f"{__name__}:{Report.__qualname__}"
    assert Codec(types).load({"~": "fields", "c": name, "v": {}}) == Report(1, [])


def test_aliases_and_new_types_are_looked_through() -> None:
    types = Types()
    types.register_annotations(NewType("Here", Point))
    types.register_annotations(TypeAliasType("There", list[Tone]))
    codec = Codec(types)
    assert codec.decode(codec.encode([Point(1), Tone.WARM])) == [Point(1), Tone.WARM]


def test_an_annotation_for_the_type_checker_only_brings_nothing() -> None:
    @attrs.frozen
    class Late:
        a: Nowhere  # type: ignore[name-defined]  # noqa: F821

    types = Types()
    types.register(Late)
    assert Codec(types).decode(Codec(types).encode(Late(1))) == Late(1)
