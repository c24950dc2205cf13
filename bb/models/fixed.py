"""`FixedModel`: one canned answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import final

from bb.errors import WiringError
from bb.models.base import Chunk, ModelRequest


@final
class FixedModel:
    """A model that always says the same text, in one piece, for nothing and without a network.

    Raises:
        WiringError: it was given no text.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise WiringError(
                f"FixedModel says text, and was given something of type {type(text).__name__}",
                remedy="give text, JSON by json.dumps(...)",
            )
        self.text = text

    async def stream(self, _request: ModelRequest, /) -> AsyncIterator[Chunk]:
        """The text."""
        yield self.text

    def __repr__(self) -> str:
        return f"FixedModel({self.text!r})"
