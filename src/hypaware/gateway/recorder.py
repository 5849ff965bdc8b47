"""The recorder: copies exchanges while they stream and stores them when they have ended.

An `ExchangeCapture` is one running exchange: the event loop adds bytes to its two buffers and never blocks. When it
ends, it becomes a `RecordedExchange`, waits in a bounded queue and goes to the exchange handler on a single thread,
which first waits until the files of its bodies are written. If the queue is full, the exchange is dropped, counted and
reported; streams never wait. When no other exchange waits, the recorder asks the handler's owner to store what it was
given, so that a burst of exchanges shares its fsyncs. If either raises `Retryable` (a full disk), it is tried again
until the recorder stops. Any other error concerns one exchange.

Small bodies stay in memory. Above `RecorderLimits.in_memory` a `BodyBuffer` moves its bytes to a file in the spill
directory (directory 0700, file 0600, random name), which another thread writes. If the memory that all buffers share
is exhausted, or a body exceeds `RecorderLimits.body_size`, the buffer stops: the body is incomplete, and the stream
continues. Spill files need not be durable: a running exchange is lost with its process.

@ref capture#recorder @ref walks#live
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
from functools import partial
from itertools import chain, repeat
from pathlib import Path

from hypaware import faults
from hypaware.errors import Retryable
from hypaware.gateway.exchange import Headers, RecordedBody, RecordedExchange
from hypaware.gateway.routes import Route

_SPILL_SUFFIX = ".spill"
_LOW_MEMORY_LIMIT = 16 << 10
_BYTES_BETWEEN_TRIMS = 16 << 20
ExchangeHandler = Callable[[RecordedExchange], None]
"""Reads the bodies while it runs; their files are removed afterwards. The exchange may become durable later: when the
recorder calls `store`."""
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


class ExchangeCapture:
    """One running exchange."""

    def __init__(self, recorder: Recorder, route: Route, method: str, path: str, headers: Headers) -> None:
        self._recorder = recorder
        self._route, self._method, self._path, self._request_headers = route, method, path, headers
        self._exchange_id = str(uuid.uuid4())
        self.status: int | None = None
        self.response_headers: Headers = ()
        self._began_at = time.perf_counter()
        self._started_at = datetime.now(UTC)
        self._finished = False
        self.request = BodyBuffer(recorder.spill)
        self.response = BodyBuffer(recorder.spill)
        if not route.recorded:
            self.request.stop("not_recorded")
            self.response.stop("not_recorded")

    def finish(self, error: str | None = None) -> None:
        """Finish the capture. Only the first call counts."""
        if self._finished or not self._route.recorded:
            return
        self._finished = True
        self.request.close()
        self.response.close()
        first_byte_at = self.response.first_byte_at
        recording = RecordedExchange(
            exchange_id=self._exchange_id,
            started_at=self._started_at,
            ended_at=max(datetime.now(UTC), self._started_at),
            first_byte_ms=None if first_byte_at is None else round((first_byte_at - self._began_at) * 1000),
            upstream=self._route.name,
            provider=self._route.provider,
            client_name=self._route.client,
            method=self._method,
            path=self._path,
            request_headers=self._request_headers,
            request=self.request.body,
            status=self.status,
            response_headers=self.response_headers,
            response=self.response.body,
            error=error,
        )
        recorder = self._recorder
        # The end marker must always fit, so the limit is checked here and not by the queue.
        if recorder.queue.qsize() < recorder.limits.queued_exchanges:
            recorder.queue.put((recording, self))
        else:
            recorder.spill.queue.put(self._drop)

    def _drop(self) -> None:
        self.release()
        self._recorder.count("dropped")
        dropped = self._recorder.counts.dropped
        if dropped.bit_count() == 1:
            log.warning("recording cannot keep up: %d exchanges dropped so far", dropped)

    def release(self) -> None:
        """Free the memory and remove the files. Call it once, after the files are written."""
        self.request.release()
        self.response.release()


class Recorder:
    def __init__(
        self,
        handle_exchange: ExchangeHandler,
        spill_dir: Path,
        *,
        store: Callable[[], None] = lambda: None,
        limits: RecorderLimits | None = None,
    ) -> None:
        """`store` makes the exchanges durable that the handler was given."""
        self._handle_exchange = handle_exchange
        self._store = store
        self.limits = limits or RecorderLimits()
        self.spill = SpillDirectory(spill_dir, self.limits)
        self.queue: queue.Queue[tuple[RecordedExchange, ExchangeCapture] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="keep", daemon=True)
        self.counts = RecorderCounts()
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def start(self) -> None:
        self.spill.start()
        self._thread.start()

    def stop(self) -> None:
        """Block until every finished exchange is stored or given up. Captures that are still running are discarded."""
        self.spill.stop()
        self._stopping.set()
        self.queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        processed = 0
        while (item := self.queue.get()) is not None:
            recording, capture = item
            # Wait for both files, even if one body is incomplete.
            reasons = capture.response.wait_until_written(), capture.request.wait_until_written()
            if not recording.error and any(reasons):
                recording = replace(recording, error=reasons[0] or reasons[1])
            processed += recording.request.size + recording.response.size
            complete = recording.request.complete and recording.response.complete
            _before_keep()
            try:
                if self._attempt(partial(self._handle_exchange, recording)):
                    self.count("kept", *(() if complete else ("incomplete",)))
                    _after_keep()
                else:
                    self.count("failed")
            finally:
                capture.release()
            # Free them before waiting for the next exchange.
            del item, recording, capture
            if self.queue.empty():
                self._attempt(self._store)
            # glibc keeps memory that a thread has freed. After a day of large bodies a small process would stay large.
            if trim is not None and processed >= _BYTES_BETWEEN_TRIMS:
                processed = 0
                trim(0)
        self._attempt(self._store)

    def _attempt(self, step: Callable[[], None]) -> bool:
        """Return whether the step succeeded. A temporary error is retried until the recorder stops."""
        for wait in chain(_RETRY_SECONDS, repeat(_RETRY_SECONDS[-1])):
            # An attempt that began before the recorder stopped is not the last one: there may be room by now.
            is_last = self._stopping.is_set()
            try:
                step()
                return True
            except Retryable as error:
                if is_last:
                    break
                log.warning("cannot store exchanges, trying again: %s", error.message)
            except Exception as error:
                # The error's text may quote the exchange, so only its type is logged.
                log.error("could not store an exchange: %s", type(error).__name__)
                break
            self._stopping.wait(wait)
        return False

    def count(self, *names: str) -> None:
        with self._lock:
            self.counts = replace(self.counts, **{name: getattr(self.counts, name) + 1 for name in names})


class SpillDirectory:
    """The spill directory, the memory that all buffers share, and the thread that writes the files.

    Steps run in the order in which they were queued. The event loop reserves memory, the threads release it.
    """

    def __init__(self, directory: Path, limits: RecorderLimits) -> None:
        self.limits = limits
        self._free = limits.total_in_memory
        self._lock = threading.Lock()
        self.path = directory
        self.queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        """Steps for the thread; `None` ends it."""
        self._thread = threading.Thread(target=self._run, name="spill", daemon=True)

    def start(self) -> None:
        # Create at most these two directories, so that a home that was just removed is not created again.
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        self.path.chmod(0o700)
        for leftover in self.path.glob(f"*{_SPILL_SUFFIX}"):
            leftover.unlink(missing_ok=True)
        self._thread.start()

    def stop(self) -> None:
        """Return when all queued steps have run."""
        self.queue.put(None)
        self._thread.join()

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
    def buffer_limit(self) -> int:
        """Bytes of one body that stay in memory: fewer while the shared memory is low."""
        return _LOW_MEMORY_LIMIT if self._free < self.limits.total_in_memory // 2 else self.limits.in_memory

    def _run(self) -> None:
        while (step := self.queue.get()) is not None:
            step()


class BodyBuffer:
    """The body of one direction while it passes. The recorder's thread may read it after `wait_until_written`."""

    def __init__(self, spill: SpillDirectory) -> None:
        self._spill = spill
        self._buffer = bytearray()
        self._reserved = 0
        self._path: Path | None = None
        self._fd: int | None = None
        """Only the spill thread opens, writes and closes the file."""
        self._failed = False
        self._closed = False
        self._written = threading.Event()
        self.body = RecordedBody(self._buffer)
        self.first_byte_at: float | None = None
        self.stop_reason: str | None = None
        """Why the buffer takes no more bytes: recorder_behind, body_too_large, spill_failed, not_recorded."""

    def add(self, data: bytes) -> None:
        if self._closed:
            return
        if self.first_byte_at is None:
            self.first_byte_at = time.perf_counter()
        self.body.size += len(data)
        if self.stop_reason is not None:
            return
        if self.body.size > self._spill.limits.body_size:
            self.stop("body_too_large")
        elif not self._spill.reserve(len(data)):
            self.stop("recorder_behind")
        else:
            self._reserved += len(data)
            self._buffer += data
            if len(self._buffer) > self._spill.buffer_limit:
                self._write_to_file()

    def stop(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or reason
        self.body.complete = False

    def close(self) -> None:
        """Ignore further bytes and queue the rest of a spilled body; from here on the spill thread owns the buffer."""
        self._closed = True
        if self._path is None:
            self._written.set()
        else:
            self._write_to_file()
            self._spill.queue.put(self._close_file)

    def wait_until_written(self) -> str | None:
        """Return why the body is incomplete, or None."""
        self._written.wait()
        return self.stop_reason

    def release(self) -> None:
        """Release the memory that the buffer has reserved, and remove the file."""
        self._spill.release(self._reserved)
        self._reserved = 0
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _write_to_file(self) -> None:
        if self._path is None:
            self._path = self.body.content = self._spill.path / f"{secrets.token_hex(12)}{_SPILL_SUFFIX}"
        if self._buffer:
            # The spill thread owns the data from here on, and releases its memory after the write.
            data, self._buffer = self._buffer, bytearray()
            self._reserved -= len(data)
            self._spill.queue.put(partial(self._append_to_file, self._path, data))

    def _append_to_file(self, path: Path, data: bytearray) -> None:
        if not self._failed:
            try:
                if self._fd is None:
                    self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
            except OSError:
                self._failed = True
        self._spill.release(len(data))

    def _close_file(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
        else:
            self.body.content = b""
        if self._failed:
            self.stop("spill_failed")
        self._written.set()
