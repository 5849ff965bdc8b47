"""Copies of a home: rows that one of them has delivered are not delivered by the other."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from hypaware.config import SinkConfig
from hypaware.home import Home, identity
from hypaware.state.home_opener import read_identity
from hypaware.testing import fault_injection
from hypaware.testing.fault_injection import run_in_child
from hypaware.testing.folder_sink import FOLDER
from tests.support.light_home import DATASET, append, flush
from tests.support.retention_cases import NOW, RetentionSite
from tests.support.rows import row


@pytest.fixture(autouse=True)
def _folder_sink() -> Iterator[None]:
    with fault_injection.register_kind(FOLDER):
        yield


@pytest.mark.hazard(71)
@pytest.mark.parametrize("can_be_queried", [True, False])
def test_a_copy_with_an_unfinished_flush_delivers_no_row_again(tmp_path: Path, can_be_queried: bool) -> None:
    """The rows are in both lakes, above everything that was recorded when the copy was made."""
    site = RetentionSite(Home(tmp_path / "home"))
    destination = site.declare("a")
    options = {"folder": str(destination.folder), "can_be_queried": can_be_queried}
    site.sinks["a"] = SinkConfig(FOLDER.name, "* * * * *", (DATASET,), options)
    site.commit(1, 1)
    site.record_incarnation()
    site.deliver()
    append(site.home, [row(n, message_created_at=(NOW - timedelta(days=1)).isoformat()) for n in (10, 11)])

    def killed() -> None:
        flush(site.home)

    assert not run_in_child(killed, "lake.commit.after-commit")
    shutil.copytree(site.home.root, tmp_path / "copy", symlinks=True)
    site.numbers = 20
    site.commit(1)
    site.record_incarnation()
    site.deliver()
    copy = RetentionSite(Home(tmp_path / "copy"), sinks=site.sinks)
    flush(copy.home)
    copy.deliver()
    assert max(Counter(destination.arrived()).values()) == 1


@pytest.mark.hazard(73)
def test_an_older_copy_with_the_path_and_inode_of_its_home_is_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems reuse inode numbers at once. Taken for the same home, the copy would reuse sequences."""
    site = RetentionSite(Home(tmp_path / "home"))
    destination = site.declare("a")
    site.commit(1, 1)
    site.deliver()
    shutil.copytree(site.home.root, tmp_path / "kept", symlinks=True)
    site.commit(1, 1, 1)
    site.deliver()
    before, inode = read_identity(site.home), site.home.root.stat().st_ino
    for path in site.home.root.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(tmp_path / "kept", site.home.root, symlinks=True, dirs_exist_ok=True)
    assert site.home.root.stat().st_ino == inode
    born = identity.inode_generation(site.home.root) or 0
    monkeypatch.setattr(identity, "inode_generation", lambda _: born + 1)
    site.numbers = 100
    new = site.commit(1, 1, 1)
    site.deliver()
    assert read_identity(site.home).incarnation != before.incarnation or before.home_born is None
    assert set(new) <= set(destination.arrived()) or before.home_born is None
    assert max(Counter(destination.arrived()).values()) == 1
