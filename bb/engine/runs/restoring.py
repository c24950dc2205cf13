"""Open runs after their flow has changed: the flow they were begun with, restored from the store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from attrs import evolve

from bb.agents.agent import Agent
from bb.check import agents_of, check, ops_of
from bb.engine.memory.trees import KeptTree, kept_form, kept_tree
from bb.engine.plan import Known, Plan, prepare
from bb.errors import GraphChanged, InvalidWire
from bb.flows.tree import AnyFlow, Notify, Saga, Scope, Send, body_of, walk
from bb.identity import Tree, canonical, parts_of, signature
from bb.log import History
from bb.log import Scope as Remembered
from bb.ops import Op
from bb.stores.base import Store

_OPENED: Final = (Saga.kind, Scope.kind)
_ROUND: Final = re.compile(r"[#@]\d+")  # of a loop, or an attempt; no id holds these signs


async def plan_begun_with(store: Store, history: History, known: Remembered, plan: Plan, names: Known) -> Plan:
    """The flow that a run was begun with, its names resolved by what the app and its present flow know.

    Raises:
        GraphChanged: a name in it means something else by now, or nothing.
    """
    from bb.wire import from_wire  # needed once in a long while

    kept = await kept_tree(store, known.signature)
    form: Tree | None = plan.root.form or None
    if kept is not None and kept.wire is not None:
        try:
            flow = from_wire(kept.wire)
        except InvalidWire as error:
            raise _changed(kept, known, plan, form, history, str(error)) from error
        names = _with_present(names, plan.flow)
        problems = [p for p in check(flow, catalogue=names.catalogue, flows=names.flows) if not p.warning]
        if problems:
            raise _changed(kept, known, plan, form, history, "; ".join(map(str, problems)))
        if signature(flow, names.flows, names.catalogue) == known.signature:
            return evolve(prepare(flow, names), cause=plan.cause)
    raise _changed(kept, known, plan, form, history, "a part has no name, or its version is another")


def _changed(
    kept: KeptTree | None, known: Remembered, plan: Plan, form: Tree | None, history: History, why: str
) -> GraphChanged:
    from bb.identity.diff import changes

    told = changes(kept.form if kept is not None else None, form, known.signature) if form is not None else ()
    return GraphChanged(
        f"run {history.run_id} is open in a flow that has changed, and the flow it began with cannot be restored: "
        f"{why}; {'; '.join(told)}",
        flow=plan.name,
        path=known.path,
        remedy="bring the old names back to let it go on, or give it up with replace=True",
    )


def _with_present(names: Known, flow: AnyFlow) -> Known:
    """The names of the app, and those of the present flow, which brings its ops and agents along."""
    ops: dict[str, Op[..., object]] = dict(names.catalogue.ops)
    agents: dict[str, Agent[object]] = dict(names.catalogue.agents)
    senders: dict[str, Send] = dict(names.catalogue.senders)
    for op in ops_of(flow):
        ops.setdefault(op.name, op)
    for agent in agents_of(flow):
        if agent.name is not None:
            agents.setdefault(agent.name, agent)
    for _, part in walk(flow):
        body = body_of(part)
        if isinstance(body, Notify) and body.send is not None:
            senders.setdefault(body.name, body.send)
    return evolve(names, catalogue=evolve(names.catalogue, ops=ops, agents=agents, senders=senders))


async def form_of(store: Store, known: Remembered) -> Tree | None:
    """The canonical form of the flow that something was remembered for, if it is kept."""
    return await kept_form(store, known.signature)


def may_be_open(form: Tree, known: Remembered) -> bool:
    """Whether a saga or a scope of the flow was begun, so that something may have to be undone before it is forgotten."""
    places = {path for path, part in parts_of(form) if part["kind"] in _OPENED}
    remembered = [_ROUND.sub("", path) for path in known.remembered()]
    return any(path == place or path.startswith(place + "/") for place in places for path in remembered)


def is_kept(old: Tree, new: Tree) -> bool:
    """Whether every saga and scope of one form stands unchanged in the other."""
    news: Mapping[str, Tree] = dict(parts_of(new))
    return all(
        path in news and canonical(part) == canonical(news[path])
        for path, part in parts_of(old)
        if part["kind"] in _OPENED
    )
