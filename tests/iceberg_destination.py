"""Another lake to deliver into, and what its own readers find in it."""

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

from hypaware.export.payload import Rows
from hypaware.export.sink import Chunk, OnSpark, Sink, SinkSettings, SinkType
from hypaware.export.sinks.iceberg import ICEBERG
from hypaware.export.sinks.iceberg.sink import IcebergSink
from hypaware.home import Home
from tests.rows import DATASET
from tests.shipments import GATEWAY, INCARNATION, rows_of

T = TypeVar("T")


def on_session(spark: SparkSession) -> OnSpark:
    async def run(work: Callable[[SparkSession], T]) -> T:
        return work(spark)

    return run


@dataclass
class Lake:
    """A destination: a catalog on SQLite, unless another is said, and a warehouse in a folder."""

    folder: Path
    spark: SparkSession
    catalog: Mapping[str, str] = field(default_factory=dict)
    reader_uri: str = ""
    table: str = "team.messages"
    name: str | None = None
    """Of the catalog; its default where it is not said."""

    @property
    def options(self) -> dict[str, Any]:
        told = {"type": "jdbc", "uri": f"sqlite:///{self.folder}/catalog.db", "warehouse": str(self.folder / "tables")}
        named = {"name": self.name} if self.name else {}
        return {"table": self.table, "catalog": {**told, **named, **self.catalog}}

    def sink(self, dataset: str = DATASET, on_spark: OnSpark | None = None) -> IcebergSink:
        home = Home(self.folder / "home")
        on_spark = on_spark or on_session(self.spark)
        return IcebergSink(SinkSettings("team", home, self.options, (dataset,), GATEWAY, INCARNATION, on_spark))

    def ask(self, work: Callable[[IcebergSink], Awaitable[T]]) -> T:
        """Of a sink that was opened for it, as by an engine that was just started."""

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
        return self.ask(lambda sink: sink.ship(chunk, Rows(found), 0))

    def has_chunk(self, chunk: Chunk) -> bool | None:
        return self.ask(lambda sink: sink.has_chunk(chunk))

    @contextmanager
    def reader(self) -> Iterator[Any]:
        """The table through another implementation of Iceberg."""
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
        """By the owner of the destination, whose Spark knows the catalog by its name: `{table}`, `{catalog}`."""
        assert self.name, "Spark keeps a catalog for its whole life: each needs a name of its own"
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
        """All but the newest."""
        self.sql(
            "CALL {catalog}.system.expire_snapshots(table => '{table}', retain_last => 1,"
            f" older_than => TIMESTAMP '{datetime.now(UTC) + timedelta(minutes=1):%Y-%m-%d %H:%M:%S}')"
        )


def kind_on(spark: SparkSession) -> SinkType:
    """The kind of sink, for a driver that has no Spark of its own."""

    def make(settings: SinkSettings) -> Sink:
        return ICEBERG.make(replace(settings, on_spark=on_session(spark)))

    return replace(ICEBERG, make=make)
