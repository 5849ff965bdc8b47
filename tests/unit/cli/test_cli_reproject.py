"""`hyp reproject` as it is typed: windows, a dry run, an empty home."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hypaware.cli.main import main
from hypaware.home import Home
from tests.raw_exchanges import EXCHANGES, keep, recorded, taken_down

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("HYP_HOME", str(tmp_path / "home"))
    return Home(tmp_path / "home")


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_home_without_anything_is_told_so_and_not_made(here: Home, capfd: Capture, dry: list[str]) -> None:
    assert main(["reproject", *dry]) == 0
    assert "no raw exchanges" in capfd.readouterr().out
    assert main(["reproject", "--json", *dry]) == 0

    told = json.loads(capfd.readouterr().out)
    assert told == {
        "dry_run": bool(dry),
        **dict.fromkeys(("exchanges", "sessions", "rows_projected", "rows_written", "rows_duplicate"), 0),
        **dict.fromkeys(("rows_purged", "rows_rejected"), 0),
        "skipped": {},
    }
    assert not here.root.exists()


@pytest.mark.parametrize(
    ("asked", "words"),
    [(["--since", "yesterday"], "is not a date"), (["--since", "2026-11-20", "--until", "2026-11-01"], "is after")],
)
@pytest.mark.hazard(49)
def test_a_date_that_cannot_be_meant_is_refused(here: Home, capfd: Capture, asked: list[str], words: str) -> None:
    assert main(["reproject", *asked]) == 2
    assert words in capfd.readouterr().err


def test_a_dry_run_says_what_would_be_added_and_why_some_give_nothing(here: Home, capfd: Capture) -> None:
    raw, made = taken_down(recorded("claude-2.1.325/compact"))
    keep(here, EXCHANGES, raw)

    assert main(["reproject", "--dry-run"]) == 0

    told = capfd.readouterr().out
    assert f"{len(made)} would be added, 0 were there" in told
    assert "side_call:compaction" in told
    assert main(["reproject", "--dry-run", "--until", "2020-01-01", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["exchanges"] == 0
