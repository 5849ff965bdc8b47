"""Deliver rows to an Iceberg table of another lake: each chunk is one commit that also records its range.

| module | contents |
|---|---|
| `catalog` | the configured catalog: its Iceberg properties, its canonical address |
| `table_schema` | columns and partitions of the destination's table, and whether an existing table fits |
| `data_files` | a chunk as Parquet files, one per partition |
| `iceberg_table` | open, query and append to the table; its delivery record |
| `java_errors` | translate Java exceptions into those of the sink interface |
| `sink` | the order of the steps |
"""

from __future__ import annotations

from hypaware.export.sink import Sink, SinkSettings, SinkType
from hypaware.export.sinks.iceberg.catalog import table_address


def _make(settings: SinkSettings) -> Sink:
    from hypaware.export.sinks.iceberg.sink import IcebergSink

    return IcebergSink(settings)


ICEBERG = SinkType("iceberg", "a table of another lake", table_address, _make)
