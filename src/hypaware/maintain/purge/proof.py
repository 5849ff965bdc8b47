"""The proof: every file under the home is looked into, and those that still hold a purged row are named.

Data files by their columns, segments and refused rows line by line, dead letters row by row, manifests by the files
that they describe; everything else by bytes, unpacked where it is packed: by the ids of the rows, a bounded number of
those that are long enough to tell. What the import notes of transcripts (their paths) are no rows.
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

# By bytes, each id costs a look through the file.
_NEEDLES = 40
# A shorter one stands by chance in programs that the engine unpacked, in other ids, in any log.
_TELLING_BYTES = 8
_JUST_NOW = 60.0
# What is still being recorded brings a new row now and then, not without end.
_FLUSHES = 5


def prove(purging: Purging, report: Report, gone: Gone) -> None:
    telling = sorted(encoded for each in gone.ids if len(encoded := each.encode()) >= _TELLING_BYTES)
    needles = telling[:: max(1, -(-len(telling) // _NEEDLES))]
    report.looked_for = {"rows": gone.rows, "ids": len(needles)}
    found: dict[str, str] = {}
    names = {each.dataset for each in report.datasets if each.rows or purging.again}
    emptied = [entry.metadata.parent for entry in metadata.entries(purging.home) if entry.name in names]
    # Hashes alone, millions of them perhaps.
    not_rows = {purging.home.lake_lock, purging.home.keys}
    files = [path for path in sorted(purging.home.root.rglob("*")) if _is_file(path) and path not in not_rows]
    databases = [path for path in files if needles_in.is_database(path)]
    for path in files:
        purging.check_cancelled()
        if path in databases:
            continue
        if what := _told(partial(_look, purging, path, gone, needles, emptied)):
            found[_name(purging, path)] = what
    found |= _waiting(purging, report, gone)
    found |= _in_databases(purging, databases, needles)
    if dead := _dead_letters(purging.store, purging):
        found[purging.home.state.name] = dead
    report.remaining = [{"file": name, "what": what} for name, what in found.items()]


def _told(look: Callable[[], str | None]) -> str | None:
    try:
        return look()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _look(purging: Purging, path: Path, gone: Gone, needles: list[bytes], emptied: list[Path]) -> str | None:
    in_spool = path.is_relative_to(purging.home.spool)
    if path.suffix == ".parquet":
        return None if path in gone.clean else _data_file(purging, path, gone)
    if in_spool and path.suffix == segments.SUFFIX:
        return None if _waits(path) else _lines(purging, path, gone)
    if path.suffix == ".avro":
        return _manifest(path) if any(path.is_relative_to(table) for table in emptied) else None
    hits = needles_in.standing_in(path, needles)
    return f"ids of {hits} purged rows" if hits else None


def _waiting(purging: Purging, report: Report, gone: Gone) -> dict[str, str]:
    """What waits in the spool. A session that goes on has brought new rows since; a flush keeps them out, too."""
    for flushes_left in reversed(range(_FLUSHES + 1)):
        waiting = filter(_waits, sorted(purging.home.spool.rglob(f"*{segments.SUFFIX}")))
        told = {_name(purging, path): _told(partial(_lines, purging, path, gone)) for path in waiting}
        found = {name: what for name, what in told.items() if what}
        if not found or not flushes_left or report.spool_held:
            break
        spooled.flush(purging, report)
    return found


def _waits(segment: Path) -> bool:
    return segment.parent.name in ("active", "sealed")


def _in_databases(purging: Purging, paths: list[Path], needles: list[bytes]) -> dict[str, str]:
    try:
        hits = needles_in.standing_in_databases(paths, needles)
    except OSError as error:
        return {_name(purging, path): f"cannot be read: {error.strerror}" for path in paths}
    return {_name(purging, path): f"ids of {count} purged rows" for path, count in hits.items() if count}


def _name(purging: Purging, path: Path) -> str:
    return str(path.relative_to(purging.home.root))


def _data_file(purging: Purging, path: Path, gone: Gone) -> str | None:
    for dataset in datasets.all():
        if (selector := purging.within(dataset)) is None:
            continue
        (result,) = purging.lake.run([FindTask(dataset.name, (path,), selector, purging.own_gateway)])
        if isinstance(result, BuildFailure):
            if not path.exists() or time.time() - path.stat().st_mtime < _JUST_NOW:
                return None  # being written, or gone since
            return f"cannot be read, so nobody can tell ({result.reason}); remove it if you do not need it"
        (found,) = result.notes
        if rows := _remain(purging, found, gone):
            return f"{rows} purged rows"
    return None


def _remain(purging: Purging, found: FileFound, gone: Gone) -> int:
    """What has come since may be like them, unless that is closed."""
    if purging.closes:
        return found.rows
    return sum(
        bytes(packed[start : start + KEY_BYTES]) in gone.hashes
        for packed in found.hashes
        for start in range(0, len(packed), KEY_BYTES)
    )


def _lines(purging: Purging, path: Path, gone: Gone) -> str | None:
    dataset = _dataset_of(purging, path)
    if dataset is None:
        words = [value.encode() for value in purging.selector.values] if purging.selector.kind == "session" else []
        rows = sum(any(word in line for word in words) for line in spooled.kept_lines(path))
        return f"{rows} lines that name it, of a dataset that is not installed" if rows else None
    if path.parent.name == "rejected":
        meant = spooled.judge(purging.within(dataset) or purging.selector, dataset, gone, purging.own_gateway)
        rows = sum(map(meant, spooled.kept_lines(path)))
        return f"{rows} refused rows" if rows else None
    rows = sum(1 for row in spooled.rows_of(dataset, path) if _is_meant(purging, dataset, row, gone))
    if not rows:
        return None
    held = "a live process has not sealed it yet" if path.parent.name == "active" else "it waits for a flush"
    return f"{rows} purged rows; {held}"


def _is_meant(purging: Purging, dataset: Dataset, row: dict[str, object], gone: Gone) -> bool:
    if purging.closes:
        return purging.selector.column(dataset) is not None and purging.selector.matches(dataset, row)
    key = row_key(dataset, row, purging.own_gateway)
    return key is not None and key in gone.hashes


def _manifest(path: Path) -> str | None:
    """Of a table that rows were taken from: whether it describes files that are not there any more."""
    try:
        described = {
            local_path(entry["data_file"]["file_path"]) for entry in avro_records(path) if "data_file" in entry
        }
    except (ValueError, EOFError, KeyError):
        return None
    missing = [each for each in described if not each.exists()]
    return f"bounds of {len(missing)} data files that are gone" if missing else None


def _dead_letters(store: Store, purging: Purging) -> str | None:
    count, rows = letters.counted(store, purging.selector)
    return f"{rows} rows in {count} dead letters" if rows else None


def _dataset_of(purging: Purging, path: Path) -> Dataset | None:
    name = path.relative_to(purging.home.spool).parts[0]
    return datasets.get(name) if name in datasets.names() else None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file() and not path.is_symlink()
    except OSError:
        return False
