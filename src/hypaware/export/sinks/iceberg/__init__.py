"""Deliver rows to an Iceberg table of another lake: each chunk is one commit that also records its range.

| module | contents |
|---|---|
| `catalog` | the configured catalog: its Iceberg properties, its canonical address |
| `shape` | columns and partitions of the destination's table, and whether an existing table fits |
| `parts` | a chunk as Parquet files, one per partition |
| `record` | the delivered ranges, kept in the table's properties |
| `opening` | open the catalog and the table through Iceberg's Java API, create or extend the table |
| `table` | query and append to the opened table |
| `secured` | make a commit on a local disk durable |
| `troubles` | translate Java exceptions into those of the sink interface |
| `sink` | the order of the steps |
"""

from __future__ import annotations

from hypaware.export.sink import Sink, SinkSettings, SinkType
from hypaware.export.sinks.iceberg.catalog import address_of


def _make(settings: SinkSettings) -> Sink:
    from hypaware.export.sinks.iceberg.sink import IcebergSink

    return IcebergSink(settings)


ICEBERG = SinkType("iceberg", "a table of another lake", address_of, _make)
