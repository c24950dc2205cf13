"""`ScriptedModel`: a model that answers from a script and remembers what it was asked."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeAlias, final

from bb.errors import WiringError
from bb.messages import ToolCall, Usage
from bb.models.base import Chunk, ModelRequest

Answer: TypeAlias = str | ToolCall | Exception | Sequence[Chunk | Exception]
"""Text in one piece, a call, an error at once, or chunks; an error among the chunks breaks the answer off there."""

Script: TypeAlias = Answer | Callable[[ModelRequest], Answer | Awaitable[Answer]]
"""An answer, or a function (plain or async) of the request that gives it."""


@final
class ScriptedModel:
    """Gives the answers of its script one after the other; `requests` holds what it was asked, in order.

    Every answer bills `usage`, unless it holds a `Usage` of its own.

    Raises:
        WiringError: something in the script is no answer.
    """

    def __init__(self, *script: Script, usage: Usage = Usage()) -> None:  # noqa: B008 - a frozen value
        for at, answer in enumerate(script, 1):
            if not callable(answer):
                _listed(answer, f"answer {at}")
        self._script = list(script)
        self._usage = usage
        self.requests: list[ModelRequest] = []

    @property
    def left(self) -> int:
        """How many answers have not been given yet."""
        return max(0, len(self._script) - len(self.requests))

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[Chunk]:
        """The next answer of the script.

        Raises (while iterating):
            WiringError: the script has come to its end, or its function gave no answer.
        """
        self.requests.append(request)
        asked = len(self.requests)
        if asked > len(self._script):
            raise WiringError(
                f"the script is over: its {len(self._script)} answers are used up, and this is ask {asked}",
                remedy="give ScriptedModel one answer per ask",
            )
        chunks = await _chunks(self._script[asked - 1], request, f"answer {asked}")
        billed = any(isinstance(chunk, Usage) for chunk in chunks)
        for chunk in chunks:
            if isinstance(chunk, Exception):
                if not billed and self._usage != Usage() and chunk is not chunks[0]:
                    yield self._usage
                raise chunk
            yield chunk
        if not billed and self._usage != Usage():
            yield self._usage

    def __repr__(self) -> str:
        return f"ScriptedModel({len(self._script)} answers, {self.left} left)"


async def _chunks(script: Script, request: ModelRequest, where: str) -> Sequence[Chunk | Exception]:
    answer: Any = script
    if callable(script):
        given = script(request)
        answer = await given if inspect.isawaitable(given) else given
    return _listed(answer, where)


def _listed(answer: object, where: str) -> Sequence[Chunk | Exception]:
    """An answer as its chunks."""
    if isinstance(answer, str | ToolCall | Exception):
        return [answer]
    wrong = answer
    if isinstance(answer, Sequence):
        strays = [chunk for chunk in answer if not isinstance(chunk, str | ToolCall | Usage | Exception)]
        if not strays:
            return list(answer)
        wrong = strays[0]
    raise WiringError(
        f"{where} of the script holds something of type {type(wrong).__name__}",
        remedy="give text (JSON by json.dumps(...)), a ToolCall, an exception, a list of these, or a function",
    )
