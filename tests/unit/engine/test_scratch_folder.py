"""The scratch folders of sessions: locked while in use, removed afterwards."""

from __future__ import annotations

import os
from pathlib import Path

from hypaware.engine.session import ScratchFolder


def test_a_locked_scratch_folder_is_kept(tmp_path: Path) -> None:
    mine = ScratchFolder.create(tmp_path)
    other = ScratchFolder.create(tmp_path)

    assert {mine.path, other.path} == set(tmp_path.iterdir())

    mine.remove()
    other.remove()
    assert list(tmp_path.iterdir()) == []


def test_the_next_session_removes_the_folder_of_a_dead_one(tmp_path: Path) -> None:
    dead = ScratchFolder.create(tmp_path)
    (dead.path / "blockmgr").mkdir()
    os.close(dead.fd)

    living = ScratchFolder.create(tmp_path)

    assert list(tmp_path.iterdir()) == [living.path]
    living.remove()


def test_a_folder_that_the_jvm_still_holds_is_not_removed(tmp_path: Path) -> None:
    ours = ScratchFolder.create(tmp_path)
    the_jvms = os.dup(ours.fd)
    os.close(ours.fd)

    other = ScratchFolder.create(tmp_path)

    assert ours.path.exists()
    os.close(the_jvms)
    other.remove()


def test_the_scratch_folder_is_private(tmp_path: Path) -> None:
    made = ScratchFolder.create(tmp_path)

    assert made.path.stat().st_mode & 0o077 == 0
    made.remove()
