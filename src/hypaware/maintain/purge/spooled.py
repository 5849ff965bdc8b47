"""The spool: what waits is flushed, so that tombstones keep it out; what was refused is taken out line by line.

Batches that a server has stored and not registered (`incoming/`) are moved on by it in a moment. One that a dead server
left keeps its name and its number of lines, which a ledger may know: the lines in question are made empty.
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

from hypaware import durable, faults, lock_file
from hypaware.home import Home
from hypaware.lake import loosely, metadata, tombstones, turns
from hypaware.lake.build import row_key
from hypaware.lake.flush import Flusher, Limits
from hypaware.lake.keys import KeyIndex
from hypaware.maintain.purge.purging import Gone, Purging, Report
from hypaware.maintain.purge.selection import Selector
from hypaware.model import datasets
from hypaware.model.coerce import RowRejected
from hypaware.model.datasets import Dataset, Row
from hypaware.spool import envelope, reader, segments
from hypaware.spool.segments import Folder

_before_rewrite = faults.point("maintain.purge.before-lines", "a file of the spool still holds lines of purged rows")
_after_rewrite = faults.point("maintain.purge.after-lines", "a file of the spool is written again without the lines")

_FOR_THE_SERVER = 5.0
_POLL = 0.05

Meant = Callable[[bytes], bool]
"""Whether a line, as the spool keeps it, holds such a row."""


def bury(purging: Purging, stones: Sequence[int]) -> None:
    """Parts of a session that are only in the spool so far: a copy under another name stays out as well.

    Not those that the lake has under another session's name: they belong to that one.
    """
    for dataset in datasets.all():
        if purging.selector.kind != "session" or purging.selector.column(dataset) is None:
            continue
        for stone, selector in zip(stones, purging.selector.each, strict=False):
            rows = reader.read_spooled_rows(purging.home, dataset.name)
            keys = {row_key(dataset, row, purging.own_gateway) for row in rows if selector.matches(dataset, row)}
            if hashes := _not_in_the_lake(purging.home, {key for key in keys if key is not None}):
                tombstones.bury(purging.home, stone, hashes)


def _not_in_the_lake(home: Home, hashes: set[bytes]) -> set[bytes]:
    if not hashes or not home.keys.is_file():
        return hashes
    with closing(KeyIndex(home.keys)) as index:
        return hashes - index.find(hashes).keys()


def flush(purging: Purging, report: Report) -> None:
    """After it everything that was acknowledged before is in the lake, or kept out of it."""
    limits = Limits(purging.config.flush.max_rows, purging.config.flush.max_bytes)
    flusher = Flusher(purging.home, purging.store, purging.lake, limits, purging.progress, purging.check_cancelled)
    known = {entry.name for entry in metadata.entries(purging.home)}
    for dataset in datasets.all():
        if dataset.name in known or reader.waiting(purging.home, dataset.name).segments:
            with turns.changing(dataset.name, purging.check_cancelled):
                done = flusher.flush(dataset, purging.wait)
            report.spool_rows += done.rows_purged
            report.spool_held += [f"{dataset.name}/{name}" for name in done.still_active]


def scrub(purging: Purging, report: Report, gone: Gone) -> None:
    """Refused rows, and batches that a dead server left."""
    for dataset in datasets.all():
        meant = judge(purging.within(dataset) or purging.selector, dataset, gone, purging.own_gateway)
        folder = segments.folder(purging.home, dataset.name)
        for path in rejected_files(folder):
            report.rejects += _without(path, partial(_kept_line, meant=meant))
        left = incoming_files(folder)
        if left and _server_is_gone(purging.home, left):
            for path in left:
                report.spool_rows += _without(path, partial(_emptied, meant=meant))


def judge(selector: Selector, dataset: Dataset, gone: Gone, own_gateway: str | None) -> Meant:
    def meant(line: bytes) -> bool:
        if not (raw := loosely.row_in(line)):
            # Nobody can read it; a session's id is long enough to be known anywhere.
            return selector.kind == "session" and any(value.encode() in line for value in selector.values)
        row = loosely.fitted(dataset, raw)
        if selector.column(dataset) is not None and selector.matches(dataset, row):
            return True
        key = row_key(dataset, row, own_gateway)
        return key is not None and key in gone.hashes

    return meant


def rejected_files(folder: Folder) -> list[Path]:
    return sorted(folder.rejected.glob(f"*{segments.SUFFIX}")) if folder.rejected.is_dir() else []


def incoming_files(folder: Folder) -> list[Path]:
    where = folder.path / "incoming"
    return sorted(where.glob(f"*{segments.SUFFIX}")) if where.is_dir() else []


def kept_lines(path: Path) -> Iterator[bytes]:
    """Of a file of refused rows: the line that each of them was."""
    with open(path, "rb") as file:
        for line in file:
            yield _as_it_was(line)


def rows_of(dataset: Dataset, path: Path) -> Iterator[Row]:
    """The rows of a segment that a flush would take."""
    with open(path, "rb") as file:
        for ordinal, line in enumerate(file):
            with contextlib.suppress(RowRejected):
                yield envelope.read_line(dataset, line, ordinal)


def _server_is_gone(home: Home, left: list[Path]) -> bool:
    """A live server moves its batches on by itself."""
    deadline = time.monotonic() + _FOR_THE_SERVER
    while lock_file.is_taken(home.run / "server.lock"):
        if not any(path.exists() for path in left) or time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True


def _without(path: Path, rewritten: Callable[[bytes], bytes]) -> int:
    """Writes the file again, line by line: how many lines changed. A file with nothing left goes."""
    changed, kept = 0, []
    with open(path, "rb") as file:
        for line in file:
            after = rewritten(line)
            changed += after != line
            kept.append(after)
    if changed:
        _before_rewrite()
        body = b"".join(kept)
        if body:
            durable.write_file(path, body)
        else:
            durable.remove(path)
        _after_rewrite()
    return changed


def _kept_line(line: bytes, meant: Meant) -> bytes:
    return b"" if meant(_as_it_was(line)) else line


def _emptied(line: bytes, meant: Meant) -> bytes:
    if not meant(line):
        return line
    envelope: dict[str, Any] = orjson.loads(line)
    return orjson.dumps({"n": envelope.get("n"), "v": envelope.get("v"), "purged": True}) + b"\n"


def _as_it_was(line: bytes) -> bytes:
    try:
        kept = orjson.loads(line)
    except orjson.JSONDecodeError:
        return line
    if isinstance(kept, dict):
        if isinstance(kept.get("line"), str):
            return str(kept["line"]).encode("utf-8", "surrogatepass")
        if isinstance(kept.get("line_base64"), str):
            return base64.b64decode(kept["line_base64"])
    return line
