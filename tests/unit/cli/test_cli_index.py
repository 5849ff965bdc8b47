"""`hyp index`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hypaware.cli import entry
from hypaware.home import Home
from hypaware.index.schema import VERSION
from hypaware.state.home_opener import open_home
from tests.support.edited_lake import add_file, stored_row
from tests.support.light_home import append
from tests.support.rows import rows


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    home = Home(tmp_path / "home")
    monkeypatch.setenv("HYP_HOME", str(home.root))
    gateway = open_home(home).gateway_id
    add_file(home, [stored_row(number, each, gateway) for number, each in enumerate(rows(20), 1)])
    append(home, rows(3, start=20))
    return home


def test_the_status_of_a_missing_index_creates_none(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.run(["index", "status", "--json"]) == 0
    expected = {"rows": 0, "through_seq": None, "lag_rows": 23, "bytes": 0, "building": False, "version": None}
    assert json.loads(capsys.readouterr().out) == expected
    assert not home.index.exists()
    assert entry.run(["index", "status"]) == 0
    assert "There is no index yet" in capsys.readouterr().out


def test_a_rebuilt_index_is_complete(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    home.index.write_bytes(b"garbage")
    assert entry.run(["index", "rebuild"]) == 0
    assert "The index has 23 rows" in capsys.readouterr().out
    assert entry.run(["index", "status", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["bytes"] >= home.index.stat().st_size > 0
    del document["bytes"]
    expected = {"rows": 23, "through_seq": 20, "lag_rows": 0, "building": False, "version": VERSION}
    assert document == expected


def test_the_status_counts_rows_that_are_not_indexed(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.run(["index", "rebuild", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 23
    gateway = open_home(home).gateway_id
    add_file(home, [stored_row(100 + number, each, gateway) for number, each in enumerate(rows(4, start=100))])
    append(home, rows(2, start=200))
    assert entry.run(["index", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lag_rows"] == 6
    assert entry.run(["index", "status"]) == 0
    assert "6 rows of the lake and the spool are not yet added" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["status", "rebuild"])
def test_without_a_home_setup_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setenv("HYP_HOME", str(tmp_path / "missing"))
    assert entry.run(["index", command]) == 3
    assert "try: hyp setup" in capsys.readouterr().err
    assert not (tmp_path / "missing").exists()
