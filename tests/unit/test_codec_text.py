"""Secrets, JSON text, and what makes two values the same."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest

from bb.codec import Codec, canonical, dumps, fingerprint, loads
from bb.errors import NotSavable
from bb.messages import Message
from bb.redaction import forget_secrets, redact
from tests.unit.codec_values import (
    Inner,
    Level,
    Money,
    Outer,
    Pair,
    Point,
    Shade,
    Tone,
    registry,
)


@pytest.fixture
def codec() -> Codec:
    return Codec(registry())


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
    one = {"b": [1, {2, 3, "x"}], "a": Outer(Inner(Tone.WARM)), 1: None, "".join(iter("ij")): 1}
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


def test_what_has_no_canonical_form() -> None:
    with pytest.raises(NotSavable) as caught:
        canonical({"f": [lambda: 1]})
    assert caught.value.part == 'value["f"][0]'
    with pytest.raises(NotSavable):
        canonical(Money(1))
    types = registry()
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
