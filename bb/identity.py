"""Who a flow is: its canonical form, its signature, and in words how two of them differ.

Models, prompts, handler code and durable options do not count; `version=` on an agent is how an author says that its
meaning has changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias, assert_never

from attrs import field, frozen

from bb.flows.tree import (
    All,
    AnyFlow,
    Chain,
    DurableFlow,
    Flow,
    Group,
    NamedFlow,
    Notify,
    One,
    Respond,
    Select,
    body_of,
    children,
    segment,
)

Tree: TypeAlias = dict[str, object]
"""The canonical form as JSON: `{"at": segment, "kind": …, "id": …, "of": own content, "in": [parts]}`."""


def tree(flow: AnyFlow, at: str = "") -> Tree:
    """The canonical form of a flow: everything that counts in its identity, and nothing else."""
    out: Tree = {"at": at or segment("flow", 0, flow), "kind": body_of(flow).kind}
    if isinstance(flow, NamedFlow | DurableFlow):
        out["id"] = flow.id
    if own := _own(flow):
        out["of"] = own
    if parts := [tree(child, name) for name, child in children(flow)]:
        out["in"] = parts
    return out


def _own(flow: AnyFlow) -> list[object]:
    match body_of(flow):
        case Flow(agents=agents):
            return [[agent.name, agent.version, list(agent.exits)] for agent in agents]
        case Notify(name=name):
            return [name]
        case Chain() | Select() | All() | One() | Group() | Respond():
            return []
        case unreachable:
            assert_never(unreachable)


def canonical(form: Tree) -> str:
    """The one text of a canonical form. A part's segment is left out: it follows from the rest."""
    return json.dumps(_bare(form), separators=(",", ":"), sort_keys=True)


def _bare(form: Tree) -> Tree:
    out = {key: value for key, value in form.items() if key not in ("at", "in")}
    if parts := _parts(form):
        out["in"] = [_bare(part) for part in parts]
    return out


def _parts(form: Tree) -> list[Tree]:
    parts = form.get("in", [])
    assert isinstance(parts, list)
    return parts


def signature_of(form: Tree) -> str:
    """The signature of a canonical form."""
    return hashlib.sha256(canonical(form).encode()).hexdigest()


def signature(flow: AnyFlow) -> str:
    """SHA-256 of the flow's canonical form, 64 hex digits: kinds, ids, order, agent names, versions and exits."""
    return signature_of(tree(flow))


def parts_of(form: Tree, path: str = "") -> Iterator[tuple[str, Tree]]:
    """Every part of a canonical form with its absolute path, parents first."""
    path = path or str(form["at"])
    yield path, form
    for part in _parts(form):
        yield from parts_of(part, f"{path}/{part['at']}")


def ids_on(path: str) -> tuple[str, ...]:
    """The ids on a path; unnamed segments, which hold a `~`, are left out."""
    return tuple(name for name in path.split("/") if "~" not in name)


@frozen
class Match:
    """How savepoints of an old tree serve a new one: `kept` maps a new path to the old one, `lost` are old paths left over."""

    kept: Mapping[str, str] = field(factory=dict)
    lost: tuple[str, ...] = ()


_AGENTS: Final = Flow.kind


def match_paths(old: Tree, new: Tree, remembered: set[str]) -> Match:
    """Which places of `new` may use what was remembered at places of `old`.

    A named agent flow is matched by the ids on its path, where those are unambiguous in both trees; anything else by its
    whole path, and only if its own subtree is unchanged.
    """
    olds, news = dict(parts_of(old)), dict(parts_of(new))
    by_ids_old, by_ids_new = _named_leaves(olds), _named_leaves(news)
    kept: dict[str, str] = {}
    for path, form in news.items():
        ids = ids_on(path)
        if path in by_ids_new.get(ids, ()):
            before = by_ids_old.get(ids, ())
            if len(before) == 1 and len(by_ids_new[ids]) == 1 and before[0] in remembered:
                kept[path] = before[0]
        elif path in remembered and path in olds and canonical(olds[path]) == canonical(form):
            kept[path] = path
    return Match(kept, tuple(sorted(remembered - set(kept.values()))))


def _named_leaves(parts: Mapping[str, Tree]) -> dict[tuple[str, ...], list[str]]:
    found: dict[tuple[str, ...], list[str]] = {}
    for path, form in parts.items():
        if form["kind"] == _AGENTS and "id" in form:
            found.setdefault(ids_on(path), []).append(path)
    return found


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
            before, after = _describe(form), _describe(news[path])
            if before != after:
                said.append(f"replaced {path}: {before} became {after}")
            elif _order(form, news[path]) != _order(news[path], form):
                said.append(f"reordered the parts of {path}")
    leaves = {path for path, form in olds.items() if not _parts(form)}
    match = match_paths(old, new, leaves)
    valid = ", ".join(sorted(match.kept)) or "none"
    said.append(f"savepoints that stay valid with forward_compatible=True: {valid}")
    return tuple(said)


def changes(old: Tree | None, new: Tree, signature: str) -> tuple[str, ...]:
    """`diff`, or a sentence that says why there is none: the form behind the older `signature` is no longer kept."""
    return diff(old, new) if old is not None else (f"the tree of signature {signature[:12]} is not kept",)


def _order(form: Tree, other: Tree) -> list[object]:
    """The segments of the parts that both have, in this one's order."""
    shared = {part["at"] for part in _parts(other)}
    return [part["at"] for part in _parts(form) if part["at"] in shared]


def _describe(form: Tree) -> str:
    own = form.get("of", [])
    assert isinstance(own, list)
    if form["kind"] == _AGENTS:
        shown = ", ".join(_agent(*agent) for agent in own) or "none"
        return f"agents {shown}"
    return " ".join(str(part) for part in (form["kind"], *own) if part)


def _agent(name: str | None, version: str | None, exits: list[str]) -> str:
    text = (name or "unnamed") + (f" version {version}" if version is not None else "")
    return text + (f" selecting {', '.join(exits)}" if exits else "")


def structural_diff(old: AnyFlow, new: AnyFlow) -> tuple[str, ...]:
    """What was added, removed, replaced, moved or reordered between two flows, and which savepoints stay valid.

    One sentence per change; empty when their signatures are equal.
    """
    return diff(tree(old), tree(new))
