"""Receive batches: validate them, make each durable, enter many of them into the ledger at once, acknowledge them.

`batch_storage` says where batches are: files of this home, or objects of a shared lake.

A batch moves from thread to thread without returning to the event loop, so an aborted request leaves no half-done work:
its batch is stored or not, as if the client had stayed. The group commit enters durable batches in one transaction. One
thread is this server's only writer of the ledger.

    store durably ─▶ one transaction: known? overlapping? else enter ─▶ accept ─▶ answer ─▶ clean up

While one group is committed, the next one gathers. The decision about a batch is made inside the transaction, so of two
batches with the same id the second is answered only after the first is committed, even if another server receives it.

@ref delivery#server
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hypaware import faults
from hypaware.errors import HypError
from hypaware.model.datasets import Dataset
from hypaware.server.auth import Caller
from hypaware.server.batch_storage import BatchStorage, segment_name
from hypaware.server.health import ServerMetrics, StorageHealth, log
from hypaware.server.http import BatchHeaders, HttpProblem, unavailable
from hypaware.server.limits import FairQueue, ServerLimits
from hypaware.server.validation import BatchClaims, ValidatedRows, ValidatorPool
from hypaware.state import ledger, received
from hypaware.state.ledger import BatchSender, Coverage, ReceivedBatch
from hypaware.state.store import Connection, StateStore

_before_register = faults.crash_point("server.register.before-commit", "batches are durable but not in the ledger")
_after_register = faults.crash_point(
    "server.register.after-commit", "batches are in the ledger; files are still in incoming/"
)
_after_answer = faults.crash_point(
    "server.answer.after-send", "batches are acknowledged; a power cut may undo their moves"
)

_THREADS = 4
_MAX_GROUP = 256
# The interval at which `last_seen_at` of a busy gateway is written.
_LAST_SEEN_SECONDS = 60.0


@dataclass(frozen=True)
class StoredBatch:
    rows: int


@dataclass(frozen=True)
class AlreadyStored:
    """A batch with the same id was stored before; nothing was stored now."""


@dataclass(frozen=True)
class OverlappingBatch:
    """The batch has a new id but covers rows that are already stored; nothing was stored now."""

    covered: Coverage


BatchOutcome = StoredBatch | AlreadyStored | OverlappingBatch | HttpProblem
AnswerBatch = Callable[[BatchOutcome], None]
"""Reports the outcome of a batch; called once, from any thread."""


@dataclass(frozen=True)
class IncomingBatch:
    """A batch described by its headers, and its sender."""

    caller: Caller
    dataset: Dataset
    headers: BatchHeaders

    @property
    def sender(self) -> BatchSender:
        return BatchSender(self.caller.tenant, self.caller.gateway_id, self.headers.incarnation, self.dataset.name)


@dataclass(frozen=True)
class DurableBatch:
    """A validated batch; its file or object, if it has rows, is durable."""

    incoming: IncomingBatch
    batch: ReceivedBatch
    path: Path | None
    answer: AnswerBatch


class GroupCommit:
    def __init__(self, store: StateStore, storage: BatchStorage, metrics: ServerMetrics, health: StorageHealth) -> None:
        self._store = store
        self._storage = storage
        self._metrics = metrics
        self._health = health
        self._queue: queue.SimpleQueue[DurableBatch | None] = queue.SimpleQueue()
        self._last_seen: dict[tuple[str, str], float] = {}
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)
        self._thread.start()

    def put(self, batch: DurableBatch) -> None:
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
            self._metrics.commits.observe(time.monotonic() - started_at)
            # If this fails, it is repeated before the next group, which cannot start without it.
            with suppress(OSError):
                self._storage.clean_up()

    def _outcomes(self, group: Sequence[DurableBatch]) -> Sequence[BatchOutcome]:
        paths = [each.path for each in group if each.path]
        try:
            self._storage.begin(paths)
        except OSError as error:
            self._storage.discard(paths)
            return self._failed(group, error)
        try:
            return self._commit(group)
        except Exception as error:
            self._storage.roll_back(paths)
            return self._failed(group, error)

    def _failed(self, group: Sequence[DurableBatch], error: Exception) -> list[BatchOutcome]:
        self._health.failed(error)
        if isinstance(error, OSError | HypError):
            return [unavailable("storage_unavailable")] * len(group)
        log.error("cannot register a group of batches", exc_info=error)
        return [HttpProblem(500, "internal")] * len(group)

    def _gather(self) -> list[DurableBatch] | None:
        """Return all queued batches, waiting for at least one; None when the server ends."""
        first = self._queue.get()
        if first is None:
            return None
        group = [first]
        # Only this thread takes batches out of the queue.
        while len(group) < _MAX_GROUP and not self._queue.empty():
            following = self._queue.get()
            if following is None:
                self._queue.put(None)
                break
            group.append(following)
        return group

    def _commit(self, group: Sequence[DurableBatch]) -> list[BatchOutcome]:
        _before_register()
        with self._store.transaction() as connection:
            outcomes = [self._enter(connection, each) for each in group]
            now = time.monotonic()
            for each in group:
                tenant, gateway_id = key = (each.batch.sender.tenant, each.batch.sender.gateway_id)
                if now - self._last_seen.get(key, -_LAST_SEEN_SECONDS) >= _LAST_SEEN_SECONDS:
                    self._last_seen[key] = now
                    ledger.touch_gateways(connection, tenant, {gateway_id: each.incoming.headers.host})
        _after_register()
        self._health.recovered()
        stored = {each.path for each, outcome in zip(group, outcomes, strict=True) if isinstance(outcome, StoredBatch)}
        paths = [each.path for each in group if each.path]
        self._storage.accept([path for path in paths if path in stored])
        self._storage.discard([path for path in paths if path not in stored])
        return outcomes

    def _enter(self, connection: Connection, each: DurableBatch) -> BatchOutcome:
        batch, headers = each.batch, each.incoming.headers
        if ledger.is_known_batch(connection, batch.sender, batch.id):
            return AlreadyStored()
        delivery = batch.delivery
        if delivery and ledger.overlaps_delivered(connection, batch.sender, delivery):
            delivered = ledger.delivered_ranges(connection, batch.sender, delivery.source)
            return OverlappingBatch(ledger.compute_coverage(delivered, delivery.range))
        if delivery and headers.acked_to is not None:
            ledger.forget_acknowledged(connection, batch.sender, delivery.source, headers.acked_to)
        if batch.location and batch.segment and received.is_finished(connection, batch.sender.dataset, batch.segment):
            # A flush has dropped the object, because it was not entered for so long.
            return unavailable("storage_unavailable")
        ledger.record_batch(connection, batch)
        return StoredBatch(batch.rows)


class BatchReceiver:
    def __init__(
        self,
        store: StateStore,
        storage: BatchStorage,
        commit: GroupCommit,
        limits: ServerLimits,
        health: StorageHealth,
    ) -> None:
        self._store = store
        self._storage = storage
        self._commit = commit
        self._health = health
        self._validators = ValidatorPool(limits)
        # Validation is nearly the whole work of a batch. One gateway never occupies more than half of the workers.
        self._validation = FairQueue(_THREADS, max(1, self._validators.processes // 2))
        self._disk = ThreadPoolExecutor(_THREADS, thread_name_prefix="disk")

    async def receive(self, batch: IncomingBatch, body: bytes) -> BatchOutcome:
        """Store the batch and return its outcome, once it is durable and in the ledger or finally rejected."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[BatchOutcome] = loop.create_future()

        def resolve(outcome: BatchOutcome) -> None:
            if not answered.done():
                answered.set_result(outcome)

        def answer(outcome: BatchOutcome) -> None:
            # The loop is closed if the drain timed out. Ignore that, so that the batches after this one continue.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(resolve, outcome)

        self._validation.submit(batch.caller.gateway_id, lambda: self._validate(batch, body, answer))
        return await answered

    def close(self) -> None:
        """Finish every batch that was started."""
        self._validation.close()
        self._validators.close()
        self._disk.shutdown()
        self._commit.close()

    def _validate(self, batch: IncomingBatch, body: bytes, answer: AnswerBatch) -> None:
        with self._answer_failure(answer):
            headers, caller = batch.headers, batch.caller
            with self._store.reading() as connection:
                is_known = ledger.is_known_batch(connection, batch.sender, headers.id)
            if is_known:
                answer(AlreadyStored())
                return
            claims = BatchClaims(
                batch.dataset, caller.gateway_id, headers.encoding, headers.content_sha, caller.is_stamped
            )
            rows = self._validators.validate(claims, body, self._storage.folder(batch.dataset.name))
            self._disk.submit(self._make_durable, batch, rows, answer)

    def _make_durable(self, batch: IncomingBatch, rows: ValidatedRows, answer: AnswerBatch) -> None:
        with self._answer_failure(answer):
            stored = self._storage.store(batch.dataset.name, rows.lines, rows.rows) if rows.rows else None
            headers = batch.headers
            entry = ReceivedBatch(
                batch.sender,
                headers.id,
                headers.delivery,
                rows.rows,
                rows.content_sha,
                segment=segment_name(stored.path) if stored else None,
                bytes=stored.bytes if stored else 0,
                location=stored.location if stored else None,
            )
            self._commit.put(DurableBatch(batch, entry, stored.path if stored else None, answer))

    @contextmanager
    def _answer_failure(self, answer: AnswerBatch) -> Iterator[None]:
        try:
            yield
        except HttpProblem as problem:
            answer(problem)
        except (OSError, HypError) as error:
            self._health.failed(error)
            answer(unavailable("storage_unavailable"))
        except Exception:
            log.exception("cannot store a batch")
            answer(HttpProblem(500, "internal"))
