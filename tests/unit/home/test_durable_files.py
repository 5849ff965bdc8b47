"""Durable writes: a completed call survives a power cut, and a failed one leaves no partial result."""

from __future__ import annotations

import errno
import os
import random
import sys
from pathlib import Path

import pytest

from hypaware.home import durable_files
from tests.support.processes import fork
from tests.support.recorded import disk_calls
from tests.support.shadow_disk import ShadowDisk

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="descriptors are named through /proc")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@needs_proc
@pytest.mark.hazard(10)
def test_a_file_is_fsynced_before_it_is_renamed_and_its_folder_afterwards(root: Path) -> None:
    with disk_calls(root.parent) as calls:
        durable_files.write_atomic(root / "file", b"bytes")
    temporary = calls[0].removeprefix("write ")
    assert temporary.startswith("root/.file.")
    assert calls == [f"write {temporary}", f"sync {temporary}", f"rename {temporary} -> root/file", "sync root/"]


@needs_proc
@pytest.mark.hazard(10)
def test_a_move_between_folders_fsyncs_the_new_folder_first(root: Path) -> None:
    durable_files.make_dir(root / "old")
    durable_files.make_dir(root / "new")
    (root / "old" / "a").write_bytes(b"")
    with disk_calls(root) as calls:
        durable_files.rename_durably(root / "old" / "a", root / "new" / "b")
    assert calls == ["rename old/a -> new/b", "sync new/", "sync old/"]


@pytest.mark.hazard(10)
@pytest.mark.parametrize("seed", range(20))
def test_after_a_power_cut_a_replaced_file_has_the_old_or_the_new_bytes(root: Path, seed: int) -> None:
    """This holds at every step of the write and for every subset of the data on disk."""
    disk, chance = ShadowDisk(root.parent / "shadow"), random.Random(seed)
    durable_files.write_atomic(root / "state", b"old" * 100)
    disk.trust(root)
    steps = chance.randrange(5)

    def killed_after_some_steps() -> None:
        with disk.watching():
            real, left = durable_files.fsync_fd, [steps]

            def dying(fd: int) -> None:
                if not left[0]:
                    os._exit(9)
                left[0] -= 1
                real(fd)

            durable_files.fsync_fd = dying
            durable_files.write_atomic(root / "state", b"new" * 200)

    finished = fork(killed_after_some_steps) == 0
    disk.power_cut(root, lambda: chance.random() < 0.5)
    expected = {b"new" * 200} if finished else {b"old" * 100, b"new" * 200}
    assert (root / "state").read_bytes() in expected


def test_written_files_are_private_to_their_owner(root: Path) -> None:
    durable_files.write_atomic(root / "file", b"")
    durable_files.make_dir(root / "a" / "b")
    assert (root / "file").stat().st_mode & 0o777 == 0o600
    assert (root / "a").stat().st_mode & 0o777 == 0o700
    assert (root / "a" / "b").stat().st_mode & 0o777 == 0o700


@pytest.mark.hazard(13)
@pytest.mark.parametrize("failing", ["write", "sync"])
def test_a_failed_write_leaves_only_the_old_file(root: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    durable_files.write_atomic(root / "file", b"old")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if failing == "write":
        monkeypatch.setattr(os, "write", full)
    else:
        monkeypatch.setattr(durable_files, "fsync_fd", full)
    with pytest.raises(OSError, match="No space"):
        durable_files.write_atomic(root / "file", b"new")
    assert [path.name for path in root.iterdir()] == ["file"]
    assert (root / "file").read_bytes() == b"old"


def test_a_short_write_is_continued(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data[:7])))
    durable_files.write_atomic(root / "file", b"0123456789" * 10)
    assert (root / "file").read_bytes() == b"0123456789" * 10


@needs_proc
@pytest.mark.hazard(10)
def test_each_new_folder_is_durable_in_its_parent(root: Path) -> None:
    with disk_calls(root.parent) as calls:
        durable_files.make_dir(root / "a" / "b")
        durable_files.make_dir(root / "a" / "b")
    assert calls == ["sync root/", "sync root/a/"]


def test_removing_a_missing_file_is_not_an_error(root: Path) -> None:
    (root / "file").write_bytes(b"")
    durable_files.remove_durably(root / "file")
    durable_files.remove_durably(root / "file")
    assert list(root.iterdir()) == []


@needs_proc
def test_a_created_file_is_durable_before_it_has_its_name(root: Path) -> None:
    with disk_calls(root.parent) as calls:
        durable_files.create_atomic(root / "file", b"bytes")
    temporary = calls[0].removeprefix("write ")
    assert calls == [f"write {temporary}", f"sync {temporary}", f"remove {temporary}", "sync root/"]
    assert [path.name for path in root.iterdir()] == ["file"]
    assert (root / "file").read_bytes() == b"bytes"


def test_creating_never_replaces_a_file_nor_a_dangling_link(root: Path) -> None:
    (root / "file").write_bytes(b"old")
    (root / "link").symlink_to(root / "missing")
    for name in ("file", "link"):
        with pytest.raises(FileExistsError):
            durable_files.create_atomic(root / name, b"new")

    assert (root / "file").read_bytes() == b"old"
    assert sorted(path.name for path in root.iterdir()) == ["file", "link"]
