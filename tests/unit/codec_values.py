"""Values that the codec keeps, one of each kind, and the classes they are of."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
import math
import struct
from decimal import Decimal
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs

from bb.codec import Types
from bb.messages import Input, Message, Request, ToolCall, ToolResult, ToolSpec, Usage
from bb.trace import Event


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


def registry() -> Types:
    """A registry that holds every class of this file."""
    types = Types()
    types.register(Outer, Loose, Hashed, Point, Effects, Pair, Tone, Shade, Level, Perm, Bits)
    types.register(Money, dump=lambda money: {"cents": money.cents}, load=lambda plain: Money(plain["cents"]))
    return types


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
    dt.datetime(2024, 1, 2, 3, 4, 5, 678901),  # noqa: DTZ001 - naive ones are kept too
    dt.datetime(2024, 1, 2, tzinfo=dt.UTC),
    dt.datetime(2024, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=-3, minutes=-30))),
    dt.datetime(2024, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=1), "CET")),
    dt.datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
    dt.datetime(1, 1, 1),  # noqa: DTZ001 - the same
    dt.datetime.max,  # noqa: DTZ901 - the same
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
    PurePosixPath("\ud83d\ude00"),
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
