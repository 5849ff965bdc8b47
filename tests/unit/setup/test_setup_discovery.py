"""Discovery of clients and their history."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hypaware.home import Home
from hypaware.setup import discovery
from hypaware.setup.discovery import FoundClient, HistoryEstimate
from tests.support.claude_files import START, turns, write

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


def found(home: Home) -> dict[str, FoundClient]:
    return {each.name: each for each in discovery.find_clients(home, dict(os.environ), NOW)}


def test_history_is_estimated_by_sessions_days_and_size_without_creating_anything(home: Home, user: Path) -> None:
    claude = found(home)["claude"]
    files = list((user / ".claude/projects").rglob("*.jsonl"))
    last_day = max(datetime.fromtimestamp(path.stat().st_mtime, UTC) for path in files).date().isoformat()
    # Three files, one of them of a subagent.
    assert claude.estimate() == HistoryEstimate(2, sum(path.stat().st_size for path in files), "2026-10-01", last_day)
    assert claude.installed
    assert not home.root.exists()


def test_a_client_is_found_by_its_settings_its_history_or_its_program(home: Home, user: Path, tmp_path: Path) -> None:
    assert found(home)["codex"].installed
    (user / ".codex").rmdir()
    assert not found(home)["codex"].installed
    program = tmp_path / "no-programs" / "codex"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert found(home)["codex"].installed


def test_files_last_written_before_the_window_are_not_counted(home: Home, user: Path) -> None:
    write(user / ".claude/projects/-p/old.jsonl", turns("old", 1, start=START - timedelta(days=200)), age=200 * 86_400)
    claude = found(home)["claude"]
    assert claude.estimate().sessions == 3
    assert claude.estimate().first_day == "2026-03-15"
    within = claude.estimate(datetime.now(UTC) - timedelta(days=30))
    assert within.sessions == 2
    assert within.first_day is not None
    assert within.first_day >= "2026-10-01"


def test_a_first_line_without_a_time_gets_the_date_of_its_file(home: Home, user: Path) -> None:
    for path in (user / ".claude/projects").rglob("*.jsonl"):
        path.write_text("what is this\n")
        os.utime(path, (1_790_000_000, 1_790_000_000))
    claude = found(home)["claude"]
    assert (claude.estimate().first_day, claude.estimate().last_day) == ("2026-09-21", "2026-09-21")
