"""The tables of the state for queries. `migrations` creates them, and a test compares the two definitions."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, Table, Text

metadata = MetaData()

meta = Table(
    "meta",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

allocator = Table(
    "allocator",
    metadata,
    Column("name", Text, primary_key=True),
    Column("next_seq", BigInteger, nullable=False),
)

flushes = Table(
    "flushes",
    metadata,
    Column("id", Text, primary_key=True),
    Column("dataset", Text, nullable=False),
    Column("seq_after", BigInteger, nullable=False),
    Column("seq_last", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("reserved_at", Text, nullable=False),
    Column("finished_at", Text),
    Column("rows_written", BigInteger),
    Column("rows_duplicate", BigInteger),
    Column("rows_rejected", BigInteger),
)

segments = Table(
    "segments",
    metadata,
    Column("dataset", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("flush_id", Text),
    Column("seq_base", BigInteger),
    Column("row_count", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("updated_at", Text, nullable=False),
)

high_water = Table(
    "high_water",
    metadata,
    Column("dataset", Text, primary_key=True),
    Column("source", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False),
)


def _mark_columns() -> list[Column[Any]]:
    return [
        Column("provider", Text, primary_key=True),
        Column("dataset", Text, primary_key=True),
        Column("path", Text, primary_key=True),
        Column("inode", BigInteger, nullable=False),
        Column("size", BigInteger, nullable=False),
        Column("mtime_ns", BigInteger, nullable=False),
        Column("consumed", BigInteger, nullable=False),
        Column("prefix_hash", Text, nullable=False),
        Column("held", Text, nullable=False),
        Column("quiet", Integer, nullable=False),
        Column("left_out", Text, nullable=False),
        Column("since", Text),
        Column("until", Text),
        Column("ignored", Text, nullable=False),
    ]


sources = Table("sources", metadata, *_mark_columns())
pending_sources = Table("pending_sources", metadata, Column("flush_id", Text, primary_key=True), *_mark_columns())


def _stream_columns(*, key: bool) -> list[Column[Any]]:
    return [Column(name, Text, primary_key=key, nullable=False) for name in ("sink", "dataset", "source")]


streams = Table(
    "streams",
    metadata,
    *_stream_columns(key=True),
    Column("address", Text, nullable=False),
    Column("destination_id", Text),
    Column("watermark", BigInteger),
    Column("history", Text, nullable=False),
    Column("exported_rows", BigInteger, nullable=False),
    Column("held", Text),
    Column("attempts", Integer, nullable=False),
    Column("retry_at", Text),
    Column("last_error", Text),
    Column("last_success_at", Text),
    Column("updated_at", Text, nullable=False),
)

intents = Table(
    "intents",
    metadata,
    *_stream_columns(key=True),
    Column("seq_after", BigInteger, nullable=False),
    Column("seq_last", BigInteger, nullable=False),
    Column("planned_at", Text, nullable=False),
)

chunks = Table(
    "chunks",
    metadata,
    *_stream_columns(key=True),
    Column("seq_after", BigInteger, primary_key=True),
    Column("seq_last", BigInteger, primary_key=True),
    Column("id", Text, nullable=False),
    Column("incarnation", Text, nullable=False),
    Column("row_count", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
)

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("id", Text, primary_key=True),
    *_stream_columns(key=False),
    Column("incarnation", Text, nullable=False),
    Column("seq_after", BigInteger, nullable=False),
    Column("seq_last", BigInteger, nullable=False),
    Column("row_count", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", Text, nullable=False),
    Column("payload", LargeBinary),
)

server_tokens = Table(
    "server_tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("hash", Text, nullable=False),
    Column("label", Text),
    Column("created_at", Text, nullable=False),
    Column("expires_at", Text),
    Column("revoked_at", Text),
    Column("last_used_at", Text),
)

gateways = Table(
    "gateways",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("gateway_id", Text, primary_key=True),
    Column("secret_hash", Text),
    Column("owner", Text),
    Column("label", Text),
    Column("host", Text),
    Column("first_seen_at", Text, nullable=False),
    Column("last_seen_at", Text, nullable=False),
)


def _sender_columns() -> list[Column[Any]]:
    return [Column(name, Text, primary_key=True) for name in ("tenant", "gateway_id", "incarnation", "dataset")]


batches = Table(
    "batches",
    metadata,
    *_sender_columns(),
    Column("batch_id", Text, primary_key=True),
    Column("source", Text),
    Column("seq_after", BigInteger),
    Column("seq_last", BigInteger),
    Column("segment", Text),
    Column("row_count", BigInteger, nullable=False),
    Column("content_sha", Text, nullable=False),
    Column("stored_at", Text, nullable=False),
)

delivered = Table(
    "delivered",
    metadata,
    *_sender_columns(),
    Column("source", Text, primary_key=True),
    Column("seq_after", BigInteger, primary_key=True),
    Column("seq_last", BigInteger, nullable=False),
)

retention_holds = Table(
    "retention_holds",
    metadata,
    *[Column(name, Text, primary_key=True) for name in ("dataset", "source", "day", "since")],
    Column("through", BigInteger, nullable=False),
)

retention_drops = Table(
    "retention_drops",
    metadata,
    *[Column(name, Text, primary_key=True) for name in ("dataset", "source", "day", "at")],
    Column("through", BigInteger, nullable=False),
    Column("row_count", BigInteger, nullable=False),
    Column("sinks", Text, nullable=False),
    Column("landed", Integer, nullable=False),
)

pending_watermarks = Table(
    "pending_watermarks",
    metadata,
    Column("flush_id", Text, primary_key=True),
    *_stream_columns(key=True),
    Column("address", Text, nullable=False),
    Column("watermark", BigInteger, nullable=False),
)
