"""`FileStore`: streams in a directory, for one machine and several processes, over diskcache."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import diskcache

from bb import logs
from bb.errors import CorruptRecord, StoreError, StoreFull
from bb.stores.database import Busy
from bb.stores.mounts import network_mount
from bb.stores.rows import Rows
from bb.stores.turns import TurnStore

_FILE: Final = diskcache.core.DBNAME
_MARK: Final = _FILE + "-bb"  # there once the database has been set up: an emptied one is told from a new one
_FOREVER: Final = 1 << 62
_RAW: Final = diskcache.core.MODE_RAW
_FULL: Final = (sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_TRUNCATE)

_SETTINGS: Final[dict[str, int | str]] = {
    "eviction_policy": "none",
    "cull_limit": 0,
    "size_limit": _FOREVER,
    "statistics": 0,
    "tag_index": 0,
    "disk_min_file_size": _FOREVER,
    "sqlite_auto_vacuum": 2,
    "sqlite_cache_size": 4096,
    "sqlite_journal_mode": "wal",
    "sqlite_mmap_size": 0,
}
_NEW: Final = ("page_size = 1024", "auto_vacuum = 2")  # small pages, since the log takes whole ones
# For each connection, since another opener may have changed what diskcache would set. Checkpoints are made apart; the
# automatic one is a net.
_PRAGMAS: Final = (
    "journal_mode = wal",
    "cache_size = 4096",
    "mmap_size = 0",
    "wal_autocheckpoint = 16384",
    "journal_size_limit = 4194304",
    "secure_delete = 2",
    "trusted_schema = 0",
)
# diskcache's own, made before diskcache would, with a condition where it matters: rows that never expire and have no file
# then cost nothing for it.
_SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS Settings (key TEXT NOT NULL UNIQUE, value)""",
    """CREATE TABLE IF NOT EXISTS Cache (
        rowid INTEGER PRIMARY KEY, key BLOB, raw INTEGER, store_time REAL, expire_time REAL, access_time REAL,
        access_count INTEGER DEFAULT 0, tag BLOB, size INTEGER DEFAULT 0, mode INTEGER DEFAULT 0, filename TEXT, value BLOB
    )""",
    """CREATE INDEX IF NOT EXISTS Cache_expire_time ON Cache (expire_time) WHERE expire_time IS NOT NULL""",
    """CREATE TRIGGER IF NOT EXISTS Settings_size_insert AFTER INSERT ON Cache FOR EACH ROW WHEN NEW.size <> 0
        BEGIN UPDATE Settings SET value = value + NEW.size WHERE key = 'size'; END""",
    """CREATE TRIGGER IF NOT EXISTS Settings_size_update AFTER UPDATE ON Cache FOR EACH ROW WHEN NEW.size <> OLD.size
        BEGIN UPDATE Settings SET value = value + NEW.size - OLD.size WHERE key = 'size'; END""",
    """CREATE TRIGGER IF NOT EXISTS Settings_size_delete AFTER DELETE ON Cache FOR EACH ROW WHEN OLD.size <> 0
        BEGIN UPDATE Settings SET value = value - OLD.size WHERE key = 'size'; END""",
)
_MADE: Final = ("Settings", "Cache", "Cache_key_raw", "Settings_count_delete")  # by diskcache, the last of each kind


class FileStore(TurnStore):
    """Keeps streams in `directory` (made with mode 0700), so that runs survive restarts and SIGKILL.

    `fsync=True` survives power loss too, for one disk sync per commit. `~` and `$NAME` in the directory are expanded. Nothing
    is opened before the first use. Keep it on a local disk, and away from strangers: what they plant in it is refused, never
    run, but they can delete.
    """

    def __init__(self, directory: str | os.PathLike[str], *, fsync: bool = False) -> None:
        # as diskcache would expand it; absolute, whatever the program makes its working directory later
        home = Path(os.path.expandvars(Path(directory).expanduser())).absolute()
        self.directory = home
        super().__init__(lambda reads: _Records(home, fsync=fsync, reads=reads))


class _Disk(diskcache.Disk):
    """Keys are text or numbers and values are bytes, in the row: nothing is pickled, unpickled or put in a file."""

    def __init__(self, directory: str, **_settings: object) -> None:
        super().__init__(directory, min_file_size=_FOREVER)

    def put(self, key: object) -> tuple[object, bool]:
        if type(key) is str or (type(key) is int and -(1 << 63) <= key < 1 << 63):
            return key, True
        raise TypeError(f"a key is text or a 64-bit number, not {type(key).__name__}")

    def get(self, key: object, raw: object) -> object:
        if raw == _RAW and isinstance(key, str | int):
            return key
        raise CorruptRecord("a row has a key that bb did not write")

    def store(self, value: object, read: bool, key: object = None) -> tuple[int, int, str | None, object]:
        if type(value) is bytes and not read:
            return 0, _RAW, None, value
        raise TypeError(f"a value is bytes, not {type(value).__name__}")

    def fetch(self, mode: int, filename: str | None, value: object, read: bool) -> object:
        if mode == _RAW and filename is None and type(value) is bytes and not read:
            return value
        raise CorruptRecord("a row has a value that bb did not write")

    def remove(self, file_path: str) -> None:
        """Nothing: no row of ours has a file, so the name of one is a trap."""


class _Records(diskcache.Cache):
    """A diskcache that keeps only what bb wrote and evicts nothing. A reader never writes, not even to open."""

    def __init__(self, home: Path, *, fsync: bool, reads: bool) -> None:
        self.lock = threading.Lock()
        self.home = str(home)
        self._path = home / _FILE
        self._mark = home / _MARK
        self._synchronous = 2 if fsync else 1
        self._reads = reads
        self._link: sqlite3.Connection | None = None
        self._closer: weakref.finalize[[], _Records] | None = None
        self._rows: Rows | None = None

    @property
    def ready(self) -> bool:
        return self._rows is not None

    @property
    def rows(self) -> Rows | None:
        return self._rows

    def open(self) -> bool:
        if self._rows is None:
            with self._failing():
                try:
                    if not self._reads:
                        self._set_up()
                    elif not self._was_set_up():
                        return False
                    self._rows = Rows(self._con.execute, self.home)
                finally:
                    if self._rows is None:
                        self.close()
        return True

    @contextmanager
    def transaction(self) -> Iterator[Rows]:
        rows = self._rows
        if rows is None:
            raise StoreError(f"the store in {self.home} is not open")
        link = self._con
        try:
            link.execute("BEGIN" if self._reads else "BEGIN IMMEDIATE")
            yield rows
            link.execute("COMMIT")
        except BaseException as error:
            if link.in_transaction:  # after a failed COMMIT, too
                with suppress(sqlite3.Error):
                    link.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise self._failure(error) from error
            raise

    def checkpoint(self) -> None:
        with suppress(sqlite3.Error):  # what failed costs nothing but room
            self._con.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def abandon(self) -> sqlite3.Connection | None:
        link, self._link, self._rows = self._link, None, None
        if self._closer is not None:
            self._closer.detach()
        return link

    def close(self) -> None:
        shrinkable = self.ready and not self._reads
        link = self.abandon()
        if link is not None:
            with suppress(sqlite3.Error), closing(link):
                if shrinkable:
                    _shrink(link)

    # --- opening ----------------------------------------------------------------------------------------------------

    @property
    def _con(self) -> sqlite3.Connection:
        if self._link is None:
            link = self._link = self._connect_to_read() if self._reads else self._connect_to_write()
            # a store that nobody closed: no `__del__`, since a collected circle may finalize the connection before us
            self._closer = weakref.finalize(self, link.close)
        return self._link

    def _connect_to_write(self) -> sqlite3.Connection:
        link = _link(str(self._path))
        new = () if self._path.stat().st_size else _NEW
        try:
            for pragma in (*new, *_PRAGMAS, f"synchronous = {self._synchronous}"):
                link.execute(f"PRAGMA {pragma}").fetchall()
        except BaseException:  # another process is setting it up: the next try makes another
            link.close()
            raise
        return link

    def _connect_to_read(self) -> sqlite3.Connection:
        uri = self._path.as_uri() + "?mode=ro"
        link = _link(uri)
        try:
            link.execute("SELECT count(*) FROM sqlite_master").fetchall()
        except sqlite3.Error as error:
            link.close()
            log = Path(f"{self._path}-wal")
            if _code(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) or (
                log.exists() and log.stat().st_size
            ):
                raise
            # In a directory that cannot be written a reader cannot make the index of the log; here there is no log.
            link = _link(uri + "&immutable=1")
        return link

    def _set_up(self) -> None:
        home = Path(self.home)
        if not home.is_dir():
            made = [home, *(parent for parent in home.parents if not parent.exists())]
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._synchronous == 2:
                for directory in made:
                    _sync(directory.parent)
        kind = network_mount(self.home)
        if kind:
            logs.warning("store.network_mount", directory=self.home, type=kind, remedy="use a local disk")
        marked = self._was_set_up()
        if not marked:
            self._path.touch(mode=0o600)
        if not self._settled():
            for statement in _SCHEMA:
                self._con.execute(statement)
            super().__init__(self.home, 0, _Disk, **_SETTINGS, sqlite_synchronous=self._synchronous)
        if not marked:
            self._con.execute("PRAGMA wal_checkpoint(FULL)").fetchall()
            self._mark.write_bytes(b"bb 1\n")

    def _was_set_up(self) -> bool:
        """Whether the database has been set up; then it must still be there."""
        if not self._mark.exists():
            return False
        if not self._path.exists() or not self._path.stat().st_size or not self._has("Cache"):
            raise CorruptRecord(
                f"the database {self._path} was emptied or removed",
                remedy="restore it from a backup, or remove the whole directory to start anew",
            )
        return True

    def _settled(self) -> bool:
        """Whether diskcache's tables are there with our settings, so that opening need not write."""
        if not all(map(self._has, _MADE)):
            return False
        kept = dict(self._con.execute("SELECT key, value FROM Settings").fetchall())
        return all(kept.get(key) == value for key, value in _SETTINGS.items())

    def _has(self, name: str) -> bool:
        return bool(self._con.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchall())

    # --- failing ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Every error of SQLite, diskcache and the system as one of ours, with the directory and what to do."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._failure(error) from error
        except OSError as error:
            raise self._refused(str(error)) from error

    def _failure(self, error: sqlite3.Error) -> Exception:
        code = _code(error)
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Busy(str(error))
        if code == sqlite3.SQLITE_FULL:
            return self._no_room(error)
        self.close()  # what SQLite knows of the files may be wrong now
        match code:
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                return CorruptRecord(
                    f"the store in {self.home} is damaged ({error})",
                    remedy="restore it from a backup, or remove the directory to start anew",
                )
            case sqlite3.SQLITE_IOERR if error.sqlite_errorcode in _FULL:
                return self._no_room(error)
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
                return self._refused(str(error))
            case _:
                return StoreError(
                    f"the store in {self.home} failed ({error})", remedy="check the disk and run it again"
                )

    def _no_room(self, error: Exception) -> StoreFull:
        return StoreFull(
            f"the store in {self.home} has no room left ({error})",
            remedy="free some disk space, or raise the quota or limit, and run it again",
        )

    def _refused(self, why: str) -> StoreError:
        return StoreError(
            f"the store in {self.home} cannot be opened{' to write' * (not self._reads)} ({why})",
            remedy="check that the directory exists, belongs to you and can be written",
        )


def _link(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False, uri=path.startswith("file:"))


def _code(error: sqlite3.Error) -> int:
    """The primary code of an error; 0 if it is not SQLite's own."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _shrink(link: sqlite3.Connection) -> None:
    """Give back the pages that deleted streams left, if they are many."""
    ((free,),) = link.execute("PRAGMA freelist_count").fetchall()
    ((pages,),) = link.execute("PRAGMA page_count").fetchall()
    if free > pages // 4:
        link.executescript("PRAGMA incremental_vacuum")  # `execute` would stop after one page


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
