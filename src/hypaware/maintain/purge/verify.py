"""Verification of a purge: search every file under the home and report those that still hold a purged row.

Of a shared lake, every object of the bucket is searched too. Other machines forget by themselves (`other_machines`).

Data files are searched by column, segments and rejects line by line, dead letters row by row, manifests by the files
that they describe. All other files are searched by bytes, decompressed if necessary (gzip, zstd, and the LZ4 blocks in
which Spark spills), for a bounded number of row ids that are long enough to be unique. Paths of transcripts in the
import's checkpoints are not rows.

Databases are searched by another process, which runs this module: closing any handle of a file releases every POSIX
lock that the process holds on it, including SQLite's. If this process read `state.db-shm`, other processes would
believe that it no longer has the database open, and the last of them to close it would delete the log that is still in
use here.
"""

from __future__ import annotations

import gzip
import re
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from hypaware.config.shared_lake import find_shared_lake
from hypaware.home.storage import ObjectPath, open_whole, parse_location
from hypaware.iceberg import metadata
from hypaware.lake.build import BuildFailure
from hypaware.maintain.purge import copies
from hypaware.maintain.purge.context import PurgeContext, PurgeReport, RemovedRows
from hypaware.maintain.purge.search import SearchTask, split_hashes
from hypaware.model import datasets
from hypaware.model.datasets import Dataset, hash_row_key
from hypaware.spool import segments
from hypaware.spool.received import FOLDER, open_received

# Each id costs one search through the file's bytes.
_MAX_IDS = 40
# A shorter id occurs by chance in programs that the engine unpacked, in other ids, in any log.
_MIN_ID_BYTES = 8
_JUST_NOW = 60.0
# A session in progress adds a new row now and then, not endlessly.
_MAX_FLUSHES = 5
_GZIP, _ZSTD, _LZ4 = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"LZ4Block"
_LZ4_HEADER = struct.Struct("<8sBiii")
_RAW_METHOD = 0x10
_MAX_BYTES = 256 << 20
_PIECE_BYTES = 8 << 20
_LONGEST_WORD = 1_024


def verify_purge(context: PurgeContext, report: PurgeReport, removed_rows: RemovedRows) -> None:
    """Search all files and set the report's `remaining`."""
    findings = _Verification(context, report, removed_rows).run()
    report.remaining = [{"file": name, "what": finding} for name, finding in findings.items()]


class _Verification:
    def __init__(self, context: PurgeContext, report: PurgeReport, removed_rows: RemovedRows) -> None:
        self._context = context
        self._home = context.home
        self._report = report
        self._removed_rows = removed_rows
        unique_ids = sorted(encoded for each in removed_rows.ids if len(encoded := each.encode()) >= _MIN_ID_BYTES)
        self._needles = unique_ids[:: max(1, -(-len(unique_ids) // _MAX_IDS))]
        report.looked_for = {"rows": report.rows, "ids": len(self._needles)}
        names = {each.dataset for each in report.datasets if each.rows or context.resumed}
        self._purged_tables = [
            entry.metadata.parent for entry in metadata.list_tables(context.home) if entry.name in names
        ]

    def run(self) -> dict[str, str]:
        # The key index holds only hashes, possibly millions.
        excluded = {self._home.lake_lock, self._home.keys}
        files = [path for path in sorted(self._home.root.rglob("*")) if _is_file(path) and path not in excluded]
        if shared := find_shared_lake(self._home):
            files += shared.root.rglob("*")
        databases = [path for path in files if is_database(path)]
        found: dict[str, str] = {}
        for path in files:
            self._context.check_cancelled()
            if path not in databases and (finding := _try_search(self._search, path)):
                found[self._name(path)] = finding
        found |= self._search_spool()
        try:
            hits = count_in_databases(databases, self._needles)
            found |= {self._name(path): f"ids of {count} purged rows" for path, count in hits.items() if count}
        except OSError as error:
            found |= {self._name(path): f"cannot be read: {error.strerror}" for path in databases}
        letters, rows = copies.count_dead_letters(self._context.store, self._context.selector)
        if rows:
            found[self._home.state.name] = f"{rows} rows in {letters} dead letters"
        return found

    def _name(self, path: Path) -> str:
        return str(path) if isinstance(path, ObjectPath) else str(path.relative_to(self._home.root))

    def _search(self, path: Path) -> str | None:
        if path.suffix == ".parquet":
            return None if path in self._removed_rows.clean else self._search_data_file(path)
        if path.suffix == segments.SUFFIX and (isinstance(path, ObjectPath) or path.is_relative_to(self._home.spool)):
            return None if _is_unflushed(path) else self._search_lines(path)
        if path.suffix == ".avro":
            is_purged_table = any(path.is_relative_to(table) for table in self._purged_tables)
            return _search_manifest(path) if is_purged_table else None
        hits = count_occurrences(path, self._needles)
        return f"ids of {hits} purged rows" if hits else None

    def _search_data_file(self, path: Path) -> str | None:
        context = self._context
        for dataset in datasets.list_all():
            if (selector := context.for_dataset(dataset)) is None:
                continue
            (result,) = context.lake.run([SearchTask(dataset.name, (path,), selector, context.own_gateway)])
            if isinstance(result, BuildFailure):
                if not path.exists() or time.time() - path.stat().st_mtime < _JUST_NOW:
                    return None  # being written, or removed since
                return f"cannot be read ({result.reason}); remove the file if you do not need it"
            (found,) = result.reports
            rows = found.rows
            if not context.is_permanent:
                # Rows that arrived since are allowed.
                keys = (key for packed in found.hashes for key in split_hashes(packed))
                rows = sum(key in self._removed_rows.hashes for key in keys)
            if rows:
                return f"{rows} purged rows"
        return None

    def _search_lines(self, path: Path) -> str | None:
        context, name = self._context, path.parent.name
        if not isinstance(path, ObjectPath):
            name = path.relative_to(self._home.spool).parts[0]
        if name not in datasets.list_names():
            ids = [value.encode() for value in context.selector.values] if context.selector.kind == "session" else []
            rows = sum(any(each in line for each in ids) for line in copies.original_lines(path))
            return f"{rows} lines that mention the session, of a dataset that is not installed" if rows else None
        dataset = datasets.get(name)
        if path.parent.name == "rejected":
            selector = context.for_dataset(dataset) or context.selector
            matches = copies.line_matcher(selector, dataset, self._removed_rows, context.own_gateway)
            rows = sum(map(matches, copies.original_lines(path)))
            return f"{rows} rejects" if rows else None
        rows = sum(self._is_purged(dataset, row) for row in copies.segment_rows(dataset, path))
        if not rows:
            return None
        if isinstance(path, ObjectPath):
            return f"{rows} purged rows in a batch that a receiver has just stored"
        is_active = path.parent.name == "active"
        state = "a running process has not sealed the segment yet" if is_active else "not flushed yet"
        return f"{rows} purged rows; {state}"

    def _is_purged(self, dataset: Dataset, row: dict[str, object]) -> bool:
        context = self._context
        if context.is_permanent:
            return context.selector.column(dataset) is not None and context.selector.matches(dataset, row)
        return hash_row_key(dataset, row, context.own_gateway) in self._removed_rows.hashes

    def _search_spool(self) -> dict[str, str]:
        """Search the spool. A session in progress may have added rows since; a flush keeps them out, too."""
        for flushes_left in reversed(range(_MAX_FLUSHES + 1)):
            unflushed = list(filter(_is_unflushed, sorted(self._home.spool.rglob(f"*{segments.SUFFIX}"))))
            if received := open_received(self._home, self._context.store):
                unflushed += received.root.joinpath(FOLDER).rglob(f"*{segments.SUFFIX}")
            findings = {self._name(path): _try_search(self._search_lines, path) for path in unflushed}
            found = {name: finding for name, finding in findings.items() if finding}
            if not found or not flushes_left or self._report.spool_held:
                break
            copies.flush_spool(self._context, self._report)
        return found


def _try_search(search: Callable[[Path], str | None], path: Path) -> str | None:
    try:
        return search(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _search_manifest(path: Path) -> str | None:
    """Return a message if a manifest of a purged table describes files that no longer exist."""
    import fastavro

    try:
        with open_whole(path) as file:
            entries: list[Any] = list(fastavro.reader(file))
        described = {parse_location(entry["data_file"]["file_path"]) for entry in entries if "data_file" in entry}
    except (ValueError, EOFError, KeyError):
        return None
    missing = [each for each in described if not each.exists()]
    return f"statistics of {len(missing)} removed data files" if missing else None


def _is_unflushed(segment: Path) -> bool:
    return isinstance(segment, ObjectPath) or segment.parent.name in ("active", "sealed")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file() and not path.is_symlink()
    except OSError:
        return False


def is_database(path: Path) -> bool:
    """Return whether the file is a database, its write-ahead log, its shared-memory index, or a journal."""
    return path.suffix.startswith(".db")


def count_in_databases(paths: Sequence[Path], needles: Sequence[bytes]) -> Mapping[Path, int]:
    """Return the counts for many files, from a process of its own; files that are gone by then are left out."""
    if not paths:
        return {}
    request = orjson.dumps([[str(path) for path in paths], [needle.decode() for needle in needles]])
    process = subprocess.run([sys.executable, "-m", __name__], input=request, capture_output=True, check=False)
    if process.returncode != 0:
        raise OSError(0, f"the search process failed: {process.stderr.decode(errors='replace').strip()[-300:]}")
    return {Path(path): count for path, count in orjson.loads(process.stdout).items()}


def count_occurrences(path: Path, needles: Iterable[bytes]) -> int:
    """Return how many of the words occur in the file, up to their end: `message-57` does not contain `message-5`.

    Raise `FileNotFoundError` if the file is gone.
    """
    return len(
        {
            needle
            for content in file_contents(path)
            for needle in needles
            if needle in content and re.search(re.escape(needle) + rb"(?![\w-])", content)
        }
    )


def file_contents(path: Path) -> Iterator[bytes]:
    """Yield the stored bytes, in overlapping pieces so that no word is split, then the decompressed bytes.

    A file that cannot be decompressed yields only its stored bytes.
    """
    with path.open("rb") as file:
        packed = file.read(len(_LZ4)).startswith((_GZIP, _ZSTD, _LZ4))
        file.seek(0)
        overlap = b""
        while block := file.read(_PIECE_BYTES):
            yield overlap + block
            overlap = block[-_LONGEST_WORD:]
        if packed:
            file.seek(0)
            yield from _decompress(file.read(_MAX_BYTES))


def _decompress(stored: bytes) -> Iterator[bytes]:
    try:
        if stored.startswith(_GZIP):
            yield gzip.decompress(stored)
        elif stored.startswith(_ZSTD):
            with pa.CompressedInputStream(pa.BufferReader(stored), "zstd") as unpacked:
                yield unpacked.read()
        else:
            yield b"".join(_lz4_blocks(stored))
    except (OSError, EOFError, zlib.error, pa.ArrowException, struct.error):
        return


def _lz4_blocks(stored: bytes) -> Iterator[bytes]:
    """Decode the framing of lz4-java: a header with both lengths precedes each block."""
    codec, position = pa.Codec("lz4_raw"), 0
    while position + _LZ4_HEADER.size <= len(stored):
        magic, token, packed, unpacked, _checksum = _LZ4_HEADER.unpack_from(stored, position)
        if magic != _LZ4:
            return
        position += _LZ4_HEADER.size
        block = stored[position : position + packed]
        position += packed
        if token & 0xF0 == _RAW_METHOD:
            yield block
        elif unpacked:
            yield codec.decompress(block, decompressed_size=unpacked, asbytes=True)


def _main() -> None:
    paths, needles = orjson.loads(sys.stdin.buffer.read())
    found = {}
    for path in paths:
        with suppress(FileNotFoundError):
            found[path] = count_occurrences(Path(path), [needle.encode() for needle in needles])
    sys.stdout.buffer.write(orjson.dumps(found))


if __name__ == "__main__":
    _main()
