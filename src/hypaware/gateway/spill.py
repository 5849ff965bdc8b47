"""Buffers for recorded bodies: small bodies in memory, large ones in private files.

A `BodyBuffer` takes the bytes of one direction on the event loop and never blocks. Above `RecorderLimits.in_memory` it
moves its bytes to a file in the spill directory (directory 0700, file 0600, random name), which a single thread writes.
All buffers together use at most `RecorderLimits.total_in_memory`, including queued writes. If that is exhausted, or a
body exceeds `RecorderLimits.body_size`, the buffer stops: the body is incomplete, and the stream continues.

Spill files are not durable and need not be: a running exchange is lost with its process. Files of an earlier process
are removed at start.
"""

from __future__ import annotations

import os
import queue
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hypaware.gateway.exchange import RecordedBody

SPILL_SUFFIX = ".spill"
# Bytes that a body may hold in memory while the budget is low.
_LOW_MEMORY_LIMIT = 16 << 10


@dataclass(frozen=True)
class RecorderLimits:
    in_memory: int = 256 << 10
    """Bytes of one body that stay in memory."""
    body_size: int = 256 << 20
    """Bytes of one body that are recorded at all."""
    total_in_memory: int = 16 << 20
    """Bytes of all bodies together that stay in memory."""
    queued_exchanges: int = 1000
    """Finished exchanges that are not stored yet."""


class MemoryBudget:
    """The memory that all buffers share. The event loop reserves it, the threads release it."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._low = size // 2
        self._lock = threading.Lock()

    def reserve(self, size: int) -> bool:
        with self._lock:
            if size > self._free:
                return False
            self._free -= size
            return True

    def release(self, size: int) -> None:
        with self._lock:
            self._free += size

    @property
    def is_low(self) -> bool:
        return self._free < self._low


class SpillFile:
    """A file that only the spill thread writes."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / f"{secrets.token_hex(12)}{SPILL_SUFFIX}"
        self.exists = False
        self.failed = False
        self._fd: int | None = None

    def write(self, data: bytes | bytearray) -> None:
        if self.failed:
            return
        try:
            if self._fd is None:
                self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
                self.exists = True
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            self.failed = True

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class SpillDirectory:
    """The spill directory and the thread that writes its files; steps run in the order in which they were queued."""

    def __init__(self, directory: Path, limits: RecorderLimits) -> None:
        self.limits = limits
        self.budget = MemoryBudget(limits.total_in_memory)
        self._directory = directory
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="spill", daemon=True)

    def start(self) -> None:
        # Create at most these two directories, so that a home that was just removed is not created again.
        self._directory.parent.mkdir(mode=0o700, exist_ok=True)
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self._directory.chmod(0o700)
        for leftover in self._directory.glob(f"*{SPILL_SUFFIX}"):
            leftover.unlink(missing_ok=True)
        self._thread.start()

    def stop(self) -> None:
        """Return when all queued steps have run."""
        self._queue.put(None)
        self._thread.join()

    def new_file(self) -> SpillFile:
        return SpillFile(self._directory)

    def write(self, file: SpillFile, data: bytes | bytearray) -> None:
        """Queue a write. The spill owns the data from here on."""

        def write() -> None:
            file.write(data)
            self.budget.release(len(data))

        self._queue.put(write)

    def enqueue(self, step: Callable[[], None]) -> None:
        """Run a step after everything that was queued before it."""
        self._queue.put(step)

    def _run(self) -> None:
        while (step := self._queue.get()) is not None:
            step()


class BodyBuffer:
    def __init__(self, spill: SpillDirectory) -> None:
        self._spill = spill
        self._buffer = bytearray()
        self._reserved = 0
        self._file: SpillFile | None = None
        self._closed = False
        self.size = 0
        self.stop_reason: str | None = None
        """Why the buffer takes no more bytes: recorder_behind, body_too_large, spill_failed, not_recorded."""

    def add(self, data: bytes) -> None:
        if self._closed:
            return
        self.size += len(data)
        if self.stop_reason is not None:
            return
        if self.size > self._spill.limits.body_size:
            self.stop_reason = "body_too_large"
        elif not self._spill.budget.reserve(len(data)):
            self.stop_reason = "recorder_behind"
        else:
            self._reserved += len(data)
            self._buffer += data
            if len(self._buffer) > self._memory_limit():
                self._write_to_file()

    def stop(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or reason

    def close(self) -> None:
        """Ignore further bytes and queue the rest of a spilled body; from here on the spill thread owns the buffer."""
        self._closed = True
        if self._file is not None:
            self._write_to_file()

    def take_body(self) -> RecordedBody:
        """Return the body. Call once, on the spill thread, after the queued writes."""
        if self._file is None:
            content, self._buffer = bytes(self._buffer), bytearray()
            return RecordedBody(content, self.size, self.stop_reason is None)
        self._file.close()
        if self._file.failed:
            self.stop("spill_failed")
        return RecordedBody(self._file.path if self._file.exists else b"", self.size, self.stop_reason is None)

    def release(self) -> None:
        """Release the memory that the buffer has reserved."""
        self._spill.budget.release(self._reserved)
        self._reserved = 0

    def _memory_limit(self) -> int:
        return _LOW_MEMORY_LIMIT if self._spill.budget.is_low else self._spill.limits.in_memory

    def _write_to_file(self) -> None:
        if self._file is None:
            self._file = self._spill.new_file()
        if self._buffer:
            # The spill releases this memory after the write.
            self._reserved -= len(self._buffer)
            self._spill.write(self._file, self._buffer)
            self._buffer = bytearray()
