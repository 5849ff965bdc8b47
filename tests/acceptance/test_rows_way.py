"""The path of a row as a user sees it: ingested, committed, queried, verified, read by other engines."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.model.datasets import INTERNAL, SEQ, SOURCE
from hypaware.state import flushes
from hypaware.state.home_opener import open_home
from tests.support.command import Hyp
from tests.support.light_lake import read_lake
from tests.support.rows import rows

DATASET = "ai_gateway_messages"
COUNT = f"SELECT count(*) AS n FROM {DATASET}"


def test_cache_roundtrip(hyp: Hyp) -> None:
    """Rows are ingested, committed and queried, and other Iceberg readers see the same rows."""
    assert hyp.ingest(rows(50))["accepted"] == 50
    (flushed,) = hyp.ok("flush")["datasets"]
    assert (flushed["rows_written"], flushed["seq_after"], flushed["seq_last"]) == (50, 0, 50)
    assert hyp.query(COUNT) == [{"n": 50}]
    (first,) = hyp.query(f"SELECT * FROM {DATASET} ORDER BY message_index LIMIT 1")
    assert first["message_created_at"] == "2026-11-15T07:00:00.000000Z"
    assert first["part_id"] == "message-0#0"
    assert not set(first) & set(INTERNAL)
    assert [row[SEQ] for row in read_lake(Home(hyp.home), DATASET)] == list(range(1, 51))
    entry = metadata.find_table(Home(hyp.home), DATASET)
    assert entry
    with duckdb.connect() as other:
        files = [str(file.path) for file in metadata.iter_live_files(metadata.read_metadata(entry.metadata))]
        assert other.execute(f"SELECT count(*), max({SEQ}) FROM read_parquet({files})").fetchone() == (50, 50)
    assert hyp.ok("verify", "--deep")["ok"] is True


def test_cache_spool_batching(hyp: Hyp) -> None:
    """Many small appends become one commit; repeating the same rows commits nothing."""
    for start in range(0, 60, 20):
        hyp.ingest(rows(20, start=start))
    (flushed,) = hyp.ok("flush")["datasets"]
    assert (flushed["segments"], flushed["rows_written"]) == (3, 60)
    entry = metadata.find_table(Home(hyp.home), DATASET)
    assert entry
    assert len(metadata.read_metadata(entry.metadata).snapshots) == 1
    hyp.ingest(rows(60))
    (again,) = hyp.ok("flush")["datasets"]
    assert (again["rows_written"], again["rows_duplicate"]) == (0, 60)


def test_cache_query_debounce(hyp: Hyp) -> None:
    """`auto` commits spooled rows if the view is old, else reports its age; `always` and `never` do what they say."""
    hyp.ok("config", "set", "flush.interval", "1h")
    hyp.ingest(rows(10))
    assert hyp.query(COUNT, refresh="never") == [{"n": 0}]
    assert hyp.query(COUNT, refresh="auto") == [{"n": 10}]
    hyp.ingest(rows(10, start=10))
    fresh = hyp.run("query", "sql", COUNT, "--format", "json")
    assert fresh.json == [{"n": 10}]
    assert "s old" in fresh.err
    assert hyp.query(COUNT, refresh="always") == [{"n": 20}]


def test_any_command_may_follow_any_other_in_a_running_engine(hyp: Hyp) -> None:
    """Each job has its own thread in the JVM, which must know the session, the catalog and the lake."""
    hyp.ingest(rows(5))
    hyp.ok("flush")
    hyp.run("engine", "stop")
    hyp.ok("engine", "start")
    assert hyp.ok("verify", "--deep")["ok"] is True
    assert hyp.query(COUNT) == [{"n": 5}]
    assert hyp.ok("verify")["ok"] is True
    hyp.ingest(rows(5, start=5))
    (hyp.home / "spool" / "of_a_plugin_that_is_gone" / "sealed").mkdir(parents=True)
    hyp.ok("flush")
    assert hyp.ok("verify", "--repair")["ok"] is True
    assert hyp.query(COUNT) == [{"n": 10}]


def test_a_flush_with_nothing_to_do_starts_no_engine(hyp: Hyp) -> None:
    hyp.ok("flush")
    assert hyp.ok("engine", "status")["state"] == "stopped"


def test_ingest_rejects_bad_rows_with_line_and_reason_and_stores_the_rest(inline: Hyp) -> None:
    good = rows(3)
    lines = [
        json.dumps(good[0]),
        "this is not JSON",
        json.dumps({**good[1], "message_index": "seven"}),
        json.dumps({**good[1], "no_such_column": 1}),
        json.dumps({key: value for key, value in good[1].items() if key != "role"}),
        json.dumps({**good[1], "date": "1999-01-01"}),
        json.dumps(good[2]),
    ]
    refused = inline.run("ingest", DATASET, "-", "--json", stdin="\n".join(lines))
    assert refused.code == 1
    assert refused.json["accepted"] == 2
    reasons = {each["line"]: each["reason"] for each in refused.json["rejected"]}
    assert sorted(reasons) == [2, 3, 4, 5, 6]
    assert "whole number" in reasons[3]
    assert "unknown column" in reasons[4]
    assert "role is required" in reasons[5]
    strict = inline.run("ingest", DATASET, "-", "--strict", "--json", stdin="\n".join(lines))
    assert (strict.code, strict.json["accepted"], strict.json["segments"]) == (1, 0, 0)
    (flushed,) = inline.ok("flush")["datasets"]
    assert flushed["rows_written"] == 2


@pytest.mark.hazard(69)
@pytest.mark.hazard(70)
def test_moved_and_copied_homes_keep_working_on_their_own_files(hyp: Hyp, tmp_path: Path) -> None:
    """The home is moved while its engine runs (the engine exits), copied, backed up and restored."""
    hyp.ingest(rows(20))
    hyp.ok("flush")
    hyp.ingest(rows(3, start=20))
    moved, copy, restored = (Hyp(tmp_path / name) for name in ("moved there", "the copy", "restored"))
    hyp.home.rename(moved.home)
    try:
        assert moved.query(COUNT, refresh="always") == [{"n": 23}]
        moved.ok("backup", str(tmp_path / "backup"))
        # Spark removes its scratch folder asynchronously.
        shutil.copytree(moved.home, copy.home, ignore=shutil.ignore_patterns("*.sock", "tmp"))
        before = _contents(moved.home / "lake" / "warehouse")
        copy.ingest(rows(10, start=18))
        (flushed,) = copy.ok("flush")["datasets"]
        assert (flushed["rows_written"], flushed["rows_duplicate"]) == (5, 5)
        assert flushed["seq_after"] > 2**40
        assert copy.ok("verify", "--deep")["ok"] is True
        assert _contents(moved.home / "lake" / "warehouse") == before
        moved.ingest(rows(2, start=50))
        (flushed,) = moved.ok("flush")["datasets"]
        assert (flushed["seq_after"], flushed["rows_written"]) == (23, 2)
        assert moved.ok("verify", "--deep")["ok"] is True
        restored.ok("restore", str(tmp_path / "backup"))
        assert len(read_lake(Home(restored.home), DATASET)) == 23
    finally:
        for each in (moved, copy):
            each.run("engine", "stop")


@pytest.mark.hazard(15)
@pytest.mark.hazard(17)
def test_a_home_that_lost_its_state_continues_above_every_used_sequence(hyp: Hyp) -> None:
    hyp.ingest(rows(20))
    hyp.ok("flush")
    hyp.run("engine", "stop")
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (hyp.home / name).unlink(missing_ok=True)
    hyp.ingest(rows(10, start=15))
    (flushed,) = hyp.ok("flush")["datasets"]
    assert (flushed["seq_after"], flushed["rows_written"], flushed["rows_duplicate"]) == (20, 5, 5)
    assert hyp.ok("verify", "--deep")["ok"] is True


@pytest.mark.hazard(17)
def test_a_lake_that_is_older_than_its_state_is_detected(hyp: Hyp) -> None:
    hyp.ingest(rows(10))
    hyp.ok("flush")
    hyp.ingest(rows(10, start=10))
    hyp.ok("flush")
    hyp.run("engine", "stop")
    home = Home(hyp.home)
    with closing(sqlite3.connect(home.catalog)) as catalog, catalog:
        catalog.execute("UPDATE iceberg_tables SET metadata_location = previous_metadata_location")
    audit = hyp.run("verify", "--json")
    assert audit.code == 1
    (found,) = [check for check in audit.json["checks"] if not check["ok"] and check["name"] == "high_water"]
    assert "rolled back" in found["detail"]
    assert (audit.json["error"]["kind"], "rolled back" in audit.json["error"]["message"]) == ("verify_failed", True)
    hyp.ingest(rows(5, start=20))
    assert hyp.run("flush").code == 1
    strays = set(home.warehouse.rglob("*.parquet"))
    hyp.run("verify", "--repair")
    assert set(home.warehouse.rglob("*.parquet")) == strays, "what a rollback left may be wanted again"
    assert hyp.ok("verify", "--accept-rollback")["ok"] is True
    (flushed,) = hyp.ok("flush")["datasets"]
    assert (flushed["rows_written"], flushed["seq_after"]) == (5, 20)


def test_verify_repairs_derived_data(hyp: Hyp) -> None:
    hyp.ingest(rows(20))
    hyp.ok("flush")
    home = Home(hyp.home)
    hyp.run("engine", "stop")
    home.keys.write_bytes(b"garbage" * 1000)
    data = next(home.warehouse.rglob("*.parquet"))
    with closing(open_home(home).store) as store, store.transaction() as connection:
        burnt = flushes.reserve_flush(connection, DATASET, [("a-segment", 1)])
        flushes.discard_flush(connection, burnt)
    stray = data.with_name(f"{burnt.id}-1-0.parquet")
    stray.write_bytes(data.read_bytes())
    hyp.ingest(rows(20, start=10))
    failed = hyp.run("flush")
    assert failed.code == 1
    assert "hyp verify --repair" in failed.err
    assert hyp.run("verify").code == 1
    assert hyp.ok("verify", "--repair")["ok"] is True
    assert not stray.exists()
    (flushed,) = hyp.ok("flush")["datasets"]
    assert (flushed["rows_written"], flushed["rows_duplicate"]) == (10, 10)


@pytest.mark.hazard(75)
def test_an_engine_sees_what_another_process_committed(hyp: Hyp, tmp_path: Path) -> None:
    from tests.support.light_home import flush as flush_lightly

    hyp.ingest(rows(5))
    hyp.ok("flush")
    assert hyp.query(COUNT) == [{"n": 5}]
    hyp.ingest(rows(5, start=5))
    flush_lightly(Home(hyp.home))
    assert hyp.query(COUNT) == [{"n": 10}]


def test_the_python_api_reads_and_continues_from_a_sequence(hyp: Hyp) -> None:
    hyp.ingest(rows(30))
    hyp.ingest(rows(10, start=30, client_name="codex"))
    hyp.ok("flush")
    script = f"""
import hypaware, json
lake = hypaware.open_lake({str(hyp.home)!r})
assert lake.datasets() == ("ai_gateway_exchanges", "{DATASET}", "otel_logs", "otel_metrics", "otel_spans")
everything = list(lake.read_rows("{DATASET}"))
since = list(lake.read_rows_since("{DATASET}", "codex", 35))
table = lake.query("SELECT count(*) AS n FROM {DATASET}")
print(json.dumps([len(everything), sorted(everything[0]), [seq for _, seq in since], table.to_pylist()]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=_clean())
    assert done.returncode == 0, done.stderr
    count, columns, continuations, table = json.loads(done.stdout)
    assert count == 40
    assert len(columns) == 56
    assert not set(columns) & {SEQ, SOURCE}
    assert continuations == [36, 37, 38, 39, 40]
    assert table == [{"n": 40}]


def _contents(folder: Path) -> dict[str, Any]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _clean() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in ("HYP_HOME", "HYP_ENGINE")}
