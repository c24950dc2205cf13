"""The keys under which a session remembers: what makes two bodies, and two calls, the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from bb.codec import Codec
from bb.flows.base import flat
from bb.flows.tree import AnyFlow
from bb.identity.form import canonical, tree
from bb.ops import Catalogue


def body_key(
    body: AnyFlow | Iterable[AnyFlow],
    flows: Mapping[str, AnyFlow] | None = None,
    catalogue: Catalogue | None = None,
) -> str:
    """What tells the body of a `Once`, or of a flow with checkpoints, from other bodies: 64 hex digits.

    A body is one statement or several; an unnamed chain is its steps. `flows` and `catalogue` are as for `signature`.

    Raises:
        WiringError: a flow would run itself.
    """
    text = ",".join(canonical(tree(step, flows=flows, catalogue=catalogue)) for step in flat(body))
    return hashlib.sha256(f"[{text}]".encode()).hexdigest()


def call_key(op: str, version: str | None, arguments: object, codec: Codec) -> str:
    """What tells a call that is remembered for a session from others: 32 hex digits.

    `arguments` are the values by name, in any order, or the only argument by itself: never what stands for them in the flow,
    so a call is made anew when a symbol has changed.

    Raises:
        NotSavable: an argument has no form that could be compared.
    """
    plain = dict(arguments) if isinstance(arguments, Mapping) else arguments
    return codec.fingerprint([op, version, plain])
