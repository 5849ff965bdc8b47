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

from hypaware import durable, faults
from hypaware.home import Home
from hypaware.lake import loosely, metadata, tombstones, turns
from hypaware.lake.build import row_key
from hypaware.lake.flush import Flusher, Limits
from hypaware.lake.keys import KeyIndex
from hypaware.lock_file import is_taken
from hypaware.maintain.purge.purging import Gone, Purging, Report
from hypaware.maintain.purge.selection import Selector
from hypaware.model import datasets
from hypaware.model.coerce import RowRejected
from hypaware.model.datasets import Dataset, Row
from hypaware.spool import envelope, reader, segments
from hypaware.spool.segments import Folder

_before_rewrite = faults.point("maintain.purge.before-lines", "a spool file still holds lines of purged rows")
_after_rewrite = faults.point("maintain.purge.after-lines", "a spool file is rewritten without the lines")

_SERVER_TIMEOUT = 5.0
_POLL = 0.05

Meant = Callable[[bytes], bool]
"""Whether a spooled line holds a matching row."""


def bury(context: Purging, tombstone_ids: Sequence[int]) -> None:
    """Set tombstones for parts of a session that are only in the spool, so that copies under another name stay out.

    Parts that the lake has under another session belong to that session and get none.
    """
    for dataset in datasets.all():
        if context.selector.kind != "session" or context.selector.column(dataset) is None:
            continue
        for tombstone_id, selector in zip(tombstone_ids, context.selector.single_selectors, strict=False):
            rows = reader.read_spooled_rows(context.home, dataset.name)
            keys = {row_key(dataset, row, context.own_gateway) for row in rows if selector.matches(dataset, row)}
            if hashes := _not_in_lake(context.home, {key for key in keys if key is not None}):
                tombstones.bury(context.home, tombstone_id, hashes)


def _not_in_lake(home: Home, hashes: set[bytes]) -> set[bytes]:
    if not hashes or not home.keys.is_file():
        return hashes
    with closing(KeyIndex(home.keys)) as index:
        return hashes - index.find(hashes).keys()


def flush(context: Purging, report: Report) -> None:
    """Flush all datasets. Afterwards every acknowledged row is in the lake or kept out of it."""
    limits = Limits(context.config.flush.max_rows, context.config.flush.max_bytes)
    flusher = Flusher(context.home, context.store, context.lake, limits, context.progress, context.check_cancelled)
    present = {entry.name for entry in metadata.entries(context.home)}
    for dataset in datasets.all():
        if dataset.name in present or reader.waiting(context.home, dataset.name).segments:
            with turns.changing(dataset.name, context.check_cancelled):
                result = flusher.flush(dataset, context.wait)
            report.spool_rows += result.rows_purged
            report.spool_held += [f"{dataset.name}/{name}" for name in result.still_active]


def scrub(context: Purging, report: Report, removed_rows: Gone) -> None:
    """Remove matching rejects, and blank matching lines in batches that a dead server left."""
    for dataset in datasets.all():
        matches = judge(context.for_dataset(dataset) or context.selector, dataset, removed_rows, context.own_gateway)
        folder = segments.folder(context.home, dataset.name)
        for path in rejected_files(folder):
            report.rejects += _rewrite_lines(path, partial(_drop_line, matches=matches))
        incoming = incoming_files(folder)
        if incoming and _server_is_gone(context.home, incoming):
            for path in incoming:
                report.spool_rows += _rewrite_lines(path, partial(_blank_line, matches=matches))


def judge(selector: Selector, dataset: Dataset, removed_rows: Gone, own_gateway: str | None) -> Meant:
    def matches(line: bytes) -> bool:
        if not (raw := loosely.row_in(line)):
            # The line cannot be parsed; a session's id is long enough to be searched for.
            return selector.kind == "session" and any(value.encode() in line for value in selector.values)
        row = loosely.fitted(dataset, raw)
        if selector.column(dataset) is not None and selector.matches(dataset, row):
            return True
        key = row_key(dataset, row, own_gateway)
        return key is not None and key in removed_rows.hashes

    return matches


def rejected_files(folder: Folder) -> list[Path]:
    return sorted(folder.rejected.glob(f"*{segments.SUFFIX}")) if folder.rejected.is_dir() else []


def incoming_files(folder: Folder) -> list[Path]:
    incoming = folder.path / "incoming"
    return sorted(incoming.glob(f"*{segments.SUFFIX}")) if incoming.is_dir() else []


def kept_lines(path: Path) -> Iterator[bytes]:
    """Yield the original line of each reject in a file."""
    with open(path, "rb") as file:
        for line in file:
            yield _original_line(line)


def rows_of(dataset: Dataset, path: Path) -> Iterator[Row]:
    """Yield the rows of a segment that a flush would accept."""
    with open(path, "rb") as file:
        for ordinal, line in enumerate(file):
            with contextlib.suppress(RowRejected):
                yield envelope.read_line(dataset, line, ordinal)


def _server_is_gone(home: Home, incoming: list[Path]) -> bool:
    """Return whether no server runs. A live server moves its batches on."""
    deadline = time.monotonic() + _SERVER_TIMEOUT
    while is_taken(home.run / "server.lock"):
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
            durable.write_file(path, body)
        else:
            durable.remove(path)
        _after_rewrite()
    return changed


def _drop_line(line: bytes, matches: Meant) -> bytes:
    return b"" if matches(_original_line(line)) else line


def _blank_line(line: bytes, matches: Meant) -> bytes:
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
