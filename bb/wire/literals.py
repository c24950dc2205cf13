"""What literals look like in JSON: as the codec writes values, those of classes of one's own apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any, Final, cast

from bb.codec import Codec, Types, canonical
from bb.codec.leaves import BY_TAG
from bb.errors import CorruptRecord, NotSavable
from bb.redaction import has_secrets
from bb.wire.shapes import NESTING, Refused, Schema, Shape, secret, shown, wrong

_LISTED: Final = ("tuple", "set", "frozenset")
_TAGS: Final = (*_LISTED, "dict", *BY_TAG)
_PLAIN_ONLY: Final = "give plain data, and let an op make an object of it"


@lru_cache(maxsize=1)
def _codec() -> Codec:
    """One for all literals: nothing is registered with it, and it takes long to make."""
    return Codec(Types())


def _write(value: Any, _: int) -> object:
    try:
        plain = _codec().dump(value, "value")
    except NotSavable as error:
        raise Refused(error.message, _PLAIN_ONLY) from error
    _check(plain)
    if has_secrets() and canonical(_codec().load(plain)) != canonical(value):  # the codec has cut one out
        raise secret()
    return plain


def _read(plain: Any, _: int) -> object:
    _check(plain)
    try:
        return _codec().load(plain)
    except CorruptRecord as error:
        raise Refused(f"a literal cannot be read: {error.message}", "write it as to_wire does") from error


def _check(plain: object) -> None:
    """Refuse what is not JSON, too deep, or wrongly tagged. No recursion: the depth is what is in question."""
    level: list[object] = [plain]
    for _ in range(NESTING):
        level = [part for value in level for part in _parts(value)]
        if not level:
            return
    raise Refused(f"a literal is nested deeper than {NESTING}", "give a flatter one")


def _parts(value: object) -> Sequence[object]:
    match value:
        case None | bool() | str() | int():
            return ()
        case float():
            if not isfinite(value):
                raise Refused(f"{value} is no JSON number", 'write {"~": "float", "v": the bits in 16 hex digits}')
            return ()
        case list():
            return value
        case {"~": tag}:
            return _tagged(tag, cast("Mapping[Any, Any]", value))
        case dict():
            for name in value:
                if type(name) is not str:
                    raise wrong(name, "a text, as keys are,")
            return tuple(value.values())
        case _:
            raise wrong(value, "JSON")


def _tagged(tag: object, value: Mapping[Any, Any]) -> Sequence[object]:
    if "c" in value:
        raise Refused(f"a literal holds an object of the class {shown(value['c'])}", _PLAIN_ONLY)
    if type(tag) is not str or tag not in _TAGS or value.keys() != {"~", "v"}:
        raise Refused(
            f'an object with the key "~" has the tag {shown(tag)}, or keys beside "v"',
            f'tags are {" ".join(_TAGS)}; an object of one\'s own with that key is {{"~": "dict", "v": [[key, value]]}}',
        )
    content = value["v"]
    if tag == "dict":
        if type(content) is not list or not all(type(pair) is list and len(pair) == 2 for pair in content):
            raise wrong(content, "a list of pairs of key and value")
    elif tag in _LISTED and type(content) is not list:
        raise wrong(content, "a list")
    return (content,)


def _schema() -> Schema:
    part: Schema = {"$ref": "#/$defs/literal"}
    pair: Schema = {"type": "array", "minItems": 2, "maxItems": 2}
    return {
        "type": ["null", "boolean", "number", "string", "array", "object"],
        "items": part,
        "if": {"type": "object", "required": ["~"]},
        "then": {
            "properties": {"~": {"enum": list(_TAGS)}, "v": part},
            "required": ["v"],
            "additionalProperties": False,
            "allOf": [
                {
                    "if": {"properties": {"~": {"enum": list(_LISTED)}}},
                    "then": {"properties": {"v": {"type": "array"}}},
                },
                {
                    "if": {"properties": {"~": {"const": "dict"}}},
                    "then": {"properties": {"v": {"type": "array", "items": pair}}},
                },
            ],
        },
        "else": {"additionalProperties": part},
    }


LITERAL_SCHEMA: Final = _schema()
LITERAL: Final = Shape(_write, _read, {"$ref": "#/$defs/literal"})
