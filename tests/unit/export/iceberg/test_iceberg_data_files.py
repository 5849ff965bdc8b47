"""Data files of a chunk: one per partition, with the table's column ids."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.transforms import DayTransform, HourTransform, MonthTransform, YearTransform
from pyiceberg.types import TimestamptzType

from hypaware.export.sink import ChunkRefused
from hypaware.export.sinks.iceberg import data_files
from hypaware.export.sinks.iceberg.data_files import PartitionField, TableLayout
from tests.support.rows import MESSAGES
from tests.support.shipments import chunk, rows_of

_TRANSFORMS = {"year": YearTransform(), "month": MonthTransform(), "day": DayTransform(), "hour": HourTransform()}
_FIRST = datetime(1, 1, 1, tzinfo=UTC)


def new_shape() -> TableLayout:
    return data_files.read_layout(MESSAGES, data_files.new_schema(MESSAGES), data_files.new_partitions(MESSAGES))


def test_rows_are_partitioned_by_day_and_keep_their_order(tmp_path: Path) -> None:
    table = pa.concat_tables(
        [rows_of([1, 2]), rows_of([3], message_created_at="2026-11-16T00:00:00Z"), rows_of([4, 5])]
    )
    built = data_files.write_data_files(table, chunk(0, 5), new_shape(), tmp_path)
    found = {part.partition: pq.read_table(part.path).column("hyp_seq").to_pylist() for part in built}
    assert found == {(20772, "claude"): [1, 2, 4, 5], (20773, "claude"): [3]}
    assert all(part.bytes == part.path.stat().st_size for part in built)
    assert all(part.path.stat().st_mode & 0o077 == 0 for part in built)
    data_files.delete_data_files(built)
    assert list(tmp_path.iterdir()) == []


def test_columns_have_the_ids_and_types_of_the_table(tmp_path: Path) -> None:
    (part,) = data_files.write_data_files(rows_of([1]), chunk(0, 1), new_shape(), tmp_path)
    read = pq.ParquetFile(part.path).schema_arrow
    ids = {field.name: int(field.metadata[b"PARQUET:field_id"]) for field in read}
    fields = json.loads(data_files.new_schema(MESSAGES))["fields"]
    assert ids == {field["name"]: field["id"] for field in fields}
    assert {field.name for field in read if not field.nullable} == {
        field["name"] for field in fields if field["required"]
    }
    assert read.field("message_created_at").type == pa.timestamp("us", tz="UTC")


def test_large_rows_make_smaller_row_groups(tmp_path: Path) -> None:
    (part,) = data_files.write_data_files(
        rows_of(range(1, 101), content_text="x" * 1_000_000), chunk(0, 100), new_shape(), tmp_path
    )
    footer = pq.read_metadata(part.path)
    assert footer.num_row_groups >= 3


def test_rows_that_do_not_fit_the_columns_are_refused_and_leave_no_file(tmp_path: Path) -> None:
    table = rows_of([1])
    place = table.schema.get_field_index("role")
    without = table.set_column(place, "role", pa.nulls(1, pa.string()))
    with pytest.raises(ChunkRefused, match="role may not be null"):
        data_files.write_data_files(without, chunk(0, 1), new_shape(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.concat_tables([rows_of([1]), rows_of([2], message_created_at="2026-11-16T00:00:00Z")])
    original = data_files._write_file
    written: list[Path] = []

    def once(rows: pa.Table, path: Path) -> None:
        original(rows, path)
        written.append(path)
        if len(written) == 2:
            raise OSError("no space left on device")

    monkeypatch.setattr(data_files, "_write_file", once)
    with pytest.raises(OSError, match="no space"):
        data_files.write_data_files(table, chunk(0, 2), new_shape(), tmp_path)
    assert list(tmp_path.iterdir()) == []


@given(st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31)), st.sampled_from(list(_TRANSFORMS)))
def test_partitions_equal_those_of_pyiceberg(moment: datetime, transform: str) -> None:
    """Including times before 1970, whose days and hours are negative."""
    aware = moment.replace(tzinfo=UTC)
    rows = pa.table({"at": pa.array([aware, None], pa.timestamp("us", tz="UTC"))})
    micros = rows.column("at").cast(pa.int64())[0].as_py()
    expected = _TRANSFORMS[transform].transform(TimestamptzType())(micros)
    assert data_files._partition_values(rows, PartitionField("at", transform)) == [expected, None]
