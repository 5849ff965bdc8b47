"""Rejects: rows that cannot be stored, kept with the reason in `spool/<dataset>/rejected/<flush id>.jsonl`.

A line is `{"segment", "ordinal", "reason", "line"}`. `line` is the segment's line as text; a line that is not UTF-8 is
stored as `line_base64`. The file is durable before the flush commits, so a recorded flush never loses its rejects.
`extract_row` and `coerce_leniently` parse a rejected line far enough to tell which session and part it belongs to.

@ref flush#rejects
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from hypaware import faults
from hypaware.home import Home, durable_files
from hypaware.lake.build import Reject
from hypaware.model import canonical
from hypaware.model.datasets import GATEWAY, Dataset
from hypaware.spool import segments
from hypaware.state.flushes import Flush

_before_write = faults.crash_point("lake.rejects.before-write", "rows were rejected, they are only in their segment")
_after_write = faults.crash_point("lake.rejects.after-write", "rejects are stored, the flush is not committed")


def write_rejects(home: Home, flush: Flush, rejects: Sequence[Reject]) -> None:
    if not rejects:
        return
    _before_write()
    durable_files.write_atomic(rejects_path(home, flush), b"".join(map(_encode_reject, rejects)))
    _after_write()


def rejects_path(home: Home, flush: Flush) -> Path:
    return segments.spool_folder(home, flush.dataset).rejected / f"{flush.id}.jsonl"


def _encode_reject(reject: Reject) -> bytes:
    kept: dict[str, object] = {"segment": reject.segment, "ordinal": reject.ordinal, "reason": reject.reason}
    try:
        kept["line"] = reject.line.decode().removesuffix("\n")
    except UnicodeDecodeError:
        kept["line_base64"] = base64.b64encode(reject.line).decode()
    return orjson.dumps(kept) + b"\n"


def count_rejects(home: Home, flush: Flush) -> int:
    path = rejects_path(home, flush)
    return segments.count_lines(path) if path.is_file() else 0


def count_all_rejects(home: Home, dataset: str) -> int:
    folder = segments.spool_folder(home, dataset).rejected
    return sum(segments.count_lines(path) for path in folder.glob("*.jsonl"))


def discard_rejects(home: Home, flush: Flush) -> None:
    """Remove the rejects of a flush that was not committed; its segments still contain the rows."""
    if rejects_path(home, flush).exists():
        durable_files.remove_durably(rejects_path(home, flush))


def extract_row(line: bytes | str) -> Mapping[str, Any]:
    """Return the row of an envelope, or the line if it is a row itself, or an empty mapping."""
    try:
        found = canonical.loads(line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line)
    except (ValueError, RecursionError):
        return {}
    if isinstance(found, dict) and isinstance(found.get("row"), dict):
        found = found["row"]
    return found if isinstance(found, dict) else {}


def coerce_leniently(dataset: Dataset, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the valid columns of a row, coerced, and the columns derived from them."""
    valid: dict[str, Any] = {}
    for name, value in row.items():
        if name in dataset.coercers and value is not None:
            try:
                valid[name] = dataset.coercers[name](value)
            except (ValueError, RecursionError):
                continue
    try:
        derived = dict(dataset.derive(valid, str(valid.get(GATEWAY, ""))))
    except Exception:
        # A plugin's rule may fail on an incomplete row.
        derived = {}
    # The gateway cannot be derived; without one the row is our own.
    derived.pop(GATEWAY, None)
    return {**derived, **valid}
