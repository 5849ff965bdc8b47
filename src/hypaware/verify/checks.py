"""The checks of `hyp verify`, one function each. A check only reads."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypaware.home import Home
from hypaware.lake import keys, metadata, rejects, scan, tables, tombstones
from hypaware.lake.closed import SESSION, Closed, mark_of
from hypaware.lake.keys import KeyIndex
from hypaware.lake.metadata import Metadata
from hypaware.lake.spark_lake import SparkLake
from hypaware.lake.spark_table import SparkTable, key_sql
from hypaware.maintain.settling import Pending
from hypaware.model.datasets import SEQ, SOURCE, Dataset
from hypaware.spool import reader
from hypaware.state import dead_letters, flushes, intents, streams
from hypaware.state.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SAMPLE_ROWS = 500
_SAMPLE_FILES = 4
_SAMPLE_PARTS = 100_000
_FLUSH_ID_LENGTH = 36


@dataclass(frozen=True)
class Check:
    name: str
    dataset: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class Audit:
    home: Home
    store: Store
    lake: SparkLake
    table: SparkTable
    dataset: Dataset
    deep: bool

    @property
    def spark(self) -> SparkSession:
        return self.lake.spark

    @property
    def name(self) -> str:
        return tables.full_name(self.dataset.name)

    def sql(self, statement: str) -> list[Any]:
        return list(self.spark.sql(statement).collect())

    def check(self, name: str, ok: bool, detail: str) -> Check:
        return Check(name, self.dataset.name, ok, detail)

    @property
    def metadata(self) -> Metadata:
        found = metadata.entry(self.home, self.dataset.name)
        assert found is not None
        return metadata.read(found.metadata)


def sequences(audit: Audit) -> Check:
    """Check that every row has a sequence and that no two rows share one."""
    ((rows, with_seq, distinct),) = audit.sql(f"SELECT count(*), count({SEQ}), count(DISTINCT {SEQ}) FROM {audit.name}")
    detail = f"{rows} rows, {rows - with_seq} without a sequence, {with_seq - distinct} with a duplicate sequence"
    return audit.check("sequences", rows == distinct, detail)


def allocation(audit: Audit) -> Check:
    """Check that no sequence in the lake can be allocated again."""
    ((highest,),) = audit.sql(f"SELECT coalesce(max({SEQ}), 0) FROM {audit.name}")
    with audit.store.reading() as connection:
        next_sequence = flushes.next_seq(connection)
    floor = audit.table.floor
    ok = highest <= floor < next_sequence
    return audit.check("allocation", ok, f"highest row {highest}, floor {floor}, next sequence {next_sequence}")


def row_ids(audit: Audit) -> Check:
    """Check that the stored row ids match ids computed from the rows."""
    newest_first = sorted(metadata.live_files(audit.metadata), key=lambda file: file.max_seq or 0, reverse=True)
    max_rows = None if audit.deep else _SAMPLE_ROWS
    chosen = newest_first if audit.deep else newest_first[:_SAMPLE_FILES]
    scans = [scan.FileScan(audit.dataset.name, file.path, max_rows=max_rows) for file in chosen]
    found = scan.row_ids(audit.spark.sparkContext, scans)
    what = "all" if audit.deep else "a sample of"
    detail = f"{what} {found.checked} rows checked: {found.missing} without a row id, {found.wrong} with a wrong one"
    return audit.check("row_ids", found.missing == 0 and found.wrong == 0, detail)


def duplicates(audit: Audit) -> Check:
    """Check that no two rows share a dedupe key."""
    ((keyed, distinct),) = audit.sql(
        f"SELECT count(k), count(DISTINCT k) FROM (SELECT {key_sql(audit.dataset)} k FROM {audit.name})"
    )
    return audit.check(
        "duplicates", keyed == distinct, f"{keyed} rows with a key, {keyed - distinct} of them duplicates"
    )


def high_water(audit: Audit) -> Check:
    """Check that the state knows the newest row of each source and that the lake was not rolled back."""
    in_lake = {row[0]: row[1] for row in audit.sql(f"SELECT {SOURCE}, max({SEQ}) FROM {audit.name} GROUP BY {SOURCE}")}
    with audit.store.reading() as connection:
        in_state = flushes.high_water(connection, audit.dataset.name).get(audit.dataset.name, {})
    behind = sorted(source for source, seq in in_lake.items() if in_state.get(source, 0) < (seq or 0))
    gone = rolled_back(audit)
    detail = f"{len(in_lake)} sources"
    if behind:
        detail += f"; the state lags behind the lake for {', '.join(behind)} (hyp verify --repair)"
    if gone:
        detail += (
            f"; the lake lacks recorded rows of {', '.join(gone)}: it was rolled back or restored without its state "
            "(restore both from one backup; to accept the loss: hyp verify --accept-rollback)"
        )
    return audit.check("high_water", not behind and not gone, detail)


def rolled_back(audit: Audit) -> list[str]:
    """Return the sources with recorded rows above the floor of the lake."""
    with audit.store.reading() as connection:
        known = flushes.high_water(connection, audit.dataset.name).get(audit.dataset.name, {})
    return sorted(source for source, seq in known.items() if seq > audit.table.floor)


def unfinished(audit: Audit) -> Check:
    """Check that no flush is unfinished; count the rows that are not in the lake yet."""
    with audit.store.reading() as connection:
        left = flushes.unfinished(connection, audit.dataset.name)
    waiting = reader.waiting(audit.home, audit.dataset.name)
    rejected = rejects.total(audit.home, audit.dataset.name)
    pending_settlements = Pending.read(audit.home, audit.dataset).rows
    detail = (
        f"{len(left)} unfinished; {waiting.segments} segments in the spool; {rejected} rejected rows kept; "
        f"{pending_settlements} settlements pending until the next compaction"
    )
    return audit.check("flushes", not left, detail)


def key_index(audit: Audit) -> Check:
    """Check that the key index is readable and not ahead of the lake; with `deep`, that it has the same keys."""
    if audit.home.keys.exists() and not keys.is_readable(audit.home.keys):
        return audit.check("key_index", False, "unreadable (hyp verify --repair)")
    with closing(KeyIndex(audit.home.keys)) as index:
        through = index.indexed_through(audit.dataset.name, audit.table.uuid)
        ahead = through is None or through > audit.table.floor
        missing = phantoms = 0
        if audit.deep and not ahead:
            lake = {key for batch in audit.table.key_hashes(0) for key, seq in batch if seq <= (through or 0)}
            missing = len(lake) - len(index.find(sorted(lake)))
            # All tables share the index, so its size is comparable only if there is one table. It also keeps keys of
            # rows that retention or a purge by time removed, so that they are not imported again, and alternative ids.
            is_only_table = len(metadata.entries(audit.home)) == 1
            keeps_removed_keys = (
                metadata.RETAINED_FROM in audit.metadata.properties
                or tombstones.read(audit.home).purge_filter.before
                or index.has_match_keys(audit.dataset.name)
            )
            phantoms = index.count() - len(lake) + missing if is_only_table and not keeps_removed_keys else 0
    detail = f"complete up to {through}, floor of the lake {audit.table.floor}"
    if audit.deep:
        detail += f"; {missing} keys missing, {phantoms} keys not in the lake"
    if ahead or missing or phantoms:
        detail += " (hyp verify --repair)"
    return audit.check("key_index", not (ahead or missing or phantoms), detail)


def files(audit: Audit) -> Check:
    """Check that every data file of the table exists in full; count unreferenced files."""
    known = {file.path: file.bytes for file in metadata.live_files(audit.metadata)}
    missing = [path for path, size in known.items() if not path.is_file() or path.stat().st_size != size]
    unreferenced = orphans(audit)
    detail = f"{len(known)} data files, {len(missing)} missing or truncated"
    if missing:
        detail += f": {missing[0]} (hyp maintain {audit.dataset.name} --rebuild)"
    if unreferenced:
        size = sum(path.stat().st_size for path in unreferenced)
        detail += f"; {len(unreferenced)} unreferenced files ({size} bytes)"
        if leftover := removable(audit):
            detail += f", {len(leftover)} of them from interrupted flushes (hyp verify --repair)"
    return audit.check("files", not missing, detail)


def orphans(audit: Audit) -> list[Path]:
    """Return data files that no snapshot references. The caller holds the table's lock, so none is being written."""
    table = audit.metadata
    manifests = {
        manifest.path: manifest
        for snapshot in table.snapshots
        # An interrupted expiry may have deleted the files of an old snapshot that is still listed.
        if snapshot.id == table.current_id or snapshot.manifest_list.is_file()
        for manifest in metadata.manifests(snapshot)
    }
    referenced = {
        file.path.resolve()
        for manifest in manifests.values()
        if manifest.path.is_file()
        for file in metadata.data_files(table, manifest)
    }
    return [path for path in audit.table.data_root.rglob("*.parquet") if path.resolve() not in referenced]


def removable(audit: Audit) -> list[Path]:
    """Return the orphans that are safe to delete: they were written by a flush that was discarded.

    Any other orphan may belong to a rolled-back snapshot and be needed again.
    """
    with audit.store.reading() as connection:
        discarded = flushes.burnt_ids(connection, audit.dataset.name)
    return [path for path in orphans(audit) if path.name[:_FLUSH_ID_LENGTH] in discarded]


def deliveries(audit: Audit) -> Check:
    """Check that no stream is ahead of the lake and that the chunks of every intent are within its range."""
    name = audit.dataset.name
    with audit.store.reading() as connection:
        newest = flushes.high_water(connection, name).get(name, {})
        known = [stream for stream in streams.all_streams(connection) if stream.key.dataset == name]
        planned = [intents.pending(connection, stream.key) for stream in known]
        letters = [letter for letter in dead_letters.all_letters(connection) if letter.key.dataset == name]
    ahead = [stream.key for stream in known if (stream.watermark or 0) > newest.get(stream.key.source, 0)]
    inconsistent = [
        intent.key
        for intent in planned
        if intent and any(not intent.after <= chunk.after < chunk.last <= intent.last for chunk in intent.chunks)
    ]
    detail = f"{len(known)} streams, {sum(1 for intent in planned if intent)} with a delivery in progress"
    if letters:
        detail += f"; {len(letters)} dead letters (hyp export dead-letters list)"
    if ahead:
        detail += f"; delivered beyond the end of the lake: {'; '.join(map(str, ahead))}"
    if inconsistent:
        detail += f"; chunks outside the range of their intent: {'; '.join(map(str, inconsistent))}"
    return audit.check("deliveries", not ahead and not inconsistent, detail)


def purged(audit: Audit) -> Check:
    """Check that no purged row is in the lake and that no purge is unfinished."""
    recorded = tombstones.read(audit.home)
    left = tombstones.unfinished(audit.home)
    found = _closed_rows(audit, recorded.purge_filter)
    if recorded.has_parts and audit.home.keys.exists() and keys.is_readable(audit.home.keys):
        purged_keys = tombstones.parts(audit.home, None if audit.deep else _SAMPLE_PARTS)
        with closing(KeyIndex(audit.home.keys)) as index:
            # After an interrupted purge the index is not trusted: it may still hold purged keys.
            if index.indexed_through(audit.dataset.name, audit.table.uuid) is not None:
                found = max(found, len(index.find(purged_keys)))
    detail = f"{found} purged rows are in the lake" if found else "no purged row is in the lake"
    if left:
        detail += f"; unfinished purges: {'; '.join(left)}"
    elif found:
        detail += "; purge them again"
    return audit.check("purged", not found and not left, detail)


def _closed_rows(audit: Audit, closed: Closed) -> int:
    found = 0
    if closed.sessions and SESSION in audit.dataset.coercers:
        sessions = audit.sql(f"SELECT {SESSION}, count(*) FROM {audit.name} GROUP BY {SESSION}")
        found += sum(rows for session, rows in sessions if mark_of("session", str(session)) in closed.sessions)
    if closed.before is not None:
        early = f"{audit.dataset.time_column} < TIMESTAMP '{closed.before}'"
        ((rows,),) = audit.sql(f"SELECT count(*) FROM {audit.name} WHERE {early}")
        found += rows
    return int(found)


ALL = (files, sequences, allocation, row_ids, duplicates, high_water, unfinished, key_index, deliveries, purged)
