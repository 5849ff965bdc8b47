"""`Spool`, the API of producers, and its active segments. `append` returns when the rows are durable.

Each process has its own active segments, so producers need no lock between them. A segment is sealed when it is large
enough, or shortly after its first row, so that a flush in another process never waits long for it.

Invariants
- A file is visible in `active/` only while its producer holds its flock.
- Bytes up to `_acknowledged` are fsynced and contain whole lines; no row is acknowledged before that.
- After an error or an interrupt the file is truncated to its last whole line before anything is appended, or
  abandoned: half a line is never joined with a later one, and fsync is never retried for the same bytes.
- A forked child keeps none of its parent's files open. It closes its copies, which does not release the parent's locks.

@ref spool#acknowledge @ref spool#active
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypaware import faults, telemetry
from hypaware.errors import HypError, Retryable
from hypaware.home import Home, durable_files
from hypaware.home.locks import is_file_at, lock_fd
from hypaware.model import datasets
from hypaware.model.datasets import Row, RowRejected, coerce_row
from hypaware.spool import segments
from hypaware.spool.segments import SpoolFolder
from hypaware.state.home_opener import read_identity

_before_visible = faults.crash_point("spool.create.before-rename", "the new active file exists under a temporary name")
_after_visible = faults.crash_point("spool.create.after-rename", "the active file is visible and holds nothing")
_before_sync = faults.crash_point("spool.append.before-fsync", "rows are written, not durable, not acknowledged")
_after_sync = faults.crash_point("spool.append.after-fsync", "rows are durable, not acknowledged")
_before_seal = faults.crash_point("spool.seal.before-rename", "the segment is durable and still active")
_after_seal = faults.crash_point("spool.seal.after-rename", "the segment is sealed")
# Held while a file is created, and during a fork, so that a child never inherits an unregistered descriptor.
_create_lock = threading.Lock()
_open_segments: weakref.WeakSet[ActiveSegment] = weakref.WeakSet()
_spools: weakref.WeakSet[Spool] = weakref.WeakSet()
_SegmentKind = tuple[str, bool]
"""A dataset, and whether its rows are deferrable."""


@dataclass(frozen=True)
class SealRule:
    max_rows: int = 50_000
    max_bytes: int = 32 << 20
    linger: float = 1.0
    """Seconds from the first row of a segment to its seal."""


class Spool:
    def __init__(self, home: Home | str | os.PathLike[str], rule: SealRule | None = None, *, make: bool = True) -> None:
        """Open the spool of a home, creating the home if necessary; with `make=False`, raise NotReady without one."""
        self.home = home if isinstance(home, Home) else Home(Path(home).expanduser().absolute())
        self.gateway_id = read_identity(self.home, make=make).gateway_of_rows(self.home.root)
        self._rule = rule or SealRule()
        self.sealed_by_size = 0
        self._segments: dict[_SegmentKind, ActiveSegment] = {}
        self._sealers: list[threading.Timer] = []
        """The timers that seal the segments of this process."""
        self._closed = False
        self._guard = threading.RLock()
        _spools.add(self)

    def append(self, dataset: str, rows: Iterable[Any], *, deferrable: bool = False) -> int:
        """Coerce and store all of the rows, or none. Return their number; they are durable.

        A flush may hold back `deferrable` rows for some minutes, until a better source has the same parts.
        """
        definition = datasets.get(dataset)
        coerced = []
        for index, row in enumerate(rows):
            try:
                coerced.append(coerce_row(definition, row, self.gateway_id))
            except RowRejected as reason:
                raise HypError(f"{dataset}: row {index}: {reason}", kind="row_rejected") from None
        return self.append_coerced(dataset, coerced, deferrable=deferrable)

    def append_coerced(self, dataset: str, rows: Sequence[Row], *, deferrable: bool = False) -> int:
        if not rows:
            return 0
        kind = (dataset, deferrable)
        segment: ActiveSegment | None = None
        with telemetry.span("spool.append", component="spool", operation="append", hyp_dataset=dataset) as span:
            while segment is None:
                try:
                    segment = self._active(kind)
                    segment.append(rows)
                except SegmentClosed:
                    segment = None  # its timer sealed it first
                except BaseException as error:
                    if segment is not None:
                        segment.abandon()
                    if isinstance(error, OSError):
                        raise Retryable(
                            f"could not write {len(rows)} rows to the spool of {dataset} ({error}); none was stored",
                            kind="spool_write_failed",
                        ) from error
                    raise
            span.set(row_count=len(rows))
        if segment.rows >= self._rule.max_rows or segment.bytes >= self._rule.max_bytes:
            self.sealed_by_size += segment.seal() is not None
        return len(rows)

    def seal(self) -> int:
        """Seal every active segment of this process. Return the number of segments with rows."""
        with self._guard:
            active = list(self._segments.values())
        return sum(segment.seal() is not None for segment in active)

    def close(self) -> None:
        with self._guard:
            self._closed = True
            sealers, self._sealers = self._sealers, []
        self.seal()
        for sealer in sealers:
            # It may be sealing a segment that an append has already replaced.
            sealer.cancel()
            sealer.join()

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _active(self, kind: _SegmentKind) -> ActiveSegment:
        with self._guard:
            if self._closed:
                raise HypError("the spool is closed", kind="spool_closed")
            segment = self._segments.get(kind)
            if segment is None or not segment.is_usable:
                dataset, deferrable = kind
                folder = segments.spool_folder(self.home, dataset)
                folder.create()
                segment = self._segments[kind] = ActiveSegment(folder, deferrable=deferrable)
                if self._rule.linger < float("inf"):
                    sealer = threading.Timer(self._rule.linger, segment.seal)
                    sealer.name, sealer.daemon = "spool-sealer", True
                    sealer.start()
                    self._sealers = [*filter(threading.Timer.is_alive, self._sealers), sealer]
            return segment


class SegmentClosed(Exception):
    """The segment was sealed or abandoned before it accepted the rows; append them to a new one."""


class SegmentAbandoned(OSError):
    """The rows were written but not made durable; the file was truncated to the acknowledged rows."""


class ActiveSegment:
    def __init__(self, folder: SpoolFolder, *, deferrable: bool = False) -> None:
        self._folder = folder
        self.name = segments.new_segment_name(deferrable=deferrable)
        self.path = folder.active / f"{self.name}{segments.SUFFIX}"
        self._write = threading.RLock()
        self._sync = threading.Lock()
        # Bytes and rows of whole lines, as one value, so that an interrupt cannot make them inconsistent.
        self._written = (0, 0)
        self._acknowledged = 0
        self._is_torn = False
        self._is_closed = False
        with _create_lock:
            self._fd = _create_locked(self.path)
            _open_segments.add(self)

    @property
    def bytes(self) -> int:
        return self._written[0]

    @property
    def rows(self) -> int:
        return self._written[1]

    @property
    def is_usable(self) -> bool:
        return not self._is_closed

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows. Return when they are durable. Concurrent threads share an fsync."""
        with self._write:
            if self._is_closed:
                raise SegmentClosed(self.name)
            self._truncate_torn()
            lines = segments.encode_lines(rows, self.rows)
            end = self.bytes + len(lines)
            self._is_torn = True
            try:
                durable_files.write_all(self._fd, lines)
                self._written = (end, self.rows + len(rows))
                self._is_torn = False
            except BaseException:
                with contextlib.suppress(OSError):
                    self._truncate_torn()
                raise
        with self._sync:
            if self._acknowledged >= end:
                return
            if self._is_closed:
                raise SegmentAbandoned(f"segment {self.name} was abandoned before its rows were durable")
            self._make_durable()

    def seal(self) -> Path | None:
        """Seal the segment. Return its path, or None if it has no rows, or was sealed or abandoned before.

        A failed seal returns None too: it leaves a durable, unlocked file, which the next flush repairs.
        """
        with self._sync, self._write:
            try:
                if self._is_closed:
                    return None
                self._is_closed = True
                if self.rows == 0:
                    durable_files.remove_durably(self.path)
                    return None
                self._truncate_torn()
                self._make_durable()
                _before_seal()
                sealed = self._folder.sealed / segments.sealed_file_name(self.name, self.rows)
                durable_files.rename_durably(self.path, sealed)
                _after_seal()
                return sealed
            except OSError:
                return None
            finally:
                self._release()

    def abandon(self) -> None:
        """Release a file that an error closed. It becomes an orphan, which the next flush repairs."""
        with self._sync, self._write:
            if self._is_closed:
                self._release()

    def _make_durable(self) -> None:
        """Fsync everything that any thread has written so far. The caller holds `_sync`."""
        target = self.bytes
        if self._acknowledged == target:
            return
        _before_sync()
        try:
            durable_files.fsync_fd(self._fd)
        except OSError:
            with self._write:
                self._is_closed = True
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._acknowledged)
                self._release()
            raise
        _after_sync()
        self._acknowledged = target

    def _truncate_torn(self) -> None:
        """Truncate half-written lines. If that fails, close the segment, so that no line follows them."""
        if not self._is_torn:
            return
        try:
            os.ftruncate(self._fd, self.bytes)
        except OSError:
            self._is_closed = True
            raise
        self._is_torn = False

    def _release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _create_locked(path: Path) -> int:
    """Create the file, lock it, then make it visible, so that repair never finds it unlocked."""
    temporary = path.with_name(f"{segments.NEW_PREFIX}{path.name}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        lock_fd(fd)
        _before_visible()
        durable_files.rename_durably(temporary, path)
        if not is_file_at(path, fd):
            raise SegmentAbandoned(f"{path} was replaced while it was being created")
        _after_visible()
    except BaseException:
        os.close(fd)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return fd


def _close_all() -> None:
    for spool in list(_spools):
        spool.close()
    # The segments of spools that were freed without being closed; their timers refer to them.
    for segment in list(_open_segments):
        segment.seal()


def _reset_in_child() -> None:
    """Reset in a forked child, which must not share its parent's files, locks or threads."""
    for segment in list(_open_segments):
        segment._is_closed = True
        segment._release()
    _open_segments.clear()
    _create_lock.release()
    for spool in list(_spools):
        spool._segments, spool._sealers = {}, []
        spool._guard = threading.RLock()


atexit.register(_close_all)
os.register_at_fork(before=_create_lock.acquire, after_in_parent=_create_lock.release, after_in_child=_reset_in_child)
