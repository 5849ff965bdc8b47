"""The daemon follows transcripts: without an import, without Spark, and again after it was killed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hypaware.home import daemon_process
from hypaware.spool import reader
from tests.support import claude_files
from tests.support.daemon_home import DaemonHome, daemon_part
from tests.support.delivery_home import write_config
from tests.support.delivery_jobs import imports_of
from tests.support.followed_home import parts
from tests.support.light_home import DATASET, flush
from tests.support.light_lake import read_lake
from tests.support.processes import eventually

CONFIG = 'version = 1\n[gateway]\nlisten = "127.0.0.1:0"\n[flush]\ninterval = "30d"\ncold_interval = "30d"\n'


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    return tmp_path / "claude/projects/-work"


def spooled(daemon: DaemonHome) -> list[str]:
    return sorted(row["message_id"] for row in reader.read_spooled_rows(daemon.home, DATASET))


def followed(daemon: DaemonHome) -> dict[str, object]:
    clients = daemon_part(daemon.home, "follow").get("clients") or {}
    return dict(clients.get("claude") or {})


def has_checked_for_imports(daemon: DaemonHome) -> bool:
    """Whether the first check is over, which comes a minute after the start; the second follows after 30 days."""
    next_look = daemon_part(daemon.home, "catch_up").get("next_look")
    return next_look is not None and datetime.fromisoformat(next_look) > datetime.now(UTC) + timedelta(days=20)


def test_a_session_is_recorded_while_it_is_written_even_if_the_daemon_is_killed(
    daemon: DaemonHome, folder: Path
) -> None:
    daemon.home.root.mkdir(exist_ok=True)
    write_config(daemon.home, f"{CONFIG}[clients.claude]\nenabled = true\n")
    with daemon.running() as running:
        eventually(lambda: followed(daemon).get("state") == "folder_missing")
        eventually(lambda: has_checked_for_imports(daemon))
        path = claude_files.write(folder / "one.jsonl", claude_files.turns("one", 1), age=0)
        # Rows are counted when their checkpoint is stored, so the next daemon does not record these again.
        eventually(lambda: followed(daemon).get("rows") == 3)
        assert len(spooled(daemon)) == 3
        assert followed(daemon)["last_recorded_at"] is not None
        assert followed(daemon)["mode"] == "notifications"
        assert imports_of(daemon.home) == []
        running.process.kill()
        running.process.wait()
    assert daemon_process.running_daemon(daemon.home) is None
    claude_files.grow(path, claude_files.turns("one", 1, first=1), age=0)
    with daemon.running() as running:
        eventually(lambda: followed(daemon).get("rows") == 3)
        loaded = running.stop()
    flush(daemon.home)
    names = ("u0", "a0-0", "a0-1", "u1", "a1-0", "a1-1")
    assert parts(read_lake(daemon.home, DATASET)) == {f"one-{name}#0": 1 for name in names}
    assert loaded.strip() == "", "neither Spark nor Arrow is loaded"


def test_a_client_that_is_not_chosen_is_not_followed(daemon: DaemonHome, folder: Path) -> None:
    daemon.home.root.mkdir(exist_ok=True)
    write_config(daemon.home, CONFIG)
    with daemon.running() as running:
        claude_files.write(folder / "one.jsonl", claude_files.turns("one", 1), age=0)
        write_config(daemon.home, f"{CONFIG}[clients.codex]\nenabled = true\n")
        eventually(lambda: "codex" in (daemon_part(daemon.home, "follow").get("clients") or {}))
        assert followed(daemon) == {}
        running.stop()
    assert spooled(daemon) == []
