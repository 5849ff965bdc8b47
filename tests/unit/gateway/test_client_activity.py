"""`run/gateway.json`, which `hyp client status` reads."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta

import pytest

from hypaware.gateway.attach_status import ClientActivity, activity_path
from hypaware.home import Home

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_last_seen_times_survive_a_restart_and_counts_do_not(home: Home) -> None:
    home.run.mkdir(parents=True)
    first = ClientActivity(home, "127.0.0.1:1")
    first.record("claude", AT)
    first.record("claude", AT + timedelta(seconds=5))
    first.write()
    expected = {"last_seen_at": "2026-01-31T12:00:05Z", "exchanges": 2}
    assert json.loads(activity_path(home).read_text()) == {
        "listen": "127.0.0.1:1",
        "pid": os.getpid(),
        "clients": {"claude": expected},
    }
    written = activity_path(home).stat()
    first.write()
    assert activity_path(home).stat().st_mtime_ns == written.st_mtime_ns
    second = ClientActivity(home, "127.0.0.1:2")
    second.record("codex", AT)
    second.write()
    found = json.loads(activity_path(home).read_text())
    assert (found["listen"], found["clients"]["claude"]) == ("127.0.0.1:2", {**expected, "exchanges": 0})
    assert [path.name for path in home.run.iterdir()] == ["gateway.json"]


@pytest.mark.parametrize("content", ["", "[]", '{"clients": 1}', '{"clients": {"claude": 1}}'])
def test_a_corrupt_activity_file_is_replaced(home: Home, content: str) -> None:
    home.run.mkdir(parents=True)
    activity_path(home).write_text(content)
    sightings = ClientActivity(home, "x")
    sightings.record("claude", AT)
    sightings.write()
    assert json.loads(activity_path(home).read_text())["clients"]["claude"]["exchanges"] == 1


def test_a_missing_directory_does_not_stop_the_gateway(home: Home) -> None:
    sightings = ClientActivity(home, "x")
    sightings.record("claude", AT)
    sightings.write()
    assert not home.root.exists()
