"""The active segment: rows are acknowledged only when durable, and never joined with half a line."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hypaware.home import durable_files
from hypaware.model.datasets import Row, coerce_row
from hypaware.spool import segments
from hypaware.spool.segments import SpoolFolder
from hypaware.spool.writer import ActiveSegment, SegmentAbandoned, SegmentClosed
from tests.support.processes import eventually, fork, open_files
from tests.support.recorded import disk_calls
from tests.support.rows import MESSAGES, rows

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="descriptors are named through /proc")


def _rows(count: int, start: int = 0) -> list[Row]:
    return [coerce_row(MESSAGES, raw, "gw-1") for raw in rows(count, start)]


def _messages(path: Path) -> list[str]:
    """Return the rows of the file, validated as a flush does."""
    lines = path.read_bytes().splitlines(keepends=True)
    return [segments.decode_line(MESSAGES, line, ordinal)["message_id"] for ordinal, line in enumerate(lines)]


def _named(*numbers: int) -> list[str]:
    return [f"message-{number}" for number in numbers]


class _FailingDisk:
    """A disk that can be full: writes and fsyncs fail, and a failing write stores only the bytes that fit."""

    def __init__(self, patched: pytest.MonkeyPatch, error: int = errno.ENOSPC) -> None:
        self._write, self._sync, self._truncate = os.write, durable_files.fsync_fd, os.ftruncate
        self._error = OSError(error, os.strerror(error))
        self.room: int | None = None
        self.syncs_fail = self.cuts_fail = False
        patched.setattr(os, "write", self.write)
        patched.setattr(durable_files, "fsync_fd", self.sync)
        patched.setattr(os, "ftruncate", self.truncate)

    def write(self, fd: int, data: bytes) -> int:
        if self.room is None:
            return self._write(fd, data)
        if self.room == 0:
            raise self._error
        written = self._write(fd, bytes(data[: self.room]))
        self.room -= written
        return written

    def sync(self, fd: int) -> None:
        if self.syncs_fail:
            raise self._error
        self._sync(fd)

    def truncate(self, fd: int, size: int) -> None:
        if self.cuts_fail:
            raise self._error
        self._truncate(fd, size)


@needs_proc
@pytest.mark.hazard(10)
def test_rows_are_fsynced_in_a_visible_durable_file_before_they_are_acknowledged(folder: SpoolFolder) -> None:
    with disk_calls(folder.path) as calls:
        segment = ActiveSegment(folder)
        segment.append(_rows(2))
        calls.append("acknowledged")
        segment.append(_rows(1, 2))
        calls.append("acknowledged")
        sealed = segment.seal()
    assert sealed
    active, new = f"active/{segment.name}.jsonl", f"active/.new-{segment.name}.jsonl"
    assert calls == [
        f"rename {new} -> {active}", "sync active/",
        f"write {active}", f"sync {active}", "acknowledged",
        f"write {active}", f"sync {active}", "acknowledged",
        f"rename {active} -> sealed/{segment.name}.3.jsonl", "sync sealed/", "sync active/",
    ]  # fmt: skip


@pytest.mark.hazard(5)
def test_each_row_carries_its_ordinal_through_the_whole_segment(folder: SpoolFolder) -> None:
    segment = ActiveSegment(folder)
    for start in (0, 3, 6):
        segment.append(_rows(3, start))
    sealed = segment.seal()
    assert sealed
    assert sealed.name == f"{segment.name}.9.jsonl"
    assert _messages(sealed) == _named(*range(9))


def test_a_sealed_segment_accepts_no_more_rows(folder: SpoolFolder) -> None:
    segment = ActiveSegment(folder)
    segment.append(_rows(1))
    segment.seal()
    with pytest.raises(SegmentClosed):
        segment.append(_rows(1, 1))
    assert segment.seal() is None


def test_a_segment_without_rows_leaves_no_file(folder: SpoolFolder) -> None:
    assert ActiveSegment(folder).seal() is None
    assert not list(folder.active.iterdir())
    assert not list(folder.sealed.iterdir())


@pytest.mark.hazard(77)
def test_a_visible_file_is_always_locked(folder: SpoolFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every step of a creation, a repair must find the file locked, or not at all."""
    seen: list[list[object]] = []
    rename, fsync_dir = durable_files.rename_durably, durable_files.fsync_dir

    def looked_at(step: Callable[..., None]) -> Callable[..., None]:
        def looking(*args: object) -> None:
            seen.append([*segments.repair_orphans(folder)])
            step(*args)
            seen.append([*segments.repair_orphans(folder)])

        return looking

    monkeypatch.setattr(durable_files, "rename_durably", looked_at(rename))
    monkeypatch.setattr(durable_files, "fsync_dir", looked_at(fsync_dir))
    segment = ActiveSegment(folder)
    monkeypatch.undo()
    assert len(seen) > 2
    assert not any(seen)
    segment.append(_rows(1))
    assert segment.path.exists()
    segment.seal()


@pytest.mark.hazard(77)
def test_a_producer_whose_file_was_replaced_at_creation_acknowledges_nothing(
    folder: SpoolFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = durable_files.rename_durably

    def taken_at_once(old: Path, new: Path) -> None:
        rename(old, new)
        new.rename(folder.sealed / segments.sealed_file_name(new.stem, 0))

    monkeypatch.setattr(durable_files, "rename_durably", taken_at_once)
    with pytest.raises(SegmentAbandoned, match="was replaced"):
        ActiveSegment(folder)


def test_a_repair_does_not_disturb_a_creation(folder: SpoolFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repair that holds the lock of a new file must not make its producer fail."""
    flock = fcntl.flock
    others: list[int] = []

    def swept_first(fd: int, operation: int) -> None:
        if not others:
            others.append(os.open(next(folder.active.glob(".new-*")), os.O_RDWR))
            flock(others[0], fcntl.LOCK_EX)
            threading.Timer(0.05, os.close, others).start()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", swept_first)
    segment = ActiveSegment(folder)
    segment.append(_rows(1))
    assert segment.seal()


@pytest.mark.hazard(13)
@pytest.mark.hazard(78)
@pytest.mark.parametrize("room", [0, 1, 50, 400])
def test_a_full_disk_leaves_no_half_line_for_the_next_row(
    folder: SpoolFolder, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    segment = ActiveSegment(folder)
    segment.append(_rows(2))
    disk = _FailingDisk(monkeypatch)
    disk.room = room
    with pytest.raises(OSError, match="No space"):
        segment.append(_rows(3, 2))
    disk.room = None
    segment.append(_rows(2, 5))
    sealed = segment.seal()
    assert sealed
    assert _messages(sealed) == _named(0, 1, 5, 6)


@pytest.mark.hazard(78)
def test_an_interrupt_leaves_no_half_line_for_the_next_row(
    folder: SpoolFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C during an append whose caller continues: later rows must not be joined with the half line."""
    segment = ActiveSegment(folder)
    segment.append(_rows(1))
    write = os.write

    def interrupted(fd: int, data: bytes) -> int:
        write(fd, bytes(data[:100]))
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        segment.append(_rows(1, 1))
    monkeypatch.undo()
    segment.append(_rows(2, 2))
    sealed = segment.seal()
    assert sealed
    assert _messages(sealed) == _named(0, 2, 3)


@pytest.mark.hazard(78)
def test_a_file_that_cannot_be_truncated_accepts_no_more_rows(
    folder: SpoolFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = ActiveSegment(folder)
    segment.append(_rows(1))
    disk = _FailingDisk(monkeypatch)
    disk.room, disk.cuts_fail = 100, True
    with pytest.raises(OSError, match="No space"):
        segment.append(_rows(1, 1))
    disk.room, disk.cuts_fail = None, False
    assert not segment.is_usable
    with pytest.raises(SegmentClosed):
        segment.append(_rows(1, 2))
    segment.abandon()
    (repaired,) = segments.repair_orphans(folder)
    assert (repaired.rows, repaired.bytes_cut) == (1, 100)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_fsync_is_never_retried_for_the_same_bytes(
    folder: SpoolFolder, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    segment = ActiveSegment(folder)
    segment.append(_rows(2))
    disk = _FailingDisk(monkeypatch, error)
    disk.syncs_fail = True
    with pytest.raises(OSError, match=os.strerror(error)):
        segment.append(_rows(3, 2))
    disk.syncs_fail = False
    assert not segment.is_usable
    assert _messages(segment.path) == _named(0, 1)
    (repaired,) = segments.repair_orphans(folder)
    assert repaired.rows == 2


def test_threads_that_wait_for_a_failing_fsync_get_the_error(
    folder: SpoolFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their bytes were truncated, so they must not be acknowledged."""
    segment = ActiveSegment(folder)
    syncing, fail = threading.Event(), threading.Event()

    def failing(_fd: int) -> None:
        syncing.set()
        fail.wait()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(durable_files, "fsync_fd", failing)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(segment.append, _rows(1))
        syncing.wait()
        second = pool.submit(segment.append, _rows(1, 1))
        eventually(lambda: segment.rows == 2)
        fail.set()
        assert isinstance(first.exception(), OSError)
        assert isinstance(second.exception(), SegmentAbandoned)
    assert segment.path.read_bytes() == b""


@pytest.mark.hazard(13)
def test_a_failed_seal_leaves_an_unlocked_file_with_every_row(
    folder: SpoolFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = ActiveSegment(folder)
    segment.append(_rows(3))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(durable_files, "rename_durably", full)
    assert segment.seal() is None
    monkeypatch.undo()
    (repaired,) = segments.repair_orphans(folder)
    assert (repaired.name, repaired.rows, repaired.bytes_cut) == (segment.name, 3, 0)


def test_concurrent_appends_share_an_fsync_and_all_are_durable(
    folder: SpoolFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = ActiveSegment(folder)
    threads, sync = 8, durable_files.fsync_fd
    synced: list[int] = []

    def counted(fd: int) -> None:
        if not synced:
            eventually(lambda: segment.rows == threads)
        synced.append(os.fstat(fd).st_size)
        sync(fd)

    monkeypatch.setattr(durable_files, "fsync_fd", counted)

    def append(number: int) -> int:
        segment.append(_rows(1, number))
        return synced[-1]

    with ThreadPoolExecutor(threads) as pool:
        acknowledged_at = list(pool.map(append, range(threads)))
    assert len(synced) == 2
    assert min(acknowledged_at) > 0
    assert synced[-1] == segment.bytes == segment.path.stat().st_size
    sealed = segment.seal()
    assert sealed
    assert sorted(_messages(sealed)) == _named(*range(threads))


@pytest.mark.hazard(79)
def test_a_child_forked_during_a_creation_holds_no_lock(folder: SpoolFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the file of a dead parent could never be repaired."""
    rename, created, go_on = durable_files.rename_durably, threading.Event(), threading.Event()

    def slow(old: Path, new: Path) -> None:
        created.set()
        go_on.wait()
        rename(old, new)

    monkeypatch.setattr(durable_files, "rename_durably", slow)
    with ThreadPoolExecutor(1) as pool:
        creation = pool.submit(ActiveSegment, folder)
        created.wait()
        threading.Timer(0.05, go_on.set).start()
        assert fork(lambda: _assert_none_open(folder)) == 0
        creation.result().seal()


def _assert_none_open(folder: SpoolFolder) -> None:
    assert open_files(folder.path) == []
