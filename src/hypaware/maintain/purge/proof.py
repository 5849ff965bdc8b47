"""Verification of a purge: search every file under the home and report those that still hold a purged row.

Data files are searched by column, segments and rejects line by line, dead letters row by row, manifests by the files
that they describe. All other files are searched by bytes, decompressed if necessary, for a bounded number of row ids
that are long enough to be unique. Paths of transcripts in the import's checkpoints are not rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hypaware.lake import metadata
from hypaware.lake.build import KEY_BYTES, BuildFailure, row_key
from hypaware.lake.metadata import local_path
from hypaware.maintain.purge import letters, spooled
from hypaware.maintain.purge import needles as needles_in
from hypaware.maintain.purge.finding import FileFound, FindTask
from hypaware.maintain.purge.purging import Gone, Purging, Report
from hypaware.maintain.purge.sweep import avro_records
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.spool import segments
from hypaware.state.store import Store

# Each id costs one search through the file's bytes.
_NEEDLES = 40
# A shorter id occurs by chance in programs that the engine unpacked, in other ids, in any log.
_MIN_ID_BYTES = 8
_JUST_NOW = 60.0
# A session in progress adds a new row now and then, not endlessly.
_FLUSHES = 5


def prove(context: Purging, report: Report, removed_rows: Gone) -> None:
    """Search all files and set the report's `remaining`."""
    unique_ids = sorted(encoded for each in removed_rows.ids if len(encoded := each.encode()) >= _MIN_ID_BYTES)
    needles = unique_ids[:: max(1, -(-len(unique_ids) // _NEEDLES))]
    report.looked_for = {"rows": removed_rows.rows, "ids": len(needles)}
    found: dict[str, str] = {}
    names = {each.dataset for each in report.datasets if each.rows or context.resumed}
    purged_tables = [entry.metadata.parent for entry in metadata.entries(context.home) if entry.name in names]
    # Only hashes, possibly millions.
    excluded = {context.home.lake_lock, context.home.keys}
    files = [path for path in sorted(context.home.root.rglob("*")) if _is_file(path) and path not in excluded]
    databases = [path for path in files if needles_in.is_database(path)]
    for path in files:
        context.check_cancelled()
        if path in databases:
            continue
        if finding := _try_search(partial(_search, context, path, removed_rows, needles, purged_tables)):
            found[_name(context, path)] = finding
    found |= _search_spool(context, report, removed_rows)
    found |= _in_databases(context, databases, needles)
    if in_letters := _dead_letters(context.store, context):
        found[context.home.state.name] = in_letters
    report.remaining = [{"file": name, "what": finding} for name, finding in found.items()]


def _try_search(search: Callable[[], str | None]) -> str | None:
    try:
        return search()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _search(
    context: Purging, path: Path, removed_rows: Gone, needles: list[bytes], purged_tables: list[Path]
) -> str | None:
    in_spool = path.is_relative_to(context.home.spool)
    if path.suffix == ".parquet":
        return None if path in removed_rows.clean else _data_file(context, path, removed_rows)
    if in_spool and path.suffix == segments.SUFFIX:
        return None if _is_unflushed(path) else _lines(context, path, removed_rows)
    if path.suffix == ".avro":
        return _manifest(path) if any(path.is_relative_to(table) for table in purged_tables) else None
    hits = needles_in.standing_in(path, needles)
    return f"ids of {hits} purged rows" if hits else None


def _search_spool(context: Purging, report: Report, removed_rows: Gone) -> dict[str, str]:
    """Search the spool. A session in progress may have added rows since; a flush keeps them out, too."""
    for flushes_left in reversed(range(_FLUSHES + 1)):
        unflushed = filter(_is_unflushed, sorted(context.home.spool.rglob(f"*{segments.SUFFIX}")))
        findings = {
            _name(context, path): _try_search(partial(_lines, context, path, removed_rows)) for path in unflushed
        }
        found = {name: finding for name, finding in findings.items() if finding}
        if not found or not flushes_left or report.spool_held:
            break
        spooled.flush(context, report)
    return found


def _is_unflushed(segment: Path) -> bool:
    return segment.parent.name in ("active", "sealed")


def _in_databases(context: Purging, paths: list[Path], needles: list[bytes]) -> dict[str, str]:
    try:
        hits = needles_in.standing_in_databases(paths, needles)
    except OSError as error:
        return {_name(context, path): f"cannot be read: {error.strerror}" for path in paths}
    return {_name(context, path): f"ids of {count} purged rows" for path, count in hits.items() if count}


def _name(context: Purging, path: Path) -> str:
    return str(path.relative_to(context.home.root))


def _data_file(context: Purging, path: Path, removed_rows: Gone) -> str | None:
    for dataset in datasets.all():
        if (selector := context.for_dataset(dataset)) is None:
            continue
        (result,) = context.lake.run([FindTask(dataset.name, (path,), selector, context.own_gateway)])
        if isinstance(result, BuildFailure):
            if not path.exists() or time.time() - path.stat().st_mtime < _JUST_NOW:
                return None  # being written, or removed since
            return f"cannot be read ({result.reason}); remove the file if you do not need it"
        (found,) = result.reports
        if rows := _count_remaining(context, found, removed_rows):
            return f"{rows} purged rows"
    return None


def _count_remaining(context: Purging, found: FileFound, removed_rows: Gone) -> int:
    """Count the remaining rows. Unless the selector is permanent, rows that arrived since are allowed."""
    if context.is_permanent:
        return found.rows
    return sum(
        bytes(packed[start : start + KEY_BYTES]) in removed_rows.hashes
        for packed in found.hashes
        for start in range(0, len(packed), KEY_BYTES)
    )


def _lines(context: Purging, path: Path, removed_rows: Gone) -> str | None:
    dataset = _dataset_of(context, path)
    if dataset is None:
        ids = [value.encode() for value in context.selector.values] if context.selector.kind == "session" else []
        rows = sum(any(each in line for each in ids) for line in spooled.kept_lines(path))
        return f"{rows} lines that mention the session, of a dataset that is not installed" if rows else None
    if path.parent.name == "rejected":
        matches = spooled.judge(
            context.for_dataset(dataset) or context.selector, dataset, removed_rows, context.own_gateway
        )
        rows = sum(map(matches, spooled.kept_lines(path)))
        return f"{rows} rejects" if rows else None
    rows = sum(1 for row in spooled.rows_of(dataset, path) if _is_purged(context, dataset, row, removed_rows))
    if not rows:
        return None
    state = "a running process has not sealed the segment yet" if path.parent.name == "active" else "not flushed yet"
    return f"{rows} purged rows; {state}"


def _is_purged(context: Purging, dataset: Dataset, row: dict[str, object], removed_rows: Gone) -> bool:
    if context.is_permanent:
        return context.selector.column(dataset) is not None and context.selector.matches(dataset, row)
    key = row_key(dataset, row, context.own_gateway)
    return key is not None and key in removed_rows.hashes


def _manifest(path: Path) -> str | None:
    """Return a message if a manifest of a purged table describes files that no longer exist."""
    try:
        described = {
            local_path(entry["data_file"]["file_path"]) for entry in avro_records(path) if "data_file" in entry
        }
    except (ValueError, EOFError, KeyError):
        return None
    missing = [each for each in described if not each.exists()]
    return f"statistics of {len(missing)} removed data files" if missing else None


def _dead_letters(store: Store, context: Purging) -> str | None:
    count, rows = letters.counted(store, context.selector)
    return f"{rows} rows in {count} dead letters" if rows else None


def _dataset_of(context: Purging, path: Path) -> Dataset | None:
    name = path.relative_to(context.home.spool).parts[0]
    return datasets.get(name) if name in datasets.names() else None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file() and not path.is_symlink()
    except OSError:
        return False
