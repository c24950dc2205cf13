"""`Delta`: what one step adds to a run, and its form in a savepoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from bb.codec import Codec
from bb.errors import CorruptRecord
from bb.messages import Message, ToolCall, ToolResult, Usage
from bb.redaction import has_secrets, redacted


class Delta(NamedTuple):  # the cheapest of immutable values: every step makes one
    """What one step adds to a run: new messages, the selection, the value of its last reply, tokens, gates opened."""

    messages: tuple[Message, ...] = ()
    selected: str | None = None
    value: object = None
    usage: Usage | None = None
    gates: tuple[str, ...] = ()
    given: str = ""
    """Of a call: the fingerprint of its arguments. The savepoint counts only for a call with equal ones."""


def dump_delta(delta: Delta, codec: Codec, root: str) -> dict[str, object]:
    """A delta in codec form; what is empty is left out, and a value that is just the last text is not stored twice.

    Raises:
        NotSavable: its value cannot be kept exactly; `root` names it.
    """
    out: dict[str, object] = {}
    if delta.messages:
        out["m"] = [dump_message(message) for message in delta.messages]
    if delta.selected is not None:
        out["s"] = delta.selected
    if delta.value is not None:
        last = delta.messages[-1].content if delta.messages else None
        if type(delta.value) is str and delta.value == last:
            out["t"] = 1
        else:
            out["v"] = codec.dump(delta.value, root)
    if delta.usage is not None and delta.usage.total:
        usage = delta.usage
        out["u"] = [usage.input, usage.output, usage.cache_read, usage.cache_write, usage.reasoning]
    if delta.gates:
        out["g"] = list(delta.gates)
    if delta.given:
        out["f"] = delta.given
    return out


def load_delta(plain: object, codec: Codec) -> Delta:
    """The delta of a codec form, sharing nothing mutable with it.

    Raises:
        CorruptRecord: it is none, or holds a class the registry does not know.
    """
    try:
        form = cast("dict[str, Any]", plain)
        messages = tuple([load_message(m) for m in form.get("m", ())])
        value: object = messages[-1].content if "t" in form else codec.load(form["v"]) if "v" in form else None
        usage = Usage(*form["u"]) if "u" in form else None
        return Delta(messages, form.get("s"), value, usage, tuple(form.get("g", ())), form.get("f", ""))
    except CorruptRecord:
        raise
    except Exception as error:
        raise CorruptRecord(f"a savepoint cannot be read: {error}", remedy="forget it, or restore the store") from error


def dump_message(message: Message) -> list[object]:
    """A message in codec form: role, text, and calls and results if there are any."""
    if not (message.calls or message.results or has_secrets()):
        return [message.role, message.content]
    clean: Callable[[str], str] = redacted
    out: list[object] = [clean(message.role), clean(message.content)]
    if message.calls or message.results:
        out.append([[call.id, call.name, clean(call.input)] for call in message.calls])
        out.append([[result.call_id, clean(result.content), result.is_error] for result in message.results])
    return out


def load_message(form: Sequence[Any]) -> Message:
    """The message of a codec form."""
    if len(form) == 2:
        return Message(form[1], form[0])
    role, content, calls, results = form
    return Message(content, role, [ToolCall(*call) for call in calls], [ToolResult(*result) for result in results])
