"""Copies of a home: rows that one of them has delivered are not delivered by the other."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from hypaware.config import SinkConfig
from hypaware.export import configured
from hypaware.home import Home
from hypaware.opening import identify
from hypaware.state import identity
from hypaware.testing.destination import FOLDER
from hypaware.testing.lives import live
from tests.light_life import DATASET, append, flush
from tests.rows import row
from tests.unit.maintain.retaining import NOW, Keeper


@pytest.fixture(autouse=True)
def _folder_sink() -> Iterator[None]:
    with configured.also(FOLDER):
        yield


@pytest.mark.hazard(71)
@pytest.mark.parametrize("can_be_asked", [True, False])
def test_a_copy_with_an_unfinished_flush_delivers_no_row_again(tmp_path: Path, can_be_asked: bool) -> None:
    """The rows are in both lakes, above everything that was recorded when the copy was made."""
    keeper = Keeper(Home(tmp_path / "home"))
    destination = keeper.declare("a")
    options = {"folder": str(destination.folder), "can_be_asked": can_be_asked}
    keeper.sinks["a"] = SinkConfig(FOLDER.name, "* * * * *", (DATASET,), options)
    keeper.commit(1, 1)
    keeper.remember()
    keeper.deliver()
    append(keeper.home, [row(n, message_created_at=(NOW - timedelta(days=1)).isoformat()) for n in (10, 11)])

    def killed() -> None:
        flush(keeper.home)

    assert not live(killed, "lake.commit.after-commit")
    shutil.copytree(keeper.home.root, tmp_path / "copy", symlinks=True)
    keeper.numbers = 20
    keeper.commit(1)
    keeper.remember()
    keeper.deliver()
    copy = Keeper(Home(tmp_path / "copy"), sinks=keeper.sinks)
    flush(copy.home)
    copy.deliver()
    assert max(Counter(destination.arrived()).values()) == 1


@pytest.mark.hazard(73)
def test_an_older_copy_with_the_path_and_inode_of_its_home_is_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems reuse inode numbers at once. Taken for the same home, the copy would reuse sequences."""
    keeper = Keeper(Home(tmp_path / "home"))
    destination = keeper.declare("a")
    keeper.commit(1, 1)
    keeper.deliver()
    shutil.copytree(keeper.home.root, tmp_path / "kept", symlinks=True)
    keeper.commit(1, 1, 1)
    keeper.deliver()
    before, inode = identify(keeper.home), keeper.home.root.stat().st_ino
    for path in keeper.home.root.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(tmp_path / "kept", keeper.home.root, symlinks=True, dirs_exist_ok=True)
    assert keeper.home.root.stat().st_ino == inode
    born = identity.born(keeper.home.root) or 0
    monkeypatch.setattr(identity, "born", lambda _: born + 1)
    keeper.numbers = 100
    new = keeper.commit(1, 1, 1)
    keeper.deliver()
    assert identify(keeper.home).incarnation != before.incarnation or before.home_born is None
    assert set(new) <= set(destination.arrived()) or before.home_born is None
    assert max(Counter(destination.arrived()).values()) == 1
