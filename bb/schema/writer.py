"""From a type to its JSON schema, and whether two schemas mean the same."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, cast, get_args

from bb.schema.shape import (
    ARRAYS,
    KIND,
    MAPS,
    Cases,
    choices,
    fields,
    is_choice,
    is_class,
    is_union,
    members,
    no_schema,
    origin,
    plain,
)

_PROSE: Final = ("description", "title")


def json_schema(type_: Any) -> dict[str, object]:
    """The JSON schema (2020-12) of a type.

    Raises:
        WiringError: it has none.
    """
    if not isinstance(type_, Hashable):  # a value, such as {"a": int}
        raise no_schema(type_)
    writer = _Writer()
    schema = writer.write(type_)
    return {**schema, "$defs": writer.defs} if writer.defs else schema


class _Writer:
    """Writes one schema; a class that contains itself goes to `$defs`."""

    def __init__(self) -> None:
        self.defs: dict[str, object] = {}
        self._open: list[type] = []
        self._recursive: dict[type, str] = {}

    def write(self, type_: Any) -> dict[str, object]:
        type_ = plain(type_)
        if type_ is Any or type_ is object:
            return {}
        if is_class(type_):
            return self._class(type_)
        if is_union(type_):
            return self._union(type_)
        if is_choice(type_):
            return _enum(type_)
        return self._builtin(type(None) if type_ is None else type_)

    def _builtin(self, type_: Any) -> dict[str, object]:
        base, args = origin(type_), get_args(type_)
        if base in ARRAYS:
            return self._array(base, args)
        if base in MAPS:
            if args and plain(args[0]) is not str:
                raise no_schema(type_, "keys in JSON are text")
            values = self.write(args[1]) if args else {}
            return {"type": "object", "additionalProperties": values} if values else {"type": "object"}
        if type_ in KIND:
            return {"type": KIND[type_]}
        raise no_schema(type_)

    def _array(self, base: Any, args: tuple[Any, ...]) -> dict[str, object]:
        if base is tuple and args and args[-1] is not Ellipsis:
            parts = [self.write(arg) for arg in args]
            return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}
        unique = {"uniqueItems": True} if base in (set, frozenset, AbstractSet) else {}
        return {"type": "array", "items": self.write(args[0]) if args else {}, **unique}

    def _union(self, type_: Any) -> dict[str, object]:
        cases = Cases.of(type_)
        parts = []
        for member in members(type_):
            part = self.write(member)
            if cases.tag and is_class(member):  # told apart by its tag, so the tag must be there
                needed = cast("list[str]", part.get("required", []))
                part = {**part, "required": needed if cases.tag in needed else [cases.tag, *needed]}
            parts.append(part)
        return {"anyOf": parts}

    def _class(self, cls: type) -> dict[str, object]:
        if cls in self._open or cls in self._recursive:
            return self._ref(cls)
        self._open.append(cls)
        parts = fields(cls)
        properties: dict[str, object] = {}
        for part in parts:
            schema = self.write(part.type)
            properties[part.name] = {**schema, "description": part.doc} if part.doc else schema
        self._open.pop()
        required = [part.name for part in parts if part.required]
        whole: dict[str, object] = {"type": "object", "properties": properties}
        if required:
            whole["required"] = required
        whole["additionalProperties"] = False
        if cls not in self._recursive:
            return whole
        self.defs[self._recursive[cls]] = whole
        return self._ref(cls)

    def _ref(self, cls: type) -> dict[str, object]:
        if cls not in self._recursive:
            taken = cls.__name__ in self._recursive.values()
            self._recursive[cls] = f"{cls.__name__}_{len(self._recursive)}" if taken else cls.__name__
        return {"$ref": f"#/$defs/{self._recursive[cls]}"}


def _enum(type_: Any) -> dict[str, object]:
    values = [value for _, value in choices(type_)]
    kinds = {KIND[type(value)] for value in values}
    return {"type": kinds.pop(), "enum": values} if len(kinds) == 1 else {"enum": values}


def same_shape(a: object, b: object) -> bool:
    """Whether two JSON schemas accept the same data.

    Descriptions, titles and the order of `required` and `anyOf` do not count; every other difference does.
    """
    return _canonical(a) == _canonical(b)


def _canonical(schema: object) -> str:
    """The schema as text, since to Python 1 and True are the same."""
    return json.dumps(_bare(schema), sort_keys=True)


def _bare(schema: object) -> object:
    if isinstance(schema, Mapping):
        return {
            key: _keyword(key, value)
            for key, value in schema.items()
            if key not in _PROSE and not (key == "required" and not value)
        }
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        return [_bare(part) for part in schema]
    return schema


def _keyword(key: object, value: object) -> object:
    if key in ("properties", "$defs") and isinstance(value, Mapping):
        return {name: _bare(part) for name, part in value.items()}  # names of the user's, such as "title"
    if key == "required" and isinstance(value, Sequence):
        return sorted(set(map(str, value)))
    if key == "anyOf" and isinstance(value, Sequence):
        return sorted((_bare(part) for part in value), key=_canonical)
    return value if key in ("enum", "const", "default") else _bare(value)
