"""An op as a model sees it: a tool with a JSON schema, arguments read from a call, a result written out."""

from __future__ import annotations

import inspect
import json
from typing import Annotated, Any, Final, cast, get_args, get_origin, get_type_hints

from bb.engine.frame.envelope import AnyOp, OpResult
from bb.errors import SchemaMismatch, ToolArgs, WiringError
from bb.messages import ToolCall, ToolSpec
from bb.plain import in_short, text_of
from bb.redaction import redacted
from bb.schema import Doc, Schema, finite, no_constant

RESULT_LIMIT: Final = 64 * 1024
"""How many bytes of a result a model is told."""


def spec_of(op: AnyOp) -> ToolSpec:
    """What a model is told of an op: the first line of its docstring, and the schema of its parameters."""
    properties: dict[str, object] = {}
    defs: dict[str, object] = {}
    for name, hint in _hints(op).items():
        shape = _schema(hint).json_schema
        defs |= cast("dict[str, object]", shape.pop("$defs", {}))  # references to them count from the top
        docs = [note.text for note in getattr(hint, "__metadata__", ()) if isinstance(note, Doc)]
        properties[name] = {**shape, "description": docs[0]} if docs else shape
    whole: dict[str, object] = {"type": "object", "properties": properties}
    if op.required:
        whole["required"] = list(op.required)
    whole["additionalProperties"] = False
    described = (inspect.getdoc(op.fn) or "").strip().partition("\n")[0]
    return ToolSpec(op.name, described, {**whole, "$defs": defs} if defs else whole)


def arguments_in(op: AnyOp, call: ToolCall) -> dict[str, object]:
    """The keyword arguments that a model's call gives to an op.

    Raises:
        ToolArgs: they are no JSON object, or do not fit the op.
    """
    given = json_in(call)
    if not isinstance(given, dict):
        raise _misfit(op.name, "they are no JSON object")
    hints = _hints(op)
    if unknown := [name for name in given if name not in hints]:
        raise _misfit(op.name, f"there is no {', '.join(map(in_short, unknown))}")
    if missing := [name for name in op.required if name not in given]:
        raise _misfit(op.name, f"{', '.join(map(repr, missing))} must be given")
    arguments: dict[str, object] = {}
    for name, value in given.items():
        try:
            arguments[name] = _schema(hints[name]).structure(value)
        except SchemaMismatch as error:
            raise _misfit(op.name, f"{name}: {error.message}") from error
    return arguments


def json_in(call: ToolCall) -> object:
    """What a call was given, as JSON data; no input is an empty record.

    Raises:
        ToolArgs: it is no JSON.
    """
    try:
        return cast("object", json.loads(call.input.strip() or "{}", parse_constant=no_constant, parse_float=finite))
    except (ValueError, RecursionError) as error:
        raise _misfit(call.name, f"not JSON ({error})") from error


def shown(result: OpResult) -> str:
    """What a model is told of a result: its view if it has one, without secrets, and at most `RESULT_LIMIT` bytes."""
    text = redacted(text_of(result.value) if result.view is None else result.view)
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= RESULT_LIMIT:
        return text
    note = f"\n[cut: the first {RESULT_LIMIT:,} of {len(data):,} bytes]"
    return data[: RESULT_LIMIT - len(note)].decode("utf-8", "ignore") + note


def _hints(op: AnyOp) -> dict[str, Any]:
    """The types of an op's parameters; Any where none can be told."""
    try:
        hints = get_type_hints(op.fn, include_extras=True)
    except (NameError, TypeError):  # annotations that only a type checker can follow
        hints = {}
    return {name: hints.get(name, Any) for name in op.params}


def _schema(hint: Any) -> Schema[Any]:
    type_ = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    try:
        return Schema(type_)
    except WiringError:  # JSON cannot say it: the op takes what comes, as it does from a flow
        return Schema(cast("type[Any]", Any))


def _misfit(name: str, flaw: str) -> ToolArgs:
    return ToolArgs(f"arguments of {name}: {flaw}")
