"""A reading command compares nothing with the lake while nothing has changed, and notices every change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hypaware.home import Home
from hypaware.index import freshness, refresh
from hypaware.index.freshness import is_fresh
from hypaware.index.refresh import refresh_index
from hypaware.index.store import open_index
from hypaware.spool.writer import Spool
from hypaware.state.home_opener import open_home
from tests.support.edited_lake import add_file, stored_row
from tests.support.light_home import NO_TIMER, append
from tests.support.rows import DATASET, rows

HEAVY = (
    *("hypaware.config", "hypaware.index.parts", "hypaware.index.refresh", "hypaware.index.writer"),
    *("hypaware.model.datasets", "hypaware.state.store", "pyarrow"),
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    gateway = open_home(home).gateway_id
    add_file(home, [stored_row(number, each, gateway) for number, each in enumerate(rows(20), 1)])
    append(home, rows(3, start=20))
    return home


@pytest.fixture
def settled(home: Home, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home whose files were not written just now, with a complete index."""
    monkeypatch.setattr(freshness, "_SETTLED_NS", 0)
    refresh_index(home)
    assert is_fresh(home) == (True, None)
    return home


def _append(home: Home) -> None:
    append(home, rows(1, start=50))


def _commit(home: Home) -> None:
    add_file(home, [stored_row(90, rows(1, start=90)[0], open_home(home).gateway_id)])


def _configure(home: Home) -> None:
    home.config.write_text("version = 1\n[index]\ntext = false\n")


def _lose_state(home: Home) -> None:
    home.state.unlink()


CHANGES = [_append, _commit, _configure, _lose_state]


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_noticed(settled: Home, change: Callable[[Home], None]) -> None:
    change(settled)
    assert is_fresh(settled)[0] is False
    refresh_index(settled)
    assert is_fresh(settled)[0] is True


def test_a_row_of_the_spool_is_seen_by_the_next_command(settled: Home) -> None:
    with open_index(settled) as index:
        (before,) = index.connection.execute("SELECT count(*) FROM parts").fetchone()
    _append(settled)
    with open_index(settled) as index:
        assert index.connection.execute("SELECT count(*) FROM parts").fetchone()[0] == before + 1


def test_a_segment_that_grows_is_noticed(settled: Home) -> None:
    """The daemon appends to one segment until it is sealed, so only its size changes."""
    with Spool(settled, NO_TIMER) as spool:
        spool.append(DATASET, rows(1, start=60))
        refresh_index(settled)
        assert is_fresh(settled)[0] is True
        spool.append(DATASET, rows(1, start=61))
        assert is_fresh(settled)[0] is False


def test_a_moved_home_is_compared_again(settled: Home) -> None:
    moved = Home(settled.root.with_name("moved"))
    settled.root.rename(moved.root)
    assert is_fresh(moved)[0] is False


def test_a_file_that_was_just_written_may_change_unnoticed_so_nothing_is_stored(home: Home) -> None:
    refresh_index(home)
    assert is_fresh(home)[0] is False
    for path in home.root.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    refresh_index(home)
    assert is_fresh(home)[0] is True


def test_an_index_that_is_being_built_is_not_fresh(settled: Home) -> None:
    add_file(settled, [stored_row(each, rows(1, start=each)[0], "g") for each in range(100, 130)])
    with pytest.raises(refresh.IndexBehind):
        refresh_index(settled, at_most_rows=0)
    assert is_fresh(settled)[0] is False


def test_without_an_index_nothing_is_fresh(tmp_path: Path) -> None:
    assert is_fresh(Home(tmp_path / "none")) == (False, None)


@pytest.mark.parametrize("arguments", [["sessions"], ["usage"], ["search", "words"], ["show", "--last"]])
def test_commands_import_no_writer_if_nothing_has_changed(settled: Home, arguments: list[str]) -> None:
    for path in settled.root.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    refresh_index(settled)
    code = (
        "import json, sys\nfrom hypaware.cli import entry\ncode = entry.run(sys.argv[1:])\n"
        f"print(json.dumps([code, sorted(set(sys.modules) & set({HEAVY!r}))]), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--json"],
        env={**os.environ, "HYP_HOME": str(settled.root)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stderr.splitlines()[-1]) == [0, []]
