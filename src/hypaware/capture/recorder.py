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
from hypaware.capture.free_memory import FreeMemory
from hypaware.capture.recording import Headers, Recording
from hypaware.capture.routes import Route
from hypaware.capture.spill import Limits, Spill, Tape
from hypaware.errors import Retryable

Keep = Callable[[Recording], None]
"""Returns when the exchange is durable or handed to the spool writer. The handler reads the bodies while it runs; their
files are deleted afterwards."""

_before_keep = faults.point("capture.keep.before-keep", "an exchange has ended; nothing of it is stored")
_after_keep = faults.point("capture.keep.after-keep", "the exchange was handed on; its spilled bodies still exist")

_SECONDS_BETWEEN_TRIES = (0.5, 1.0, 2.0, 5.0)

log = logging.getLogger("hypaware.gateway")


@dataclass(frozen=True)
class Counts:
    kept: int = 0
    incomplete: int = 0
    """Stored with a body that is incomplete."""
    dropped: int = 0
    """Dropped because the queue was full."""
    failed: int = 0
    """The handler could not store them."""


@dataclass(frozen=True)
class Clock:
    """Wall-clock time for when something happened, monotonic time for how long it took."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    monotonic: Callable[[], float] = time.perf_counter


class Take:
    def __init__(
        self, recorder: Recorder, route: Route, method: str, path: str, headers: Headers, exchange_id: str
    ) -> None:
        self._recorder = recorder
        self._route, self._method, self._path, self._request_headers = route, method, path, headers
        self._exchange_id = exchange_id
        self._status: int | None = None
        self._response_headers: Headers = ()
        self._first_byte_ms: int | None = None
        self._began_at = recorder.clock.monotonic()
        self._started_at = recorder.clock.now()
        self._finished = False
        self.request = Tape(recorder.spill)
        self.response = Tape(recorder.spill)
        if not route.recorded:
            self.request.stop("not_recorded")
            self.response.stop("not_recorded")

    def set_response(self, status: int, headers: Headers) -> None:
        self._status, self._response_headers = status, headers

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
            self._recorder.enqueue(self._build_recording(ended_at, error), self)

        # After its own writes and those of earlier captures: exchanges are stored in the order in which they ended.
        self._recorder.spill.enqueue(enqueue)

    def _build_recording(self, ended_at: datetime, error: str | None) -> Recording:
        request, response = self.request.take_body(), self.response.take_body()
        return Recording(
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
            request=request,
            status=self._status,
            response_headers=self._response_headers,
            response=response,
            error=error or self.response.stop_reason or self.request.stop_reason,
        )


class Recorder:
    def __init__(
        self,
        handle_exchange: Keep,
        spill_dir: Path,
        *,
        limits: Limits | None = None,
        clock: Clock | None = None,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._handle_exchange = handle_exchange
        self._limits = limits or Limits()
        self.clock = clock or Clock()
        self.spill = Spill(spill_dir, self._limits)
        self._new_id = new_id
        self._queue: queue.Queue[tuple[Recording, Take] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="keep", daemon=True)
        self._counts = Counts()
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    @property
    def counts(self) -> Counts:
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

    def start_capture(self, route: Route, method: str, path: str, headers: Headers) -> Take:
        return Take(self, route, method, path, headers, self._new_id())

    def enqueue(self, recording: Recording, capture: Take) -> None:
        # The end marker must always fit, so the limit is checked here and not by the queue.
        if self._queue.qsize() < self._limits.queued_exchanges:
            self._queue.put((recording, capture))
            return
        recording.delete_files()
        _release(capture)
        self._count(dropped=1)
        if self._counts.dropped.bit_count() == 1:
            log.warning("recording cannot keep up: %d exchanges dropped so far", self._counts.dropped)

    def _run(self) -> None:
        memory = FreeMemory()
        while (item := self._queue.get()) is not None:
            recording, capture = item
            size = recording.request.size + recording.response.size
            try:
                self._store(recording)
            finally:
                recording.delete_files()
                _release(capture)
            # Free them before waiting for the next exchange.
            del item, recording, capture
            memory.note_processed(size)

    def _store(self, recording: Recording) -> None:
        _before_keep()
        for wait in chain(_SECONDS_BETWEEN_TRIES, repeat(_SECONDS_BETWEEN_TRIES[-1])):
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
                self._count(kept=1, incomplete=int(not complete))
                _after_keep()
                return
            if self._stopping.wait(wait):
                break
        self._count(failed=1)

    def _count(self, *, kept: int = 0, incomplete: int = 0, dropped: int = 0, failed: int = 0) -> None:
        with self._lock:
            counts = self._counts
            self._counts = replace(
                counts,
                kept=counts.kept + kept,
                incomplete=counts.incomplete + incomplete,
                dropped=counts.dropped + dropped,
                failed=counts.failed + failed,
            )


def _release(capture: Take) -> None:
    capture.request.release()
    capture.response.release()
