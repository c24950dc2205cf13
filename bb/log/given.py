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
class Body(Record):
    """Which trigger a body belongs to, and what it is: what tells it from others when its flow has changed."""

    kind: str
    """Of the trigger."""
    spec: tuple[str, ...] = ()
    """The timetable and its zone, or the id of the webhook."""
    signature: str = ""
    ids: tuple[str, ...] = ()
    """Those of its statements, where no different body in its flow has the same."""

    def goes_on_as(self, other: Body) -> bool:
        """Whether another is the same body, or what has become of it."""
        return self.signature == other.signature or (bool(self.ids) and self.ids == other.ids)


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
    body: Body | None = None
    """What is run, if a trigger started it."""

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
    return out if given.body is None else with_body(out, given.body)


def tenant_of(plain: object) -> str:
    """Whose run it is that was started with this, without reading the rest."""
    return str(cast("dict[str, object]", plain).get("t", ""))


def with_body(plain: dict[str, object], body: Body) -> dict[str, object]:
    """What a run begins with, in codec form, for the body of a trigger."""
    return {**plain, "b": [body.kind, list(body.spec), body.signature, list(body.ids)]}


def body_in(plain: object) -> Body | None:
    """The body that begins with this, without reading the rest; None for what no trigger starts, and in old records.

    Raises:
        CorruptRecord: it cannot be read.
    """
    try:
        form = cast("dict[str, Any]", plain).get("b")
        if form is None:
            return None
        kind, spec, signature, ids = form
        return Body(kind, tuple(spec), signature, tuple(ids))
    except Exception as error:
        raise CorruptRecord(f"the body of a trigger cannot be read: {error}", remedy="restore the store") from error


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
            body_in(form),
        )
    except CorruptRecord:
        raise
    except Exception as error:
        raise CorruptRecord(f"the input of a run cannot be read: {error}", remedy="restore the store") from error


def _compared(message: Message) -> tuple[object, ...]:
    if not message.calls and not message.results:
        return (message.role, message.content)
    return (message.role, message.content, message.calls, message.results)
