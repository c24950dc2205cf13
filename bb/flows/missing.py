"""Why a kind of flow lacks a builder, and what to write instead."""

from __future__ import annotations

from typing import Final

_ANY: Final = {
    "durable": "a flow without a name has no durable(): name it first, .with_id(id).durable()",
    "with_agent": "only a bare Flow has with_agent(): put the agent in one, flow.next(bb.Flow().with_agent(agent))",
}

_NAMED: Final = {
    "with_agent": "a named flow has no with_agent(): add the agents first, .with_agent(agent).with_id(id)",
}

_DURABLE: Final = {
    "with_agent": "a durable flow has no with_agent(): add the agents first, .with_agent(agent).with_id(id).durable()",
    "with_id": "a durable flow has no with_id(): name it first, .with_id(id).durable()",
    "with_model": "a durable flow has no with_model(): give the model first, .with_model(model).with_id(id).durable()",
    "durable": "a durable flow has no durable(): give all options at once, .durable(retries=..., ttl=...)",
}


_TRIGGER: Final = {
    "durable": "a trigger has no durable(): make durable what it starts",
    "with_id": "a trigger has no with_id(): name what it starts, or the chain it stands in",
    "with_model": "a trigger has no with_model(): give the model to what it starts",
    "with_agent": "a trigger has no with_agent(): put the agent in what it starts",
}

_OF: Final = {
    "NamedFlow": _NAMED,
    "DurableFlow": _DURABLE,
    "Every": _TRIGGER,
    "At": _TRIGGER,
    "Webhook": _TRIGGER,
}


def missing(kind: str, name: str) -> str:
    """The message for an attribute that a class of flow does not have."""
    known = _OF.get(kind, _ANY)
    return known.get(name) or f"{kind!r} object has no attribute {name!r}"
