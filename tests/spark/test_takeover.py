"""A take-over through real Spark, held against Spark's and Iceberg's own reading of the original's table."""

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

from hypaware import config as configuration
from hypaware.config import Config
from hypaware.engine.session import EngineSession
from hypaware.home import Home
from hypaware.lake import tables
from hypaware.model.datasets import SEQ
from hypaware.opening import OpenHome, open_home
from hypaware.state import flushes
from hypaware.takeover.run import import_cache
from tests.light_life import append
from tests.rows import rows

pytestmark = pytest.mark.spark
DATASET = "ai_gateway_messages"
TABLE = tables.full_name(DATASET)
SAMPLE = Path(__file__).parents[1] / "fixtures" / "hypaware-cache"
WRITTEN_AT = "file:///home/dev/.hyp/hypaware/cache"


class Context:
    """What a job is given by an engine."""

    def __init__(self, home: Home, spark: SparkSession) -> None:
        self.home, self.spark = home, spark
        self.config: Config = configuration.load(home)
        self.told: list[str] = []
        self.notes: list[str] = []

    def progress(self, message: str, done: float | None = None, total: float | None = None, **facts: object) -> None:
        self.told.append(message)

    def emit(self, chunk: bytes) -> None:
        raise AssertionError("a take-over streams nothing")

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
                connection.exec_driver_sql(f"DELETE FROM {table}")
        engine_session.spark.sql(f"DROP TABLE IF EXISTS {TABLE} PURGE")
        yield found
        engine_session.spark.sql(f"DROP TABLE IF EXISTS {TABLE} PURGE")


def relocated(folder: Path) -> Path:
    """The sample's table in a copy that Iceberg itself can read: every path in it is true."""
    cache = folder / "cache"
    shutil.copytree(SAMPLE, cache)
    table = cache / "datasets" / DATASET / "source=claude" / "table"
    for path in table.glob("metadata/*.json"):
        path.write_text(path.read_text().replace(WRITTEN_AT, f"file://{cache}"))
    for path in table.glob("metadata/*.avro"):
        with path.open("rb") as file:
            held = fastavro.reader(file)
            schema, about, records = held.writer_schema, held.metadata, list(held)
        for record in records:
            inner: Any = record
            if "manifest_path" in inner:
                inner["manifest_path"] = inner["manifest_path"].replace(WRITTEN_AT, f"file://{cache}")
            else:
                inner["data_file"]["file_path"] = inner["data_file"]["file_path"].replace(WRITTEN_AT, f"file://{cache}")
        kept = {key: value for key, value in about.items() if not key.startswith("avro.")}
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
    (told,) = report["datasets"][0]["sources"]
    assert (told["rows_found"], told["rows_written"], told["rows_duplicate"], told["rows_rejected"]) == (
        1481,
        1481,
        0,
        0,
    )
    assert "taking over ai_gateway_messages" in context.told

    # Row by row: Iceberg's other reader does not know VARIANT.
    plainly = spark.read.format("iceberg").option("vectorization-enabled", "false")
    theirs = plainly.load(str(relocated(tmp_path)))
    variants = [field.name for field in theirs.schema.fields if isinstance(field.dataType, VariantType)]
    assert len(variants) == 7
    as_json = theirs.select(*(F.to_json(name).alias(name) if name in variants else name for name in theirs.columns))
    expected = by_part(spark, as_json)
    found = by_part(spark, spark.table(TABLE).where("part_id not like 'message-%'"))
    assert found.keys() == expected.keys()
    for part, mine in found.items():
        was = expected[part]
        attributes = orjson.loads(mine.pop("attributes"))
        assert attributes["gateway"].pop("taken_over_from") == was.pop("gateway_id")
        assert attributes == json.loads(was.pop("attributes"))
        for name in was.keys() - {SEQ}:
            if name in variants:
                assert json.loads(mine[name] or "null") == json.loads(was[name] or "null"), name
            else:
                assert _moment(mine[name]) == _moment(was[name]), name
    before = sorted(found, key=lambda part: expected[part][SEQ])
    assert sorted(found, key=lambda part: found[part][SEQ]) == before
    lowest = spark.sql(f"SELECT max({SEQ}) FROM {TABLE} WHERE part_id like 'message-%'").collect()[0][0]
    assert min(row[SEQ] for row in found.values()) > lowest, "what waited in the home's own spool came first"

    again = import_cache(Context(opened.home, spark), {"dir": str(SAMPLE)})
    (told,) = again["datasets"][0]["sources"]
    assert (told["rows_found"], told["rows_written"], told["rows_duplicate"]) == (1481, 0, 1481)
    assert again["datasets"][0]["rows_taken_before"] == 1481
    assert spark.table(TABLE).count() == 1483
    assert spark.sql(f"SELECT count(*) FROM {TABLE}.snapshots").collect()[0][0] == 2, "one commit, whatever its size"


def _moment(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value
