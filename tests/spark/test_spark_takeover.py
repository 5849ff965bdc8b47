"""A takeover through real Spark, compared with how Spark and Iceberg read the original's table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import orjson
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import VariantType

from hypaware import config
from hypaware.config import Config
from hypaware.engine.session import EngineSession
from hypaware.home import Home
from hypaware.lake import schema
from hypaware.model.datasets import SEQ
from hypaware.state import flushes
from hypaware.state.home_opener import OpenHome, open_home
from hypaware.takeover.run import import_cache
from tests.support.light_home import append
from tests.support.rows import rows

pytestmark = pytest.mark.spark
DATASET = "ai_gateway_messages"
TABLE = schema.full_table_name(DATASET)
SAMPLE = Path(__file__).parents[1] / "fixtures" / "hypaware-cache"
WRITTEN_AT = "file:///home/dev/.hyp/hypaware/cache"


class Context:
    """The context that the engine gives to a job."""

    def __init__(self, home: Home, spark: SparkSession) -> None:
        self.home, self.spark = home, spark
        self.config: Config = config.load(home)
        self.messages: list[str] = []
        self.notes: list[str] = []

    def progress(self, message: str, done: float | None = None, total: float | None = None, **facts: object) -> None:
        self.messages.append(message)

    def emit(self, chunk: bytes) -> None:
        raise AssertionError("a takeover streams nothing")

    def note(self, message: str) -> None:
        self.notes.append(message)

    def check_cancelled(self) -> None:
        pass


@pytest.fixture
def opened(engine_session: EngineSession, engine_home: Home) -> Iterator[OpenHome]:
    """The shared home without a table."""
    found = open_home(engine_home)
    with closing(found.store):
        with found.store.transaction() as connection:
            flushes.lower_high_water(connection, DATASET, 0)
            for table in ("streams", "high_water"):
                connection.execute(f"DELETE FROM {table}")
        engine_session.spark.sql(f"DROP TABLE IF EXISTS {TABLE} PURGE")
        yield found
        engine_session.spark.sql(f"DROP TABLE IF EXISTS {TABLE} PURGE")


def relocated(folder: Path) -> Path:
    """Copy the sample's table with corrected paths, so that Iceberg itself can read it."""
    cache = folder / "cache"
    shutil.copytree(SAMPLE, cache)
    table = cache / "datasets" / DATASET / "source=claude" / "table"
    for path in table.glob("metadata/*.json"):
        path.write_text(path.read_text().replace(WRITTEN_AT, f"file://{cache}"))
    for path in table.glob("metadata/*.avro"):
        with path.open("rb") as file:
            avro = fastavro.reader(file)
            schema, avro_metadata, records = avro.writer_schema, avro.metadata, list(avro)
        for record in records:
            inner: Any = record
            if "manifest_path" in inner:
                inner["manifest_path"] = inner["manifest_path"].replace(WRITTEN_AT, f"file://{cache}")
            else:
                inner["data_file"]["file_path"] = inner["data_file"]["file_path"].replace(WRITTEN_AT, f"file://{cache}")
        kept = {key: value for key, value in avro_metadata.items() if not key.startswith("avro.")}
        with path.open("wb") as file:
            fastavro.writer(file, schema, records, metadata=kept)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    return table


def by_part(spark: SparkSession, query: Any) -> dict[str, dict[str, Any]]:
    return {row["part_id"]: row.asDict() for row in query.collect()}


def test_every_column_is_as_spark_and_iceberg_read_it_in_the_original(
    engine_session: EngineSession, opened: OpenHome, tmp_path: Path
) -> None:
    spark = engine_session.spark
    append(opened.home, rows(2))
    context = Context(opened.home, spark)
    report = import_cache(context, {"dir": str(SAMPLE)})
    (counts,) = report["datasets"][0]["sources"]
    assert (counts["rows_found"], counts["rows_written"], counts["rows_duplicate"], counts["rows_rejected"]) == (
        1481,
        1481,
        0,
        0,
    )
    assert "importing ai_gateway_messages" in context.messages

    # Iceberg's vectorised reader does not support VARIANT.
    reader = spark.read.format("iceberg").option("vectorization-enabled", "false")
    original_table = reader.load(str(relocated(tmp_path)))
    variants = [field.name for field in original_table.schema.fields if isinstance(field.dataType, VariantType)]
    assert len(variants) == 7
    as_json = original_table.select(
        *(F.to_json(name).alias(name) if name in variants else name for name in original_table.columns)
    )
    expected = by_part(spark, as_json)
    found = by_part(spark, spark.table(TABLE).where("part_id not like 'message-%'"))
    assert found.keys() == expected.keys()
    for part, imported in found.items():
        original = expected[part]
        attributes = orjson.loads(imported.pop("attributes"))
        assert attributes["gateway"].pop("taken_over_from") == original.pop("gateway_id")
        assert attributes == json.loads(original.pop("attributes"))
        for name in original.keys() - {SEQ}:
            if name in variants:
                assert json.loads(imported[name] or "null") == json.loads(original[name] or "null"), name
            else:
                assert _in_utc(imported[name]) == _in_utc(original[name]), name
    before = sorted(found, key=lambda part: expected[part][SEQ])
    assert sorted(found, key=lambda part: found[part][SEQ]) == before
    lowest = spark.sql(f"SELECT max({SEQ}) FROM {TABLE} WHERE part_id like 'message-%'").collect()[0][0]
    assert min(row[SEQ] for row in found.values()) > lowest, "rows in the home's own spool are committed first"

    again = import_cache(Context(opened.home, spark), {"dir": str(SAMPLE)})
    (counts,) = again["datasets"][0]["sources"]
    assert (counts["rows_found"], counts["rows_written"], counts["rows_duplicate"]) == (1481, 0, 1481)
    assert again["datasets"][0]["rows_taken_before"] == 1481
    assert spark.table(TABLE).count() == 1483
    assert spark.sql(f"SELECT count(*) FROM {TABLE}.snapshots").collect()[0][0] == 2, "one commit, whatever its size"


def _in_utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value
