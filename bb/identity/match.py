"""Which places of a changed flow may use what was remembered at places of the old one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from attrs import field, frozen

from bb.flows.tree import Flow
from bb.identity.form import Tree, canonical, direct_parts, parts_of
from bb.record import Record

_TURN: Final = re.compile(r"(?:[#@]\d+)+$")  # which round of a loop, which attempt
_INDEX: Final = re.compile(r"\.\d+$")


def ids_on(path: str) -> tuple[str, ...]:
    """The ids on a path; unnamed segments, which hold a `~`, are left out."""
    return tuple(name for name in path.split("/") if "~" not in name)


@frozen(eq=False, repr=False)
class Match(Record):
    """How savepoints of an old tree serve a new one: `kept` maps a new path to the old one, `lost` are old paths left over."""

    kept: Mapping[str, str] = field(factory=dict)
    lost: tuple[str, ...] = ()


def match_paths(old: Tree, new: Tree, remembered: set[str]) -> Match:
    """Which places of `new` may use what was remembered at places of `old`.

    A named agent flow is matched by the ids on its path, where those are unambiguous in both trees; anything else by its
    whole path, and only if its own subtree is unchanged. A remembered path may name rounds (`#n`) and attempts (`@n`), and go
    on below a statement to a value inside it (`cond~call.0`), which is then matched as that statement.
    """
    olds, news = dict(parts_of(old)), dict(parts_of(new))
    by_ids_old, by_ids_new = _named_leaves(olds), _named_leaves(news)
    kept: dict[str, str] = {}
    for path in sorted(remembered):
        place = _nearest(path, olds)
        if place is None:
            continue
        ids = ids_on(place)
        before, after = by_ids_old.get(ids, []), by_ids_new.get(ids, [])
        if place in before:
            target = _moved(path, place, after[0]) if len(before) == len(after) == 1 else None
            if target is not None:
                kept[target] = path
        elif place in news and _same(olds[place], news[place]):
            kept[path] = path
    return Match(kept, tuple(sorted(remembered - set(kept.values()))))


def _nearest(path: str, parts: Mapping[str, Tree]) -> str | None:
    """The part that a path leads to, or into."""
    segments = [_TURN.sub("", segment) for segment in path.split("/")]
    while segments:
        if (place := "/".join(segments)) in parts:
            return place
        segments.pop()
    return None


def _moved(path: str, old: str, new: str) -> str | None:
    """A remembered path in its new place; None when its rounds and attempts count those of something else."""
    if old == new:
        return path
    was, now, olds = path.split("/"), new.split("/"), old.split("/")
    if was == olds:
        return new
    if len(was) != len(now) or len(was) != len(olds):
        return None
    moved = []
    for remembered, before, after in zip(was, olds, now, strict=True):
        turn = remembered.removeprefix(before)
        if turn and _INDEX.sub("", before) != _INDEX.sub("", after):
            return None
        moved.append(after + turn)
    return "/".join(moved)


def _named_leaves(parts: Mapping[str, Tree]) -> dict[tuple[str, ...], list[str]]:
    found: dict[tuple[str, ...], list[str]] = {}
    for path, form in parts.items():
        if form["kind"] == Flow.kind and "id" in form:
            found.setdefault(ids_on(path), []).append(path)
    return found


def _same(old: Tree, new: Tree) -> bool:
    return canonical(old) == canonical(new)


def leaves(form: Tree) -> set[str]:
    """The paths of those parts without parts of their own that leave a savepoint."""
    return {path for path, part in parts_of(form) if not direct_parts(part) and _is_saved(part)}


_SAVED: Final = ("agents", "call", "ai_segment", "notify", "memo", "await", "run")


def _is_saved(form: Tree) -> bool:
    return form["kind"] in _SAVED or _has_call(form.get("of"))


def _has_call(form: object) -> bool:
    """Whether a call is anywhere in the form of a statement's values."""
    if isinstance(form, dict):
        return any(map(_has_call, form.values()))
    return isinstance(form, list) and (form[:1] in (["call"], ["ai_segment"]) or any(map(_has_call, form)))
