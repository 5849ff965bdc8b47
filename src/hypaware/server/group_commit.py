"""Group commit: enter many durable batches into the ledger in one transaction. One thread is the ledger's only writer.

    sync incoming/ ─▶ one transaction: known? overlapping? else enter ─▶ move to sealed/ ─▶ answer ─▶ sync the folders

While one group is committed, the next one gathers. The decision about a batch is made inside the transaction, so of two
batches with the same id the second is answered only after the first is committed.

No transaction begins before every move of the previous group is durable. Transactions also remove old ids from the
ledger, and a file in incoming/ whose id was removed would look like a batch that was never acknowledged.

@ref delivery#server
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Connection

from hypaware import durable, faults
from hypaware.errors import HypError
from hypaware.server import incoming
from hypaware.server.arrivals import Durable, Known, Outcome, Overlapping, Stored
from hypaware.server.meters import Meters
from hypaware.server.problem import Problem, unavailable
from hypaware.server.trouble import Trouble, log, refuse_full_disk
from hypaware.state import gateways, ledger
from hypaware.state.gateways import Claim
from hypaware.state.store import Store

_before_register = faults.point("server.register.before-commit", "batches are durable but not in the ledger")
_after_register = faults.point("server.register.after-commit", "batches are in the ledger and still in incoming/")
_after_move = faults.point("server.move.after-rename", "registered batches can be flushed but are not acknowledged")
_after_answer = faults.point("server.answer.after-send", "batches are acknowledged; a power cut may undo their moves")

_MAX_GROUP = 256
# The interval at which `last_seen_at` of a busy gateway is written.
_LAST_SEEN_SECONDS = 60.0


class GroupCommit:
    def __init__(self, store: Store, metrics: Meters, health: Trouble, min_free: int) -> None:
        self._store = store
        self._metrics = metrics
        self._health = health
        self._min_free = min_free
        self._queue: queue.SimpleQueue[Durable | None] = queue.SimpleQueue()
        self._unmoved: list[Path] = []
        self._unsynced: set[Path] = set()
        self._last_seen: dict[tuple[str, str], float] = {}
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)
        self._thread.start()

    def put(self, batch: Durable) -> None:
        self._queue.put(batch)

    def close(self) -> None:
        """Commit the batches in the queue and end the thread."""
        self._queue.put(None)
        self._thread.join()

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    def _run(self) -> None:
        while (group := self._gather()) is not None:
            started_at = time.monotonic()
            outcomes = self._outcomes(group)
            for each, outcome in zip(group, outcomes, strict=True):
                each.answer(outcome)
            _after_answer()
            self._metrics.committed(time.monotonic() - started_at)
            # If this fails, it is repeated before the next group, which cannot start without it.
            with contextlib.suppress(OSError):
                self._finish_moves()

    def _outcomes(self, group: Sequence[Durable]) -> Sequence[Outcome]:
        paths = [each.path for each in group if each.path]
        try:
            self._finish_moves()
            self._sync_incoming(paths)
        except OSError as error:
            incoming.discard(paths)
            return self._failed(group, error)
        try:
            return self._commit(group)
        except Exception as error:
            self._roll_back(paths)
            return self._failed(group, error)

    def _failed(self, group: Sequence[Durable], error: Exception) -> list[Outcome]:
        self._health.failed(error)
        if isinstance(error, OSError | HypError):
            return [unavailable("storage_unavailable")] * len(group)
        log.error("cannot register a group of batches", exc_info=error)
        return [Problem(500, "internal")] * len(group)

    def _gather(self) -> list[Durable] | None:
        """Return all queued batches, waiting for at least one; None when the server ends."""
        first = self._queue.get()
        if first is None:
            return None
        group = [first]
        while len(group) < _MAX_GROUP:
            try:
                following = self._queue.get_nowait()
            except queue.Empty:
                break
            if following is None:
                self._queue.put(None)
                break
            group.append(following)
        return group

    def _sync_incoming(self, paths: Sequence[Path]) -> None:
        for folder in {path.parent for path in paths}:
            refuse_full_disk(folder, self._min_free)
            durable.fsync_dir(folder)

    def _commit(self, group: Sequence[Durable]) -> list[Outcome]:
        _before_register()
        with self._store.transaction() as connection:
            outcomes = [self._enter(connection, each) for each in group]
            self._update_last_seen(connection, group)
        _after_register()
        self._health.recovered()
        for each, outcome in zip(group, outcomes, strict=True):
            if each.path and isinstance(outcome, Stored):
                self._unmoved.append(each.path)
            elif each.path:
                incoming.discard([each.path])
        # The batches are stored from here on; a move that fails is repeated before the next group.
        with contextlib.suppress(OSError):
            self._move()
        _after_move()
        return outcomes

    def _roll_back(self, paths: Sequence[Path]) -> None:
        """Remove the files of a failed transaction, except those that the ledger knows.

        A transaction may be committed although it reported a failure. If the ledger cannot be read either, the next
        start of the server decides.
        """
        try:
            with self._store.reading() as connection:
                for path in paths:
                    if incoming.is_registered(connection, path):
                        self._unmoved.append(path)
                    else:
                        incoming.discard([path])
        except HypError as error:
            log.warning("cannot read the ledger; the next start recovers %d batches: %s", len(paths), error)

    def _enter(self, connection: Connection, each: Durable) -> Outcome:
        batch, headers, caller = each.batch, each.incoming.headers, each.incoming.caller
        if ledger.is_known(connection, batch.sender, batch.id):
            return Known()
        delivery = batch.delivery
        if delivery and ledger.overlaps(connection, batch.sender, delivery):
            delivered = ledger.ranges(connection, batch.sender, delivery.source)
            return Overlapping(ledger.covered(delivered, delivery.range))
        if caller.gateway_id is None:
            sender = batch.sender
            claim = Claim(sender.tenant, sender.gateway_id, caller.owner, None, caller.label, headers.host)
            if not gateways.bind(connection, claim):
                return Problem(
                    422, "invalid_row", line=1, reason="column gateway_id: the id belongs to another gateway"
                )
        if delivery and headers.acked_to is not None:
            ledger.forget(connection, batch.sender, delivery.source, headers.acked_to)
        ledger.enter(connection, batch)
        return Stored(batch.rows)

    def _update_last_seen(self, connection: Connection, group: Sequence[Durable]) -> None:
        now = time.monotonic()
        for each in group:
            key = (each.batch.sender.tenant, each.batch.sender.gateway_id)
            if now - self._last_seen.get(key, -_LAST_SEEN_SECONDS) >= _LAST_SEEN_SECONDS:
                self._last_seen[key] = now
                gateways.seen(connection, key[0], {key[1]: each.incoming.headers.host})

    def _finish_moves(self) -> None:
        self._move()
        for folder in list(self._unsynced):
            durable.fsync_dir(folder)
            self._unsynced.discard(folder)

    def _move(self) -> None:
        while self._unmoved:
            path = self._unmoved[-1]
            place = incoming.sealed_place(path)
            # A missing file was moved before.
            with contextlib.suppress(FileNotFoundError):
                path.rename(place)
            self._unsynced |= {path.parent, place.parent}
            self._unmoved.pop()
