"""Reads one history file as the import does, without a lake: pinned, expanded, coerced."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from hypaware.clients.client import Environment, ImportItem, Provider
from hypaware.clients.exchange_rows import materialize
from hypaware.clients.reader import SourceReader, SourceSnapshot
from hypaware.model import canonical
from hypaware.model.columns import ColumnType
from hypaware.model.datasets import Row, coerce_row
from hypaware.model.schemas import AI_GATEWAY_MESSAGES

GATEWAY_ID = "gateway-1"
NOWHERE: Environment = {"HOME": "/nonexistent"}
_TIMES = [column.name for column in AI_GATEWAY_MESSAGES.columns if column.type is ColumnType.TIMESTAMP]
_JSON = [column.name for column in AI_GATEWAY_MESSAGES.columns if column.type is ColumnType.JSON]


def pin(path: Path, **pinned: Any) -> SourceSnapshot:
    """Return the file as a source; `pinned` sets the imported prefix, the window and other fields."""
    about = path.stat()
    found = SourceSnapshot(path=path, inode=about.st_ino, size=about.st_size, mtime_ns=about.st_mtime_ns)
    if consumed := pinned.get("consumed"):
        pinned.setdefault("prefix_hash", hashlib.sha256(path.read_bytes()[:consumed]).hexdigest())
    return replace(found, **pinned)


def rows_of(
    provider: Provider, path: Path, *, environment: Environment = NOWHERE, **pinned: Any
) -> tuple[list[Row], SourceReader]:
    """Return the stored rows with parsed JSON columns, and the reader with its skipped and held back messages."""
    rows: list[Row] = []
    with SourceReader(pin(path, **pinned)) as reading:
        for item in provider.read(reading, environment):
            if isinstance(item, ImportItem):
                made = materialize(item.value, item.provenance, reading.skipped)
                rows.extend(coerce_row(AI_GATEWAY_MESSAGES, row, GATEWAY_ID) for row in made)
    return [readable(row) for row in rows], reading


def usage(rows: Iterable[Row]) -> Counter[str]:
    """Return the token totals of the rows, without zeros."""
    total: Counter[str] = Counter()
    for row in rows:
        total.update(row["attributes"].get("usage", {}))
    return Counter({name: count for name, count in total.items() if count})


@dataclass
class GrowingFile:
    """A growing file that is imported repeatedly, with its checkpoint."""

    provider: Provider
    path: Path
    rows: list[Row] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    held: frozenset[str] = frozenset()
    consumed: int = 0

    def grow_to(self, data: bytes, *, quiet: bool) -> list[Row]:
        """Return the rows that this import adds."""
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.write(data)
        rows, reading = rows_of(self.provider, self.path, consumed=self.consumed, held=self.held, quiet=quiet)
        self.rows += rows
        self.skipped += reading.skipped
        self.consumed, self.held = reading.consumed, frozenset(reading.held)
        return rows


def readable(row: Row) -> Row:
    """Return a stored row with parsed JSON columns."""
    return row | {name: canonical.loads(row[name]) for name in _JSON if name in row}


def comparable(row: Row, name: str) -> Any:
    """Return a column's value in a form that is comparable between machines."""
    value = row.get(name)
    if name in _TIMES:
        return datetime.fromisoformat(str(value))
    if name == "attributes":
        assert value is not None
        # It depends on the folder.
        return value | {"gateway": {key: each for key, each in value["gateway"].items() if key != "source_path_hash"}}
    return value
