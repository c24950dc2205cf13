"""From a value to plain data that JSON can hold, or a refusal that names the part."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Mapping
from itertools import islice
from math import isfinite
from typing import Any, ClassVar, Final, assert_never, cast

from bb.codec.leaves import BY_CLASS, Unsupported
from bb.codec.text import sorted_text
from bb.codec.types import UNSET, Kept, Types, describe, name_of
from bb.redaction import redacted

TAG: Final = "~"
DEPTH: Final = 200  # in frames of the way back, so that what was saved can be read from well inside a program too
_TUPLE: Final = 2
_CLASS: Final = 3
EXACT: Final = 2**53  # beyond it, other readers of JSON round ints

_BUILTINS: Final = (dict, list, tuple, set, frozenset, str, bytes, int, float)
_SURROGATES: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")


class Refused(Exception):
    """A part cannot be saved; `where` is its place, innermost first."""

    def __init__(self, why: str, remedy: str, *, size: bool = False) -> None:
        super().__init__(why)
        self.remedy = remedy
        self.size = size
        self.where: list[str] = []


class Writer:
    """One walk over a value.

    `limit` is in characters, counted as they come, so that shared parts do not multiply unnoticed. `mask` cuts out secrets.
    `compare` is for what is never read back: it takes classes that are not registered too, and leaves out what does not
    count in equality.
    """

    __slots__ = ("_compare", "_left", "_limit", "_mask", "_types")

    def __init__(self, types: Types | None, limit: int, *, mask: bool, compare: bool) -> None:
        self._types = types
        self._limit = limit
        self._left = limit
        self._mask = mask
        self._compare = compare

    def write(self, value: object, depth: int = 0) -> object:
        """The value as plain data that shares no mutable part with it."""
        cls = type(value)
        known = self._KNOWN.get(cls)
        return known(self, value, depth) if known is not None else self._other(value, cls, depth)

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise Refused(f"more than {self._limit} bytes", "save less, or raise the limit of the app", size=True)

    def _enter(self, size: int, depth: int) -> None:
        if depth > DEPTH:
            raise Refused(f"nested deeper than {DEPTH}, or contains itself", "save a flatter value")
        self._left -= size + 2
        if self._left < 0:
            self._spend(0)

    def _text(self, value: str, _: int = 0) -> object:
        if self._mask:
            value = redacted(value)
        self._left -= len(value)
        if self._left < 0:
            self._spend(0)
        if not value.isascii() and _SURROGATES.search(value):
            return {TAG: "str", "v": BY_CLASS[str].write(value)}
        return value

    def _int(self, value: int, _: int) -> object:
        return value if -EXACT < value < EXACT else self._leaf(value, 0)

    def _float(self, value: float, _: int) -> object:
        return value if isfinite(value) else self._leaf(value, 0)

    def _bytes(self, value: bytes, _: int) -> object:
        if self._mask:
            value = redacted(value.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        return self._leaf(value, 0)

    def _leaf(self, value: object, _: int) -> object:
        leaf = BY_CLASS[type(value)]
        try:
            plain = leaf.write(value)
        except Unsupported as error:
            raise Refused(str(error), "use datetime.timezone or zoneinfo.ZoneInfo with a key") from None
        if isinstance(plain, str):
            self._spend(len(plain))
            if leaf.text:
                plain = self._text(plain)
        return {TAG: leaf.tag, "v": plain}

    def _items(self, value: Any, depth: int) -> list[object]:
        self._enter(len(value), depth)
        out: list[object] = []
        find, mask, size = self._KNOWN.get, self._mask, 0
        try:
            for item in value:
                cls = type(item)
                if cls is str and not mask and item.isascii():  # what most values are made of
                    size += len(item)
                    out.append(item)
                    continue
                known = find(cls)
                out.append(known(self, item, depth + 1) if known else self._other(item, cls, depth + 1))
        except Refused as refused:
            refused.where.append(f"[{len(out)}]")
            raise
        self._spend(size)
        return out

    def _tuple(self, value: tuple[object, ...], depth: int) -> object:
        return {TAG: "tuple", "v": self._items(value, depth + _TUPLE - 1)}

    def _set(self, value: set[object] | frozenset[object], depth: int) -> object:
        self._enter(len(value), depth)
        try:
            items = [self.write(item, depth + _TUPLE) for item in value]
        except Refused as refused:
            refused.where.append("{…}")
            raise
        return {TAG: "set" if type(value) is set else "frozenset", "v": sorted(items, key=sorted_text)}

    def _dict(self, value: dict[Any, Any], depth: int) -> object:
        self._enter(len(value), depth)
        out: dict[str, object] = {}
        if TAG in value:
            return self._pairs(value, out, depth)
        find, mask, size = self._KNOWN.get, self._mask, 0
        key: Any = None
        try:
            for key, item in value.items():
                if type(key) is str and not mask and key.isascii():
                    name: object = key
                    size += len(key)
                else:
                    name = self._text(key) if type(key) is str else None
                if type(name) is not str:
                    break
                if mask and name in out:
                    raise Refused("a value whose key differs from another in a secret only", "use other keys")
                cls = type(item)
                if cls is str and not mask and item.isascii():
                    size += len(item)
                    out[name] = item
                    continue
                known = find(cls)
                out[name] = known(self, item, depth + 1) if known else self._other(item, cls, depth + 1)
            else:
                self._spend(size)
                return out
        except Refused as refused:
            refused.where.append(_key(key))
            raise
        return self._pairs(value, out, depth)

    def _pairs(self, value: dict[object, object], done: dict[str, object], depth: int) -> object:
        """A dict that JSON cannot write as an object; its first items are done already."""
        out: list[list[object]] = [[name, item] for name, item in done.items()]
        for key, item in islice(value.items(), len(done), None):
            try:
                name = self.write(key, depth + _TUPLE)
            except Refused as refused:
                refused.where.append(f".keys()[{len(out)}]")
                raise
            try:
                out.append([name, self.write(item, depth + _TUPLE)])
            except Refused as refused:
                refused.where.append(_key(key))
                raise
        if self._compare:  # the order of insertion is no part of a dict
            out.sort(key=lambda pair: sorted_text(pair[0]))
        return {TAG: "dict", "v": out}

    def _other(self, value: Any, cls: type, depth: int) -> object:
        kept = self._types.of(cls) if self._types is not None else None
        if kept is None and self._compare:
            kept = describe(cls)
        if kept is None:
            raise Refused(f"{_article(cls)}, which cannot be saved", _advice(value, cls))
        self._enter(len(kept.name), depth)
        return {TAG: kept.kind, "c": kept.name, "v": self._content(kept, value, depth + _CLASS)}

    def _content(self, kept: Kept, value: Any, depth: int) -> object:
        match kept.kind:
            case "enum":
                if kept.cls.__members__.get(value._name_) is not value:
                    raise Refused(f"no member of {kept.name}", "use a member that the class defines")
                return value._name_
            case "flag":
                return self.write(int(value._value_), depth)
            case "named":
                if getattr(value, "__dict__", None):
                    raise Refused(f"{_article(kept.cls)} with attributes beside its fields", "make them fields")
                return self._fields(zip((part.name for part in kept.parts), value, strict=True), depth)
            case "fields":
                return self._fields(self._state(kept, value), depth)
            case "custom":
                return self._custom(kept, value, depth)
        assert_never(kept.kind)

    def _fields(self, state: Iterable[tuple[str, object]], depth: int) -> object:
        out: dict[str, object] = {}
        name = ""
        try:
            for name, item in state:
                out[name] = self.write(item, depth)
        except Refused as refused:
            if name:
                refused.where.append(f".{name}")
            raise
        return out

    def _state(self, kept: Kept, value: object) -> list[tuple[str, object]]:
        own = getattr(value, "__dict__", None)
        if own is not None and not kept.names.issuperset(own):
            extra = ", ".join(sorted(map(str, set(own) - kept.names)))
            raise Refused(f"{_article(kept.cls)} with attributes beside its fields: {extra}", "make them fields")
        state = []
        for part in kept.parts:
            item = getattr(value, part.name, UNSET)
            if item is UNSET and part.always:
                raise Refused(f"{_article(kept.cls)} whose field {part.name} is not set", "set it before it is saved")
            if item is not UNSET and (part.counts or not self._compare):
                state.append((part.name, item))
        return state

    def _custom(self, kept: Kept, value: object, depth: int) -> object:
        assert kept.dump is not None
        try:
            plain = kept.dump(value)
        except Exception as error:
            raise Refused(
                f"{_article(kept.cls)}, whose dump function raised {error!r}", "mend that function"
            ) from error
        return self.write(plain, depth)

    def _same(self, value: object, _: int) -> object:
        return value

    _KNOWN: ClassVar[Mapping[type, Callable[[Writer, Any, int], object]]] = {
        **dict.fromkeys(BY_CLASS, _leaf),
        type(None): _same,
        bool: _same,
        int: _int,
        float: _float,
        str: _text,
        bytes: _bytes,
        list: _items,
        tuple: _tuple,
        set: _set,
        frozenset: _set,
        dict: _dict,
    }


def _key(key: object) -> str:
    """A key in a path; the text of a key that is no plain value is nobody's to run."""
    if type(key) in (str, int, bool, float, bytes, type(None)):
        text = repr(key) if type(key) is not str else '"' + key.replace('"', '\\"') + '"'
        text = redacted(text)  # before it is cut, as half a secret would not be found any more
        return f"[{text if len(text) <= 60 else text[:57] + '...'}]"
    return f"[<{type(key).__qualname__}>]"


def _article(cls: type) -> str:
    name = name_of(cls).replace(":", ".").removeprefix("builtins.")
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _advice(value: object, cls: type) -> str:
    """What to save instead."""
    if inspect.isawaitable(value):
        return "await it first"
    if isinstance(value, Iterator | AsyncIterator):
        return "collect its items in a list first"
    if isinstance(value, BaseException):
        return "raise it, or save its text"
    if cls.__module__.partition(".")[0] == "numpy":
        return "save what its tolist() gives"
    if cls.__module__.startswith("bb.flows."):
        return "it is a part of a flow, and does nothing by itself; the function of an op is op.fn"
    name = cls.__qualname__
    if describe(cast("Hashable", cls)) is not None:
        return f"register its class: app.types.register({name})"
    for base in _BUILTINS:
        if issubclass(cls, base):
            return f"save {base.__name__}(value), or app.types.register({name}, dump=..., load=...)"
    return f"save plain data instead, or app.types.register({name}, dump=..., load=...)"
