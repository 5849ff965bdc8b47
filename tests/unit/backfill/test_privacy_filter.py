"""History of ignored folders and sessions is imported only once they are no longer ignored."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from hypaware.backfill import dry_run
from hypaware.backfill.request import UNRESTRICTED, ImportPolicy
from hypaware.clients import session_hook
from hypaware.config import Config, PrivacyConfig, RedactionConfig
from hypaware.home import Home
from hypaware.privacy import folder_memory, ignored_sessions
from tests.support.claude_files import grow, turns, write
from tests.support.light_home import DATASET, import_history
from tests.support.light_lake import read_lake

KEY = "gh" + "p_" + "a1B2" * 9


@pytest.fixture
def projects(tmp_path: Path) -> Path:
    return tmp_path / "claude" / "projects" / "-project"


@pytest.fixture
def environment(projects: Path) -> dict[str, str]:
    return {"HOME": "/nonexistent", "CLAUDE_CONFIG_DIR": str(projects.parents[1])}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def at(folder: Path | None, lines: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return ({**line, "cwd": str(folder) if folder else ""} for line in lines)


def sessions(home: Home) -> list[str]:
    found = [row["session_id"] for row in read_lake(home, DATASET)]
    assert len({row["part_id"] for row in read_lake(home, DATASET)}) == len(found), "a part is there twice"
    return sorted(found)


def dry_run_report(home: Home, environment: dict[str, str], config: Config | None = None) -> dict[str, Any]:
    args = {"providers": ["claude"], "environment": environment}
    (found,) = dry_run.run_dry(home, config or Config(), args, lambda *_: None)["providers"]
    assert isinstance(found, dict)
    return found


@pytest.mark.hazard(50)
def test_an_ignored_folder_is_imported_once_it_is_no_longer_ignored(
    home: Home, projects: Path, environment: dict[str, str], work: Path
) -> None:
    (work / ".hypignore").touch()
    path = write(projects / "a.jsonl", chain(turns("open", 2), at(work, turns("closed", 3))))
    planned = dry_run_report(home, environment)
    first = import_history(home, environment)
    for found in (planned, first.as_json()):
        assert (found["rows_written"], found["rows_skipped"], found["rows_ignored"]) == (6, 9, 9)
        assert found["lines_skipped"] == {"folder_ignored": 9}
        assert found["summary"]["tokens"] == first.as_json()["summary"]["tokens"]
    assert sessions(home) == ["open"] * 6
    # The unchanged file is not opened. Added lines are filtered too, and earlier ignored pairs are kept.
    path.chmod(0)
    assert import_history(home, environment).files_unchanged == 1
    path.chmod(0o600)
    grow(path, turns("open", 1, first=2))
    assert import_history(home, environment).rows.written == 3
    (work / ".hypignore").write_text("local-only")
    assert dry_run_report(home, environment)["rows_written"] == 9
    again = import_history(home, environment)
    assert (again.rows.written, again.rows_ignored, again.rows_skipped) == (9, 0, 9)
    assert sessions(home) == ["closed"] * 9 + ["open"] * 9
    assert import_history(home, environment).files_unchanged == 1


def test_a_deleted_folder_that_was_ignored_is_not_imported(
    home: Home, projects: Path, environment: dict[str, str], work: Path
) -> None:
    clone = work / "clone"
    clone.mkdir()
    (clone / ".hypignore").touch()
    path = write(projects / "a.jsonl", at(clone / "src", turns("closed", 2)))
    assert dry_run_report(home, environment)["rows_ignored"] == 6
    assert not home.root.exists(), "a dry run writes nothing"
    assert import_history(home, environment).rows_ignored == 6
    shutil.rmtree(clone)
    assert import_history(home, environment).files_unchanged == 1
    grow(path, at(clone, turns("closed", 1, first=2)))
    write(projects / "b.jsonl", at(clone, turns("another", 1)))
    assert dry_run_report(home, environment)["rows_ignored"] == 6
    assert import_history(home, environment).rows_ignored == 6
    assert sessions(home) == []
    # The user creates the folder again and no longer ignores it.
    clone.mkdir()
    (clone / ".hypignore").write_text("full")
    assert import_history(home, environment).rows.written == 12


def test_an_opted_out_session_is_imported_once_the_opt_out_is_withdrawn(
    home: Home, projects: Path, environment: dict[str, str]
) -> None:
    write(projects / "a.jsonl", turns("mine", 2))
    write(projects / "b.jsonl", turns("yours", 1))
    ignored_sessions.ignore_session(home, "mine")
    assert dry_run_report(home, environment)["lines_skipped"] == {"session_ignored": 6}
    assert import_history(home, environment).lines_skipped == {"session_ignored": 6}
    assert sessions(home) == ["yours"] * 3
    # Changing another session's policy does not affect these checkpoints.
    ignored_sessions.ignore_session(home, "unheard-of")
    assert import_history(home, environment).files_unchanged == 2
    ignored_sessions.unignore_session(home, "mine")
    assert import_history(home, environment).rows.written == 6
    # Rows in the lake stay; new rows are not imported.
    ignored_sessions.ignore_session(home, "mine")
    grow(projects / "a.jsonl", turns("mine", 1, first=2))
    assert import_history(home, environment).rows_ignored == 3
    assert len(sessions(home)) == 9


def test_the_config_sets_the_policy_of_folders_and_of_unknown_folders(
    home: Home, projects: Path, environment: dict[str, str], work: Path
) -> None:
    write(projects / "a.jsonl", at(work / "gone", turns("closed", 1)))
    write(projects / "b.jsonl", at(None, turns("nowhere", 1)))
    write(projects / "c.jsonl", at(None, turns("noted", 1)))
    (home.root / "clients").mkdir(parents=True)
    session_hook.record_context(home, "claude", {"session_id": "noted", "cwd": str(work)})
    closed = Config(privacy=PrivacyConfig("ignore", {str(work / "gone"): "ignore"}))
    assert dry_run_report(home, environment, closed)["lines_skipped"] == {"folder_ignored": 6}
    assert import_history(home, environment, config=closed).lines_skipped == {"folder_ignored": 6}
    assert sessions(home) == ["noted"] * 3
    assert import_history(home, environment).rows.written == 6


@pytest.mark.hazard(59)
def test_secrets_in_imported_rows_are_redacted_if_configured(
    home: Home, projects: Path, environment: dict[str, str]
) -> None:
    lines = [{**line, "message": {"role": "user", "content": f"use {KEY}"}} for line in turns("s", 1, lines=0)]
    write(projects / "a.jsonl", iter(lines))
    import_history(home, environment, config=Config(redaction=RedactionConfig(kept=True)))
    (row,) = read_lake(home, DATASET)
    assert KEY not in str(row)
    assert "[github-token:" in row["content_text"]
    assert import_history(home, environment).files_unchanged == 1


def test_nothing_is_imported_if_the_privacy_settings_cannot_be_read(
    home: Home, projects: Path, environment: dict[str, str]
) -> None:
    write(projects / "a.jsonl", turns("s", 1))
    home.root.mkdir()
    ignored_sessions.ignored_sessions_path(home).write_text("{")
    assert dry_run_report(home, environment)["error"]["kind"] == "privacy_unreadable"
    with pytest.raises(ignored_sessions.PrivacyFileUnreadable):
        import_history(home, environment)
    ignored_sessions.ignored_sessions_path(home).unlink()
    folder_memory.folder_memory_path(home).write_text("{")
    assert dry_run_report(home, environment)["error"]["kind"] == "privacy_unreadable"
    with pytest.raises(ignored_sessions.PrivacyFileUnreadable):
        import_history(home, environment)
    folder_memory.folder_memory_path(home).unlink()
    assert import_history(home, environment).rows.written == 3


def test_the_policy_sent_to_tasks_is_small(home: Home) -> None:
    admission = ImportPolicy.from_config(home, Config(privacy=PrivacyConfig(folders={"~/a": "ignore"})))
    packed = pickle.dumps(admission)
    assert pickle.loads(packed) == admission
    assert len(packed) < 1000
    assert UNRESTRICTED.row_filter().skip_reason(("/a", "s")) is None
