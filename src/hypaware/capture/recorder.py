"""What passed the gateway, taken down beside the stream and handed on when it has ended.

A `Take` is one exchange under way: the event loop adds to its two tapes and never waits. When it ends, in whatever
way, it becomes a `Recording`, waits in a bounded queue and goes to `keep` on one thread; keep returns when it is
durable. Nobody who streams waits for keep: with the queue full, the recording is dropped, counted and reported.

keep may raise `Retryable` (a full disk): the same recording is tried again until the recorder stops, everything behind
it waits. Any other is of this recording alone: it is counted, reported by its type, and the next one follows.

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
"""Returns when the exchange is durable, or with who makes it so in a moment (`storing`). Reads the bodies while it
runs; their files are gone afterwards."""

_before_keep = faults.point("capture.keep.before-keep", "an exchange has ended; nothing of it is stored")
_after_keep = faults.point("capture.keep.after-keep", "the exchange was handed on; its spilled bodies are still there")

_SECONDS_BETWEEN_TRIES = (0.5, 1.0, 2.0, 5.0)

log = logging.getLogger("hypaware.gateway")


@dataclass(frozen=True)
class Counts:
    kept: int = 0
    incomplete: int = 0
    """Kept, with a body that is not all there."""
    dropped: int = 0
    """Not even handed to keep: too many were waiting."""
    failed: int = 0
    """keep could not take them."""


@dataclass(frozen=True)
class Clock:
    """The two clocks: the day's time for when something was, the steady one for how long it took."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    steady: Callable[[], float] = time.perf_counter


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
        self._began = recorder.clock.steady()
        self._started_at = recorder.clock.now()
        self._ended = False
        self.request = Tape(recorder.spill)
        self.response = Tape(recorder.spill)
        if not route.recorded:
            self.request.stop("not_recorded")
            self.response.stop("not_recorded")

    def answered(self, status: int, headers: Headers) -> None:
        self._status, self._response_headers = status, headers

    def came(self, data: bytes) -> None:
        """A piece of the answer."""
        if self._first_byte_ms is None:
            self._first_byte_ms = round((self._recorder.clock.steady() - self._began) * 1000)
        self.response.add(data)

    def end(self, error: str | None = None) -> None:
        """Once; what comes later is not heard."""
        if self._ended or not self._route.recorded:
            return
        self._ended = True
        ended_at = max(self._recorder.clock.now(), self._started_at)
        self.request.end()
        self.response.end()

        def hand_on() -> None:
            self._recorder.offer(self._recording(ended_at, error), self)

        # Behind its own writes, and behind those that ended before: they are kept in the order of their ends.
        self._recorder.spill.then(hand_on)

    def _recording(self, ended_at: datetime, error: str | None) -> Recording:
        request, response = self.request.body(), self.response.body()
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
            error=error or self.response.stopped_by or self.request.stopped_by,
        )


class Recorder:
    def __init__(
        self,
        keep: Keep,
        folder: Path,
        *,
        limits: Limits | None = None,
        clock: Clock | None = None,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._keep = keep
        self._limits = limits or Limits()
        self.clock = clock or Clock()
        self.spill = Spill(folder, self._limits)
        self._new_id = new_id
        self._waiting: queue.Queue[tuple[Recording, Take] | None] = queue.Queue()
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
        """Blocks until everything that has ended is kept. Takes that go on are not heard any more."""
        self.spill.stop()
        self._stopping.set()
        self._waiting.put(None)
        self._thread.join()

    def begin(self, route: Route, method: str, path: str, headers: Headers) -> Take:
        return Take(self, route, method, path, headers, self._new_id())

    def offer(self, recording: Recording, take: Take) -> None:
        # The end mark must always find a place, so the bound is counted here and not in the queue.
        if self._waiting.qsize() < self._limits.waiting:
            self._waiting.put((recording, take))
            return
        recording.forget()
        _release(take)
        self._count(dropped=1)
        if self._counts.dropped.bit_count() == 1:
            log.warning("recording is behind: %d exchanges were dropped so far", self._counts.dropped)

    def _run(self) -> None:
        memory = FreeMemory()
        while (found := self._waiting.get()) is not None:
            recording, take = found
            size = recording.request.size + recording.response.size
            try:
                self._store(recording)
            finally:
                recording.forget()
                _release(take)
            # Not to be held while the next one is awaited.
            del found, recording, take
            memory.after(size)

    def _store(self, recording: Recording) -> None:
        _before_keep()
        for wait in chain(_SECONDS_BETWEEN_TRIES, repeat(_SECONDS_BETWEEN_TRIES[-1])):
            try:
                self._keep(recording)
            except Retryable as error:
                log.warning("an exchange cannot be stored now: %s", error.message)
            except Exception as error:
                # Its text may quote the exchange.
                log.error("an exchange could not be stored: %s", type(error).__name__)
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
            now = self._counts
            self._counts = replace(
                now,
                kept=now.kept + kept,
                incomplete=now.incomplete + incomplete,
                dropped=now.dropped + dropped,
                failed=now.failed + failed,
            )


def _release(take: Take) -> None:
    take.request.release()
    take.response.release()
