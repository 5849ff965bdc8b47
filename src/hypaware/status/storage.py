"""The rows of a home in a status: the lake, retention, the spool, the imported history, and what privacy excludes.

The lake's numbers come from the tables' metadata; no row is read. Every live data file is checked by name and size,
those of the newest commit by their footer as well. If a table changes during the check, its metadata pointer has
changed too, and the check is repeated. Most of the time no retention is due, which config, state and file statistics
show. Only if it is due, the retention plan is made, by the same code that carries it out.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
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
from hypaware.maintain import retention_plan
from hypaware.model import datasets
from hypaware.privacy import folder_memory, ignored_sessions
from hypaware.spool import segments
from hypaware.state import flushes
from hypaware.state.location import open_store
from hypaware.state.snapshot import StateSnapshot, read_snapshot
from hypaware.status.diagnostics import Diagnostic, PartStatus, StatusInput, error, file_size, info, warning
from hypaware.text import summarize_error

_ATTEMPTS = 3
# Commits may take this long, and clocks are adjusted a little all the time.
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
            # A moved or copied home, whose files may belong to another one. With a readable state, the home itself
            # has a diagnostic.
            if inputs.state.identity is None:
                message = f"the table {entry.name} points at files outside of {inputs.home.root}"
                diagnostics.append(warning("lake_elsewhere", f"{message}: the next command updates it", "hyp verify"))
            continue
        try:
            tables[entry.name] = _read_table(inputs.home, entry)
        except _DamagedTable as damage:
            message = f"the table {entry.name} is damaged ({damage}): restore a backup, or rebuild it from the files"
            repair = f"hyp maintain {entry.name} --rebuild"
            diagnostics.append(error("lake_damaged", f"{message} that can be read", repair))
    diagnostics += _floor_diagnostics(inputs)
    diagnostics += _foreign_change_diagnostics(tables)
    times = [snapshot.at for table in tables.values() for snapshot in table.metadata.snapshots]
    if times and (latest := max(times)) > inputs.now.timestamp() + MAX_CLOCK_STEP_BACK:
        clock, then = (f"{at:%Y-%m-%d %H:%M}" for at in (inputs.now, datetime.fromtimestamp(latest, UTC)))
        message = f"this machine's clock shows {clock} (UTC), but rows were committed at {then}"
        message += ": the clock is wrong now, or was wrong then. The next commit gets the time that the clock shows"
        diagnostics.append(warning("clock_went_back", message, "date -u"))
    diagnostics += _purge_diagnostics(inputs.home)
    diagnostics += _key_index_diagnostics(inputs.home)
    return PartStatus(LakeStatus(tables, list(_rows_by_source(inputs, tables))), tuple(diagnostics))


def _foreign_change_diagnostics(tables: dict[str, TableStatus]) -> Iterator[Diagnostic]:
    """Yield what another program did to a table that keeps rows from being delivered."""
    for name, table in tables.items():
        if rows := sum(file.rows - file.sequenced for file in table.files):
            message = f"{text.format_count(rows, 'row')} of {name} that another program added without a sequence"
            message += f" {'is' if rows == 1 else 'are'} not delivered"
            yield warning("rows_without_sequence", message, "hyp verify --repair")
        with suppress(OSError):
            if metadata.has_delete_files(table.metadata):
                message = f"another program has deleted rows of {name} by delete files: nothing of it is delivered"
                yield warning("delete_files", message, f"hyp maintain {name} --rebuild")


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
        message = f"the key index {home.keys} cannot be read: {summarize_error(exception)}"
        yield error("key_index_unreadable", message, "hyp verify --repair")


def inspect_retention(inputs: StatusInput, lake: LakeStatus) -> PartStatus[dict[str, Any]]:
    settings, state = inputs.config.retention, inputs.state
    # Do not plan without readable tables: the tables may belong to another home.
    can_plan = state.condition == "current" and lake.tables
    if can_plan and (state.holds or state.drops or any(_is_due(inputs, lake, name) for name in lake.tables)):
        with closing(open_store(inputs.home, read_only=True)) as store:
            found = retention_plan.retention_status(inputs.home, inputs.config, store, inputs.now)
    else:
        found = _list_datasets(inputs, lake)
    facts = {
        "default_days": settings.default_days,
        "wait_for_sinks": settings.wait_for_sinks,
        "max_hold_days": settings.max_hold_days,
        "datasets": found,
    }
    return PartStatus(facts, tuple(each for dataset in found for each in _retention_diagnostics(inputs, dataset)))


def _is_due(inputs: StatusInput, lake: LakeStatus, name: str) -> bool:
    with suppress(HypError):
        first = retention_plan.first_day_kept(inputs.config, datasets.get(name), inputs.now)
        return first is not None and any(file.day and file.day < first for file in lake.tables[name].files)
    return False


def _list_datasets(inputs: StatusInput, lake: LakeStatus) -> list[dict[str, Any]]:
    found = []
    for name in sorted(lake.tables):
        with suppress(HypError):
            dataset = datasets.get(name)
            first = retention_plan.first_day_kept(inputs.config, dataset, inputs.now)
            found.append(
                {
                    "dataset": name,
                    "days": retention_plan.days_kept(inputs.config, dataset),
                    "first_day_kept": first.isoformat() if first else None,
                    "rows_due": 0,
                    "rows_held": 0,
                    "rows_without_time": sum(file.rows for file in lake.tables[name].files if first and not file.day),
                    "held": [],
                    "warnings": [],
                    "dropped_undelivered": [],
                }
            )
    return found


def _retention_diagnostics(inputs: StatusInput, each: dict[str, Any]) -> Iterator[Diagnostic]:
    for message in each["warnings"]:
        yield warning("retention_warning", str(message).removeprefix("warning: "), "hyp maintain --dry-run")
    if each["rows_held"] and not each["warnings"]:
        sinks = sorted({sink for held in each["held"] for sink in held["sinks"]})
        have, are, them = ("has", "is", "it") if each["rows_held"] == 1 else ("have", "are", "them")
        yield info(
            "retention_holds",
            f"{text.format_count(each['rows_held'], 'row')} of {each['dataset']} {have} reached the end of retention "
            f"and {are} kept until {', '.join(sinks)} {'receive' if len(sinks) != 1 else 'receives'} {them}",
            f"hyp export {' '.join(sinks)}",
        )
    for drop in each["dropped_undelivered"][-1:]:
        at = text.parse_time(drop["at"])
        report = warning if at and inputs.now - at < _RECENT else info
        yield report(
            "dropped_undelivered",
            f"retention removed {text.format_count(drop['rows'], 'row')} of {each['dataset']} ({drop['source']}, "
            f"{drop['day']}) {text.format_ago(drop['at'], inputs.now)}, before {', '.join(drop['sinks'])} received "
            "them: they had been held for retention.max_hold_days",
            "hyp config set retention.max_hold_days 365",
        )


@dataclass(frozen=True)
class SpoolStatus:
    segments: int = 0
    rows: int = 0
    bytes: int = 0
    oldest_at: str | None = None
    rejected_rows: int = 0
    datasets: list[dict[str, Any]] = field(default_factory=list)


def inspect_spool(inputs: StatusInput) -> PartStatus[SpoolStatus]:
    facts = count_spooled(inputs.home, inputs.state)
    diagnostics = [*_flush_diagnostics(inputs, facts), *_unreadable_segments(inputs.home)]
    rejected = 0
    for dataset in segments.list_spooled_datasets(inputs.home):
        folder = segments.spool_folder(inputs.home, dataset).rejected
        files = [(path.stat().st_mtime, path) for path in folder.glob("*.jsonl")]
        if files:
            rows = sum(segments.count_lines(path) for _, path in files)
            rejected += rows
            at, newest = max(files)
            written = datetime.fromtimestamp(at, UTC)
            report = warning if inputs.now - written < _RECENT else info
            when = text.format_ago(written.isoformat(), inputs.now)
            message = f"{text.format_count(rows, 'row')} of {dataset} could not be stored, the last {when}"
            command = f"head {shlex.quote(str(newest))}"
            diagnostics.append(report("rows_refused", f"{message}; see the reasons in {folder}", command))
    return PartStatus(replace(facts, rejected_rows=rejected), tuple(diagnostics))


def count_spooled(home: Home, state: StateSnapshot | None = None) -> SpoolStatus:
    """Count the rows in the spool, without the rejected ones."""
    state = state or read_snapshot(home)
    per_dataset = [_spooled_rows(home, state, dataset) for dataset in segments.list_spooled_datasets(home)]
    return SpoolStatus(
        segments=sum(each["segments"] for each in per_dataset),
        rows=sum(each["rows"] for each in per_dataset),
        bytes=sum(each["bytes"] for each in per_dataset),
        oldest_at=min((each["oldest_at"] for each in per_dataset if each["oldest_at"]), default=None),
        datasets=[each for each in per_dataset if each["segments"]],
    )


def _spooled_rows(home: Home, state: StateSnapshot, dataset: str) -> dict[str, Any]:
    """Count the rows of one dataset that are not in the lake yet.

    Producers and flushes run at the same time, so active files are listed before sealed ones: a segment that is sealed
    in between counts once, as sealed. Committed segments whose files still exist do not count.
    """
    folder = segments.spool_folder(home, dataset)
    active = {}
    for path in segments.list_active_files(folder):
        try:
            size = path.stat().st_size
            active[path.stem] = (0, size)
            active[path.stem] = (segments.count_lines(path), size)
        except FileNotFoundError:
            active.pop(path.stem, None)  # it has been sealed in the meantime
        except OSError:
            continue  # its rows cannot be counted
    sealed = segments.list_sealed_segments(folder)
    committed: set[str] = set()
    if sealed and state.high_water:
        with open_store(home, read_only=True).reading() as connection:
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


def _unreadable_segments(home: Home) -> Iterator[Diagnostic]:
    """Yield the segments that cannot be opened. Damaged lines are found by the flush, which keeps them as rejects."""
    for dataset in segments.list_spooled_datasets(home):
        folder = segments.spool_folder(home, dataset)
        problems: dict[Path, OSError] = {}
        for path in segments.list_files(folder):
            try:
                with path.open("rb") as file:
                    file.read(1)
            except FileNotFoundError:
                continue  # committed in the meantime
            except OSError as problem:
                problems[path] = problem
        if problems:
            failure = segments.SegmentUnreadable(dataset, problems)
            yield warning(failure.kind, failure.message, *failure.repair)


def _flush_diagnostics(inputs: StatusInput, facts: SpoolStatus) -> Iterator[Diagnostic]:
    oldest = text.parse_time(facts.oldest_at)
    if oldest is not None and inputs.now - oldest >= _OVERDUE:
        rows, when = text.format_count(facts.rows, "row"), text.format_ago(facts.oldest_at, inputs.now)
        yield warning("spool_waiting", f"{rows} in the spool not committed yet, the oldest from {when}", "hyp flush")
    for each in inputs.state.failing:
        count, times = text.format_count(each["segments"], "segment"), text.format_count(each["attempts"], "attempt")
        message = f"{count} of {each['dataset']} could not be committed after {times}"
        yield warning("segments_failing", message, "hyp flush")
    for flush in inputs.state.unfinished:
        when, since = text.format_ago(flush["reserved_at"], inputs.now), text.parse_time(flush["reserved_at"])
        report = warning if since is None or inputs.now - since > _OVERDUE else info
        message = f"a flush of {flush['dataset']}, started {when}, is running or was interrupted"
        yield report("flush_unfinished", f"{message}; the next flush completes it", "hyp flush")


def list_history(inputs: StatusInput) -> list[dict[str, Any]]:
    """Return the number of imported files and bytes of each client."""
    imports = inputs.daemon_part("catch_up")
    return [
        {
            "source": each["provider"],
            "kind": "history",
            **{name: each[name] for name in ("dataset", "files", "bytes")},
            **{name: imports.get(name) for name in ("last_run", "last_status", "next_look")},
        }
        for each in inputs.state.history
    ]


def inspect_privacy(inputs: StatusInput) -> PartStatus[dict[str, Any]]:
    folders = [path for path, level in inputs.config.privacy.folders.items() if level != "full"]
    facts: dict[str, Any] = {"ignored_sessions": None, "private_folders": len(folders), "private_folders_gone": None}
    diagnostics: list[Diagnostic] = []
    for name, read in (
        ("ignored_sessions", ignored_sessions.read_ignored_sessions),
        ("private_folders_gone", folder_memory.list_missing_folders),
    ):
        try:
            facts[name] = len(read(inputs.home))
        except ignored_sessions.PrivacyFileUnreadable as unreadable:
            diagnostics.append(error(unreadable.kind, unreadable.message, *unreadable.repair))
    nouns = {"ignored_sessions": "session", "private_folders": "folder", "private_folders_gone": "deleted folder"}
    parts = [text.format_count(facts[name], noun) for name, noun in nouns.items() if facts[name]]
    if parts:
        listed = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
        message = f"not recorded or not exported, as you asked: {listed}"
        diagnostics.append(info("left_out", message, "hyp session status"))
    return PartStatus(facts, tuple(diagnostics))
