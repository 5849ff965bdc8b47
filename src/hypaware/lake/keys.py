"""`lake/keys.db`: dedupe key hash → sequence. Derived from the lake, so that dedupe costs the news, not the lake.

It remembers, per table, up to which sequence it has taken the keys in (`through`). That must equal the table's floor:
behind it, the missing range is read from the lake; ahead of it (the lake went back) or made for the generation before
this one, the table is taken in once more; made for another table, it is filled anew. Keys of rows that retention has
dropped stay: nothing but the index knows of them, so it is carried along wherever a home goes. Trouble in reading it is
an error for the flush; it never means that a row may be dropped.

@ref keys#dedupe
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from hypaware import faults
from hypaware.errors import LakeError
from hypaware.lake import match_index
from hypaware.lake.build import KEY_BYTES
from hypaware.lake.meetings import Met

_before_add = faults.point("lake.keys.before-commit", "a flush is recorded, its keys are not in the index")
_after_add = faults.point("lake.keys.after-commit", "the keys of a flush are in the index")

_LOOKUP = 500
# An import of another dataset writes its keys in one transaction, which may take a while.
_PATIENCE_MILLISECONDS = 300_000


class KeyIndex:
    def __init__(self, path: Path) -> None:
        self.path = path
        # Made by us, so that SQLite's side files take its mode over.
        path.touch(mode=0o600)
        try:
            self._db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
            # Derived data: a cut may cost the newest keys, `through` goes back with them, and they are read again.
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute("PRAGMA cache_size=-16384")
            self._db.execute("CREATE TABLE IF NOT EXISTS keys (hash BLOB PRIMARY KEY, seq INTEGER) WITHOUT ROWID")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS applied (dataset TEXT PRIMARY KEY, uuid TEXT, through INTEGER)"
            )
            for statement in match_index.SCHEMA:
                self._db.execute(statement)
        except sqlite3.Error as error:
            raise _unreadable(path, error) from error

    def close(self) -> None:
        self._db.close()

    def through(self, dataset: str, table_uuid: str) -> int | None:
        """Up to where the keys of this very table were taken in; None if the index was made for another."""
        found = self._read("SELECT uuid, through FROM applied WHERE dataset = ?", (dataset,))
        if not found:
            return 0
        uuid, through = found[0]
        return int(through) if uuid == table_uuid else None

    def find(self, hashes: Iterable[bytes]) -> dict[bytes, int]:
        """Those of the hashes that the lake has, with the sequence of their row."""
        if not self._read("SELECT 1 FROM keys LIMIT 1", ()):
            return {}
        try:
            return dict(lookup(self._db, sorted(set(hashes))))
        except sqlite3.Error as error:
            raise _unreadable(self.path, error) from error

    def matches(self, dataset: str) -> bool:
        """Whether it is kept by what rows of the dataset can meet others."""
        with self._reading() as db:
            return match_index.is_kept(db, dataset)

    def free(self, hashes: Iterable[bytes]) -> list[Met]:
        """Rows of the lake that have such a key to meet by, and have not met yet."""
        with self._reading() as db:
            return match_index.free(db, hashes)

    def taken_in(self) -> set[str]:
        """Names of the settlements that it knows."""
        with self._reading() as db:
            return match_index.taken_in(db)

    @contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, on disk when it returned, and with it all before it."""
        with self._reading() as db:
            db.execute("PRAGMA synchronous=FULL").close()
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    def add(self, dataset: str, table_uuid: str, through: int, keys: Iterable[tuple[bytes, int]]) -> None:
        """Takes keys in, and says up to where, in one transaction. The lowest sequence of a key stays."""
        with self.staged(keys) as staged:
            staged.commit(dataset, table_uuid, through)

    @contextmanager
    def staged(
        self, keys: Iterable[tuple[bytes, int]], meetings: Iterable[Met] = (), met: Iterable[int] = ()
    ) -> Iterator[Staged]:
        """Takes keys in beside whatever else is done; they count from `commit` on, and never without it."""
        staged = Staged(self._db, self.path, keys, meetings, met)
        try:
            yield staged
        finally:
            staged.close()

    def made_for(self, dataset: str) -> str | None:
        """The table whose keys it holds."""
        found = self._read("SELECT uuid FROM applied WHERE dataset = ?", (dataset,))
        return str(found[0][0]) if found else None

    def forget(self, dataset: str, seqs: Iterable[int]) -> None:
        """Rows are about to leave the lake, and may come again; durable.

        Should they stay after all, they are taken in again: the whole table is, at the next look, or by `trust`.
        """
        with self._alone() as db:
            db.execute("CREATE TEMP TABLE IF NOT EXISTS going (seq INTEGER PRIMARY KEY)")
            db.executemany("INSERT OR IGNORE INTO going VALUES (?)", ((seq,) for seq in seqs))
            db.execute("DELETE FROM keys WHERE seq IN (SELECT seq FROM going)")
            match_index.forget(db, "SELECT seq FROM going")
            db.execute("DROP TABLE going")
            db.execute("UPDATE applied SET through = 0 WHERE dataset = ?", (dataset,))

    def trust(self, dataset: str, through: int) -> None:
        """They are gone: it holds the keys of everything else up to there."""
        with self._alone() as db:
            db.execute("UPDATE applied SET through = ? WHERE dataset = ?", (through, dataset))

    def start_over(self, dataset: str, table_uuid: str, floor: int) -> None:
        """Takes the table in once more, and keeps what retention has dropped from it: only the index knows of that.

        Above the floor nothing is left of the lake, for any dataset.
        """
        with self._alone() as db:
            db.execute("DELETE FROM keys WHERE seq > ?", (floor,))
            match_index.forget_above(db, floor)
            db.execute("UPDATE applied SET through = min(through, ?)", (floor,))
            db.execute("INSERT OR REPLACE INTO applied VALUES (?, ?, 0)", (dataset, table_uuid))

    @contextmanager
    def _alone(self) -> Iterator[sqlite3.Connection]:
        """One transaction, on disk when it returned, with nothing left of what it deleted."""
        try:
            for pragma in ("synchronous=FULL", "secure_delete=ON", f"busy_timeout={_PATIENCE_MILLISECONDS}"):
                self._db.execute(f"PRAGMA {pragma}").close()
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise _unreadable(self.path, error) from error

    def count(self) -> int:
        return int(self._read("SELECT count(*) FROM keys", ())[0][0])

    def check(self) -> str | None:
        """What SQLite finds wrong with the file."""
        try:
            found = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.Error as error:
            return str(error)
        return None if found == "ok" else str(found)

    def keys_of(self, seqs: Iterable[int]) -> set[bytes]:
        """Every key under which these rows are known, those of records that met them included."""
        with self._reading() as db:
            db.execute("CREATE TEMP TABLE IF NOT EXISTS asked (seq INTEGER PRIMARY KEY)")
            db.executemany("INSERT OR IGNORE INTO asked VALUES (?)", ((seq,) for seq in seqs))
            found = db.execute("SELECT hash FROM keys WHERE seq IN (SELECT seq FROM asked)").fetchall()
            db.execute("DROP TABLE asked")
        return {bytes(key) for (key,) in found}

    def _read(self, statement: str, values: Sequence[object]) -> list[Any]:
        with self._reading() as db:
            return db.execute(statement, values).fetchall()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self._db
        except sqlite3.Error as error:
            raise _unreadable(self.path, error) from error


class Staged:
    """Keys on their way into the index: one transaction, filled by a thread of its own."""

    def __init__(
        self,
        db: sqlite3.Connection,
        path: Path,
        keys: Iterable[tuple[bytes, int]],
        meetings: Iterable[Met],
        met: Iterable[int],
    ) -> None:
        self._db = db
        self._path = path
        self._trouble: Exception | None = None
        self._open = False
        self._filling = threading.Thread(target=self._fill, args=(keys, meetings, met), name="keys")
        self._filling.start()

    def commit(self, dataset: str, table_uuid: str, through: int) -> None:
        self._filling.join()
        _before_add()
        try:
            if self._trouble is not None:
                raise self._trouble
            self._db.execute("INSERT OR REPLACE INTO applied VALUES (?, ?, ?)", (dataset, table_uuid, through))
            self._db.execute("COMMIT")
            self._open = False
        except sqlite3.Error as error:
            raise _unreadable(self._path, error) from error
        _after_add()

    def close(self) -> None:
        """What was not committed is forgotten."""
        self._filling.join()
        if self._open:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")

    def _fill(self, keys: Iterable[tuple[bytes, int]], meetings: Iterable[Met], met: Iterable[int]) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._open = True
            self._db.executemany(
                "INSERT INTO keys VALUES (?, ?) ON CONFLICT (hash) DO UPDATE SET seq = min(seq, excluded.seq)",
                sorted(keys),
            )
            match_index.add(self._db, meetings, met)
        except Exception as error:
            self._trouble = error


def lookup(db: sqlite3.Connection, hashes: Sequence[bytes]) -> Iterator[tuple[bytes, int]]:
    """(hash, sequence) of those that an index has, from any connection to it."""
    for start in range(0, len(hashes), _LOOKUP):
        some = hashes[start : start + _LOOKUP]
        marks = ",".join("?" * len(some))
        yield from db.execute(f"SELECT hash, seq FROM keys WHERE hash IN ({marks})", some)


def remove(path: Path) -> None:
    """Away with the index; the next flush fills it from the lake."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def pairs(keys: bytes | bytearray, seqs: Iterable[int]) -> Iterable[tuple[bytes, int]]:
    packed = bytes(keys)
    return ((packed[place * KEY_BYTES : (place + 1) * KEY_BYTES], seq) for place, seq in enumerate(seqs))


def is_readable(path: Path) -> bool:
    try:
        with closing(KeyIndex(path)) as index:
            return index.check() is None
    except LakeError:
        return False


def _unreadable(path: Path, error: sqlite3.Error) -> LakeError:
    return LakeError(
        f"the key index {path} cannot be used ({error}); nothing was dropped, the rows wait in the spool",
        kind="key_index_unreadable",
        repair="hyp verify --repair",
    )
