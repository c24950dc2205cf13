"""Any value as plain data and as text."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

import attrs
import pytest

import bb
from bb.errors import InvalidValue
from bb.plain import in_short, plain, text_of
from tests.unit.codec_values import VALUES, Inner, Level, Pair, Point, Shade, Text, Tone


@attrs.define
class Order:
    items: list[object]
    price: Decimal


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        ('{"a": 1}', '{"a": 1}'),
        (None, ""),
        (True, "true"),
        (False, "false"),
        (7, "7"),
        (1.0, "1"),
        (-0.0, "0"),
        (2.5, "2.5"),
        (1e15, "1000000000000000"),
        (1e22, "1e+22"),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (2**70, str(2**70)),
        pytest.param(10**5000, hex(10**5000), id="int too long for decimals"),
        (Decimal("1.10"), "1.10"),
        (b"caf\xc3\xa9 \xff", "café \ufffd"),
        (PurePosixPath("/x"), "/x"),
        (Tone.WARM, "warm"),
        (Shade.DARK, "dark"),
        (Level.LOW, "1"),
        (Text("sub"), "sub"),
        ([1.0, None, True, "é"], '[1, null, true, "é"]'),
        ((1, (2,)), "[1, [2]]"),
        ({"b": 1, 2: None, None: 3}, '{"b": 1, "2": null, "null": 3}'),
        ({3, 1, 2}, "[1, 2, 3]"),
        (Order([Point(1, 2)], Decimal("9.5")), '{"items": [{"x": 1, "y": 2}], "price": "9.5"}'),
        (Inner(Tone.WARM, ("a",)), '{"tone": "warm", "names": ["a"]}'),
        (Pair(1, "x"), '[1, "x"]'),
        ([10**5000], f'["{hex(10**5000)}"]'),
    ],
)
def test_text(value: object, text: str) -> None:
    assert text_of(value) == text


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_every_value_has_a_text_and_plain_data(value: object) -> None:
    assert type(text_of(value)) is str
    json.dumps(plain(value))
    assert len(in_short(value)) <= 80


def test_plain_data_shares_nothing_with_the_value() -> None:
    order = Order([{"n": [1]}], Decimal(1))
    data: Any = plain({"order": order})
    data["order"]["items"][0]["n"].append(2)
    assert order == Order([{"n": [1]}], Decimal(1))


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(InvalidValue, match="nested too deep"):
        text_of(loop)
    with pytest.raises(InvalidValue, match="nested too deep"):
        plain(loop)


def test_an_object_that_cannot_be_printed_has_a_text() -> None:
    class Mute:
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert text_of(Mute()).endswith("Mute>")


@pytest.mark.parametrize(
    ("value", "short"),
    [
        (None, "None"),
        (True, "True"),
        (12, "12"),
        ("it", "'it'"),
        ("x" * 100, repr("x" * 60 + "…")),
        ([1, 2], "a list of 2"),
        ({}, "a dict of 0"),
        (Point(1), "a Point"),
        (Inner(Tone.WARM), "an Inner"),
        pytest.param(10**5000, f"an int of {(10**5000).bit_length():,} bits", id="int too long for decimals"),
    ],
)
def test_in_short(value: object, short: str) -> None:
    assert in_short(value) == short


def test_in_short_cuts_secrets_out_before_it_cuts() -> None:
    bb.redact("sesame-open-sesame")
    assert "sesame" not in in_short("x" * 50 + "sesame-open-sesame")
