"""Rows of exchanges on their last steps into the spool: one thread, and many exchanges to an fsync.

An `Entry` is one exchange as rows. `add` takes it over and returns; what waits is bounded in number and bytes, and when
there is no room `add` waits. The thread takes all that waits at once and appends it in this order: the raw exchanges,
their messages with ids of their own, their messages without. It is durable a few milliseconds after it was added.

Killed in between, raw rows are there and their messages are not: `hyp reproject` makes them, and so does the next
request of the conversation. While the spool cannot take rows (a full disk) the same batch is tried again, and what of
it is stored is not stored once more. An entry that fails for a reason of its own is lost, counted, and holds nobody.
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
    """What it needs of a `Spool`."""

    def append_coerced(self, dataset: str, rows: Sequence[Row], *, waits: bool = False) -> int: ...


@dataclass(frozen=True)
class Entry:
    raw: Row
    own: Sequence[Row]
    """Messages with the client's own id."""
    without_id: Sequence[Row]
    """Messages that may wait for their transcript."""
    size: int
    """About how many bytes it holds in memory."""
    stored: Callable[[], None]
    """Called when all of it is durable, on the storing thread."""


class Storing:
    def __init__(self, spool: Appending, lost: Callable[[int], None]) -> None:
        """`lost` hears how many exchanges could not be stored, and never will be."""
        self._spool = spool
        self._lost = lost
        self._waiting: deque[Entry] = deque()
        self._bytes = 0
        self._change = threading.Condition()
        self._hurried = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    def add(self, entry: Entry) -> None:
        with self._change:
            self._change.wait_for(lambda: self._has_room(entry.size))
            self._waiting.append(entry)
            self._bytes += entry.size
            self._change.notify_all()

    def hurry(self) -> None:
        """What cannot be stored now is given up, and not tried again."""
        self._hurried.set()

    def close(self) -> None:
        """Returns when all that was added is durable, or given up."""
        self.hurry()
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._thread.join()

    def _has_room(self, size: int) -> bool:
        return not self._waiting or (len(self._waiting) < MOST_ENTRIES and self._bytes + size <= MOST_BYTES)

    def _run(self) -> None:
        while batch := self._taken():
            try:
                self._store(batch)
            except Exception as error:
                if len(batch) > 1:
                    for entry in batch:
                        self._store_alone(entry)
                else:
                    self._give_up(batch, error)

    def _taken(self) -> list[Entry]:
        """All that waits; empty when nothing will come any more."""
        with self._change:
            self._change.wait_for(lambda: self._waiting or self._closed)
            batch, self._bytes = list(self._waiting), 0
            self._waiting.clear()
            self._change.notify_all()
        return batch

    def _store_alone(self, entry: Entry) -> None:
        try:
            self._store([entry])
        except Exception as error:
            self._give_up([entry], error)

    def _give_up(self, entries: Sequence[Entry], error: Exception) -> None:
        # Its text may quote the exchange.
        log.error("%d exchanges could not be stored: %s", len(entries), type(error).__name__)
        self._lost(len(entries))

    def _store(self, batch: Sequence[Entry]) -> None:
        steps = self._steps(batch)
        for wait in chain(_SECONDS_BETWEEN_TRIES, repeat(_SECONDS_BETWEEN_TRIES[-1])):
            # A try that began before does not count as the last one: there may be room by now.
            is_last = self._hurried.is_set()
            try:
                while steps:
                    steps[0]()
                    steps.popleft()
                break
            except Retryable as error:
                if is_last:
                    raise
                log.warning("%d exchanges cannot be stored now: %s", len(batch), error.message)
                self._hurried.wait(wait)
        for entry in batch:
            entry.stored()

    def _steps(self, batch: Sequence[Entry]) -> deque[Callable[[], object]]:
        raws = [entry.raw for entry in batch]
        own = [row for entry in batch for row in entry.own]
        without_id = [row for entry in batch for row in entry.without_id]
        messages, append = AI_GATEWAY_MESSAGES.name, self._spool.append_coerced
        return deque(
            (
                lambda: append(AI_GATEWAY_EXCHANGES.name, raws),
                _after_raw,
                lambda: append(messages, own),
                lambda: append(messages, without_id, waits=True),
            )
        )
