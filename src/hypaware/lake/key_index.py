"""The key index `lake/keys.db`: the dedupe keys and match keys of all rows. With it, a flush reads only its own rows.

The index is derived from the lake. `keys` maps the hash of a dedupe key to a sequence. For each table, `applied` has
the sequence up to which rows are indexed (`through`), which must equal the table's floor; `dedupe.open_index` catches
up. Keys of rows that retention removed stay in the index and exist nowhere else, so backups and copies of a home
include it. If the index cannot be read, the flush fails; no row is ever dropped for that.

`lost` has the sequences of rows that are not in the lake any more and keep their keys (`lost_rows`).

`matches` has the match keys of rows (hash, sequence, flags, time), `met` the sequences of matched rows, `matching` the
datasets with match keys, `settlements` the names of the indexed settlement files. A key that is flagged as unsettled is
the dedupe key of the native row that is still to settle a live row. A rebuild loses which native row a superseded live
row was matched with; matching the row again gives the same result.

@ref keys#dedupe
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from hypaware import faults
from hypaware.errors import LakeError
from hypaware.lake.row_keys import SETTLED, UNSETTLED, MatchKey

_before_keys_commit = faults.crash_point(
    "lake.keys.before-commit", "a flush is recorded, its keys are not in the index"
)
_after_keys_commit = faults.crash_point("lake.keys.after-commit", "the keys of a flush are in the index")

_LOOKUP_SIZE = 500
# An import of another dataset writes its keys in one transaction, which can take minutes.
_BUSY_TIMEOUT_MILLISECONDS = 300_000
# Version 1 has the match keys of live rows with their client's id; an older index reads the tables once more for them.
_VERSION = 1
MATCHING_ENABLED = "SELECT 1 FROM matching WHERE dataset = ?"
_TABLES = (
    "CREATE TABLE IF NOT EXISTS keys (hash BLOB PRIMARY KEY, seq INTEGER) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS applied (dataset TEXT PRIMARY KEY, uuid TEXT, through INTEGER)",
    """CREATE TABLE IF NOT EXISTS matches (
        hash BLOB, seq INTEGER, mark INTEGER, at INTEGER, PRIMARY KEY (hash, seq)) WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS met (seq INTEGER PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS matching (dataset TEXT PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS settlements (name TEXT PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS lost (seq INTEGER PRIMARY KEY)",
)


class KeyIndex:
    def __init__(self, path: Path) -> None:
        self.path = path
        # Create the file first, so that SQLite's side files inherit its mode.
        path.touch(mode=0o600)
        with self._reporting_errors():
            self._db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
            # Derived data: a power cut may lose the newest keys together with `through`; they are indexed again.
            for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "cache_size=-16384"):
                self._db.execute(f"PRAGMA {pragma}")
            for statement in _TABLES:
                self._db.execute(statement)
            if self._db.execute("PRAGMA user_version").fetchone()[0] < _VERSION:
                for statement in ("BEGIN", "UPDATE applied SET through = 0", f"PRAGMA user_version = {_VERSION}"):
                    self._db.execute(statement)
                self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()

    def table_uuid(self, dataset: str) -> str | None:
        found = self._read("SELECT uuid FROM applied WHERE dataset = ?", dataset)
        return str(found[0][0]) if found else None

    def indexed_through(self, dataset: str, table_uuid: str) -> int | None:
        """Return the sequence up to which a table is indexed, or None if the index belongs to another table."""
        found = self._read("SELECT uuid, through FROM applied WHERE dataset = ?", dataset)
        if not found:
            return 0
        uuid, through = found[0]
        return int(through) if uuid == table_uuid else None

    def count(self) -> int:
        return int(self._read("SELECT count(*) FROM keys")[0][0])

    def check(self) -> str | None:
        """Return the problem that SQLite finds in the file, or None."""
        try:
            found = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.Error as error:
            return str(error)
        return None if found == "ok" else str(found)

    def find(self, hashes: Iterable[bytes]) -> dict[bytes, int]:
        """Return the hashes that the lake has, with the sequences of their rows."""
        if not self._read("SELECT 1 FROM keys LIMIT 1"):
            return {}
        with self._reporting_errors():
            return dict(lookup_keys(self._db, sorted(set(hashes))))

    def find_keys(self, seqs: Iterable[int]) -> set[bytes]:
        """Return all keys of the rows, including those of records that were matched with them."""
        with self._reporting_errors():
            self._db.execute("CREATE TEMP TABLE IF NOT EXISTS wanted (seq INTEGER PRIMARY KEY)")
            self._db.executemany("INSERT OR IGNORE INTO wanted VALUES (?)", ((seq,) for seq in seqs))
            found = self._db.execute("SELECT hash FROM keys WHERE seq IN (SELECT seq FROM wanted)").fetchall()
            self._db.execute("DROP TABLE wanted")
        return {bytes(key) for (key,) in found}

    def has_match_keys(self, dataset: str) -> bool:
        return bool(self._read(MATCHING_ENABLED, dataset))

    def find_unmatched(self, hashes: Iterable[bytes]) -> list[MatchKey]:
        with self._reporting_errors():
            return find_unmatched(self._db, hashes)

    def find_unsettled(self, hashes: Iterable[bytes]) -> dict[bytes, int]:
        """Return the dedupe keys whose native row settles a live row of the lake, with the sequences of those rows."""
        with self._reporting_errors():
            return find_unsettled(self._db, hashes)

    def find_all(self, hashes: Iterable[bytes]) -> list[MatchKey]:
        """Return the match keys with one of the hashes, also those of matched rows."""
        with self._reporting_errors():
            query = "SELECT hash, seq, mark, at FROM matches WHERE hash IN ({})"
            rows = _select_in(self._db, query, sorted(set(hashes)))
            return [MatchKey(bytes(hash_), seq, flags, at) for hash_, seq, flags, at in rows]

    def indexed_settlements(self, dataset: str) -> set[str]:
        found = self._read("SELECT name FROM settlements WHERE name LIKE ?", f"{dataset}/%")
        return {name for (name,) in found if name.startswith(f"{dataset}/")}

    def add(self, dataset: str, table_uuid: str, through: int, keys: Iterable[tuple[bytes, int]]) -> None:
        """Add keys and set `through` in one transaction. A key keeps its lowest sequence."""
        with self.stage(keys) as commit:
            commit(dataset, table_uuid, through)

    @contextmanager
    def stage(
        self,
        keys: Iterable[tuple[bytes, int]],
        match_keys: Iterable[MatchKey] = (),
        matched: Iterable[int] = (),
        settled: Iterable[bytes] = (),
        restored: Iterable[int] = (),
    ) -> Iterator[Callable[[str, str, int], None]]:
        """Add keys in the background. They take effect with the yielded `commit`, and are discarded without it."""

        def fill() -> None:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(
                "INSERT INTO keys VALUES (?, ?) ON CONFLICT (hash) DO UPDATE SET seq = min(seq, excluded.seq)",
                sorted(keys),
            )
            insert_match_keys(self._db, match_keys, matched, settled)
            self._db.executemany("DELETE FROM lost WHERE seq = ?", ((seq,) for seq in restored))

        def commit(dataset: str, table_uuid: str, through: int) -> None:
            wait([filling])
            _before_keys_commit()
            with self._reporting_errors():
                filling.result()
                self._db.execute("INSERT OR REPLACE INTO applied VALUES (?, ?, ?)", (dataset, table_uuid, through))
                self._db.execute("COMMIT")
            _after_keys_commit()

        with ThreadPoolExecutor(1, "keys") as background:
            filling = background.submit(fill)
            try:
                yield commit
            finally:
                wait([filling])
                if self._db.in_transaction:
                    with suppress(sqlite3.Error):
                        self._db.execute("ROLLBACK")

    def enable_matching(self, dataset: str) -> None:
        """Record that the match keys of a dataset are complete and are maintained from now on."""
        with self.transaction() as db:
            db.execute("INSERT OR IGNORE INTO matching VALUES (?)", (dataset,))

    def add_settlements(self, dataset: str, keys: Iterable[tuple[bytes, int]], names: Iterable[str]) -> None:
        """Add the future keys of settled rows, and record the pending settlements of a dataset."""
        found = sorted(keys)
        with self.transaction() as db:
            db.executemany("INSERT OR IGNORE INTO keys VALUES (?, ?)", found)
            insert_match_keys(db, (), (seq for _, seq in found), (key for key, _ in found))
            db.execute("DELETE FROM settlements WHERE name LIKE ?", (f"{dataset}/%",))
            db.executemany("INSERT INTO settlements VALUES (?)", ((name,) for name in sorted(names)))

    def remove_rows(self, dataset: str, seqs: Iterable[int]) -> None:
        """Remove the keys of rows that are about to be deleted and may be imported again. Durable.

        Until `mark_complete` sets `through` again, the whole table would be indexed again.
        """
        with self._erasing_transaction() as db:
            db.execute("CREATE TEMP TABLE IF NOT EXISTS removed (seq INTEGER PRIMARY KEY)")
            db.executemany("INSERT OR IGNORE INTO removed VALUES (?)", ((seq,) for seq in seqs))
            db.execute("DELETE FROM keys WHERE seq IN (SELECT seq FROM removed)")
            remove_match_keys(db, "SELECT seq FROM removed")
            db.execute("DROP TABLE removed")
            db.execute("UPDATE applied SET through = 0 WHERE dataset = ?", (dataset,))

    def find_sequences(self, first: int, last: int) -> list[int]:
        return [seq for (seq,) in self._read("SELECT DISTINCT seq FROM keys WHERE seq BETWEEN ? AND ?", first, last)]

    def list_lost(self) -> set[int]:
        return {seq for (seq,) in self._read("SELECT seq FROM lost")}

    def mark_lost(self, restorable: Iterable[int], forgotten: Sequence[int]) -> None:
        """Note rows that an import may restore under their sequence, and remove the keys of others. Durable."""
        with self.transaction() as db:
            db.execute("CREATE TEMP TABLE IF NOT EXISTS gone (seq INTEGER PRIMARY KEY)")
            db.executemany("INSERT INTO gone VALUES (?)", ((seq,) for seq in forgotten))
            db.execute("DELETE FROM keys WHERE seq IN (SELECT seq FROM gone)")
            db.executemany("INSERT OR IGNORE INTO lost VALUES (?)", ((seq,) for seq in restorable))
            # No row is there to be settled.
            remove_match_keys(db, "SELECT seq FROM gone UNION SELECT seq FROM lost")
            db.execute("DROP TABLE gone")

    def unmark_lost(self, seqs: Iterable[int]) -> None:
        with self.transaction() as db:
            db.executemany("DELETE FROM lost WHERE seq = ?", ((seq,) for seq in seqs))

    def mark_complete(self, dataset: str, through: int) -> None:
        """Set `through` after rows were deleted: all other keys up to it are indexed."""
        with self._erasing_transaction() as db:
            db.execute("UPDATE applied SET through = ? WHERE dataset = ?", (through, dataset))

    def restart(self, dataset: str, table_uuid: str, floor: int) -> None:
        """Prepare to index a table again. Keys of rows that retention removed stay, as they exist nowhere else."""
        # The lake has no rows above the floor, in any dataset.
        with self._erasing_transaction() as db:
            for table in ("keys", "matches", "met"):
                db.execute(f"DELETE FROM {table} WHERE seq > ?", (floor,))
            db.execute("UPDATE applied SET through = min(through, ?)", (floor,))
            db.execute("INSERT OR REPLACE INTO applied VALUES (?, ?, 0)", (dataset, table_uuid))

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run one transaction. When it returns, it and all earlier ones are durable."""
        with self._reporting_errors():
            self._db.execute("PRAGMA synchronous=FULL").close()
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    @contextmanager
    def _erasing_transaction(self) -> Iterator[sqlite3.Connection]:
        """Run one transaction that is durable when it returns and overwrites deleted data."""
        with self._reporting_errors():
            for pragma in ("secure_delete=ON", f"busy_timeout={_BUSY_TIMEOUT_MILLISECONDS}"):
                self._db.execute(f"PRAGMA {pragma}").close()
            with self.transaction() as db:
                yield db

    def _read(self, statement: str, *values: object) -> list[Any]:
        with self._reporting_errors():
            return self._db.execute(statement, values).fetchall()

    @contextmanager
    def _reporting_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise LakeError(
                f"the key index {self.path} cannot be used ({error}); "
                "no row was lost, uncommitted rows remain in the spool",
                kind="key_index_unreadable",
                repair="hyp verify --repair",
            ) from error


def find_unmatched(db: sqlite3.Connection, hashes: Iterable[bytes]) -> list[MatchKey]:
    """Return the match keys with one of the hashes whose rows are not matched yet, by sequence."""
    query = (
        "SELECT hash, seq, mark, at FROM matches WHERE hash IN ({})"
        f" AND NOT mark & {SETTLED | UNSETTLED} AND NOT EXISTS (SELECT 1 FROM met WHERE met.seq = matches.seq)"
    )
    rows = _select_in(db, query, sorted(set(hashes)))
    found = (MatchKey(bytes(hash_), seq, flags, at) for hash_, seq, flags, at in rows)
    return sorted(found, key=lambda match_key: match_key.seq)


def find_unsettled(db: sqlite3.Connection, hashes: Iterable[bytes]) -> dict[bytes, int]:
    query = f"SELECT hash, seq FROM matches WHERE hash IN ({{}}) AND mark & {UNSETTLED}"
    return {bytes(hash_): seq for hash_, seq in _select_in(db, query, sorted(set(hashes)))}


def remove_match_keys(db: sqlite3.Connection, chosen: str) -> None:
    db.execute(f"DELETE FROM matches WHERE seq IN ({chosen})")
    db.execute(f"DELETE FROM met WHERE seq IN ({chosen})")


def lookup_keys(db: sqlite3.Connection, hashes: Sequence[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield (hash, sequence) of the hashes that an index has, over any connection to it."""
    return _select_in(db, "SELECT hash, seq FROM keys WHERE hash IN ({})", hashes)


def _select_in(db: sqlite3.Connection, query: str, hashes: Sequence[bytes]) -> Iterator[Any]:
    for start in range(0, len(hashes), _LOOKUP_SIZE):
        some = hashes[start : start + _LOOKUP_SIZE]
        yield from db.execute(query.format(",".join("?" * len(some))), some)


def insert_match_keys(
    db: sqlite3.Connection, match_keys: Iterable[MatchKey], matched: Iterable[int], settled: Iterable[bytes] = ()
) -> None:
    db.executemany("INSERT OR REPLACE INTO matches VALUES (?, ?, ?, ?)", sorted(match_keys))
    db.executemany("INSERT OR IGNORE INTO met VALUES (?)", ((seq,) for seq in matched))
    db.executemany(f"DELETE FROM matches WHERE hash = ? AND mark & {UNSETTLED}", ((key,) for key in settled))


def remove_index(path: Path) -> None:
    """Delete the index. The next flush rebuilds it from the lake."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def is_index_readable(path: Path) -> bool:
    try:
        with closing(KeyIndex(path)) as index:
            return index.check() is None
    except LakeError:
        return False
