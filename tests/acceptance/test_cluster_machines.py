"""A Spark cluster whose machines share nothing with the driver's but the folders of the lake."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hypaware.home import Home
from tests.support.claude_files import turns, write
from tests.support.command import Hyp
from tests.support.light_lake import read_lake
from tests.support.rows import DATASET, rows
from tests.support.spark_cluster import can_hide_folders, cluster

# A question and two lines of an answer in each of twenty turns.
ROWS = 60
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
    assert hyp.ok("status")["spool"]["rows"] == 30
    assert list(Home(hyp.home).lake.rglob(".probe-*")) == []
