"""Plain data to JSON text in UTF-8 and back."""

from __future__ import annotations

import json

from bb.errors import CorruptRecord, NotSavable
from bb.schema import no_constant

# the parts of json.dumps and json.loads that they would build anew on each call
_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")).encode
_escape = json.JSONEncoder(check_circular=False, allow_nan=False, separators=(",", ":")).encode
_sorted = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":"), sort_keys=True
).encode
_decode = json.JSONDecoder(parse_constant=no_constant).decode


def dumps(plain: object) -> bytes:
    """Plain data as compact JSON.

    Raises:
        NotSavable: it is not plain: JSON has no way to write it.
    """
    try:
        return _encode(plain).encode()
    except UnicodeEncodeError:  # a lone surrogate, which UTF-8 has not, but JSON's escapes have
        return _escape(plain).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise NotSavable(f"not plain data: {error}", remedy="dump it with the codec first") from error


def sorted_text(plain: object) -> str:
    """Plain data as JSON whose keys are in order, to compare or to hash."""
    return _sorted(plain)


def loads(data: bytes) -> object:
    """The plain data that JSON stands for.

    Raises:
        CorruptRecord: it is no JSON.
    """
    try:
        value: object = _decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise CorruptRecord(f"not JSON: {error}", remedy="restore the store from a copy, or drop the run") from error
    return value
