"""What a run was started with: its form in the log, and what tells it from another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from attrs import field, frozen

from bb.codec import Codec
from bb.errors import CorruptRecord
from bb.log.delta import dump_message, load_message
from bb.messages import Input, Message, Request
from bb.record import Record

_NO_REQUEST: Final = Request()


@frozen(eq=False, repr=False)
class Given(Record):
    """The input of a run and its params."""

    input: Input
    params: Mapping[str, object]
    symbols: Mapping[str, object] = field(factory=dict)
    """What symbols held where a trigger was reached."""
    depth: int = 0
    """How many triggers led here, one started by the other."""
    tenant: str = ""
    """Whose run it is, where there are tenants."""

    def fingerprint(self, codec: Codec) -> str:
        """32 hex digits that are equal for equal input and params, and differ for others.

        Raises:
            NotSavable: a part is no plain data.
        """
        input = self.input
        messages = [_compared(message) for message in input.messages]
        request = None if input.request == _NO_REQUEST else input.request
        return codec.fingerprint([messages, request, input.payload, dict(input.metadata), dict(self.params)])


def dump_given(given: Given, codec: Codec) -> dict[str, object]:
    """In codec form, what is empty left out.

    Raises:
        NotSavable: a part cannot be kept exactly.
    """
    input, out = given.input, cast("dict[str, object]", {})
    if input.messages:
        out["m"] = [dump_message(message) for message in input.messages]
    if input.request != _NO_REQUEST:
        out["r"] = codec.dump(input.request, "input.request")
    if input.payload is not None:
        out["p"] = codec.dump(input.payload, "input.payload")
    if input.metadata:
        out["d"] = codec.dump(dict(input.metadata), "input.metadata")
    if given.params:
        out["a"] = codec.dump(dict(given.params), "params")
    if given.symbols:
        out["s"] = codec.dump(dict(given.symbols), "symbols")
    if given.depth:
        out["n"] = given.depth
    if given.tenant:
        out["t"] = given.tenant
    return out


def tenant_of(plain: object) -> str:
    """Whose run it is that was started with this, without reading the rest."""
    return str(cast("dict[str, object]", plain).get("t", ""))


def load_given(plain: object, codec: Codec) -> Given:
    """What a run was started with, sharing nothing mutable with it.

    Raises:
        CorruptRecord: it cannot be read.
    """
    try:
        form = cast("dict[str, Any]", plain)
        request, metadata, params, symbols = (codec.load(form[key]) if key in form else None for key in "rdas")
        return Given(
            Input(
                tuple(load_message(message) for message in form.get("m", ())),
                cast(Request, request) if request is not None else _NO_REQUEST,
                codec.load(form["p"]) if "p" in form else None,
                cast("dict[str, object]", metadata) if metadata is not None else {},
            ),
            cast("dict[str, object]", params) if params is not None else {},
            cast("dict[str, object]", symbols) if symbols is not None else {},
            int(form.get("n", 0)),
            tenant_of(form),
        )
    except CorruptRecord:
        raise
    except Exception as error:
        raise CorruptRecord(f"the input of a run cannot be read: {error}", remedy="restore the store") from error


def _compared(message: Message) -> tuple[object, ...]:
    if not message.calls and not message.results:
        return (message.role, message.content)
    return (message.role, message.content, message.calls, message.results)
