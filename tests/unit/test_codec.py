"""The codec: what is kept, what is refused, and what a bad record does."""

from __future__ import annotations

import collections
import datetime as dt
import inspect
import json
import socket
import sys
import threading
import types as modules
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bb.codec import Codec, Types
from bb.errors import CorruptRecord, NotSavable, TooLarge
from bb.messages import Input
from tests.unit.codec_values import (
    VALUES,
    Bits,
    Effects,
    Hashed,
    Inner,
    Level,
    Loose,
    Outer,
    Pair,
    Perm,
    Point,
    Shade,
    Text,
    Tone,
    registry,
    same,
)


@pytest.fixture
def codec() -> Codec:
    return Codec(registry())


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

        dst = utcoffset

        def tzname(self, _: dt.datetime | None) -> str:
            return "odd"

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
        with pytest.raises(NotSavable, match="nested deeper than 200, or contains itself"):
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


def test_a_stack_that_is_nearly_full_is_no_crash(codec: Codec) -> None:
    value: Any = 0
    for _ in range(150):
        value = [value]
    saved = codec.encode(value)
    plain = codec.dump(value)

    def inside(call: Callable[[], object], frames: int) -> object:
        return inside(call, frames - 1) if frames else call()

    room = sys.getrecursionlimit() - len(inspect.stack()) - 80
    with pytest.raises(NotSavable, match="nested too deeply"):
        inside(lambda: codec.dump(value), room)
    with pytest.raises(CorruptRecord, match="nested too deeply"):
        inside(lambda: codec.load(plain), room)
    assert codec.decode(saved) == value


def test_a_named_tuple_and_a_class_without_all_of_their_state(codec: Codec) -> None:
    class Wider(Pair):
        pass

    codec.types.register(Wider)
    wider = Wider(1, 2)
    assert same(codec.decode(codec.encode(wider)), wider)
    wider.extra = 1  # type: ignore[attr-defined]
    with pytest.raises(NotSavable, match="beside its fields"):
        codec.encode(wider)
    with pytest.raises(NotSavable, match="whose field x is not set"):
        codec.encode(object.__new__(Point))


def test_plain_data_that_is_none(codec: Codec) -> None:
    with pytest.raises(CorruptRecord, match="a set is no plain data"):
        codec.load({1})


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


def test_a_dump_function_that_fails() -> None:
    class Odd: ...

    types = Types()

    def broken(_: object) -> Any:
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
    b'{"~":"enum","c":"tests.unit.codec_values:Tone","v":"COLD"}',
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
