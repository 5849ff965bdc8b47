"""What is checked, one function each. A check reads; it changes nothing."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypaware.home import Home
from hypaware.lake import keys, metadata, rejects, scan, tables, tombstones
from hypaware.lake.closed import SESSION, Closed, mark_of
from hypaware.lake.keys import KeyIndex
from hypaware.lake.spark_lake import SparkLake
from hypaware.lake.spark_table import SparkTable, key_sql
from hypaware.maintain.settling import Pending
from hypaware.model.datasets import SEQ, SOURCE, Dataset
from hypaware.spool import reader
from hypaware.state import dead_letters, flushes, intents, streams
from hypaware.state.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SAMPLE = 500
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
    def metadata(self) -> metadata.Metadata:
        found = metadata.entry(self.home, self.dataset.name)
        assert found is not None
        return metadata.read(found.metadata)


def sequences(audit: Audit) -> Check:
    """Unique, and none missing."""
    ((rows, with_seq, distinct),) = audit.sql(f"SELECT count(*), count({SEQ}), count(DISTINCT {SEQ}) FROM {audit.name}")
    detail = f"{rows} rows, {rows - with_seq} without a sequence, {with_seq - distinct} sequences used again"
    return audit.check("sequences", rows == distinct, detail)


def allocation(audit: Audit) -> Check:
    """No sequence that the lake has seen can be given out again."""
    ((highest,),) = audit.sql(f"SELECT coalesce(max({SEQ}), 0) FROM {audit.name}")
    with audit.store.reading() as connection:
        following = flushes.next_seq(connection)
    floor = audit.table.floor
    ok = highest <= floor < following
    return audit.check("allocation", ok, f"highest row {highest}, floor {floor}, next to be given out {following}")


def row_ids(audit: Audit) -> Check:
    """Stored, and true: computed again over the row as it is."""
    newest_first = sorted(metadata.live_files(audit.metadata), key=lambda file: file.max_seq or 0, reverse=True)
    most = None if audit.deep else _SAMPLE
    chosen = newest_first if audit.deep else newest_first[:_SAMPLE_FILES]
    scans = [scan.FileScan(audit.dataset.name, file.path, most=most) for file in chosen]
    found = scan.row_ids(audit.spark.sparkContext, scans)
    what = "all" if audit.deep else "a sample of"
    detail = f"of {what} {found.looked} rows {found.missing} have none, {found.wrong} do not match their content"
    return audit.check("row_ids", found.missing == 0 and found.wrong == 0, detail)


def duplicates(audit: Audit) -> Check:
    """No two rows with one key."""
    ((keyed, distinct),) = audit.sql(
        f"SELECT count(k), count(DISTINCT k) FROM (SELECT {key_sql(audit.dataset)} k FROM {audit.name})"
    )
    return audit.check("duplicates", keyed == distinct, f"{keyed} rows with a key, {keyed - distinct} of them twice")


def high_water(audit: Audit) -> Check:
    """The state knows the newest row of each source, and the lake has not gone back behind it."""
    in_lake = {row[0]: row[1] for row in audit.sql(f"SELECT {SOURCE}, max({SEQ}) FROM {audit.name} GROUP BY {SOURCE}")}
    with audit.store.reading() as connection:
        in_state = flushes.high_water(connection, audit.dataset.name).get(audit.dataset.name, {})
    behind = sorted(source for source, seq in in_lake.items() if in_state.get(source, 0) < (seq or 0))
    gone = rolled_back(audit)
    detail = f"{len(in_lake)} sources"
    if behind:
        detail += f"; the state is behind the lake for {', '.join(behind)} (hyp verify --repair)"
    if gone:
        detail += (
            f"; the lake went back behind what was recorded for {', '.join(gone)}: it was rolled back or restored "
            "without its state (restore both from one backup; to give those rows up: hyp verify --accept-rollback)"
        )
    return audit.check("high_water", not behind and not gone, detail)


def rolled_back(audit: Audit) -> list[str]:
    """Sources of which rows were recorded that the lake has never heard of."""
    with audit.store.reading() as connection:
        known = flushes.high_water(connection, audit.dataset.name).get(audit.dataset.name, {})
    return sorted(source for source, seq in known.items() if seq > audit.table.floor)


def unfinished(audit: Audit) -> Check:
    """Every flush was settled, every segment is either waiting or gone."""
    with audit.store.reading() as connection:
        left = flushes.unfinished(connection, audit.dataset.name)
    waiting = reader.waiting(audit.home, audit.dataset.name)
    refused = rejects.total(audit.home, audit.dataset.name)
    unsettled = Pending.of(audit.home, audit.dataset).rows
    detail = (
        f"{len(left)} unfinished; {waiting.segments} segments wait in the spool; {refused} rows were refused and kept; "
        f"{unsettled} rows get their own ids at the next compaction"
    )
    return audit.check("flushes", not left, detail)


def key_index(audit: Audit) -> Check:
    """Sound, and not ahead of the lake; with --deep, it has the lake's keys and no others."""
    if audit.home.keys.exists() and not keys.is_readable(audit.home.keys):
        return audit.check("key_index", False, "it cannot be read (hyp verify --repair)")
    with closing(KeyIndex(audit.home.keys)) as index:
        through = index.through(audit.dataset.name, audit.table.uuid)
        ahead = through is None or through > audit.table.floor
        missing = phantoms = 0
        if audit.deep and not ahead:
            lake = {key for lot in audit.table.key_hashes(0) for key, seq in lot if seq <= (through or 0)}
            missing = len(lake) - len(index.find(sorted(lake)))
            # The index is shared: its size says something only where one table fills it. And what retention drops, or
            # a purge by time, stays in it, so that it does not come again; so do other ids of one row.
            alone = len(metadata.entries(audit.home)) == 1
            keeps = (
                metadata.RETAINED_FROM in audit.metadata.properties
                or tombstones.read(audit.home).closed.before
                or index.matches(audit.dataset.name)
            )
            phantoms = index.count() - len(lake) + missing if alone and not keeps else 0
    detail = f"filled through {through}, the lake's floor is {audit.table.floor}"
    if audit.deep:
        detail += f"; {missing} keys of the lake are not in it, {phantoms} are in it that the lake does not have"
    if ahead or missing or phantoms:
        detail += " (hyp verify --repair)"
    return audit.check("key_index", not (ahead or missing or phantoms), detail)


def files(audit: Audit) -> Check:
    """Every file that the table names is there; what nothing names is counted."""
    known = {file.path: file.bytes for file in metadata.live_files(audit.metadata)}
    missing = [path for path, size in known.items() if not path.is_file() or path.stat().st_size != size]
    strays = orphans(audit)
    detail = f"{len(known)} data files, {len(missing)} missing or short"
    if missing:
        detail += f": {missing[0]} (hyp maintain {audit.dataset.name} --rebuild)"
    if strays:
        size = sum(path.stat().st_size for path in strays)
        detail += f"; {len(strays)} files ({size} bytes) that nothing names"
        if mendable := removable(audit):
            detail += f", {len(mendable)} of them left by interrupted flushes (hyp verify --repair)"
    return audit.check("files", not missing, detail)


def orphans(audit: Audit) -> list[Path]:
    """Data files that no snapshot names. Under the table's mutex nothing is being written."""
    held = audit.metadata
    manifests = {
        manifest.path: manifest
        for snapshot in held.snapshots
        # Expiry may have been cut off between the files of an old snapshot and its last mention.
        if snapshot.id == held.current_id or snapshot.manifest_list.is_file()
        for manifest in metadata.manifests(snapshot)
    }
    named = {
        file.path.resolve()
        for manifest in manifests.values()
        if manifest.path.is_file()
        for file in metadata.data_files(held, manifest)
    }
    return [path for path in audit.table.data_root.rglob("*.parquet") if path.resolve() not in named]


def removable(audit: Audit) -> list[Path]:
    """Orphans that are surely rubbish: a flush wrote them that is known not to have landed.

    Any other may be what a rollback left behind, and be wanted again.
    """
    with audit.store.reading() as connection:
        burnt = flushes.burnt_ids(connection, audit.dataset.name)
    return [path for path in orphans(audit) if path.name[:_FLUSH_ID_LENGTH] in burnt]


def deliveries(audit: Audit) -> Check:
    """No stream is ahead of the lake, and every plan fits its stream."""
    name = audit.dataset.name
    with audit.store.reading() as connection:
        newest = flushes.high_water(connection, name).get(name, {})
        known = [stream for stream in streams.all_streams(connection) if stream.key.dataset == name]
        planned = [intents.pending(connection, stream.key) for stream in known]
        letters = [letter for letter in dead_letters.all_letters(connection) if letter.key.dataset == name]
    ahead = [stream.key for stream in known if (stream.watermark or 0) > newest.get(stream.key.source, 0)]
    crooked = [
        intent.key
        for intent in planned
        if intent and any(not intent.after <= chunk.after < chunk.last <= intent.last for chunk in intent.chunks)
    ]
    detail = f"{len(known)} streams, {sum(1 for intent in planned if intent)} with a plan under way"
    if letters:
        detail += f"; {len(letters)} dead letters wait (hyp export dead-letters list)"
    if ahead:
        detail += f"; delivered beyond what the lake has: {'; '.join(map(str, ahead))}"
    if crooked:
        detail += f"; plans that leave their range: {'; '.join(map(str, crooked))}"
    return audit.check("deliveries", not ahead and not crooked, detail)


def purged(audit: Audit) -> Check:
    """Nothing that was purged is in the lake, and no purge was left unfinished."""
    stones = tombstones.read(audit.home)
    left = tombstones.unfinished(audit.home)
    found = _closed_rows(audit, stones.closed)
    if stones.has_parts and audit.home.keys.exists() and keys.is_readable(audit.home.keys):
        buried = tombstones.parts(audit.home, None if audit.deep else _SAMPLE_PARTS)
        with closing(KeyIndex(audit.home.keys)) as index:
            # Where it is not trusted, a purge was cut off, and it may still know what is gone.
            if index.through(audit.dataset.name, audit.table.uuid) is not None:
                found = max(found, len(index.find(buried)))
    detail = f"{found} rows of the lake were purged" if found else "nothing that was purged is in the lake"
    if left:
        detail += f"; begun and not finished: {'; '.join(left)}"
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
