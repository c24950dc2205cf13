"""`Registry`: the flows of an app, checked and prepared."""

from __future__ import annotations

from collections import ChainMap, Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from attrs import evolve

from bb.check import agents_of, check, ops_of, refuse
from bb.codec import Types
from bb.engine.plan import Known, Plan, prepare
from bb.errors import UnknownFlow, WiringError
from bb.flows.base import a_flow
from bb.flows.tree import AnyFlow, DurableFlow, NamedFlow
from bb.ids import check_id
from bb.logs import warning
from bb.models.base import Model
from bb.ops import Catalogue, Op

_ADHOC: Final = 256  # flows that were run without being registered and are kept prepared


class Registry:
    """Flows by their ids, what their triggers start by its place, and the flows that were run as they are."""

    def __init__(self, catalogue: Catalogue, types: Types, model: Model | None) -> None:
        self.known = Known(catalogue, {})
        self.plans: dict[str, Plan] = {}
        self.served: dict[str, Plan] = {}
        """Those of the plans that clients may ask for."""
        self.bodies: dict[str, Plan] = {}
        """What triggers start."""
        self.all: Mapping[str, Plan] = ChainMap(self.plans, self.bodies)
        self._adhoc: OrderedDict[int, Plan] = OrderedDict()
        self._types = types
        self._model = model
        self._learn(catalogue.ops.values())

    def add(self, flow: NamedFlow | DurableFlow, *, served: bool = False) -> None:
        """Take in a flow, in place of the one that had its id.

        Raises:
            WiringError: it has no id, or is wired wrongly.
        """
        a_flow(flow)
        if not isinstance(flow, NamedFlow | DurableFlow):
            raise WiringError(f"{flow!r} has no id", remedy="name it: flow.with_id(...)")
        others = [plan.flow for id, plan in self.plans.items() if id != flow.id]
        known = evolve(self.known, flows={**self.known.flows, flow.id: flow})
        plan, before = self._prepare(flow, known, others), self.plans.get(flow.id)
        if before is not None and before.flow != flow:
            warning("a flow was replaced by another one of its id", flow=flow.id)
        self.plans[flow.id] = plan
        self.known = known
        for id, plan in self.plans.items():
            if plan.runs(flow.id):  # what runs this one runs the new one from now on
                self.plans[id] = prepare(plan.flow, known)
        self.served.update({id: self.plans[id] for id in [*self.served, *([flow.id] if served else [])]})
        self.bodies.clear()
        for plan in self.plans.values():
            self.bodies.update(plan.bodies)

    def plan(self, flow: str | AnyFlow) -> Plan:
        """A flow prepared for running, registered or not.

        Raises:
            UnknownFlow: there is none of that id.
            WiringError: it is wired wrongly.
        """
        if isinstance(flow, str):
            check_id(flow, "flow id")
            if flow not in self.plans:
                known = ", ".join(sorted(self.plans)) or "none"
                raise UnknownFlow(f"no flow {flow!r} is registered", remedy=f"register it first; known: {known}")
            return self.plans[flow]
        a_flow(flow)
        plan = self.plans.get(flow.id) if isinstance(flow, NamedFlow | DurableFlow) else None
        if plan is not None and plan.flow is flow:
            return plan
        plan = self._adhoc.get(id(flow))
        if plan is None or plan.flow is not flow:
            plan = self._adhoc[id(flow)] = self._prepare(flow, self.known)
            if len(self._adhoc) > _ADHOC:
                self._adhoc.popitem(last=False)
        return plan

    def _prepare(self, flow: AnyFlow, known: Known, beside: Sequence[AnyFlow] = ()) -> Plan:
        problems = check(flow, model=self._model, beside=beside, catalogue=known.catalogue, flows=known.flows)
        refuse(flow, problems)
        told = Counter(problem.code for problem in problems)
        for problem in problems:
            if places := told.pop(problem.code, 0):  # once per kind, however often it is met
                warning(
                    "a flow has a problem",
                    code=problem.code,
                    path=problem.path,
                    places=places,
                    message=problem.message,
                )
        for agent in agents_of(flow):
            if agent.schema is not None:
                self._types.register_annotations(agent.schema.type)
        self._learn(ops_of(flow))
        return prepare(flow, known)

    def _learn(self, ops: Iterable[Op[Any, Any]]) -> None:
        for op in ops:
            self._types.register_annotations(op.returns)
