"""The key index `lake/keys.db`: dedupe key hash → sequence. With it, deduplication reads only the new rows.

The index is derived from the lake. For each table it stores the sequence up to which keys are indexed (`through`),
which must equal the table's floor. If it is lower, the missing range is read from the lake. If it is higher (the lake
was rolled back), or if the index belongs to the previous generation of the table, the table is indexed again. If it
belongs to another table, the index is rebuilt. Keys of rows that retention removed stay in the index and exist nowhere
else, so backups and copies of a home include it. If the index cannot be read, the flush fails; no row is ever dropped
for that.

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
# An import of another dataset writes its keys in one transaction, which can take minutes.
_PATIENCE_MILLISECONDS = 300_000


class KeyIndex:
    def __init__(self, path: Path) -> None:
        self.path = path
        # Create the file first, so that SQLite's side files inherit its mode.
        path.touch(mode=0o600)
        try:
            self._db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
            # Derived data: a power cut may lose the newest keys together with `through`; they are indexed again.
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

    def indexed_through(self, dataset: str, table_uuid: str) -> int | None:
        """Return the sequence up to which a table is indexed, or None if the index belongs to another table."""
        found = self._read("SELECT uuid, through FROM applied WHERE dataset = ?", (dataset,))
        if not found:
            return 0
        uuid, through = found[0]
        return int(through) if uuid == table_uuid else None

    def find(self, hashes: Iterable[bytes]) -> dict[bytes, int]:
        """Return the hashes that the lake has, with the sequences of their rows."""
        if not self._read("SELECT 1 FROM keys LIMIT 1", ()):
            return {}
        try:
            return dict(lookup(self._db, sorted(set(hashes))))
        except sqlite3.Error as error:
            raise _unreadable(self.path, error) from error

    def has_match_keys(self, dataset: str) -> bool:
        """Tell whether the index holds match keys of a dataset."""
        with self._reading() as db:
            return match_index.is_kept(db, dataset)

    def find_unmatched(self, hashes: Iterable[bytes]) -> list[Met]:
        """Return the match keys of rows in the lake that have one of the hashes and are not matched yet."""
        with self._reading() as db:
            return match_index.free(db, hashes)

    def indexed_settlements(self) -> set[str]:
        """Return the names of the settlements in the index."""
        with self._reading() as db:
            return match_index.taken_in(db)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run one transaction. When it returns, it and all earlier ones are durable."""
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
        """Add keys and set `through` in one transaction. A key keeps its lowest sequence."""
        with self.stage(keys) as staged:
            staged.commit(dataset, table_uuid, through)

    @contextmanager
    def stage(
        self, keys: Iterable[tuple[bytes, int]], match_keys: Iterable[Met] = (), matched: Iterable[int] = ()
    ) -> Iterator[Staged]:
        """Add keys in the background. They take effect with `commit`, and are discarded without it."""
        staged = Staged(self._db, self.path, keys, match_keys, matched)
        try:
            yield staged
        finally:
            staged.close()

    def table_uuid(self, dataset: str) -> str | None:
        """Return the uuid of the table that the index was built for."""
        found = self._read("SELECT uuid FROM applied WHERE dataset = ?", (dataset,))
        return str(found[0][0]) if found else None

    def remove_rows(self, dataset: str, seqs: Iterable[int]) -> None:
        """Remove the keys of rows that are about to be deleted and may be imported again. Durable.

        `through` is reset, so that the whole table is indexed again if the rows are not deleted after all;
        `mark_complete` sets it when they are.
        """
        with self._erasing_transaction() as db:
            db.execute("CREATE TEMP TABLE IF NOT EXISTS removed (seq INTEGER PRIMARY KEY)")
            db.executemany("INSERT OR IGNORE INTO removed VALUES (?)", ((seq,) for seq in seqs))
            db.execute("DELETE FROM keys WHERE seq IN (SELECT seq FROM removed)")
            match_index.forget(db, "SELECT seq FROM removed")
            db.execute("DROP TABLE removed")
            db.execute("UPDATE applied SET through = 0 WHERE dataset = ?", (dataset,))

    def mark_complete(self, dataset: str, through: int) -> None:
        """Set `through` after rows were deleted: all other keys up to it are indexed."""
        with self._erasing_transaction() as db:
            db.execute("UPDATE applied SET through = ? WHERE dataset = ?", (through, dataset))

    def restart(self, dataset: str, table_uuid: str, floor: int) -> None:
        """Prepare to index a table again. Keys of rows that retention removed stay, as they exist nowhere else.

        The lake has no rows above the floor, in any dataset, so their keys are removed.
        """
        with self._erasing_transaction() as db:
            db.execute("DELETE FROM keys WHERE seq > ?", (floor,))
            match_index.forget_above(db, floor)
            db.execute("UPDATE applied SET through = min(through, ?)", (floor,))
            db.execute("INSERT OR REPLACE INTO applied VALUES (?, ?, 0)", (dataset, table_uuid))

    @contextmanager
    def _erasing_transaction(self) -> Iterator[sqlite3.Connection]:
        """Run one transaction that is durable when it returns and overwrites deleted data."""
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
        """Return the problem that SQLite finds in the file, or None."""
        try:
            found = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.Error as error:
            return str(error)
        return None if found == "ok" else str(found)

    def find_keys(self, seqs: Iterable[int]) -> set[bytes]:
        """Return all keys of the rows, including those of records that were matched with them."""
        with self._reading() as db:
            db.execute("CREATE TEMP TABLE IF NOT EXISTS wanted (seq INTEGER PRIMARY KEY)")
            db.executemany("INSERT OR IGNORE INTO wanted VALUES (?)", ((seq,) for seq in seqs))
            found = db.execute("SELECT hash FROM keys WHERE seq IN (SELECT seq FROM wanted)").fetchall()
            db.execute("DROP TABLE wanted")
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
    """Keys that a background thread adds to the index in one transaction."""

    def __init__(
        self,
        db: sqlite3.Connection,
        path: Path,
        keys: Iterable[tuple[bytes, int]],
        match_keys: Iterable[Met],
        matched: Iterable[int],
    ) -> None:
        self._db = db
        self._path = path
        self._error: Exception | None = None
        self._open = False
        self._thread = threading.Thread(target=self._fill, args=(keys, match_keys, matched), name="keys")
        self._thread.start()

    def commit(self, dataset: str, table_uuid: str, through: int) -> None:
        self._thread.join()
        _before_add()
        try:
            if self._error is not None:
                raise self._error
            self._db.execute("INSERT OR REPLACE INTO applied VALUES (?, ?, ?)", (dataset, table_uuid, through))
            self._db.execute("COMMIT")
            self._open = False
        except sqlite3.Error as error:
            raise _unreadable(self._path, error) from error
        _after_add()

    def close(self) -> None:
        """Roll back if not committed."""
        self._thread.join()
        if self._open:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")

    def _fill(self, keys: Iterable[tuple[bytes, int]], match_keys: Iterable[Met], matched: Iterable[int]) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._open = True
            self._db.executemany(
                "INSERT INTO keys VALUES (?, ?) ON CONFLICT (hash) DO UPDATE SET seq = min(seq, excluded.seq)",
                sorted(keys),
            )
            match_index.add(self._db, match_keys, matched)
        except Exception as error:
            self._error = error


def lookup(db: sqlite3.Connection, hashes: Sequence[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield (hash, sequence) of the hashes that an index has, over any connection to it."""
    for start in range(0, len(hashes), _LOOKUP):
        some = hashes[start : start + _LOOKUP]
        marks = ",".join("?" * len(some))
        yield from db.execute(f"SELECT hash, seq FROM keys WHERE hash IN ({marks})", some)


def remove(path: Path) -> None:
    """Delete the index. The next flush rebuilds it from the lake."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def pairs(keys: bytes | bytearray, seqs: Iterable[int]) -> Iterable[tuple[bytes, int]]:
    """Return (key hash, sequence) of packed key hashes."""
    packed = bytes(keys)
    return ((packed[index * KEY_BYTES : (index + 1) * KEY_BYTES], seq) for index, seq in enumerate(seqs))


def is_readable(path: Path) -> bool:
    try:
        with closing(KeyIndex(path)) as index:
            return index.check() is None
    except LakeError:
        return False


def _unreadable(path: Path, error: sqlite3.Error) -> LakeError:
    return LakeError(
        f"the key index {path} cannot be used ({error}); no row was lost, uncommitted rows remain in the spool",
        kind="key_index_unreadable",
        repair="hyp verify --repair",
    )
