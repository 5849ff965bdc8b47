"""The floor for imports: `python -m bench.floor FOLDER OUT`.

A plain program on one core with only orjson and pyarrow. It reads the transcripts of `bench.transcripts`, builds the
same rows as the import, all 56 columns and the 4 internal ones, and writes zstd Parquet, one file a day in row
groups of about 4 MiB. It trusts its input: no validation, no dedupe, no fsync, nothing held back.
"""

from __future__ import annotations

import gc
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from hypaware.lake.schema import file_schema, table_columns
from hypaware.model.schemas import AI_GATEWAY_MESSAGES

Row = dict[str, Any]

GATEWAY_ID = "floor"
FLUSH_ID = "00000000-0000-4000-8000-000000000000"
_ROW_GROUP_BYTES = 4 << 20
# Columns and types come from the lake; everything else is an independent implementation.
SCHEMA = file_schema(
    AI_GATEWAY_MESSAGES, {column.name: at for at, column in enumerate(table_columns(AI_GATEWAY_MESSAGES), start=1)}
)
_NAMES = SCHEMA.names
_SAME_NAMES = {
    "requestId": "request_id",
    "promptId": "prompt_id",
    "permissionMode": "permission_mode",
    "sourceToolAssistantUUID": "source_tool_assistant_uuid",
    "parentUuid": "parent_uuid",
    "isSidechain": "is_sidechain",
    "entrypoint": "entrypoint",
    "userType": "user_type",
}
_FINISHED = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "pause_turn": "pause"}


def main(folder: Path, out: Path) -> None:
    gc.disable()
    began = time.perf_counter()
    rows = write(folder, out)
    spent = time.perf_counter() - began
    print(json.dumps({"seconds": round(spent, 3), "rows": rows, "rows_per_second": round(rows / spent)}))


def write(folder: Path, out: Path) -> int:
    """Write OUT/<day>.parquet and return the number of rows."""
    days: dict[str, Day] = {}
    base, rows = 1, 0
    for path in in_order(folder):
        for row, size in rows_of(path, base):
            day = row["date"]
            if day not in days:
                days[day] = Day(out / f"{day}.parquet")
            days[day].add(row, size)
            rows += 1
        base += path.stat().st_size
    for each in days.values():
        each.close()
    return rows


def in_order(folder: Path) -> list[Path]:
    """Sort files by their first timestamp."""

    def first_time(path: Path) -> str:
        with open(path, "rb") as file:
            times = (orjson.loads(line).get("timestamp") for line in file)
            return next((at for at in times if at), "~")

    return sorted((folder / "projects").rglob("*.jsonl"), key=lambda path: (first_time(path), path))


class Day:
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = pq.ParquetWriter(path, SCHEMA, compression="zstd", compression_level=1, store_schema=False)
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0

    def add(self, row: Row, size: int) -> None:
        # Immediately, while the row is still in the CPU cache.
        self._rows.append(tuple(map(row.get, _NAMES)))
        self._bytes += size
        if self._bytes >= _ROW_GROUP_BYTES:
            self._write()

    def close(self) -> None:
        if self._rows:
            self._write()
        self._writer.close()

    def _write(self) -> None:
        rows, self._rows, self._bytes = self._rows, [], 0
        columns = [_column(field.type, values) for field, values in zip(SCHEMA, zip(*rows, strict=True), strict=True)]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), row_group_size=len(rows))


def _column(type_: pa.DataType, values: tuple[Any, ...]) -> pa.Array:
    if pa.types.is_timestamp(type_):
        return pa.array(values, pa.string()).cast(type_)
    return pa.array(values, type_)


def rows_of(path: Path, base: int) -> Iterator[tuple[Row, int]]:
    """Yield the rows of one transcript with the size of their lines; `base` is the first sequence."""
    lines = [(line, len(raw)) for raw in path.read_bytes().splitlines() if "uuid" in (line := orjson.loads(raw))]
    lines.sort(key=lambda each: each[0]["timestamp"])
    carriers = {line["message"].get("id"): line["uuid"] for line, _ in lines}
    shared, provenance = _shared(path, lines[0][0])
    parents: dict[str, str | None] = {}
    tools: dict[str, str] = {}
    for index, (line, size) in enumerate(lines):
        uuid, message = line["uuid"], line["message"]
        row: Row = {
            **shared,
            "message_id": uuid,
            "provider_uuid": uuid,
            "part_id": f"{uuid}#0",
            "part_index": 0,
            "message_index": index,
            "message_created_at": f"{line['timestamp'][:-1]}000Z",
            "date": line["timestamp"][:10],
            "role": message["role"],
            "provider_type": line["type"],
        }
        for theirs, ours in _SAME_NAMES.items():
            if (value := line.get(theirs)) is not None:
                row[ours] = value
        previous = parents[uuid] = line["parentUuid"]
        while previous is not None and previous not in parents:
            previous = parents.get(previous)
        row["previous_message_id"] = "[]" if previous is None else f'["{previous}"]'
        content = message["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        status = _add_block(row, content[0], tools)
        attributes = dict(provenance)
        if "model" in message:
            row["model"] = message["model"]
        if "toolUseResult" in line:
            attributes["claude"] = {"tool_use_result": line["toolUseResult"]}
        if "usage" in message and carriers[message["id"]] == uuid:
            attributes["usage"] = _usage(message["usage"])
            if reason := message["stop_reason"]:
                status["finish_reason"] = _FINISHED.get(reason, reason)
        if status:
            row["status"] = _json(status)
        row["attributes"] = _json(attributes)
        row["raw_frame"] = _json(_raw_frame(line))
        row["_hyp_cache_row_id"] = hashlib.sha256(orjson.dumps(row, option=orjson.OPT_SORT_KEYS)).hexdigest()
        row["_hyp_ingest_seq"] = base + index
        row["_hyp_source"] = "claude"
        row["_hyp_cache_batch_id"] = FLUSH_ID
        yield row, size


def _shared(path: Path, first: dict[str, Any]) -> tuple[Row, dict[str, Any]]:
    """Return the columns and attributes shared by all rows of a transcript."""
    columns = {
        "gateway_id": GATEWAY_ID,
        "schema_version": 7,
        "session_id": first["sessionId"],
        "provider": "anthropic",
        "conversation_started_at": f"{first['timestamp'][:-1]}000Z",
        "conversation_source": "claude",
        "client_name": "claude",
        "cwd": first["cwd"],
        "git_branch": first["gitBranch"],
        "client_version": first["version"],
    }
    attributes = {
        "client": {"name": "claude", "version": first["version"]},
        "gateway": {
            "source": "backfill",
            "source_path_hash": hashlib.sha256(str(path).encode()).hexdigest()[:16],
            "native_id": first["sessionId"],
        },
    }
    return columns, attributes


def _add_block(row: Row, block: dict[str, Any], tools: dict[str, str]) -> dict[str, Any]:
    """Fill the columns of a content block and return its status."""
    kind = row["provider_subtype"] = block["type"]
    if kind == "text":
        row["part_type"] = "text"
        row["content_text"] = block["text"]
    elif kind == "thinking":
        row["part_type"] = "reasoning"
        row["content_text"] = block["thinking"]
        row["thinking_signature"] = block["signature"]
    elif kind == "tool_use":
        row["part_type"] = "tool_call"
        row["tool_name"] = tools[block["id"]] = block["name"]
        row["tool_call_id"] = block["id"]
        row["tool_args"] = _json(block["input"])
        row["caller_type"] = block["caller"]["type"]
    else:
        call, content = block["tool_use_id"], block["content"]
        row["part_type"] = "tool_result"
        row["tool_name"] = tools[call]
        row["tool_call_id"] = row["tool_result_for"] = call
        row["content_text"] = content if isinstance(content, str) else "\n".join(part["text"] for part in content)
        if block.get("is_error"):
            row["is_error"] = True
            return {"tool_status": "error"}
        return {"tool_status": "success"}
    return {}


def _usage(usage: dict[str, Any]) -> dict[str, int]:
    counts = {
        "input_tokens": usage["input_tokens"],
        "output_tokens": usage["output_tokens"],
        "cache_read_tokens": usage["cache_read_input_tokens"],
        "cache_write_tokens": usage["cache_creation_input_tokens"],
    }
    if thought := usage.get("output_tokens_details", {}).get("thinking_tokens"):
        counts["reasoning_tokens"] = thought
    return counts


def _raw_frame(line: dict[str, Any]) -> dict[str, Any]:
    frame = {"uuid": line["uuid"], "type": line["type"], "timestamp": line["timestamp"]}
    if line["parentUuid"] is not None:
        frame["parent_uuid"] = line["parentUuid"]
    if "id" in line["message"]:
        frame["message_id"] = line["message"]["id"]
    return frame


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
