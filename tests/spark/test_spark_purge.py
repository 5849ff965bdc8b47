"""Purge through real Spark and Iceberg: nothing is left on disk, and concurrent work is not disturbed."""

from __future__ import annotations

import asyncio
import gzip
import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hypaware.config import Config
from hypaware.config.schema import SinkConfig
from hypaware.engine import jobs as engine_jobs
from hypaware.engine.session import EngineSession
from hypaware.export.delivery import DeliveryOptions, Driver
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.index.refresh import refresh_index
from hypaware.index.store import drop_index
from hypaware.lake import key_index, schema, tombstones
from hypaware.lake.flush import Flusher
from hypaware.lake.read import LakeRowReader
from hypaware.lake.spark_table import SparkLake, SparkTable
from hypaware.lake.table import commit_lock
from hypaware.maintain.purge import table
from hypaware.maintain.purge.run import purge_job
from hypaware.maintain.purge.selector import PurgeSelector
from hypaware.model import datasets
from hypaware.model.datasets import SEQ
from hypaware.state import flushes
from hypaware.state.home_opener import open_home
from hypaware.verify import ALL_CHECKS, DatasetAudit, run_verify
from tests.support.light_home import append
from tests.support.light_purge import holders
from tests.support.processes import PATIENCE
from tests.support.rows import rows

pytestmark = pytest.mark.spark
DATASET = "ai_gateway_messages"
MESSAGES = datasets.get(DATASET)
TABLE = schema.full_table_name(DATASET)
SECRET = "5f0f6a34-3a5e-4a57-9a1e-6c5f5f7f0b01"
WORDS = "planted in the lake"


def messages_in(path: Path) -> list[str]:
    return [json.loads(line)["message_id"] for line in gzip.decompress(path.read_bytes()).splitlines()]


def secret(count: int, start: int = 0, **columns: Any) -> list[dict[str, Any]]:
    found = rows(count, start=start, **{"session_id": SECRET, "content_text": f"{WORDS} and nowhere else", **columns})
    return [{**each, "message_id": f"hidden-{each['message_id']}"} for each in found]


@dataclass
class Context:
    """The context of a job in an open session."""

    home: Home
    config: Config
    session: EngineSession
    notes: list[str] = field(default_factory=list)

    @property
    def spark(self) -> Any:
        return self.session.spark

    def progress(self, message: str, done: float | None = None, total: float | None = None, **facts: object) -> None:
        pass

    def note(self, message: str) -> None:
        self.notes.append(message)

    def emit(self, chunk: bytes) -> None:
        raise AssertionError("a purge streams nothing")

    def check_cancelled(self) -> None:
        pass

    def purge(self, kind: str, *values: str, **options: Any) -> dict[str, Any]:
        with engine_jobs.track_job():
            return purge_job(self, {"kind": kind, "values": list(values), **options})

    def flush(self, raw: list[dict[str, Any]]) -> Any:
        append(self.home, raw)
        opened = open_home(self.home)
        lake = SparkLake(self.home, self.spark, opened.identity, lambda: None)
        with closing(opened.store), engine_jobs.track_job(), commit_lock(DATASET, lambda: None):
            return Flusher(self.home, opened.store, lake).flush(MESSAGES, wait=0)

    def deliver(self) -> None:
        opened = open_home(self.home)
        with closing(opened.store), engine_jobs.track_job():
            driver = Driver(opened, self.config, LakeRowReader(self.home), DeliveryOptions(5.0))
            (name,) = self.config.sinks
            report = asyncio.run(driver.deliver(name))
            assert report.status == "ok", report

    def sql(self, statement: str) -> list[Any]:
        return list(self.spark.sql(statement).collect())

    def messages(self) -> Counter[str]:
        return Counter(row[0] for row in self.sql(f"SELECT message_id FROM {TABLE}"))

    def numbered(self, where: str = "") -> dict[str, int]:
        return {row[0]: row[1] for row in self.sql(f"SELECT message_id, {SEQ} FROM {TABLE} {where}")}

    def failed_checks(self) -> list[str]:
        """Return the failed checks of an audit."""
        opened = open_home(self.home)
        with closing(opened.store):
            lake = SparkLake(self.home, self.spark, opened.identity, lambda: None)
            audit = DatasetAudit(self.home, opened.store, lake, SparkTable(self.spark, MESSAGES), MESSAGES, True)
            found = [check(audit) for check in ALL_CHECKS]
        return [f"{each.name}: {each.detail}" for each in found if not each.ok]

    def verify(self, *, deep: bool = False, repair: bool = False) -> dict[str, str]:
        """Run `hyp verify` as a whole, and return the details of the checks that fail."""
        with engine_jobs.track_job():
            found = run_verify(self, {"deep": deep, "repair": repair, "accept_rollback": False})
        return {each["name"]: each["detail"] for each in found["checks"] if not each["ok"]}


@pytest.fixture
def context(engine_session: EngineSession, engine_home: Home, tmp_path: Path) -> Iterator[Context]:
    archive = {"destination": str(tmp_path / "archive"), "encoder": "jsonl"}
    context = Context(
        engine_home, Config(sinks={"archive": SinkConfig("blob", "* * * * *", (DATASET,), archive)}), engine_session
    )

    def clear() -> None:
        engine_session.spark.sql(f"DROP TABLE IF EXISTS {TABLE} PURGE")
        key_index.remove_index(engine_home.keys)
        key_index.remove_index(engine_home.tombstones)

    opened = open_home(engine_home)
    with closing(opened.store), opened.store.transaction() as connection:
        flushes.lower_high_water(connection, DATASET, 0)
        for table in ("streams", "intents", "chunks", "dead_letters", "high_water"):
            connection.execute(f"DELETE FROM {table}")
    clear()
    yield context
    clear()


@pytest.mark.hazard(44)
@pytest.mark.hazard(85)
def test_a_purged_session_is_removed_from_every_file_and_stays_out(context: Context) -> None:
    home = context.home
    for day in ("2026-10-01", "2026-10-02", "2026-10-03"):
        start = int(day[-2:]) * 100
        columns = {"message_created_at": f"{day}T00:00:00Z"}
        context.flush([*rows(20, start=start, **columns), *secret(5 if day < "2026-10-03" else 0, start, **columns)])
    context.flush(secret(7, start=400, message_created_at="2026-10-04T00:00:00Z"))
    others = context.numbered(f"WHERE session_id <> '{SECRET}'")
    context.deliver()
    # The rows shuffled for a query are in the engine's scratch directory.
    context.sql(f"SELECT content_text, message_id, count(*) FROM {TABLE} GROUP BY 1, 2 ORDER BY 3, 2")
    append(home, secret(3, start=500))
    before = {file.path for file in metadata.iter_live_files(SparkTable(context.spark, MESSAGES).metadata)}
    assert holders(home, SECRET, WORDS, "hidden-")

    report = context.purge("session", SECRET)

    assert report["remaining"] == []
    assert holders(home, SECRET, WORDS, "hidden-", WORDS[:16]) == set()
    (table,) = (each for each in report["datasets"] if each["dataset"] == DATASET)
    assert (table["rows"], table["files_rewritten"], table["files_removed"], table["files_looked_at"]) == (17, 2, 1, 4)
    assert (report["spool"]["rows"], report["delivered"][0]["rows"]) == (3, 17)
    table_metadata = SparkTable(context.spark, MESSAGES).metadata
    assert len(table_metadata.snapshots) == 1
    assert len({file.path for file in metadata.iter_live_files(table_metadata)} & before) == 1, (
        "a file without a purged row stays"
    )
    assert context.numbered() == others
    assert context.failed_checks() == []

    # The rows come again: from the client, as a fork, and after the loss of the key index.
    key_index.remove_index(home.keys)
    fork = [{**row, "session_id": "a-fork"} for row in secret(3, start=100)]
    report = context.flush([*secret(9, start=100), *fork, *rows(2, start=900)])
    assert (report.rows.written, report.rows.purged) == (2, 12)
    context.deliver()
    assert not any(each["rows"] for each in context.purge("session", SECRET)["datasets"])
    assert context.failed_checks() == []


def test_a_table_emptied_by_a_purge_can_be_filled_again(context: Context) -> None:
    context.flush([*secret(6), *rows(4, start=10, client_name="codex")])
    floor = SparkTable(context.spark, MESSAGES).floor
    assert context.purge("source", "claude", "codex")["remaining"] == []
    assert holders(context.home, SECRET, WORDS) == set()
    table = SparkTable(context.spark, MESSAGES)
    assert (list(metadata.iter_live_files(table.metadata)), table.floor) == ([], floor)
    assert context.purge("source", "claude", "codex", allow_reimport=True)["tombstones"]["lifted"] == 2
    assert context.flush([*secret(6), *rows(4, start=10, client_name="codex")]).rows.written == 10
    assert context.sql(f"SELECT min({SEQ}) FROM {TABLE}")[0][0] > floor
    assert context.failed_checks() == []


def test_verify_reports_an_unfinished_purge_with_its_command(context: Context) -> None:
    context.flush([*secret(2), *rows(2, start=10)])
    tombstones.create_tombstones(
        context.home, PurgeSelector("session", (SECRET,)).tombstones, "2026-11-15T00:00:00+00:00"
    )
    (found,) = context.failed_checks()
    assert found.startswith("purged: 2 purged rows are in the lake")
    assert f"hyp purge --session {SECRET}" in found
    context.purge("session", SECRET)
    assert context.failed_checks() == []


@pytest.mark.hazard(43)
def test_flushes_deliveries_and_queries_continue_during_purges(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Wait for every reader of removed files, even a slow one.
    monkeypatch.setattr(table, "_READER_TIMEOUT", PATIENCE)
    context.flush([*rows(40), *secret(40, start=40)])
    done = threading.Event()

    def until_done(step: Callable[[int], object]) -> int:
        round_ = 0
        while not done.is_set():
            round_ += 1
            step(round_)
        return round_

    def count_rows(_: int) -> None:
        with engine_jobs.track_job():
            (row,) = context.sql(f"SELECT count_if(session_id <> '{SECRET}'), count(*) FROM {TABLE}")
            assert row[0] >= 40

    with ThreadPoolExecutor(3) as threads:
        flushing = threads.submit(until_done, lambda round_: context.flush(rows(5, start=1_000 + 5 * round_)))
        delivering = threads.submit(until_done, lambda _: context.deliver())
        querying = threads.submit(until_done, count_rows)
        try:
            first = context.purge("session", SECRET)
            second = context.purge("before", "2026-11-15T07:00:20.000000Z")
        finally:
            done.set()
        flushed = flushing.result()
        assert delivering.result()
        assert querying.result()
    assert (first["remaining"], second["remaining"]) == ([], [])
    expected = [f"message-{number}" for number in (*range(20, 40), *range(1_005, 1_005 + 5 * flushed))]
    assert context.messages() == Counter(expected)
    context.deliver()
    sent = Counter(
        message
        for path in (tmp_path / "archive").rglob("*.jsonl.gz")
        for message in messages_in(path)
        if not message.startswith("hidden")
    )
    assert sent | Counter(expected) == sent
    assert max(sent.values()) == 1
    assert context.failed_checks() == []


def _change_counts(index: sqlite3.Connection) -> None:
    index.execute("UPDATE sessions SET messages = messages + 1")


def _change_text(index: sqlite3.Connection) -> None:
    index.execute("UPDATE blocks SET texts = (SELECT texts FROM blocks ORDER BY id DESC LIMIT 1) WHERE id = 1")


def _lose_a_row(index: sqlite3.Connection) -> None:
    index.execute("DELETE FROM parts WHERE seq = (SELECT min(seq) FROM parts)")


@pytest.mark.parametrize(
    ("damage", "deep"), [(_lose_a_row, False), (_lose_a_row, True), (_change_counts, True), (_change_text, True)]
)
def test_verify_finds_a_damaged_index_and_repairs_it(
    context: Context, damage: Callable[[sqlite3.Connection], None], deep: bool
) -> None:
    context.flush(rows(30))
    context.flush(rows(30, start=30, content_text="other words"))
    drop_index(context.home)
    refresh_index(context.home)
    assert context.verify(deep=deep) == {}

    with closing(sqlite3.connect(context.home.index)) as index, index:
        damage(index)
    found = context.verify(deep=deep)

    assert list(found) == ["index"]
    assert "(hyp index rebuild)" in found["index"]
    assert context.verify(deep=deep, repair=True) == {}
    refresh_index(context.home)
    assert context.verify(deep=True) == {}
