"""`hyp verify`: audit every promise on the data, and repair derived data.

The engine job `verify` runs every check on every dataset that has a table. A check only reads. Arguments: `deep` (read
everything instead of a sample), `repair` (repair derived data before checking: key index, index, a lagging high water,
files of discarded flushes, rows without a sequence, checkpoints of transcripts that could still complete live rows; no
column that users see), `accept_rollback`. Result: `{ok, checks: [{name, dataset, ok, detail}]}`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from hypaware.backfill.unsettled_rows import UnsettledSource, find_unsettled, select_checkpoints
from hypaware.config import Config
from hypaware.engine.jobs import JobContext
from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.iceberg import fsync, metadata
from hypaware.iceberg.metadata import TableMetadata
from hypaware.index import comparison, refresh
from hypaware.index.schema import DATASET
from hypaware.index.store import drop_index
from hypaware.lake import dedupe, key_index, links, parquet, prepare, schema, tombstones
from hypaware.lake.commit import finish_interrupted_flushes
from hypaware.lake.health import read_recorded_floors
from hypaware.lake.key_index import KeyIndex
from hypaware.lake.row_keys import unpack_keys
from hypaware.lake.spark_table import SparkLake, SparkTable, dedupe_key_sql, list_stored_datasets
from hypaware.lake.table import commit_lock, maintenance_lock
from hypaware.lake.tombstones import SESSION_COLUMN, hash_purged_value
from hypaware.maintain.apply_settlements import PendingSettlements
from hypaware.maintain.row_numbers import number_rows
from hypaware.model.datasets import SEQ, SOURCE, Dataset
from hypaware.model.schemas import GATEWAY_TYPE
from hypaware.spool import reader
from hypaware.state import dead_letters, flushes, mirror, recovery, streams
from hypaware.state.home_opener import open_home
from hypaware.state.location import find_machine
from hypaware.state.store import StateStore
from hypaware.text import format_count

_SAMPLE_ROWS = 500
_SAMPLE_FILES = 4
_SAMPLE_PARTS = 100_000
_SAMPLE_TRANSCRIPTS = 50
_FLUSH_ID_LENGTH = 36


@dataclass(frozen=True)
class VerifyCheck:
    name: str
    dataset: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class DatasetAudit:
    home: Home
    store: StateStore
    lake: SparkLake
    table: SparkTable
    dataset: Dataset
    deep: bool
    config: Config = field(default_factory=Config)

    @property
    def name(self) -> str:
        return schema.full_table_name(self.dataset.name)

    def sql(self, statement: str) -> list[Any]:
        return list(self.lake.spark.sql(statement).collect())

    def check(self, name: str, ok: bool, detail: str) -> VerifyCheck:
        return VerifyCheck(name, self.dataset.name, ok, detail)

    @property
    def metadata(self) -> TableMetadata:
        found = metadata.find_table(self.home, self.dataset.name)
        assert found is not None
        return metadata.read_metadata(found.metadata)


def check_sequences(audit: DatasetAudit) -> VerifyCheck:
    """Check that every row has a sequence and that no two rows share one."""
    ((rows, with_seq, distinct),) = audit.sql(f"SELECT count(*), count({SEQ}), count(DISTINCT {SEQ}) FROM {audit.name}")
    detail = f"{rows} rows, {rows - with_seq} without a sequence, {with_seq - distinct} with a duplicate sequence"
    if rows > with_seq:
        detail += "; rows without a sequence are not delivered (hyp verify --repair)"
    return audit.check("sequences", rows == distinct, detail)


def check_allocation(audit: DatasetAudit) -> VerifyCheck:
    """Check that no sequence in the lake can be allocated again."""
    ((highest,),) = audit.sql(f"SELECT coalesce(max({SEQ}), 0) FROM {audit.name}")
    with audit.store.reading() as connection:
        next_sequence = flushes.next_sequence(connection)
    floor = audit.table.floor
    ok = highest <= floor < next_sequence
    return audit.check("allocation", ok, f"highest row {highest}, floor {floor}, next sequence {next_sequence}")


def check_row_ids(audit: DatasetAudit) -> VerifyCheck:
    """Check that the stored row ids match ids computed from the rows."""
    newest_first = sorted(metadata.iter_live_files(audit.metadata), key=lambda file: file.max_seq or 0, reverse=True)
    max_rows = None if audit.deep else _SAMPLE_ROWS
    chosen = newest_first if audit.deep else newest_first[:_SAMPLE_FILES]
    paths = [file.path for file in chosen]
    found = parquet.check_row_ids(audit.lake.spark.sparkContext, audit.dataset.name, paths, max_rows)
    what = "all" if audit.deep else "a sample of"
    detail = f"{what} {found.checked} rows checked: {found.missing} without a row id, {found.wrong} with a wrong one"
    return audit.check("row_ids", found.missing == 0 and found.wrong == 0, detail)


def check_duplicates(audit: DatasetAudit) -> VerifyCheck:
    """Check that no two rows share a dedupe key."""
    ((keyed, distinct),) = audit.sql(
        f"SELECT count(k), count(DISTINCT k) FROM (SELECT {dedupe_key_sql(audit.dataset)} k FROM {audit.name})"
    )
    return audit.check(
        "duplicates", keyed == distinct, f"{keyed} rows with a key, {keyed - distinct} of them duplicates"
    )


def check_high_water(audit: DatasetAudit) -> VerifyCheck:
    """Check that the state knows the newest row of each source and that the lake was not rolled back."""
    in_lake = {row[0]: row[1] for row in audit.sql(f"SELECT {SOURCE}, max({SEQ}) FROM {audit.name} GROUP BY {SOURCE}")}
    with audit.store.reading() as connection:
        in_state = flushes.load_high_water(connection, audit.dataset.name).get(audit.dataset.name, {})
    behind = sorted(source for source, seq in in_lake.items() if in_state.get(source, 0) < (seq or 0))
    gone = rolled_back_sources(audit)
    detail = f"{len(in_lake)} sources"
    if behind:
        detail += f"; the state lags behind the lake for {', '.join(behind)} (hyp verify --repair)"
    if gone:
        detail += (
            f"; the lake lacks recorded rows of {', '.join(gone)}: it was rolled back or restored without its state "
            "(restore both from one backup; to accept the loss: hyp verify --accept-rollback)"
        )
    return audit.check("high_water", not behind and not gone, detail)


def rolled_back_sources(audit: DatasetAudit) -> list[str]:
    """Return the sources with recorded rows above the floor of the lake."""
    with audit.store.reading() as connection:
        known = flushes.load_high_water(connection, audit.dataset.name).get(audit.dataset.name, {})
    return sorted(source for source, seq in known.items() if seq > audit.table.floor)


def check_flushes(audit: DatasetAudit) -> VerifyCheck:
    """Check that no flush is unfinished; count the rows that are not in the lake yet."""
    with audit.store.reading() as connection:
        left = flushes.unfinished_flushes(connection, audit.dataset.name)
    waiting = reader.summarize_spool(audit.home, audit.dataset.name)
    rejected = prepare.count_all_rejects(audit.home, audit.dataset.name)
    pending_settlements = PendingSettlements.read(audit.home, audit.dataset).rows
    detail = (
        f"{len(left)} unfinished; {waiting.segments} segments in the spool; {rejected} rejected rows kept; "
        f"{pending_settlements} settlements pending until the next compaction"
    )
    return audit.check("flushes", not left, detail)


def check_key_index(audit: DatasetAudit) -> VerifyCheck:
    """Check that the key index is readable and not ahead of the lake; with `deep`, that it has the same keys."""
    if audit.home.keys.exists() and not key_index.is_index_readable(audit.home.keys):
        return audit.check("key_index", False, "unreadable (hyp verify --repair)")
    with closing(KeyIndex(audit.home.keys)) as index:
        through = index.indexed_through(audit.dataset.name, audit.table.uuid)
        ahead = through is None or through > audit.table.floor
        missing = phantoms = 0
        if audit.deep and not ahead:
            lake = {
                key
                for result in dedupe.scan_table_keys(audit.home, audit.lake, audit.table, audit.dataset)
                for key, seq in unpack_keys(result.keys, result.seqs)
                if seq <= (through or 0)
            }
            missing = len(lake) - len(index.find(sorted(lake)))
            # All tables share the index, so its size is comparable only if there is one table. It also keeps keys of
            # rows that retention or a purge by time removed, so that they are not imported again, and alternative ids.
            is_only_table = len(metadata.list_tables(audit.home)) == 1
            keeps_removed_keys = (
                metadata.RETAINED_FROM_PROPERTY in audit.metadata.properties
                or tombstones.read_tombstones(audit.home).purge_filter.before
                or index.has_match_keys(audit.dataset.name)
                or index.list_lost()
            )
            phantoms = index.count() - len(lake) + missing if is_only_table and not keeps_removed_keys else 0
    detail = f"complete up to {through}, floor of the lake {audit.table.floor}"
    if audit.deep:
        detail += f"; {missing} keys missing, {phantoms} keys not in the lake"
    if ahead or missing or phantoms:
        detail += " (hyp verify --repair)"
    return audit.check("key_index", not (ahead or missing or phantoms), detail)


def check_files(audit: DatasetAudit) -> VerifyCheck:
    """Check that every data file of the table exists in full; count unreferenced files."""
    known = {file.path: file.bytes for file in metadata.iter_live_files(audit.metadata)}
    missing = [path for path, size in known.items() if not path.is_file() or path.stat().st_size != size]
    unreferenced, has_deletes = find_orphans(audit), metadata.has_delete_files(audit.metadata)
    detail = f"{len(known)} data files, {len(missing)} missing or truncated"
    if missing:
        detail += f": {missing[0]} (hyp maintain {audit.dataset.name} --rebuild)"
    if unreferenced:
        size = sum(path.stat().st_size for path in unreferenced)
        detail += f"; {len(unreferenced)} unreferenced files ({size} bytes)"
        if leftover := find_removable(audit):
            detail += f", {len(leftover)} of them from interrupted flushes (hyp verify --repair)"
    if has_deletes:
        command = f"hyp maintain {audit.dataset.name} --rebuild"
        detail += f"; another program wrote delete files, so nothing is delivered ({command})"
    return audit.check("files", not missing and not has_deletes, detail)


def find_orphans(audit: DatasetAudit) -> list[Path]:
    """Return data files that no snapshot references. The caller holds the table's lock, so none is being written."""
    table = audit.metadata
    manifests = {
        manifest.path: manifest
        for snapshot in table.snapshots
        # An interrupted expiry may have deleted the files of an old snapshot that is still listed.
        if snapshot.id == table.current_id or snapshot.manifest_list.is_file()
        for manifest in metadata.read_manifests(snapshot)
    }
    referenced = {
        file.path.resolve()
        for manifest in manifests.values()
        if manifest.path.is_file()
        for file in metadata.read_data_files(table, manifest)
    }
    return [path for path in audit.table.data_root.rglob("*.parquet") if path.resolve() not in referenced]


def find_removable(audit: DatasetAudit) -> list[Path]:
    """Return the orphans that are safe to delete: they were written by a flush that was discarded.

    Any other orphan may belong to a rolled-back snapshot and be needed again.
    """
    with audit.store.reading() as connection:
        discarded = flushes.discarded_flush_ids(connection, audit.dataset.name)
    return [path for path in find_orphans(audit) if path.name[:_FLUSH_ID_LENGTH] in discarded]


def check_deliveries(audit: DatasetAudit) -> VerifyCheck:
    """Check that no stream is ahead of the lake and that the chunks of every intent are within its range."""
    name = audit.dataset.name
    with audit.store.reading() as connection:
        newest = flushes.load_high_water(connection, name).get(name, {})
        known = [stream for stream in streams.list_streams(connection) if stream.key.dataset == name]
        planned = [streams.load_intent(connection, stream.key) for stream in known]
        letters = [letter for letter in dead_letters.list_letters(connection) if letter.key.dataset == name]
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


def check_purged(audit: DatasetAudit) -> VerifyCheck:
    """Check that no purged row is in the lake and that no purge is unfinished."""
    recorded = tombstones.read_tombstones(audit.home)
    left = tombstones.list_unfinished_purges(audit.home)
    closed, found = recorded.purge_filter, 0
    if closed.sessions and SESSION_COLUMN in audit.dataset.coercers:
        sessions = audit.sql(f"SELECT {SESSION_COLUMN}, count(*) FROM {audit.name} GROUP BY {SESSION_COLUMN}")
        hashed = ((hash_purged_value("session", str(session)), rows) for session, rows in sessions)
        found += sum(rows for value, rows in hashed if value in closed.sessions)
    if closed.before is not None:
        early = f"{audit.dataset.time_column} < TIMESTAMP '{closed.before}'"
        ((rows,),) = audit.sql(f"SELECT count(*) FROM {audit.name} WHERE {early}")
        found += rows
    if recorded.has_parts and audit.home.keys.exists() and key_index.is_index_readable(audit.home.keys):
        purged_keys = (
            tombstones.list_parts(audit.home) if audit.deep else tombstones.list_parts(audit.home, _SAMPLE_PARTS)
        )
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


def check_index(audit: DatasetAudit) -> VerifyCheck:
    """Check that the index has as many rows as the lake; with `deep`, that it has the same rows and counts."""
    if audit.dataset.name != DATASET:
        return audit.check("index", True, "this dataset is not indexed")
    if not audit.home.index.is_file():
        return audit.check("index", True, "there is no index yet; the next reading command builds it")
    if audit.deep:
        problems = comparison.compare_index(audit.home)
        detail = "; ".join(problems) or "the index equals the lake"
    else:
        refresh.refresh_index(audit.home)
        problems = comparison.compare_counts(audit.home)
        detail = "; ".join(problems) or "the index has as many rows as the lake"
    return audit.check("index", not problems, f"{detail} (hyp index rebuild)" if problems else detail)


def check_links(audit: DatasetAudit) -> VerifyCheck:
    """With `deep`, check that the link of every live row leads to a row, or to one that was removed on purpose."""
    if not audit.deep:
        return audit.check("links", True, "checked with --deep")
    found = links.find_stale_links(audit.home, audit.dataset, list(metadata.iter_live_files(audit.metadata)))
    removed = tombstones.read_tombstones(audit.home)
    may_be_gone = removed.has_parts or removed.purge_filter.sessions or removed.purge_filter.before
    unknown = set() if may_be_gone else set(found.unknown)
    if unknown:
        rows = reader.read_spooled_rows(audit.home, audit.dataset.name, unreadable={})
        unknown -= {row.get("message_id") for row in rows}
    detail = f"{len(found.renames)} links lead to replaced ids until the next compaction, {len(unknown)} lead to no row"
    if unknown:
        detail += " (hyp reproject, then hyp maintain)"
    return audit.check("links", not unknown, detail)


def check_transcripts(audit: DatasetAudit) -> VerifyCheck:
    """Check that no live row lacks what an imported transcript knows; with `deep`, in all transcripts."""
    found = find_unsettled_sources(audit)
    rows = sum(source.rows for source in found)
    detail = f"{rows} live rows could be completed from {len(found)} imported transcripts"
    if found:
        detail += " (hyp verify --repair, then hyp backfill)"
    return audit.check("transcripts", not found, detail)


def find_unsettled_sources(audit: DatasetAudit) -> list[UnsettledSource]:
    """Return the imported transcripts that could still improve live rows."""
    rules = audit.dataset.match_rules
    if rules is None or not key_index.is_index_readable(audit.home.keys):
        return []
    live = audit.sql(
        f"SELECT DISTINCT session_id, conversation_id FROM {audit.name}"
        f" WHERE {rules.may_be_live_sql}"
        f" AND (provider_type IS DISTINCT FROM '{GATEWAY_TYPE}' OR provider_subtype = 'history')"
    )
    if not live:
        return []
    # An index of an older version does not know which rows can be settled.
    dedupe.open_index(audit.home, audit.lake, audit.table, audit.dataset).close()
    with audit.store.reading() as connection:
        checkpoints = flushes.list_checkpoints(connection, audit.dataset.name, find_machine(audit.home))
    chosen = select_checkpoints(checkpoints, {value for row in live for value in row if value})
    some = chosen if audit.deep else chosen[:_SAMPLE_TRANSCRIPTS]
    return find_unsettled(audit.home, audit.config, audit.dataset, audit.table.gateway_id or "", some)


ALL_CHECKS = (
    check_files,
    check_sequences,
    check_allocation,
    check_row_ids,
    check_duplicates,
    check_high_water,
    check_flushes,
    check_key_index,
    check_deliveries,
    check_purged,
    check_index,
    check_links,
    check_transcripts,
)


def run_verify(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    spark = context.spark
    found: list[VerifyCheck] = []
    opened = open_home(context.home)
    lake = SparkLake(context.home, spark, opened.identity, context.check_cancelled)
    try:
        for dataset in list_stored_datasets(context.home):
            # Hold the commit lock, so that the table does not change between two checks.
            keep = maintenance_lock(dataset.name, context.check_cancelled) if args["repair"] else nullcontext()
            with keep, commit_lock(dataset.name, context.check_cancelled):
                try:
                    fsync.require_intact(context.home, dataset.name)
                except LakeError as error:
                    command = f" ({error.repair[0]})" if error.repair else ""
                    found.append(VerifyCheck("table", dataset.name, False, f"{error.message}{command}"))
                    continue
                table = lake.table(dataset) if args["repair"] else SparkTable(spark, dataset)
                audit = DatasetAudit(
                    context.home, opened.store, lake, table, dataset, bool(args["deep"]), context.config
                )
                if args["accept_rollback"]:
                    _note(context, audit, accept_rollback(audit))
                if args["repair"]:
                    _note(context, audit, repair_dataset(audit))
                for index, check in enumerate(ALL_CHECKS):
                    context.check_cancelled()
                    context.progress(f"checking {dataset.name}", index, len(ALL_CHECKS))
                    found.append(_run_check(check, audit))
        present = {entry.name for entry in metadata.list_tables(context.home)}
        for name, last in read_recorded_floors(opened.store).items():
            if name not in present:
                detail = f"rows up to {last} were recorded, but the table is not in the catalog"
                detail += f" (hyp maintain {name} --rebuild)"
                found.append(VerifyCheck("table", name, False, detail))
    finally:
        opened.store.close()
    return {"ok": all(check.ok for check in found), "checks": [asdict(check) for check in found]}


def _run_check(check: Callable[[DatasetAudit], VerifyCheck], audit: DatasetAudit) -> VerifyCheck:
    """Run a check. If a damaged file stops it, it has failed, and the other checks still run."""
    try:
        return check(audit)
    except (Py4JJavaError, PySparkException, OSError, ValueError, sqlite3.Error) as error:
        message = str(error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error)
        first = (message.splitlines() or [type(error).__name__])[0][:300]
        return VerifyCheck(check.__name__.removeprefix("check_"), audit.dataset.name, False, f"could not run: {first}")


def _note(context: JobContext, audit: DatasetAudit, repairs: Iterable[str]) -> None:
    for description in repairs:
        context.note(f"{audit.dataset.name}: {description}")


def repair_dataset(audit: DatasetAudit) -> Iterator[str]:
    """Repair one dataset, and yield a description of each repair."""
    finish_interrupted_flushes(audit.home, audit.store, audit.table, audit.dataset.name)
    if not metadata.has_delete_files(audit.metadata) and (
        numbered := number_rows(audit.home, audit.store, audit.lake, audit.table, audit.dataset)
    ):
        yield f"gave {format_count(numbered, 'row')} without a sequence a new one"
    if not check_key_index(audit).ok:
        key_index.remove_index(audit.home.keys)
        yield "rebuilt the key index"
    dedupe.open_index(audit.home, audit.lake, audit.table, audit.dataset).close()
    if not (check_high_water(audit).ok and check_allocation(audit).ok):
        with audit.store.transaction() as connection:
            lake, held = recovery.summarize_lake(audit.home), mirror.read_mirror(audit.home.mirror)
            recovery.raise_state_to(connection, lake, held)
        mirror.write_mirror(audit.home.mirror, audit.store)
        yield "advanced the state to the lake"
    if not check_index(audit).ok:
        drop_index(audit.home)
        yield "removed the index; the next reading command builds it again"
    leftover = find_removable(audit)
    for path in leftover:
        path.unlink(missing_ok=True)
    if leftover:
        yield f"deleted {len(leftover)} files of discarded flushes"
    if unsettled := find_unsettled_sources(replace(audit, deep=True)):
        with audit.store.transaction() as connection:
            for source in unsettled:
                flushes.forget_checkpoint(connection, source.checkpoint)
        rows = format_count(sum(source.rows for source in unsettled), "live row")
        transcripts = format_count(len(unsettled), "transcript")
        yield f"the next import reads {transcripts} again and completes {rows} (hyp backfill)"


def accept_rollback(audit: DatasetAudit) -> Iterator[str]:
    """Lower the state to the lake, giving up recorded rows that the lake no longer has."""
    if gone := rolled_back_sources(audit):
        with audit.store.transaction() as connection:
            flushes.lower_high_water(connection, audit.dataset.name, audit.table.floor)
            streams.lower_watermarks(connection, audit.dataset.name, audit.table.floor)
        mirror.write_mirror(audit.home.mirror, audit.store)
        yield f"gave up recorded rows of {', '.join(gone)} above sequence {audit.table.floor}"
