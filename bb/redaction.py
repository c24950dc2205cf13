"""Secrets that must appear in no log, trace, error or stored record.

The one registry of the process: a secret is secret for every app in it.
"""

from __future__ import annotations

from typing import Final

MASK: Final = "[redacted]"
_SHORTEST: Final = 4  # shorter ones would blank out ordinary words

_secrets: set[str] = set()


def redact(secret: str) -> None:
    """Register a secret (at least 4 characters); from now on it is replaced by `[redacted]` wherever bb writes text.

    Raises:
        ValueError: the secret is shorter than 4 characters.
    """
    if len(secret) < _SHORTEST:
        raise ValueError(f"a secret of fewer than {_SHORTEST} characters would blank out ordinary text")
    _secrets.add(secret)


def redacted(text: str) -> str:
    """`text` with every registered secret masked, the longest first."""
    if _secrets:
        for secret in sorted(_secrets, key=len, reverse=True):
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
