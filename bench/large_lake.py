"""Make a large lake quickly: `python -m bench.large_lake HOME ROWS`, for a home or a shared lake
that is new.

Spark makes the rows itself and appends them, 25 days at a time, so no spool and no flush takes its time. They are
small (200 bytes), of two sources in turn, 20,000 a day: a larger lake has more files, as it would have for its user. At
the end, lake and state hold the sequences as if flushes had allocated them.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from hypaware.engine.session import open_session
from hypaware.home import Home
from hypaware.iceberg.metadata import FLOOR_PROPERTY
from hypaware.lake import schema
from hypaware.lake.key_index import KeyIndex
from hypaware.lake.spark_table import SparkLake
from hypaware.model import datasets
from hypaware.model.datasets import BATCH_ID, ROW_ID, SEQ, SOURCE
from hypaware.state import flushes, mirror
from hypaware.state.home_opener import open_home

DATASET = "ai_gateway_messages"
ROWS_A_DAY = 20_000
_DAYS_A_COMMIT = 25
_START = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp())
_TEXT = "The invoice moves a due date that falls on a weekend to the next workday. "


def main(home: Home, rows: int) -> None:
    began = time.perf_counter()
    opened = open_home(home)
    session = open_session(home)
    try:
        session.own_lake(lambda _seconds, _holder: None)
        with closing(opened.store) as store:
            made = SparkLake(home, session.spark, opened.identity, lambda: None).table(datasets.get(DATASET))
            table = schema.full_table_name(DATASET)
            step = ROWS_A_DAY * _DAYS_A_COMMIT
            for first in range(0, rows, step):
                some = numbered(session.spark, first, min(first + step, rows), opened.gateway_id)
                # One task per day, so each writes one file per source.
                some.writeTo(table).option("fanout-enabled", "true").option("distribution-mode", "none").append()
            session.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{FLOOR_PROPERTY}' = '{rows}')")
            with store.transaction() as connection:
                flushes.raise_next_sequence(connection, rows + 1)
                last = {"codex" if seq % 2 == 0 else "claude": seq for seq in (rows - 1, rows)}
                flushes.raise_high_water(connection, DATASET, last)
            mirror.write_mirror(home.mirror, store)
            # Without the key index: only flushes need it, it takes minutes to build, and no row here is repeated.
            with closing(KeyIndex(home.keys)) as index:
                index.add(DATASET, made.uuid, rows, ())
    finally:
        session.close()
    print(json.dumps({"rows": rows, "seconds": time.perf_counter() - began}))


def numbered(spark: SparkSession, first: int, end: int, gateway_id: str) -> DataFrame:
    """Return rows with the sequences (first, end]."""
    tasks = -(-(end - first) // ROWS_A_DAY)
    client = "if(id % 2 = 0, 'claude', 'codex')"
    at = f"timestamp_seconds({_START} + id * {86_400 / ROWS_A_DAY})"
    values = {
        SEQ: "id + 1",
        SOURCE: client,
        ROW_ID: "sha2(string(id), 256)",
        BATCH_ID: f"'{first:08d}-0e43-497a-acef-c7439a9403fb'",
        "gateway_id": f"'{gateway_id}'",
        "schema_version": "7",
        "session_id": "concat('session-', id div 400)",
        "provider": "'anthropic'",
        "conversation_started_at": at,
        "client_name": client,
        "message_id": "concat('large-', id)",
        "message_index": "int(id % 400)",
        "message_created_at": at,
        "role": "'assistant'",
        "part_id": "concat('large-', id, '#0')",
        "part_index": "0",
        "part_type": "'text'",
        "content_text": f"concat(id, ': {_TEXT}')",
        "date": f"date_format({at}, 'yyyy-MM-dd')",
    }
    columns = [
        f"{values.get(field, 'null')} AS `{field}`" for field in spark.table(schema.full_table_name(DATASET)).columns
    ]
    return spark.range(first, end, 1, tasks).selectExpr(*columns)


if __name__ == "__main__":
    main(Home(Path(sys.argv[1])), int(sys.argv[2]))
