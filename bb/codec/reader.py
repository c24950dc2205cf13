"""From plain data back to the value; nothing is imported, and only registered classes are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, assert_never

from bb.codec.leaves import BY_TAG
from bb.codec.types import Kept, Types
from bb.codec.writer import TAG
from bb.errors import CorruptRecord


class Reader:
    """The way back, over the classes of a registry. It loops where it could recurse: frames are what limits depth."""

    __slots__ = ("_types",)

    def __init__(self, types: Types) -> None:
        self._types = types

    def read(self, plain: object) -> object:
        """The value; it shares no mutable part with the plain data."""
        known = self._KNOWN.get(type(plain))
        if known is None:
            raise CorruptRecord(f"a {type(plain).__name__} is no plain data")
        return known(self, plain)

    def _same(self, plain: object) -> object:
        return plain

    def _items(self, plain: list[object]) -> list[object]:
        known = self._KNOWN
        out = []
        for item in plain:
            out.append(known[type(item)](self, item))  # noqa: PERF401 - a comprehension takes a frame more in 3.11
        return out

    def _object(self, plain: dict[str, Any]) -> object:
        if TAG in plain:
            return self._tagged(plain[TAG], plain)
        known = self._KNOWN
        out = {}
        for key, item in plain.items():
            out[key] = known[type(item)](self, item)
        return out

    def _tagged(self, tag: object, plain: dict[str, Any]) -> object:
        if type(tag) is not str:
            raise CorruptRecord(f"unknown tag {tag!r}")
        content = plain["v"]
        make = _COLLECTIONS.get(tag)
        if make is not None:
            if type(content) is not list:
                raise CorruptRecord(f"a {tag} without items")
            return make(self._items(content))
        leaf = BY_TAG.get(tag)
        if leaf is not None:
            value = leaf.read(self.read(content) if leaf.text else content)
            if type(value) is not leaf.cls:
                raise CorruptRecord(f"a {tag} that is a {type(value).__name__}")
            return value
        if "c" not in plain:
            raise CorruptRecord(f"unknown tag {tag!r}", remedy="a newer version of bb may have written it")
        return self._kept(self._find(tag, plain["c"]), content)

    def _find(self, tag: str, name: object) -> Kept:
        kept = self._types.named(name) if type(name) is str else None
        if kept is None:
            raise CorruptRecord(
                f"it holds a {name}, which is not registered",
                remedy="register the class with app.types.register, with former= if it was renamed",
            )
        if kept.kind != tag:
            raise CorruptRecord(f"{name} was saved as {tag!r} and is kept as {kept.kind!r} now")
        return kept

    def _kept(self, kept: Kept, content: Any) -> object:
        match kept.kind:
            case "enum":
                if content not in kept.cls.__members__:
                    raise CorruptRecord(f"{kept.name} has no member {content!r}", remedy="put the member back")
                return kept.cls.__members__[content]
            case "flag":
                return kept.cls(self.read(content))
            case "named":
                return tuple.__new__(kept.cls, self._state(kept, content).values())
            case "fields":
                value: object = object.__new__(kept.cls)  # without __init__, whose effects were had when it was made
                for name, item in self._state(kept, content).items():
                    object.__setattr__(value, name, item)
                if kept.rehash:
                    object.__setattr__(value, "_attrs_cached_hash", None)
                return value
            case "custom":
                assert kept.load is not None
                plain = self.read(content)
                try:
                    return kept.load(plain)
                except Exception as error:
                    raise CorruptRecord(f"the load function of {kept.name} raised {error!r}") from error
        assert_never(kept.kind)

    def _state(self, kept: Kept, stored: Any) -> dict[str, object]:
        if type(stored) is not dict:
            raise CorruptRecord(f"{kept.name} without fields")
        unknown = sorted(set(stored) - {part.name for part in kept.parts})
        if unknown:
            raise CorruptRecord(f"{kept.name} has no field {', '.join(unknown)}", remedy="put the field back")
        state: dict[str, object] = {}
        for part in kept.parts:
            if part.name in stored:
                item = stored[part.name]
                state[part.name] = self._KNOWN[type(item)](self, item)
            elif part.default is not None:  # a field that is newer than the record
                state[part.name] = part.default()
            elif part.always:
                raise CorruptRecord(f"{kept.name} has a new field {part.name}", remedy="give the field a default")
        return state

    _KNOWN: ClassVar[Mapping[type, Callable[[Reader, Any], object]]] = {
        **dict.fromkeys((type(None), bool, int, float, str), _same),
        list: _items,
        dict: _object,
    }


def _pairs(items: list[Any]) -> object:
    return {key: item for key, item in items}  # noqa: C416 - a pair of another length is an error


_COLLECTIONS: Mapping[str, Callable[[list[object]], object]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": _pairs,
}
