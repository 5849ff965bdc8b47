"""Rows into a table of another lake: a chunk is one Iceberg commit, together with the record that it was delivered.

| module | owns |
|---|---|
| `catalog` | what the config says of the catalog: its properties for Iceberg, its address in one spelling |
| `shape` | the columns and partitions of the destination's table, and whether an existing one fits |
| `parts` | a chunk as Parquet files, one for each partition |
| `record` | what the table says was delivered: ranges of sequences, in its properties |
| `opening` | the catalog and the table through Iceberg's Java API: opened, made, given what it lacks |
| `table` | the table that was opened: asked, appended to |
| `secured` | a commit on a local disk, made durable |
| `troubles` | what Java raised, as the driver understands it |
| `sink` | the order of the steps |
"""

from __future__ import annotations

from hypaware.export.sink import Sink, SinkSettings, SinkType
from hypaware.export.sinks.iceberg.catalog import address_of


def _make(settings: SinkSettings) -> Sink:
    from hypaware.export.sinks.iceberg.sink import IcebergSink

    return IcebergSink(settings)


ICEBERG = SinkType("iceberg", "into a table of another lake", address_of, _make)
