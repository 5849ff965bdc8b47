"""The recorder: copies exchanges while they stream and stores them when they have ended.

An `ExchangeCapture` is one running exchange: the event loop adds bytes to its two buffers and never blocks. When it
ends, for whatever reason, it becomes a `RecordedExchange`, waits in a bounded queue and goes to the exchange handler on
a single thread; the handler returns when the exchange is durable. Streams never wait for the handler: if the queue is
full, the exchange is dropped, counted and reported.

If the handler raises `Retryable` (a full disk), the same exchange is tried again until the recorder stops, and
everything behind it waits. Any other error concerns this exchange alone: it is counted, its type is logged, and the
next one follows.

Small bodies stay in memory; large ones go to private files. A `BodyBuffer` takes the bytes of one direction. Above
`RecorderLimits.in_memory` it moves them to a file in the spill directory (directory 0700, file 0600, random name),
which a single thread writes. All buffers together use at most `RecorderLimits.total_in_memory`, including queued
writes. If that is exhausted, or a body exceeds `RecorderLimits.body_size`, the buffer stops: the body is incomplete,
and the stream continues. Spill files are not durable and need not be: a running exchange is lost with its process.
Files of an earlier process are removed at start.

@ref capture#recorder
"""

from __future__ import annotations

import ctypes
import logging
import os
import queue
import secrets
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, repeat
from pathlib import Path

from hypaware import faults
from hypaware.errors import Retryable
from hypaware.gateway.exchange import Headers, RecordedBody, RecordedExchange
from hypaware.gateway.routes import Route

SPILL_SUFFIX = ".spill"
# Bytes that a body may hold in memory while the budget is low.
_LOW_MEMORY_LIMIT = 16 << 10
_BYTES_BETWEEN_TRIMS = 16 << 20
ExchangeHandler = Callable[[RecordedExchange], None]
"""Returns when the exchange is durable or handed to the spool writer. The handler reads the bodies while it runs; their
files are deleted afterwards."""
_before_keep = faults.crash_point("gateway.keep.before-keep", "an exchange has ended; nothing of it is stored")
_after_keep = faults.crash_point(
    "gateway.keep.after-keep", "the exchange was handed on; its spilled bodies still exist"
)
_RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0)
log = logging.getLogger("hypaware.gateway")


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


@dataclass(frozen=True)
class RecorderCounts:
    kept: int = 0
    incomplete: int = 0
    """Stored with a body that is incomplete."""
    dropped: int = 0
    """Dropped because the queue was full."""
    failed: int = 0
    """The handler could not store them."""


@dataclass(frozen=True)
class RecorderClock:
    """Wall-clock time for when something happened, monotonic time for how long it took."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    monotonic: Callable[[], float] = time.perf_counter


class ExchangeCapture:
    """One running exchange."""

    def __init__(self, recorder: Recorder, route: Route, method: str, path: str, headers: Headers) -> None:
        self._recorder = recorder
        self._route, self._method, self._path, self._request_headers = route, method, path, headers
        self._exchange_id = recorder.new_id()
        self.status: int | None = None
        self.response_headers: Headers = ()
        self._first_byte_ms: int | None = None
        self._began_at = recorder.clock.monotonic()
        self._started_at = recorder.clock.now()
        self._finished = False
        self.request = BodyBuffer(recorder.spill)
        self.response = BodyBuffer(recorder.spill)
        if not route.recorded:
            self.request.stop("not_recorded")
            self.response.stop("not_recorded")

    def add_response_bytes(self, data: bytes) -> None:
        """Add bytes of the response body."""
        if self._first_byte_ms is None:
            self._first_byte_ms = round((self._recorder.clock.monotonic() - self._began_at) * 1000)
        self.response.add(data)

    def finish(self, error: str | None = None) -> None:
        """Finish the capture. Only the first call counts."""
        if self._finished or not self._route.recorded:
            return
        self._finished = True
        ended_at = max(self._recorder.clock.now(), self._started_at)
        self.request.close()
        self.response.close()

        def enqueue() -> None:
            recording = RecordedExchange(
                exchange_id=self._exchange_id,
                started_at=self._started_at,
                ended_at=ended_at,
                first_byte_ms=self._first_byte_ms,
                upstream=self._route.name,
                provider=self._route.provider,
                client_name=self._route.client,
                method=self._method,
                path=self._path,
                request_headers=self._request_headers,
                request=self.request.take_body(),
                status=self.status,
                response_headers=self.response_headers,
                response=self.response.take_body(),
                error=error or self.response.stop_reason or self.request.stop_reason,
            )
            self._recorder.enqueue(recording, self)

        # After its own writes and those of earlier captures: exchanges are stored in the order in which they ended.
        self._recorder.spill.queue.put(enqueue)


class Recorder:
    def __init__(
        self,
        handle_exchange: ExchangeHandler,
        spill_dir: Path,
        *,
        limits: RecorderLimits | None = None,
        clock: RecorderClock | None = None,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._handle_exchange = handle_exchange
        self._limits = limits or RecorderLimits()
        self.clock = clock or RecorderClock()
        self.spill = SpillDirectory(spill_dir, self._limits)
        self.new_id = new_id
        self._queue: queue.Queue[tuple[RecordedExchange, ExchangeCapture] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="keep", daemon=True)
        self._counts = RecorderCounts()
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    @property
    def counts(self) -> RecorderCounts:
        return self._counts

    def start(self) -> None:
        self.spill.start()
        self._thread.start()

    def stop(self) -> None:
        """Block until every finished exchange is stored. Captures that are still running are discarded."""
        self.spill.stop()
        self._stopping.set()
        self._queue.put(None)
        self._thread.join()

    def enqueue(self, recording: RecordedExchange, capture: ExchangeCapture) -> None:
        # The end marker must always fit, so the limit is checked here and not by the queue.
        if self._queue.qsize() < self._limits.queued_exchanges:
            self._queue.put((recording, capture))
            return
        _release(recording, capture)
        self._count("dropped")
        if self._counts.dropped.bit_count() == 1:
            log.warning("recording cannot keep up: %d exchanges dropped so far", self._counts.dropped)

    def _run(self) -> None:
        memory = HeapTrimmer()
        while (item := self._queue.get()) is not None:
            recording, capture = item
            size = recording.request.size + recording.response.size
            try:
                self._store(recording)
            finally:
                _release(recording, capture)
            # Free them before waiting for the next exchange.
            del item, recording, capture
            memory.note_processed(size)

    def _store(self, recording: RecordedExchange) -> None:
        _before_keep()
        for wait in chain(_RETRY_SECONDS, repeat(_RETRY_SECONDS[-1])):
            try:
                self._handle_exchange(recording)
            except Retryable as error:
                log.warning("cannot store an exchange, trying again: %s", error.message)
            except Exception as error:
                # The error's text may quote the exchange, so only its type is logged.
                log.error("could not store an exchange: %s", type(error).__name__)
                break
            else:
                complete = recording.request.complete and recording.response.complete
                self._count("kept", *(() if complete else ("incomplete",)))
                _after_keep()
                return
            if self._stopping.wait(wait):
                break
        self._count("failed")

    def _count(self, *names: str) -> None:
        with self._lock:
            self._counts = replace(self._counts, **{name: getattr(self._counts, name) + 1 for name in names})


def _release(recording: RecordedExchange, capture: ExchangeCapture) -> None:
    recording.request.delete()
    recording.response.delete()
    capture.request.release()
    capture.response.release()


class HeapTrimmer:
    """Returns freed memory to the operating system.

    glibc keeps memory that a thread has freed. After a day of large bodies a small process would stay large, so
    malloc_trim runs after every 16 MiB of processed bodies. On systems without malloc_trim nothing happens.
    """

    def __init__(self) -> None:
        self._processed = 0
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

    def note_processed(self, size: int) -> None:
        """Note that `size` bytes were processed and freed."""
        self._processed += size
        if self._trim is not None and self._processed >= _BYTES_BETWEEN_TRIMS:
            self._processed = 0
            self._trim(0)


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
        self.path = directory
        self.queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        """Steps for the thread; `None` ends it."""
        self._thread = threading.Thread(target=self._run, name="spill", daemon=True)

    def start(self) -> None:
        # Create at most these two directories, so that a home that was just removed is not created again.
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        self.path.chmod(0o700)
        for leftover in self.path.glob(f"*{SPILL_SUFFIX}"):
            leftover.unlink(missing_ok=True)
        self._thread.start()

    def stop(self) -> None:
        """Return when all queued steps have run."""
        self.queue.put(None)
        self._thread.join()

    def write(self, file: SpillFile, data: bytes | bytearray) -> None:
        """Queue a write. The spill owns the data from here on."""

        def write() -> None:
            file.write(data)
            self.budget.release(len(data))

        self.queue.put(write)

    def _run(self) -> None:
        while (step := self.queue.get()) is not None:
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
            budget, limits = self._spill.budget, self._spill.limits
            if len(self._buffer) > (_LOW_MEMORY_LIMIT if budget.is_low else limits.in_memory):
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

    def _write_to_file(self) -> None:
        if self._file is None:
            self._file = SpillFile(self._spill.path)
        if self._buffer:
            # The spill releases this memory after the write.
            self._reserved -= len(self._buffer)
            self._spill.write(self._file, self._buffer)
            self._buffer = bytearray()
