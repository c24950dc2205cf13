"""Kept trees: the flow behind a signature, once for all runs over a store.

A stream of two records: the canonical form, which tells what has changed, and the flow on the wire (null, if a part has no
name), which open runs go on with. They are JSON, and compressed where that saves room: a tree says the same few words over
and over.
"""

from __future__ import annotations

from typing import Final, cast

from attrs import frozen

from bb.codec import dumps, loads
from bb.errors import CorruptRecord
from bb.identity import Tree
from bb.log import tree_stream
from bb.stores.base import Store

_SMALL: Final = 1024  # bytes that are not worth it: an operator can read them as they stand
_PACKED: Final = b"x"  # how zlib begins, and no JSON
_MOST: Final = 1 << 28  # bytes that a record may unpack to


@frozen
class KeptTree:
    """What is kept of a flow."""

    form: Tree
    wire: object


def tree_records(form: Tree, wire: object) -> list[bytes]:
    """The records of a tree."""
    return [_packed(dumps(form)), _packed(dumps(wire))]


async def kept_tree(store: Store, signature: str) -> KeptTree | None:
    """The flow behind a signature, if it is kept.

    Raises:
        CorruptRecord: what is kept cannot be read.
        StoreError: the store failed.
    """
    stream = tree_stream(signature)
    records = await store.read(stream)
    if not records:
        return None
    try:
        form, *more = [loads(_unpacked(record)) for record in records]
        if not isinstance(form, dict):
            raise CorruptRecord("not a record")
    except CorruptRecord as error:
        raise CorruptRecord(
            f"stream {stream!r} holds no tree: {error.message}", remedy="restore the store from a copy"
        ) from error
    return KeptTree(cast(Tree, form), more[0] if more else None)


async def kept_form(store: Store, signature: str) -> Tree | None:
    """The canonical form behind a signature, if it is kept.

    Raises: as `kept_tree` does.
    """
    kept = await kept_tree(store, signature)
    return kept.form if kept is not None else None


def _packed(record: bytes) -> bytes:
    if len(record) <= _SMALL:
        return record
    import zlib  # a program with small flows does without

    return zlib.compress(record)


def _unpacked(record: bytes) -> bytes:
    if not record.startswith(_PACKED):
        return record
    import zlib

    unpacking = zlib.decompressobj()
    try:
        data = unpacking.decompress(record, _MOST)
    except zlib.error as error:
        raise CorruptRecord(str(error)) from error
    if not unpacking.eof:
        raise CorruptRecord("it was cut off, or is too large")
    return data
