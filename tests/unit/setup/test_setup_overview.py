"""The overview at the end of a setup: from the index, complete, and without an engine."""

from __future__ import annotations

from pathlib import Path

from hypaware.home import Home
from hypaware.setup.plan import SetupListener
from hypaware.setup.run import read_overview
from tests.support.index_home import make_home, response


def test_the_overview_of_a_setup_includes_every_row(tmp_path: Path) -> None:
    home = make_home(tmp_path, *(response(number, at="2026-11-14T08:00:00Z") for number in range(30)))

    found = read_overview(home, SetupListener())

    assert found is not None
    assert found["totals"]["parts"] == 30
    assert not home.engine.exists()


def test_a_setup_that_recorded_nothing_has_no_overview(tmp_path: Path) -> None:
    home: Home = make_home(tmp_path)

    assert read_overview(home, SetupListener()) is None
