"""What triggers start, and where it stands by now: its flow may have changed since it was put on record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from attrs import evolve

from bb.engine.plan import Plan
from bb.flows.tree import At, Every, Trigger, Webhook
from bb.log import Body, History, body_in, tenant_of
from bb.log.jobs import Job

_ROUND: Final = re.compile(r"[#@]\d+")  # of a loop, or an attempt; no id holds these signs


def place_of(path: str) -> str:
    """The place of a trigger, in whichever round it was reached."""
    return _ROUND.sub("", path)


def reached_at(plans: Mapping[str, Plan], place: str, trigger: Trigger) -> Plan | None:
    """What a trigger starts that a run has reached at `place`, or where its flow has it by now."""
    here = plans.get(place)
    for plan in (here, *plans.values()):
        if plan is not None and plan.cause is not None and plan.cause.trigger == trigger and _near(plan, place):
            return plan
    return None


def standing(plans: Mapping[str, Plan], place: str, body: Body | None) -> Plan | None:
    """What a trigger starts that stood at `place` when that was put on record; None when its flow has it no more.

    Never what merely stands there now. A webhook is the one of its id. Any other body is one of the same trigger kind in the
    same flow, with the same timetable if it has moved: of the same signature, or else of the same ids, which is what has become
    of it.

    Args:
        plans: of flows, by id, and of what triggers start, by place.
        place: from the registered flow.
        body: which it is. None, in old records that do not tell: whatever stands there.
    """
    if body is None:
        return plans.get(place)
    found = [plan for plan in plans.values() if _is(body, place, plan)]
    return max(found, key=lambda plan: _likeness(body, place, plan), default=None)


def _is(body: Body, place: str, plan: Plan) -> bool:
    now = plan.cause.body if plan.cause is not None else None
    if now is None or now.kind != body.kind:
        return False
    if body.kind == Webhook.kind:
        return now.spec == body.spec
    return _near(plan, place) and body.goes_on_as(now) and (now.spec == body.spec or plan.name == place)


def _likeness(body: Body, place: str, plan: Plan) -> tuple[bool, ...]:
    assert plan.cause is not None
    now = plan.cause.body
    return _near(plan, place), now.signature == body.signature, now.spec == body.spec, plan.name == place


def _near(plan: Plan, place: str) -> bool:
    """Whether it is in the registered flow that a place is in."""
    return plan.name.partition("/")[0] == place.partition("/")[0]


def plan_of(plans: Mapping[str, Plan], history: History) -> Plan | None:
    """What a run goes on with: its flow, or the body that it was begun with, under the place where that stood then."""
    started, ended = history.started, history.ended
    if started is None:
        return plans.get(ended.flow) if ended is not None else None
    plan = standing(plans, started.flow, body_in(started.given))
    if plan is None or plan.cause is None or plan.name == started.flow:
        return plan
    return evolve(plan, cause=evolve(plan.cause, place=started.flow))


def started_by(plans: Mapping[str, Plan], job: Job) -> Plan | None:
    """What a job starts, as its flow has it by now; None when it has it no more."""
    if job.armed is None:
        return None
    plan = standing(plans, place_of(job.armed.path), job.body)
    # an old record does not tell the body, but it tells the kind of its trigger
    return plan if plan is not None and plan.cause is not None and plan.cause.body.kind == job.armed.kind else None


def replaced_by(plans: Mapping[str, Plan], jobs: Mapping[str, Job]) -> dict[str, int]:
    """The jobs, of those that wait, whose trigger has moved and been reached again: that made another job.

    Each with the time since when that other is there. What counts is the timetable that stands there, and what was armed last.
    """
    rivals: dict[tuple[object, ...], list[tuple[bool, int, str]]] = {}
    for job_id, job in jobs.items():
        armed = job.armed
        if armed is None or armed.kind == Webhook.kind or (armed.kind == At.kind and armed.run):
            continue  # of a webhook there is one anyway, and each reaching of an At by a run is one
        plan = started_by(plans, job)
        if plan is not None and plan.cause is not None:
            time = armed.spec if armed.kind == At.kind else ()
            same = plan.name, tuple(_ROUND.findall(armed.path)), tenant_of(armed.given), time
            stands = armed.kind == Every.kind and armed.spec == plan.cause.body.spec
            rivals.setdefault(same, []).append((stands, armed.at, job_id))
    out: dict[str, int] = {}
    for found in rivals.values():
        *others, (_, at, _) = sorted(found)
        out |= {job_id: at for _, _, job_id in others}
    return out
