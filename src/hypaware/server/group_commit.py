"""Group commit: batches that are durable together enter the ledger together. One thread, the ledger's only writer.

    sync incoming/ ─▶ one transaction: known? overlapping? else enter ─▶ move to sealed/ ─▶ answer ─▶ sync the folders

While one group is on its way the next one gathers. A batch is decided inside the transaction, so of two with one id
the second is answered only when the first is committed.

No transaction begins before every move of the group before it is durable: ids are forgotten in transactions, and a
file in incoming/ whose id was forgotten would be taken for one that nobody was told of.

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

_before_register = faults.point("server.register.before-commit", "batches are durable, the ledger does not know them")
_after_register = faults.point("server.register.after-commit", "the ledger knows batches that are still in incoming/")
_after_move = faults.point("server.move.after-rename", "registered batches may be flushed, nobody was told")
_after_answer = faults.point("server.answer.after-send", "senders were told, the moves may not survive a power cut")

_MAX_GROUP = 256
# How often `last_seen_at` of a gateway that sends all the time is written.
_SEEN_EVERY = 60.0


class GroupCommit:
    def __init__(self, store: Store, meters: Meters, trouble: Trouble, keep_free: int) -> None:
        self._store = store
        self._meters = meters
        self._trouble = trouble
        self._keep_free = keep_free
        self._queue: queue.SimpleQueue[Durable | None] = queue.SimpleQueue()
        self._unmoved: list[Path] = []
        self._unsynced: set[Path] = set()
        self._seen: dict[tuple[str, str], float] = {}
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)
        self._thread.start()

    def put(self, batch: Durable) -> None:
        self._queue.put(batch)

    def close(self) -> None:
        """Finishes what was put before."""
        self._queue.put(None)
        self._thread.join()

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    def _run(self) -> None:
        while (group := self._gather()) is not None:
            began = time.monotonic()
            outcomes = self._outcomes(group)
            for each, outcome in zip(group, outcomes, strict=True):
                each.answer(outcome)
            _after_answer()
            self._meters.committed(time.monotonic() - began)
            # What cannot be synced now is tried before the next group, which waits for it.
            with contextlib.suppress(OSError):
                self._finish_moves()

    def _outcomes(self, group: Sequence[Durable]) -> Sequence[Outcome]:
        paths = [each.path for each in group if each.path]
        try:
            self._finish_moves()
            self._secure(paths)
        except OSError as error:
            incoming.discard(paths)
            return self._failed(group, error)
        try:
            return self._commit(group)
        except Exception as error:
            self._take_back(paths)
            return self._failed(group, error)

    def _failed(self, group: Sequence[Durable], error: Exception) -> list[Outcome]:
        self._trouble.met(error)
        if isinstance(error, OSError | HypError):
            return [unavailable("storage_unavailable")] * len(group)
        log.error("a group of batches could not be registered", exc_info=error)
        return [Problem(500, "internal")] * len(group)

    def _gather(self) -> list[Durable] | None:
        """At least one batch, and all that wait beside it; None when the server ends."""
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

    def _secure(self, paths: Sequence[Path]) -> None:
        for folder in {path.parent for path in paths}:
            refuse_full_disk(folder, self._keep_free)
            durable.fsync_dir(folder)

    def _commit(self, group: Sequence[Durable]) -> list[Outcome]:
        _before_register()
        with self._store.transaction() as connection:
            outcomes = [self._enter(connection, each) for each in group]
            self._note_gateways(connection, group)
        _after_register()
        self._trouble.over()
        for each, outcome in zip(group, outcomes, strict=True):
            if each.path and isinstance(outcome, Stored):
                self._unmoved.append(each.path)
            elif each.path:
                incoming.discard([each.path])
        # They are stored, whatever happens now: a move that fails is done before the next group.
        with contextlib.suppress(OSError):
            self._move()
        _after_move()
        return outcomes

    def _take_back(self, paths: Sequence[Path]) -> None:
        """A transaction that failed may have happened all the same. What the ledger knows after it stays; where even
        that cannot be learnt, the next start finds out."""
        try:
            with self._store.reading() as connection:
                for path in paths:
                    if incoming.is_registered(connection, path):
                        self._unmoved.append(path)
                    else:
                        incoming.discard([path])
        except HypError as error:
            log.warning("what became of %d batches is found out at the next start: %s", len(paths), error)

    def _enter(self, connection: Connection, each: Durable) -> Outcome:
        batch, headers, caller = each.batch, each.arrival.headers, each.arrival.caller
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
                return Problem(422, "invalid_row", line=1, reason="column gateway_id: it belongs to another gateway")
        if delivery and headers.acked_to is not None:
            ledger.forget(connection, batch.sender, delivery.source, headers.acked_to)
        ledger.enter(connection, batch)
        return Stored(batch.rows)

    def _note_gateways(self, connection: Connection, group: Sequence[Durable]) -> None:
        now = time.monotonic()
        for each in group:
            key = (each.batch.sender.tenant, each.batch.sender.gateway_id)
            if now - self._seen.get(key, -_SEEN_EVERY) >= _SEEN_EVERY:
                self._seen[key] = now
                gateways.seen(connection, key[0], {key[1]: each.arrival.headers.host})

    def _finish_moves(self) -> None:
        self._move()
        for folder in list(self._unsynced):
            durable.fsync_dir(folder)
            self._unsynced.discard(folder)

    def _move(self) -> None:
        while self._unmoved:
            path = self._unmoved[-1]
            place = incoming.sealed_place(path)
            # One that is gone was moved before.
            with contextlib.suppress(FileNotFoundError):
                path.rename(place)
            self._unsynced |= {path.parent, place.parent}
            self._unmoved.pop()
