"""What a directory of records must bear: other processes, other loops, forks, locks and full disks."""

import asyncio
import gc
import os
import signal
import sqlite3
import stat
import threading
import time
import weakref
from collections.abc import Awaitable
from pathlib import Path

import diskcache
import pytest
import structlog

from bb.errors import StoreError, StoreFull
from bb.stores import file, turns, worker
from bb.stores.file import FileStore
from bb.stores.mounts import network_mount
from tests.stores.processes import Locked, run, start

RECORD = b"r" * 210


async def fill(directory: Path, stream: str = "s", count: int = 3) -> None:
    """Leave a closed store with a stream of numbered records."""
    store = FileStore(directory)
    await store.append(stream, 0, [b"record %d" % n for n in range(count)])
    await store.close()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def handles() -> int:
    return len(names(Path("/proc/self/fd")))


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


STILL = 0.05  # seconds that the loop may stand still


async def lag_of(act: Awaitable[object]) -> tuple[object, float]:
    """What `act` gave, and the longest time that the loop stood still meanwhile."""
    worst = 0.0

    async def tick() -> None:
        nonlocal worst
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            worst = max(worst, time.perf_counter() - before - 0.001)

    ticking = asyncio.create_task(tick())
    try:
        return await act, worst
    finally:
        ticking.cancel()


def pragma(store: FileStore, name: str) -> object:
    return store._writes._con.execute(f"PRAGMA {name}").fetchone()[0]  # type: ignore[attr-defined]


# --- opening ------------------------------------------------------------------------------------------------------------


async def test_nothing_is_opened_before_the_first_write(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "a" / "state")
    assert await store.read("s") == []
    assert await store.list("") == []
    await store.close()
    assert not names(tmp_path)


async def test_the_directory_is_private(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "a" / "state")
    await store.append("s", 0, [RECORD])
    assert stat.S_IMODE(store.directory.stat().st_mode) == 0o700
    assert all(path.name.startswith("cache.db") for path in store.directory.iterdir())
    assert stat.S_IMODE((store.directory / "cache.db").stat().st_mode) == 0o600
    await store.close()


async def test_the_directory_stays_where_it_was_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACE", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    store, other, third = FileStore("state"), FileStore("$PLACE/state"), FileStore("~/home")
    monkeypatch.chdir("/")
    for each in (store, other, third):
        await each.append("s", 0, [RECORD])
        await each.close()
    assert names(tmp_path) == ["here", "home", "state"]


async def test_opening_again_writes_nothing(tmp_path: Path) -> None:
    await fill(tmp_path)
    before = contents(tmp_path)
    store = FileStore(tmp_path)
    assert len(await store.read("s")) == 3
    store._writes.open()
    await store.close()
    assert contents(tmp_path) == before


async def test_settings_hold_whoever_opens_the_directory_too(tmp_path: Path) -> None:
    await fill(tmp_path)
    diskcache.Cache(
        str(tmp_path),
        eviction_policy="least-recently-stored",
        size_limit=1,
        cull_limit=10,
        sqlite_synchronous=0,
        sqlite_cache_size=10,
        sqlite_mmap_size=1 << 20,
    ).close()
    for fsync, level in ((False, 1), (True, 2)):
        store = FileStore(tmp_path, fsync=fsync)
        await store.acquire("x", "me", 1)
        assert pragma(store, "synchronous") == level
        assert pragma(store, "page_size") == 1024
        assert pragma(store, "journal_mode") == "wal"
        assert pragma(store, "mmap_size") == 0
        await store.close()
    plain = diskcache.Cache(str(tmp_path))
    plain.set("foreign", b"x" * 1000)
    plain.close()
    store = FileStore(tmp_path)
    assert len(await store.read("s")) == 3
    await store.close()


async def test_trial_g1_nothing_is_ever_evicted(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    await store.append("first", 0, [RECORD])
    rival = diskcache.Cache(str(tmp_path), size_limit=1, cull_limit=1000)
    for n in range(300):
        await store.append("s", n, [RECORD])
        if n % 100 == 0:
            rival.set(f"foreign{n}", b"x" * 5000)
    rival.close()
    assert await store.read("first") == [RECORD]
    assert await store.read("s") == [RECORD] * 300
    await store.close()


async def test_trial_j5_no_record_is_kept_in_a_file_that_could_go_missing(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    await store.append("s", 0, [RECORD, b"x" * 5_000_000])
    await store.close()
    assert {name.partition("-")[0] for name in names(tmp_path)} == {"cache.db"}


async def test_diskcache_finds_nothing_wrong(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for n in range(20):
        await store.append("s", n, [b"x" * 100_000])
    await store.append("t", 0, [RECORD] * 50)
    await store.delete("t")
    await store.close()
    plain = diskcache.Cache(str(tmp_path))
    assert plain.check() == []
    plain.close()


def test_many_threads_open_one_directory_at_once(tmp_path: Path) -> None:
    store, gate, failures = FileStore(tmp_path / "state"), threading.Barrier(64), []

    def use(k: int) -> None:
        gate.wait()
        mine = store if k % 8 else FileStore(tmp_path / "state")
        try:
            asyncio.run(one(mine, k))
        except BaseException as error:
            failures.append(error)

    async def one(mine: FileStore, k: int) -> None:
        assert await mine.read(f"s{k}") == []
        assert await mine.append(f"s{k}", 0, [RECORD]) == 1
        if mine is not store:
            await mine.close()

    threads = [threading.Thread(target=use, args=(k,)) for k in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(asyncio.run(store.list("s"))) == 64
    asyncio.run(store.close())


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("30 1 0:3 / / rw - ext4 /dev/vda rw", ""),
        ("31 1 0:4 / {} rw shared:1 - nfs4 server:/x rw", "nfs4"),
        ("31 1 0:4 / {} rw - fuse.sshfs x rw", "fuse.sshfs"),
        ("31 1 0:4 / {}/elsewhere rw - nfs server:/x rw", ""),
        ("31 1 0:4 / {} rw - nfs server:/x rw\n32 31 0:5 / {} rw - tmpfs tmpfs rw", ""),
        ("nonsense", ""),
    ],
)
def test_a_network_mount_is_told_from_a_local_one(tmp_path: Path, line: str, kind: str) -> None:
    (tmp_path / "a b").mkdir()
    table = tmp_path / "mountinfo"
    table.write_text("30 1 0:3 / / rw - ext4 /dev/vda rw\n" + line.replace("{}", f"{tmp_path}/a\\040b"))
    assert network_mount(str(tmp_path / "a b"), table) == kind
    assert network_mount(str(tmp_path), tmp_path / "missing") == ""


async def test_trial_j4_a_network_mount_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "network_mount", lambda _: "nfs4")
    with structlog.testing.capture_logs() as logs:
        await fill(tmp_path)
    assert [(log["event"], log["type"], log["directory"]) for log in logs] == [
        ("store.network_mount", "nfs4", str(tmp_path))
    ]


def test_a_directory_that_cannot_be_written_is_read_and_no_more(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "closed"))
    asyncio.run(fill(tmp_path / "open"))
    keeper = sqlite3.connect(tmp_path / "open" / "cache.db")  # keeps the log in place
    keeper.execute("SELECT * FROM Cache").fetchall()
    for place in ("closed", "open"):
        for path in [*(tmp_path / place).iterdir(), tmp_path / place]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        for parent in [tmp_path, *tmp_path.parents]:
            if parent.stat().st_uid == os.getuid() and parent != Path("/"):
                parent.chmod(parent.stat().st_mode | 0o055)
        printed = run(
            tmp_path / place,
            """
            import diskcache, structlog, urllib.parse  # while there is somebody who may read where they are installed
            from bb.stores import mounts
            if os.getuid() == 0:
                os.setgid(65534); os.setuid(65534)  # nobody is stopped by modes but root
            async def main():
                print(await store.read("s", 2), [info.name for info in await store.list("")])
                for act in (store.append("s", 3, [b"x"]), store.acquire("x", "me", 1)):
                    try:
                        print(await act)
                    except StoreError as error:
                        print(type(error).__name__, "write" in str(error), directory in str(error))
                await store.close()
            asyncio.run(main())
            """,
            measured=False,
        )
        assert printed.splitlines() == ["[b'record 2'] ['s']", "StoreError True True", "StoreError True True"]
        (tmp_path / place).chmod(0o755)
    keeper.close()


async def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    for place in (tmp_path / "taken", tmp_path / "taken" / "below"):
        store = FileStore(place)
        with pytest.raises(StoreError, match="cannot be opened to write"):
            await store.append("s", 0, [RECORD])
        await store.close()


# --- crashes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fsync", [False, True])
def test_what_was_acknowledged_survives_sigkill(tmp_path: Path, fsync: bool) -> None:
    length = 0
    for pause in (0.02, 0.05, 0.11):
        process = start(
            tmp_path,
            f"""
            store = FileStore(directory, fsync={fsync})
            async def main():
                n = len(await store.read("s"))
                await store.acquire("lease%d" % n, "me", 30)
                while True:
                    n = await store.append("s", n, [b"%d" % n, b"%d" % (n + 1)])
                    print(n, flush=True)
            asyncio.run(main())
            """,
        )
        assert process.stdout is not None
        acknowledged = int(process.stdout.readline())
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        out = process.stdout.read()
        process.communicate()
        acknowledged = max([acknowledged, *(int(line) for line in out.split("\n")[:-1])])

        async def check() -> int:
            store = FileStore(tmp_path)
            records = await store.read("s")
            await store.close()
            assert records == [b"%d" % n for n in range(len(records))]
            return len(records)

        length = asyncio.run(check())
        assert length % 2 == 0
        assert acknowledged <= length <= acknowledged + 2


def test_a_process_that_died_gives_its_lease_back_at_once(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        """
        from bb.stores.owner import owner
        async def main():
            await store.acquire("run", owner("x"), 3600)
            print("held", flush=True)
            time.sleep(60)
        asyncio.run(main())
        """,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"

    async def take() -> bool:
        store = FileStore(tmp_path)
        lease = await store.acquire("run", "me", 30)
        await store.close()
        return lease is not None

    assert not asyncio.run(take())
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie, not yet buried, is dead already
    assert asyncio.run(take())
    process.communicate(timeout=60)


def test_a_program_that_ends_with_a_write_pending(tmp_path: Path) -> None:
    began = time.monotonic()
    run(
        tmp_path,
        """
        async def main():
            future = store.append("s", 0, [b"x" * 300_000])
        asyncio.run(main())
        """,
    )
    assert time.monotonic() - began < 5
    assert run(tmp_path, "print(len(asyncio.run(store.read('s'))))") == "1"


# --- several processes --------------------------------------------------------------------------------------------------


def test_two_processes_share_a_stream(tmp_path: Path) -> None:
    code = """
    async def main():
        won = 0
        while won < 100:
            length = len(await store.read("s"))
            try:
                await store.append("s", length, [b"%d" % os.getpid()])
                won += 1
            except Conflict:
                pass
        await store.close()
    asyncio.run(main())
    """
    for process in [start(tmp_path, code) for _ in range(2)]:
        assert process.communicate(timeout=60)[1] == ""
    records = asyncio.run(FileStore(tmp_path).read("s"))
    assert len(records) == 200
    assert sorted(records.count(who) for who in set(records)) == [100, 100]


async def test_trial_j8_a_locked_database_does_not_hold_the_loop(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    await store.append("s", 0, [RECORD])

    async def use() -> object:
        writes = asyncio.gather(*(store.append("s", n, [RECORD]) for n in range(1, 4)), store.acquire("x", "me", 3))
        assert await store.read("s") == [RECORD]  # reading goes on
        assert not writes.done()
        return await writes

    with Locked(tmp_path, 1.5):
        outcome, lag = await lag_of(use())
    assert lag < 5 * STILL  # far less than the lock is held, on a machine that stands still itself
    assert isinstance(outcome, list)
    assert outcome[:3] == [2, 3, 4]
    assert await store.read("s") == [RECORD] * 4
    await store.close()


async def test_the_first_write_waits_for_a_locked_database(tmp_path: Path) -> None:
    await fill(tmp_path)
    store = FileStore(tmp_path)
    with Locked(tmp_path, 0.7):
        outcome, lag = await lag_of(store.append("s", 3, [RECORD]))
    assert (outcome, lag < 5 * STILL) == (4, True)
    await store.close()


async def test_a_database_locked_for_good_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_PATIENCE", 0.3)
    store = FileStore(tmp_path)
    await store.append("s", 0, [RECORD])
    with Locked(tmp_path, 3):
        with pytest.raises(StoreError, match="was locked") as caught:
            await store.append("s", 1, [RECORD])
        assert str(tmp_path) in str(caught.value)
        assert caught.value.remedy
    assert await store.append("s", 1, [RECORD]) == 2
    await store.close()


async def test_a_locked_database_is_waited_for_once_by_all_writes_of_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_PATIENCE", 0.3)
    store = FileStore(tmp_path)
    await store.append("s", 0, [RECORD])
    with Locked(tmp_path, 4):
        began = time.monotonic()
        writes = (store.append(f"t{n}", 0, [RECORD]) for n in range(20))
        refused = await asyncio.gather(*writes, return_exceptions=True)
        assert time.monotonic() - began < 3
    assert all(isinstance(error, StoreError) for error in refused)
    assert len(set(map(id, refused))) == 20  # whoever is told may write its place into the error
    await store.close()


async def test_a_slow_disk_does_not_hold_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path)
    await store.append("s", 0, [RECORD])
    here: list[bool] = []
    commit = store._commit

    def slow(writes: object) -> None:
        here.append(threading.current_thread() is threading.main_thread())
        commit(writes)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "_commit", slow)
    monkeypatch.setattr(turns, "_SLOW", 0.0)
    store._detour = 0
    for n in range(1, 6):
        await store.append("s", n, [RECORD])
    assert here == [True, False, False, False, False]
    await store.close()


async def test_a_large_turn_does_not_hold_the_loop(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    await store.append("s", 0, [RECORD])

    async def lag(k: int) -> float:
        large = asyncio.gather(*(store.append(f"t{k}/{n}", 0, [b"x" * 2000] * 10) for n in range(500)))
        return max((await lag_of(large))[1], (await lag_of(store.list(f"t{k}/")))[1])

    # the best of a few, since the machine, too, may stand still
    assert any([await lag(k) < STILL for k in range(3)])
    await store.close()


# --- forks, threads and loops -------------------------------------------------------------------------------------------


def test_trial_j7_a_child_of_a_fork_opens_for_itself(tmp_path: Path) -> None:
    printed = run(
        tmp_path,
        """
        stop = False
        async def write(name, count):
            n = len(await store.read(name))
            for n in range(n, n + count):
                await store.append(name, n, [b"x"])
        def busy(name):
            async def main():
                while not stop:
                    await write(name, 20)
                    await store.append(name, len(await store.read(name)), [b"y" * 300_000])
            asyncio.run(main())
        threads = [threading.Thread(target=busy, args=("busy%d" % k,)) for k in range(3)]
        for thread in threads:
            thread.start()
        asyncio.run(write("parent", 5))
        for k in range(8):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    asyncio.run(write("child%d" % k, 5))
                    if k % 2:
                        asyncio.run(store.close())
                    code = 0
                finally:
                    os._exit(code)
            end = time.monotonic() + 20
            while (done := os.waitpid(child, os.WNOHANG))[0] == 0:
                if time.monotonic() > end:
                    os.kill(child, 9)
                time.sleep(0.01)
            print(done[1], end=" ")
        stop = True
        for thread in threads:
            thread.join()
        asyncio.run(write("parent", 5))
        lengths = {info.name: info.length for info in asyncio.run(store.list(""))}
        print(lengths["parent"], [lengths["child%d" % k] for k in range(8)])
        asyncio.run(store.close())
        """,
    )
    assert printed == "0 0 0 0 0 0 0 0 10 [5, 5, 5, 5, 5, 5, 5, 5]"


def test_a_child_that_only_ends_writes_nothing_back(tmp_path: Path) -> None:
    """Its copy of the connection knows a log that was replaced since: closed, it would undo what came after."""
    parent = start(
        tmp_path / "state",
        f"""
        import gc, signal
        async def main():
            for n in range(50):
                await store.append("s", n, [b"%d" % n])
        asyncio.run(main())
        if os.fork():
            print("forked", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        while not os.path.exists({str(tmp_path / "go")!r}):
            time.sleep(0.01)
        del store
        gc.collect()
        sys.exit(0)
        """,
    )
    parent.wait(timeout=60)

    async def go_on(n: int) -> int:
        store = FileStore(tmp_path / "state")
        for k in range(n, n + 50):
            await store.append("s", k, [b"%d" % k])
        await store.close()
        store = FileStore(tmp_path / "state")
        records = await store.read("s")
        await store.close()
        assert records == [b"%d" % k for k in range(n + 50)]
        return len(records)

    length = asyncio.run(go_on(50))
    (tmp_path / "go").touch()
    assert parent.communicate(timeout=60) == ("forked\n", "")  # the child has ended, too
    assert asyncio.run(go_on(length)) == 150


def test_trial_j11_short_lived_threads_leak_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path)

    async def use(k: int) -> None:
        for n in range(10):
            await store.append(f"s{k}", n, [RECORD])
        assert len(await store.read(f"s{k}")) == 10

    def thread(k: int) -> None:
        each = threading.Thread(target=asyncio.run, args=(use(k),))
        each.start()
        each.join()

    def count() -> tuple[int, int]:
        gc.collect()
        return handles(), threading.active_count()

    thread(0)
    thread(1)
    before = count()
    for k in range(2, 100):
        thread(k)
    after = count()
    assert after[0] <= before[0]
    assert after[1] <= before[1] + 1
    asyncio.run(store.close())


def test_a_store_keeps_no_loop_and_no_batch(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    loops = []

    async def use(n: int) -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await store.append("s", n, [b"x" * 300_000])
        await store.append(f"t{n}", 0, [RECORD])
        await store.list("")

    for n in range(3):
        asyncio.run(use(n))
    time.sleep(0.2)
    gc.collect()
    assert [loop() for loop in loops[:-1]] == [None, None]
    asyncio.run(store.close())


def test_a_store_that_was_only_dropped_lets_go(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path))
    before = handles()
    store = FileStore(tmp_path)
    asyncio.run(_touch(store))
    del store
    time.sleep(0.1)
    gc.collect()
    assert handles() <= before


async def _touch(store: FileStore) -> None:
    await store.append("s", 3, [RECORD])
    await store.read("s")


async def test_closing_ends_the_threads(tmp_path: Path) -> None:
    before = handles(), threading.active_count()
    store = FileStore(tmp_path)
    await store.append("s", 0, [RECORD])
    await store.list("")
    assert threading.active_count() > before[1]
    await store.close()
    end = time.monotonic() + 0.5  # far less than an idle thread stays
    while threading.active_count() > before[1]:
        assert time.monotonic() < end
        await asyncio.sleep(0.005)
    assert handles() == before[0]


async def test_without_threads_a_write_fails_and_does_not_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    store = FileStore(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for act in (store.append("s", 0, [RECORD]), store.list("")):
            with pytest.raises(StoreError, match="can't start new thread"):
                await act
    assert await store.append("s", 0, [RECORD]) == 1
    await store.close()


async def test_without_a_thread_to_tidy_up_what_was_written_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(turns, "_SLOW", 60.0)
    monkeypatch.setattr(worker, "_LINGER", 0.0)
    store = FileStore(tmp_path)
    lease = await store.acquire("lease", "me", 60)
    await store.read("s")
    store._detour = 0
    writer = store._writer._thread
    if writer is not None:
        await asyncio.to_thread(writer.join)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for n in range(400):
            assert await store.append("s", n, [RECORD], lease) == n + 1
            assert await store.append("t", n, [RECORD]) == n + 1
    assert len(await store.read("s")) == 400
    await store.close()


async def test_every_directory_that_was_made_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(file, "_sync", synced.append)
    store = FileStore(tmp_path / "a" / "b" / "c", fsync=True)
    await store.append("s", 0, [RECORD])
    await store.close()
    assert sorted(synced) == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]


# --- room ---------------------------------------------------------------------------------------------------------------


async def test_a_full_disk_fails_what_does_not_fit_and_nothing_else(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    await store.append("s", 0, [RECORD])
    pragma(store, f"max_page_count = {int(str(pragma(store, 'page_count'))) + 40}")
    small, large, other = await asyncio.gather(
        store.append("s", 1, [b"small"]),
        store.append("s", 2, [b"x" * 100_000]),
        store.append("t", 0, [b"fits"]),
        return_exceptions=True,
    )
    assert (small, other) == (2, 1)
    assert isinstance(large, StoreFull)
    assert str(tmp_path) in str(large)
    assert "disk space" in large.remedy
    assert await store.read("s") == [RECORD, b"small"]
    pragma(store, "max_page_count = 1000000")
    assert await store.append("s", 2, [b"x" * 100_000]) == 3
    await store.close()


def test_a_file_that_may_not_grow_is_a_full_disk(tmp_path: Path) -> None:
    printed = run(
        tmp_path,
        """
        import resource
        async def main():
            n = await store.append("s", 0, [b"x" * 1000])
            limit = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limit[1]))
            while True:
                try:
                    n = await store.append("s", n, [b"x" * 1000])
                except StoreFull as error:
                    break
            try:
                await store.append("t", 0, [b"x" * 1000])
            except StoreFull:
                print("full", len(await store.read("s")) == n)
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            n = await store.append("s", n, [b"more"])
            await store.close()
            print(n == len(await store.read("s")), (await store.read("t")))
        asyncio.run(main())
        """,
    )
    assert printed.splitlines() == ["full True", "True []"]
    plain = diskcache.Cache(str(tmp_path))
    assert plain.check() == []
    plain.close()


async def test_a_thousand_records_take_little_room(tmp_path: Path) -> None:
    def written() -> int:
        return int(Path("/proc/self/io").read_text().split()[3])

    store = FileStore(tmp_path / "state")
    await store.append("warm", 0, [RECORD])
    before = written()
    for n in range(1000):
        await store.append("run/research/r-1", n, [RECORD])
    await store.close()
    assert written() - before <= 7_000_000
    assert sum(path.stat().st_size for path in store.directory.iterdir()) <= 450_000


async def test_many_short_streams_take_little_room(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for n in range(10):
        await asyncio.gather(*(store.append(f"run/research/r-{k}", n, [RECORD]) for k in range(200)))
    await store.close()
    assert (tmp_path / "cache.db").stat().st_size <= 450 * 2000


async def test_deleted_streams_give_their_room_back(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for k in range(10):
        await store.append(f"s{k}", 0, [b"x" * 100_000])
        lease = await store.acquire(f"lease{k}", "me", 30)
        assert lease is not None
        await store.release(lease)
    for k in range(10):
        await store.delete(f"s{k}")
    await store.close()
    assert (tmp_path / "cache.db").stat().st_size < 50_000


async def test_the_log_does_not_grow_for_ever(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for n in range(1500):
        await store.append("s", n, [RECORD])
    assert (tmp_path / "cache.db-wal").stat().st_size < 3_000_000
    await store.close()
    assert names(tmp_path) == ["cache.db", "cache.db-bb"]


async def test_the_log_does_not_grow_with_large_records(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    lease = await store.acquire("lease", "me", 60)
    most = 0
    for n in range(100):
        await store.append("s", n, [b"x" * 200_000], lease)
        most = max(most, (tmp_path / "cache.db-wal").stat().st_size)
    assert most < 4_000_000  # or the loop would wait for all of it to be moved at once
    await store.close()


async def test_listing_costs_by_streams_not_by_records(tmp_path: Path) -> None:
    async def steps(length: int) -> int:
        store = FileStore(tmp_path / str(length))
        for k in range(10):
            await store.append(f"s{k}", 0, [b"x"] * length)
        await store.list("s")
        count = 0

        def step() -> int:
            nonlocal count
            count += 1
            return 0

        store._reads._con.set_progress_handler(step, 1)  # type: ignore[attr-defined]
        await store.list("s")
        await store.close()
        return count

    assert await steps(2000) == await steps(2)
