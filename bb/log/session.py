"""What a run finds in its session: blocks, memos, claims, checkpoints; and the form of a block in a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from attrs import Factory, frozen

from bb.codec import Codec
from bb.errors import BBError, CorruptRecord
from bb.log.delta import Delta, dump_delta, load_delta
from bb.messages import Message, Usage
from bb.record import Record


@frozen(eq=False, repr=False)
class Block(Record):
    """What a body came to: whoever skips it adds this to the run instead."""

    messages: tuple[Message, ...] = ()
    value: object = None
    """Of the last reply or return."""
    last: object = None
    """What its last statement came to."""
    symbols: Mapping[str, object] = Factory(dict)
    """What it bound."""
    selected: str | None = None
    usage: Usage | None = None
    returned: bool = False
    """Whether it ended with a `Return`, so that skipping it returns again."""
    sent: int | None = None
    """How many of its messages a `Respond` inside had delivered; None: there was none."""


@frozen(eq=False, repr=False)
class Found(Record):
    """The value of a memo, and the run and place that computed it."""

    value: object
    run: str
    path: str
    life: str = ""


@frozen(eq=False, repr=False)
class Claim(Record):
    """A run is in the body of a once, at `path`."""

    run: str
    path: str


@frozen(eq=False, repr=False)
class Done(Record):
    """The body of a once has come to this, in that run at `path`."""

    block: Block
    run: str
    path: str
    life: str = ""


@frozen(eq=False, repr=False)
class Point(Record):
    """A checkpoint that a run came past: after it stands the statement `position + 1` of the flow's body.

    It counts for runs of the same signature and the same fingerprint of their input; `block` is what came before it.
    """

    signature: str
    fingerprint: str
    position: int
    label: str
    run: str
    path: str
    block: Block


def dump_block(block: Block, codec: Codec, root: str = "value") -> dict[str, object]:
    """A block in codec form, what is empty left out.

    Raises:
        NotSavable: its value or a symbol cannot be kept exactly; `root` names the value.
    """
    out: dict[str, object] = {}
    if delta := dump_delta(Delta(block.messages, block.selected, block.value, block.usage), codec, root):
        out["d"] = delta
    if block.last is not None:
        out["l"] = codec.dump(block.last, root)
    if block.symbols:
        out["y"] = dump_symbols(block.symbols, codec)
    if block.returned:
        out["r"] = 1
    if block.sent is not None:
        out["n"] = block.sent
    return out


def load_block(plain: object, codec: Codec) -> Block:
    """The block of a codec form, sharing nothing mutable with it.

    Raises:
        CorruptRecord: it is none, or holds a class the registry does not know.
    """
    if type(plain) is not dict:
        raise CorruptRecord(f"a block is no {type(plain).__name__}", remedy="restore the store")
    form = cast("dict[str, Any]", plain)
    delta = load_delta(form.get("d", {}), codec)
    return Block(
        messages=delta.messages,
        value=delta.value,
        last=codec.load(form["l"]) if "l" in form else None,
        symbols=load_symbols(form.get("y", {}), codec),
        selected=delta.selected,
        usage=delta.usage,
        returned="r" in form,
        sent=form.get("n"),
    )


def dump_symbols(symbols: Mapping[str, object], codec: Codec) -> dict[str, object]:
    """Symbols by name, each value in codec form.

    Raises:
        NotSavable: a value cannot be kept exactly; the symbol is named.
    """
    return {name: codec.dump(value, name) for name, value in symbols.items()}


def load_symbols(plain: object, codec: Codec) -> dict[str, object]:
    """The symbols of a codec form.

    Raises:
        CorruptRecord: it is none, or holds a class the registry does not know.
    """
    try:
        return {name: codec.load(value) for name, value in cast("dict[str, object]", plain).items()}
    except BBError:
        raise
    except Exception as error:
        raise CorruptRecord(f"the symbols of a block cannot be read: {error}", remedy="restore the store") from error
