"""The recorder: copies exchanges while they stream and stores them when they have ended.

An `ExchangeCapture` is one running exchange: the event loop adds bytes to its two buffers and never blocks. When it
ends, for whatever reason, it becomes a `RecordedExchange`, waits in a bounded queue and goes to the exchange handler on
a single thread; the handler returns when the exchange is durable. Streams never wait for the handler: if the queue is
full, the exchange is dropped, counted and reported.

If the handler raises `Retryable` (a full disk), the same exchange is tried again until the recorder stops, and
everything behind it waits. Any other error concerns this exchange alone: it is counted, its type is logged, and the
next one follows.

@ref capture#recorder
"""

from __future__ import annotations

import ctypes
import logging
import queue
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
from hypaware.gateway.exchange import Headers, RecordedExchange
from hypaware.gateway.routes import Route
from hypaware.gateway.spill import BodyBuffer, RecorderLimits, SpillDirectory

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
    def __init__(
        self, recorder: Recorder, route: Route, method: str, path: str, headers: Headers, exchange_id: str
    ) -> None:
        self._recorder = recorder
        self._route, self._method, self._path, self._request_headers = route, method, path, headers
        self._exchange_id = exchange_id
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
        self._recorder.spill.enqueue(enqueue)


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
        self._new_id = new_id
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

    def start_capture(self, route: Route, method: str, path: str, headers: Headers) -> ExchangeCapture:
        return ExchangeCapture(self, route, method, path, headers, self._new_id())

    def enqueue(self, recording: RecordedExchange, capture: ExchangeCapture) -> None:
        # The end marker must always fit, so the limit is checked here and not by the queue.
        if self._queue.qsize() < self._limits.queued_exchanges:
            self._queue.put((recording, capture))
            return
        recording.delete_files()
        _release_buffers(capture)
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
                recording.delete_files()
                _release_buffers(capture)
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


def _release_buffers(capture: ExchangeCapture) -> None:
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
