"""What is recorded: rows, bytes, files and days of each (dataset, source), from the tables' own metadata.

Every live file is looked for by name and size, those of the newest commit by their end too; no row is read. Whoever
changes a table meanwhile leaves new metadata: then the look is begun anew.
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
# Iceberg refuses a commit that is older than the one before it by more than this.
BACK_SECONDS = 60.0


@dataclass(frozen=True)
class Table:
    metadata: Metadata
    files: tuple[DataFile, ...]


@dataclass(frozen=True)
class Lake:
    tables: dict[str, Table] = field(default_factory=dict)
    """Those that could be read."""
    sources: list[dict[str, Any]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(each["bytes"] for each in self.sources)


def look(view: View) -> Found[Lake]:
    tables: dict[str, Table] = {}
    said: list[Diagnostic] = []
    for entry in metadata.entries(view.home):
        if not entry.metadata.is_relative_to(view.home.root):
            # Where the state knows that the home lies elsewhere than it did, that was said.
            said += [_elsewhere(view.home, entry)] if view.memory.identity is None else []
            continue
        try:
            tables[entry.name] = _read(view.home, entry)
        except _Damaged as damage:
            said.append(_damaged(entry.name, damage))
    said += _of_floors(view)
    said += _of_clock(tables, view.now)
    said += _of_purges(view.home)
    said += _of_keys(view.home)
    return Found(Lake(tables, list(_by_source(view, tables))), tuple(said))


class _Damaged(Exception):
    pass


def _read(home: Home, entry: TableEntry) -> Table:
    for _ in range(_ATTEMPTS):
        damage = None
        try:
            known = metadata.read(entry.metadata)
            table = Table(known, tuple(metadata.live_files(known)))
            if not (damage := _missing(table)):
                return table
        except Exception as trouble:
            # Torn JSON and torn Avro fail in many ways.
            damage = f"{reason_of(trouble)} ({type(trouble).__name__})"
        now = metadata.entry(home, entry.name)
        if now is None or now == entry:
            break
        entry = now
    raise _Damaged(damage)


def _missing(table: Table) -> str | None:
    for file in table.files:
        if file.snapshot_id == table.metadata.current_id:
            if reason := secure.file_damage(file.path, file.bytes):
                return reason
        elif (found := _size(file.path)) != file.bytes:
            return f"{file.path} is missing" if found is None else f"{file.path} has {found} bytes, not {file.bytes}"
    return None


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _by_source(view: View, tables: dict[str, Table]) -> Iterator[dict[str, Any]]:
    for dataset in sorted(view.memory.high_water.keys() | tables.keys()):
        files = tables[dataset].files if dataset in tables else ()
        recorded = view.memory.high_water.get(dataset, {})
        for source in sorted({file.source for file in files} | recorded.keys()):
            ours = [file for file in files if file.source == source]
            days = [file.day for file in ours if isinstance(file.day, date)]
            yield {
                "dataset": dataset,
                "source": source,
                "rows": sum(file.rows for file in ours),
                "bytes": sum(file.bytes for file in ours),
                "files": len(ours),
                "oldest": min(days).isoformat() if days else None,
                "newest": max(days).isoformat() if days else None,
                # Without a state the files tell what they hold; what is gone from them nobody remembers.
                "high_water": recorded.get(source) or max((file.max_seq or 0 for file in ours), default=0),
            }


def _damaged(table: str, reason: _Damaged) -> Diagnostic:
    return error(
        "lake_damaged",
        f"the table {table} is damaged ({reason}): restore a backup, or save what can be read",
        f"hyp maintain {table} --rebuild",
    )


def _elsewhere(home: Home, entry: TableEntry) -> Diagnostic:
    """Of a home that was moved or copied: what the table names are perhaps another home's files."""
    return warning(
        "lake_elsewhere",
        f"the table {entry.name} names files outside of {home.root}: the next command tells it where it lies now",
        "hyp verify",
    )


def _of_floors(view: View) -> Iterator[Diagnostic]:
    """Whether each table holds what was recorded."""
    for dataset, by_source in view.memory.high_water.items():
        entry = metadata.entry(view.home, dataset)
        if entry is not None and not entry.metadata.is_relative_to(view.home.root):
            continue
        try:
            standing.check(view.home, dataset, max(by_source.values(), default=0))
        except HypError as trouble:
            yield error("lake_rolled_back", trouble.message, *trouble.repair)
        except Exception:
            continue  # it cannot be read, and that was said


def _of_clock(tables: dict[str, Table], now: datetime) -> Iterator[Diagnostic]:
    times = [snapshot.at for table in tables.values() for snapshot in table.metadata.snapshots]
    if times and (latest := max(times)) > now.timestamp() + BACK_SECONDS:
        then = datetime.fromtimestamp(latest, UTC)
        yield error(
            "clock_went_back",
            f"this machine's clock says {now:%Y-%m-%d %H:%M} (UTC), and rows were committed at {then:%Y-%m-%d %H:%M}: "
            "nothing can be committed before that time",
            "date -u",
        )


def _of_purges(home: Home) -> Iterator[Diagnostic]:
    try:
        for command in tombstones.unfinished(home):
            yield warning("purge_unfinished", "a purge was begun and is not done: its rows are still there", command)
        closed = tombstones.read(home).closed
    except (HypError, OSError) as trouble:
        yield error("tombstones_unusable", reason_of(trouble), "hyp restore --help")
        return
    if closed.sessions:
        what = words.count(len(closed.sessions), "session was", "sessions were")
        yield info("purged", f"{what} purged: what comes of it again is kept out", "hyp purge --help")


def _of_keys(home: Home) -> Iterator[Diagnostic]:
    if not home.keys.exists():
        return
    try:
        with look_into(home.keys) as db:
            db.execute("SELECT through FROM applied").fetchall()
            db.execute("SELECT 1 FROM keys LIMIT 1").fetchone()
    except Exception as trouble:
        yield error(
            "key_index_unreadable",
            f"{home.keys}, which tells what is in the lake already, cannot be read: {reason_of(trouble)}",
            "hyp verify --repair",
        )
