"""Compaction and expiry of the real lake, with concurrent flushes, deliveries and queries."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThan

from hypaware.config import Config, SinkConfig
from hypaware.engine import jobs as engine_jobs
from hypaware.engine.session import EngineSession
from hypaware.export.delivery import DeliveryOptions, Driver
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.iceberg.metadata import DataFile, TableMetadata
from hypaware.lake import commit, rewrite, schema, snapshots, spark_table
from hypaware.lake.build import BuildFailure, BuildResult, OutputPaths
from hypaware.lake.flush import Flusher
from hypaware.lake.read import LakeRowReader
from hypaware.lake.spark_table import SparkLake
from hypaware.lake.table import NotCommitted, TableChange, commit_lock, maintenance_lock
from hypaware.maintain import compact, expire
from hypaware.maintain.context import MaintenanceContext, MaintenanceReport, discard_files
from hypaware.state import flushes
from hypaware.state.home_opener import OpenHome, open_home
from tests.support.light_home import append
from tests.support.light_lake import read_lake
from tests.support.rows import DATASET, MESSAGES, row

pytestmark = pytest.mark.spark
TABLE = schema.full_table_name(DATASET)
_FIRST_DAY = datetime(2026, 11, 2, 7, 0, tzinfo=UTC)


@dataclass
class Site:
    session: EngineSession
    opened: OpenHome
    numbers: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def home(self) -> Home:
        return self.opened.home

    @property
    def lake(self) -> SparkLake:
        return SparkLake(self.home, self.session.spark, self.opened.identity, lambda: None)

    def add(self, rows: int, day: int = 0, source: str = "claude") -> None:
        """Append rows of one (source, day) to the spool."""
        batch = []
        for _ in range(rows):
            created_at = _FIRST_DAY + timedelta(days=day, seconds=self.numbers % 40_000)
            batch.append(row(self.numbers, message_created_at=created_at.isoformat(), client_name=source))
            self.numbers += 1
        append(self.home, batch)

    def flush(self) -> None:
        with commit_lock(DATASET, lambda: None):
            Flusher(self.home, self.opened.store, self.lake).flush(MESSAGES, wait=0)

    def commit(self, *partitions: tuple[str, int], rows: int = 3, times: int = 1) -> None:
        for _ in range(times):
            for source, day in partitions:
                self.add(rows, day, source)
            self.flush()

    @contextmanager
    def work(self, **options: Any) -> Iterator[MaintenanceContext]:
        now = datetime.now(UTC)
        with engine_jobs.track_job(), maintenance_lock(DATASET, lambda: None):
            yield MaintenanceContext(
                self.home, Config(), self.opened.store, self.lake, MESSAGES, now, note=self.notes.append, **options
            )

    def keep(self, step: Callable[[MaintenanceContext, MaintenanceReport], None], **options: Any) -> MaintenanceReport:
        report = MaintenanceReport(DATASET)
        with self.work(**options) as work:
            report.files_before = len(work.files())
            step(work, report)
            report.files_after = len(work.files())
        return report

    @property
    def table_metadata(self) -> TableMetadata:
        entry = metadata.find_table(self.home, DATASET)
        assert entry
        return metadata.read_metadata(entry.metadata)

    def files(self) -> list[DataFile]:
        return list(metadata.iter_live_files(self.table_metadata))

    def rows(self) -> list[dict[str, Any]]:
        return sorted(read_lake(self.home, DATASET), key=lambda each: each["_hyp_ingest_seq"])

    def on_disk(self) -> set[Path]:
        return set((self.table_metadata.path.parent.parent / "data").rglob("*.parquet"))

    def planned(self, expression: BooleanExpression) -> list[Any]:
        """Return the files that PyIceberg would read."""
        with closing(SqlCatalog(metadata.CATALOG, uri=f"sqlite:///{self.home.catalog}")) as catalog:
            return list(catalog.load_table((metadata.NAMESPACE, DATASET)).scan(expression).plan_files())

    def sql(self, statement: str) -> list[Any]:
        return list(self.session.spark.sql(statement).collect())


@pytest.fixture
def site(engine_session: EngineSession, engine_home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A home with an empty lake, whose commits all count as finished long ago."""
    monkeypatch.setattr(snapshots, "COMMIT_SECONDS", 0.0)
    opened = open_home(engine_home)
    with closing(opened.store):
        with opened.store.transaction() as connection:
            flushes.lower_high_water(connection, DATASET, 0)
            for table in ("streams", "intents", "chunks", "dead_letters", "high_water"):
                connection.execute(f"DELETE FROM {table}")
        engine_session.spark.sql(f"DROP TABLE IF EXISTS {TABLE} PURGE")
        yield Site(engine_session, opened)
        engine_session.spark.sql(f"DROP TABLE IF EXISTS {TABLE} PURGE")


@pytest.mark.hazard(37)
def test_every_reader_finds_the_same_rows_in_fewer_files(site: Site) -> None:
    site.commit(("claude", 0), ("claude", 1), ("codex", 0), rows=40, times=5)
    site.commit(("claude", 5), ("codex", 5), times=4)
    before = site.rows()
    report = site.keep(compact.compact_dataset)
    assert (report.files_before, report.files_after, report.errors) == (23, 11, [])
    assert report.reasons == [
        "compacted 2 days of claude: 10 files into 2",
        "compacted 1 day of codex: 5 files into 1",
    ]
    # Read by PyIceberg, DuckDB and Spark, each row has its sequence, row id and flush id.
    assert site.rows() == before
    with duckdb.connect() as other:
        paths = [str(file.path) for file in site.files()]
        found_rows = other.execute(
            "SELECT _hyp_ingest_seq, _hyp_cache_row_id, _hyp_cache_batch_id, content_text"
            f" FROM read_parquet({paths}) ORDER BY 1"
        ).fetchall()
    internal = ("_hyp_ingest_seq", "_hyp_cache_row_id", "_hyp_cache_batch_id", "content_text")
    assert found_rows == [tuple(each[name] for name in internal) for each in before]
    assert site.sql(f"SELECT count(*), count(DISTINCT _hyp_ingest_seq) FROM {TABLE}")[0][:] == (624, 624)
    for file in site.files():
        seqs = pq.read_table(file.path, columns=["_hyp_ingest_seq"])["_hyp_ingest_seq"].to_pylist()
        assert seqs == sorted(seqs)
        assert (file.min_seq, file.max_seq) == (seqs[0], seqs[-1])
    # A read since a sequence still plans few files and reads little of them.
    last = max(file.max_seq or 0 for file in site.files() if file.source == "claude" and file.rows == 200)
    since_last = And(EqualTo("_hyp_source", "claude"), GreaterThan("_hyp_ingest_seq", last - 5))
    assert len(site.planned(since_last)) == 1 + 4, "one file of each cold day and source, and the tail"
    found = LakeRowReader(site.home).page(DATASET, "claude", last - 5, last)
    assert len(found.rows) > 0
    assert found.scanned <= 200, "one of the two files"
    second = site.keep(compact.compact_dataset)
    assert (second.reasons, second.files_after) == ([], 11)
    assert site.keep(compact.compact_dataset, force=True).files_after == 5
    assert site.keep(compact.compact_dataset, force=True).reasons == []
    assert site.rows() == before


@pytest.mark.hazard(36)
def test_flushes_deliveries_and_queries_continue_during_compaction(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rewrite batch by batch and expire at once, while other threads add, deliver and query."""
    monkeypatch.setattr("hypaware.maintain.compact_plan._BATCH_TASKS", 1)
    site.commit(("claude", 0), ("claude", 1), ("claude", 8), rows=10, times=3)
    started, done, errors, counts = site.numbers, threading.Event(), [], []
    settings = {"destination": str(tmp_path / "archive"), "encoder": "parquet"}
    sinks = {"archive": SinkConfig("blob", "* * * * *", (DATASET,), settings)}

    def run_concurrently(work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                while not done.is_set():
                    work()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def deliver() -> None:
        driver = Driver(site.opened, Config(sinks=sinks), LakeRowReader(site.home), DeliveryOptions(0.0, None))
        report = asyncio.run(driver.deliver("archive"))
        assert report.status == "ok", report

    def query() -> None:
        with engine_jobs.track_job():
            counts.append(site.sql(f"SELECT count(content_text) FROM {TABLE}")[0][0])

    threads = [
        run_concurrently(lambda: site.commit(("claude", 1), rows=5)),
        run_concurrently(deliver),
        run_concurrently(query),
    ]
    try:
        while len(counts) < 2 or site.numbers == started:
            assert not errors
            time.sleep(0.01)
        report = site.keep(compact.compact_dataset, force=True)
        expired = site.keep(expire.expire_dataset, force=True)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert errors == []
    assert (report.errors, report.partitions_compacted) == ([], 3)
    assert expired.snapshots_expired >= 1
    site.flush()
    deliver()
    rows = site.rows()
    assert Counter(each["message_index"] for each in rows) == Counter(range(site.numbers))
    assert len({each["_hyp_ingest_seq"] for each in rows}) == len(rows)
    assert counts == sorted(counts), "no row was missing at any time"
    with duckdb.connect() as other:
        arrived = other.execute(f"SELECT message_index FROM read_parquet('{tmp_path}/archive/**/*.parquet')").fetchall()
    assert Counter(each for (each,) in arrived) == Counter(range(site.numbers))


@pytest.mark.hazard(42)
def test_of_two_rewrites_of_the_same_files_one_wins(site: Site) -> None:
    """Both load the table before either commits; each commit applies to the current table."""
    site.commit(("claude", 0), times=3)
    first, second = site.lake.table(MESSAGES), site.lake.table(MESSAGES)
    files, before = site.files(), site.rows()
    built = [_rewritten(site, files, name) for name in ("one", "two")]
    site.commit(("claude", 0))
    first.replace_files(TableChange("compact", files, built[0].files))
    with pytest.raises(NotCommitted):
        second.replace_files(TableChange("compact", files, built[1].files))
    discard_files(built[1].files)
    site.commit(("claude", 0))
    after = site.rows()
    assert after[:9] == before
    assert Counter(each["message_index"] for each in after) == Counter(range(15))


def _rewritten(site: Site, files: list[DataFile], name: str) -> BuildResult:
    table = site.lake.table(MESSAGES)
    paths = tuple(file.path for file in files)
    place = OutputPaths(table.data_root, name, 1)
    task = rewrite.RewriteTask(DATASET, "claude", "2026-11-02", paths, place, table.field_ids)
    (built,) = site.lake.run([task])
    assert not isinstance(built, BuildFailure)
    return built


@pytest.mark.hazard(41)
@pytest.mark.hazard(47)
def test_expiry_frees_space_and_recovery_still_finds_a_committed_flush(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.commit(("claude", 0), times=5)
    site.commit(("claude", 4), times=4)
    _commit_without_recording(site)
    before, disk = site.rows(), site.on_disk()
    site.keep(compact.compact_dataset, force=True)
    assert site.keep(expire.expire_dataset).snapshots_expired == 0
    # The expiry that flushes trigger has the same grace period.
    monkeypatch.setattr(spark_table, "_MAX_SNAPSHOTS", 2)
    assert not site.lake.table(MESSAGES).trim()
    assert disk <= site.on_disk()
    report = site.keep(expire.expire_dataset, force=True)
    assert report.snapshots_expired >= 9
    assert len(site.table_metadata.snapshots) == 1
    assert site.rows() == before
    commit.finish_interrupted_flushes(site.home, site.opened.store, site.lake.table(MESSAGES), DATASET)
    with site.opened.store.reading() as connection:
        assert flushes.unfinished_flushes(connection, DATASET) == []
        assert flushes.load_high_water(connection)[DATASET] == {"claude": before[-1]["_hyp_ingest_seq"]}
    site.keep(expire.expire_dataset, force=True)
    assert site.on_disk() == {file.path for file in site.files()}
    assert site.rows() == before


def _commit_without_recording(site: Site) -> None:
    """Run a flush that dies right after its commit."""

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    site.add(3, day=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "record_flush", die)
        with pytest.raises(KeyboardInterrupt):
            site.flush()
    with site.opened.store.reading() as connection:
        assert len(flushes.unfinished_flushes(connection, DATASET)) == 1


@pytest.mark.hazard(45)
def test_many_small_commits_leave_bounded_metadata(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_table, "_MAX_SNAPSHOTS", 4)
    monkeypatch.setattr(snapshots, "GRACE_SECONDS", 0.0)
    site.commit(("claude", 0))
    table = site.lake.table(MESSAGES)
    table.iceberg.updateProperties().set("write.metadata.previous-versions-max", "3").set(
        "commit.manifest.min-count-to-merge", "4"
    ).commit()
    sizes = []
    for number in range(24):
        site.commit(("claude", 0), rows=1)
        site.lake.table(MESSAGES).trim()
        if number % 8 == 7:
            # The snapshots that added its files have expired.
            report = site.keep(compact.compact_dataset, force=True)
            assert (report.errors, report.files_before, report.files_after) == ([], 9, 1)
            site.keep(expire.expire_dataset, force=True)
            metadata_files = [path for path in site.table_metadata.path.parent.rglob("*") if path.is_file()]
            sizes.append((len(metadata_files), sum(path.stat().st_size for path in metadata_files)))
    counts, bytes_ = zip(*sizes, strict=True)
    assert counts[-1] <= counts[0] + 2
    assert bytes_[-1] <= 1.3 * bytes_[0]
    assert len(site.table_metadata.snapshots) <= 4
    assert len(site.rows()) == 27
