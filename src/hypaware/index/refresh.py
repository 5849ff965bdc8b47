"""Bring the index up to date with the lake and the spool.

A refresh compares the data files whose rows are indexed with those of the table's current snapshot. Rows of added files
are inserted, changed, or, if the index has them as they are, only noted under the new file. Then rows that are still
noted under a removed file are removed. So an append, a compaction, a purge, a restore or a moved home is the same case,
and no other part of the program has to log what it changed. The newest files come first.

Each transaction holds some rows together with the number of row groups of their file that are indexed, so a killed
refresh continues where it stopped, and one that is repeated changes nothing. The name of the table's metadata is stored
last; while the catalog still has that name, there is nothing to compare.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from hypaware import config
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.iceberg.metadata import DataFile
from hypaware.index import database, freshness, lake_rows, spool_rows
from hypaware.index.lake_rows import UnreadableFile
from hypaware.index.schema import DATASET
from hypaware.index.spool_rows import SegmentVanished, SpoolFile, SpoolIndexer
from hypaware.index.writer import IndexWriter
from hypaware.state.home_opener import read_identity

# A transaction ends after this many rows or bytes of entries.
_BATCH_ROWS = 20_000
_BATCH_BYTES = 24 << 20
_CHUNK = 10_000
# So many rows are removed in the time in which one is added.
_REMOVALS_PER_ROW = 3
# A segment that was committed while it was to be read: its rows are in the lake.
_ATTEMPTS = 5
# For an estimate of the rows in the spool.
_BYTES_PER_ROW = 1_000
# A build of at least so many rows ends with a compaction, unless the index is too large to be copied.
_COMPACT_ROWS = 20_000
_MAX_COMPACT_PAGES = (2 << 30) // 4096
OnProgress = Callable[[int, int], None]
"""(rows done, rows to do)"""


@dataclass
class RefreshReport:
    added: int = 0
    changed: int = 0
    removed: int = 0
    spooled: int = 0
    """Rows of the spool that were added."""
    complete: bool = True
    """False if `limit_rows` ended the refresh."""
    warning: str | None = None
    is_whole: bool = True
    """False if something could not be read; the next refresh tries it again."""


@dataclass(frozen=True)
class LakePlan:
    """What has to be done so that the index agrees with the lake."""

    location: str | None
    """The metadata of the table, relative to the warehouse; None if there is no table."""
    added: tuple[DataFile, ...] = ()
    """Files to read, newest first."""
    removed: tuple[int, ...] = ()
    """Ids of files that are not part of the table any more."""
    removed_rows: int = 0
    """Rows of these files. The added files may have the same rows."""
    rows: int = 0
    """Rows of the table."""
    manifests: Mapping[str, tuple[DataFile, ...]] = field(default_factory=dict)
    """The manifests that the index did not know, with their files."""
    gone_manifests: tuple[int, ...] = ()
    has_deletes: bool = False

    @property
    def missing_rows(self) -> int:
        return sum(file.rows for file in self.added)

    @property
    def lost_rows(self) -> int:
        """Rows that are in the index and in none of the table's files, at least."""
        return max(0, self.removed_rows - self.missing_rows)

    @property
    def work_rows(self) -> int:
        """How many rows could be added in the time that it takes to apply the plan."""
        return self.missing_rows + self.lost_rows // _REMOVALS_PER_ROW


class DataFileVanished(Exception):
    """A data file does not exist any more: the table has to be read again."""


class IndexBehind(Exception):
    """Too many rows are missing in the index, or are in it and not in the lake, to add or remove them now."""


def refresh_index(
    home: Home,
    *,
    limit_rows: int | None = None,
    at_most_rows: int | None = None,
    on_progress: OnProgress | None = None,
    wait_seconds: float = database.LOCK_SECONDS,
    replace_newer: bool = True,
    with_lake: bool = True,
) -> RefreshReport:
    """Bring the index up to date, or at least `limit_rows` rows closer to it. Create it if necessary.

    Raise IndexBehind and change nothing if it would take longer than to add `at_most_rows` rows or, without
    `with_lake`, if rows of the lake are missing at all: then no data file is read. Raise BlockingIOError if another
    process is writing the index, and OSError or sqlite3.Error if it cannot be written. A process that runs for long
    sets `replace_newer` to False: then an index of a newer version is left alone and Retryable is raised.
    """
    # A moved home is relocated first: its tables would name files of another place. Nothing is created without a home.
    own_gateway = read_identity(home, make=False).gateway_id
    with database.hold_lock(home, wait_seconds):
        return refresh_locked(
            home,
            own_gateway,
            limit_rows=limit_rows,
            at_most_rows=at_most_rows,
            on_progress=on_progress,
            replace_newer=replace_newer,
            with_lake=with_lake,
        )


def refresh_locked(
    home: Home,
    own_gateway: str,
    *,
    limit_rows: int | None = None,
    at_most_rows: int | None = None,
    on_progress: OnProgress | None = None,
    replace_newer: bool = True,
    with_lake: bool = True,
) -> RefreshReport:
    """Do the work of `refresh_index` for a caller that holds the lock."""
    signature = freshness.take_signature(home)
    with_text = config.load(home).index.text

    def run() -> RefreshReport:
        with database.open_for_writing(home, with_text=with_text, replace_newer=replace_newer) as connection:
            writing = _Refresh(home, connection, own_gateway, with_text, on_progress)
            report = writing.run(limit_rows, at_most_rows, with_lake=with_lake)
            freshness.store_signature(connection, signature if report.complete and report.is_whole else None)
            return report

    try:
        return run()
    except sqlite3.DatabaseError as error:
        if not database.is_damage(error):
            raise
    database.remove_files(home)
    return run()


def plan_lake(home: Home, connection: sqlite3.Connection) -> LakePlan | None:
    """Compare the index with the table; None if the table has not changed since the last complete refresh."""
    found = metadata.find_table(home, DATASET)
    location = relative_path(home, found.metadata) if found else None
    if database.read_meta(connection, "metadata") == (location or ""):
        return None
    known = metadata.read_metadata(found.metadata) if found else None
    manifests = metadata.read_manifests(known.current) if known and known.current else []
    listed = {relative_path(home, each.path): each for each in manifests if not each.deletes}
    indexed = {path: number for number, path in connection.execute("SELECT id, path FROM manifests")}
    unread = {
        path: metadata.read_cached_files(known, each) for path, each in listed.items() if known and path not in indexed
    }
    gone = tuple(number for path, number in indexed.items() if path not in listed)
    files = {relative_path(home, file.path): file for members in unread.values() for file in members}
    # Files of a manifest that the index knows are live and indexed. The others are what has to be compared.
    marks = ",".join("?" * len(gone))
    query = f"SELECT path, id, row_groups, row_count FROM files WHERE manifest IS NULL OR manifest IN ({marks})"
    compared = {path: (number, groups, rows) for path, number, groups, rows in connection.execute(query, gone)}
    added = [file for path, file in files.items() if compared.get(path, (0, 0, 0))[1] is not None]
    added.sort(key=lambda file: (file.day or date.min, file.max_seq or 0), reverse=True)
    removed = {number: count for path, (number, _, count) in compared.items() if path not in files}
    query = f"SELECT ifnull(sum(row_count), 0) FROM files WHERE manifest IS NOT NULL AND manifest NOT IN ({marks})"
    ((rows,),) = connection.execute(query, gone)
    return LakePlan(
        location=location,
        added=tuple(added),
        removed=tuple(removed),
        removed_rows=sum(removed.values()),
        rows=rows + sum(file.rows for file in files.values()),
        manifests=unread,
        gone_manifests=gone,
        has_deletes=any(each.deletes for each in manifests),
    )


def _warn(plan: LakePlan, unreadable: list[str]) -> str | None:
    if unreadable:
        return f"{unreadable[0]}; rows of {len(unreadable)} data files are missing in this answer; run: hyp verify"
    if plan.has_deletes:
        return (
            f"another program has deleted rows of {DATASET} with delete files; the index shows them until "
            "hyp maintain has compacted the table"
        )
    return None


def count_lake_rows(home: Home) -> int:
    found = metadata.find_table(home, DATASET)
    return sum(file.rows for file in metadata.iter_cached_files(metadata.read_metadata(found.metadata))) if found else 0


def relative_path(home: Home, path: Path) -> str:
    """Return a path relative to the warehouse, or as it is if it is elsewhere."""
    return str(path).removeprefix(f"{home.warehouse}/")


class _Refresh:
    def __init__(
        self,
        home: Home,
        connection: sqlite3.Connection,
        own_gateway: str,
        with_text: bool,
        on_progress: OnProgress | None,
    ) -> None:
        self._home = home
        self._connection = connection
        self._own_gateway = own_gateway
        self._writer = IndexWriter(connection, with_text=with_text)
        self._limit: int | None = None
        self._on_progress = on_progress
        self._report = RefreshReport()
        self._read = 0
        self._counted = 0
        self._vanished: set[str] = set()

    def run(self, limit_rows: int | None, at_most_rows: int | None, *, with_lake: bool) -> RefreshReport:
        self._limit = limit_rows
        for _ in range(_ATTEMPTS):
            # Listed before the catalog is read: a segment that is committed in between is found in one of them.
            spool = spool_rows.list_spool(self._home)
            plan = plan_lake(self._home, self._connection)
            if at_most_rows is not None:
                self._require_little(plan, spool, at_most_rows)
            if not with_lake and plan is not None and (plan.added or plan.removed):
                raise IndexBehind("the lake has changed")
            if plan is None:
                self._report.warning = database.read_meta(self._connection, "warning")
                if spool_rows.is_unchanged(self._connection, spool):
                    break
            try:
                if plan is not None:
                    self._apply_lake(plan)
                self._apply_spool(spool, lake_changed=plan is not None)
                break
            except (SegmentVanished, DataFileVanished):
                self._writer.commit()
        else:
            self._report.is_whole = False
        if self._report.complete:
            self._compact_if_needed()
        return self._report

    def _compact_if_needed(self) -> None:
        """Write the database again after a build: newest rows first is not the order of its pages."""
        inserted = database.read_meta(self._connection, "inserted") or 0
        if inserted < _COMPACT_ROWS:
            return
        ((rows,),) = self._connection.execute("SELECT count(*) FROM parts")
        ((pages,),) = self._connection.execute("PRAGMA page_count")
        if inserted * 2 < rows:
            return
        database.write_meta(self._connection, "inserted", 0)
        if pages <= _MAX_COMPACT_PAGES:
            with suppress(sqlite3.OperationalError):  # there is no space for a second copy
                self._connection.execute("VACUUM")

    def _require_little(self, plan: LakePlan | None, spool: list[SpoolFile], at_most_rows: int) -> None:
        missing, work = (plan.missing_rows, plan.work_rows) if plan else (0, 0)
        if work + spool_rows.count_unread_bytes(self._connection, spool) // _BYTES_PER_ROW <= at_most_rows:
            return
        if plan is not None:
            # Readers see that the index is not complete.
            found = {"missing": missing, "rows": plan.rows, "lost": plan.lost_rows}
            if any(database.read_meta(self._connection, key) != value for key, value in found.items()):
                self._writer.begin()
                for key, value in found.items():
                    database.write_meta(self._connection, key, value)
                self._writer.commit()
        raise IndexBehind(f"{missing} rows are not indexed, and {plan.lost_rows if plan else 0} are to be removed")

    def _apply_spool(self, spool: list[SpoolFile], *, lake_changed: bool) -> None:
        indexer = SpoolIndexer(self._home, self._writer, self._own_gateway)
        if self._report.complete:
            indexer.remove_gone(spool)
        if lake_changed:
            indexer.remove_committed()
        again = self._must_read_again()
        indexer.read(spool, again=again)
        if not again and self._must_read_again():  # the first live row has arrived
            indexer.read(spool, again=True)
        self._writer.commit()
        self._report.spooled += indexer.added
        for path, error in indexer.problems.items():
            self._report.warning = f"{path} cannot be read ({error.strerror}); its rows are not shown"
            self._report.is_whole = False

    def _must_read_again(self) -> bool:
        return any(database.read_meta(self._connection, key) is not None for key in (spool_rows.AGAIN, "live"))

    def _apply_lake(self, plan: LakePlan) -> None:
        total = plan.missing_rows
        self._writer.begin()
        database.write_meta(self._connection, "missing", total)
        database.write_meta(self._connection, "rows", plan.rows)
        database.write_meta(self._connection, "lost", plan.lost_rows)
        pending_rows = pending_bytes = 0
        unreadable: list[str] = []
        for file in plan.added:
            try:
                for rows, size in self._apply_file(file):
                    pending_rows += rows
                    pending_bytes += size
                    if pending_rows >= _BATCH_ROWS or pending_bytes >= _BATCH_BYTES:
                        self._commit(total)
                        pending_rows = pending_bytes = 0
                        if self._limit is not None and self._read >= self._limit:
                            self._report.complete = False
                            return
            except UnreadableFile as error:
                unreadable.append(str(error))
        if not unreadable:
            self._remove_files(plan.removed)
            self._note_manifests(plan)
            database.write_meta(self._connection, "metadata", plan.location or "")
            database.write_meta(self._connection, "lost", 0)
        self._report.is_whole = not unreadable
        self._report.warning = _warn(plan, unreadable)
        database.write_meta(self._connection, "warning", self._report.warning)
        self._read = total
        self._commit(total)

    def _apply_file(self, file: DataFile) -> Iterator[tuple[int, int]]:
        """Apply a file. Yield rows and bytes after each batch, when a transaction may end."""
        writer, path = self._writer, relative_path(self._home, file.path)
        writer.begin()
        self._connection.execute(
            "INSERT OR IGNORE INTO files (path, min_seq, max_seq, row_count, row_groups) VALUES (?, ?, ?, ?, 0)",
            (path, file.min_seq, file.max_seq, file.rows),
        )
        query = "SELECT id, ifnull(row_groups, 0) FROM files WHERE path = ?"
        ((number, groups),) = self._connection.execute(query, (path,))
        if not file.path.exists() and path not in self._vanished:
            # It may have been compacted and expired since the table was read.
            self._vanished.add(path)
            raise DataFileVanished(path)
        for parts, groups_read in lake_rows.read_parts(file.path, groups, with_text=writer.with_text):
            added, changed = writer.apply(parts, number)
            self._connection.execute("UPDATE files SET row_groups = ? WHERE id = ?", (groups_read, number))
            if changed:
                database.write_meta(self._connection, spool_rows.AGAIN, 1)
            self._report.added += added
            self._report.changed += changed
            self._read += len(parts)
            yield len(parts), sum(part.size for part in parts)
            writer.begin()
        self._connection.execute("UPDATE files SET row_groups = NULL WHERE id = ?", (number,))

    def _remove_files(self, removed: tuple[int, ...]) -> None:
        for number in removed:
            bounds = "SELECT ifnull(min_seq, 0), ifnull(max_seq, ?) FROM files WHERE id = ?"
            ((low, high),) = self._connection.execute(bounds, (1 << 62, number))
            query = "SELECT seq FROM parts WHERE seq BETWEEN ? AND ? AND file = ? LIMIT ?"
            while seqs := [seq for (seq,) in self._connection.execute(query, (low, high, number, _CHUNK))]:
                self._writer.remove(seqs)
                database.write_meta(self._connection, spool_rows.AGAIN, 1)
                self._report.removed += len(seqs)
                self._writer.commit()
                self._writer.begin()
            self._connection.execute("DELETE FROM files WHERE id = ?", (number,))

    def _note_manifests(self, plan: LakePlan) -> None:
        for path, files in plan.manifests.items():
            number = self._connection.execute("INSERT INTO manifests (path) VALUES (?)", (path,)).lastrowid
            named = [(number, relative_path(self._home, file.path)) for file in files]
            self._connection.executemany("UPDATE files SET manifest = ? WHERE path = ?", named)
        gone = [(number,) for number in plan.gone_manifests]
        self._connection.executemany("DELETE FROM manifests WHERE id = ?", gone)

    def _commit(self, total: int) -> None:
        database.write_meta(self._connection, "missing", max(total - self._read, 0))
        inserted = database.read_meta(self._connection, "inserted") or 0
        database.write_meta(self._connection, "inserted", inserted + self._report.added - self._counted)
        self._counted = self._report.added
        self._writer.commit()
        if self._on_progress is not None:
            self._on_progress(min(self._read, total), total)
