"""Secrets that must appear in no log, trace, error or stored record.

The one registry of the process: a secret is secret for every app in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

MASK: Final = "[redacted]"
_SHORTEST: Final = 4  # shorter ones would blank out ordinary words

_secrets: list[str] = []
"""All spellings of what was registered, the longest first: one may begin like another, or stand in it."""


def redact(secret: str) -> None:
    """Register a secret (at least 4 characters); from now on it is replaced by `[redacted]` wherever bb writes text.

    So is what it reads like inside a Python literal (an error often shows a `repr`) or a JSON string, and inside one of
    those once more.

    Raises:
        ValueError: the secret is shorter than 4 characters.
    """
    if len(secret) < _SHORTEST:
        raise ValueError(f"a secret of fewer than {_SHORTEST} characters would blank out ordinary text")
    once = {secret, *_escaped(secret)}
    twice = {again for spelling in once for again in _escaped(spelling)}
    _secrets[:] = sorted({*_secrets, *once, *twice}, key=len, reverse=True)


def _escaped(text: str) -> Iterator[str]:
    """What a text may read like inside a literal or a JSON string."""
    for ascii_only in (True, False):
        yield json.dumps(text, ensure_ascii=ascii_only)[1:-1]
    octets = text.encode("utf-8", "surrogatepass")
    for literal in (
        "".join(repr(char)[1:-1] for char in text),  # one by one: which quotes are escaped depends on what is around
        "".join(ascii(char)[1:-1] for char in text),
        "".join(repr(bytes((octet,)))[2:-1] for octet in octets),
    ):
        yield literal
        yield literal.replace("'", "\\'")


def redacted(text: str) -> str:
    """`text` with every registered secret masked."""
    for secret in _secrets:
        if secret in text:
            text = text.replace(secret, MASK)
    return text


def settled(text: str) -> int:
    """How much of a text that goes on may be redacted and sent: no secret can begin in that part and end after it."""
    cut = len(text)
    for secret in _secrets:
        for size in range(min(len(secret) - 1, len(text)), 0, -1):
            if text.endswith(secret[:size]):
                cut = min(cut, len(text) - size)
                break
    straddled = True
    while straddled:
        straddled = False
        for secret in _secrets:
            at = text.find(secret, max(0, cut - len(secret) + 1), cut - 1 + len(secret))
            if at != -1:
                cut, straddled = at, True
    return cut


def has_secrets() -> bool:
    """Whether any secret is registered; lets a hot path skip the search."""
    return bool(_secrets)


def forget_secrets() -> None:
    """Drop every registered secret (for tests)."""
    _secrets.clear()
