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
from hypaware.server import incoming
from hypaware.server.arrivals import Answer, Arrival, Durable, Known, Outcome, Stored
from hypaware.server.group_commit import GroupCommit
from hypaware.server.judges import Judges
from hypaware.server.judging import Claims
from hypaware.server.limits import Limits
from hypaware.server.problem import Problem, unavailable
from hypaware.server.trouble import Trouble, log
from hypaware.spool.segments import Folder
from hypaware.state import ledger
from hypaware.state.ledger import Batch
from hypaware.state.store import Store

_THREADS = 4


class Receiver:
    def __init__(
        self, store: Store, folders: Mapping[str, Folder], commit: GroupCommit, limits: Limits, health: Trouble
    ) -> None:
        self._store = store
        self._folders = folders
        self._commit = commit
        self._health = health
        self._validators = Judges(limits)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="batch")

    async def receive(self, batch: Arrival, body: bytes) -> Outcome:
        """Store the batch and return its outcome, once it is durable and in the ledger or finally rejected."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Outcome] = loop.create_future()

        def resolve(outcome: Outcome) -> None:
            if not answered.done():
                answered.set_result(outcome)

        def answer(outcome: Outcome) -> None:
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

    def _process(self, batch: Arrival, body: bytes, answer: Answer) -> None:
        try:
            outcome = self._make_durable(batch, body, answer)
        except Problem as problem:
            outcome = problem
        except (OSError, HypError) as error:
            self._health.failed(error)
            outcome = unavailable("storage_unavailable")
        except Exception:
            log.exception("cannot validate a batch")
            outcome = Problem(500, "internal")
        if isinstance(outcome, Durable):
            self._commit.put(outcome)
        else:
            answer(outcome)

    def _make_durable(self, batch: Arrival, body: bytes, answer: Answer) -> Durable | Outcome:
        if self._is_known(batch):
            return Known()
        headers, caller = batch.headers, batch.caller
        claims = Claims(batch.dataset, caller.gateway_id, headers.encoding, headers.content_sha)
        rows = self._validators.validate(claims, body)
        if rows.gateway_id is None:
            return Stored(0)
        path = incoming.write(self._folders[batch.dataset.name], rows.lines, rows.rows) if rows.rows else None
        segment = incoming.segment_of(path) if path else None
        sender = batch.sender(rows.gateway_id)
        entry = Batch(sender, headers.id, headers.delivery, rows.rows, rows.content_sha, segment)
        return Durable(batch, entry, path, answer)

    def _is_known(self, batch: Arrival) -> bool:
        """Return whether the ledger has the batch id, before reading the body.

        False for a client without a gateway id: its rows must be read first.
        """
        if batch.caller.gateway_id is None:
            return False
        with self._store.reading() as connection:
            return ledger.is_known(connection, batch.sender(batch.caller.gateway_id), batch.headers.id)
