"""The lifetime of a background daemon: kills in between lose nothing."""

from __future__ import annotations

import os
import signal

import pytest

from hypaware.home import Home, daemon_process
from hypaware.iceberg import metadata
from tests.support.command import Hyp
from tests.support.light_lake import read_lake
from tests.support.processes import eventually, wait_until_gone
from tests.support.rows import DATASET, rows

pytestmark = pytest.mark.spark

CONFIG = """
version = 1
[clients.claude]
enabled = false
[clients.codex]
enabled = false
[flush]
interval = "1s"
cold_interval = "1s"
"""


def committed(home: Home) -> list[str]:
    """Return the message ids in the lake, with duplicates; empty while there is no table.

    The reader would create a missing catalog at the same time as the engine, so it waits for the table.
    """
    if metadata.find_table(home, DATASET) is None:
        return []
    return sorted(row["message_id"] for row in read_lake(home, DATASET))


def test_a_daemon_that_is_killed_restarted_and_stopped_stores_every_row_once(hyp: Hyp) -> None:
    home = Home(hyp.home)
    hyp.home.mkdir()
    home.config.write_text(CONFIG)
    first = hyp.ok("daemon", "start")
    assert first == {"pid": daemon_process.running_daemon(home), "started": True}
    try:
        assert hyp.ok("daemon", "start") == {"pid": first["pid"], "started": False}
        assert hyp.ok("engine", "status")["state"] == "stopped", "nothing happens, so nothing is started"
        hyp.ingest(rows(50))
        eventually(lambda: len(committed(home)) == 50)
        engine = hyp.ok("engine", "status")["pid"]

        os.kill(first["pid"], signal.SIGKILL)
        wait_until_gone(first["pid"])
        down = hyp.run("daemon", "status", "--json")
        assert (down.code, down.json["state"], down.json["died"]["pid"]) == (3, "stopped", first["pid"])
        assert down.json["error"]["repair"] == ["hyp daemon start"]
        hyp.ingest(rows(20, start=50))

        again = hyp.ok("daemon", "start")
        assert again["started"]
        eventually(lambda: len(committed(home)) == 70)
        assert hyp.ok("engine", "status")["pid"] == engine, "the engine that was left is taken over"

        os.kill(again["pid"], signal.SIGHUP)
        eventually(lambda: "the config was reloaded" in (home.logs / "daemon.log").read_text())
        told = hyp.ok("daemon", "status")
        assert (told["pid"], told["started_by"], told["installed"]) == (again["pid"], "hand", None)
    finally:
        stopped = hyp.run("daemon", "stop", "--force", "--json")
    assert (stopped.code, stopped.json["stopped"]) == (0, True)
    assert daemon_process.read_daemon_status(home) == {}
    assert len(set(committed(home))) == len(committed(home)) == 70
    log = (home.logs / "daemon.log").read_text()
    assert log.count("is running as process") == 2
    assert log.count("the daemon is stopping") == 1
