"""From plain JSON data to a value of a type, by cattrs, with nothing coerced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast, get_args

from bb.schema.shape import (
    ARRAYS,
    KIND,
    MAPS,
    Cases,
    choice,
    choices,
    fields,
    got,
    is_choice,
    is_class,
    is_enum,
    is_union,
    origin,
    plain,
)

if TYPE_CHECKING:
    from cattrs import Converter


@lru_cache(maxsize=1)
def converter() -> Converter:
    """The strict converter; bb's own, so that what a program does to the global one changes nothing here."""
    from cattrs import Converter

    strict = Converter(forbid_extra_keys=True, detailed_validation=True)
    for type_ in (str, int, float, bool):
        strict.register_structure_hook(type_, _scalar)
    strict.register_structure_hook_func(lambda t: t is None or t is type(None), _nothing)
    strict.register_structure_hook_func(lambda t: t is Any or t is object, lambda value, _: value)
    strict.register_structure_hook_func(is_choice, _choice)
    strict.register_structure_hook_func(lambda t: origin(t) in ARRAYS, lambda value, t: _array(strict, value, t))
    strict.register_structure_hook_func(lambda t: origin(t) in MAPS, lambda value, t: _mapping(strict, value, t))
    strict.register_structure_hook_factory(is_union, lambda t: _union(strict, t))
    strict.register_structure_hook_factory(is_class, lambda t: _instance(strict, t))
    strict.register_structure_hook_func(lambda t: plain(t) is not t, lambda value, t: strict.structure(value, plain(t)))
    return strict


def flaws(error: BaseException, path: str = "") -> Iterator[str]:
    """Each thing that is wrong, with the path of its field: `items[2].name: expected string, got integer 3`."""
    from cattrs.errors import AttributeValidationNote, ForbiddenExtraKeysError, IterableValidationNote

    missing = False
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, AttributeValidationNote):
            missing = isinstance(error, KeyError)  # looked up by cattrs, not by an `__init__` of the user's
            path += f".{note.name}" if path else note.name
        elif isinstance(note, IterableValidationNote):
            path += f"[{note.index!r}]"
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from flaws(part, path)
        return
    if isinstance(error, ForbiddenExtraKeysError):
        text = f"unknown field {', '.join(repr(key) for key in sorted(error.extra_fields))}"
    elif missing:
        text = "is missing"
    else:
        text = str(error) or type(error).__name__
    yield f"{path}: {text}" if path else text


def _scalar(value: object, type_: Any) -> object:
    if is_enum(type_):  # cattrs sends an Enum that is also a str or int here
        return _choice(value, type_)
    if type_ is float and type(value) is int:
        return float(value)  # JSON may write 3.0 as 3
    if type(value) is not type_:
        raise ValueError(f"expected {KIND.get(type_, type_.__name__)}, got {got(value)}")
    return value


def _nothing(value: object, _: Any) -> None:
    if value is not None:
        raise ValueError(f"expected null, got {got(value)}")


def _choice(value: object, type_: Any) -> object:
    known, key = choices(type_), choice(value)
    if key is None or key not in known:
        raise ValueError(f"expected one of {', '.join(repr(item) for _, item in known)}, got {got(value)}")
    return known[key]


def _array(strict: Converter, value: object, type_: Any) -> object:
    if type(value) is not list:
        raise ValueError(f"expected array, got {got(value)}")
    make, args = ARRAYS[origin(type_)], get_args(type_)
    if make is tuple and args and args[-1] is not Ellipsis and origin(type_) is tuple:
        if len(value) != len(args):
            raise ValueError(f"expected {len(args)} items, got {len(value)}")
        return tuple(_each(strict, type_, zip(range(len(args)), value, args, strict=True)))
    item_type = args[0] if args else Any
    out = make(_each(strict, type_, ((i, item, item_type) for i, item in enumerate(value))))
    if len(out) != len(value):
        raise ValueError("items repeat")
    return cast(object, out)


def _mapping(strict: Converter, value: object, type_: Any) -> object:
    if type(value) is not dict:
        raise ValueError(f"expected object, got {got(value)}")
    if any(type(key) is not str for key in value):
        raise ValueError("keys in JSON are text")
    part = get_args(type_)[1] if get_args(type_) else Any
    return dict(zip(value, _each(strict, type_, ((key, item, part) for key, item in value.items())), strict=True))


def _each(strict: Converter, type_: Any, parts: Iterable[tuple[int | str, object, Any]]) -> list[object]:
    """Every part structured; what is wrong with any of them, together and with its index."""
    from cattrs.errors import IterableValidationError, IterableValidationNote

    out: list[object] = []
    errors: list[Exception] = []
    for index, value, part in parts:
        try:
            out.append(strict.structure(value, part))
        except RecursionError:
            raise
        except Exception as error:
            error.add_note(IterableValidationNote(f"at {index!r}", index, part))
            errors.append(error)
    if errors:
        raise IterableValidationError(f"in {type_}", errors, type_)
    return out


def _union(strict: Converter, type_: Any) -> Any:
    cases = Cases.of(type_)
    return lambda value, _: strict.structure(value, cases.pick(value))


def _instance(strict: Converter, cls: Any) -> Any:
    from cattrs.gen import make_dict_structure_fn, override

    renames = {part.attribute: override(rename=part.name) for part in fields(cls)}
    build = make_dict_structure_fn(cls, strict, **cast("dict[str, Any]", renames))
    filled = {part.name: None for part in fields(cls) if part.filled}

    def hook(value: object, type_: Any) -> object:
        if type(value) is not dict:
            raise ValueError(f"expected object, got {got(value)}")
        return build({**filled, **value}, type_)

    return hook
