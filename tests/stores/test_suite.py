"""One suite for every store: same verdicts, same values."""

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb.errors import Conflict, Fenced, StoreError
from bb.stores.base import Lease, Store
from bb.stores.owner import owner
from tests.stores.conftest import MAKERS


async def lease_of(store: Store, name: str, holder: str = "somebody", seconds: float = 30) -> Lease:
    lease = await store.acquire(name, holder, seconds)
    assert lease is not None
    return lease


# --- streams ------------------------------------------------------------------------------------------------------------


async def test_what_was_appended_is_read_back(store: Store) -> None:
    assert await store.append("s", 0, [b"one"]) == 1
    assert await store.append("s", 1, [b"", b"three"]) == 3
    assert await store.read("s") == [b"one", b"", b"three"]
    assert await store.read("s", 1) == [b"", b"three"]
    assert await store.read("s", 3) == []
    assert await store.read("s", 99) == []
    assert await store.read("s", -5) == [b"one", b"", b"three"]


async def test_an_unknown_stream_is_empty(store: Store) -> None:
    assert await store.read("nothing") == []
    assert await store.list("") == []
    await store.delete("nothing")
    assert await store.append("nothing", 0, []) == 0
    assert await store.list("") == []


async def test_an_append_states_the_length_it_expects(store: Store) -> None:
    await store.append("s", 0, [b"a"])
    for expected in (0, 2, -1):
        with pytest.raises(Conflict, match="has 1 records"):
            await store.append("s", expected, [b"b"])
    with pytest.raises(Conflict):
        await store.append("s", 0, [])
    with pytest.raises(Conflict):
        await store.append("new", 1, [b"b"])
    assert await store.read("s") == [b"a"]
    assert await store.read("new") == []


async def test_an_append_that_fails_leaves_the_others_of_its_turn(store: Store) -> None:
    futures = [
        store.append("s", 0, [b"a"]),
        store.append("s", 0, [b"rival"]),
        store.append("t", 7, [b"b"]),
        store.append("s", 1, [b"c"]),
        store.append("u", 0, [b"d"], Lease("x", "me", 99)),
        store.append("v", 0, [b"e"]),
    ]
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(outcome) if isinstance(outcome, Exception) else outcome for outcome in outcomes] == [
        1,
        Conflict,
        Conflict,
        2,
        Fenced,
        1,
    ]
    assert await store.read("s") == [b"a", b"c"]
    assert await store.read("v") == [b"e"]


async def test_appends_of_one_loop_keep_their_order(store: Store) -> None:
    await asyncio.gather(*[store.append("s", n, [b"%d" % n]) for n in range(500)])
    assert await store.read("s") == [b"%d" % n for n in range(500)]
    assert await store.read("s", 490) == [b"%d" % n for n in range(490, 500)]


async def test_all_records_of_an_append_or_none(store: Store) -> None:
    with pytest.raises(StoreError, match="not str"):
        await store.append("s", 0, [b"a", "b"])  # type: ignore[list-item]
    assert await store.read("s") == []


async def test_what_was_read_is_a_copy(store: Store) -> None:
    records = [b"a"]
    writing = store.append("s", 0, records)
    records.append(b"sneaked in")
    await writing
    got = await store.read("s")
    assert got == [b"a"]
    got.append(b"rewritten")
    assert await store.read("s") == [b"a"]


@pytest.mark.parametrize("name", ["", "x" * 401, "a\nb", "a\0b", "\udc80", None, 7, b"s"], ids=repr)
async def test_a_name_outside_the_rule_is_refused(store: Store, name: str) -> None:
    acts: list[Callable[[], Awaitable[object]]] = [
        lambda: store.append(name, 0, [b"x"]),
        lambda: store.read(name),
        lambda: store.delete(name),
        lambda: store.acquire(name, "me", 1),
    ]
    for act in acts:
        with pytest.raises(StoreError, match="no name of a stream"):
            await act()


@pytest.mark.parametrize(
    "name", ["x" * 400, "../../x", "/etc/passwd", "C:\\x", "%", "_", "'; --", "ü/…/🙂", "#", "=", "!"]
)
async def test_a_name_is_only_a_name(store: Store, name: str) -> None:
    await store.append(name, 0, [name.encode()])
    lease = await lease_of(store, name)
    await store.append(name, 1, [b"more"], lease)
    assert await store.read(name) == [name.encode(), b"more"]
    assert [info.name for info in await store.list("")] == [name]
    assert [info.name for info in await store.list(name)] == [name]


async def test_names_that_differ_in_case_are_different(store: Store) -> None:
    await store.append("Run", 0, [b"a"])
    await store.append("run", 0, [b"b"])
    assert await store.read("Run") == [b"a"]
    assert [info.name for info in await store.list("R")] == ["Run"]


async def test_list_tells_each_stream_at_a_glance(store: Store) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    await store.append("run/b", 0, [b"1", b"2"])
    await store.append("run/a", 0, [b"x"])
    await store.append("run_a", 0, [b"other"])
    await store.append("run/b", 2, [b"3"])
    infos = await store.list("run/")
    assert [(info.name, info.length, info.last) for info in infos] == [("run/a", 1, b"x"), ("run/b", 3, b"3")]
    assert all(before < info.changed < datetime.now(UTC) + timedelta(seconds=1) for info in infos)
    assert [info.name for info in await store.list("")] == ["run/a", "run/b", "run_a"]
    assert await store.list("run/c") == []
    assert await store.list("\n") == []
    assert await store.list("\udc80") == []


async def test_a_deleted_stream_is_gone_and_may_begin_anew(store: Store) -> None:
    await store.append("s", 0, [b"a", b"b"])
    await store.append("t", 0, [b"kept"])
    await store.delete("s")
    await store.delete("s")
    assert await store.read("s") == []
    assert [info.name for info in await store.list("")] == ["t"]
    await store.append("s", 0, [b"new"])
    assert await store.read("s") == [b"new"]
    assert await store.read("t") == [b"kept"]


async def test_delete_may_leave_something(store: Store) -> None:
    await store.append("s", 0, [b"a", b"b", b"c"])
    for _ in range(2):
        await store.delete("s", leave=[b"tombstone"])
        assert await store.read("s") == [b"tombstone"]
    with pytest.raises(Conflict):
        await store.append("s", 3, [b"late"])
    assert await store.append("s", 1, [b"more"]) == 2
    await store.delete("never", leave=[b"tombstone"])
    assert await store.read("never") == [b"tombstone"]


async def test_large_records_and_long_streams(store: Store) -> None:
    large = bytes(range(256)) * 4096 * 4
    await store.append("large", 0, [large, b"small"])
    assert await store.read("large") == [large, b"small"]
    many = [b"%d" % n for n in range(3000)]
    await store.append("long", 0, many)
    assert await store.read("long") == many
    assert await store.read("long", 2999) == [b"2999"]
    assert [info.length for info in await store.list("l")] == [2, 3000]


@given(
    name=st.text(min_size=1, max_size=400).filter(str.isprintable),
    batches=st.lists(st.lists(st.binary(max_size=50), max_size=4), max_size=5),
)
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_every_name_and_record_comes_back(
    kind: str, tmp_path_factory: pytest.TempPathFactory, name: str, batches: list[list[bytes]]
) -> None:
    async def main() -> None:
        store = MAKERS[kind](tmp_path_factory.getbasetemp() / "names")
        await store.delete(name)
        written: list[bytes] = []
        for batch in batches:
            assert await store.append(name, len(written), batch) == len(written) + len(batch)
            written += batch
        assert await store.read(name) == written
        assert [(info.length, info.last) for info in await store.list(name) if info.name == name] == (
            [(len(written), written[-1])] if written else []
        )
        await store.close()

    asyncio.run(main())


# --- leases -------------------------------------------------------------------------------------------------------------


async def test_a_lease_is_held_by_one(store: Store) -> None:
    lease = await lease_of(store, "run", "me")
    assert (lease.name, lease.owner) == ("run", "me")
    assert await store.acquire("run", "you", 30) is None
    assert await store.acquire("run", "me", 30) is None
    await lease_of(store, "other", "you")
    await store.release(lease)
    await lease_of(store, "run", "you")


async def test_fences_grow_for_ever(store: Store) -> None:
    fences = []
    for n in range(5):
        lease = await lease_of(store, "run")
        await store.release(lease)
        await store.release(lease)
        fences.append(lease.fence)
        fences.append((await lease_of(store, f"other{n}")).fence)
    assert fences == sorted(set(fences))


async def test_only_the_newest_holder_writes(store: Store) -> None:
    old = await lease_of(store, "run", "me", 0.0)
    assert await store.append("s", 0, [b"a"], old) == 1  # ran out, but nobody took it
    new = await lease_of(store, "run", "you")
    with pytest.raises(Fenced, match="run"):
        await store.append("s", 1, [b"late"], old)
    with pytest.raises(Fenced):
        await store.delete("s", old)
    assert not await store.renew(old, 30)
    await store.release(old)  # does not free what another holds
    assert await store.append("s", 1, [b"b"], new) == 2
    await store.release(new)
    with pytest.raises(Fenced):
        await store.append("s", 2, [b"late"], new)
    assert not await store.renew(new, 30)
    assert await store.read("s") == [b"a", b"b"]


async def test_fenced_comes_before_conflict(store: Store) -> None:
    old = await lease_of(store, "run", "me", 0.0)
    new = await lease_of(store, "run", "you")
    await store.append("s", 0, [b"new"], new)
    with pytest.raises(Fenced):
        await store.append("s", 0, [b"old"], old)


async def test_a_renewed_lease_goes_on(store: Store) -> None:
    lease = await lease_of(store, "run", "me", 0.05)
    assert await store.renew(lease, 30)
    await asyncio.sleep(0.1)
    assert await store.acquire("run", "you", 30) is None
    assert await store.renew(lease, 0.0)
    await lease_of(store, "run", "you")


async def test_the_lease_of_a_dead_process_is_free(store: Store, dead_owner: str) -> None:
    dead = await lease_of(store, "run", dead_owner, 3600)
    living = await lease_of(store, "mine", owner("a"), 3600)
    new = await lease_of(store, "run", owner("b"))
    assert new.fence > dead.fence
    assert await store.acquire("mine", owner("b"), 30) is None
    assert await store.append("s", 0, [b"x"], living) == 1


async def test_the_holder_of_a_lease(store: Store, dead_owner: str) -> None:
    assert await store.holder("run") is None
    lease = await lease_of(store, "run", "me")
    for _ in range(2):
        assert await store.holder("run") == "me"
    await store.release(lease)
    assert await store.holder("run") is None
    await lease_of(store, "run", "me", 0.0)
    assert await store.holder("run") is None
    await lease_of(store, "run", dead_owner, 3600)
    assert await store.holder("run") is None
    with pytest.raises(StoreError):
        await store.holder("")


async def test_many_ask_for_one_lease_at_once(store: Store) -> None:
    got = await asyncio.gather(*[store.acquire("run", f"o{n}", 30) for n in range(20)])
    assert sum(lease is not None for lease in got) == 1


# --- waiting, cancelling, loops and threads -----------------------------------------------------------------------------


async def test_cancelling_who_waits_does_not_cancel_the_write(store: Store) -> None:
    async def write() -> None:
        await store.append("s", 0, [b"a"])

    task = asyncio.create_task(write())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await store.append("t", 0, [b"after"])
    assert await store.read("s") == [b"a"]


async def test_a_late_save_does_not_overwrite(store: Store) -> None:
    late = store.append("s", 0, [b"first"])
    late.cancel()
    with pytest.raises(Conflict):
        await store.append("s", 0, [b"second"])
    assert await store.read("s") == [b"first"]


async def test_a_cancelled_acquire_takes_nothing(store: Store) -> None:
    task = asyncio.create_task(store.acquire("run", "me", 3600))
    await asyncio.sleep(0)
    taken = task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    if not taken:
        end = time.monotonic() + 5
        while await store.acquire("run", "you", 30) is None:
            assert time.monotonic() < end
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", list(MAKERS))
def test_one_store_serves_one_loop_after_another(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    store = MAKERS[kind](tmp_path_factory.mktemp("loops"))

    async def use(n: int) -> None:
        assert await store.append("s", n, [b"%d" % n]) == n + 1
        assert len(await store.read("s")) == n + 1

    for n in range(5):
        asyncio.run(use(n))
    asyncio.run(store.close())
    asyncio.run(store.close())


@pytest.mark.parametrize("kind", list(MAKERS))
def test_threads_with_loops_of_their_own(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    store = MAKERS[kind](tmp_path_factory.mktemp("threads"))
    failures: list[BaseException] = []
    start = threading.Barrier(8)

    async def use(k: int) -> None:
        for n in range(10):
            await store.append(f"s{k}", n, [b"%d" % n])
        won = 0
        while won < 5:  # a contended stream: read, append where it ends, try again
            length = len(await store.read("shared"))
            try:
                await store.append("shared", length, [b"%d" % k])
                won += 1
            except Conflict:
                await asyncio.sleep(0)

    def run(k: int) -> None:
        start.wait()
        try:
            asyncio.run(use(k))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures

    async def check() -> None:
        for k in range(8):
            assert await store.read(f"s{k}") == [b"%d" % n for n in range(10)]
        shared = await store.read("shared")
        assert sorted(shared) == sorted(b"%d" % k for k in range(8) for _ in range(5))
        await store.close()

    asyncio.run(check())


@pytest.mark.parametrize("kind", list(MAKERS))
def test_a_loop_may_end_while_writes_are_pending(
    kind: str, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    store = MAKERS[kind](tmp_path_factory.mktemp("ended"))

    async def leave(n: int) -> None:
        _ = store.append("s", n, [b"x" * 300_000])  # large, so that it goes to the thread

    async def check() -> int:
        await store.close()
        return len(await store.read("s"))

    for n in range(3):
        asyncio.run(leave(n))
        gc.collect()
    assert asyncio.run(check()) == 3
    asyncio.run(store.close())
    gc.collect()
    assert not caplog.records


async def test_a_long_chain_of_appends_lets_others_run_and_can_be_cancelled(store: Store) -> None:
    lease = await store.acquire("lease", "me", 60)
    length = 0

    async def chain() -> None:
        nonlocal length
        while True:
            length = await store.append("s", length, [b"x"], lease)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await chain()
    assert len(await store.read("s")) in (length, length + 1)


async def test_a_closed_store_opens_again(store: Store) -> None:
    pending = store.append("s", 0, [b"a"])
    await store.close()
    assert pending.done()
    assert await pending == 1
    assert await store.read("s") == [b"a"]
    await store.append("s", 1, [b"b"])
    await store.close()
    await store.close()
    assert await store.read("s") == [b"a", b"b"]
