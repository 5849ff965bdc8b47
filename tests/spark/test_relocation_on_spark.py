"""A copied home's tables in Spark and Iceberg: reads, time travel, commits, rewrites, expiry.

The session uses the original's catalog; the copy's catalog is opened in it under another name.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hypaware.engine.session import EngineSession, session_settings
from hypaware.home import Home
from hypaware.home.storage import parse_location
from hypaware.iceberg import metadata
from hypaware.lake import schema
from hypaware.lake.flush import Flusher
from hypaware.lake.spark_table import SparkLake
from hypaware.model import datasets
from hypaware.model.datasets import SEQ
from hypaware.state import flushes
from hypaware.state.home_opener import OpenHome, open_home
from tests.support.light_home import append
from tests.support.light_lake import read_lake
from tests.support.rows import rows

pytestmark = pytest.mark.spark
DATASET = "ai_gateway_messages"
COPY = "copied"


@pytest.fixture
def original(engine_session: EngineSession, engine_home: Home) -> Iterator[OpenHome]:
    """Return a home with four commits of one file each."""
    opened = open_home(engine_home)
    drop = f"DROP TABLE IF EXISTS {schema.full_table_name(DATASET)} PURGE"
    with closing(opened.store):
        with opened.store.transaction() as connection:
            flushes.lower_high_water(connection, DATASET, 0)
        engine_session.spark.sql(drop)
        lake = SparkLake(engine_home, engine_session.spark, opened.identity, lambda: None)
        for start in range(0, 40, 10):
            append(engine_home, rows(10, start=start))
            Flusher(engine_home, opened.store, lake).flush(datasets.get(DATASET), wait=0)
        yield opened
        engine_session.spark.sql(drop)


def _contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.hazard(69)
@pytest.mark.hazard(70)
def test_a_copy_is_an_independent_lake(engine_session: EngineSession, original: OpenHome, tmp_path: Path) -> None:
    spark = engine_session.spark
    # Skip its socket and scratch files, as a backup does.
    copy = Home(tmp_path / "die kopie % ü")
    shutil.copytree(original.home.root, copy.root, ignore=shutil.ignore_patterns("engine"))
    history = spark.sql(f"SELECT snapshot_id FROM {schema.full_table_name(DATASET)}.snapshots ORDER BY committed_at")
    snapshots = [row[0] for row in history.collect()]
    before = _contents(original.home.warehouse)

    open_home(copy).store.close()
    assert len(read_lake(original.home, DATASET)) == 40

    _open_catalog(engine_session, copy)
    table = f"{COPY}.{metadata.NAMESPACE}.{DATASET}"
    assert spark.sql(f"SELECT count(*), max({SEQ}) FROM {table}").collect() == [(40, spark_max(engine_session))]
    assert [spark.sql(f"SELECT count(*) FROM {table} VERSION AS OF {each}").collect()[0][0] for each in snapshots] == [
        10, 20, 30, 40,
    ]  # fmt: skip
    files = {row[0] for row in spark.sql(f"SELECT file_path FROM {table}.files").collect()}
    assert all(parse_location(file).is_relative_to(copy.root) for file in files)
    assert len(files) == 4

    # All operations that delete files: compaction, row deletion, expiry, orphan removal.
    called = f"CALL {COPY}.system"
    done = spark.sql(
        f"{called}.rewrite_data_files(table => '{metadata.NAMESPACE}.{DATASET}', options => map('rewrite-all', 'true'))"
    ).collect()[0]
    assert done["rewritten_data_files_count"] == 4
    spark.sql(f"DELETE FROM {table} WHERE message_index < 35").collect()
    spark.sql(
        f"{called}.expire_snapshots(table => '{metadata.NAMESPACE}.{DATASET}', retain_last => 1,"
        " older_than => TIMESTAMP '2100-01-01 00:00:00')"
    ).collect()
    spark.sql(f"{called}.rewrite_manifests('{metadata.NAMESPACE}.{DATASET}')").collect()
    assert spark.sql(f"SELECT count(*) FROM {table}").collect()[0][0] == 5
    assert not [file for file in files if parse_location(file).exists()]
    assert _contents(original.home.warehouse) == before

    spark.sql(f"DROP TABLE {table} PURGE")
    assert _contents(original.home.warehouse) == before
    assert spark.sql(f"SELECT count(*) FROM {schema.full_table_name(DATASET)}").collect()[0][0] == 40


def spark_max(session: EngineSession) -> int:
    return int(session.spark.sql(f"SELECT max({SEQ}) FROM {schema.full_table_name(DATASET)}").collect()[0][0])


def _open_catalog(session: EngineSession, home: Home) -> None:
    with closing(sqlite3.connect(home.catalog, isolation_level=None)) as catalog:
        for name in ("iceberg_tables", "iceberg_namespace_properties"):
            catalog.execute(f"UPDATE {name} SET catalog_name = ?", (COPY,))
    prefix = f"spark.sql.catalog.{metadata.CATALOG}"
    for key, value in session_settings(home, home.root).items():
        if key.startswith(prefix):
            session.spark.conf.set(key.replace(prefix, f"spark.sql.catalog.{COPY}"), value)
