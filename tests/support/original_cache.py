"""Caches in the format of the original: the sample, and others built row by row, with tables, spools and watermarks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.variant_utils import VariantUtils

from hypaware.model import datasets
from hypaware.model.columns import ColumnType
from hypaware.model.datasets import SEQ

SAMPLE = Path(__file__).parents[1] / "fixtures" / "hypaware-cache"
DATASET = "ai_gateway_messages"
ORIGINAL_LOCATION = "file:///home/dev/.hyp/hypaware/cache"
VARIANT = pa.struct([pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary())])
_TYPES = {
    ColumnType.STRING: pa.string(),
    ColumnType.INT: pa.int32(),
    ColumnType.BIGINT: pa.int64(),
    ColumnType.BOOLEAN: pa.bool_(),
    ColumnType.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    ColumnType.JSON: VARIANT,
}
_MANIFEST = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        {"name": "manifest_path", "type": "string"},
        {"name": "content", "type": "int"},
        {"name": "sequence_number", "type": "long"},
    ],
}
_ENTRY = {
    "type": "record",
    "name": "manifest_entry",
    "fields": [
        {"name": "status", "type": "int"},
        {"name": "sequence_number", "type": ["null", "long"]},
        {
            "name": "data_file",
            "type": {
                "type": "record",
                "name": "data_file",
                "fields": [
                    {"name": "content", "type": "int"},
                    {"name": "file_path", "type": "string"},
                    {"name": "file_format", "type": "string"},
                    {"name": "record_count", "type": "long"},
                    {"name": "file_size_in_bytes", "type": "long"},
                    {"name": "referenced_data_file", "type": ["null", "string"]},
                    {"name": "content_offset", "type": ["null", "long"]},
                    {"name": "content_size_in_bytes", "type": ["null", "long"]},
                ],
            },
        },
    ],
}


def installation(root: Path) -> Path:
    """Copy the sample to the place of a cache within an installation."""
    cache = root / "hypaware" / "cache"
    shutil.copytree(SAMPLE, cache)
    return cache


def row(number: int, **columns: Any) -> dict[str, Any]:
    """Return a row as the original holds it in memory."""
    return {
        "gateway_id": "hypaware-local",
        "schema_version": 7,
        "session_id": "session-1",
        "provider": "anthropic",
        "conversation_started_at": "2026-09-01T00:00:00.000Z",
        "conversation_source": "claude",
        "client_name": "claude",
        "message_id": f"old-{number}",
        "message_index": number,
        "message_created_at": f"2026-09-{1 + number // 60 % 28:02}T10:{number % 60:02}:00.000Z",
        "role": "user",
        "part_id": f"old-{number}#0",
        "part_index": 0,
        "part_type": "text",
        "content_text": f"text {number}",
        "attributes": {"client": {"name": "claude", "version": "1"}},
        "date": f"2026-09-{1 + number // 60 % 28:02}",
        **columns,
    }


@dataclass
class Builder:
    """Builds a table in a directory of the cache."""

    cache: Path
    partition: str = "source=claude"
    table_dir: str = "table"
    more: Mapping[str, pa.DataType] = field(default_factory=dict)
    """Columns that only the original has."""
    entries: list[dict[str, Any]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.cache / "datasets" / DATASET / self.partition / self.table_dir

    @property
    def location(self) -> str:
        return f"{ORIGINAL_LOCATION}/datasets/{DATASET}/{self.partition}/{self.table_dir}"

    def add(self, rows: Sequence[dict[str, Any]], seqs: Sequence[int | None] | None) -> str:
        """Write a data file, without a sequence column if `seqs` is None; return its name in the table."""
        name = f"data/{len(self.entries):08}.parquet"
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        columns = [(each.name, _TYPES[each.type]) for each in datasets.get(DATASET).columns]
        columns += [*self.more.items(), *([(SEQ, pa.int64())] if seqs is not None else [])]
        fields, arrays = [], []
        for number, (column, type_) in enumerate(columns, 1):
            fields.append(pa.field(column, type_, metadata={"PARQUET:field_id": str(number)}))
            values = seqs if column == SEQ else [each.get(column) for each in rows]
            arrays.append(pa.array([_value(each, type_) for each in values or ()], type_))
        pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), path)
        self._enter(0, name, "PARQUET", len(rows))
        return name

    def delete(self, data: str, vector: bytes, rows: int) -> None:
        """Write a deletion vector for a data file."""
        name = f"data/{len(self.entries):08}-deletes.puffin"
        (self.folder / name).write_bytes(b"PFA1" + vector)
        reference = {"referenced_data_file": f"{self.location}/{data}", "content_offset": 4}
        self._enter(1, name, "puffin", rows, **reference, content_size_in_bytes=len(vector))

    def delete_by_file(self, positions: Sequence[tuple[str, int]]) -> None:
        name = f"data/{len(self.entries):08}-deletes.parquet"
        paths = [f"{self.location}/{data}" for data, _ in positions]
        document = pa.table({"file_path": paths, "pos": pa.array([position for _, position in positions], pa.int64())})
        pq.write_table(document, self.folder / name)
        self._enter(1, name, "PARQUET", len(positions))

    def delete_by_value(self) -> None:
        name = f"data/{len(self.entries):08}-deletes.parquet"
        pq.write_table(pa.table({"part_id": ["old-1#0"]}), self.folder / name)
        self._enter(2, name, "PARQUET", 1)

    def commit(self, cursor: Mapping[str, Any] | None = None) -> Builder:
        """Write metadata with everything added, and the cursor that names the table."""
        metadata = self.folder / "metadata"
        metadata.mkdir(parents=True, exist_ok=True)
        version = len(list(metadata.glob("v*.metadata.json"))) + 1
        manifests = []
        for number, entry in enumerate(self.entries, 1):
            path = metadata / f"m{version}-{number}.avro"
            with path.open("wb") as file:
                fastavro.writer(file, _ENTRY, [entry])
            content = min(entry["data_file"]["content"], 1)
            location = f"{self.location}/metadata/{path.name}"
            manifests.append({"manifest_path": location, "content": content, "sequence_number": number})
        with (metadata / f"snap-{version}.avro").open("wb") as file:
            fastavro.writer(file, _MANIFEST, manifests)
        names = [each.name for each in datasets.get(DATASET).columns]
        fields = [{"id": position, "name": name} for position, name in enumerate([*names, *self.more, SEQ], 1)]
        document = {
            "format-version": 3,
            "table-uuid": f"uuid-of-{self.partition}-{self.table_dir}",
            "location": self.location,
            "current-schema-id": 0,
            "schemas": [{"schema-id": 0, "fields": fields}],
            "current-snapshot-id": version,
            "snapshots": [{"snapshot-id": version, "manifest-list": f"{self.location}/metadata/snap-{version}.avro"}],
        }
        (metadata / f"v{version}.metadata.json").write_text(json.dumps(document))
        (metadata / "version-hint.text").write_text(str(version))
        cursor_document = cursor or {"epoch": 0, "layout": "source-table", "tableDir": self.table_dir}
        (self.folder.parent / "cursor.json").write_text(json.dumps(cursor_document))
        return self

    def _enter(self, content: int, name: str, format_: str, rows: int, **more: Any) -> None:
        size = (self.folder / name).stat().st_size
        unset = dict.fromkeys(("referenced_data_file", "content_offset", "content_size_in_bytes"))
        file = {
            "content": content,
            "file_path": f"{self.location}/{name}",
            "file_format": format_,
            "record_count": rows,
        }
        self.entries.append(
            {"status": 1, "sequence_number": None, "data_file": {**file, "file_size_in_bytes": size, **unset, **more}}
        )


def spool(cache: Path, rows: Sequence[Any], name: str = "active.jsonl", folder: str = "backfill") -> Path:
    """Append an envelope to a spool file."""
    path = cache / "datasets" / DATASET / folder / "_hypaware_spool" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    envelope = {"version": 1, "columns": [{"name": "part_id", "type": "STRING"}], "rows": list(rows)}
    with path.open("a") as file:
        file.write(json.dumps(envelope) + "\n")
    return path


def watermark(cache: Path, sink: str, seq: int | str, partition: str = "source=claude") -> Path:
    """Write a watermark as the original's server plugin does, next to the cache."""
    plugin = cache.parent / "plugins" / "@hypaware" / "central"
    path = plugin / "sink-instances" / sink / "watermarks" / DATASET / f"{partition}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"v": 1, "continuation": {"v": 1, "seq": str(seq)}, "exportedRowCount": 1, "updatedAt": "2026-11-15"}
    path.write_text(json.dumps(document))
    return path


def config_of(cache: Path, **sinks: Mapping[str, Any]) -> None:
    """Write the original's config with the settings of its sinks."""
    document = {"version": 2, "sinks": {name: {"plugin": "any", "config": dict(each)} for name, each in sinks.items()}}
    (cache.parents[1] / "hypaware-config.json").write_text(json.dumps(document))


def _value(value: Any, type_: pa.DataType) -> Any:
    if type_ == VARIANT:
        document, names = VariantUtils.parse_json(json.dumps(value))
        return {"metadata": names, "value": document}
    if value is not None and pa.types.is_timestamp(type_):
        return datetime.fromisoformat(value)
    return value
