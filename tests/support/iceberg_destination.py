"""Another lake as a destination, and independent readers of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from hypaware.export.sink import Chunk, Sink, SinkSettings, SinkType, SparkRunner, TablePayload
from hypaware.export.sinks.iceberg import ICEBERG
from hypaware.export.sinks.iceberg.iceberg_sink import IcebergSink
from hypaware.home import Home
from tests.support.rows import DATASET
from tests.support.shipments import GATEWAY, INCARNATION, rows_of

T = TypeVar("T")


def on_session(spark: SparkSession) -> SparkRunner:
    async def run(work: Callable[[SparkSession], T]) -> T:
        return work(spark)

    return run


@dataclass
class Lake:
    """A destination: a catalog, on SQLite by default, and a warehouse in a folder."""

    folder: Path
    spark: SparkSession
    catalog: Mapping[str, str] = field(default_factory=dict)
    reader_uri: str = ""
    table: str = "team.messages"
    name: str | None = None
    """Name of the catalog; the default if not set."""

    @property
    def options(self) -> dict[str, Any]:
        uri, warehouse = f"sqlite:///{self.folder}/catalog.db", str(self.folder / "tables")
        configured = {"type": "jdbc", "uri": uri, "warehouse": warehouse}
        named = {"name": self.name} if self.name else {}
        return {"table": self.table, "catalog": {**configured, **named, **self.catalog}}

    def sink(self, dataset: str = DATASET, on_spark: SparkRunner | None = None) -> IcebergSink:
        home = Home(self.folder / "home")
        on_spark = on_spark or on_session(self.spark)
        return IcebergSink(SinkSettings("team", home, self.options, (dataset,), GATEWAY, INCARNATION, on_spark))

    def ask(self, work: Callable[[IcebergSink], Awaitable[T]]) -> T:
        """Run the work with a newly opened sink, as in a newly started engine."""

        async def asked() -> T:
            sink = self.sink()
            try:
                await sink.open()
                return await work(sink)
            finally:
                await sink.close()

        return asyncio.run(asked())

    def ship(self, chunk: Chunk, rows: pa.Table | None = None) -> int:
        found = rows_of(range(chunk.after + 1, chunk.last + 1)) if rows is None else rows
        return self.ask(lambda sink: sink.ship(chunk, TablePayload(found), 0))

    def has_chunk(self, chunk: Chunk) -> bool | None:
        return self.ask(lambda sink: sink.has_chunk(chunk))

    @contextmanager
    def reader(self) -> Iterator[Any]:
        """Return the table through PyIceberg."""
        uri, warehouse = self.reader_uri or f"sqlite:///{self.folder}/catalog.db", f"file://{self.folder}/tables"
        with closing(SqlCatalog(self.name or "default", uri=uri, warehouse=warehouse)) as catalog:
            yield catalog.load_table(self.table)

    def rows(self) -> list[dict[str, Any]]:
        with self.reader() as table:
            found: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
        return found

    def seqs(self) -> list[int]:
        return sorted(found["hyp_seq"] for found in self.rows())

    def sql(self, statement: str) -> None:
        """Run SQL as the destination's owner; `{table}` and `{catalog}` are replaced by their names."""
        assert self.name, "Spark keeps a catalog until it ends, so each needs its own name"
        catalog = f"spark.sql.catalog.{self.name}"
        for key, value in {
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "jdbc",
            f"{catalog}.uri": f"jdbc:sqlite:{self.folder}/catalog.db?busy_timeout=10000",
            f"{catalog}.jdbc.schema-version": "V1",
            f"{catalog}.warehouse": f"file://{self.folder}/tables",
            f"{catalog}.cache-enabled": "false",
        }.items():
            self.spark.conf.set(key, value)
        self.spark.sql(statement.format(catalog=self.name, table=f"{self.name}.{self.table}")).collect()

    def expire_snapshots(self) -> None:
        """Expire all snapshots but the newest."""
        self.sql(
            "CALL {catalog}.system.expire_snapshots(table => '{table}', retain_last => 1,"
            f" older_than => TIMESTAMP '{datetime.now(UTC) + timedelta(minutes=1):%Y-%m-%d %H:%M:%S}')"
        )


def kind_on(spark: SparkSession) -> SinkType:
    """Return the kind of sink for a driver without Spark."""

    def make(settings: SinkSettings) -> Sink:
        return ICEBERG.make(replace(settings, on_spark=on_session(spark)))

    return replace(ICEBERG, make=make)
