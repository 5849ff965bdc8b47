"""Multiply the rows of a home: `python -m bench.copied_lake HOME COPIES`, for a home with one imported history.

Each copy has ids of its own and lies 30 days before the previous one, so 26 copies of the history of 500 MB make
10 million rows of 29,484 sessions over two and a half years. Spark appends them, so no spool and no flush takes its
time. At the end, lake and state hold the sequences as if flushes had allocated them.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from pathlib import Path

from pyspark.sql import DataFrame

from hypaware.engine.session import open_session
from hypaware.home import Home
from hypaware.iceberg.metadata import FLOOR_PROPERTY
from hypaware.lake import schema
from hypaware.lake.key_index import KeyIndex
from hypaware.lake.spark_table import SparkLake
from hypaware.model import datasets
from hypaware.model.datasets import ROW_ID, SEQ
from hypaware.state import flushes, mirror
from hypaware.state.home_opener import open_home

DATASET = "ai_gateway_messages"
_DAYS_APART = 30
_IDS = ("session_id", "conversation_id", "message_id", "part_id", "tool_call_id", "tool_result_for", ROW_ID)


def main(home: Home, copies: int) -> None:
    began = time.perf_counter()
    opened = open_home(home)
    session = open_session(home)
    try:
        with closing(opened.store) as store:
            made = SparkLake(home, session.spark, opened.identity, lambda: None).table(datasets.get(DATASET))
            table = schema.full_table_name(DATASET)
            (first,) = session.spark.sql(f"SELECT snapshot_id FROM {table}.snapshots ORDER BY committed_at DESC").head(
                1
            )
            original = session.spark.sql(f"SELECT * FROM {table} VERSION AS OF {first[0]}")
            ((highest, rows),) = original.selectExpr(f"max({SEQ})", "count(*)").collect()
            for number in range(1, copies + 1):
                some = _copy(original, number, highest).repartition(8, "date").sortWithinPartitions("date", SEQ)
                some.writeTo(table).option("fanout-enabled", "true").option("distribution-mode", "none").append()
                print(f"copy {number} of {copies}", file=sys.stderr, flush=True)
            last = highest * (copies + 1)
            session.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{FLOOR_PROPERTY}' = '{last}')")
            with store.transaction() as connection:
                flushes.raise_next_sequence(connection, last + 1)
                flushes.raise_high_water(connection, DATASET, {"claude": last})
            mirror.write_mirror(home.mirror, store)
            # Without the keys of the copies: only flushes need them, and no row here is repeated.
            with closing(KeyIndex(home.keys)) as index:
                index.add(DATASET, made.uuid, last, ())
    finally:
        session.close()
    print(json.dumps({"rows": rows * (copies + 1), "seconds": time.perf_counter() - began}))


def _copy(original: DataFrame, number: int, highest: int) -> DataFrame:
    days = number * _DAYS_APART
    changed = {
        SEQ: f"{SEQ} + {number * highest}",
        "date": f"date_format(date_sub(to_date(date), {days}), 'yyyy-MM-dd')",
        "previous_message_id": f"replace(previous_message_id, '\"]', '-{number}\"]')",
        **{name: f"concat({name}, '-{number}')" for name in _IDS},
    }
    columns = [
        changed.get(name, f"{name} - INTERVAL {days} DAYS" if kind == "timestamp" else name)
        for name, kind in original.dtypes
    ]
    return original.selectExpr(
        *(f"{value} AS `{name}`" for value, (name, _) in zip(columns, original.dtypes, strict=True))
    )


if __name__ == "__main__":
    main(Home(Path(sys.argv[1])), int(sys.argv[2]))
