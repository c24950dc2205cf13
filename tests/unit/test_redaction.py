"""What counts as a secret: the text that was registered, and the ways in which program text and JSON spell it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import bb
from bb.redaction import MASK, has_secrets, redact, redacted, settled

PEM = "-----BEGIN KEY-----\nMIIhunter2\n-----END KEY-----"
SECRETS = [
    PEM,
    "hunter2'pass",
    'hunter2"pass',
    "hunter2\\",
    "\"hunter2'\\\n\t\x00",
    "hünter2-🔑",
    "hunter2\udcff",
    "plain",
]
SPELLINGS: dict[str, Callable[[str], str]] = {
    "str": str,
    "repr": repr,
    "ascii": ascii,
    "repr of a longer text": lambda text: repr([f'it\'s "{text}"']),
    "repr of bytes": lambda text: repr(text.encode("utf-8", "surrogatepass")),
    "JSON": json.dumps,
    "JSON as it is": lambda text: json.dumps(text, ensure_ascii=False),
}


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("outer", SPELLINGS)
@pytest.mark.parametrize("inner", SPELLINGS)
def test_a_secret_is_found_however_it_is_escaped(secret: str, inner: str, outer: str) -> None:
    redact(secret)
    text = SPELLINGS[outer](f"bad key {SPELLINGS[inner](f'<{secret}>')}!")
    assert f"<{MASK}>" in redacted(text)
    assert settled(text[: text.index("<") + 3]) <= text.index("<") + 1  # nor is its beginning sent on


def test_without_secrets_nothing_is_looked_for() -> None:
    assert not has_secrets()
    text = json.dumps(PEM)
    assert redacted(text) is text


def test_a_plain_secret_has_one_spelling_and_no_other_text_is_masked() -> None:
    redact("hunter2-pass")
    assert redacted("hunter2 pass, hunter2\\-pass, hunter2-pass") == f"hunter2 pass, hunter2\\-pass, {MASK}"


@bb.op(name="raises_repr")
def raises_repr() -> str:
    raise ValueError(f"bad key {PEM!r}")


@bb.op(name="raises_key")
def raises_key() -> str:
    raise KeyError(PEM)


@bb.op(name="gives_json")
def gives_json() -> str:
    return json.dumps({"key": PEM})


@bb.op(name="gives_json_in_json")
def gives_json_in_json() -> bb.Viewed[str]:
    text = json.dumps({"body": json.dumps({"key": PEM})})
    return bb.Viewed(text, text)


@pytest.mark.parametrize("op", [raises_repr, raises_key, gives_json, gives_json_in_json])
async def test_an_escaped_secret_is_in_no_error_answer_or_record(op: bb.Op[[], str]) -> None:
    redact(PEM)
    trace = bb.Recorder()
    app = bb.App(trace=trace)
    try:
        outcome = await app.run(bb.Return(op()).with_id("f").durable(), run_id="r-1")
        shown = f"{outcome.value}{outcome.answer}{outcome.messages}"
    except bb.OpFailed as error:
        shown = str(error)
    assert MASK in shown
    assert "hunter2" not in shown + repr(trace.events)
    for info in await app.store.list(""):
        assert all(b"hunter2" not in record for record in await app.store.read(info.name)), info.name
