"""`Schema`: the shape that a model's answer must have."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from functools import lru_cache
from math import isfinite
from typing import Final, Generic, NoReturn, TypeVar, cast

from attrs import field, frozen

from bb.errors import SchemaMismatch
from bb.schema.shape import label
from bb.schema.strict import converter, flaws
from bb.schema.writer import json_schema

T = TypeVar("T")

_FENCE: Final = re.compile(r"\A\s*```(?:json)?[ \t]*\r?\n(.*?)\n?[ \t]*```\s*\Z", re.DOTALL | re.IGNORECASE)


@frozen
class Schema(Generic[T]):
    """The JSON schema of a type, and the way from JSON to a value of it.

    Takes attrs classes and dataclasses of str, int, float, bool, None, `Literal`, `Enum`, lists, tuples, sets, dicts with
    text keys, and unions that JSON can tell apart (classes by a `Literal` tag). A field may be left out when it has a
    default or may be None; `metadata={"doc": ...}` or `Doc` describes it, `metadata={"name": ...}` or an attrs alias
    renames it. Nothing is coerced: "3" and True are no ints, and unknown fields are errors.

    Raises:
        WiringError: the type has no JSON schema, or a union in it is ambiguous.
    """

    type: type[T]
    _text: str = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_text", json.dumps(json_schema(self.type)))

    @property
    def name(self) -> str:
        """A short name of the type, of letters, digits, `_` and `-`."""
        text = re.sub(r"[\w<>]+\.", "", label(self.type))  # without modules and outer scopes
        return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_")[:64] or "value"

    @property
    def json_schema(self) -> dict[str, object]:
        """The JSON schema (2020-12), a fresh copy each time."""
        return cast("dict[str, object]", json.loads(self._text))

    def structure(self, value: object) -> T:
        """The value that plain JSON data stands for.

        Raises:
            SchemaMismatch: it does not fit; the message names the field.
        """
        try:
            return converter().structure(value, self.type)
        except RecursionError as error:
            raise self._mismatch("nested too deeply") from error
        except Exception as error:  # validators of the user's classes raise what they like
            raise self._mismatch("; ".join(flaws(error))) from error

    def parse(self, text: str) -> T:
        """The value that JSON text stands for; a Markdown code fence around it is ignored.

        Raises:
            SchemaMismatch: it is not JSON or does not fit.
        """
        fenced = _FENCE.match(text)
        return self.parse_raw(fenced.group(1) if fenced else text)

    def parse_raw(self, text: str) -> T:
        """The value that JSON text, and nothing around it, stands for.

        Raises:
            SchemaMismatch: it is not JSON or does not fit.
        """
        try:
            value = json.loads(text, parse_constant=no_constant, parse_float=finite)
        except (ValueError, RecursionError) as error:
            raise self._mismatch(f"not JSON ({error})") from error
        return self.structure(value)

    def _mismatch(self, flaw: str) -> SchemaMismatch:
        return SchemaMismatch(f"the answer does not fit {self.name}: {flaw}")


def structure(json_text: str, type_: type[T]) -> T:
    """The value of a type that JSON text stands for, strictly.

    Raises:
        SchemaMismatch: the text is not JSON or does not fit.
        WiringError: the type has no JSON schema.
    """
    return cast("Schema[T]", _schema(cast("Hashable", type_))).parse_raw(json_text)


@lru_cache(maxsize=256)
def _schema(type_: Hashable) -> Schema[object]:
    return Schema(cast("type[object]", type_))


def no_constant(name: str) -> NoReturn:
    """For `json.loads`: NaN and the infinities are not JSON."""
    raise ValueError(f"{name} is no JSON")


def finite(text: str) -> float:
    """For `json.loads`: a number too large for a float is not the infinity that Python makes of it."""
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"a number is out of range: {text[:20]}")
    return value
