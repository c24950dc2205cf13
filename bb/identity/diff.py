"""How two flows differ, in words."""

from __future__ import annotations

from typing import Final

from bb.flows.tree import AnyFlow, Flow
from bb.identity.form import Tree, canonical, direct_parts, parts_of, tree
from bb.identity.match import leaves, match_paths


def diff(old: Tree, new: Tree) -> tuple[str, ...]:
    """What changed from one canonical form to another, one sentence per change, then which savepoints stay valid."""
    olds, news = dict(parts_of(old)), dict(parts_of(new))
    if canonical(old) == canonical(new):
        return ()
    said: list[str] = []
    gone, fresh = [p for p in olds if p not in news], [p for p in news if p not in olds]
    by_id = {str(news[path]["id"]): path for path in fresh if "id" in news[path]}
    moved: set[str] = set()
    for path in gone:
        target = by_id.get(str(olds[path].get("id", "")))
        if target is not None and target not in moved:
            said.append(f"moved {path} to {target}")
            moved |= {path, target}
    said += [f"removed {path} ({_describe(olds[path])})" for path in gone if path not in moved]
    said += [f"added {path} ({_describe(news[path])})" for path in fresh if path not in moved]
    for path, form in olds.items():
        if path in news:
            said += _changes(path, form, news[path])
    match = match_paths(old, new, leaves(old))
    valid = ", ".join(sorted(match.kept)) or "none"
    said.append(f"savepoints that stay valid with forward_compatible=True: {valid}")
    return tuple(said)


def _changes(path: str, old: Tree, new: Tree) -> list[str]:
    """What is different at a place that both have, apart from the parts in it."""
    before, after = _describe(old), _describe(new)
    if before != after:
        return [f"replaced {path}: {before} became {after}"]
    said = []
    if fields := _changed_fields(old, new):
        said.append(f"changed {path} ({before}): {', '.join(fields)}")
    if _order(old, new) != _order(new, old):
        said.append(f"reordered the parts of {path}")
    return said


def _changed_fields(old: Tree, new: Tree) -> list[str]:
    was, now = old.get("of"), new.get("of")
    fields: list[str] = []
    if isinstance(was, dict) or isinstance(now, dict):
        before, after = was if isinstance(was, dict) else {}, now if isinstance(now, dict) else {}
        fields = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if old.get("split") != new.get("split") and _segments(old) == _segments(new):
        fields.append("how many bodies")
    return fields


def changes(old: Tree | None, new: Tree, signature: str) -> tuple[str, ...]:
    """`diff`, or a sentence that says why there is none: the form behind the older `signature` is no longer kept."""
    return diff(old, new) if old is not None else (f"the tree of signature {signature[:12]} is not kept",)


def _segments(form: Tree) -> list[object]:
    return [part["at"] for part in direct_parts(form)]


def _order(form: Tree, other: Tree) -> list[object]:
    """The segments of the parts that both have, in this one's order."""
    shared = set(_segments(other))
    return [segment for segment in _segments(form) if segment in shared]


_HEADS: Final = ("op", "name", "label", "source", "flow", "item", "cron", "when", "id")
"""The fields that say which one of its kind a statement is."""


def _describe(form: Tree) -> str:
    kind, own = str(form["kind"]), form.get("of", [])
    if kind == Flow.kind:
        assert isinstance(own, list)
        return f"agents {', '.join(_agent(*agent) for agent in own) or 'none'}"
    if isinstance(own, dict):
        head = next((told for name in _HEADS if isinstance(told := own.get(name), str)), "")
        version = f" version {own['version']}" if "version" in own else ""
        return f"{kind} {head}{version}".rstrip()
    assert isinstance(own, list)
    return " ".join(str(part) for part in (kind, *own) if part)


def _agent(name: str | None, version: str | None, exits: list[str]) -> str:
    text = (name or "unnamed") + (f" version {version}" if version is not None else "")
    return text + (f" selecting {', '.join(exits)}" if exits else "")


def structural_diff(old: AnyFlow, new: AnyFlow) -> tuple[str, ...]:
    """What was added, removed, replaced, changed, moved or reordered between two flows, and which savepoints stay valid.

    One sentence per change; empty when their signatures are equal.
    """
    return diff(tree(old), tree(new))
