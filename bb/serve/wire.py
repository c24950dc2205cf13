"""What the wires have in common: reading a request, and what is said back."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar, cast

from attrs import frozen

from bb.messages import Input, Request, ToolCall, ToolSpec, Usage
from bb.serve.problems import Problem, Refused

T = TypeVar("T")

_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))

_KINDS: Final = {
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


@frozen
class Asked:
    """A request of a client, over whichever wire."""

    input: Input
    stream: bool
    counts: bool = True
    """Whether a stream is to end with the token counts."""


@frozen
class Said:
    """An answer that is complete."""

    text: str
    calls: tuple[ToolCall, ...]
    """What the client is to run, and send the results of."""
    usage: Usage


@frozen
class Frame:
    """One server-sent event."""

    data: str
    event: str | None = None
    id: str | None = None


class Voice(Protocol):
    """One answer, streamed over a wire."""

    def begin(self) -> Sequence[Frame]:
        """What comes first."""
        ...

    def say(self, text: str) -> Sequence[Frame]:
        """A piece of the text."""
        ...

    def end(self, said: Said) -> Sequence[Frame]:
        """What follows the text of a complete answer."""
        ...

    def fail(self, problem: Problem) -> Sequence[Frame]:
        """The end of an answer that will not be complete."""
        ...


class Wire(Protocol):
    """A protocol that clients speak."""

    def read(self, body: Mapping[str, object]) -> Asked:
        """The request in a body; fields that mean nothing here are ignored.

        Raises:
            Refused: it is none.
        """
        ...

    def whole(self, said: Said, model: str) -> dict[str, object]:
        """An answer in one piece."""
        ...

    def voice(self, asked: Asked, model: str) -> Voice:
        """A streamed answer."""
        ...

    def problem(self, problem: Problem, run_id: str) -> dict[str, object]:
        """An error."""
        ...


def dumps(value: object) -> str:
    """JSON, in ASCII: text may hold lone surrogates, which have no UTF-8."""
    return _ENCODER.encode(value)


def loads(body: bytes) -> dict[str, object]:
    """The object in a body.

    Raises:
        Refused: it is none.
        RecursionError: it is nested too deeply.
    """
    try:
        value = json.loads(body, parse_constant=_no_constant, parse_float=_finite)
    except ValueError as error:
        raise Refused(f"the body is no JSON: {error}") from None
    return as_object(value, "the body")


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no number")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{quoted(digits)} is too large a number")
    return number


def as_object(value: object, where: str) -> dict[str, object]:
    """A value that must be an object.

    Raises:
        Refused: it is none; `where` names it.
    """
    if not isinstance(value, dict):
        raise wrong(where, dict, value)
    return cast("dict[str, object]", value)


def as_list(value: object, where: str) -> list[object]:
    """A value that must be a list.

    Raises:
        Refused: it is none; `where` names it.
    """
    if not isinstance(value, list):
        raise wrong(where, list, value)
    return value


def as_name(value: object, where: str) -> str:
    """A value that must be text, and not empty.

    Raises:
        Refused: it is none; `where` names it.
    """
    if value == "":
        raise Refused(f"{where} must not be empty")
    return as_text(value, where)


def as_text(value: object, where: str) -> str:
    """A value that must be text.

    Raises:
        Refused: it is none; `where` names it.
    """
    if not isinstance(value, str):
        raise wrong(where, str, value)
    return value


def optional(body: Mapping[str, object], key: str, kind: type[T], where: str = "") -> T | None:
    """A field that may be missing or null.

    Raises:
        Refused: it is of another kind.
    """
    value: Any = body.get(key)
    if value is None:
        return None
    if kind is float and type(value) is int:
        with suppress(OverflowError):
            return cast(T, float(value))
    if type(value) is not kind:
        raise wrong(f"{where}{key}", kind, value)
    return value


def objects(body: Mapping[str, object], key: str, where: str = "") -> Iterator[tuple[str, dict[str, object]]]:
    """The objects in a list that may be missing or null, each with its place.

    Raises:
        Refused: it is of another kind.
    """
    value = body.get(key)
    for number, part in enumerate(as_list([] if value is None else value, f"{where}{key}")):
        place = f"{where}{key}[{number}]"
        yield place, as_object(part, place)


def texts(body: Mapping[str, object], key: str) -> tuple[str, ...]:
    """A text, or a list of them, that may be missing or null.

    Raises:
        Refused: it is of another kind.
    """
    value = body.get(key)
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    return tuple(as_text(part, f"{key}[{number}]") for number, part in enumerate(as_list(value, key)))


def wrong(where: str, kind: type[Any], value: object) -> Refused:
    """A value of another kind than asked for."""
    got = "null" if value is None else _KINDS.get(type(value), type(value).__name__)
    return Refused(f"{where} must be {_KINDS[kind]}, not {got}")


def unsupported(where: str, type_: object) -> Refused:
    """A kind of content that flows do not take."""
    return Refused(f"{where}: content of type {quoted(type_)} is not supported, send text")


def quoted(value: object) -> str:
    """A value of a client as an error quotes it: its beginning, for it may be as large and as deep as a body."""
    return reprlib.repr(value)


def check_tools(request: Request) -> None:
    """Tools must be such as a model takes, for else it is the run that fails.

    Raises:
        Refused: two tools have one name, or the one to be called is not there.
    """
    known: dict[str, ToolSpec] = {}
    for number, tool in enumerate(request.tools):
        if known.setdefault(tool.name, tool) != tool:
            raise Refused(f"tools[{number}]: another tool is named {quoted(tool.name)}")
    if request.tool_choice not in ("", "any", "none", *known):
        raise Refused(f"tool_choice {quoted(request.tool_choice)} is none of the tools")


def arguments(call: ToolCall) -> str:
    """The arguments of a call as JSON text, which is never empty."""
    return call.input or "{}"
