"""What another Iceberg program does to a table of a light lake: rows without a sequence, and delete files."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.iceberg.relocate import rewrite_avro
from hypaware.lake.build import BuiltFile, OutputPaths
from hypaware.lake.schema import file_schema
from hypaware.model import datasets
from hypaware.model.datasets import BATCH_ID, ROW_ID, SEQ, SOURCE
from tests.support.light_home import DATASET
from tests.support.light_lake import LightLake, read_lake


def add_foreign_rows(home: Home, count: int, *, label: str = "copy") -> Path:
    """Copy rows of the table under new keys and without the columns that only HypAware sets. Return the new file."""
    dataset = datasets.get(DATASET)
    copied = sorted(read_lake(home, DATASET), key=lambda row: row[SEQ])[:count]
    rows = [{**row, SEQ: None, ROW_ID: None, BATCH_ID: None, "part_id": f"{row['part_id']}-{label}"} for row in copied]
    source, day = copied[0][SOURCE], copied[0][dataset.time_column].date().isoformat()
    with closing(LightLake(home)) as lake:
        table = lake.table(dataset)
        path = OutputPaths(table.data_root, label, 0).new_file(dataset, source, day)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=file_schema(dataset, table.field_ids)), path)
        table.append(BuiltFile(path, source, day, count, path.stat().st_size, 0))
    return path


def mark_delete_files(home: Home) -> None:
    """Take the files of the table's first commit for delete files, as metadata lists those of another program."""
    entry = metadata.find_table(home, DATASET)
    assert entry
    current = metadata.read_metadata(entry.metadata).current
    assert current
    marked = current.manifest_list.with_name("marked.avro")
    rewrite_avro(current.manifest_list, marked, lambda each: {**each, "content": int(each["sequence_number"] == 1)})
    marked.replace(current.manifest_list)
