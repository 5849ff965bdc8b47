"""The spool writer: a thread that appends the rows of many exchanges to the spool with one fsync.

An `ExchangeRows` is one exchange as rows. `add` queues it and returns; the queue is bounded in number and bytes, and
`add` blocks while it is full. The thread takes everything that is queued and appends it in this order: the raw
exchanges, their native messages, their fallback messages. Rows are durable a few milliseconds after they were added.

After a crash in between, raw rows exist without their messages: `hyp reproject` creates them, and so does the next
request of the conversation. While the spool cannot accept rows (a full disk), the same batch is tried again without
storing any part of it twice. An exchange that fails for a reason of its own is lost and counted, and the others
continue.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Protocol

from hypaware import faults
from hypaware.errors import Retryable
from hypaware.model.datasets import Row
from hypaware.model.exchanges import AI_GATEWAY_EXCHANGES
from hypaware.model.messages import AI_GATEWAY_MESSAGES

MOST_ENTRIES = 64
MOST_BYTES = 4 << 20
_SECONDS_BETWEEN_TRIES = (0.5, 1.0, 2.0, 5.0)

_after_raw = faults.point("capture.store.after-raw", "raw exchanges are durable, none of their messages is")

log = logging.getLogger("hypaware.gateway")


class Appending(Protocol):
    """The part of `Spool` that the writer needs."""

    def append_coerced(self, dataset: str, rows: Sequence[Row], *, deferrable: bool = False) -> int: ...


@dataclass(frozen=True)
class Entry:
    raw: Row
    native_rows: Sequence[Row]
    """Messages with the client's own id."""
    fallback_rows: Sequence[Row]
    """Messages that may wait for their transcript."""
    size: int
    """Approximate size in memory, in bytes."""
    on_stored: Callable[[], None]
    """Called on the writer's thread when all rows are durable."""


class Storing:
    def __init__(self, spool: Appending, on_lost: Callable[[int], None]) -> None:
        """`on_lost` is called with the number of exchanges that could not be stored and never will be."""
        self._spool = spool
        self._on_lost = on_lost
        self._queue: deque[Entry] = deque()
        self._bytes = 0
        self._change = threading.Condition()
        self._no_retries = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    def add(self, entry: Entry) -> None:
        with self._change:
            self._change.wait_for(lambda: self._has_room(entry.size))
            self._queue.append(entry)
            self._bytes += entry.size
            self._change.notify_all()

    def stop_retrying(self) -> None:
        """Give up on rows that cannot be stored at once."""
        self._no_retries.set()

    def close(self) -> None:
        """Return when everything that was added is durable or given up."""
        self.stop_retrying()
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._thread.join()

    def _has_room(self, size: int) -> bool:
        return not self._queue or (len(self._queue) < MOST_ENTRIES and self._bytes + size <= MOST_BYTES)

    def _run(self) -> None:
        while batch := self._take_batch():
            try:
                self._store(batch)
            except Exception as error:
                if len(batch) > 1:
                    for entry in batch:
                        self._store_alone(entry)
                else:
                    self._give_up(batch, error)

    def _take_batch(self) -> list[Entry]:
        """Wait for rows and return everything that is queued; return nothing after the writer was closed."""
        with self._change:
            self._change.wait_for(lambda: self._queue or self._closed)
            batch, self._bytes = list(self._queue), 0
            self._queue.clear()
            self._change.notify_all()
        return batch

    def _store_alone(self, entry: Entry) -> None:
        try:
            self._store([entry])
        except Exception as error:
            self._give_up([entry], error)

    def _give_up(self, entries: Sequence[Entry], error: Exception) -> None:
        # The error's text may quote the exchange, so only its type is logged.
        log.error("could not store %d exchanges: %s", len(entries), type(error).__name__)
        self._on_lost(len(entries))

    def _store(self, batch: Sequence[Entry]) -> None:
        steps = self._steps(batch)
        for wait in chain(_SECONDS_BETWEEN_TRIES, repeat(_SECONDS_BETWEEN_TRIES[-1])):
            # An attempt that began before the stop request is not the last one: there may be room by now.
            is_last = self._no_retries.is_set()
            try:
                while steps:
                    steps[0]()
                    steps.popleft()
                break
            except Retryable as error:
                if is_last:
                    raise
                log.warning("cannot store %d exchanges, trying again: %s", len(batch), error.message)
                self._no_retries.wait(wait)
        for entry in batch:
            entry.on_stored()

    def _steps(self, batch: Sequence[Entry]) -> deque[Callable[[], object]]:
        raws = [entry.raw for entry in batch]
        native = [row for entry in batch for row in entry.native_rows]
        fallback = [row for entry in batch for row in entry.fallback_rows]
        messages, append = AI_GATEWAY_MESSAGES.name, self._spool.append_coerced
        return deque(
            (
                lambda: append(AI_GATEWAY_EXCHANGES.name, raws),
                _after_raw,
                lambda: append(messages, native),
                lambda: append(messages, fallback, deferrable=True),
            )
        )
