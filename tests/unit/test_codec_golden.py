"""Records of every released format are read as they were written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bb.codec import Codec, dumps
from tests.unit.codec_values import VALUES, registry, same

GOLDEN = Path(__file__).parent.parent / "golden"
RECORDS = json.loads((GOLDEN / "codec_v1.json").read_text(encoding="ascii"))
GROWN = json.loads((GOLDEN / "codec_grown.json").read_text(encoding="ascii"))
"""What is written now, by class, where a class has got more fields since; what was written before is read all the same."""
PORTABLE = [value for value in VALUES if not isinstance(value, Path)]


def test_the_file_has_a_record_for_each_value() -> None:
    assert len(RECORDS) == len(PORTABLE)


@pytest.mark.parametrize(
    ("record", "value"), list(zip(RECORDS, PORTABLE, strict=False)), ids=lambda part: type(part).__name__
)
def test_trial_a22_the_first_format(record: object, value: object) -> None:
    codec = Codec(registry())
    assert same(codec.load(record), value)
    written = GROWN.get(record.get("c"), record) if isinstance(record, dict) else record
    assert same(codec.load(written), value)
    assert dumps(codec.dump(value)) == dumps(written)
