"""The schema of the state: an append-only list of named migrations, each applied once, in order.

A released migration is never edited; a change of the schema is a new one. The DDL is the same for SQLite and
PostgreSQL, for which `postgres_database` replaces the types TEXT and BLOB. Times are ISO 8601 text in UTC. `meta` holds
single values by key.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hypaware.state.store import Connection

_STREAM = "sink TEXT NOT NULL, dataset TEXT NOT NULL, source TEXT NOT NULL"
_SENDER = "tenant TEXT NOT NULL, gateway_id TEXT NOT NULL, incarnation TEXT NOT NULL, dataset TEXT NOT NULL"
_PARTITION = "dataset TEXT NOT NULL, source TEXT NOT NULL, day TEXT NOT NULL"
_CHECKPOINT = """provider TEXT NOT NULL, dataset TEXT NOT NULL, path TEXT NOT NULL, inode BIGINT NOT NULL,
            size BIGINT NOT NULL, mtime_ns BIGINT NOT NULL, consumed BIGINT NOT NULL, prefix_hash TEXT NOT NULL,
            held TEXT NOT NULL, quiet INTEGER NOT NULL, left_out TEXT NOT NULL,
            since TEXT, until TEXT"""
_MACHINE_CHECKPOINT = f"machine TEXT NOT NULL, {_CHECKPOINT}, ignored TEXT NOT NULL, pin TEXT"
_CHECKPOINT_NAMES = (
    "provider, dataset, path, inode, size, mtime_ns, consumed, prefix_hash, held, quiet, left_out, since, until,"
    " ignored, pin"
)

MIGRATIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "0001_foundation",
        (
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
        ),
    ),
    (
        "0002_sources",
        (
            f"CREATE TABLE sources ({_CHECKPOINT}, PRIMARY KEY (provider, dataset, path))",
            f"""CREATE TABLE pending_sources (
                flush_id TEXT NOT NULL, {_CHECKPOINT}, PRIMARY KEY (flush_id, provider, dataset, path))""",
        ),
    ),
    (
        "0003_delivery",
        (
            f"""CREATE TABLE streams (
                {_STREAM}, address TEXT NOT NULL, destination_id TEXT, watermark BIGINT, history TEXT NOT NULL,
                exported_rows BIGINT NOT NULL, held TEXT, attempts INTEGER NOT NULL, retry_at TEXT, last_error TEXT,
                last_success_at TEXT, updated_at TEXT NOT NULL, PRIMARY KEY (sink, dataset, source))""",
            f"""CREATE TABLE intents (
                {_STREAM}, seq_after BIGINT NOT NULL, seq_last BIGINT NOT NULL, planned_at TEXT NOT NULL,
                PRIMARY KEY (sink, dataset, source))""",
            f"""CREATE TABLE chunks (
                {_STREAM}, seq_after BIGINT NOT NULL, seq_last BIGINT NOT NULL, id TEXT NOT NULL,
                incarnation TEXT NOT NULL, row_count BIGINT NOT NULL, status TEXT NOT NULL,
                PRIMARY KEY (sink, dataset, source, seq_after, seq_last))""",
            f"""CREATE TABLE dead_letters (
                id TEXT PRIMARY KEY, {_STREAM}, incarnation TEXT NOT NULL, seq_after BIGINT NOT NULL,
                seq_last BIGINT NOT NULL, row_count BIGINT NOT NULL, reason TEXT NOT NULL, at TEXT NOT NULL,
                payload BLOB)""",
        ),
    ),
    (
        "0004_server",
        (
            """CREATE TABLE server_tokens (
                id TEXT PRIMARY KEY, hash TEXT NOT NULL, label TEXT, created_at TEXT NOT NULL, expires_at TEXT,
                revoked_at TEXT, last_used_at TEXT)""",
            "CREATE UNIQUE INDEX server_tokens_by_hash ON server_tokens (hash)",
            """CREATE TABLE gateways (
                tenant TEXT NOT NULL, gateway_id TEXT NOT NULL, secret_hash TEXT, owner TEXT, label TEXT, host TEXT,
                first_seen_at TEXT NOT NULL, last_seen_at TEXT NOT NULL, PRIMARY KEY (tenant, gateway_id))""",
            f"""CREATE TABLE batches (
                {_SENDER}, batch_id TEXT NOT NULL, source TEXT, seq_after BIGINT, seq_last BIGINT, segment TEXT,
                row_count BIGINT NOT NULL, content_sha TEXT NOT NULL, stored_at TEXT NOT NULL,
                PRIMARY KEY (tenant, gateway_id, incarnation, dataset, batch_id))""",
            "CREATE INDEX batches_by_range ON batches (tenant, gateway_id, incarnation, dataset, source, seq_last)",
            f"""CREATE TABLE delivered (
                {_SENDER}, source TEXT NOT NULL, seq_after BIGINT NOT NULL, seq_last BIGINT NOT NULL,
                PRIMARY KEY (tenant, gateway_id, incarnation, dataset, source, seq_after))""",
        ),
    ),
    (
        "0005_retention",
        (
            f"""CREATE TABLE retention_holds (
                {_PARTITION}, since TEXT NOT NULL, through BIGINT NOT NULL,
                PRIMARY KEY (dataset, source, day, since))""",
            f"""CREATE TABLE retention_drops (
                {_PARTITION}, at TEXT NOT NULL, through BIGINT NOT NULL, row_count BIGINT NOT NULL, sinks TEXT NOT NULL,
                landed INTEGER NOT NULL, PRIMARY KEY (dataset, source, day, at))""",
        ),
    ),
    (
        "0006_takeover",
        (
            """CREATE TABLE pending_watermarks (
                flush_id TEXT NOT NULL, sink TEXT NOT NULL, dataset TEXT NOT NULL, source TEXT NOT NULL,
                address TEXT NOT NULL, watermark BIGINT NOT NULL, PRIMARY KEY (flush_id, sink, dataset, source))""",
        ),
    ),
    (
        "0007_ignored",
        (
            "ALTER TABLE sources ADD COLUMN ignored TEXT NOT NULL DEFAULT '[]'",
            "ALTER TABLE pending_sources ADD COLUMN ignored TEXT NOT NULL DEFAULT '[]'",
        ),
    ),
    (
        "0008_planned",
        (
            "ALTER TABLE streams ADD COLUMN planned_to BIGINT NOT NULL DEFAULT 0",
            # A stream without a watermark may have sent any row.
            """UPDATE streams SET planned_to = coalesce(
                (SELECT max(seq_last) FROM intents WHERE intents.sink = streams.sink
                    AND intents.dataset = streams.dataset AND intents.source = streams.source),
                watermark, (SELECT next_seq - 1 FROM allocator WHERE name = 'seq'), 0)""",
        ),
    ),
    (
        "0009_pins",
        ("ALTER TABLE sources ADD COLUMN pin TEXT", "ALTER TABLE pending_sources ADD COLUMN pin TEXT"),
    ),
    (
        "0010_titles",
        (
            """CREATE TABLE titles (
                client TEXT NOT NULL, session_id TEXT NOT NULL, kind TEXT NOT NULL, title TEXT NOT NULL,
                at TEXT NOT NULL, PRIMARY KEY (client, session_id, kind))""",
        ),
    ),
    ("0011_viewers", ("ALTER TABLE server_tokens ADD COLUMN use TEXT NOT NULL DEFAULT 'enrol'",)),
    (
        "0012_server_clocks",
        ("CREATE TABLE server_clocks (host TEXT PRIMARY KEY, seen_at TEXT NOT NULL, date TEXT NOT NULL)",),
    ),
    (
        "0013_machines",
        # A path means another file on another machine. The key of a table cannot be changed in place.
        (
            "ALTER TABLE sources RENAME TO sources_of_one_machine",
            "ALTER TABLE pending_sources RENAME TO pending_sources_of_one_machine",
            f"CREATE TABLE sources ({_MACHINE_CHECKPOINT}, PRIMARY KEY (machine, provider, dataset, path))",
            f"""CREATE TABLE pending_sources (
                flush_id TEXT NOT NULL, {_MACHINE_CHECKPOINT},
                PRIMARY KEY (flush_id, machine, provider, dataset, path))""",
            f"INSERT INTO sources SELECT '', {_CHECKPOINT_NAMES} FROM sources_of_one_machine",
            f"INSERT INTO pending_sources SELECT flush_id, '', {_CHECKPOINT_NAMES} FROM pending_sources_of_one_machine",
            "DROP TABLE sources_of_one_machine",
            "DROP TABLE pending_sources_of_one_machine",
        ),
    ),
    (
        "0014_received",
        (
            """CREATE TABLE received (
                dataset TEXT NOT NULL, segment TEXT NOT NULL, location TEXT, tenant TEXT NOT NULL,
                gateway_id TEXT NOT NULL, row_count BIGINT NOT NULL, byte_count BIGINT NOT NULL,
                received_at TEXT NOT NULL, PRIMARY KEY (dataset, segment))""",
            """CREATE TABLE received_days (
                tenant TEXT NOT NULL, gateway_id TEXT NOT NULL, day TEXT NOT NULL, row_count BIGINT NOT NULL,
                byte_count BIGINT NOT NULL, PRIMARY KEY (tenant, gateway_id, day))""",
        ),
    ),
)


def get_meta(connection: Connection, key: str) -> str | None:
    value: str | None = connection.value("SELECT value FROM meta WHERE key = ?", (key,))
    return value


def set_meta(connection: Connection, key: str, value: str) -> None:
    connection.execute("DELETE FROM meta WHERE key = ?", (key,))
    connection.insert("meta", {"key": key, "value": value})


def utc_now() -> str:
    return datetime.now(UTC).isoformat()
