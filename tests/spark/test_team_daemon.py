"""Daemons of several machines take turns on one lake. Real servers, real `hyp daemon run`, real engines."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypaware.home import Home
from hypaware.iceberg import catalog
from tests.support.claude_files import grow, turns, write
from tests.support.command import Hyp
from tests.support.light_lake import read_lake
from tests.support.ports import held_port
from tests.support.processes import PATIENCE, eventually
from tests.support.rows import DATASET, rows
from tests.support.shared_lake import SharedLakeServers

OFTEN = """
[flush]
interval = "1s"
cold_interval = "1s"
[clients.claude]
enabled = true
[page]
enabled = false
[gateway]
"""


@contextmanager
def daemon(hyp: Hyp, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the daemon of a home, and stop it and its engine at the end."""
    running = hyp.start("daemon", "run", CLAUDE_CONFIG_DIR=str(folder))
    try:
        yield running
    finally:
        running.send_signal(signal.SIGTERM)
        _, err = running.communicate(timeout=PATIENCE)
        assert running.returncode == 0, err


@contextmanager
def configured(servers: SharedLakeServers, name: str) -> Iterator[Hyp]:
    """Yield the home of a machine. Its engine is stopped at the end."""
    hyp = servers.machine(name)
    with held_port() as port:
        with (hyp.home / "config.toml").open("a") as config:
            config.write(f'{OFTEN}listen = "127.0.0.1:{port}"\n')
        try:
            yield hyp
        finally:
            hyp.run("engine", "stop")


def test_daemons_take_turns_and_an_idle_engine_gives_the_lake_back(servers: SharedLakeServers, tmp_path: Path) -> None:
    session = write(tmp_path / "two" / "projects" / "-project" / "s.jsonl", turns("s", 2))
    with configured(servers, "first") as first, configured(servers, "second") as second:
        first.ingest(rows(5))
        first.ok("flush")
        engine = int((first.home / "run" / "engine.pid").read_text())
        second.ingest(rows(5, start=5))
        status = second.ok("status")
        assert status["engine"]["lake_holder"]["owner"].endswith(f"-{engine}")
        assert "lake_in_use" in {each["kind"] for each in status["diagnostics"]}
        assert "lake_in_use" not in {each["kind"] for each in first.ok("status")["diagnostics"]}
        with daemon(second, tmp_path / "two"):
            eventually(lambda: stored(second) >= {row["message_id"] for row in rows(10)})
            assert not is_running(engine), "the engine ends because another machine waits, long before it is idle"
            eventually(lambda: len(read_lake(Home(second.home), DATASET)) == 10 + 3 * 2)
            with daemon(first, tmp_path / "one"):
                first.ingest(rows(5, start=10))
                grow(session, turns("s", 1, first=2), age=0)
                eventually(lambda: len(read_lake(Home(second.home), DATASET)) == 15 + 3 * 3)
        catalog._idle.connection = None
        _purge(second, 15 + 3 * 3)


def _purge(hyp: Hyp, count: int) -> None:
    """Purge rows that share a file with others, with Spark. `test_team_purge` does everything else without it."""
    unwanted = rows(5, start=20, session_id="session-2")
    hyp.ingest([*unwanted, *rows(5, start=25)])
    hyp.ok("flush")
    purged = hyp.ok("purge", "--session", "session-2", "--yes")
    (messages,) = [each for each in purged["datasets"] if each["rows"]]
    assert (messages["rows"], messages["files_rewritten"], purged["remaining"]) == (5, 1, [])
    hyp.ingest(unwanted)
    assert hyp.ok("flush")["datasets"][0]["rows_written"] == 0
    assert hyp.query(f"SELECT count(*) AS n FROM {DATASET}") == [{"n": count + 5}]
    assert hyp.ok("verify", "--deep")["ok"] is True


def stored(hyp: Hyp) -> set[Any]:
    return {row["message_id"] for row in read_lake(Home(hyp.home), DATASET)}


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
