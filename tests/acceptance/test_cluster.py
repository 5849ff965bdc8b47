"""The jobs of a home on a real Spark cluster, whose executors the engine did not start."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from hypaware.home import Home
from tests.support.claude_files import turns, write
from tests.support.command import Hyp
from tests.support.light_lake import read_lake
from tests.support.rows import DATASET, rows
from tests.support.spark_cluster import cluster


def test_a_cluster_commits_imports_compacts_and_queries_like_a_single_machine(
    hyp: Hyp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    write(tmp_path / "claude" / "projects" / "-project" / "session.jsonl", turns("session", 20))
    with cluster(tmp_path / "cluster") as address:
        hyp.ok("config", "set", "engine.master", address)
        for start in (0, 300):
            hyp.ingest(rows(300, start=start))
            (flushed,) = hyp.ok("flush")["datasets"]
            assert flushed["rows_written"] == 300
        (imported,) = hyp.ok("backfill", "claude")["providers"]
        assert imported["rows_written"] > 0
        (compacted,) = hyp.ok("maintain", DATASET, "--compact-only", "--force")["datasets"]
        assert compacted["files_after"] < compacted["files_before"]
        (answer,) = hyp.query(f"SELECT count(*) AS n, count(DISTINCT part_id) AS parts FROM {DATASET}")
        assert hyp.ok("verify", "--deep")["ok"]
        hyp.ok("engine", "stop")
        executors = list((tmp_path / "cluster").glob("worker-*/app-*/*/stderr"))

    assert executors
    everything = 600 + imported["rows_written"]
    assert answer == {"n": everything, "parts": everything}
    home = Home(hyp.home)
    assert len(read_lake(home, DATASET)) == everything
    assert [path for path in home.lake.rglob("*") if path.stat().st_mode & 0o077] == []


@pytest.mark.hazard(108)
def test_a_cluster_that_authenticates_is_used_with_its_secret(hyp: Hyp, tmp_path: Path) -> None:
    secret = "a-shared-secret-of-the-cluster"
    (tmp_path / "secret").write_text(f"{secret}\n")
    hyp.ingest(rows(30))
    with cluster(tmp_path / "cluster", secret=secret) as address:
        hyp.ok("config", "set", "engine.master", address)
        hyp.ok("config", "set", "engine.secret_file", str(tmp_path / "secret"))
        (flushed,) = hyp.ok("flush")["datasets"]
        (answer,) = hyp.query(f"SELECT count(DISTINCT part_id) AS parts FROM {DATASET}")
        commands = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
        hyp.ok("engine", "stop")

    assert (flushed["rows_written"], answer) == (30, {"parts": 30})
    assert list((tmp_path / "cluster").glob("worker-*/app-*/*/stderr"))
    assert secret not in str(commands)


def test_an_unreadable_cluster_secret_is_named_in_the_error(hyp: Hyp, tmp_path: Path) -> None:
    hyp.ok("config", "set", "engine.master", "spark://127.0.0.1:1")
    hyp.ok("config", "set", "engine.secret_file", str(tmp_path / "missing"))
    hyp.ingest(rows(3))
    refused = hyp.run("flush", "--json")
    assert (refused.code, refused.json["error"]["kind"]) == (3, "cluster_secret")
    assert str(tmp_path / "missing") in refused.json["error"]["message"]


def test_an_unreachable_master_is_named_in_the_error(hyp: Hyp) -> None:
    hyp.ok("config", "set", "engine.master", "spark://127.0.0.1:1")
    hyp.ingest(rows(3))
    refused = hyp.run("flush", "--json")
    assert refused.code == 3
    assert refused.json["error"]["kind"] == "master_unreachable"
    assert "spark://127.0.0.1:1" in refused.json["error"]["message"]
    (repair,) = refused.json["error"]["repair"]
    assert repair == "hyp config set engine.master 'local[*]'"


def test_an_unsupported_warehouse_is_refused_and_rows_stay_in_the_spool(hyp: Hyp) -> None:
    hyp.ingest(rows(3))
    for key, value, back in (
        ("lake.catalog", '{ type = "rest", uri = "http://127.0.0.1:1" }', "embedded"),
        ("lake.warehouse", "/elsewhere", ""),
        ("lake.state", '{ uri = "postgresql://127.0.0.1:1/hyp" }', "embedded"),
    ):
        hyp.ok("config", "set", key, value)
        refused = hyp.run("flush", "--json")
        assert (refused.code, refused.json["error"]["kind"]) == (3, "lake_elsewhere")
        assert refused.json["error"]["repair"] == [f"hyp config set {key} '{back}'"]
        hyp.ok("config", "set", key, back)
    assert hyp.ok("status")["spool"]["rows"] == 3
