"""The daemon as a user runs it, with the real engine: rows arrive on schedule, once, whatever is killed in between."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from hypaware.home import Home, daemon_process
from tests.support.command import Hyp
from tests.support.processes import PATIENCE, eventually
from tests.support.rows import rows

pytestmark = pytest.mark.spark

CONFIG = """
version = 1
[gateway]
listen = "127.0.0.1:0"
[flush]
interval = "1s"
cold_interval = "1s"
[sinks.archive]
kind = "blob"
destination = "{folder}"
schedule = "* * * * *"
"""


def counted(folder: Path) -> int:
    """Return the number of rows in the manifests."""
    return sum(int(json.loads(path.read_bytes())["rows"]) for path in folder.rglob("_manifests/*.json"))


def arrived(folder: Path) -> Counter[str]:
    """Return the message ids of every object that a manifest names, with duplicates."""
    found: Counter[str] = Counter()
    for path in folder.rglob("_manifests/*.json"):
        for listed in json.loads(path.read_bytes())["objects"]:
            found.update(pq.read_table(folder / listed["key"], columns=["message_id"]).column(0).to_pylist())
    return found


def delivered(hyp: Hyp) -> int:
    """Return the rows of streams that are fully delivered."""
    return sum(
        int(stream["exported_rows"])
        for stream in hyp.ok("export", "status")["streams"]
        if stream["watermark"] == stream["high_water"] and stream["pending"] is None
    )


def test_rows_arrive_on_schedule_once_although_the_engine_is_killed(hyp: Hyp, tmp_path: Path) -> None:
    hyp.home.mkdir()
    (hyp.home / "config.toml").write_text(CONFIG.format(folder=tmp_path / "archive"))
    with hyp.start("daemon", "run") as daemon:
        try:
            eventually(lambda: daemon_process.running_daemon(Home(hyp.home)) == daemon.pid)
            hyp.ingest(rows(50))
            eventually(lambda: counted(tmp_path / "archive") == 50)
            os.kill(hyp.ok("engine", "status")["pid"], signal.SIGKILL)
            hyp.ingest(rows(30, start=50))
            eventually(lambda: counted(tmp_path / "archive") == 80)
            # The delivered rows are recorded here a moment later.
            eventually(lambda: delivered(hyp) == 80)
            eventually(lambda: hyp.ok("daemon", "status")["sinks"]["archive"]["last_status"] == "ok")
            daemon.send_signal(signal.SIGTERM)
            _, err = daemon.communicate(timeout=PATIENCE)
            assert daemon.returncode == 0, err
        finally:
            daemon.kill()
    found = arrived(tmp_path / "archive")
    assert (len(found), set(found.values())) == (80, {1})
    (stream,) = hyp.ok("export", "status")["streams"]
    assert (stream["watermark"] == stream["high_water"], stream["lag_rows"], stream["exported_rows"]) == (True, 0, 80)
    assert hyp.run("daemon", "status").code == 3
