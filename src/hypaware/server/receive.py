"""Receive a batch: decompress, validate and write it on a few threads, then hand it to the group commit.

Validation holds Python's interpreter lock, so large batches are validated in worker processes; file syncs run in
parallel with each other and with validation. A batch moves from thread to thread without returning to the event loop,
so an aborted request leaves no half-done work: its batch is stored or not, as if the client had stayed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from hypaware.errors import HypError
from hypaware.server import batches
from hypaware.server.batches import AlreadyStored, AnswerBatch, BatchOutcome, DurableBatch, IncomingBatch, StoredBatch
from hypaware.server.group_commit import GroupCommit
from hypaware.server.health import StorageHealth, log
from hypaware.server.http import HttpProblem, unavailable
from hypaware.server.limits import ServerLimits
from hypaware.server.validation import BatchClaims, ValidatorPool
from hypaware.spool.segments import SpoolFolder
from hypaware.state import ledger
from hypaware.state.ledger import ReceivedBatch
from hypaware.state.store import StateStore

_THREADS = 4


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
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="batch")

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

        self._pool.submit(self._process, batch, body, answer)
        return await answered

    def close(self) -> None:
        """Finish every batch that was started."""
        self._pool.shutdown()
        self._validators.close()
        self._commit.close()

    def _process(self, batch: IncomingBatch, body: bytes, answer: AnswerBatch) -> None:
        try:
            outcome = self._make_durable(batch, body, answer)
        except HttpProblem as problem:
            outcome = problem
        except (OSError, HypError) as error:
            self._health.failed(error)
            outcome = unavailable("storage_unavailable")
        except Exception:
            log.exception("cannot validate a batch")
            outcome = HttpProblem(500, "internal")
        if isinstance(outcome, DurableBatch):
            self._commit.put(outcome)
        else:
            answer(outcome)

    def _make_durable(self, batch: IncomingBatch, body: bytes, answer: AnswerBatch) -> DurableBatch | BatchOutcome:
        if self._is_known(batch):
            return AlreadyStored()
        headers, caller = batch.headers, batch.caller
        claims = BatchClaims(batch.dataset, caller.gateway_id, headers.encoding, headers.content_sha)
        rows = self._validators.validate(claims, body)
        if rows.gateway_id is None:
            return StoredBatch(0)
        path = batches.write_batch_file(self._folders[batch.dataset.name], rows.lines, rows.rows) if rows.rows else None
        segment = batches.segment_name(path) if path else None
        sender = batch.sender(rows.gateway_id)
        entry = ReceivedBatch(sender, headers.id, headers.delivery, rows.rows, rows.content_sha, segment)
        return DurableBatch(batch, entry, path, answer)

    def _is_known(self, batch: IncomingBatch) -> bool:
        """Return whether the ledger has the batch id, before reading the body.

        False for a client without a gateway id: its rows must be read first.
        """
        if batch.caller.gateway_id is None:
            return False
        with self._store.reading() as connection:
            return ledger.is_known_batch(connection, batch.sender(batch.caller.gateway_id), batch.headers.id)
