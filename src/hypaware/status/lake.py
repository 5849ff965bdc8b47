"""The recorded rows: rows, bytes, files and days of each (dataset, source), from the tables' metadata.

Every live data file is checked by name and size, those of the newest commit by their footer as well; no row is read. If
a table changes during the check, its metadata pointer has changed too, and the check is repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.lake import metadata, secure, standing, tombstones
from hypaware.lake.metadata import DataFile, Metadata, TableEntry
from hypaware.looking import look_into
from hypaware.status import words
from hypaware.status.diagnostic import Diagnostic, Found, error, info, reason_of, warning
from hypaware.status.view import View

_ATTEMPTS = 3
# Iceberg rejects a commit that is older than the previous one by more than this.
BACK_SECONDS = 60.0


@dataclass(frozen=True)
class Table:
    metadata: Metadata
    files: tuple[DataFile, ...]


@dataclass(frozen=True)
class Lake:
    tables: dict[str, Table] = field(default_factory=dict)
    """The tables that could be read."""
    sources: list[dict[str, Any]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(each["bytes"] for each in self.sources)


def look(view: View) -> Found[Lake]:
    tables: dict[str, Table] = {}
    diagnostics: list[Diagnostic] = []
    for entry in metadata.entries(view.home):
        if not entry.metadata.is_relative_to(view.home.root):
            # If the state is readable, a moved home has its own diagnostic.
            diagnostics += [_elsewhere(view.home, entry)] if view.state.identity is None else []
            continue
        try:
            tables[entry.name] = _read_table(view.home, entry)
        except _Damaged as damage:
            diagnostics.append(_damaged(entry.name, damage))
    diagnostics += _floor_diagnostics(view)
    diagnostics += _clock_diagnostics(tables, view.now)
    diagnostics += _purge_diagnostics(view.home)
    diagnostics += _key_index_diagnostics(view.home)
    return Found(Lake(tables, list(_by_source(view, tables))), tuple(diagnostics))


class _Damaged(Exception):
    pass


def _read_table(home: Home, entry: TableEntry) -> Table:
    for _ in range(_ATTEMPTS):
        damage = None
        try:
            known = metadata.read(entry.metadata)
            table = Table(known, tuple(metadata.live_files(known)))
            if not (damage := _file_damage(table)):
                return table
        except Exception as exception:
            # Truncated JSON and Avro raise many kinds of exceptions.
            damage = f"{reason_of(exception)} ({type(exception).__name__})"
        current = metadata.entry(home, entry.name)
        if current is None or current == entry:
            break
        entry = current
    raise _Damaged(damage)


def _file_damage(table: Table) -> str | None:
    for file in table.files:
        if file.snapshot_id == table.metadata.current_id:
            if reason := secure.file_damage(file.path, file.bytes):
                return reason
        elif (size := _size(file.path)) != file.bytes:
            return f"{file.path} is missing" if size is None else f"{file.path} has {size} bytes, not {file.bytes}"
    return None


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _by_source(view: View, tables: dict[str, Table]) -> Iterator[dict[str, Any]]:
    for dataset in sorted(view.state.high_water.keys() | tables.keys()):
        files = tables[dataset].files if dataset in tables else ()
        recorded = view.state.high_water.get(dataset, {})
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


def _damaged(table: str, reason: _Damaged) -> Diagnostic:
    return error(
        "lake_damaged",
        f"the table {table} is damaged ({reason}): restore a backup, or rebuild it from the files that can be read",
        f"hyp maintain {table} --rebuild",
    )


def _elsewhere(home: Home, entry: TableEntry) -> Diagnostic:
    """Report a table of a moved or copied home. Its files may belong to another home."""
    return warning(
        "lake_elsewhere",
        f"the table {entry.name} points at files outside of {home.root}: the next command updates it",
        "hyp verify",
    )


def _floor_diagnostics(view: View) -> Iterator[Diagnostic]:
    """Check that each table still holds the rows that the state recorded."""
    for dataset, by_source in view.state.high_water.items():
        entry = metadata.entry(view.home, dataset)
        if entry is not None and not entry.metadata.is_relative_to(view.home.root):
            continue
        try:
            standing.check(view.home, dataset, max(by_source.values(), default=0))
        except HypError as rolled_back:
            yield error("lake_rolled_back", rolled_back.message, *rolled_back.repair)
        except Exception:
            continue  # a table that cannot be read has its own diagnostic


def _clock_diagnostics(tables: dict[str, Table], now: datetime) -> Iterator[Diagnostic]:
    times = [snapshot.at for table in tables.values() for snapshot in table.metadata.snapshots]
    if times and (latest := max(times)) > now.timestamp() + BACK_SECONDS:
        then = datetime.fromtimestamp(latest, UTC)
        yield error(
            "clock_went_back",
            f"this machine's clock shows {now:%Y-%m-%d %H:%M} (UTC), but rows were committed at "
            f"{then:%Y-%m-%d %H:%M}: nothing can be committed before that time",
            "date -u",
        )


def _purge_diagnostics(home: Home) -> Iterator[Diagnostic]:
    try:
        for command in tombstones.unfinished(home):
            yield warning("purge_unfinished", "a purge was started and not finished: its rows still exist", command)
        closed = tombstones.read(home).purge_filter
    except (HypError, OSError) as exception:
        yield error("tombstones_unusable", reason_of(exception), "hyp restore --help")
        return
    if closed.sessions:
        sessions = words.count(len(closed.sessions), "session was", "sessions were")
        yield info("purged", f"{sessions} purged: rows of a purged session are not recorded again", "hyp purge --help")


def _key_index_diagnostics(home: Home) -> Iterator[Diagnostic]:
    if not home.keys.exists():
        return
    try:
        with look_into(home.keys) as db:
            db.execute("SELECT through FROM applied").fetchall()
            db.execute("SELECT 1 FROM keys LIMIT 1").fetchone()
    except Exception as exception:
        yield error(
            "key_index_unreadable",
            f"the key index {home.keys} cannot be read: {reason_of(exception)}",
            "hyp verify --repair",
        )
