"""Retention through real Spark and Iceberg: by metadata alone, permanent, and known to imports and to `hyp verify`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hypaware.backfill.import_job import backfill
from hypaware.config import Config, RetentionConfig
from hypaware.engine.jobs import track_job
from hypaware.engine.session import EngineSession
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake import schema, snapshots
from hypaware.maintain.jobs import run_maintenance
from hypaware.state import flushes
from hypaware.state.home_opener import OpenHome, open_home
from hypaware.verify import run_verify
from tests.support.claude_files import grow, turns, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
DATASET = "ai_gateway_messages"
TABLE = schema.full_table_name(DATASET)


@dataclass
class Context:
    """The context of a job in an open session."""

    home: Home
    spark: SparkSession
    config: Config = field(default_factory=Config)
    notes: list[str] = field(default_factory=list)
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    """One time for all calls, so that no midnight comes in between."""

    def progress(self, *_arguments: object, **_facts: object) -> None:
        return None

    def emit(self, _chunk: bytes) -> None:
        return None

    def note(self, message: str) -> None:
        self.notes.append(message)

    def check_cancelled(self) -> None:
        return None

    def days(self) -> list[str]:
        found = self.spark.sql(f"SELECT DISTINCT date FROM {TABLE} ORDER BY date").collect()
        return [row[0] for row in found]

    @property
    def table(self) -> metadata.TableMetadata:
        entry = metadata.find_table(self.home, DATASET)
        assert entry
        return metadata.read_metadata(entry.metadata)

    def maintain(self, **args: Any) -> dict[str, Any]:
        (report,) = run_maintenance(self, {"dataset": DATASET, **args}, self.now)["datasets"]
        assert isinstance(report, dict)
        assert report["errors"] == []
        return report


@pytest.fixture
def opened(engine_home: Home) -> Iterator[OpenHome]:
    found = open_home(engine_home)
    with closing(found.store):
        yield found


@pytest.fixture
def context(engine_session: EngineSession, opened: OpenHome) -> Iterator[Context]:
    """A context with an empty table."""
    with opened.store.transaction() as connection:
        flushes.lower_high_water(connection, DATASET, 0)
    engine_session.spark.sql(f"DROP TABLE IF EXISTS {TABLE} PURGE")
    yield Context(opened.home, engine_session.spark)
    engine_session.spark.sql(f"DROP TABLE IF EXISTS {TABLE} PURGE")


def data_files(home: Home) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in home.warehouse.rglob("*.parquet")}


@pytest.mark.hazard(84)
@pytest.mark.hazard(74)
def test_dropped_days_do_not_come_back(context: Context, opened: OpenHome, tmp_path: Path) -> None:
    projects = tmp_path / "claude" / "projects" / "p"
    arguments = {
        "providers": ["claude"],
        "environment": {"HOME": "/nonexistent", "CLAUDE_CONFIG_DIR": str(tmp_path / "claude")},
    }
    ages = (60, 45, 20, 1)
    days = {age: (context.now - timedelta(days=age)).replace(hour=1) for age in ages}
    paths = {age: write(projects / f"s{age}.jsonl", turns(f"s{age}", 3, start=start)) for age, start in days.items()}
    backfill(context, arguments)
    assert context.days() == [f"{days[age]:%Y-%m-%d}" for age in ages]
    before, files = context.table, data_files(context.home)

    context.config = Config(retention=RetentionConfig(default_days=30))
    planned = context.maintain(only="expire", dry_run=True)
    assert (planned["rows_expired"], context.table) == (18, before)
    report = context.maintain(only="expire")
    assert (report["rows_expired"], report["files_after"]) == (18, 2)
    assert planned["files_after"] == 2
    assert planned["dropped"] == report["dropped"]
    assert context.days() == [f"{days[age]:%Y-%m-%d}" for age in (20, 1)]
    assert data_files(context.home) == files, "no data file was written, changed or removed"
    table_metadata = context.table
    assert len(table_metadata.snapshots) == len(before.snapshots) + 1
    assert table_metadata.properties[metadata.RETAINED_FROM_PROPERTY] == str((context.now - timedelta(days=30)).date())
    assert table_metadata.floor == before.floor
    assert context.maintain(only="expire")["reason"] == "nothing to do"
    assert context.table == table_metadata

    # The sessions continue, and all checkpoints are lost.
    with opened.store.transaction() as connection:
        flushes.forget_checkpoints(connection, DATASET)
    context.home.keys.unlink()
    for age, path in paths.items():
        grow(path, turns(f"s{age}", 1, first=3, start=days[1]))
    (imported,) = backfill(context, arguments)["providers"]
    assert (imported["status"], imported["rows_written"]) == ("ok", 4 * 3)
    assert context.days() == [f"{days[age]:%Y-%m-%d}" for age in (20, 1)]

    # The keys of dropped rows stay in the index, which is not an error.
    audit = run_verify(context, {"deep": True, "repair": False, "accept_rollback": False})
    assert [check for check in audit["checks"] if not check["ok"]] == []


def test_the_first_day_kept_is_recorded_without_a_snapshot(context: Context, tmp_path: Path) -> None:
    projects = tmp_path / "claude" / "projects" / "p"
    write(projects / "s.jsonl", turns("s", 1, start=context.now - timedelta(days=3)))
    environment = {"HOME": "/nonexistent", "CLAUDE_CONFIG_DIR": str(tmp_path / "claude")}
    backfill(context, {"providers": ["claude"], "environment": environment})
    before = context.table
    context.config = Config(retention=RetentionConfig(default_days=10))
    context.maintain(only="expire")
    table_metadata = context.table
    assert (table_metadata.snapshots, table_metadata.floor) == (before.snapshots, before.floor)
    assert table_metadata.properties[metadata.RETAINED_FROM_PROPERTY] == str((context.now - timedelta(days=10)).date())
    context.config = Config(retention=RetentionConfig(default_days=1))
    assert context.maintain(only="expire")["rows_expired"] == 3
    assert (context.days(), context.table.floor) == ([], before.floor)


def test_a_full_run_does_what_its_dry_run_reported(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes the expired snapshots; Iceberg leaves none of their files behind."""
    monkeypatch.setattr(snapshots, "COMMIT_SECONDS", 0.0)
    path = tmp_path / "claude" / "projects" / "p" / "s.jsonl"
    environment = {"HOME": "/nonexistent", "CLAUDE_CONFIG_DIR": str(tmp_path / "claude")}
    start_of_day = context.now.replace(hour=1)
    write(path, turns("s", 1, start=start_of_day - timedelta(days=30)))
    for first, age in enumerate((20, 20, 3, 3, 3), start=1):
        backfill(context, {"providers": ["claude"], "environment": environment})
        grow(path, turns("s", 1, first=first, start=start_of_day - timedelta(days=age)))
    backfill(context, {"providers": ["claude"], "environment": environment})
    context.config = Config(retention=RetentionConfig(default_days=10))
    planned = context.maintain(force=True, dry_run=True)
    with track_job():
        done = context.maintain(force=True)
    assert (done["rows_expired"], done["files_before"], done["files_after"]) == (9, 6, 1)
    assert done["snapshots_expired"] > 1
    unknown = {"bytes_after", "reason", "partitions_compacted", "partitions_left"}
    comparable = done.keys() - unknown
    assert {key: planned[key] for key in comparable} == {key: done[key] for key in comparable}
