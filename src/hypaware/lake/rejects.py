"""Rows that cannot be stored, kept with the reason: `spool/<dataset>/rejected/<flush id>.jsonl`.

A line is `{"segment", "ordinal", "reason", "line"}`; `line` is the segment's line as text, or `line_base64` where it
is not UTF-8. The file is durable before the flush commits, so a recorded flush never forgets what it refused.

@ref flush#refused
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

_before_write = faults.point("lake.rejects.before-write", "rows were refused, they are only in their segment")
_after_write = faults.point("lake.rejects.after-write", "refused rows are kept apart, the flush is not committed")


def path_of(home: Home, flush: Flush) -> Path:
    return segments.folder(home, flush.dataset).rejected / f"{flush.id}.jsonl"


def write(home: Home, flush: Flush, refused: Sequence[Reject]) -> None:
    if not refused:
        return
    _before_write()
    durable.write_file(path_of(home, flush), b"".join(map(_line, refused)))
    _after_write()


def count(home: Home, flush: Flush) -> int:
    path = path_of(home, flush)
    return segments.count_lines(path) if path.is_file() else 0


def total(home: Home, dataset: str) -> int:
    where = segments.folder(home, dataset).rejected
    return sum(segments.count_lines(path) for path in where.glob("*.jsonl"))


def discard(home: Home, flush: Flush) -> None:
    """The flush did not land; its segments still hold the rows."""
    if path_of(home, flush).exists():
        durable.remove(path_of(home, flush))


def _line(reject: Reject) -> bytes:
    kept: dict[str, object] = {"segment": reject.segment, "ordinal": reject.ordinal, "reason": reject.reason}
    try:
        kept["line"] = reject.line.decode().removesuffix("\n")
    except UnicodeDecodeError:
        kept["line_base64"] = base64.b64encode(reject.line).decode()
    return orjson.dumps(kept) + b"\n"
