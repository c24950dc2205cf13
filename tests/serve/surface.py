"""What is served, as an OpenAPI document: what a request must be to be let in, and what each answer looks like.

It lives with the tests, which hold the server against it. Clients have the documents of the two protocols.
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
NAME: Final[Schema] = {"type": "string", "minLength": 1}
MAYBE: Final[Schema] = {"type": ["string", "null"]}
FLAG: Final[Schema] = {"type": ["boolean", "null"]}
COUNT: Final[Schema] = {"type": ["integer", "null"]}
NUMBER: Final[Schema] = {"type": ["number", "null"]}
OBJECT: Final[Schema] = {"type": "object"}
ID: Final[Schema] = {"type": "string", "pattern": r"^[A-Za-z0-9._:\-]{1,128}\Z"}
MODEL: Final[Schema] = {"enum": ["single", "three", "plain", "told", "silent", "chat"]}


def record(required: dict[str, Schema], **optional: Schema) -> Schema:
    """An object with these fields, and any others."""
    return {"type": "object", "required": [*required], "properties": {**required, **optional}}


def several(item: Schema, **more: object) -> Schema:
    """A list."""
    return {"type": "array", "items": item, **more}


def maybe(schema: Schema) -> Schema:
    """Something that may be null."""
    return {"anyOf": [{"type": "null"}, schema]}


def const(value: str) -> Schema:
    return {"const": value}


def _of_openai() -> Schema:
    part = {
        "oneOf": [record({"type": const("text"), "text": TEXT}), record({"type": const("refusal"), "refusal": TEXT})]
    }
    call = record({"id": TEXT, "function": record({"name": TEXT}, arguments=MAYBE)})
    content = {"anyOf": [MAYBE, several(part)]}
    message = record({"role": TEXT}, content=content, tool_calls=maybe(several(call)), tool_call_id=MAYBE)
    function = record({"name": NAME}, description=MAYBE, parameters=maybe(OBJECT))
    return record(
        {"model": MODEL, "messages": several(message, minItems=1)},
        stream=FLAG,
        stream_options=maybe(record({}, include_usage=FLAG)),
        temperature=NUMBER,
        top_p=NUMBER,
        max_tokens=COUNT,
        max_completion_tokens=COUNT,
        reasoning_effort=MAYBE,
        stop={"anyOf": [MAYBE, several(TEXT)]},
        tools=maybe(several(record({"function": function}, type={"enum": ["function", None]}))),
        tool_choice={"enum": ["auto", "none", "required", None]},
    )


def _of_anthropic() -> Schema:
    text = record({"type": const("text"), "text": TEXT})
    words = {"anyOf": [TEXT, several(text)]}
    block = {
        "oneOf": [
            text,
            record({"type": const("thinking")}),
            record({"type": const("tool_use"), "id": TEXT, "name": TEXT}, input=maybe(OBJECT)),
            record({"type": const("tool_result"), "tool_use_id": TEXT}, content=maybe(words), is_error=FLAG),
        ]
    }
    message = record({"role": TEXT, "content": {"anyOf": [TEXT, several(block)]}})
    tool = record({"name": NAME}, description=MAYBE, input_schema=maybe(OBJECT), type={"enum": ["custom", None]})
    return record(
        {"model": MODEL, "messages": several(message, minItems=1)},
        system=maybe(words),
        stream=FLAG,
        temperature=NUMBER,
        top_p=NUMBER,
        top_k=COUNT,
        max_tokens=COUNT,
        stop_sequences={"anyOf": [MAYBE, several(TEXT)]},
        thinking=maybe(record({}, type=MAYBE)),
        tools=maybe(several(tool)),
        tool_choice=maybe(record({"type": {"enum": ["auto", "any", "none"]}})),
    )


def _completion() -> Schema:
    call = record({"id": TEXT, "type": const("function"), "function": record({"name": TEXT, "arguments": TEXT})})
    message = record({"role": const("assistant"), "content": MAYBE}, tool_calls=several(call))
    choice = record({"index": {"const": 0}, "message": message, "finish_reason": {"enum": ["stop", "tool_calls"]}})
    counts = record({"prompt_tokens": {"type": "integer"}, "completion_tokens": {"type": "integer"}})
    return record(
        {"id": TEXT, "object": const("chat.completion"), "choices": {"type": "array", "items": choice}}, usage=counts
    )


def _message() -> Schema:
    block = {
        "oneOf": [
            record({"type": const("text"), "text": TEXT}),
            record({"type": const("tool_use"), "id": TEXT, "name": TEXT, "input": OBJECT}),
        ]
    }
    return record(
        {
            "id": TEXT,
            "type": const("message"),
            "role": const("assistant"),
            "content": {"type": "array", "items": block},
            "stop_reason": {"enum": ["end_turn", "tool_use"]},
            "usage": record({"input_tokens": {"type": "integer"}, "output_tokens": {"type": "integer"}}),
        }
    )


def closed(schema: Schema) -> Schema:
    """An object with its fields and no others."""
    return {**schema, "additionalProperties": False}


ERROR: Final = closed(
    record({"error": closed(record({"message": TEXT, "type": TEXT, "param": MAYBE, "code": TEXT, "run_id": ID}))})
)
OTHER_ERROR: Final = closed(
    record({"type": const("error"), "error": closed(record({"type": TEXT, "message": TEXT})), "request_id": ID})
)
RUN_ID: Final = {"X-Run-Id": {"required": True, "schema": ID}}
IDS: Final = [{"in": "header", "name": name, "schema": ID} for name in ("X-Run-Id", "X-Session-Id")]


def answer(schema: Schema, media: str = "application/json") -> Schema:
    """A response with a body."""
    return {"description": "", "headers": RUN_ID, "content": {media: {"schema": schema}}}


_EVENT: Final = record({"data": TEXT}, event=TEXT, id=TEXT)


def _asks(body: Schema, whole: Schema, error: Schema) -> Schema:
    good = answer(whole)
    good["content"]["text/event-stream"] = {"schema": _EVENT}
    return {
        "post": {
            "parameters": IDS,
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
            "responses": {"200": good, **{status: answer(error) for status in ("400", "404", "405", "409", "413")}},
        }
    }


def _looks(whole: Schema, *, run: bool = True, **query: Schema) -> Schema:
    """What the inspector tells, of a run or of all."""
    parameters = [_RUN_ID] if run else [*IDS]
    parameters += [{"in": "query", "name": name, "schema": schema} for name, schema in query.items()]
    errors = {status: answer(ERROR) for status in ("400", "404", "405")}
    return {"get": {"parameters": parameters, "responses": {"200": answer(whole), **errors}}}


def _does(body: Schema) -> Schema:
    """What the inspector is told to do with a run."""
    errors = {status: answer(ERROR) for status in ("400", "404", "405", "409", "413", "415")}
    return {
        "post": {
            "parameters": [_RUN_ID],
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
            "responses": {"200": answer(record({"ok": {"const": True}})), **errors},
        }
    }


_RUN_ID: Final = {"in": "path", "name": "run_id", "required": True, "schema": ID}
_RUN: Final = record({"id": ID, "flow": TEXT, "status": TEXT})
_RUNS: Final = record({"runs": {"type": "array", "items": _RUN}, "flows": {"type": "array", "items": TEXT}})
_EVENTS: Final[Schema] = {"type": "array", "items": record({"kind": TEXT, "run_id": TEXT})}
_MODELS: Final = record({"object": const("list"), "data": {"type": "array", "items": record({"id": TEXT})}})

SURFACE: Final[Schema] = {
    "openapi": "3.1.0",
    "info": {"title": "bb", "version": "1"},
    "paths": {
        "/v1/chat/completions": _asks(_of_openai(), _completion(), ERROR),
        "/v1/messages": _asks(_of_anthropic(), _message(), OTHER_ERROR),
        "/v1/models": {
            "get": {
                "parameters": IDS,
                "responses": {"200": answer(_MODELS), "400": answer(ERROR), "405": answer(ERROR)},
            }
        },
        "/v1/models/{id}": {
            "get": {
                "parameters": [{"in": "path", "name": "id", "required": True, "schema": TEXT}, *IDS],
                "responses": {
                    "200": answer(record({"id": TEXT})),
                    **{status: answer(ERROR) for status in ("400", "404", "405")},
                },
            }
        },
        "/v1/diagnostics/trace": _looks(_EVENTS, run=False),
        "/runs/api/runs": _looks(
            _RUNS,
            run=False,
            flow=TEXT,
            status=TEXT,
            text=TEXT,
            start=TEXT,
            limit={"type": "integer", "minimum": 1, "maximum": 200},
        ),
        "/runs/api/runs/{run_id}": _looks(_RUN),
        "/runs/api/runs/{run_id}/at": _looks(OBJECT, path=TEXT),
        "/runs/api/runs/{run_id}/trace": _looks(_EVENTS),
        "/runs/api/runs/{run_id}/retry": _does(OBJECT),
        "/runs/api/runs/{run_id}/cancel": _does(OBJECT),
        "/runs/api/runs/{run_id}/deliver": _does(record({"source": TEXT}, delivery_id=MAYBE)),
        "/v1/runs/{run_id}/events": {
            "get": {
                "parameters": [
                    {"in": "path", "name": "run_id", "required": True, "schema": ID},
                    {"in": "header", "name": "Last-Event-ID", "schema": TEXT},
                ],
                "responses": {
                    "200": answer(_EVENT, "text/event-stream"),
                    "204": {"description": "", "headers": RUN_ID},
                    **{status: answer(ERROR) for status in ("400", "404", "405")},
                },
            }
        },
        "/v1/hooks/{hook_id}": {
            "post": {
                "parameters": [{"in": "path", "name": "hook_id", "required": True, "schema": TEXT}, *IDS],
                "requestBody": {"content": {"application/octet-stream": {"schema": TEXT}}},
                "responses": {
                    "200": answer(TEXT, "text/plain"),
                    "202": {"description": "", "headers": RUN_ID},
                    **{status: answer(ERROR) for status in ("400", "404", "405", "413")},
                },
            }
        },
    },
}
