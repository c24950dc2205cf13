"""The codec: what is kept, what is refused, and what a bad record does."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import functools
import json
import math
import socket
import struct
import subprocess
import sys
import threading
import types as modules
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import pytest

from bb.codec import Codec, Types, canonical, dumps, fingerprint, loads
from bb.errors import CorruptRecord, NotSavable, TooLarge, WiringError
from bb.messages import Input, Message, Request, ToolCall, ToolResult, ToolSpec, Usage
from bb.redaction import forget_secrets, redact
from bb.trace import Event

GOLDEN = Path(__file__).parent.parent / "golden" / "codec_v1.json"


class Tone(enum.Enum):
    WARM = "warm"
    HEARTY = "warm"  # noqa: PIE796 - an alias
    LIST = [1]  # noqa: RUF012 - a value that has no JSON key


class Shade(enum.StrEnum):
    DARK = "dark"


class Level(enum.IntEnum):
    LOW = 1


class Perm(enum.Flag):
    R = enum.auto()
    W = enum.auto()


class Bits(enum.IntFlag):
    A = 1
    B = 2


@attrs.frozen
class Inner:
    tone: Tone
    names: tuple[str, ...] = ()


@attrs.frozen
class Outer:
    inner: Inner
    by_level: dict[Level, Inner] = attrs.field(factory=dict)


@attrs.define(slots=False)
class Loose:
    a: int
    made: list[int] = attrs.field(init=False)

    @functools.cached_property
    def twice(self) -> int:
        return self.a * 2


@attrs.frozen(cache_hash=True)
class Hashed:
    a: int


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Effects:
    n: int
    seen: int = dataclasses.field(init=False)
    runs = 0

    def __post_init__(self) -> None:
        type(self).runs += 1
        self.seen = self.n + 1


class Pair(NamedTuple):
    left: object
    right: object


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and other.cents == self.cents

    def __hash__(self) -> int:
        return hash(self.cents)


class Text(str):
    __slots__ = ()


@pytest.fixture
def types() -> Types:
    types = Types()
    types.register(Outer, Loose, Hashed, Point, Effects, Pair, Tone, Shade, Level, Perm, Bits)
    types.register(Money, dump=lambda money: {"cents": money.cents}, load=lambda plain: Money(plain["cents"]))
    return types


@pytest.fixture
def codec(types: Types) -> Codec:
    return Codec(types)


def same(a: Any, b: Any) -> bool:
    """Equal in value and exact type, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack(">d", a) == struct.pack(">d", b)
    if isinstance(a, Decimal):
        return a.as_tuple() == b.as_tuple()
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            same(k, m) and same(v, w) for (k, v), (m, w) in zip(a.items(), b.items(), strict=True)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, set | frozenset):
        return a == b and {type(item) for item in a} == {type(item) for item in b}
    if isinstance(a, dt.datetime | dt.time):
        return a == b and a.fold == b.fold and same(a.tzinfo, b.tzinfo) and str(a.tzinfo) == str(b.tzinfo)
    return bool(a == b)


VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    2**53 - 1,
    2**53,
    -(2**53),
    2**63,
    2**64,
    -(2**63) - 1,
    2**521,
    10**400,
    -(10**5000),
    0.0,
    -0.0,
    1.0,
    1e22,
    5e-324,
    math.nan,
    struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0],
    math.inf,
    -math.inf,
    "",
    "text ü 😀 \u2028 \x00",
    "\ud800 lone",
    "\ud83d\ude00",
    b"",
    b"\x00\xff",
    [],
    [1, "1", 1.0, True, None],
    (),
    (1, (2,)),
    set(),
    {(1, 2), (3, 4)},
    frozenset({(1,)}),
    {frozenset({1}), frozenset({2, 3})},
    {},
    {"a": 1},
    {1: "int", "1": "text", 2.5: "float", None: "none", b"1": "bytes", (1, "1"): "tuple"},
    {True: 1, "True": 2, "true": 3},
    {Shade.DARK: 1, "dark2": 2, Level.LOW: 3, Tone.WARM: 4},
    {dt.date(2024, 1, 1): 1, UUID(int=1): 2, Decimal(1): 3, frozenset({1}): 4},
    {"~": "tuple", "v": []},
    {"~": {"~": "set"}},
    {"c": "x", "v": 1, "t": "list"},
    {"\ud83d\ude00": 1, "b": 2},
    {"\ud800": 1},
    dt.datetime(2024, 1, 2, 3, 4, 5, 678901),
    dt.datetime(2024, 1, 2, tzinfo=dt.UTC),
    dt.datetime(2024, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=-3, minutes=-30))),
    dt.datetime(2024, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=1), "CET")),
    dt.datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
    dt.datetime(1, 1, 1),
    dt.datetime.max,
    dt.date(2024, 2, 29),
    dt.time(1, 2, 3, 4),
    dt.time(1, 2, tzinfo=dt.UTC, fold=1),
    dt.timedelta(days=-1, seconds=5, microseconds=7),
    dt.timedelta.max,
    dt.timezone(dt.timedelta(minutes=5), "X"),
    ZoneInfo("UTC"),
    Decimal("1.10"),
    Decimal("-0"),
    Decimal("NaN"),
    Decimal("sNaN12"),
    Decimal("-Infinity"),
    Decimal("1E+400"),
    UUID("12345678123456781234567812345678"),
    Path("a/../b"),
    PurePosixPath("/x"),
    PureWindowsPath("C:\\x"),
    Tone.WARM,
    Shade.DARK,
    Level.LOW,
    Perm.R,
    Perm.R | Perm.W,
    Perm(0),
    Bits.A | Bits.B,
    Bits(12),
    Outer(Inner(Tone.LIST, ("a",)), {Level.LOW: Inner(Tone.WARM)}),
    Hashed(1),
    Point(1, 2),
    Effects(3),
    Pair(1, [Pair((), {})]),
    Money(5),
    [Money(5), {Money(6): Money(7)}],
    Message("hi", "assistant", (ToolCall("c", "t", "{}"),), (ToolResult("c", "x", True),)),
    Input(
        (Message("a"),), Request("m", stop=("x",), tools=(ToolSpec("t", "d", {"type": "object"}),)), {"p": 1}, {"m": 2}
    ),
    Usage(1, 2, 3, 4, 5),
    Event("flow.end", "r", "p", dt.datetime(2024, 1, 1, tzinfo=dt.UTC), usage=Usage(1)),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_what_is_kept_comes_back_the_same(codec: Codec, value: Any) -> None:
    data = codec.encode(value)
    json.loads(data, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert same(codec.decode(data), value)
    assert codec.encode(codec.decode(data)) == data


def test_enum_members_come_back_as_themselves(codec: Codec) -> None:
    for member in (Tone.WARM, Tone.LIST, Shade.DARK, Level.LOW, Perm.R, Perm.R | Perm.W, Bits.A | Bits.B):
        assert codec.decode(codec.encode(member)) is member
        assert codec.decode(codec.encode({"deep": [member]}))["deep"][0] is member  # type: ignore[index]
    kept: Any = codec.decode(codec.encode(Outer(Inner(Tone.WARM))))
    assert kept.inner.tone is Tone.WARM


def test_a_mixed_dict_keeps_its_order_and_keys(codec: Codec) -> None:
    value = {"a": {"deep": 1}, 1: "int", "1": "text", None: [], (1,): {"x": {2: 3}}}
    kept: Any = codec.decode(codec.encode(value))
    assert list(kept) == list(value)
    assert same(kept, value)


def test_dicts_within_dicts_are_walked_once(codec: Codec) -> None:
    value: Any = 0
    for _ in range(60):
        value = {"a": value, 1: 2}
    assert codec.decode(codec.encode(value)) == value


def test_nothing_mutable_is_shared(codec: Codec) -> None:
    value = {"a": [1, {"b": [2]}], "s": {1}, "m": Input(metadata={"k": [1]})}
    plain = codec.dump(value)
    value["a"].append(3)  # type: ignore[attr-defined]
    value["m"].metadata["k"].append(2)  # type: ignore[attr-defined]
    first: Any = codec.load(plain)
    assert first["a"] == [1, {"b": [2]}]
    assert first["m"].metadata == {"k": [1]}
    first["a"][1]["b"].append(4)
    first["s"].add(2)
    first["m"].metadata["k"].append(5)
    second: Any = codec.load(plain)
    assert second["a"] == [1, {"b": [2]}]
    assert second["s"] == {1}
    assert second["m"].metadata == {"k": [1]}


def test_init_does_not_run_again(codec: Codec) -> None:
    value = Effects(1)
    data, before = codec.encode(value), Effects.runs
    assert codec.decode(data) == value
    assert Effects.runs == before


def test_unset_and_cached_attributes(codec: Codec) -> None:
    value = Loose(2)
    assert value.twice == 4
    kept: Any = codec.decode(codec.encode(value))
    assert kept.a == 2
    assert not hasattr(kept, "made")
    assert kept.twice == 4
    value.made = [1]
    assert codec.decode(codec.encode(value)).made == [1]  # type: ignore[attr-defined]


def test_a_cached_hash_is_made_again(codec: Codec) -> None:
    kept = codec.decode(codec.encode(Hashed(1)))
    assert hash(kept) == hash(Hashed(1))


def test_pre_registered_types_are_all_that_travel(codec: Codec) -> None:
    fresh = Codec(Types())
    for value in VALUES[-4:]:
        assert fresh.decode(fresh.encode(value)) == value


async def _coroutine() -> None: ...


def _refusals() -> Iterator[tuple[Any, str, str]]:
    def generator() -> Iterator[int]:
        yield 1

    async def stream() -> Any:
        yield 1

    coroutine = _coroutine()
    yield modules, "module", ""
    yield threading.Lock(), "lock", ""
    yield lambda: 1, "function", ""
    yield object(), "object", ""
    yield Tone, "EnumType", ""
    yield generator(), "generator", "list"
    yield stream(), "async_generator", "list"
    yield map(str, [1]), "map", "list"
    yield iter([1]), "list_iterator", "list"
    yield coroutine, "coroutine", "await"
    yield ValueError("x"), "ValueError", "raise it"
    yield Text("a"), "Text", "str(value)"
    yield collections.OrderedDict(), "OrderedDict", "dict(value)"
    yield collections.defaultdict(list), "defaultdict", "dict(value)"
    yield collections.Counter(), "Counter", "dict(value)"
    yield collections.deque(), "deque", "dump="
    yield modules.SimpleNamespace(a=1), "SimpleNamespace", "dump="
    yield bytearray(b"x"), "bytearray", "dump="
    yield 1j, "complex", "dump="
    yield range(3), "range", "dump="
    coroutine.close()


@pytest.mark.parametrize(("value", "name", "advice"), list(_refusals()), ids=lambda part: type(part).__name__)
def test_what_is_refused(codec: Codec, value: Any, name: str, advice: str) -> None:
    for whole, part in (
        (value, "result"),
        ({"x": [0, value]}, 'result["x"][1]'),
        (Outer(value), "result.inner"),
        (({1: value},), "result[0][1]"),
    ):
        with pytest.raises(NotSavable) as caught:
            codec.encode(whole)
        assert caught.value.part == part
        assert name in caught.value.message
        assert advice in caught.value.remedy


def test_a_socket_and_a_file_are_named_where_they_are(codec: Codec, tmp_path: Path) -> None:
    with socket.socket() as client, (tmp_path / "f").open("w") as file:
        with pytest.raises(NotSavable, match=r'result\["x"\].left is a socket.socket') as caught:
            codec.encode({"x": Pair(client, 1)})
        assert caught.value.part == 'result["x"].left'
        with pytest.raises(NotSavable, match=r"input\[0\] is an? _io.TextIOWrapper"):
            codec.encode([file], "input")


def test_a_refused_key_and_set_item(codec: Codec) -> None:
    with pytest.raises(NotSavable) as caught:
        codec.encode({"a": 1, object: 2})
    assert caught.value.part == "result.keys()[1]"
    with pytest.raises(NotSavable) as caught:
        codec.encode({Text("a")})
    assert caught.value.part == "result{…}"
    with pytest.raises(NotSavable) as caught:
        codec.encode({Text("a"): 2})
    assert caught.value.part == "result.keys()[0]"


def test_unregistered_classes_are_refused_with_advice() -> None:
    with pytest.raises(NotSavable, match=r"app.types.register\(Point\)"):
        Codec(Types()).encode(Point(1))
    with pytest.raises(NotSavable, match=r"app.types.register\(Shade\)"):
        Codec(Types()).encode([Shade.DARK])


def test_state_beside_the_fields_is_refused(codec: Codec) -> None:
    value = Loose(1)
    value.extra = 1  # type: ignore[attr-defined]
    with pytest.raises(NotSavable, match="beside its fields: extra"):
        codec.encode(value)


def test_a_zone_that_is_not_kept(codec: Codec) -> None:
    class Zone(dt.tzinfo):
        def utcoffset(self, _: dt.datetime | None) -> dt.timedelta:
            return dt.timedelta(0)

    with pytest.raises(NotSavable, match="zoneinfo"):
        codec.encode({"at": dt.datetime(2024, 1, 1, tzinfo=Zone())})


def test_depth_and_circles(codec: Codec) -> None:
    circle: list[Any] = []
    circle.append(circle)
    deep: Any = 0
    for _ in range(100_000):
        deep = [deep]
    loop: dict[str, Any] = {}
    loop["a"] = (loop,)
    for value in (circle, deep, loop):
        with pytest.raises(NotSavable, match="nested deeper|contains itself"):
            codec.encode(value)


@pytest.mark.parametrize(
    "wrap", [lambda v: [v], lambda v: (v,), lambda v: {"a": v}, lambda v: {1: v}, lambda v: Pair(v, 0), Outer]
)
def test_what_is_saved_can_be_read_well_inside_a_program(codec: Codec, wrap: Callable[[Any], Any]) -> None:
    value: Any = 0
    saved = b""
    for _ in range(1000):
        value = wrap(value)
        try:
            saved = codec.encode(value)
        except NotSavable:
            break

    def inside(frames: int) -> object:
        return inside(frames - 1) if frames else codec.decode(saved)

    assert inside(200) is not None


def test_shared_parts_do_not_multiply_unnoticed(codec: Codec) -> None:
    value: list[Any] = []
    for _ in range(100):
        value = [value, value]
    with pytest.raises(TooLarge):
        Codec(Types(), limit=10_000).encode(value)


def test_the_limit_is_in_bytes_and_never_exceeded() -> None:
    small = Codec(Types(), limit=100)
    assert small.encode("x" * 98) == b'"' + b"x" * 98 + b'"'
    for value in ("x" * 99, "ü" * 50, b"x" * 80, ["x" * 10] * 10, {"k" * 60: "v" * 60}, [0] * 100, 2**1000):
        with pytest.raises(TooLarge) as caught:
            small.encode(value)
        assert "100" in str(caught.value)
        assert isinstance(caught.value, NotSavable)


def test_a_dump_function_that_fails(types: Types) -> None:
    class Odd: ...

    def broken(_: object) -> object:
        raise RuntimeError("no")

    types.register(Odd, dump=broken, load=broken)
    with pytest.raises(NotSavable, match=r"result\[0\].*Odd, whose dump function raised"):
        Codec(types).encode([Odd()])


HOSTILE = [
    b"",
    b"{",
    b"\xff",
    b"NaN",
    b"[1] x",
    b"[" * 100_000,
    b"1" * 5000,
    b'{"~":"nope"}',
    b'{"~":"nope","v":1}',
    b'{"~":1,"v":1}',
    b'{"~":{},"v":1}',
    b'{"~":"tuple"}',
    b'{"~":"tuple","v":"ab"}',
    b'{"~":"set","v":[[]]}',
    b'{"~":"dict","v":[[1]]}',
    b'{"~":"dict","v":[[[],1]]}',
    b'{"~":"bytes","v":"%"}',
    b'{"~":"bytes","v":3}',
    b'{"~":"int","v":"x"}',
    b'{"~":"float","v":"00"}',
    b'{"~":"datetime","v":["2024-13-01",null,0]}',
    b'{"~":"datetime","v":["2024-01-01","../../etc/passwd",0]}',
    b'{"~":"timezone","v":null}',
    b'{"~":"timedelta","v":[1e300]}',
    b'{"~":"uuid","v":"x"}',
    b'{"~":"decimal","v":"x"}',
    b'{"~":"enum","c":"tests.unit.test_codec:Tone","v":"COLD"}',
    b'{"~":"enum","c":["x"],"v":"COLD"}',
    b'{"~":"enum","v":"COLD"}',
    b'{"~":"flag","c":"os:system","v":"ls"}',
    b'{"~":"fields","c":"os:system","v":{}}',
    b'{"~":"custom","c":"subprocess:Popen","v":["ls"]}',
    b'{"~":"fields","c":"bb.messages:Usage","v":[]}',
    b'{"~":"fields","c":"bb.messages:Usage","v":{"__class__":1}}',
    b'{"~":"custom","c":"bb.messages:Usage","v":{}}',
    b'{"~":"fields","c":"bb.messages:ToolSpec","v":{"name":"x"}}',
]


@pytest.mark.parametrize("data", HOSTILE)
def test_a_bad_record_is_an_error_and_nothing_else(codec: Codec, data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        codec.decode(data)


def test_a_class_that_is_gone_is_named(codec: Codec) -> None:
    data = codec.encode({"a": [Point(1)]})
    with pytest.raises(CorruptRecord, match=r"test_codec:Point.*app.types.register"):
        Codec(Types()).decode(data)


def test_a_record_that_needs_another_load_function(types: Types) -> None:
    data = Codec(types).encode(Money(1))
    other = Types()
    other.register(Money, dump=lambda money: money.cents, load=lambda plain: Money(plain["euros"]))
    with pytest.raises(CorruptRecord, match="load function of .*Money raised KeyError"):
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

    @attrs.define
    class Listing(list):  # type: ignore[type-arg]
        a: int

    @attrs.define
    class Oops(Exception):
        a: int

    for cls in (Plain, Child, Listing, Oops, int, Text, enum.Enum, "Plain", Plain()):
        with pytest.raises(WiringError, match="dump= and load="):
            Types().register(cls)  # type: ignore[call-overload]
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


# --- secrets ---


@pytest.fixture
def secret() -> Iterator[str]:
    redact("hunter22")
    yield "hunter22"
    forget_secrets()


def test_secrets_are_never_saved(codec: Codec, secret: str) -> None:
    value = {
        f"key {secret}": [secret, (f"a{secret}", {secret})],
        "deep": Outer(Inner(Tone.WARM, (secret, "ü" + secret))),
        "bytes": secret.encode() + b"\xff",
        "path": Path("x") / secret,
        1: secret,
        "message": Message(secret),
    }
    data = codec.encode(value)
    assert secret.encode() not in data
    kept: Any = codec.decode(data)
    assert kept["key [redacted]"][0] == "[redacted]"
    assert kept["deep"].inner.names == ("[redacted]", "ü[redacted]")
    assert kept["bytes"] == b"[redacted]\xff"
    assert kept["path"] == Path("x/[redacted]")
    assert kept[1] == "[redacted]"


def test_secrets_stand_in_no_error(codec: Codec, secret: str) -> None:
    with pytest.raises(NotSavable) as caught:
        codec.encode({secret: object()})
    assert secret not in str(caught.value)
    assert secret not in caught.value.part


def test_keys_that_become_one_are_refused(codec: Codec, secret: str) -> None:
    with pytest.raises(NotSavable, match="differs from another in a secret"):
        codec.encode({secret: 1, "[redacted]": 2})


# --- text ---


def test_dumps_is_compact_utf8() -> None:
    assert dumps({"a": [1, "ü", None]}) == '{"a":[1,"ü",null]}'.encode()
    assert dumps(["ü", "\ud800"]) == b'["\\u00fc","\\ud800"]'
    assert loads(dumps(["ü", "\ud800"])) == ["ü", "\ud800"]


@pytest.mark.parametrize("plain", [math.nan, [math.inf], object(), {1, 2}])
def test_dumps_takes_plain_data_only(plain: object) -> None:
    with pytest.raises(NotSavable, match="not plain data"):
        dumps(plain)


# --- what makes values the same ---


def test_equal_values_have_equal_bytes() -> None:
    one = {"b": [1, {2, 3, "x"}], "a": Outer(Inner(Tone.WARM)), 1: None, "".join(["i", "j"]): 1}
    two = {"ij": 1, 1: None, "a": Outer(Inner(Tone.WARM)), "b": [1, {"x", 3, 2}]}
    assert canonical(one) == canonical(two)
    assert fingerprint(one) == fingerprint(two)
    assert len(fingerprint(one)) == 32


def test_values_of_different_types_differ() -> None:
    different: list[Any] = [
        1,
        1.0,
        True,
        "1",
        b"1",
        (1,),
        [1],
        {1},
        frozenset({1}),
        {1: 1},
        {"1": 1},
        Level.LOW,
        Decimal(1),
    ]
    different += [
        "dark",
        Shade.DARK,
        None,
        "None",
        0.0,
        -0.0,
        Point(1),
        Pair(1, 0),
        (1, 0),
        "\ud83d\ude00",
        "😀",
        "\ud800",
    ]
    assert len({canonical(value) for value in different}) == len(different)


def test_fields_that_do_not_count_in_equality_do_not_count() -> None:
    @attrs.frozen
    class Named:
        a: int
        how: str = attrs.field(default="", eq=False)

    assert Named(1, "x") == Named(1, "y")
    assert canonical(Named(1, "x")) == canonical(Named(1, "y"))


def test_what_has_no_canonical_form(types: Types) -> None:
    with pytest.raises(NotSavable) as caught:
        canonical({"f": [lambda: 1]})
    assert caught.value.part == 'value["f"][0]'
    with pytest.raises(NotSavable):
        canonical(Money(1))
    assert canonical(Money(1), types) == canonical(Money(1), types) != canonical(Money(2), types)


def test_every_process_gives_the_same_bytes() -> None:
    code = (
        "import enum, attrs\n"
        "from bb.codec import fingerprint\n"
        "from bb.messages import Message\n"
        "print(fingerprint({'s': {'a', 'b', 'c', (1, 'x')}, 1: frozenset('xyz'), 'm': Message('a'), 'n': 2**70}))\n"
    )
    out = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(out) == 1


# --- the format ---


def _golden_codec() -> Codec:
    types = Types()
    types.register(Outer, Point, Pair, Tone, Shade, Level, Perm, Bits)
    types.register(Money, dump=lambda money: {"cents": money.cents}, load=lambda plain: Money(plain["cents"]))
    return Codec(types)


def _golden_values() -> list[Any]:
    kept = (Loose, Hashed, Effects)
    return [value for value in VALUES if not isinstance(value, kept) and len(repr(value)) < 1000]


def test_records_of_the_first_format_are_read_and_written_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    for cls in (Outer, Inner, Point, Pair, Tone, Shade, Level, Perm, Bits, Money):
        monkeypatch.setattr(cls, "__module__", "golden")
    from bb.codec import types as registry

    registry.describe.cache_clear()
    codec, values = _golden_codec(), _golden_values()
    records = GOLDEN.read_text(encoding="ascii").splitlines()
    assert len(records) == len(values)
    for record, value in zip(records, values, strict=True):
        assert same(codec.decode(record.encode()), value)
        assert json.loads(codec.encode(value)) == json.loads(record)
    registry.describe.cache_clear()
