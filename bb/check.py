"""Everything about a flow that can be refused before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, assert_never

from attrs import frozen

from bb.agents.agent import Agent
from bb.errors import WiringError
from bb.flows.tree import (
    All,
    AnyFlow,
    Chain,
    DurableFlow,
    Flow,
    Group,
    Notify,
    One,
    Respond,
    Select,
    body_of,
    children,
    flow_id,
    picks_of,
    segment,
)
from bb.models.base import Model

NESTING: Final = 128  # levels


@frozen
class Problem:
    """One thing wrong with a flow: a stable code, what is wrong and what to do, and where. A warning refuses nothing."""

    code: str
    message: str
    path: str
    warning: bool = False

    def __str__(self) -> str:
        return f"{self.code} at {self.path}: {self.message}"


def check(flow: AnyFlow, *, model: Model | None = None, beside: Iterable[AnyFlow] = ()) -> tuple[Problem, ...]:
    """The problems of a flow, errors first.

    `model` is the one that agents without any fall back on; `beside` are flows registered with the same app.
    """
    if deep := _too_deep(flow):
        return (deep,)
    found = [
        *_walk(flow, segment("flow", 0, flow), model, None, durable=False, aside=False),
        *_agent_names(flow, beside),
    ]
    return tuple(sorted(found, key=lambda problem: problem.warning))


def _too_deep(flow: AnyFlow) -> Problem | None:
    """A flow nested so deep that walking it could exhaust the stack."""
    level, depth = [flow], 0
    while level and depth < NESTING:
        level = [child for parent in level for _, child in children(parent)]
        depth += 1
    if not level:
        return None
    return Problem(
        "too-deep",
        f"more than {NESTING} flows inside each other; run some as flows of their own",
        segment("flow", 0, flow),
    )


def refuse(flow: AnyFlow, problems: tuple[Problem, ...]) -> None:
    """Raise if any of the problems is an error.

    Raises:
        WiringError: it lists all of them; its path is that of the first.
    """
    errors = [problem for problem in problems if not problem.warning]
    if errors:
        raise WiringError(
            "; ".join(map(str, errors)),
            flow=flow_id(flow),
            path=errors[0].path,
            remedy="mend the flow: nothing has run",
        )


def _walk(
    flow: AnyFlow, path: str, model: Model | None, picks: frozenset[str] | None, *, durable: bool, aside: bool
) -> Iterator[Problem]:
    """`picks` is what the `Select` offers that a selection made at the end of the flow will meet."""
    if isinstance(flow, DurableFlow):
        if durable and (flow.options.ttl is not None or flow.options.resume_on_reregister):
            yield Problem(
                "inner-option",
                "ttl and resume_on_reregister count on the outermost durable flow only; move them there",
                path,
                warning=True,
            )
        durable = True
    body = body_of(flow)
    near = body.model if body.model is not None else model
    match body:
        case Flow(agents=agents):
            for index, agent in enumerate(agents):
                if agent.handler is None and agent.model is None and near is None:
                    yield Problem(
                        "no-model",
                        f"agent {agent.name or index} has neither a handler nor a model; give it one with on_message(...) "
                        "or with_model(...), or name a model on a flow around it or on the App",
                        path,
                    )
                if picks is not None and (strays := [exit for exit in agent.exits if exit not in picks]):
                    yield Problem(
                        "unknown-exit",
                        f"{', '.join(map(repr, strays))} is no member of the Select that follows; "
                        f"it has {', '.join(sorted(picks)) or 'none'}",
                        path,
                    )
        case Respond() if aside:
            yield Problem(
                "respond-aside",
                "a Respond beside other members delivers nothing by itself; its text goes out with the next one outside",
                path,
                warning=True,
            )
        case All() | One() | Group():
            aside = True
        case Chain() | Respond() | Notify() | Select():
            pass
        case unreachable:
            assert_never(unreachable)
    for index, (name, child) in enumerate(children(flow)):
        after = picks_of(body.steps[index + 1 :], picks) if isinstance(body, Chain) else picks
        yield from _walk(child, f"{path}/{name}", near, after, durable=durable, aside=aside)


def _agent_names(flow: AnyFlow, beside: Iterable[AnyFlow]) -> Iterator[Problem]:
    """A name given to an agent must mean one agent within an app."""
    seen: dict[str | None, Agent[Any]] = {
        agent.name: agent for other in beside for agent in agents_of(other) if agent.named
    }
    told: set[str | None] = set()
    for agent in agents_of(flow):
        known = seen.setdefault(agent.name, agent) if agent.named else agent
        if (known != agent or known.handler is not agent.handler) and agent.name not in told:
            told.add(agent.name)
            yield Problem("agent-name", f"two different agents are named {agent.name!r}", segment("flow", 0, flow))


def agents_of(flow: AnyFlow) -> Iterator[Agent[Any]]:
    """Every agent of a tree."""
    body = body_of(flow)
    if isinstance(body, Flow):
        yield from body.agents
    for _, child in children(flow):
        yield from agents_of(child)
