"""Rebuilding a real table: intact, damaged in several ways, and killed."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hypaware import faults
from hypaware.config import Config
from hypaware.engine.session import EngineSession
from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake import schema
from hypaware.lake.flush import Flusher, FlushReport
from hypaware.lake.spark_table import SparkLake
from hypaware.maintain import rebuild
from hypaware.maintain.context import MaintenanceContext
from hypaware.maintain.context import MaintenanceReport as Kept
from hypaware.maintain.rebuild import NEXT_NAMESPACE, table_folders
from hypaware.model import datasets
from hypaware.model.datasets import SEQ, Dataset
from hypaware.state import flushes
from hypaware.state.home_opener import OpenHome, open_home
from tests.support.light_home import append
from tests.support.light_lake import read_lake
from tests.support.rows import rows

pytestmark = pytest.mark.spark
DATASET = "ai_gateway_messages"


@pytest.fixture
def opened(engine_home: Home) -> Iterator[OpenHome]:
    found = open_home(engine_home)
    with closing(found.store):
        yield found


@pytest.fixture
def dataset(engine_session: EngineSession, opened: OpenHome) -> Iterator[Dataset]:
    """A new table with three commits of two rows each."""

    def forget() -> None:
        with opened.store.transaction() as connection:
            flushes.lower_high_water(connection, DATASET, 0)
        with closing(sqlite3.connect(opened.home.catalog, isolation_level=None)) as catalog:
            catalog.execute("CREATE TABLE IF NOT EXISTS iceberg_tables (table_name TEXT)")
            catalog.execute("DELETE FROM iceberg_tables WHERE table_name = ?", (DATASET,))
        for folder in table_folders(opened.home, DATASET):
            shutil.rmtree(folder)
        shutil.rmtree(opened.home.lake / "set-aside", ignore_errors=True)

    engine_session.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {metadata.CATALOG}.{metadata.NAMESPACE}")
    forget()
    for number in range(3):
        append(opened.home, rows(2, start=2 * number))
        flush(engine_session, opened)
    yield datasets.get(DATASET)
    forget()


def flush(session: EngineSession, opened: OpenHome) -> FlushReport:
    lake = SparkLake(opened.home, session.spark, opened.identity, lambda: None)
    return Flusher(opened.home, opened.store, lake).flush(datasets.get(DATASET), wait=0)


def rebuild_table(session: EngineSession, opened: OpenHome, **how: Any) -> Kept:
    lake = SparkLake(opened.home, session.spark, opened.identity, lambda: None)
    report = Kept(DATASET)
    rebuild.rebuild_dataset(
        MaintenanceContext(opened.home, Config(), opened.store, lake, datasets.get(DATASET), datetime.now(UTC), **how),
        report,
    )
    return report


def live(opened: OpenHome) -> list[Path]:
    entry = metadata.find_table(opened.home, DATASET)
    assert entry
    return [file.path for file in metadata.iter_live_files(metadata.read_metadata(entry.metadata))]


def by_seq(opened: OpenHome) -> list[dict[str, Any]]:
    return sorted(read_lake(opened.home, DATASET), key=lambda row: row[SEQ])


def properties(opened: OpenHome) -> dict[str, str]:
    entry = metadata.find_table(opened.home, DATASET)
    assert entry
    return {
        key: value for key, value in metadata.read_metadata(entry.metadata).properties.items() if key.startswith("hyp.")
    }


def test_an_intact_table_is_the_same_after_a_rebuild(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset
) -> None:
    before, properties_before, old = by_seq(opened), properties(opened), live(opened)
    assert rebuild_table(engine_session, opened, dry_run=True).reasons
    assert live(opened) == old
    report = rebuild_table(engine_session, opened)
    assert by_seq(opened) == before
    assert properties(opened).items() >= properties_before.items(), "floor, gateway and incarnation are kept"
    assert not report.errors
    assert not set(live(opened)) & set(old)
    assert metadata.find_table(opened.home, DATASET, NEXT_NAMESPACE) is None
    append(opened.home, [*rows(2, start=0), *rows(1, start=6)])
    flushed = flush(engine_session, opened)
    assert (flushed.rows.written, flushed.rows.duplicate) == (1, 2), "the key index was filled from the new generation"
    assert by_seq(opened)[-1][SEQ] > before[-1][SEQ]
    found = engine_session.spark.sql(f"SELECT count(*), max({SEQ}) FROM {schema.full_table_name(DATASET)}").collect()[0]
    assert tuple(found) == (7, by_seq(opened)[-1][SEQ])


@pytest.mark.parametrize("how", ["cut", "missing", "garbled"])
def test_an_unreadable_file_is_set_aside_and_other_rows_are_kept(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset, how: str
) -> None:
    before = by_seq(opened)
    damaged_file = live(opened)[1]
    lost = [row for row in before if row["_hyp_cache_batch_id"] == damaged_file.name[:36]]
    data = damaged_file.read_bytes()
    if how == "cut":
        damaged_file.write_bytes(data[:-100])
    elif how == "missing":
        damaged_file.unlink()
    else:
        damaged_file.write_bytes(data[:100] + b"\xff" * 600 + data[700:])
    report = rebuild_table(engine_session, opened)
    assert by_seq(opened) == [row for row in before if row not in lost]
    assert report.errors
    assert [damaged_file.name in entry for entry in report.set_aside] == [True]
    set_aside = list((opened.home.lake / "set-aside").rglob(damaged_file.name))
    assert len(set_aside) == (0 if how == "missing" else 1)
    # The lost rows may be imported again, under new sequences.
    append(opened.home, rows(6))
    assert flush(engine_session, opened).rows.written == len(lost)
    assert by_seq(opened)[-1][SEQ] > before[-1][SEQ]


@pytest.mark.parametrize("damaged", ["metadata", "manifest", "catalog"])
def test_rows_are_read_from_disk_if_the_metadata_is_lost(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset, damaged: str
) -> None:
    before = by_seq(opened)
    entry = metadata.find_table(opened.home, DATASET)
    assert entry
    table_metadata = metadata.read_metadata(entry.metadata)
    if damaged == "metadata":
        entry.metadata.write_bytes(b"{")
    elif damaged == "manifest":
        assert table_metadata.current
        metadata.read_manifests(table_metadata.current)[0].path.write_bytes(b"Obj")
    else:
        with closing(sqlite3.connect(opened.home.catalog, isolation_level=None)) as catalog:
            catalog.execute("DELETE FROM iceberg_tables WHERE table_name = ?", (DATASET,))
    append(opened.home, rows(1, start=6))
    with pytest.raises(LakeError):
        flush(engine_session, opened)
    report = rebuild_table(engine_session, opened)
    assert by_seq(opened) == before
    assert "from the files on disk" in report.as_json()["reason"]
    assert flush(engine_session, opened).rows.written == 1, "rows in the spool are committed"
    assert by_seq(opened)[-1][SEQ] > before[-1][SEQ]


def test_rows_of_an_unfinished_flush_are_not_added_twice(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are still in the spool: read from disk as well, they would be in the lake twice."""
    append(opened.home, rows(2, start=6))
    _stop_at(monkeypatch, "lake.commit.before-commit")
    with pytest.raises(_Stopped):
        flush(engine_session, opened)
    monkeypatch.undo()
    entry = metadata.find_table(opened.home, DATASET)
    assert entry
    entry.metadata.write_bytes(b"{")
    rebuild_table(engine_session, opened)
    assert len(by_seq(opened)) == 6
    assert flush(engine_session, opened).rows.written == 2
    assert len({row["part_id"] for row in by_seq(opened)}) == len(by_seq(opened)) == 8


@pytest.mark.parametrize("point", ["after-write", "after-fill", "before-swap", "after-swap"])
def test_a_stopped_rebuild_leaves_the_old_table_or_the_new_one(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = by_seq(opened)
    _stop_at(monkeypatch, f"maintain.rebuild.{point}")
    with pytest.raises(_Stopped):
        rebuild_table(engine_session, opened)
    monkeypatch.undo()
    assert by_seq(opened) == before
    append(opened.home, rows(1, start=6))
    flush(engine_session, opened)
    rebuild_table(engine_session, opened)
    assert [row[SEQ] for row in by_seq(opened)][:6] == [row[SEQ] for row in before]
    assert len(by_seq(opened)) == 7
    assert metadata.find_table(opened.home, DATASET, NEXT_NAMESPACE) is None


class _Stopped(BaseException):
    """Stands for a kill: no code handles it."""


def _stop_at(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def die(reached: str) -> None:
        if reached == name:
            raise _Stopped

    monkeypatch.setattr(faults, "_reach", die)
