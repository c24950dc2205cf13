"""What names in the language look like: symbols, ops, and the words that neither may be."""

from __future__ import annotations

import re
from typing import Final

SYMBOL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OP_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")

RESERVED: Final = frozenset(
    (  # noqa: SIM905 - one word per line would hide the list
        "true false null flow agents select parallel branch race group respond notify named durable every at "
        "webhook when else unless each in flat repeat until return assert try catch retry backoff delay "
        "timeout with_tools throttle debounce per wait run memo peek await once checkpoint scope finally saga "
        "step undo emit fmt parse ai_segment version selects"
    ).split()
)
"""Words that name no symbol and begin no op; they may name arguments."""

CONTROLS: Final = ("finalize", "decide")
"""What a model in an `AiSegment` calls to end it; no op that it may use can have one of these names."""


def is_symbol(name: str) -> bool:
    """Whether the name can be bound."""
    return SYMBOL.fullmatch(name) is not None and name not in RESERVED


def is_op_name(name: str) -> bool:
    """Whether the name can be that of an op: dotted identifiers whose head is no reserved word."""
    return OP_NAME.fullmatch(name) is not None and name.split(".", maxsplit=1)[0] not in RESERVED
