"""The flow behind a signature, as it is kept in a store."""

from __future__ import annotations

import zlib

import pytest

import bb
from bb.codec import dumps
from bb.engine.memory import trees
from bb.engine.memory.trees import KeptTree, kept_tree, tree_records
from bb.flows.tree import Emit
from bb.identity import tree
from bb.wire import to_wire


def flow_of(length: int) -> bb.DurableFlow:
    return bb.Chain(tuple(Emit(f"text number {n}") for n in range(length))).with_id("f").durable()


async def stored(*records: bytes) -> bb.MemStore:
    store = bb.MemStore()
    await store.append("tree/abc", 0, records)
    return store


@pytest.mark.parametrize("length", [2, 500])
async def test_what_is_kept_comes_back(length: int) -> None:
    flow = flow_of(length)
    form, wire = tree(flow), to_wire(flow)
    store = await stored(*tree_records(form, wire))
    assert await kept_tree(store, "abc") == KeptTree(form, wire)
    assert await kept_tree(store, "def") is None


def test_a_small_one_is_json_and_a_large_one_takes_little_room() -> None:
    small, large = flow_of(2), flow_of(500)
    assert tree_records(tree(small), None) == [dumps(tree(small)), b"null"]
    for record, plain in zip(tree_records(tree(large), to_wire(large)), (tree(large), to_wire(large)), strict=True):
        assert len(record) * 8 < len(dumps(plain))


async def test_one_that_was_kept_as_it_stands_is_read_all_the_same() -> None:
    form = tree(flow_of(500))
    assert await kept_tree(await stored(dumps(form), b"null"), "abc") == KeptTree(form, None)
    assert await kept_tree(await stored(dumps(form)), "abc") == KeptTree(form, None)


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"[1]",
        b"{",
        b"x",
        b"xyz" * 100,
        zlib.compress(b'{"at":"f"}')[:-3],
        zlib.compress(b"no json"),
        zlib.compress(b'{"at":"' + b"f" * 5000 + b'"}'),
    ],
)
async def test_what_is_no_tree_is_an_error_that_names_its_stream(
    record: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "_MOST", 4000)  # a small record may unpack to more than any machine has
    with pytest.raises(bb.CorruptRecord, match="stream 'tree/abc' holds no tree: ") as raised:
        await kept_tree(await stored(record, b"null"), "abc")
    assert raised.value.remedy
