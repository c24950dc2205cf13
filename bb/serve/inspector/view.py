"""Runs as plain JSON, the way the page shows them. Times are Unix milliseconds."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, cast

from bb.engine.outcome import RunInfo
from bb.engine.runs.marks import Failure
from bb.engine.runs.picture import Picture, Step
from bb.engine.runs.viewer import Detail, Page
from bb.log import millis
from bb.messages import Message, Usage
from bb.redaction import redacted

_TITLE: Final = 120  # characters


def page_view(page: Page, flows: Collection[str], trigger: Callable[[str], str]) -> dict[str, object]:
    """Some runs, and what they can be filtered by; `trigger` says what starts a flow by itself."""
    return {
        "now": millis(datetime.now(UTC)),
        "runs": [{**info_view(info), "trigger": trigger(info.flow)} for info in page.runs],
        "kept": page.kept,
        "next": page.next,
        "flows": sorted(flows),
    }


def info_view(info: RunInfo) -> dict[str, object]:
    """A run in the list."""
    return {
        "id": info.run_id,
        "flow": info.flow,
        "status": info.status,
        "attempts": info.attempts,
        "started": millis(info.started),
        "progress": millis(info.progress),
        "waiting_for": info.waiting_for,
        "error": info.error,
        "session": info.session_id,
    }


def run_view(run: Picture) -> dict[str, object]:
    """One run."""
    return {
        **info_view(run.info),
        "now": millis(datetime.now(UTC)),
        "tries": [{"at": millis(attempt.at), "cause": attempt.cause} for attempt in run.attempts],
        "root": step_view(run.root),
        "asks": run.asks,
        "trigger": run.trigger,
        "is_known": run.is_known,
        "is_changed": run.is_changed,
        "length": run.length,
    }


def step_view(step: Step) -> dict[str, object]:
    """One part of a flow; what is empty is left out."""
    out: dict[str, object] = {
        "path": step.path,
        "kind": step.kind,
        "id": step.id,
        "slot": step.slot,
        "title": title_of(step.kind, step.of),
        "standing": step.standing,
        "began": _moment(step.began),
        "ended": _moment(step.ended),
        "attempt": step.attempt,
        "replays": step.replays,
        "waits_for": step.waits_for,
        "decided": step.decided,
        "failures": [_failure(failure) for failure in step.failures],
        "usage": _usage(step.usage),
        "entries": step.entries,
        "parts": [step_view(part) for part in step.parts],
    }
    return {name: value for name, value in out.items() if value not in (None, "", 0, False, [])}


def detail_view(detail: Detail) -> dict[str, object]:
    """What was said, and what came out, at one place."""
    return {
        "path": detail.path,
        "messages": [_message(message) for message in detail.messages],
        "selected": detail.selected,
        "has_value": detail.has_value,
        "value": plain(detail.value),
        "entries": [{"kind": entry.kind, "name": entry.name, "value": plain(entry.value)} for entry in detail.entries],
    }


_AS_SHOWN: Final = frozenset({"tuple", "set", "frozenset", "decimal", "uuid", "date"})


def plain(form: object) -> object:
    """A value in codec form as people read it: tags are left out where what they hold speaks for itself."""
    if isinstance(form, list):
        return [plain(part) for part in form]
    if not isinstance(form, dict):
        return form
    tag, held = form.get("~"), form.get("v")
    if not isinstance(tag, str):
        return {name: plain(part) for name, part in form.items()}
    if tag in _AS_SHOWN or tag.startswith("path."):
        return plain(held)
    module, _, name = str(form.get("c", "")).partition(":")
    if tag == "enum":
        return f"{name}.{held}"
    if tag == "fields" and isinstance(held, dict):
        shown = {str(part): plain(value) for part, value in held.items()}
        if module.partition(".")[0] != "bb":
            return {name: shown}
        return {part: value for part, value in shown.items() if value not in (None, "", [])}
    if tag == "bytes" and isinstance(held, str):
        with suppress(ValueError):
            return b64decode(held).decode()
    return form


def clean(value: object) -> object:
    """Plain data without secrets, also those that were registered after it was stored."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, list):
        return [clean(part) for part in value]
    if isinstance(value, dict):
        return {redacted(str(name)): clean(part) for name, part in value.items()}
    return value


def title_of(kind: str, of: object) -> str:
    """What a part does, in a few words: the names of its agents, the op that it calls, the event that it waits for."""
    if isinstance(of, list):  # agents, or the name of a sender
        return _short(", ".join(str(one[0] if isinstance(one, list) else one) for one in of))
    if not isinstance(of, dict):
        return ""
    own = cast("dict[str, Any]", of)
    match kind:
        case "call":
            return _short(f"{own['op']}({', '.join(map(_value, own.get('args', [])))})")
        case "bind":
            return _short(f"{own['name']} = {_value(own['value'])}")
        case "memo":
            return _short(f"{own['name']} = {_value(own['call'])}")
        case "emit" | "return":
            return _short(_value(own["value"]))
        case "when" | "unless" | "assert":
            return _short(_value(own["cond"]))
        case "each":
            return _short(f"{own['item']} in {_value(own['items'])}")
        case "ai_segment":
            return _short(_value(own["goal"]))
        case "run":
            return str(own["flow"])
        case "retry" | "repeat":
            return f"at most {own['max']} times"
        case "timeout":
            return f"after {own['after']} ms"
        case "with_tools":
            return _short(", ".join(own["tools"]))
        case "round" | "attempt":
            return str(own["number"])
        case "at" if isinstance(own["when"], list):
            return _short(_value(own["when"]))
        case _:
            named = (own.get(key) for key in ("source", "label", "name", "id", "cron", "when", "catch"))
            return _short(next((one for one in named if isinstance(one, str)), ""))


def _value(form: Any) -> str:
    """A value in canonical form, near enough to how it is written."""
    match form:
        case ["lit", str() as text]:
            return text
        case ["fmt", str() as template]:
            return json.dumps(template, ensure_ascii=False)
        case ["var" | "peek", str() as name]:
            return name
        case ["field", inner, list() as path, _]:
            return ".".join([_value(inner), *map(str, path)])
        case ["call" | "ai_segment", dict() as own]:
            return f"{own.get('op', 'ai')}(…)"
        case ["expr", str() as op, *args]:
            return f"{op}({', '.join(map(_value, args))})"
        case ["parse", inner, *_]:
            return _value(inner)
        case [str() as kind, *_]:
            return f"{kind}(…)"
        case _:
            return "…"


def _short(text: str) -> str:
    return text if len(text) <= _TITLE else f"{text[: _TITLE - 1]}…"


def _moment(at: datetime | None) -> int | None:
    return None if at is None else millis(at)


def _failure(failure: Failure) -> dict[str, object]:
    return {
        "began": millis(failure.began),
        "at": millis(failure.at),
        "error": failure.error,
        "detail": failure.detail,
        "attempt": failure.attempt,
        "final": failure.final,
    }


def _usage(usage: Usage | None) -> dict[str, int] | None:
    return None if usage is None else {"input": usage.input, "output": usage.output, "total": usage.total}


def _message(message: Message) -> dict[str, object]:
    return {
        "role": message.role,
        "text": message.content,
        "calls": [{"name": call.name, "input": call.input} for call in message.calls],
        "results": [{"text": result.content, "is_error": result.is_error} for result in message.results],
    }
