"""`hyp reproject`: windows, a dry run, and an empty home."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hypaware.cli import entry
from hypaware.home import Home
from tests.support.raw_exchanges import EXCHANGES, project_all, recorded, store

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("HYP_HOME", str(tmp_path / "home"))
    return Home(tmp_path / "home")


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_reproject_without_a_home_finds_nothing_and_creates_none(here: Home, capfd: Capture, dry: list[str]) -> None:
    assert entry.run(["reproject", *dry]) == 0
    assert "no raw exchanges" in capfd.readouterr().out
    assert entry.run(["reproject", "--json", *dry]) == 0

    result = json.loads(capfd.readouterr().out)
    assert result == {
        "dry_run": bool(dry),
        **dict.fromkeys(("exchanges", "sessions", "rows_projected", "rows_written", "rows_duplicate"), 0),
        **dict.fromkeys(("rows_purged", "rows_rejected"), 0),
        "skipped": {},
    }
    assert not here.root.exists()


@pytest.mark.parametrize(
    ("requested", "words"),
    [(["--since", "yesterday"], "is not a date"), (["--since", "2026-11-20", "--until", "2026-11-01"], "is after")],
)
@pytest.mark.hazard(49)
def test_an_invalid_window_is_rejected(here: Home, capfd: Capture, requested: list[str], words: str) -> None:
    assert entry.run(["reproject", *requested]) == 2
    assert words in capfd.readouterr().err


def test_a_dry_run_reports_what_would_be_added_and_what_is_skipped(here: Home, capfd: Capture) -> None:
    raw, made = project_all(recorded("claude-2.1.325/compact"))
    store(here, EXCHANGES, raw)

    assert entry.run(["reproject", "--dry-run"]) == 0

    result = capfd.readouterr().out
    assert f"{len(made)} would be added, 0 already stored" in result
    assert "side_call:compaction" in result
    assert entry.run(["reproject", "--dry-run", "--until", "2020-01-01", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["exchanges"] == 0
