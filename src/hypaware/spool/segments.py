"""Segments: their folders, their names, the envelope of each line, and the repair of those whose producer has died.

A segment is `spool/<dataset>/active/<time>-<random>.jsonl` while its producer holds its flock, and then
`spool/<dataset>/sealed/<time>-<random>.<rows>.jsonl`. Names sort by creation time; the names of one process keep its
order. Deferrable rows, which wait for a better source of the same parts, are in separate segments with `-waits` after
the random part.

A line is `{"n":<ordinal>,"v":1,"row":{…}}`. The ordinal is the line's position in its segment, from 0. A row's sequence
is its segment's base plus its ordinal, so reading a line again gives the same row. `decode_line` is the only check of a
line's validity, so all readers of the spool agree.

An active file that is not locked is an orphan. A repair truncates it to its last whole line and seals it. Truncated
bytes were never acknowledged, because an acknowledged row ends with a newline that was fsynced with it.

@ref spool#deferred @ref spool#orphans
"""

from __future__ import annotations

import os
import secrets
import shlex
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from hypaware import faults
from hypaware.errors import Retryable
from hypaware.home import Home, durable_files
from hypaware.home.locks import is_file_at, lock_fd
from hypaware.model import canonical
from hypaware.model.datasets import Dataset, Row, RowRejected, coerce_row

_FOLDERS = ("active", "sealed", "rejected", "incoming")
SUFFIX = ".jsonl"
NEW_PREFIX = ".new-"
_DEFERRABLE_SUFFIX = "-waits"
DEFERRAL_SECONDS = 600.0
"""How long deferrable rows wait: long enough for their transcript to be imported."""
_synced_folders: set[Path] = set()
_name_lock = threading.Lock()
_last_millisecond = 0
ENVELOPE_VERSION = 1
_POLL_SECONDS = 0.05
_UNBORN_SECONDS = 60
_before_rename = faults.crash_point(
    "spool.repair.before-rename", "an orphan is truncated to its last whole line and durable"
)
_after_rename = faults.crash_point("spool.repair.after-rename", "a repaired orphan is sealed")


class SegmentUnreadable(Retryable):
    """Segments cannot be read or sealed. Their rows stay where they are; all other segments are not affected."""

    kind = "segment_unreadable"

    def __init__(self, dataset: str, problems: Mapping[Path, OSError]) -> None:
        path, error = next(iter(problems.items()))
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        super().__init__(
            f"{dataset}: could not read or seal {path}{more}: {error.strerror or error}; its rows stay in the spool",
            repair=f"ls -l {shlex.quote(str(path))}",
        )
        self.problems = dict(problems)


@dataclass(frozen=True)
class SpoolFolder:
    """The spool of one dataset."""

    dataset: str
    path: Path

    @property
    def active(self) -> Path:
        return self.path / "active"

    @property
    def sealed(self) -> Path:
        return self.path / "sealed"

    @property
    def rejected(self) -> Path:
        return self.path / "rejected"

    def create(self) -> None:
        for folder in (self.active, self.sealed, self.rejected):
            durable_files.make_dir(folder)
        # Their creator may have been killed before the directory entries were durable: fsync once per process.
        if self.path not in _synced_folders:
            for parent in (self.path, self.path.parent, self.path.parent.parent):
                durable_files.fsync_dir(parent)
            _synced_folders.add(self.path)


def spool_folder(home: Home, dataset: str) -> SpoolFolder:
    return SpoolFolder(dataset, home.spool / dataset)


def list_spooled_datasets(home: Home) -> list[str]:
    """Return the datasets that have a spool. Other folders do not count: the original also uses `~/.hyp/spool`."""
    if not home.spool.is_dir():
        return []
    return sorted(path.name for path in home.spool.iterdir() if any((path / name).is_dir() for name in _FOLDERS))


@dataclass(frozen=True)
class Segment:
    """A sealed segment."""

    dataset: str
    name: str
    path: Path
    rows: int
    bytes: int

    def is_deferred(self, now: float, seconds: float = DEFERRAL_SECONDS) -> bool:
        """Return whether a background flush skips this segment. A clock that was set back ends the deferral."""
        created = self.name.partition("-")[0]
        return is_deferrable(self.name) and created.isdecimal() and 0 <= now - int(created) / 1000 < seconds


def is_deferrable(name: str) -> bool:
    """Tell from a segment's name whether its rows are deferrable."""
    return name.partition(".")[0].endswith(_DEFERRABLE_SUFFIX)


def new_segment_name(*, deferrable: bool = False) -> str:
    """Return a name that sorts after all earlier names of this process, even within one millisecond."""
    global _last_millisecond
    with _name_lock:
        _last_millisecond = max(time.time_ns() // 1_000_000, _last_millisecond + 1)
        return f"{_last_millisecond:013d}-{secrets.token_hex(6)}{_DEFERRABLE_SUFFIX if deferrable else ''}"


def sealed_file_name(name: str, rows: int) -> str:
    return f"{name}.{rows}{SUFFIX}"


def list_active_files(spool: SpoolFolder) -> list[Path]:
    return _list_files(spool.active)


def list_files(spool: SpoolFolder) -> list[Path]:
    return [*_list_files(spool.active), *_list_files(spool.sealed)]


def list_sealed_segments(spool: SpoolFolder) -> list[Segment]:
    """Return the sealed segments, oldest first."""
    found = []
    for path in _list_files(spool.sealed):
        name = path.name.removesuffix(SUFFIX)
        rows = name.partition(".")[2]
        try:
            size = path.stat().st_size
            counted = int(rows) if rows.isdecimal() else count_lines(path)
        except FileNotFoundError:
            continue
        except OSError:
            counted = 0  # reading it reports the error
        found.append(Segment(spool.dataset, name, path, counted, size))
    return found


def _list_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix == SUFFIX and not path.name.startswith("."))


def file_size(path: Path) -> int:
    """Return the size of a file; 0 if it was sealed or removed in the meantime."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def count_lines(path: Path) -> int:
    """Count the lines of a file, including a last one without a newline."""
    lines, last = 0, b"\n"
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            lines, last = lines + block.count(b"\n"), block[-1:]
    return lines + (last != b"\n")


def encode_lines(rows: Iterable[Row], first_ordinal: int) -> bytes:
    """Encode coerced rows as lines."""
    return wrap_rows(map(orjson.dumps, rows), first_ordinal)


def wrap_rows(rows: Iterable[bytes], first_ordinal: int) -> bytes:
    """Return the lines of rows in JSON that `decode_line` can coerce. A row must not contain a line feed."""
    # Joined once: a row is large, and each copy of it costs as much as the rest.
    pieces: list[bytes] = []
    for ordinal, row in enumerate(rows, first_ordinal):
        pieces += (b'{"n":%d,"v":%d,"row":' % (ordinal, ENVELOPE_VERSION), row, b"}\n")
    return b"".join(pieces)


def decode_line(dataset: Dataset, line: bytes, ordinal: int) -> Row:
    """Return the coerced row of a line. Raise RowRejected with the reason if the line is invalid."""
    if not line.endswith(b"\n"):
        raise RowRejected("the line is truncated")
    try:
        envelope = canonical.loads(line)
    except (ValueError, RecursionError) as error:
        raise RowRejected(f"the line is not JSON: {error}") from None
    if not isinstance(envelope, dict) or envelope.get("v") != ENVELOPE_VERSION:
        raise RowRejected(f"the line is not an envelope of version {ENVELOPE_VERSION}")
    if envelope.get("n") != ordinal:
        raise RowRejected(f"the envelope has ordinal {envelope.get('n')!r}, expected {ordinal}")
    row = envelope.get("row")
    if not isinstance(row, dict):
        raise RowRejected("the envelope has no row")
    # Keep the gateway id from when the row was recorded, even if the home has a new one.
    return coerce_row(dataset, row, str(row.get("gateway_id")))


@dataclass(frozen=True)
class RepairedSegment:
    name: str
    rows: int
    bytes_cut: int


def wait_until_sealed(folder: SpoolFolder, seconds: float) -> list[Path]:
    """Wait until producers seal the files that are active now, which they soon do. Repair orphans.

    Return the files that a live but stuck process still holds. Raise SegmentUnreadable after the wait if there are
    orphans that cannot be sealed.
    """
    unsealed = set(list_active_files(folder))
    deadline = time.monotonic() + seconds
    failure: SegmentUnreadable | None = None
    while unsealed:
        try:
            repair_orphans(folder)
        except SegmentUnreadable as error:
            failure = error
            unsealed -= error.problems.keys()
        unsealed &= set(list_active_files(folder))
        unsealed = {path for path in unsealed if file_size(path) > 0}
        if not unsealed or time.monotonic() >= deadline:
            break
        time.sleep(_POLL_SECONDS)
    if failure is not None:
        raise failure
    return sorted(unsealed)


def repair_orphans(folder: SpoolFolder) -> list[RepairedSegment]:
    """Seal every active file that is not locked. Raise SegmentUnreadable at the end if some could not be sealed."""
    _remove_unborn(folder)
    repaired = []
    problems: dict[Path, OSError] = {}
    for path in list_active_files(folder):
        try:
            repaired.append(_repair_orphan(folder, path))
        except OSError as error:
            problems[path] = error
    if problems:
        raise SegmentUnreadable(folder.dataset, problems)
    return [each for each in repaired if each is not None]


def _repair_orphan(folder: SpoolFolder, path: Path) -> RepairedSegment | None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        try:
            lock_fd(fd, wait=False)
        except BlockingIOError:
            return None
        # Its producer or another repair may have sealed it before we had the lock.
        if not is_file_at(path, fd):
            return None
        size = os.fstat(fd).st_size
        rows, whole = _whole_lines(fd)
        if rows == 0:
            durable_files.remove_durably(path)
            return RepairedSegment(path.stem, 0, size)
        if whole < size:
            os.ftruncate(fd, whole)
        durable_files.fsync_fd(fd)
        _before_rename()
        durable_files.rename_durably(path, folder.sealed / sealed_file_name(path.stem, rows))
        _after_rename()
        return RepairedSegment(path.stem, rows, size - whole)
    finally:
        os.close(fd)


def _whole_lines(fd: int) -> tuple[int, int]:
    """Count the whole lines of the file. Return the count and the end of the last one."""
    rows = end = offset = 0
    while block := os.pread(fd, 1 << 20, offset):
        rows += block.count(b"\n")
        if (last := block.rfind(b"\n")) >= 0:
            end = offset + last + 1
        offset += len(block)
    return rows, end


def _remove_unborn(folder: SpoolFolder) -> None:
    """Remove empty files whose producer died before making them visible."""
    for path in folder.active.glob(f"{NEW_PREFIX}*"):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            # Do not touch or lock a recent file: its producer is about to lock it.
            if time.time() - os.fstat(fd).st_mtime > _UNBORN_SECONDS:
                lock_fd(fd, wait=False)
                if is_file_at(path, fd):
                    path.unlink(missing_ok=True)
        except BlockingIOError:
            pass
        finally:
            os.close(fd)
