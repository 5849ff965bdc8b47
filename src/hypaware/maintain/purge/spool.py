"""Purging the spool: flush spooled rows, so that tombstones keep them out, and remove matching lines from rejects.

Batches that a server has stored but not registered (`incoming/`) are moved on by the server within moments. A batch
left by a dead server keeps its name and its number of lines, because a ledger may know it: its matching lines are
blanked.
"""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from hypaware import faults
from hypaware.home import Home, durable_files
from hypaware.home.locks import is_locked
from hypaware.iceberg import metadata
from hypaware.lake import locks, prepare, tombstones
from hypaware.lake.flush import Flusher, FlushLimits
from hypaware.lake.key_index import KeyIndex
from hypaware.lake.row_keys import hash_row_key
from hypaware.maintain.purge.context import PurgeContext, PurgeReport, RemovedRows
from hypaware.maintain.purge.selector import PurgeSelector
from hypaware.model import datasets
from hypaware.model.datasets import Dataset, Row, RowRejected
from hypaware.spool import reader, segments

_before_rewrite = faults.crash_point("maintain.purge.before-lines", "a spool file still holds lines of purged rows")
_after_rewrite = faults.crash_point("maintain.purge.after-lines", "a spool file is rewritten without the lines")
_SERVER_TIMEOUT = 5.0
_POLL = 0.05
LineMatcher = Callable[[bytes], bool]
"""Whether a spooled line holds a matching row."""


def bury_spooled(context: PurgeContext, tombstone_ids: Sequence[int]) -> None:
    """Set tombstones for parts of a session that are only in the spool, so that copies under another name stay out.

    Parts that the lake has under another session belong to that session and get none.
    """
    for dataset in datasets.list_all():
        if context.selector.kind != "session" or context.selector.column(dataset) is None:
            continue
        for tombstone_id, selector in zip(tombstone_ids, context.selector.single_selectors, strict=False):
            rows = reader.read_spooled_rows(context.home, dataset.name)
            keys = {hash_row_key(dataset, row, context.own_gateway) for row in rows if selector.matches(dataset, row)}
            if hashes := _not_in_lake(context.home, {key for key in keys if key is not None}):
                tombstones.add_parts(context.home, tombstone_id, hashes)


def _not_in_lake(home: Home, hashes: set[bytes]) -> set[bytes]:
    if not hashes or not home.keys.is_file():
        return hashes
    with closing(KeyIndex(home.keys)) as index:
        return hashes - index.find(hashes).keys()


def flush_spool(context: PurgeContext, report: PurgeReport) -> None:
    """Flush all datasets. Afterwards every acknowledged row is in the lake or kept out of it."""
    limits = FlushLimits(context.config.flush.max_rows, context.config.flush.max_bytes)
    flusher = Flusher(context.home, context.store, context.lake, limits, context.progress, context.check_cancelled)
    present = {entry.name for entry in metadata.list_tables(context.home)}
    for dataset in datasets.list_all():
        if dataset.name in present or reader.summarize_spool(context.home, dataset.name).segments:
            with locks.commit_lock(dataset.name, context.check_cancelled):
                result = flusher.flush(dataset, context.wait)
            report.spool_rows += result.rows.purged
            report.spool_held += [f"{dataset.name}/{name}" for name in result.still_active]


def remove_rejects(context: PurgeContext, report: PurgeReport, removed_rows: RemovedRows) -> None:
    """Remove matching rejects, and blank matching lines in batches that a dead server left."""
    for dataset in datasets.list_all():
        matches = line_matcher(
            context.for_dataset(dataset) or context.selector, dataset, removed_rows, context.own_gateway
        )
        for path in _files_in(context.home, dataset, "rejected"):
            report.rejects += _rewrite_lines(path, partial(_drop_line, matches=matches))
        incoming = _files_in(context.home, dataset, "incoming")
        if incoming and _server_is_gone(context.home, incoming):
            for path in incoming:
                report.spool_rows += _rewrite_lines(path, partial(_blank_line, matches=matches))


def line_matcher(
    selector: PurgeSelector, dataset: Dataset, removed_rows: RemovedRows, own_gateway: str | None
) -> LineMatcher:
    def matches(line: bytes) -> bool:
        if not (raw := prepare.extract_row(line)):
            # The line cannot be parsed; a session's id is long enough to be searched for.
            return selector.kind == "session" and any(value.encode() in line for value in selector.values)
        row = prepare.coerce_leniently(dataset, raw)
        if selector.column(dataset) is not None and selector.matches(dataset, row):
            return True
        key = hash_row_key(dataset, row, own_gateway)
        return key is not None and key in removed_rows.hashes

    return matches


def count_rejects(home: Home, dataset: Dataset, selector: PurgeSelector) -> int:
    matches = line_matcher(selector, dataset, RemovedRows(), None)
    return sum(matches(line) for path in _files_in(home, dataset, "rejected") for line in original_lines(path))


def unflushed_rows(home: Home, dataset: Dataset) -> Iterator[dict[str, Any]]:
    """Yield the rows of all segments, including batches that a server has not registered yet."""
    yield from reader.read_spooled_rows(home, dataset.name)
    for path in _files_in(home, dataset, "incoming"):
        yield from segment_rows(dataset, path)


def _files_in(home: Home, dataset: Dataset, name: str) -> list[Path]:
    return sorted((segments.spool_folder(home, dataset.name).path / name).glob(f"*{segments.SUFFIX}"))


def original_lines(path: Path) -> Iterator[bytes]:
    """Yield the original line of each reject in a file."""
    with open(path, "rb") as file:
        for line in file:
            yield _original_line(line)


def segment_rows(dataset: Dataset, path: Path) -> Iterator[Row]:
    """Yield the rows of a segment that a flush would accept."""
    with open(path, "rb") as file:
        for ordinal, line in enumerate(file):
            with contextlib.suppress(RowRejected):
                yield segments.decode_line(dataset, line, ordinal)


def _server_is_gone(home: Home, incoming: list[Path]) -> bool:
    """Return whether no server runs. A live server moves its batches on."""
    deadline = time.monotonic() + _SERVER_TIMEOUT
    while is_locked(home.run / "server.lock"):
        if not any(path.exists() for path in incoming) or time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True


def _rewrite_lines(path: Path, rewrite: Callable[[bytes], bytes]) -> int:
    """Rewrite the file line by line and return the number of changed lines. An empty file is removed."""
    changed, lines = 0, []
    with open(path, "rb") as file:
        for line in file:
            new_line = rewrite(line)
            changed += new_line != line
            lines.append(new_line)
    if changed:
        _before_rewrite()
        body = b"".join(lines)
        if body:
            durable_files.write_atomic(path, body)
        else:
            durable_files.remove_durably(path)
        _after_rewrite()
    return changed


def _drop_line(line: bytes, matches: LineMatcher) -> bytes:
    return b"" if matches(_original_line(line)) else line


def _blank_line(line: bytes, matches: LineMatcher) -> bytes:
    if not matches(line):
        return line
    envelope: dict[str, Any] = orjson.loads(line)
    return orjson.dumps({"n": envelope.get("n"), "v": envelope.get("v"), "purged": True}) + b"\n"


def _original_line(line: bytes) -> bytes:
    try:
        document = orjson.loads(line)
    except orjson.JSONDecodeError:
        return line
    if isinstance(document, dict):
        if isinstance(document.get("line"), str):
            return str(document["line"]).encode("utf-8", "surrogatepass")
        if isinstance(document.get("line_base64"), str):
            return base64.b64decode(document["line_base64"])
    return line
