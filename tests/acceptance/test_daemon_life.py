"""A daemon in the background, from its start to its end: what is killed in between costs nothing."""

from __future__ import annotations

import os
import signal

import pytest

from hypaware.daemon import condition, instance
from hypaware.home import Home
from hypaware.lake import metadata
from tests.command import Hyp
from tests.light_lake import read_lake
from tests.processes import eventually, wait_until_gone
from tests.rows import DATASET, rows

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
    """The message ids in the lake, each as often as it is there; none while there is no table.

    The reader would make a catalog where there is none, beside the engine that is just about to.
    """
    if metadata.entry(home, DATASET) is None:
        return []
    return sorted(row["message_id"] for row in read_lake(home, DATASET))


def test_a_daemon_is_started_killed_started_again_and_stopped_and_every_row_is_there_once(hyp: Hyp) -> None:
    home = Home(hyp.home)
    hyp.home.mkdir()
    home.config.write_text(CONFIG)
    first = hyp.ok("daemon", "start")
    assert first == {"pid": instance.running(home), "started": True}
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
    assert condition.read(home) == {}
    assert len(set(committed(home))) == len(committed(home)) == 70
    log = (home.logs / "daemon.log").read_text()
    assert log.count("is running as process") == 2
    assert log.count("the daemon is stopping") == 1
