"""Rejects: rows that cannot be stored, kept with the reason in `spool/<dataset>/rejected/<flush id>.jsonl`.

A line is `{"segment", "ordinal", "reason", "line"}`. `line` is the segment's line as text; a line that is not UTF-8 is
stored as `line_base64`. The file is durable before the flush commits, so a recorded flush never loses its rejects.

@ref flush#rejects
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

import orjson

from hypaware import durable, faults
from hypaware.home import Home
from hypaware.lake.build import Reject
from hypaware.spool import segments
from hypaware.state.flushes import Flush

_before_write = faults.point("lake.rejects.before-write", "rows were rejected, they are only in their segment")
_after_write = faults.point("lake.rejects.after-write", "rejects are stored, the flush is not committed")


def path_of(home: Home, flush: Flush) -> Path:
    return segments.folder(home, flush.dataset).rejected / f"{flush.id}.jsonl"


def write(home: Home, flush: Flush, rejects: Sequence[Reject]) -> None:
    if not rejects:
        return
    _before_write()
    durable.write_file(path_of(home, flush), b"".join(map(_line, rejects)))
    _after_write()


def count(home: Home, flush: Flush) -> int:
    path = path_of(home, flush)
    return segments.count_lines(path) if path.is_file() else 0


def total(home: Home, dataset: str) -> int:
    folder = segments.folder(home, dataset).rejected
    return sum(segments.count_lines(path) for path in folder.glob("*.jsonl"))


def discard(home: Home, flush: Flush) -> None:
    """Remove the rejects of a flush that was not committed; its segments still contain the rows."""
    if path_of(home, flush).exists():
        durable.remove(path_of(home, flush))


def _line(reject: Reject) -> bytes:
    kept: dict[str, object] = {"segment": reject.segment, "ordinal": reject.ordinal, "reason": reject.reason}
    try:
        kept["line"] = reject.line.decode().removesuffix("\n")
    except UnicodeDecodeError:
        kept["line_base64"] = base64.b64encode(reject.line).decode()
    return orjson.dumps(kept) + b"\n"
