"""Rules of who speaks: agents, their models and names, what they select, and the senders of `Notify`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from bb.agents.agent import Agent
from bb.check.problem import Problem
from bb.check.scene import Rule, Scene
from bb.check.sites import Site, agents_of
from bb.flows.tree import AnyFlow, Flow, Notify, segment


def _known(agent: Agent[Any], scene: Scene) -> Agent[Any]:
    """The agent that a name stands for, where the catalogue has one."""
    return scene.catalogue.agent(agent) if scene.catalogue is not None else agent


def _no_model(site: Site, scene: Scene) -> Iterator[str]:
    if not isinstance(site.body, Flow) or site.model is not None:
        return
    for index, agent in enumerate(site.body.agents):
        known = _known(agent, scene)
        if known.handler is None and known.model is None:
            yield (
                f"agent {agent.name or index} has neither a handler nor a model; give it one with on_message(...) "
                "or with_model(...), or name a model on a flow around it or on the App"
                + (f"; if {agent.name} is made elsewhere, hand it over: App(agents=[...])" if agent.name else "")
            )


def _unknown_exit(site: Site, _: Scene) -> Iterator[str]:
    if not isinstance(site.body, Flow) or site.picks is None:
        return
    for agent in site.body.agents:
        if strays := [exit for exit in agent.exits if exit not in site.picks]:
            yield (
                f"{', '.join(map(repr, strays))} is no member of the Select that follows; "
                f"it has {', '.join(sorted(site.picks)) or 'none'}"
            )


def _sender_unknown(site: Site, scene: Scene) -> Iterator[str]:
    if isinstance(site.body, Notify) and site.body.send is None and scene.catalogue is not None:
        name = site.body.name
        if name not in scene.catalogue.senders:
            yield f"no sender is named {name!r}; give it to the App, App(senders=[...]), or to Notify(send)"


SITES: Final = (
    Rule("no-model", _no_model),
    Rule("unknown-exit", _unknown_exit),
    Rule("sender-unknown", _sender_unknown),
)


def agent_names(scene: Scene, beside: Iterable[AnyFlow]) -> Iterator[Problem]:
    """`agent-name`: a name given to an agent must mean one agent within an app."""
    seen: dict[str | None, Agent[Any]] = {
        agent.name: _known(agent, scene) for other in beside for agent in agents_of(other) if agent.named
    }
    told: set[str | None] = set()
    for one in agents_of(scene.flow):
        agent = _known(one, scene)
        known = seen.setdefault(agent.name, agent) if agent.named else agent
        if (known != agent or known.handler is not agent.handler) and agent.name not in told:
            told.add(agent.name)
            yield Problem(
                "agent-name",
                f"two different agents are named {agent.name!r}; give one of them another name",
                segment("flow", 0, scene.flow),
            )
