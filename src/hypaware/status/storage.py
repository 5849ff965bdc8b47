"""The rows of a home in a status: the lake, the spool, the imported history, and what privacy settings exclude.

The lake's numbers come from the tables' metadata; no row is read. Every live data file is checked by name and size,
those of the newest commit by their footer as well. If a table changes during the check, its metadata pointer has
changed too, and the check is repeated.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from hypaware import text
from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.home.sqlite_readonly import open_readonly
from hypaware.iceberg import fsync, metadata
from hypaware.iceberg.metadata import CatalogEntry, DataFile, TableMetadata
from hypaware.lake import health, tombstones
from hypaware.privacy import folder_memory, ignored_sessions
from hypaware.spool import segments
from hypaware.state import flushes, snapshot
from hypaware.state.snapshot import StateSnapshot
from hypaware.state.store import StateStore
from hypaware.status.diagnostics import Diagnostic, PartStatus, StatusInput, error, file_size, info, warning
from hypaware.text import summarize_error

_ATTEMPTS = 3
# Iceberg rejects a commit that is older than the previous one by more than this.
MAX_CLOCK_STEP_BACK = 60.0
# A running daemon commits rows long before this.
_OVERDUE = timedelta(hours=1)
_RECENT = timedelta(days=7)


@dataclass(frozen=True)
class TableStatus:
    metadata: TableMetadata
    files: tuple[DataFile, ...]


@dataclass(frozen=True)
class LakeStatus:
    tables: dict[str, TableStatus] = field(default_factory=dict)
    """The tables that could be read."""
    sources: list[dict[str, Any]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(each["bytes"] for each in self.sources)


def inspect_lake(inputs: StatusInput) -> PartStatus[LakeStatus]:
    tables: dict[str, TableStatus] = {}
    diagnostics: list[Diagnostic] = []
    for entry in metadata.list_tables(inputs.home):
        if not entry.metadata.is_relative_to(inputs.home.root):
            # If the state is readable, a moved home has its own diagnostic.
            diagnostics += [_location_diagnostic(inputs.home, entry)] if inputs.state.identity is None else []
            continue
        try:
            tables[entry.name] = _read_table(inputs.home, entry)
        except _DamagedTable as damage:
            diagnostics.append(_damage_diagnostic(entry.name, damage))
    diagnostics += _floor_diagnostics(inputs)
    diagnostics += _clock_diagnostics(tables, inputs.now)
    diagnostics += _purge_diagnostics(inputs.home)
    diagnostics += _key_index_diagnostics(inputs.home)
    return PartStatus(LakeStatus(tables, list(_rows_by_source(inputs, tables))), tuple(diagnostics))


class _DamagedTable(Exception):
    pass


def _read_table(home: Home, entry: CatalogEntry) -> TableStatus:
    for _ in range(_ATTEMPTS):
        damage = None
        try:
            known = metadata.read_metadata(entry.metadata)
            table = TableStatus(known, tuple(metadata.iter_live_files(known)))
            if not (damage := _file_damage(table)):
                return table
        except Exception as exception:
            # Truncated JSON and Avro raise many kinds of exceptions.
            damage = f"{summarize_error(exception)} ({type(exception).__name__})"
        current = metadata.find_table(home, entry.name)
        if current is None or current == entry:
            break
        entry = current
    raise _DamagedTable(damage)


def _file_damage(table: TableStatus) -> str | None:
    for file in table.files:
        if file.snapshot_id == table.metadata.current_id:
            if reason := fsync.find_file_damage(file.path, file.bytes):
                return reason
        elif (size := file_size(file.path)) != file.bytes:
            return f"{file.path} is missing" if size is None else f"{file.path} has {size} bytes, not {file.bytes}"
    return None


def _rows_by_source(inputs: StatusInput, tables: dict[str, TableStatus]) -> Iterator[dict[str, Any]]:
    for dataset in sorted(inputs.state.high_water.keys() | tables.keys()):
        files = tables[dataset].files if dataset in tables else ()
        recorded = inputs.state.high_water.get(dataset, {})
        for source in sorted({file.source for file in files} | recorded.keys()):
            of_source = [file for file in files if file.source == source]
            days = [file.day for file in of_source if isinstance(file.day, date)]
            yield {
                "dataset": dataset,
                "source": source,
                "rows": sum(file.rows for file in of_source),
                "bytes": sum(file.bytes for file in of_source),
                "files": len(of_source),
                "oldest": min(days).isoformat() if days else None,
                "newest": max(days).isoformat() if days else None,
                # Without a state, the files show the highest sequence that they still hold.
                "high_water": recorded.get(source) or max((file.max_seq or 0 for file in of_source), default=0),
            }


def _damage_diagnostic(table: str, reason: _DamagedTable) -> Diagnostic:
    return error(
        "lake_damaged",
        f"the table {table} is damaged ({reason}): restore a backup, or rebuild it from the files that can be read",
        f"hyp maintain {table} --rebuild",
    )


def _location_diagnostic(home: Home, entry: CatalogEntry) -> Diagnostic:
    """Report a table of a moved or copied home. Its files may belong to another home."""
    return warning(
        "lake_elsewhere",
        f"the table {entry.name} points at files outside of {home.root}: the next command updates it",
        "hyp verify",
    )


def _floor_diagnostics(inputs: StatusInput) -> Iterator[Diagnostic]:
    """Check that each table still holds the rows that the state recorded."""
    for dataset, by_source in inputs.state.high_water.items():
        entry = metadata.find_table(inputs.home, dataset)
        if entry is not None and not entry.metadata.is_relative_to(inputs.home.root):
            continue
        try:
            health.check_floor(inputs.home, dataset, max(by_source.values(), default=0))
        except HypError as rolled_back:
            yield error("lake_rolled_back", rolled_back.message, *rolled_back.repair)
        except Exception:
            continue  # a table that cannot be read has its own diagnostic


def _clock_diagnostics(tables: dict[str, TableStatus], now: datetime) -> Iterator[Diagnostic]:
    times = [snapshot.at for table in tables.values() for snapshot in table.metadata.snapshots]
    if times and (latest := max(times)) > now.timestamp() + MAX_CLOCK_STEP_BACK:
        then = datetime.fromtimestamp(latest, UTC)
        yield error(
            "clock_went_back",
            f"this machine's clock shows {now:%Y-%m-%d %H:%M} (UTC), but rows were committed at "
            f"{then:%Y-%m-%d %H:%M}: nothing can be committed before that time",
            "date -u",
        )


def _purge_diagnostics(home: Home) -> Iterator[Diagnostic]:
    try:
        for command in tombstones.list_unfinished_purges(home):
            yield warning("purge_unfinished", "a purge was started and not finished: its rows still exist", command)
        closed = tombstones.read_tombstones(home).purge_filter
    except (HypError, OSError) as exception:
        yield error("tombstones_unusable", summarize_error(exception), "hyp restore --help")
        return
    if closed.sessions:
        sessions = text.format_count(len(closed.sessions), "session was", "sessions were")
        yield info("purged", f"{sessions} purged: rows of a purged session are not recorded again", "hyp purge --help")


def _key_index_diagnostics(home: Home) -> Iterator[Diagnostic]:
    if not home.keys.exists():
        return
    try:
        with open_readonly(home.keys) as db:
            db.execute("SELECT through FROM applied").fetchall()
            db.execute("SELECT 1 FROM keys LIMIT 1").fetchone()
    except Exception as exception:
        yield error(
            "key_index_unreadable",
            f"the key index {home.keys} cannot be read: {summarize_error(exception)}",
            "hyp verify --repair",
        )


@dataclass(frozen=True)
class SpoolCount:
    segments: int
    rows: int


@dataclass(frozen=True)
class SpoolStatus:
    segments: int = 0
    rows: int = 0
    bytes: int = 0
    oldest_at: str | None = None
    rejected_rows: int = 0
    datasets: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def inspect_spool(inputs: StatusInput) -> PartStatus[SpoolStatus]:
    datasets = segments.list_spooled_datasets(inputs.home)
    per_dataset = [_spooled_rows(inputs.home, inputs.state, dataset) for dataset in datasets]
    rejects = {dataset: found for dataset in datasets if (found := _find_rejects(inputs.home, dataset))}
    facts = SpoolStatus(
        segments=sum(each["segments"] for each in per_dataset),
        rows=sum(each["rows"] for each in per_dataset),
        bytes=sum(each["bytes"] for each in per_dataset),
        oldest_at=min((each["oldest_at"] for each in per_dataset if each["oldest_at"]), default=None),
        rejected_rows=sum(rows for rows, *_ in rejects.values()),
        datasets=[each for each in per_dataset if each["segments"]],
    )
    diagnostics = [
        *_overdue_diagnostics(inputs, facts),
        *_flush_diagnostics(inputs),
        *_reject_diagnostics(inputs, rejects),
    ]
    return PartStatus(facts, tuple(diagnostics))


def count_spooled(home: Home) -> SpoolCount:
    """Count the rows in the spool, without the rest of a snapshot."""
    state = snapshot.read_snapshot(home)
    per_dataset = [_spooled_rows(home, state, dataset) for dataset in segments.list_spooled_datasets(home)]
    return SpoolCount(sum(each["segments"] for each in per_dataset), sum(each["rows"] for each in per_dataset))


def _spooled_rows(home: Home, state: StateSnapshot, dataset: str) -> dict[str, Any]:
    """Count the rows of one dataset that are not in the lake yet.

    Producers and flushes run at the same time, so active files are listed before sealed ones: a segment that is sealed
    in between counts once, as sealed. Committed segments whose files still exist do not count.
    """
    folder = segments.spool_folder(home, dataset)
    active = {path.stem: _measure_active(path) for path in segments.list_active_files(folder)}
    sealed = segments.list_sealed_segments(folder)
    committed: set[str] = set()
    if sealed and state.high_water:
        with StateStore(home.state, read_only=True).reading() as connection:
            committed = flushes.committed_segments(connection, dataset, (segment.name for segment in sealed))
    names = {segment.name.partition(".")[0] for segment in sealed}
    spooled = {segment.name: (segment.rows, segment.bytes) for segment in sealed if segment.name not in committed}
    # Active files are sealed within about a second, unless their producer died.
    spooled |= {name: measured for name, measured in active.items() if measured[1] and name not in names}
    created = min(spooled, default="").partition("-")[0]
    oldest = datetime.fromtimestamp(int(created) / 1000, UTC) if created.isdecimal() else None
    return {
        "dataset": dataset,
        "segments": len(spooled),
        "rows": sum(rows for rows, _ in spooled.values()),
        "bytes": sum(size for _, size in spooled.values()),
        "oldest_at": oldest.isoformat(timespec="seconds").replace("+00:00", "Z") if oldest else None,
    }


def _measure_active(path: Path) -> tuple[int, int]:
    """Return the rows and bytes of an active file, or zeros if it has been sealed in the meantime."""
    try:
        return segments.count_lines(path), path.stat().st_size
    except FileNotFoundError:
        return 0, 0


def _overdue_diagnostics(inputs: StatusInput, facts: SpoolStatus) -> Iterator[Diagnostic]:
    oldest = text.parse_time(facts.oldest_at)
    if oldest is None or inputs.now - oldest < _OVERDUE:
        return
    rows, when = text.format_count(facts.rows, "row"), text.format_ago(facts.oldest_at, inputs.now)
    yield warning("spool_waiting", f"{rows} in the spool not committed yet, the oldest from {when}", "hyp flush")


def _flush_diagnostics(inputs: StatusInput) -> Iterator[Diagnostic]:
    for each in inputs.state.failing:
        count, times = text.format_count(each.segments, "segment"), text.format_count(each.attempts, "attempt")
        yield warning(
            "segments_failing", f"{count} of {each.dataset} could not be committed after {times}", "hyp flush"
        )
    for flush in inputs.state.unfinished:
        when = text.format_ago(flush.reserved_at, inputs.now)
        since = text.parse_time(flush.reserved_at)
        report = warning if since is None or inputs.now - since > _OVERDUE else info
        yield report(
            "flush_unfinished",
            f"a flush of {flush.dataset}, started {when}, is running or was interrupted; the next flush completes it",
            "hyp flush",
        )


def _find_rejects(home: Home, dataset: str) -> tuple[int, Path, datetime] | None:
    """Return the number of rejects, the newest file of them, and when it was written."""
    files = [(path.stat().st_mtime, path) for path in segments.spool_folder(home, dataset).rejected.glob("*.jsonl")]
    if not files:
        return None
    at, newest = max(files)
    return sum(segments.count_lines(path) for _, path in files), newest, datetime.fromtimestamp(at, UTC)


def _reject_diagnostics(inputs: StatusInput, rejects: dict[str, tuple[int, Path, datetime]]) -> Iterator[Diagnostic]:
    for dataset, (rows, path, at) in rejects.items():
        report = warning if inputs.now - at < _RECENT else info
        when = text.format_ago(at.isoformat(), inputs.now)
        yield report(
            "rows_refused",
            f"{text.format_count(rows, 'row')} of {dataset} could not be stored, the last {when}; see the reasons in "
            f"{path.parent}",
            f"head {shlex.quote(str(path))}",
        )


def list_history(inputs: StatusInput) -> list[dict[str, Any]]:
    """Return the number of imported files and bytes of each client."""
    imports = inputs.daemon_part("catch_up")
    return [
        {
            "source": each.provider,
            "kind": "history",
            "dataset": each.dataset,
            "files": each.files,
            "bytes": each.bytes,
            "last_run": imports.get("last_run"),
            "last_status": imports.get("last_status"),
            "next_look": imports.get("next_look"),
        }
        for each in inputs.state.history
    ]


def inspect_privacy(inputs: StatusInput) -> PartStatus[dict[str, Any]]:
    folders = [path for path, level in inputs.config.privacy.folders.items() if level != "full"]
    facts: dict[str, Any] = {"ignored_sessions": None, "private_folders": len(folders), "private_folders_gone": None}
    diagnostics: list[Diagnostic] = []
    try:
        facts["ignored_sessions"] = len(ignored_sessions.read_ignored_sessions(inputs.home))
    except ignored_sessions.PrivacyFileUnreadable as unreadable:
        diagnostics.append(error(unreadable.kind, unreadable.message, *unreadable.repair))
    try:
        facts["private_folders_gone"] = len(folder_memory.list_missing_folders(inputs.home))
    except ignored_sessions.PrivacyFileUnreadable as unreadable:
        diagnostics.append(error(unreadable.kind, unreadable.message, *unreadable.repair))
    return PartStatus(facts, (*diagnostics, *_exclusion_diagnostics(facts)))


def _exclusion_diagnostics(facts: dict[str, Any]) -> list[Diagnostic]:
    nouns = {
        "ignored_sessions": ("session", "sessions"),
        "private_folders": ("folder", "folders"),
        "private_folders_gone": ("deleted folder", "deleted folders"),
    }
    parts = [text.format_count(facts[name], *noun) for name, noun in nouns.items() if facts[name]]
    if not parts:
        return []
    listed = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
    return [info("left_out", f"not recorded or not exported, as you asked: {listed}", "hyp session status")]
