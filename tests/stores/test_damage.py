"""What somebody or something else did to the records is noticed, and runs no code."""

import asyncio
import os
import pickle
import sqlite3
from pathlib import Path

import diskcache
import pytest

from bb.errors import Conflict, CorruptRecord, StoreError
from bb.stores.file import FileStore, _Disk
from bb.stores.rows import Rows

COUNT = 5


class Bomb:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A closed store with a stream `s` of five records, a stream `t` and a lease."""

    async def fill() -> None:
        store = FileStore(tmp_path / "state")
        for n in range(COUNT):
            await store.append("s", n, [b"record number %d" % n])
        await store.append("t", 0, [b"another"])
        await store.acquire("lease", "me", 3600)
        await store.close()

    asyncio.run(fill())
    return tmp_path / "state"


def sql(home: Path, statement: str, *values: object) -> list[tuple]:
    link = sqlite3.connect(home / "cache.db", isolation_level=None)
    try:
        return link.execute(statement, values).fetchall()
    finally:
        link.close()


def record(home: Path, position: int) -> int:
    """The key of a record of `s`."""
    ((row,),) = sql(home, "SELECT rowid FROM Cache WHERE key = '=s'")
    return (row << 24) + position


async def must_be_corrupt(home: Path, position: int) -> None:
    store = FileStore(home)
    for _ in range(2):  # in the thread, and on the loop
        with pytest.raises(CorruptRecord, match=rf"record {position} of stream 's' in {home}") as caught:
            await store.read("s")
        assert caught.value.remedy
    assert await store.read("s", position + 1) == [b"record number %d" % n for n in range(position + 1, COUNT)]
    assert await store.read("t") == [b"another"]
    await store.close()


@pytest.mark.parametrize("position", [0, 2, COUNT - 1])
async def test_a_flipped_bit_names_stream_and_position(home: Path, position: int) -> None:
    ((value,),) = sql(home, "SELECT value FROM Cache WHERE key = ?", record(home, position))
    for at in (0, len(value) // 2, len(value) - 5, len(value) - 1):
        flipped = bytearray(value)
        flipped[at] ^= 1
        sql(home, "UPDATE Cache SET value = ? WHERE key = ?", bytes(flipped), record(home, position))
        await must_be_corrupt(home, position)


async def test_a_byte_flipped_in_the_file(home: Path) -> None:
    path = home / "cache.db"
    data = path.read_bytes()
    assert data.count(b"record number 2") == 1
    path.write_bytes(data.replace(b"record number 2", b"record number 3"))
    await must_be_corrupt(home, 2)


@pytest.mark.parametrize("position", [0, 2, COUNT - 2])
async def test_a_gap(home: Path, position: int) -> None:
    sql(home, "DELETE FROM Cache WHERE key = ?", record(home, position))
    await must_be_corrupt(home, position)


async def test_a_lost_end(home: Path) -> None:
    # the log is its own end, which is what lets an append be one statement: a row that somebody deleted cleanly from the end
    # was never written, to readers and writers alike, and nothing is made of what stays
    sql(home, "DELETE FROM Cache WHERE key = ?", record(home, COUNT - 1))
    store = FileStore(home)
    kept = [b"record number %d" % n for n in range(COUNT - 1)]
    assert await store.read("s") == kept
    with pytest.raises(Conflict):
        await store.append("s", COUNT, [b"x"])
    assert await store.append("s", COUNT - 1, [b"x"]) == COUNT
    assert await store.read("s") == [*kept, b"x"]
    await store.close()


async def test_more_than_the_head_counts(home: Path) -> None:
    sql(home, "INSERT INTO Cache(key, raw, mode, value) VALUES (?, 1, 1, x'00')", record(home, COUNT))
    store = FileStore(home)
    with pytest.raises(CorruptRecord, match=f"record {COUNT} of stream 's'"):
        await store.read("s")
    await store.close()


async def test_swapped_records(home: Path) -> None:
    first, second = record(home, 1), record(home, 3)
    for old, new in ((first, -1), (second, first), (-1, second)):
        sql(home, "UPDATE Cache SET key = ? WHERE key = ?", new, old)
    store = FileStore(home)
    with pytest.raises(CorruptRecord, match="record 1 of stream 's'"):
        await store.read("s")
    await store.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE Cache SET value = x'00' WHERE key = '=s'",
        "UPDATE Cache SET value = 'text' WHERE key = '=s'",
        "UPDATE Cache SET value = NULL WHERE key = '=s'",
        "UPDATE Cache SET value = (SELECT value FROM Cache WHERE key = '=t') WHERE key = '=s'",
        "UPDATE Cache SET raw = 0 WHERE key = '=s'",
        "UPDATE Cache SET mode = 4 WHERE key = '=s'",
        "INSERT INTO Cache(key, raw, mode, value) VALUES ('=s', 0, 4, x'00')",
    ],
)
async def test_a_damaged_head(home: Path, statement: str) -> None:
    sql(home, statement)
    store = FileStore(home)
    for _ in range(2):
        with pytest.raises(CorruptRecord, match="the head of stream 's'"):
            await store.read("s")
    good, bad = await asyncio.gather(
        store.append("t", 1, [b"goes on"]), store.append("s", COUNT, [b"x"]), return_exceptions=True
    )
    assert good == 2
    assert isinstance(bad, CorruptRecord)
    assert {info.name: info.last for info in await store.list("")}["t"] == b"goes on"
    await store.delete("s")  # giving it up helps
    assert await store.append("s", 0, [b"anew"]) == 1
    assert await store.read("s") == [b"anew"]
    await store.close()


async def test_a_row_beyond_all_rows(home: Path) -> None:
    sql(home, "UPDATE Cache SET rowid = 9223372036854775807 WHERE key = '=s'")
    store = FileStore(home)
    with pytest.raises(CorruptRecord, match="the head of stream 's'"):
        await store.read("s")
    with pytest.raises(StoreError):  # SQLite now gives rows by chance
        await store.append("new", 0, [b"x"])
    assert await store.append("t", 1, [b"goes on"]) == 2
    assert await store.read("t") == [b"another", b"goes on"]
    await store.close()


async def test_a_list_shows_what_it_can(home: Path) -> None:
    sql(home, "UPDATE Cache SET value = x'0000000000' WHERE key = ?", record(home, COUNT - 1))
    store = FileStore(home)
    assert [(info.name, info.length, info.last) for info in await store.list("")] == [
        ("s", COUNT, b""),
        ("t", 1, b"another"),
    ]
    await store.close()


@pytest.mark.parametrize("time", [1e300, float("inf"), -1e300, "noon", b"noon"])
async def test_a_time_that_is_none_hides_no_stream(home: Path, time: object) -> None:
    sql(home, "UPDATE Cache SET store_time = ? WHERE key = ?", time, record(home, COUNT - 1))
    store = FileStore(home)
    assert [(info.name, info.length) for info in await store.list("")] == [("s", COUNT), ("t", 1)]
    await store.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE Cache SET value = x'0011223344' WHERE key = '!lease'",
        "UPDATE Cache SET mode = 4 WHERE key = '!lease'",
        "UPDATE Cache SET value = x'0011223344' WHERE key = '#'",
        "UPDATE Cache SET raw = 0 WHERE key = '#'",
    ],
)
async def test_a_damaged_lease_is_nobodys(home: Path, statement: str) -> None:
    sql(home, statement)
    store = FileStore(home)
    name = "lease" if "!lease" in statement else "other"
    with pytest.raises(CorruptRecord, match="lease of 'lease'" if name == "lease" else "counter of fences"):
        await store.acquire(name, "you", 30)
    await store.close()


@pytest.mark.parametrize("where", ["value", "extra", "key", "file", "settings"])
async def test_trial_r1_a_planted_pickle_is_refused_and_not_run(home: Path, tmp_path: Path, where: str) -> None:
    fuse = tmp_path / "exploded"
    bomb = pickle.dumps(Bomb(fuse))
    key = record(home, 1)
    match where:
        case "value":
            sql(home, "UPDATE Cache SET mode = 4, value = ?", bomb)
        case "extra":
            sql(home, "INSERT INTO Cache(key, raw, mode, value) VALUES (?, 0, 4, ?)", key, bomb)
        case "key":
            sql(home, "UPDATE Cache SET raw = 0, key = ? WHERE key = ?", bomb, key)
        case "file":
            (home / "evil.val").write_bytes(bomb)
            sql(home, "UPDATE Cache SET mode = 4, value = NULL, filename = 'evil.val' WHERE key = ?", key)
        case "settings":
            sql(home, "UPDATE Cache SET mode = 4, value = ? WHERE key = ?", bomb, key)
            sql(home, "INSERT OR REPLACE INTO Settings VALUES ('disk_evil', 'x')")
            sql(home, "UPDATE Settings SET value = 'least-recently-used' WHERE key = 'eviction_policy'")
    store = FileStore(home)
    for _ in range(2):
        with pytest.raises(CorruptRecord, match="stream 's'"):
            await store.read("s")
    await store.list("")
    for act in (store.append("s", COUNT, [b"x"]), store.acquire("lease", "you", 30)):
        await asyncio.gather(act, return_exceptions=True)
    await store.delete("s")
    await store.close()
    assert not fuse.exists()
    with pytest.raises(OSError, match=str(fuse)):  # it would have gone off
        fuse.rename(tmp_path / "x")
    pickle.loads(bomb)
    assert fuse.exists()


def test_the_disk_takes_and_gives_bytes_only(tmp_path: Path) -> None:
    disk = _Disk(str(tmp_path), anything="goes")
    assert disk.get(*disk.put("key")) == "key"
    assert disk.get(*disk.put(7)) == 7
    assert disk.fetch(*_stored(disk, b"value")) == b"value"
    for key in (b"x", 1.5, None, ("a",), 1 << 64, True):
        with pytest.raises(TypeError):
            disk.put(key)
    for value in ("x", 1, None, bytearray(b"x"), Bomb(tmp_path / "x")):
        with pytest.raises(TypeError):
            disk.store(value, read=False)
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    with pytest.raises(CorruptRecord):
        disk.get(bomb, raw=False)
    for mode in (0, 2, 3, 4, None):
        with pytest.raises(CorruptRecord):
            disk.fetch(mode, None, bomb, read=False)  # type: ignore[arg-type]
    with pytest.raises(CorruptRecord):
        disk.fetch(1, "../x", None, read=False)
    kept = tmp_path / "kept"
    kept.touch()
    disk.remove("kept")
    assert kept.exists()
    assert not (tmp_path / "exploded").exists()


def _stored(disk: _Disk, value: bytes) -> tuple[int, str | None, object, bool]:
    _, mode, filename, kept = disk.store(value, read=False)
    return mode, filename, kept, False


@pytest.mark.parametrize("damage", ["text", "empty", "half", "header", "gone", "zeroed", "other", "directory"])
async def test_a_file_that_is_no_longer_the_database(home: Path, damage: str) -> None:
    path = home / "cache.db"
    size = path.stat().st_size
    match damage:
        case "text":
            path.write_text("this is not a database, but it is long enough to look like one" * 100)
        case "empty":
            path.write_bytes(b"")
        case "half":
            os.truncate(path, size // 2)
        case "header":
            os.truncate(path, 100)
        case "gone":
            path.unlink()
        case "zeroed":
            path.write_bytes(bytes(size))
        case "other":
            path.unlink()
            sql(home, "CREATE TABLE unrelated (x)")
        case "directory":
            path.unlink()
            path.mkdir()
    store = FileStore(home)
    kind = StoreError if damage == "directory" else CorruptRecord
    for act in (store.read, store.list, lambda name: store.append(name, COUNT, [b"x"])):
        with pytest.raises(kind) as caught:
            assert await act("s") is None
        assert str(home) in str(caught.value)
        assert caught.value.remedy
    await store.close()


async def test_a_setup_that_was_cut_off_is_finished(tmp_path: Path) -> None:
    (tmp_path / "cache.db").touch()
    store = FileStore(tmp_path)
    assert await store.read("s") == []
    assert await store.append("s", 0, [b"x"]) == 1
    await store.close()
    (tmp_path / "cache.db-bb").unlink()
    store = FileStore(tmp_path)
    assert await store.append("s", 1, [b"y"]) == 2
    assert await store.read("s") == [b"x", b"y"]
    await store.close()


async def test_a_directory_that_diskcache_made(tmp_path: Path) -> None:
    with diskcache.Cache(str(tmp_path)) as plain:
        plain["mine"] = {"pickled": True}
    store = FileStore(tmp_path)
    assert await store.append("s", 0, [b"x"]) == 1
    assert await store.read("s") == [b"x"]
    await store.close()
    with diskcache.Cache(str(tmp_path)) as plain:
        assert plain["mine"] == {"pickled": True}


async def test_a_stream_has_an_end(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bb.stores.rows._MOST", COUNT + 1)
    store = FileStore(home)
    with pytest.raises(StoreError, match="no stream has more"):
        await store.append("s", COUNT, [b"x", b"y"])
    assert await store.append("s", COUNT, [b"x"]) == COUNT + 1
    await store.close()


async def test_an_unforeseen_error_fails_its_own_write_only(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = Rows.release

    def broken(rows: Rows, lease: object) -> None:
        release(rows, lease)  # type: ignore[arg-type]
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Rows, "release", broken)
    store = FileStore(home)
    lease = await store.acquire("l", "me", 30)
    assert lease is not None
    bad, good = await asyncio.gather(store.release(lease), store.append("t", 1, [b"x"], lease), return_exceptions=True)
    assert isinstance(bad, StoreError)
    assert "a bug" in str(bad)
    assert good == 2
    assert await store.renew(lease, 30)  # the release was rolled back
    await store.close()
