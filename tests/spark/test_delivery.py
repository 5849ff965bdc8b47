"""Deliveries from the real lake to real destinations: a plain HTTP server and a folder of Parquet files.

Invariants while the lake changes: no request without new rows, about N for N new rows, and every row once through
retention, compaction, lost responses and lost states.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from hypaware.config.schema import Config, SinkConfig
from hypaware.engine.session import EngineSession
from hypaware.export import dead_letter_rows
from hypaware.export.delivery import DeliveryOptions, Driver, gather_all
from hypaware.export.status import SinkReport
from hypaware.home import Home
from hypaware.lake import schema
from hypaware.lake.flush import Flusher
from hypaware.lake.read import LakeRowReader
from hypaware.lake.spark_table import SparkLake
from hypaware.model import datasets
from hypaware.model.datasets import SEQ
from hypaware.privacy import ignored_sessions
from hypaware.state import dead_letters, flushes, streams
from hypaware.state.home_opener import OpenHome, open_home
from hypaware.state.streams import StreamKey
from tests.support.light_home import append
from tests.support.plain_server import PlainServer
from tests.support.rows import rows

pytestmark = pytest.mark.spark
DATASET = "ai_gateway_messages"
TABLE = schema.full_table_name(DATASET)


@dataclass
class Site:
    """A home with its lake, a server and a folder destination."""

    session: EngineSession
    opened: OpenHome
    server: PlainServer
    archive: Path
    sinks: dict[str, SinkConfig] = field(default_factory=dict)

    def flush(self, raw: list[dict[str, Any]]) -> None:
        append(self.opened.home, raw)
        lake = SparkLake(self.opened.home, self.session.spark, self.opened.identity, lambda: None)
        Flusher(self.opened.home, self.opened.store, lake).flush(datasets.get(DATASET), wait=0)

    def deliver(self, *chosen: str, max_wait: float = 0.0, budget: int | None = None) -> dict[str, SinkReport]:
        driver = Driver(
            self.opened, Config(sinks=self.sinks), LakeRowReader(self.opened.home), DeliveryOptions(max_wait, budget)
        )
        reports = asyncio.run(gather_all(map(driver.deliver, chosen or self.sinks)))
        return {report.sink: report for report in reports}

    def at_the_server(self) -> Counter[str]:
        return Counter(row["message_id"] for row in self.server.rows())

    def in_the_archive(self) -> Counter[str]:
        files = [str(path) for path in self.archive.rglob("*.parquet")]
        if not files:
            return Counter()
        with duckdb.connect() as other:
            found = other.execute(f"SELECT message_id FROM read_parquet({files})").fetchall()
        return Counter(row[0] for row in found)

    def check(self, *expected: range) -> None:
        wanted = Counter(f"message-{number}" for numbers in expected for number in numbers)
        assert self.at_the_server() == wanted
        assert self.in_the_archive() == wanted

    def sql(self, statement: str) -> list[Any]:
        return list(self.session.spark.sql(statement).collect())

    def stream(self, sink: str, source: str = "claude") -> streams.Stream:
        with self.opened.store.reading() as connection:
            found = streams.load_stream(connection, StreamKey(sink, DATASET, source))
        assert found
        return found

    def forget_watermarks(self) -> None:
        with self.opened.store.transaction() as connection:
            for stream in streams.list_streams(connection):
                streams.cancel_intent(connection, stream.key)
                streams.restore_stream(connection, replace(stream, watermark=None))


@pytest.fixture
def site(engine_session: EngineSession, engine_home: Home, tmp_path: Path) -> Iterator[Site]:
    opened = open_home(engine_home)
    with closing(opened.store), PlainServer(token=None) as server:
        with opened.store.transaction() as connection:
            flushes.lower_high_water(connection, DATASET, 0)
            for table in ("streams", "intents", "chunks", "dead_letters", "high_water"):
                connection.execute(f"DELETE FROM {table}")
        engine_session.spark.sql(f"DROP TABLE IF EXISTS {TABLE} PURGE")
        made = Site(engine_session, opened, server, tmp_path / "archive")
        made.sinks["team"] = SinkConfig(
            "forward", "* * * * *", (DATASET,), {"url": server.url, "token_file": "", "token_env": ""}
        )
        made.sinks["archive"] = SinkConfig(
            "blob", "* * * * *", (DATASET,), {"destination": str(made.archive), "encoder": "parquet"}
        )
        yield made
        engine_session.spark.sql(f"DROP TABLE IF EXISTS {TABLE} PURGE")


def test_only_new_rows_are_sent(site: Site) -> None:
    site.flush(rows(300))
    reports = site.deliver()
    assert [report.status for report in reports.values()] == ["ok", "ok"]
    asked = len(site.server.requests)
    objects = set(site.archive.rglob("*"))
    again = site.deliver()
    assert [(stream.rows, stream.bytes) for report in again.values() for stream in report.streams] == [(0, 0), (0, 0)]
    assert (len(site.server.requests), set(site.archive.rglob("*"))) == (asked, objects)
    site.flush(rows(7, start=300))
    assert [stream.rows for report in site.deliver().values() for stream in report.streams] == [7, 7]
    site.check(range(307))


def test_retention_of_delivered_days_sends_nothing(site: Site) -> None:
    site.flush(rows(50, message_created_at="2026-10-01T00:00:00Z"))
    site.deliver()
    site.flush(rows(20, start=50))
    site.sql(f"DELETE FROM {TABLE} WHERE message_created_at < TIMESTAMP '2026-10-02 00:00:00'")
    assert [stream.rows for report in site.deliver().values() for stream in report.streams] == [20, 20]
    site.check(range(70))


@pytest.mark.hazard(19)
def test_compaction_sends_nothing_again(site: Site) -> None:
    """The table is compacted while the streams are delivered."""
    for start in range(0, 60, 10):
        site.flush(rows(10, start=start))
    site.deliver(budget=1)
    site.flush(rows(10, start=60))
    rewritten = site.sql(
        f"CALL hyp.system.rewrite_data_files(table => 'hypaware.{DATASET}', strategy => 'sort', "
        f"sort_order => '{SEQ} ASC', options => map('rewrite-all', 'true'))"
    )
    assert rewritten[0]["rewritten_data_files_count"] == 7
    site.flush(rows(5, start=70))
    site.deliver()
    site.check(range(75))
    assert [stream.rows for report in site.deliver().values() for stream in report.streams] == [0, 0]


@pytest.mark.hazard(22)
@pytest.mark.hazard(33)
def test_a_chunk_stored_but_not_acknowledged_is_not_sent_twice_after_new_rows(site: Site) -> None:
    """A retried chunk must not contain newer rows."""
    site.flush(rows(40))
    site.server.cut_after_storing(1)
    assert site.deliver("team")["team"].status == "failed"
    assert sum(site.at_the_server().values()) == 40
    site.deliver("archive")
    site.flush(rows(15, start=40))
    assert [report.status for report in site.deliver().values()] == ["ok", "ok"]
    site.check(range(55))
    ids = [request.headers["X-Hyp-Batch-Id"] for request in site.server.received("/v1/ingest")]
    assert ids[0] == ids[1] != ids[2]


def test_a_lost_watermark_is_rebuilt(site: Site) -> None:
    """The folder can be queried. The plain server cannot, but the same rows have the same batch ids."""
    site.flush(rows(40))
    site.deliver()
    site.forget_watermarks()
    assert [report.status for report in site.deliver().values()] == ["ok", "ok"]
    site.check(range(40))


@pytest.mark.hazard(23)
@pytest.mark.parametrize("mixed", [False, True], ids=["pure", "mixed"])
def test_rows_without_a_sequence_are_delivered_once_after_they_get_one(site: Site, mixed: bool) -> None:
    site.flush(rows(10))
    if mixed:
        site.flush(rows(5, start=10))
    site.sql(f"UPDATE {TABLE} SET {SEQ} = NULL WHERE message_index < 10")
    first = site.deliver()
    assert [stream.rows for report in first.values() for stream in report.streams] == [5 * mixed, 5 * mixed]
    assert [stream.rows for report in site.deliver().values() for stream in report.streams] == [0, 0]
    with site.opened.store.transaction() as connection:
        following = flushes.next_sequence(connection)
        flushes.raise_next_sequence(connection, following + 10)
        flushes.raise_high_water(connection, DATASET, {"claude": following + 9})
    site.sql(f"UPDATE {TABLE} SET {SEQ} = message_index + {following} WHERE {SEQ} IS NULL")
    site.sql(f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('hyp.seq-floor' = '{following + 9}')")
    assert [stream.rows for report in site.deliver().values() for stream in report.streams] == [10, 10]
    assert [stream.rows for report in site.deliver().values() for stream in report.streams] == [0, 0]
    site.check(range(15 if mixed else 10))


@pytest.mark.hazard(24)
@pytest.mark.hazard(25)
@pytest.mark.hazard(91)
def test_similar_sinks_and_sources_have_separate_watermarks(site: Site, tmp_path: Path) -> None:
    site.flush(rows(10, client_name="a b"))
    site.deliver("archive")
    second = SinkConfig("blob", "* * * * *", (DATASET,), {"destination": str(tmp_path / "two"), "encoder": "jsonl"})
    site.sinks["second"] = second
    site.flush(rows(10, start=10, client_name="a_b"))
    reports = site.deliver("archive", "second")
    told = {(name, stream.key.source): stream.rows for name, found in reports.items() for stream in found.streams}
    assert told == {
        ("archive", "a b"): 0,
        ("archive", "a_b"): 10,
        ("second", "a b"): 10,
        ("second", "a_b"): 10,
    }
    assert sum(site.in_the_archive().values()) == 20
    # The source without new rows kept its watermark although the other advanced.
    assert site.stream("archive", "a b").watermark != site.stream("archive", "a_b").watermark


@pytest.mark.hazard(92)
def test_a_backlog_is_delivered_page_by_page(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hypaware.export.round._PAGE_ROWS", 50)
    site.flush(rows(400))
    (stream,) = site.deliver("team", budget=2)["team"].streams
    assert (stream.rows, stream.drained) == (100, False)
    assert sum(site.at_the_server().values()) == 100
    assert site.stream("team").watermark == stream.last
    site.deliver()
    site.check(range(400))


@pytest.mark.hazard(17)
def test_a_rolled_back_lake_is_reported(site: Site) -> None:
    site.flush(rows(20))
    site.deliver()
    delivered = site.stream("team").watermark
    snapshot = site.sql(f"SELECT snapshot_id FROM {TABLE}.snapshots")[0][0]
    site.flush(rows(20, start=20))
    site.sql(f"CALL hyp.system.rollback_to_snapshot('hypaware.{DATASET}', {snapshot})")
    site.sql(f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('hyp.seq-floor' = '{delivered}')")
    for report in site.deliver().values():
        (stream,) = report.streams
        assert stream.error
        assert stream.error["kind"] == "lake_rolled_back"
    assert site.stream("team").watermark == delivered


@pytest.mark.hazard(27)
def test_a_refused_row_does_not_block_the_others(site: Site) -> None:
    site.flush(rows(60))
    site.server.refuse(lambda row: row["message_id"] in ("message-13", "message-14"))
    report = site.deliver("team")["team"]
    assert (report.status, report.streams[0].dead_letters, report.streams[0].rows) == ("partial", 2, 58)
    assert site.deliver("team")["team"].status == "ok"
    assert sum(site.at_the_server().values()) == 58


@pytest.mark.hazard(59)
def test_excluded_rows_and_secrets_reach_no_destination(site: Site, tmp_path: Path) -> None:
    closed, secret = tmp_path / "closed", "gh" + "p_" + "a1B2" * 9
    closed.mkdir()
    (closed / ".hypignore").write_text("local-only")
    ignored_sessions.ignore_session(site.opened.home, "private")
    try:
        site.flush(rows(10, content_text=f"use {secret}"))
        site.flush([*rows(5, start=10, cwd=str(closed)), *rows(5, start=15, session_id="private")])
        for report in site.deliver().values():
            (stream,) = report.streams
            assert (report.status, stream.rows, stream.withheld) == ("ok", 10, 10)
            assert stream.redacted == {"github-token": 10}
            assert site.stream(report.sink).watermark == stream.last
        assert [stream.rows for report in site.deliver().values() for stream in report.streams] == [0, 0]
        site.check(range(10))
        everything = [path.read_bytes() for path in site.archive.rglob("*.parquet")]
        with duckdb.connect() as other:
            files = [str(path) for path in site.archive.rglob("*.parquet")]
            texts = other.execute(f"SELECT content_text FROM read_parquet({files})").fetchall()
        assert [text.startswith("use [github-token:") for (text,) in texts] == [True] * 10
        assert not any(secret.encode() in each for each in everything)
        assert secret not in str(site.server.rows())
        # The dead letter holds the redacted row.
        site.flush(rows(1, start=20, content_text=secret))
        site.server.refuse(lambda row: row["message_id"] == "message-20")
        assert site.deliver("team")["team"].streams[0].dead_letters == 1
        with site.opened.store.reading() as connection:
            (letter,) = dead_letters.list_letters(connection)
            body = dead_letters.load_payload(connection, letter.id)
        assert body is not None
        assert dead_letter_rows.unpack_rows(body)["content_text"].to_pylist()[0].startswith("[github-token:")
    finally:
        ignored_sessions.unignore_session(site.opened.home, "private")
