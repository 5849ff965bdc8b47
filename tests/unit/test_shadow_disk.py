"""The power-loss model of other tests: it loses exactly the data that a disk may lose."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from hypaware.home import durable_files
from tests.support.shadow_disk import ShadowDisk


def _everything_lost() -> bool:
    return False


def _nothing_lost() -> bool:
    return True


def _in_turn(*answers: bool) -> Callable[[], bool]:
    left = list(answers)
    return lambda: left.pop(0) if left else False


@pytest.fixture
def disk(tmp_path: Path) -> ShadowDisk:
    return ShadowDisk(tmp_path / "shadow")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def _synced(path: Path, held: bytes) -> Path:
    path.write_bytes(held)
    durable_files.fsync_file(path)
    durable_files.fsync_dir(path.parent)
    return path


def _files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_fsynced_bytes_under_an_fsynced_name_survive(disk: ShadowDisk, root: Path) -> None:
    with disk.watching():
        _synced(root / "a", b"kept")
    disk.power_cut(root, _everything_lost)
    assert _files(root) == {"a": b"kept"}


def test_a_file_in_an_unsynced_folder_is_lost(disk: ShadowDisk, root: Path) -> None:
    with disk.watching():
        (root / "a").write_bytes(b"lost")
        durable_files.fsync_file(root / "a")
    disk.power_cut(root, _everything_lost)
    assert _files(root) == {}


def test_an_fsynced_name_without_fsynced_bytes_is_an_empty_file(disk: ShadowDisk, root: Path) -> None:
    with disk.watching():
        (root / "a").write_bytes(b"lost")
        durable_files.fsync_dir(root)
    disk.power_cut(root, _everything_lost)
    assert _files(root) == {"a": b""}


def test_files_below_an_unsynced_folder_are_lost_with_it(disk: ShadowDisk, root: Path) -> None:
    with disk.watching():
        (root / "folder").mkdir()
        _synced(root / "folder" / "a", b"lost")
    disk.power_cut(root, _everything_lost)
    assert list(root.iterdir()) == []


def test_bytes_after_the_last_fsync_are_cut_at_the_chosen_offset(disk: ShadowDisk, root: Path) -> None:
    def written() -> None:
        with disk.watching():
            _synced(root / "a", b"0123")
            with open(root / "a", "ab") as file:
                file.write(b"4567")

    written()
    disk.power_cut(root, _everything_lost)
    assert _files(root) == {"a": b"0123"}
    written()
    disk.power_cut(root, _nothing_lost)
    assert _files(root) == {"a": b"01234567"}
    written()
    disk.power_cut(root, _in_turn(False, True, False, False, False))
    survived = _files(root)["a"]
    assert survived.startswith(b"0123")
    assert b"01234567".startswith(survived)
    assert len(survived) < 8


def test_lost_bytes_can_leave_zeros(disk: ShadowDisk, root: Path) -> None:
    with disk.watching():
        _synced(root / "a", b"01")
        with open(root / "a", "ab") as file:
            file.write(b"2")
    disk.power_cut(root, _in_turn(False, False, True))
    assert _files(root) == {"a": b"01\0"}


def test_a_truncation_without_fsync_can_be_undone(disk: ShadowDisk, root: Path) -> None:
    with disk.watching():
        os.truncate(_synced(root / "a", b"0123"), 2)
    disk.power_cut(root, _everything_lost)
    assert _files(root) == {"a": b"0123"}


@pytest.mark.parametrize(("choose", "name"), [(_everything_lost, "old/a"), (_nothing_lost, "new/a")])
def test_an_unsynced_move_is_complete_or_undone(
    disk: ShadowDisk, root: Path, choose: Callable[[], bool], name: str
) -> None:
    with disk.watching():
        durable_files.make_dir(root / "old")
        durable_files.make_dir(root / "new")
        _synced(root / "old" / "a", b"kept").rename(root / "new" / "a")
    disk.power_cut(root, choose)
    assert _files(root) == {name: b"kept"}


@pytest.mark.parametrize("folder", ["old", "new"])
def test_a_move_is_durable_if_either_folder_was_fsynced(disk: ShadowDisk, root: Path, folder: str) -> None:
    with disk.watching():
        durable_files.make_dir(root / "old")
        durable_files.make_dir(root / "new")
        _synced(root / "old" / "a", b"kept").rename(root / "new" / "a")
        durable_files.fsync_dir(root / folder)
    disk.power_cut(root, _everything_lost)
    assert _files(root) == {"new/a": b"kept"}


@pytest.mark.parametrize(("choose", "held"), [(_everything_lost, b"before"), (_nothing_lost, b"after")])
def test_a_replaced_file_has_the_old_or_the_new_bytes(
    disk: ShadowDisk, root: Path, choose: Callable[[], bool], held: bytes
) -> None:
    with disk.watching():
        _synced(root / "a", b"before")
        (root / "new").write_bytes(b"after")
        durable_files.fsync_file(root / "new")
        (root / "new").rename(root / "a")
    disk.power_cut(root, choose)
    assert _files(root) == {"a": held}


@pytest.mark.parametrize(("choose", "left"), [(_everything_lost, {"a": b"back"}), (_nothing_lost, {})])
def test_an_unsynced_removal_can_be_undone(
    disk: ShadowDisk, root: Path, choose: Callable[[], bool], left: dict[str, bytes]
) -> None:
    with disk.watching():
        _synced(root / "a", b"back").unlink()
    disk.power_cut(root, choose)
    assert _files(root) == left


def test_an_fsynced_removal_is_durable(disk: ShadowDisk, root: Path) -> None:
    with disk.watching():
        durable_files.remove_durably(_synced(root / "a", b"gone"))
    disk.power_cut(root, _everything_lost)
    assert _files(root) == {}


def test_databases_are_left_unchanged(disk: ShadowDisk, root: Path) -> None:
    names = ("state.db", "state.db-wal", "catalog.db", "keys.db-shm")
    with disk.watching():
        for name in names:
            (root / name).write_bytes(b"kept")
    disk.power_cut(root, _everything_lost)
    assert _files(root) == dict.fromkeys(names, b"kept")


def test_a_failed_fsync_is_not_recorded(disk: ShadowDisk, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _synced(root / "a", b"old")
    disk.trust(root)

    def failing(_fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(durable_files, "fsync_fd", failing)
    with disk.watching():
        (root / "a").write_bytes(b"new")
        with pytest.raises(OSError, match="Input/output"):
            durable_files.fsync_file(root / "a")
    disk.power_cut(root, _everything_lost)
    assert _files(root) == {"a": b"old"}


def test_fsyncs_of_a_killed_child_are_recorded(disk: ShadowDisk, root: Path) -> None:
    with disk.watching():
        child = os.fork()
        if child == 0:
            _synced(root / "a", b"kept")
            (root / "b").write_bytes(b"lost")
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
    disk.power_cut(root, _everything_lost)
    assert _files(root) == {"a": b"kept"}


def test_the_home_is_the_same_folder_after_a_power_cut(disk: ShadowDisk, root: Path) -> None:
    inode = root.stat().st_ino
    (root / "a").write_bytes(b"kept")
    (root / "a").chmod(0o600)
    disk.power_cut(root, _nothing_lost)
    disk.power_cut(root, _everything_lost)
    assert _files(root) == {"a": b"kept"}
    assert (root / "a").stat().st_mode & 0o777 == 0o600
    assert root.stat().st_ino == inode
