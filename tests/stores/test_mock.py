"""The script of a `MockStore`."""

import asyncio
import gc

import pytest

from bb.errors import Conflict, StoreError
from bb.testing.mock_store import Appended, Crash, MockStore


async def fill(store: MockStore, count: int) -> list[object]:
    """Append one record after another, as somebody would who never gives up."""
    outcomes: list[object] = []
    for n in range(count):
        try:
            outcomes.append(await store.append("s", len(await store.read("s")), [b"%d" % n]))
        except StoreError as error:
            outcomes.append(str(error))
    return outcomes


async def test_it_counts_and_notes_what_was_carried_out() -> None:
    store = MockStore()
    await store.append("s", 0, [b"a", b"b"])
    with pytest.raises(Conflict):
        await store.append("s", 0, [b"c"])
    await store.append("t", 0, [b"d"])
    assert store.appends == 3
    assert store.appended == [Appended(1, "s", (b"a", b"b")), Appended(3, "t", (b"d",))]
    store.clear()
    assert (store.appends, store.appended) == (0, [])
    assert await store.read("t") == [b"d"]


async def test_the_nth_append_fails() -> None:
    store = MockStore()
    store.fail_append(2, StoreError("scripted so"))
    assert await fill(store, 3) == [1, "scripted so", 2]
    assert await store.read("s") == [b"0", b"2"]


async def test_some_appends_fail_in_a_row() -> None:
    store = MockStore()
    store.fail_append(2, times=2)
    assert [type(outcome) for outcome in await fill(store, 4)] == [int, str, str, int]


async def test_only_the_reply_is_lost() -> None:
    store = MockStore()
    store.fail_append("s", OSError("no reply"), after=True)
    with pytest.raises(OSError, match="no reply"):
        await store.append("s", 0, [b"a"])
    assert await store.read("s") == [b"a"]
    assert len(store.appended) == 1


async def test_a_fault_after_a_refused_append_is_the_refusal() -> None:
    store = MockStore()
    store.fail_append(1, after=True)
    with pytest.raises(Conflict):
        await store.append("s", 5, [b"a"])


async def test_a_fault_strikes_where_a_function_says() -> None:
    store = MockStore()
    store.fail_append(lambda stream, records: stream == "t" and records[0].startswith(b"x"))
    await store.append("t", 0, [b"y"])
    await store.append("s", 0, [b"x"])
    with pytest.raises(StoreError, match="as scripted"):
        await store.append("t", 1, [b"x"])
    await store.append("t", 1, [b"x"])


@pytest.mark.parametrize("after", [False, True])
async def test_an_append_hangs_until_it_is_released(after: bool) -> None:
    store = MockStore()
    hold = store.hang_append("s", after=after)
    assert not hold.reached
    future = store.append("s", 0, [b"a"])
    await store.append("t", 0, [b"b"])
    assert hold.reached
    assert not future.done()
    assert await store.read("s") == ([b"a"] if after else [])
    hold.release()
    assert await future == 1
    assert await store.read("s") == [b"a"]
    assert not hold.reached


async def test_a_hold_released_early_does_not_hold() -> None:
    store = MockStore()
    store.hang_append("s").release()
    assert await store.append("s", 0, [b"a"]) == 1


async def test_reads_fail_too() -> None:
    store = MockStore()
    store.fail_read(2)
    store.fail_read("t", StoreError("this one"))
    assert await store.read("s") == []
    with pytest.raises(StoreError, match="as scripted"):
        await store.read("s")
    with pytest.raises(StoreError, match="this one"):
        await store.read("t")
    assert await store.read("t") == []


@pytest.mark.parametrize(("when", "kept"), [("before", 1), ("after", 2)])
async def test_a_crash_ends_everything_until_the_store_is_revived(when: str, kept: int) -> None:
    store = MockStore()
    lease = await store.acquire("run", "me", 3600)
    assert lease is not None
    store.crash_at(2, when)  # type: ignore[arg-type]
    await store.append("s", 0, [b"a"], lease)
    with pytest.raises(Crash):
        await store.append("s", 1, [b"b"], lease)
    assert store.crashed
    for act in (
        store.append("s", 1, [b"c"]),
        store.read("s"),
        store.list(""),
        store.delete("s"),
        store.acquire("x", "me", 1),
        store.renew(lease, 1),
        store.release(lease),
    ):
        with pytest.raises(Crash):
            await act
    store.revive()
    assert not store.crashed
    assert len(await store.read("s")) == kept
    assert store.appends == 3
    new = await store.acquire("run", "you", 30)
    assert new is not None
    assert new.fence > lease.fence


async def test_a_crash_during_an_append_strikes_a_turn_later() -> None:
    store = MockStore()
    store.crash_at(1, "during")
    first = store.append("s", 0, [b"a"])
    assert await store.append("t", 0, [b"beside it"]) == 1
    with pytest.raises(Crash):
        await first
    store.revive()
    assert await store.read("s") == [b"a"]
    assert await store.read("t") == [b"beside it"]


async def test_what_hangs_when_the_process_dies_is_lost() -> None:
    store = MockStore()
    hold = store.hang_append("s")
    future = store.append("s", 0, [b"a"])
    store.crash()
    hold.release()
    with pytest.raises(Crash):
        await future
    store.revive()
    assert await store.read("s") == []


def test_a_dead_process_does_not_complain(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        store = MockStore()
        store.crash_at(1)
        _ = store.append("s", 0, [b"a"])
        _ = store.append("s", 0, [b"a"])

    asyncio.run(main())
    gc.collect()
    assert not caplog.records


def test_no_handler_stops_a_crash() -> None:
    assert not issubclass(Crash, Exception)
