"""Copies of bodies beside the stream: small ones in memory, large ones in private files.

A `Tape` takes the bytes of one direction on the event loop and never waits. Above `Limits.in_memory` its bytes go to
a file in the spill folder (0700, file 0600, random name), which one thread writes. All tapes together hold no more
than `Limits.room` in memory, waiting writes included; where that is used up, and above `Limits.body`, a tape stops:
its body is incomplete, the stream goes on.

Spill files are not durable and need not be: an exchange under way is lost with its process. What an earlier process
left is removed at the start.
"""

from __future__ import annotations

import os
import queue
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hypaware.capture.recording import Body

SUFFIX = ".spill"
# What a body may hold in memory when there is not much left for all of them.
_LITTLE = 16 << 10


@dataclass(frozen=True)
class Limits:
    in_memory: int = 256 << 10
    """Of one body."""
    body: int = 256 << 20
    room: int = 16 << 20
    """Of all bodies together, in memory."""
    waiting: int = 1000
    """Finished recordings that nobody has kept yet."""


class Room:
    """How much memory the copies may use together. Taken on the loop, given back by the threads."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._crowded = size // 2
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        with self._lock:
            if size > self._free:
                return False
            self._free -= size
            return True

    def give(self, size: int) -> None:
        with self._lock:
            self._free += size

    @property
    def is_crowded(self) -> bool:
        return self._free < self._crowded


class SpillFile:
    """Written by the spill's thread alone."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{secrets.token_hex(12)}{SUFFIX}"
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
            left = memoryview(data)
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            self.failed = True

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class Spill:
    """The folder and its one writing thread: what is asked of it happens in its order."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.limits = limits
        self.room = Room(limits.room)
        self._folder = folder
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="spill", daemon=True)

    def start(self) -> None:
        # No more than these two: a home that was just removed is not made anew.
        self._folder.parent.mkdir(mode=0o700, exist_ok=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._folder.chmod(0o700)
        for left in self._folder.glob(f"*{SUFFIX}"):
            left.unlink(missing_ok=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when everything that was asked for is done."""
        self._work.put(None)
        self._thread.join()

    def new_file(self) -> SpillFile:
        return SpillFile(self._folder)

    def write(self, file: SpillFile, data: bytes | bytearray) -> None:
        """The data is the spill's from here on."""

        def write() -> None:
            file.write(data)
            self.room.give(len(data))

        self._work.put(write)

    def then(self, step: Callable[[], None]) -> None:
        """After all that was asked before."""
        self._work.put(step)

    def _run(self) -> None:
        while (step := self._work.get()) is not None:
            step()


class Tape:
    def __init__(self, spill: Spill) -> None:
        self._spill = spill
        self._held = bytearray()
        self._taken = 0
        self._file: SpillFile | None = None
        self._ended = False
        self.size = 0
        self.stopped_by: str | None = None
        """Why it no longer takes anything: recorder_behind, body_too_large, spill_failed, not_recorded."""

    def add(self, data: bytes) -> None:
        if self._ended:
            return
        self.size += len(data)
        if self.stopped_by is not None:
            return
        if self.size > self._spill.limits.body:
            self.stopped_by = "body_too_large"
        elif not self._spill.room.take(len(data)):
            self.stopped_by = "recorder_behind"
        else:
            self._taken += len(data)
            self._held += data
            if len(self._held) > self._in_memory():
                self._to_file()

    def stop(self, reason: str) -> None:
        self.stopped_by = self.stopped_by or reason

    def end(self) -> None:
        """What still comes is not heard: from here on the tape is the spill's thread's. What is in memory of a spilled
        body follows the rest."""
        self._ended = True
        if self._file is not None:
            self._to_file()

    def body(self) -> Body:
        """Once, on the spill's thread, behind its writes."""
        if self._file is None:
            held, self._held = bytes(self._held), bytearray()
            return Body(held, self.size, self.stopped_by is None)
        self._file.close()
        if self._file.failed:
            self.stop("spill_failed")
        return Body(self._file.path if self._file.exists else b"", self.size, self.stopped_by is None)

    def release(self) -> None:
        """Nobody holds its bytes any more."""
        self._spill.room.give(self._taken)
        self._taken = 0

    def _in_memory(self) -> int:
        return _LITTLE if self._spill.room.is_crowded else self._spill.limits.in_memory

    def _to_file(self) -> None:
        if self._file is None:
            self._file = self._spill.new_file()
        if self._held:
            # From here on the spill gives the room back.
            self._taken -= len(self._held)
            self._spill.write(self._file, self._held)
            self._held = bytearray()
