"""The JSON spelling of flows: `to_wire`, `from_wire`, and the `schema` of what they write and read.

A flow is an object of its `kind` and the fields of its class, those left out that have their defaults. An id, parameters and
durable options are the keys `id`, `params` and `durable` of what they wrap. Times are whole milliseconds. A literal that JSON
has no word for is tagged as in the codec. Agents, ops and senders appear by name, models not at all.

    {"kind": "once", "id": "pay", "durable": {"retries": 3}, "label": "charge", "body": [{"kind": "call", "op": "charge"}]}
"""

from __future__ import annotations

from bb.errors import InvalidWire, WiringError
from bb.flows.base import flow_id
from bb.flows.tree import AnyFlow
from bb.wire.records import read, write
from bb.wire.schema import schema
from bb.wire.shapes import Refused

__all__ = ["from_wire", "schema", "to_wire"]

_DEEP = "the flow is nested deeper than the stack has room for"


def to_wire(flow: AnyFlow) -> dict[str, object]:
    """The flow as plain data for JSON; `from_wire` gives an equal flow for it.

    Raises:
        WiringError: a part has no JSON form: an agent or a sender without a name, a literal of a class of one's own, a time
            with a fraction of a millisecond, a registered secret, more than 128 levels. Its path is the place in the JSON.
    """
    try:
        return write(flow)
    except Refused as refused:
        why, path, remedy = str(refused), refused.path, refused.remedy
        raise WiringError(why, flow=flow_id(flow), path=path, remedy=remedy) from refused.__cause__
    except RecursionError:
        raise WiringError(_DEEP, flow=flow_id(flow), remedy="make some of its parts flows of their own") from None


def from_wire(data: object) -> AnyFlow:
    """The flow that parsed JSON stands for, its parts known by name only. Whether it can run is for `bb.check` to say.

    A whole number may be written `5.0`; nothing else is taken for what it is not.

    Raises:
        InvalidWire: it is no flow: an unknown kind or key, a missing key, a wrong type, a bad id, two siblings with one id,
            more than 128 levels. Its `path` says where, such as `body[2].then[0].op`.
    """
    try:
        return read(data)
    except Refused as refused:
        raise InvalidWire(str(refused), path=refused.path, remedy=refused.remedy) from refused.__cause__
    except RecursionError:
        raise InvalidWire(_DEEP, remedy="make some of its parts flows of their own") from None
