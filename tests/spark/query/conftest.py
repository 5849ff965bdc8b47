"""A small table for the tests of each module. Modules share the Spark session and its tables with all others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from hypaware.engine.session import EngineSession
from hypaware.home import Home
from hypaware.home.identity import new_identity
from hypaware.lake import schema
from hypaware.lake.spark_table import create_table
from tests.support.query_runner import QueryRunner
from tests.support.rows import MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 60


@pytest.fixture(scope="module")
def engine(engine_session: EngineSession, engine_home: Home) -> Iterator[EngineSession]:
    spark = engine_session.spark
    spark.sql(f"DROP TABLE IF EXISTS {schema.full_table_name(MESSAGES.name)} PURGE")
    create_table(spark, MESSAGES, new_identity(engine_home.root))
    insert(spark, 0, ROWS)
    yield engine_session
    spark.sql(f"DROP TABLE IF EXISTS {schema.full_table_name(MESSAGES.name)} PURGE")


@pytest.fixture
def spark(engine: EngineSession) -> SparkSession:
    return engine.spark


@pytest.fixture
def runner(engine: EngineSession) -> QueryRunner:
    return QueryRunner(engine.spark)


def insert(spark: SparkSession, start: int, end: int) -> None:
    """Insert rows as a flush does, with alternating roles; every third row has no model."""
    spark.sql(f"""
        INSERT INTO {schema.full_table_name(MESSAGES.name)}
            (_hyp_ingest_seq, _hyp_source, _hyp_cache_row_id, _hyp_cache_batch_id, gateway_id, schema_version,
             session_id, provider, model, conversation_started_at, message_id, message_index, message_created_at,
             role, part_id, part_index, part_type, content_text, date)
        SELECT id + 1, 'claude', concat('row-', id), 'flush-1', 'gw-1', 7, concat('session-', id DIV 10), 'anthropic',
               IF(id % 3 = 0, NULL, concat('model-', id % 3)), timestamp'2026-11-15 07:00:00', concat('m-', id),
               CAST(id AS INT), timestamp'2026-11-15 07:00:00' + make_dt_interval(0, 0, 0, id),
               element_at(array('user', 'assistant', 'tool'), CAST(id % 3 AS INT) + 1), concat('m-', id, '#0'), 0,
               'text', concat('text of message ', id), '2026-11-15'
        FROM range({start}, {end})
    """)
