"""`Tool`: what a model may call, and the function that answers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, TypeVar, cast, final, get_type_hints

from attrs import evolve, field, frozen

from bb.agents.invoke import invoke
from bb.errors import InvalidTool, SchemaMismatch, ToolArgs
from bb.messages import ToolCall, ToolSpec
from bb.plain import parts_of
from bb.schema import Schema, same_shape

S = TypeVar("S")

ToolHandler: TypeAlias = Callable[[S], object] | Callable[[S], Awaitable[object]]


@final
@frozen
class Tool:
    """A tool: its name, what it is good for, and the schema of its arguments (a class, a `Schema` or a JSON schema).

    Without a handler it is the client's to run. A tool that is broken says so when it would be sent to a model
    (`InvalidTool`), so that building an agent never fails half way.
    """

    name: str
    description: str
    schema: type[Any] | Schema[Any] | Mapping[str, object] = field(eq=False)
    handler: Callable[..., object] | None = field(default=None, eq=False, init=False, repr=False)
    error: str = field(default="", eq=False, init=False)
    """Why the tool cannot be used; "" when it can."""
    _args: Schema[Any] | None = field(default=None, eq=False, init=False, repr=False)
    _spec: ToolSpec = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        given = self.schema
        typed = None if isinstance(given, Mapping) else given if isinstance(given, Schema) else Schema(given)
        shape = dict(given) if isinstance(given, Mapping) else cast("Schema[Any]", typed).json_schema
        object.__setattr__(self, "_args", typed)
        object.__setattr__(self, "_spec", ToolSpec(self.name, self.description, shape))
        if not self.name:
            object.__setattr__(self, "error", "it has no name")

    @property
    def spec(self) -> ToolSpec:
        """What a model is told of the tool."""
        return self._spec

    def on_call(self, handler: ToolHandler[S], /) -> Tool:
        """The same tool bound to a function of one argument: the class its annotation names, filled from the call.

        The function is async, or plain and then runs in a thread; it returns text, or data that is sent as JSON. No
        annotation means the tool's own class, or a plain dict where the tool has only a JSON schema. If the
        annotation's schema is not the tool's, the copy is broken: asking with it raises `InvalidTool`.
        """
        bound = evolve(self)
        error, args = _bound(self, self._args, handler)
        object.__setattr__(bound, "error", self.error or error)
        if not bound.error:
            object.__setattr__(bound, "handler", handler)
            object.__setattr__(bound, "_args", args)
        return bound

    def check(self, where: str = "") -> None:
        """Raises:
        InvalidTool: the tool is broken.
        """
        if self.error:
            raise InvalidTool(
                f"tool {self.name!r} is broken: {self.error}", path=where, remedy="mend it before it is sent"
            )

    async def run(self, call: ToolCall) -> str:
        """What the handler answers to a call, as text.

        Raises:
            InvalidTool: the tool has no handler.
            ToolArgs: the arguments do not fit.
        """
        if self.handler is None:
            raise InvalidTool(f"tool {self.name!r} has no handler", remedy="bind one with on_call")
        return _text(await invoke(self.handler, self.arguments(call)))

    def arguments(self, call: ToolCall) -> object:
        """The arguments of a call in the shape the handler takes; no input means the defaults.

        Raises:
            ToolArgs: they are not JSON or do not fit.
        """
        raw = call.input if call.input.strip() else "{}"
        try:
            schema: Schema[Any] = self._args if self._args is not None else Schema(dict)
            return schema.parse(raw)
        except SchemaMismatch as error:
            raise ToolArgs(f"arguments of tool {self.name!r}: {error.message}") from error


def _bound(tool: Tool, own: Schema[Any] | None, handler: Callable[..., object]) -> tuple[str, Schema[Any] | None]:
    """What is wrong with a handler ("" when nothing), and the schema that its argument follows."""
    try:
        names = [p.name for p in inspect.signature(handler).parameters.values() if p.kind in _POSITIONAL]
    except (TypeError, ValueError):
        return "its handler has no signature", None
    if not names:
        return "its handler takes no argument", None
    target = handler if inspect.isroutine(handler) else type(handler).__call__
    try:
        annotation = get_type_hints(target).get(names[0], Any)
    except (NameError, TypeError) as error:
        written = getattr(target, "__annotations__", {}).get(names[0])
        if own is not None and written == getattr(own.type, "__name__", None):
            return "", own  # a class inside a function: its name is all there is to see
        return f"the annotation of its handler does not resolve ({error})", None
    if annotation in (Any, object):
        return "", own
    if annotation in (dict, Mapping) or getattr(annotation, "__origin__", None) in (dict, Mapping):
        return "", None
    try:
        args: Schema[Any] = Schema(annotation)
    except Exception as error:
        return str(error), None
    if not same_shape(_lenient(args.json_schema), _lenient(tool.spec.schema)):
        return f"its handler takes {args.name}, whose schema is not the tool's", None
    return "", args


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _lenient(schema: object) -> object:
    """A JSON schema without its closing words: one written by hand seldom forbids unknown keys."""
    if isinstance(schema, Mapping):
        closed = schema.get("additionalProperties") is False
        return {key: _lenient(part) for key, part in schema.items() if not (closed and key == "additionalProperties")}
    return [_lenient(part) for part in schema] if isinstance(schema, list | tuple) else schema


def _text(result: object) -> str:
    return result if isinstance(result, str) else json.dumps(result, default=_parts, ensure_ascii=False)


def _parts(value: object) -> object:
    if (parts := parts_of(value)) is not value:
        return parts
    raise TypeError(f"a tool answered with a {type(value).__name__}, which has no JSON form; return text")
