"""The metrics that tasks compute are those that Iceberg reads from the footer."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from hypaware.engine.session import EngineSession
from hypaware.home import Home
from hypaware.lake.build import BuiltFile, DataFileWriter
from hypaware.lake.file_metrics import MODE_PROPERTY
from hypaware.lake.schema import file_schema, full_table_name
from hypaware.lake.spark_table import SparkTable, create_table
from hypaware.model import datasets
from hypaware.model.columns import ColumnType
from hypaware.model.datasets import SEQ, SOURCE, Dataset
from hypaware.state.home_opener import open_home

pytestmark = pytest.mark.spark
MESSAGES = datasets.get("ai_gateway_messages")
ASTRAL, LAST = "\U0001f600", "\U0010ffff"
TEXTS = [
    *("", "a", "exactly sixteen.", "seventeen letters", "ümläut" * 5, ASTRAL * 20, LAST * 30, "x" * 15 + LAST * 3),
    *("x" * 15 + "\ud7ff" + "y", "\x00" * 20, None),
]
VALUES: dict[ColumnType, tuple[Any, Any]] = {
    ColumnType.STRING: ("a text", "of a column"),
    ColumnType.JSON: ('{"a": 1}', "[]"),
    ColumnType.INT: (-5, 2**31 - 1),
    ColumnType.BIGINT: (-(2**40), 2**40),
    ColumnType.DOUBLE: (0.0, -0.0),
    ColumnType.BOOLEAN: (True, False),
    ColumnType.TIMESTAMP: (-1, 1_800_000_000_000_001),
}
Row = dict[str, Any]
MakeTable = Callable[[Dataset], SparkTable]


@pytest.fixture
def make(engine_session: EngineSession, engine_home: Home) -> Iterator[MakeTable]:
    made: list[Dataset] = []
    opened = open_home(engine_home)

    def table(dataset: Dataset) -> SparkTable:
        made.append(dataset)
        create_table(engine_session.spark, dataset, opened.identity)
        return SparkTable(engine_session.spark, dataset)

    yield table
    for dataset in made:
        engine_session.spark.sql(f"DROP TABLE {full_table_name(dataset.name)} PURGE")
    opened.store.close()


def row(dataset: Dataset, seq: int, **columns: Any) -> Row:
    """Return a row with a value in each column; every other row has the second one."""
    return {
        SEQ: seq,
        SOURCE: "claude",
        **{each.name: VALUES[each.type][seq % 2] for each in dataset.columns},
        **columns,
    }


def write(table: SparkTable, dataset: Dataset, *groups: list[Row]) -> BuiltFile:
    schema = file_schema(dataset, table.field_ids)
    writer = DataFileWriter(table.data_root / f"{secrets.token_hex(8)}.parquet", schema)
    for rows in groups:
        columns = [pa.array([each.get(field.name) for each in rows], field.type) for field in schema]
        writer.write(pa.Table.from_arrays(columns, schema=schema))
    return writer.close("claude/odd.source", "2026-11-01")


def describe(table: SparkTable, file: BuiltFile) -> dict[str, Any]:
    """Return what would be committed for the file."""
    iceberg = table._jvm.org.apache.iceberg
    (committed,) = table._data_files([file])
    found = json.loads(iceberg.ContentFileParser.toJson(committed, table.iceberg.spec()))
    return {
        name: dict(zip(value["keys"], value["values"], strict=True)) if isinstance(value, dict) else value
        for name, value in found.items()
    }


def test_they_are_those_of_iceberg_for_every_text(make: MakeTable) -> None:
    table = make(MESSAGES)
    for text in TEXTS:
        first = [row(MESSAGES, 1, content_text=text), row(MESSAGES, 2, content_text="m")]
        file = write(table, MESSAGES, first, [row(MESSAGES, 3, content_text=text)])
        assert file.metrics is not None
        assert describe(table, file) == describe(table, replace(file, metrics=None)), repr(text)


@pytest.mark.parametrize("name", datasets.list_names())
def test_they_are_those_of_iceberg_for_every_dataset(make: MakeTable, name: str) -> None:
    dataset = datasets.get(name)
    table = make(dataset)
    empty = {each.name: None for each in dataset.columns if not each.required}
    file = write(table, dataset, [row(dataset, 1), row(dataset, 2)], [row(dataset, 3, **empty)], [row(dataset, 4)])
    assert describe(table, file) == describe(table, replace(file, metrics=None))


def test_a_text_that_a_footer_does_not_bound_is_found(make: MakeTable, engine_session: EngineSession) -> None:
    """Arrow leaves bounds longer than 4 KiB out of a footer. The file must be read for such a text."""
    table = make(MESSAGES)
    groups = [[row(MESSAGES, 1, content_text="a")], [row(MESSAGES, 2, content_text="z" * 5000)]]
    file = write(table, MESSAGES, *groups)
    bounds = describe(table, file)["upper-bounds"]
    assert table.field_ids["content_text"] not in bounds
    assert table.field_ids["session_id"] in bounds
    table.iceberg.newAppend().appendFile(*table._data_files([file])).commit()
    name = full_table_name(MESSAGES.name)
    wanted = f"SELECT {SEQ} FROM {name} WHERE content_text = repeat('z', 5000)"
    assert [found[SEQ] for found in engine_session.spark.sql(wanted).collect()] == [2]


def test_a_table_with_other_settings_gets_the_metrics_that_it_wants(make: MakeTable) -> None:
    table = make(MESSAGES)
    table.iceberg.updateProperties().set(MODE_PROPERTY, "none").commit()
    assert describe(table, write(table, MESSAGES, [row(MESSAGES, 1)])).get("value-counts", {}) == {}
