"""`Part`: the tree of a flow as one run went through it, with the rounds of its loops and the tries of what is tried again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from attrs import frozen

from bb.engine.runs.marks import Marks
from bb.identity import Tree
from bb.identity.form import direct_parts

INSTANT: Final = frozenset({"bind", "emit", "respond", "assert", "return", "peek", "checkpoint"})
"""Kinds that take no time of their own."""
SAVED: Final = frozenset(
    {"agents", "call", "ai_segment", "notify", "await", "once", "memo", "every", "at", "webhook", "checkpoint"}
)
"""Kinds that leave a savepoint in a durable flow."""
BESIDE: Final = frozenset({"all", "one", "group"})
"""Kinds whose members run at once."""
ALTERNATIVES: Final = frozenset({"select", "when", "unless", "try"})
"""Kinds that take one of their rows, or none."""
TRIGGERS: Final = frozenset({"every", "at", "webhook"})
"""Kinds whose body is a run of its own."""
_LOOPS: Final = frozenset({"each", "repeat"})
_SLOTS: Final = {"when": ["then", "otherwise"], "try": ["body", "handler"], "scope": ["body", "finally"]}

_TRIED: Final = re.compile(r"(?P<own>.+)(?P<mark>[#@]\d+)")
_UNNAMED: Final = re.compile(r"[a-z_0-9]+~(?P<kind>[a-z_]+)\.\d+")


@frozen
class Part:
    """One part of a flow at one place of a run."""

    path: str
    kind: str
    id: str
    of: object
    slot: str = ""
    """Which body of the part around it this is in, where that has several."""
    values: tuple[Part, ...] = ()
    """What stands in its values, and what is remembered at places that its flow no longer has."""
    rows: tuple[tuple[Part, ...], ...] = ()
    """Its bodies."""

    def inner(self) -> Iterator[Part]:
        """Its direct parts, in order."""
        yield from self.values
        for row in self.rows:
            yield from row


class Shaper:
    """Lays a run out over the trees of its flows."""

    def __init__(self, marks: Marks, trees: Mapping[str, Tree], flow: Callable[[str], Tree | None]) -> None:
        """Args:
        marks: what is known of the run.
        trees: the tree of each durable flow that it entered, by path.
        flow: the tree of a registered flow, by its id.
        """
        self._marks = marks
        self._trees = trees
        self._flow = flow
        self._below: dict[str, dict[str, None]] = {}
        """The segments right below each place at which anything is known, without their rounds and tries."""
        self._tries: dict[str, set[str]] = {}
        """The rounds and tries of each place: `#0`, `@1`."""
        for place in sorted(marks.places | trees.keys()):
            self._note(place)

    def _note(self, place: str) -> None:
        above = ""
        for segment in place.split("/"):
            tried = _TRIED.fullmatch(segment)
            own = segment if tried is None else tried["own"]
            self._below.setdefault(above, {})[own] = None
            path = f"{above}/{own}" if above else own
            if tried is not None:
                self._tries.setdefault(path, set()).add(tried["mark"])
            above = f"{above}/{segment}" if above else segment

    def root(self, tree: Tree | None, segment: str) -> Part:
        """The run as a whole."""
        return self._part(tree, segment)

    def _part(self, tree: Tree | None, path: str, slot: str = "") -> Part:
        tree = self._trees.get(path, tree)
        segment = path.rpartition("/")[2]
        if tree is None:
            unnamed = _UNNAMED.fullmatch(segment)
            kind, id = (unnamed["kind"], "") if unnamed is not None else ("", segment)
            return Part(path, kind, id, None, slot, tuple(self._others(path, set())))
        kind = str(tree["kind"])
        id, of = str(tree.get("id", "")), tree.get("of")
        tried = self._tried(tree, kind, path)
        values, rows = ((), (tried,)) if tried else self._rows(tree, path)
        return Part(path, kind, id, of, slot, values, rows)

    def _tried(self, tree: Tree, kind: str, path: str) -> tuple[Part, ...]:
        """The rounds of a loop, and the tries of what was tried again; nothing for what was done once."""
        tries = sorted((int(mark[1:]), mark) for mark in self._tries.get(path, ()))
        if not tries:
            return ()
        inner = "round" if kind in _LOOPS else "attempt"
        if inner == "attempt":
            tries.insert(0, (0, ""))
        return tuple(self._try(tree, inner, path + mark, number) for number, mark in tries)

    def _try(self, tree: Tree, kind: str, path: str, number: int) -> Part:
        values, rows = self._rows(tree, path)
        return Part(path, kind, "", {"number": number + 1}, "", values, rows)

    def _rows(self, tree: Tree, path: str) -> tuple[tuple[Part, ...], tuple[tuple[Part, ...], ...]]:
        kind = str(tree["kind"])
        parts = self._target(tree, path) if kind == "run" else _parts(tree)
        slots = list(_slots(kind, tree, len(parts)))
        made = [self._part(part, f"{path}/{part['at']}", slot) for part, slot in zip(parts, slots, strict=True)]
        others = tuple(self._others(path, {str(part["at"]) for part in parts}))
        if kind == "select":
            return others, tuple((member,) for member in made)
        made.sort(key=lambda part: part.slot.startswith("undo"))  # which comes, if it does, after all steps
        rows = (tuple(one for one in made if one.slot == slot) for slot in dict.fromkeys(one.slot for one in made))
        return others, tuple(rows)

    def _target(self, tree: Tree, path: str) -> list[Tree]:
        """What a `Run` runs: as it was entered, or else as it is registered."""
        for place, entered in self._trees.items():
            if place.rpartition("/")[0] == path:
                return [entered]
        of = tree.get("of")
        found = self._flow(str(of.get("flow", ""))) if isinstance(of, dict) else None
        return [] if found is None else [found]

    def _others(self, path: str, known: set[str]) -> Iterator[Part]:
        """The parts right below a place that its tree does not have."""
        for segment in self._below.get(path, ()):
            if segment not in known:
                yield self._part(None, f"{path}/{segment}")


def _parts(tree: Tree) -> list[Tree]:
    """The direct parts of a tree that run in the same run: what follows a trigger without a body is that body."""
    out: list[Tree] = []
    if tree["kind"] in TRIGGERS:
        return out
    for part in direct_parts(tree):
        out.append(part)
        if part["kind"] in TRIGGERS and not part.get("in"):
            break
    return out


def _slots(kind: str, tree: Tree, count: int) -> Iterator[str]:
    """The slot of each direct part, where there are several."""
    sizes = tree.get("split")
    if not isinstance(sizes, list):
        yield from [""] * count
        return
    names = _SLOTS.get(kind) or [f"{slot} {index // 2 + 1}" for index, slot in enumerate(["step", "undo"] * len(sizes))]
    for name, size in zip(names, sizes, strict=False):
        yield from [name] * size
