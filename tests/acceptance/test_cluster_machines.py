"""A Spark cluster whose machines share nothing with the driver's but the folders of the lake."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hypaware.engine.worker_daemon import EXPECTED, describe_versions
from hypaware.home import Home
from tests.support.claude_files import turns, write
from tests.support.command import Hyp
from tests.support.light_lake import read_lake
from tests.support.rows import DATASET, rows
from tests.support.shared_lake import ENVIRONMENT, shared_lake_servers
from tests.support.spark_cluster import can_hide_folders, cluster

# A question and two lines of an answer in each of twenty turns.
ROWS = 60
SECRET = "secret-of-the-cluster"
SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture
def mounts(tmp_path: Path) -> None:
    if not can_hide_folders(tmp_path / "tried"):
        pytest.skip("this user may not mount folders (unshare -m): workers cannot have file systems of their own")


@pytest.fixture
def machines(hyp: Hyp, mounts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Two workers that see neither the home, nor transcripts and projects, nor the source of hypaware."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    home = Home(hyp.home)
    shared = [home.warehouse, home.settlements]
    for folder in (*shared, tmp_path / "claude", tmp_path / "projects"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    hidden = [home.root, tmp_path / "claude", tmp_path / "projects", SOURCE]
    with cluster(tmp_path / "cluster", workers=2, cores=1, hidden=hidden, shared=shared) as address:
        yield address
        hyp.run("engine", "stop")


def add_project(folder: Path, name: str, *, ignored: bool = False) -> Path:
    project = folder / name
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    origin = f"https://example.com/{name}.git"
    subprocess.run(["git", "-C", str(project), "remote", "add", "origin", origin], check=True)
    if ignored:
        (project / ".hypignore").write_text("")
    return project


def add_session(claude: Path, session: str, cwd: Path, count: int = 20) -> None:
    lines = ({**line, "cwd": str(cwd)} for line in turns(session, count))
    write(claude / "projects" / f"-{session}" / f"{session}.jsonl", lines)


def public_rows(home: Home) -> list[dict[str, Any]]:
    """Return the rows of the lake without what differs between two imports."""
    found = [
        {name: value for name, value in row.items() if not name.startswith("_hyp") and name != "gateway_id"}
        for row in read_lake(home, DATASET)
    ]
    return sorted(found, key=lambda row: str(row["part_id"]))


@pytest.mark.hazard(116)
def test_machines_that_share_only_the_lake_store_the_same_rows_as_one_machine(
    hyp: Hyp, machines: str, tmp_path: Path
) -> None:
    claude, projects = tmp_path / "claude", tmp_path / "projects"
    for number in range(6):
        add_session(claude, f"session-{number}", add_project(projects, f"project-{number}"))
    add_session(claude, "private", add_project(projects, "private", ignored=True))
    spooled = rows(600)
    alone = Hyp(tmp_path / "alone")
    for each, master in ((hyp, machines), (alone, "local[2]")):
        each.ok("config", "set", "engine.master", master)
        for start in (0, 300):
            each.ingest(spooled[start : start + 300])
            (flushed,) = each.ok("flush")["datasets"]
            assert flushed["rows_written"] == 300
        (imported,) = each.ok("backfill", "claude")["providers"]
        assert (imported["files"], imported["rows_written"]) == (7, 6 * ROWS), imported
        (again,) = each.ok("backfill", "claude")["providers"]
        assert again["rows_written"] == 0
        (compacted,) = each.ok("maintain", DATASET, "--compact-only", "--force")["datasets"]
        assert compacted["files_after"] < compacted["files_before"]
        assert each.query(f"SELECT count(*) AS n FROM {DATASET}") == [{"n": 600 + 6 * ROWS}]
        assert each.ok("verify", "--deep")["ok"]
        each.ok("engine", "stop")

    found, expected = public_rows(Home(hyp.home)), public_rows(Home(alone.home))
    assert {row["git_remote"] for row in found if row["cwd"]} >= {
        f"https://example.com/project-{n}.git" for n in range(6)
    }
    assert json.dumps(found, default=str) == json.dumps(expected, default=str)


def test_machines_that_share_nothing_run_the_jobs_of_a_shared_lake(
    mounts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of the lake are in a bucket, its catalog and its state in PostgreSQL, its jobs on two workers."""
    claude = tmp_path / "claude"
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(claude))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    for number in range(4):
        add_session(claude, f"session-{number}", add_project(tmp_path / "projects", f"project-{number}"))
    (tmp_path / "secret").write_text(SECRET)
    with shared_lake_servers(tmp_path) as servers:
        hyp = servers.machine("driver")
        hidden = [hyp.home, claude, tmp_path / "projects", servers.s3.buckets, SOURCE]
        hyp.ingest(rows(300))
        with cluster(tmp_path / "cluster", workers=2, cores=1, secret=SECRET, hidden=hidden) as address:
            hyp.ok("config", "set", "engine.master", address)
            refused = hyp.run("flush", "--json")
            assert (refused.code, refused.json["error"]["kind"]) == (3, "cluster_secret"), refused
            assert "password of the database" in refused.json["error"]["message"]
            hyp.run("engine", "stop")
            hyp.ok("config", "set", "engine.secret_file", str(tmp_path / "secret"))
            try:
                use_shared_lake(hyp)
            finally:
                hyp.run("engine", "stop")
        require_no_secret(hyp.home, tmp_path / "cluster")
        assert not list((hyp.home / "lake").rglob("*.parquet"))


def use_shared_lake(hyp: Hyp) -> None:
    (flushed,) = hyp.ok("flush")["datasets"]
    assert flushed["rows_written"] == 300
    hyp.ingest(rows(300, start=150))
    (flushed,) = hyp.ok("flush")["datasets"]
    assert (flushed["rows_written"], flushed["rows_duplicate"]) == (150, 150)
    (imported,) = hyp.ok("backfill", "claude")["providers"]
    assert (imported["files"], imported["rows_written"]) == (4, 4 * ROWS), imported
    (compacted,) = hyp.ok("maintain", DATASET, "--compact-only", "--force")["datasets"]
    assert compacted["files_after"] < compacted["files_before"]
    counted = f"SELECT count(*) AS n, count(DISTINCT part_id) AS parts FROM {DATASET}"
    assert hyp.query(counted) == [{"n": 450 + 4 * ROWS, "parts": 450 + 4 * ROWS}]
    whole = hyp.run("query", "sql", f"SELECT * FROM {DATASET}", "--format", "jsonl", "--refresh", "never")
    assert len(whole.out.splitlines()) == 450 + 4 * ROWS, whole.err
    assert hyp.ok("verify", "--deep")["ok"]


def require_no_secret(*folders: Path) -> None:
    """No file of the driver or of a worker contains a password or a key, apart from the cluster's own settings."""
    secrets = [SECRET.encode(), *(value.encode() for name, value in ENVIRONMENT.items() if name != "AWS_ACCESS_KEY_ID")]
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        if path.name != "spark-defaults.conf":
            assert not any(secret in path.read_bytes() for secret in secrets), path


@pytest.mark.hazard(116)
def test_a_machine_that_cannot_work_is_named_before_the_first_job_and_rows_stay_in_the_spool(
    hyp: Hyp, mounts: None, tmp_path: Path
) -> None:
    hyp.ingest(rows(30))
    with cluster(tmp_path / "cluster", cores=1, hidden=[hyp.home]) as address:
        hyp.ok("config", "set", "engine.master", address)
        refused = hyp.run("flush", "--json")
        assert (refused.code, refused.json["error"]["kind"]) == (3, "lake_not_shared")
        assert socket.gethostname() in refused.json["error"]["message"]
        assert str(Home(hyp.home).warehouse) in refused.json["error"]["message"]
        hyp.run("engine", "stop")
        hyp.ok("config", "set", 'engine.spark."spark.pyspark.python"', "/missing/python")
        refused = hyp.run("flush", "--json")
        assert (refused.code, refused.json["error"]["kind"]) == (3, "executor_unusable")
        assert "executor on 127.0.0.1" in refused.json["error"]["message"]
        assert "/missing/python" in refused.json["error"]["message"]
        hyp.run("engine", "stop")
        # As if another version of hypaware were installed there.
        other = tmp_path / "python"
        other.write_text(f'#!/bin/sh\n{EXPECTED}="hypaware 99.0, Python 3.99" exec {sys.executable} "$@"\n')
        other.chmod(0o755)
        hyp.ok("config", "set", 'engine.spark."spark.pyspark.python"', str(other))
        refused = hyp.run("flush", "--json")
        assert (refused.code, refused.json["error"]["kind"]) == (3, "executor_unusable")
        assert "executor on 127.0.0.1" in refused.json["error"]["message"]
        assert f"this executor has {describe_versions()}, but the driver has" in refused.json["error"]["message"]
        hyp.run("engine", "stop")
    assert hyp.ok("status")["spool"]["rows"] == 30
    assert list(Home(hyp.home).lake.rglob(".probe-*")) == []
