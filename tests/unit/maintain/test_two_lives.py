"""A home that exists twice, or again: what one of the two has delivered, the other must not."""

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
@pytest.mark.parametrize("ask", [True, False])
def test_a_copy_of_a_home_with_an_unfinished_flush_delivers_none_of_its_rows_again(tmp_path: Path, ask: bool) -> None:
    """They are in both lakes, above everything that was recorded when the copy was made."""
    kept = Keeper(Home(tmp_path / "home"))
    there = kept.declare("a")
    options = {"folder": str(there.folder), "can_be_asked": ask}
    kept.sinks["a"] = SinkConfig(FOLDER.name, "* * * * *", (DATASET,), options)
    kept.commit(1, 1)
    kept.remember()
    kept.deliver()
    append(kept.home, [row(n, message_created_at=(NOW - timedelta(days=1)).isoformat()) for n in (10, 11)])

    def killed() -> None:
        flush(kept.home)

    assert not live(killed, "lake.commit.after-commit")
    shutil.copytree(kept.home.root, tmp_path / "copy", symlinks=True)
    kept.numbers = 20
    kept.commit(1)
    kept.remember()
    kept.deliver()
    copy = Keeper(Home(tmp_path / "copy"), sinks=kept.sinks)
    flush(copy.home)
    copy.deliver()
    assert max(Counter(there.arrived()).values()) == 1


@pytest.mark.hazard(73)
def test_an_older_copy_in_the_place_and_under_the_inode_of_its_home_is_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems give inode numbers out again at once. Taken for the same home, it would give out sequences again."""
    kept = Keeper(Home(tmp_path / "home"))
    there = kept.declare("a")
    kept.commit(1, 1)
    kept.deliver()
    shutil.copytree(kept.home.root, tmp_path / "kept", symlinks=True)
    kept.commit(1, 1, 1)
    kept.deliver()
    before, inode = identify(kept.home), kept.home.root.stat().st_ino
    for path in kept.home.root.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(tmp_path / "kept", kept.home.root, symlinks=True, dirs_exist_ok=True)
    assert kept.home.root.stat().st_ino == inode
    born = identity.born(kept.home.root) or 0
    monkeypatch.setattr(identity, "born", lambda _: born + 1)
    kept.numbers = 100
    new = kept.commit(1, 1, 1)
    kept.deliver()
    assert identify(kept.home).incarnation != before.incarnation or before.home_born is None
    assert set(new) <= set(there.arrived()) or before.home_born is None
    assert max(Counter(there.arrived()).values()) == 1
