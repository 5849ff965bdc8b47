"""Receive batches: validate them, write each to a file, enter many of them into the ledger at once, acknowledge them.

    incoming/<name>.<rows>.jsonl ──ledger──▶ sealed/<name>.<rows>.jsonl        (in spool/<dataset>/)

`incoming/` holds durable batches that are not yet in the ledger, or were entered a moment ago. A file there is a spool
segment, but no reader of the spool reads that folder: a batch that is not in the ledger is never flushed and never
counted. A server recovers the folder before it listens: a batch that is in the ledger is moved to `sealed/`, because it
may have been acknowledged; any other file is removed, because it was not acknowledged and its sender still has it.

A batch moves from thread to thread without returning to the event loop, so an aborted request leaves no half-done work:
its batch is stored or not, as if the client had stayed. The group commit enters durable batches in one transaction. One
thread is the ledger's only writer.

    sync incoming/ ─▶ one transaction: known? overlapping? else enter ─▶ move to sealed/ ─▶ answer ─▶ sync the folders

While one group is committed, the next one gathers. The decision about a batch is made inside the transaction, so of two
batches with the same id the second is answered only after the first is committed.

No transaction begins before every move of the previous group is durable. Transactions also remove old ids from the
ledger, and a file in incoming/ whose id was removed would look like a batch that was never acknowledged.

@ref delivery#server
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hypaware import faults
from hypaware.errors import HypError
from hypaware.home import Home, durable_files
from hypaware.model.datasets import Dataset
from hypaware.server.auth import Caller
from hypaware.server.health import ServerMetrics, StorageHealth, log, require_free_space
from hypaware.server.http import BatchHeaders, HttpProblem, unavailable
from hypaware.server.limits import FairQueue, ServerLimits
from hypaware.server.validation import BatchClaims, ValidatedRows, ValidatorPool, create_batch_file
from hypaware.spool import segments
from hypaware.spool.segments import SUFFIX, SpoolFolder
from hypaware.state import flushes, ledger
from hypaware.state.ledger import BatchSender, Coverage, ReceivedBatch
from hypaware.state.store import Connection, StateStore

_before_sync = faults.crash_point(
    "server.store.before-fsync", "a batch is written but not durable and not in the ledger"
)
_after_sync = faults.crash_point("server.store.after-fsync", "a batch is durable but not in the ledger")
_before_keep = faults.crash_point("server.recover.before-rename", "a batch of the ledger is still in incoming/")
_after_keep = faults.crash_point("server.recover.after-rename", "a batch that a killed server left is in sealed/")
_before_drop = faults.crash_point("server.recover.before-unlink", "a batch that was not acknowledged is in incoming/")
_before_register = faults.crash_point("server.register.before-commit", "batches are durable but not in the ledger")
_after_register = faults.crash_point("server.register.after-commit", "batches are in the ledger and still in incoming/")
_after_move = faults.crash_point(
    "server.move.after-rename", "registered batches can be flushed but are not acknowledged"
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
    """A validated batch; its file, if it has rows, is written and synced."""

    incoming: IncomingBatch
    batch: ReceivedBatch
    path: Path | None
    answer: AnswerBatch


def incoming_folder(spool: SpoolFolder) -> Path:
    return spool.path / "incoming"


def create_incoming_folder(home: Home, dataset: str) -> SpoolFolder:
    spool = segments.spool_folder(home, dataset)
    spool.create()
    durable_files.make_dir(incoming_folder(spool))
    # An earlier server may have been killed before the folder's name was durable.
    durable_files.fsync_dir(spool.path)
    return spool


def write_batch_file(spool: SpoolFolder, lines: bytes | Path, rows: int) -> Path:
    """Write a file, unless a validation worker has written it, and sync it.

    Its name is durable only after the folder is synced, once for many files.
    """
    path = lines if isinstance(lines, Path) else create_batch_file(incoming_folder(spool), lines, rows)
    try:
        _before_sync()
        durable_files.fsync_file(path)
    except BaseException:
        discard_files([path])
        raise
    _after_sync()
    return path


def segment_name(path: Path) -> str:
    return path.name.removesuffix(SUFFIX)


def sealed_path(path: Path) -> Path:
    return path.parent.parent / "sealed" / path.name


def discard_files(paths: Iterable[Path]) -> None:
    """Remove files that were not acknowledged. A file that cannot be removed is removed at the next start."""
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def recover_incoming(home: Home, store: StateStore, *, ledger_lost: bool = False) -> tuple[int, int]:
    """Move or remove the batches that a killed server left, and count both. Call it before the server listens.

    Without the ledger it is unknown which batches were acknowledged. Every batch is kept then, and rows that are sent
    again are recognised by their dedupe keys.
    """
    moved = removed = 0
    for dataset in segments.list_spooled_datasets(home):
        spool = segments.spool_folder(home, dataset)
        paths = sorted(incoming_folder(spool).glob(f"*{SUFFIX}")) if incoming_folder(spool).is_dir() else []
        if not paths:
            continue
        names = [segment_name(path) for path in paths]
        with store.reading() as connection:
            known = set(names) if ledger_lost else ledger.ledger_segments(connection, dataset, names)
            # If a power cut undid a move, the segment may have been committed before.
            needed = known - flushes.committed_segments(connection, dataset, names)
        for path in paths:
            if segment_name(path) in needed:
                _before_keep()
                durable_files.rename_durably(path, sealed_path(path))
                _after_keep()
                moved += 1
            else:
                _before_drop()
                durable_files.remove_durably(path)
                removed += 1
    return moved, removed


class GroupCommit:
    def __init__(self, store: StateStore, metrics: ServerMetrics, health: StorageHealth, min_free: int) -> None:
        self._store = store
        self._metrics = metrics
        self._health = health
        self._min_free = min_free
        self._queue: queue.SimpleQueue[DurableBatch | None] = queue.SimpleQueue()
        self._unmoved: list[Path] = []
        self._unsynced: set[Path] = set()
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
                self._finish_moves()

    def _outcomes(self, group: Sequence[DurableBatch]) -> Sequence[BatchOutcome]:
        paths = [each.path for each in group if each.path]
        try:
            self._finish_moves()
            for folder in {path.parent for path in paths}:
                require_free_space(folder, self._min_free)
                durable_files.fsync_dir(folder)
        except OSError as error:
            discard_files(paths)
            return self._failed(group, error)
        try:
            return self._commit(group)
        except Exception as error:
            self._roll_back(paths)
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
        for each, outcome in zip(group, outcomes, strict=True):
            if each.path and isinstance(outcome, StoredBatch):
                self._unmoved.append(each.path)
            elif each.path:
                discard_files([each.path])
        # The batches are stored from here on; a move that fails is repeated before the next group.
        with suppress(OSError):
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
                    dataset, name = path.parent.parent.name, segment_name(path)
                    if ledger.ledger_segments(connection, dataset, [name]):
                        self._unmoved.append(path)
                    else:
                        discard_files([path])
        except HypError as error:
            log.warning("cannot read the ledger; the next start recovers %d batches: %s", len(paths), error)

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
        ledger.record_batch(connection, batch)
        return StoredBatch(batch.rows)

    def _finish_moves(self) -> None:
        self._move()
        for folder in list(self._unsynced):
            durable_files.fsync_dir(folder)
            self._unsynced.discard(folder)

    def _move(self) -> None:
        while self._unmoved:
            path = self._unmoved[-1]
            place = sealed_path(path)
            # A missing file was moved before.
            with suppress(FileNotFoundError):
                path.rename(place)
            self._unsynced |= {path.parent, place.parent}
            self._unmoved.pop()


class BatchReceiver:
    def __init__(
        self,
        store: StateStore,
        folders: Mapping[str, SpoolFolder],
        commit: GroupCommit,
        limits: ServerLimits,
        health: StorageHealth,
    ) -> None:
        self._store = store
        self._folders = folders
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
            incoming = incoming_folder(self._folders[batch.dataset.name])
            rows = self._validators.validate(claims, body, incoming)
            self._disk.submit(self._make_durable, batch, rows, answer)

    def _make_durable(self, batch: IncomingBatch, rows: ValidatedRows, answer: AnswerBatch) -> None:
        with self._answer_failure(answer):
            path = write_batch_file(self._folders[batch.dataset.name], rows.lines, rows.rows) if rows.rows else None
            segment = segment_name(path) if path else None
            headers = batch.headers
            entry = ReceivedBatch(batch.sender, headers.id, headers.delivery, rows.rows, rows.content_sha, segment)
            self._commit.put(DurableBatch(batch, entry, path, answer))

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
