"""Laws of the codec, over generated values."""

from __future__ import annotations

import copy
import datetime as dt
import json
import math
import struct
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from bb.codec import Codec, Types, canonical, dumps, loads
from bb.errors import CorruptRecord


@attrs.frozen
class Box:
    item: object
    name: str = ""


TYPES = Types()
TYPES.register(Box)
CODEC = Codec(TYPES)

ZONES = st.one_of(
    st.none(),
    st.just(dt.UTC),
    st.integers(-1439, 1439).map(lambda minutes: dt.timezone(dt.timedelta(minutes=minutes))),
    st.timezones(),
)
TEXT = st.text(st.characters(exclude_categories=()), max_size=8) | st.sampled_from(["~", "v", "c", "\ud83d\ude00"])
FLAT = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True),
    TEXT,
    st.binary(max_size=8),
    st.datetimes(timezones=ZONES),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.decimals().filter(lambda number: not number.is_snan()),  # has no hash, so it is no key
    st.uuids(),
    TEXT.filter(lambda text: "\x00" not in text).map(PurePosixPath),
)
KEYS = st.recursive(
    FLAT, lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3), max_leaves=4
)
VALUES = st.recursive(
    FLAT,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.sets(KEYS, max_size=3),
        st.frozensets(KEYS, max_size=3),
        st.dictionaries(TEXT, inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4),
        st.builds(Box, inner, TEXT),
    ),
    max_leaves=20,
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def form(value: Any) -> Any:
    """A value as something whose `==` sees types, the bits of floats, folds and the order of dicts."""
    kind = type(value)
    if kind is float:
        return kind, struct.pack(">d", value)
    if kind is Decimal:
        return kind, str(value)
    if kind in (list, tuple):
        return kind, [form(item) for item in value]
    if kind in (set, frozenset):
        return kind, sorted(repr(form(item)) for item in value)
    if kind is dict:
        return kind, [(form(key), form(item)) for key, item in value.items()]
    if kind is Box:
        return kind, form(value.item), value.name
    if kind in (dt.datetime, dt.time):
        return kind, value.replace(tzinfo=None), value.fold, repr(value.tzinfo)
    return kind, value


@given(VALUES)
@settings(max_examples=300, deadline=None)
def test_a_round_trip_is_the_identity_in_value_and_type(value: Any) -> None:
    data = CODEC.encode(value)
    json.loads(data, parse_constant=lambda name: 1 / 0)
    assert form(CODEC.decode(data)) == form(value)


@given(VALUES)
@settings(deadline=None)
def test_saving_leaves_the_value_alone_and_reading_leaves_the_record_alone(value: Any) -> None:
    before = form(value)
    plain = CODEC.dump(value)
    kept = copy.deepcopy(plain)
    CODEC.load(plain)
    assert form(value) == before
    assert dumps(plain) == dumps(kept)


def mutable(value: Any) -> set[int]:
    """The identity of every list, set and dict in a value."""
    if type(value) is dict:
        return {id(value)}.union(*(mutable(key) | mutable(item) for key, item in value.items()))
    if type(value) in (list, tuple, set, frozenset):
        own = {id(value)} if type(value) in (list, set) else set()
        return own.union(*map(mutable, value))
    return mutable(value.item) if type(value) is Box else set()


@given(VALUES)
@settings(deadline=None)
def test_nothing_mutable_is_shared(value: Any) -> None:
    plain = CODEC.dump(value)
    one, other = CODEC.load(plain), CODEC.load(plain)
    assert not mutable(value) & mutable(one)
    assert not mutable(plain) & mutable(one)
    assert not mutable(one) & mutable(other)


@given(st.binary(min_size=8, max_size=8))
def test_every_bit_of_a_float(data: bytes) -> None:
    (value,) = struct.unpack(">d", data)
    kept: Any = CODEC.decode(CODEC.encode(value))
    assert math.isnan(kept) == math.isnan(value)
    assert struct.pack(">d", kept) == struct.pack(">d", value)


@given(VALUES)
@settings(deadline=None)
def test_what_comes_back_is_canonically_the_same(value: Any) -> None:
    assert canonical(CODEC.decode(CODEC.encode(value))) == canonical(value)


@given(st.dictionaries(KEYS, VALUES, max_size=5), st.randoms())
@settings(deadline=None)
def test_the_order_of_a_dict_does_not_count_in_its_canonical_form(value: dict[Any, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert canonical(dict(items)) == canonical(value)


@given(PLAIN)
@settings(deadline=None)
def test_data_of_the_users_is_never_taken_for_a_tag(plain: Any) -> None:
    assert form(CODEC.decode(CODEC.encode(plain))) == form(plain)


@given(PLAIN)
@settings(deadline=None)
def test_reading_anything_gives_a_value_or_a_corrupt_record(plain: Any) -> None:
    try:
        value = CODEC.load(plain)
    except CorruptRecord:
        return
    assert form(CODEC.decode(CODEC.encode(value))) == form(value)


@given(st.binary(max_size=40))
def test_loading_any_bytes_gives_plain_data_or_a_corrupt_record(data: bytes) -> None:
    try:
        plain = loads(data)
    except CorruptRecord:
        return
    assert type(plain) in (type(None), bool, int, float, str, list, dict)
