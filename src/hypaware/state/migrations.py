"""The migrations of the state: an append-only list of named steps, each applied once, in order.

A released step is never edited; a change of the schema is a new step. The DDL works on both SQLite and PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import Connection, text

Step = Callable[[Connection], None]


def _foundation(connection: Connection) -> None:
    for statement in (
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
        "CREATE TABLE allocator (name TEXT PRIMARY KEY, next_seq BIGINT NOT NULL)",
        "INSERT INTO allocator (name, next_seq) VALUES ('seq', 1)",
        """CREATE TABLE flushes (
            id TEXT PRIMARY KEY, dataset TEXT NOT NULL, seq_after BIGINT NOT NULL, seq_last BIGINT NOT NULL,
            status TEXT NOT NULL, reserved_at TEXT NOT NULL, finished_at TEXT,
            rows_written BIGINT, rows_duplicate BIGINT, rows_rejected BIGINT)""",
        "CREATE INDEX flushes_by_status ON flushes (dataset, status)",
        """CREATE TABLE segments (
            dataset TEXT NOT NULL, name TEXT NOT NULL, flush_id TEXT, seq_base BIGINT, row_count BIGINT NOT NULL,
            status TEXT NOT NULL, attempts INTEGER NOT NULL, updated_at TEXT NOT NULL,
            PRIMARY KEY (dataset, name))""",
        "CREATE INDEX segments_by_flush ON segments (flush_id)",
        """CREATE TABLE high_water (
            dataset TEXT NOT NULL, source TEXT NOT NULL, seq BIGINT NOT NULL, PRIMARY KEY (dataset, source))""",
    ):
        connection.execute(text(statement))


def _sources(connection: Connection) -> None:
    columns = """provider TEXT NOT NULL, dataset TEXT NOT NULL, path TEXT NOT NULL, inode BIGINT NOT NULL,
            size BIGINT NOT NULL, mtime_ns BIGINT NOT NULL, consumed BIGINT NOT NULL, prefix_hash TEXT NOT NULL,
            held TEXT NOT NULL, quiet INTEGER NOT NULL, left_out TEXT NOT NULL,
            since TEXT, until TEXT"""
    for statement in (
        f"CREATE TABLE sources ({columns}, PRIMARY KEY (provider, dataset, path))",
        f"""CREATE TABLE pending_sources (
            flush_id TEXT NOT NULL, {columns}, PRIMARY KEY (flush_id, provider, dataset, path))""",
    ):
        connection.execute(text(statement))


def _delivery(connection: Connection) -> None:
    stream = "sink TEXT NOT NULL, dataset TEXT NOT NULL, source TEXT NOT NULL"
    blob = "BYTEA" if connection.dialect.name == "postgresql" else "BLOB"
    for statement in (
        f"""CREATE TABLE streams (
            {stream}, address TEXT NOT NULL, destination_id TEXT, watermark BIGINT, history TEXT NOT NULL,
            exported_rows BIGINT NOT NULL, held TEXT, attempts INTEGER NOT NULL, retry_at TEXT, last_error TEXT,
            last_success_at TEXT, updated_at TEXT NOT NULL, PRIMARY KEY (sink, dataset, source))""",
        f"""CREATE TABLE intents (
            {stream}, seq_after BIGINT NOT NULL, seq_last BIGINT NOT NULL, planned_at TEXT NOT NULL,
            PRIMARY KEY (sink, dataset, source))""",
        f"""CREATE TABLE chunks (
            {stream}, seq_after BIGINT NOT NULL, seq_last BIGINT NOT NULL, id TEXT NOT NULL,
            incarnation TEXT NOT NULL, row_count BIGINT NOT NULL, status TEXT NOT NULL,
            PRIMARY KEY (sink, dataset, source, seq_after, seq_last))""",
        f"""CREATE TABLE dead_letters (
            id TEXT PRIMARY KEY, {stream}, incarnation TEXT NOT NULL, seq_after BIGINT NOT NULL,
            seq_last BIGINT NOT NULL, row_count BIGINT NOT NULL, reason TEXT NOT NULL, at TEXT NOT NULL,
            payload {blob})""",
    ):
        connection.execute(text(statement))


def _server(connection: Connection) -> None:
    sender = "tenant TEXT NOT NULL, gateway_id TEXT NOT NULL, incarnation TEXT NOT NULL, dataset TEXT NOT NULL"
    for statement in (
        """CREATE TABLE server_tokens (
            id TEXT PRIMARY KEY, hash TEXT NOT NULL, label TEXT, created_at TEXT NOT NULL, expires_at TEXT,
            revoked_at TEXT, last_used_at TEXT)""",
        "CREATE UNIQUE INDEX server_tokens_by_hash ON server_tokens (hash)",
        """CREATE TABLE gateways (
            tenant TEXT NOT NULL, gateway_id TEXT NOT NULL, secret_hash TEXT, owner TEXT, label TEXT, host TEXT,
            first_seen_at TEXT NOT NULL, last_seen_at TEXT NOT NULL, PRIMARY KEY (tenant, gateway_id))""",
        f"""CREATE TABLE batches (
            {sender}, batch_id TEXT NOT NULL, source TEXT, seq_after BIGINT, seq_last BIGINT, segment TEXT,
            row_count BIGINT NOT NULL, content_sha TEXT NOT NULL, stored_at TEXT NOT NULL,
            PRIMARY KEY (tenant, gateway_id, incarnation, dataset, batch_id))""",
        "CREATE INDEX batches_by_range ON batches (tenant, gateway_id, incarnation, dataset, source, seq_last)",
        f"""CREATE TABLE delivered (
            {sender}, source TEXT NOT NULL, seq_after BIGINT NOT NULL, seq_last BIGINT NOT NULL,
            PRIMARY KEY (tenant, gateway_id, incarnation, dataset, source, seq_after))""",
    ):
        connection.execute(text(statement))


def _retention(connection: Connection) -> None:
    partition = "dataset TEXT NOT NULL, source TEXT NOT NULL, day TEXT NOT NULL"
    for statement in (
        f"""CREATE TABLE retention_holds (
            {partition}, since TEXT NOT NULL, through BIGINT NOT NULL, PRIMARY KEY (dataset, source, day, since))""",
        f"""CREATE TABLE retention_drops (
            {partition}, at TEXT NOT NULL, through BIGINT NOT NULL, row_count BIGINT NOT NULL, sinks TEXT NOT NULL,
            landed INTEGER NOT NULL, PRIMARY KEY (dataset, source, day, at))""",
    ):
        connection.execute(text(statement))


def _takeover(connection: Connection) -> None:
    connection.execute(
        text(
            """CREATE TABLE pending_watermarks (
            flush_id TEXT NOT NULL, sink TEXT NOT NULL, dataset TEXT NOT NULL, source TEXT NOT NULL,
            address TEXT NOT NULL, watermark BIGINT NOT NULL, PRIMARY KEY (flush_id, sink, dataset, source))"""
        )
    )


def _ignored(connection: Connection) -> None:
    for table in ("sources", "pending_sources"):
        connection.execute(text(f"ALTER TABLE {table} ADD COLUMN ignored TEXT NOT NULL DEFAULT '[]'"))


STEPS: tuple[tuple[str, Step], ...] = (
    ("0001_foundation", _foundation),
    ("0002_sources", _sources),
    ("0003_delivery", _delivery),
    ("0004_server", _server),
    ("0005_retention", _retention),
    ("0006_takeover", _takeover),
    ("0007_ignored", _ignored),
)


def migrate(connection: Connection) -> None:
    """Apply the missing steps in the caller's transaction. Raise FromTheFuture for steps of a newer version."""
    connection.execute(text("CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY, applied_at TEXT NOT NULL)"))
    applied = set(connection.execute(text("SELECT name FROM migrations")).scalars())
    for name, step in STEPS:
        if name not in applied:
            step(connection)
            connection.execute(
                text("INSERT INTO migrations (name, applied_at) VALUES (:name, :at)"),
                {"name": name, "at": datetime.now(UTC).isoformat()},
            )
    if unknown := applied - {name for name, _ in STEPS}:
        raise FromTheFuture(", ".join(sorted(unknown)))


class FromTheFuture(Exception):
    """The state has migrations of a newer version of HypAware."""
