"""Arbitrary changes of the table of messages, as one commit each: what compaction, purge, settlement, retention, a
restore and other programs do to data files, without the steps that lead to it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from datetime import datetime
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hypaware.home import Home
from hypaware.home.storage import format_location
from hypaware.iceberg import metadata
from hypaware.lake.build import BuiltFile
from hypaware.lake.schema import file_schema
from hypaware.lake.table import TableChange
from hypaware.model import datasets
from hypaware.model.datasets import BATCH_ID, ROW_ID, SEQ, SOURCE, coerce_row
from tests.support.light_lake import LightLake, LightTable

DATASET = "ai_gateway_messages"
MESSAGES = datasets.get(DATASET)
StoredRow = dict[str, Any]


def stored_row(seq: int | None, row: dict[str, Any], gateway: str = "gw-test") -> StoredRow:
    """Return a row as a data file holds it."""
    coerced = coerce_row(MESSAGES, row, row.get("gateway_id", gateway))
    source = MESSAGES.source_of(coerced)
    return {SEQ: seq, SOURCE: source, ROW_ID: "", BATCH_ID: "", **coerced}


def add_file(home: Home, rows: Sequence[StoredRow], *, row_group: int = 3) -> None:
    """Commit rows of any days, one file for each source and day."""
    with closing(LightLake(home)) as lake:
        table = lake.table(MESSAGES)
        table.replace_files(TableChange("compact", (), _write_files(table, rows, row_group)))


def rewrite(home: Home, change: Callable[[StoredRow], StoredRow | None], *, row_group: int = 3) -> None:
    """Replace all files by new ones, with changed rows. None removes a row."""
    with closing(LightLake(home)) as lake:
        table = lake.table(MESSAGES)
        found = metadata.find_table(home, DATASET)
        assert found is not None
        files = tuple(metadata.iter_live_files(metadata.read_metadata(found.metadata)))
        rows = [_as_stored(row) for file in files for row in pq.ParquetFile(file.path).read().to_pylist()]
        kept = [changed for row in rows if (changed := change(row)) is not None]
        table.replace_files(TableChange("compact", files, _write_files(table, kept, row_group)))


def remove_all_files(home: Home) -> None:
    """Remove all data files and write no others, as retention does with those of old days."""
    with closing(LightLake(home)) as lake:
        found = metadata.find_table(home, DATASET)
        assert found is not None
        files = tuple(metadata.iter_live_files(metadata.read_metadata(found.metadata)))
        lake.table(MESSAGES).replace_files(TableChange("retain", files))


def roll_back(home: Home, location: str) -> None:
    """Let the catalog name an earlier metadata file, as a restored backup does."""
    import sqlite3

    with closing(sqlite3.connect(home.catalog)) as catalog, catalog:
        catalog.execute("UPDATE iceberg_tables SET metadata_location = ?", (location,))


def current_metadata(home: Home) -> str:
    found = metadata.find_table(home, DATASET)
    assert found is not None
    return format_location(found.metadata)


def _as_stored(row: StoredRow) -> StoredRow:
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in row.items()
        if value is not None
    }


def _write_files(table: LightTable, rows: Iterable[StoredRow], row_group: int) -> list[BuiltFile]:
    built = []
    schema = file_schema(MESSAGES, table.field_ids)
    ordered = sorted(rows, key=lambda row: (row[SOURCE], row["message_created_at"][:10]))
    for (source, day), members in groupby(ordered, key=lambda row: (row[SOURCE], row["message_created_at"][:10])):
        typed = [_typed(row) for row in members]
        path = table.data_root / f"{secrets.token_hex(8)}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(typed, schema=schema), path, row_group_size=row_group)
        highest = max((row[SEQ] or 0 for row in typed), default=0)
        built.append(BuiltFile(path, source, day, len(typed), path.stat().st_size, highest))
    return built


def _typed(row: StoredRow) -> StoredRow:
    moments = {"conversation_started_at", "message_created_at"}
    return {name: datetime.fromisoformat(value) if name in moments else value for name, value in row.items()}
