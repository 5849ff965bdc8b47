"""From a body to its answer: unpack, judge and write on a few threads, then the group commit.

Judging holds Python's lock, so large batches are judged in processes (`judges`); the syncs of the files run side by
side, and beside the judging. A batch goes from thread to thread without coming back to the event loop, so a request
that is given up in between leaves nothing behind: its batch is stored, or not, as if it were still there.
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
        self, store: Store, folders: Mapping[str, Folder], commit: GroupCommit, limits: Limits, trouble: Trouble
    ) -> None:
        self._store = store
        self._folders = folders
        self._commit = commit
        self._trouble = trouble
        self._judges = Judges(limits)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="batch")

    async def receive(self, arrival: Arrival, body: bytes) -> Outcome:
        """Answers when the batch is durable and registered, or will never be."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Outcome] = loop.create_future()

        def settle(outcome: Outcome) -> None:
            if not answered.done():
                answered.set_result(outcome)

        def answer(outcome: Outcome) -> None:
            # A drain that ran out of time closed the loop: nobody listens, but the batches behind this one go on.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, outcome)

        self._pool.submit(self._take, arrival, body, answer)
        return await answered

    def close(self) -> None:
        """Finishes what was begun."""
        self._pool.shutdown()
        self._judges.close()
        self._commit.close()

    def _take(self, arrival: Arrival, body: bytes, answer: Answer) -> None:
        try:
            outcome = self._make_durable(arrival, body, answer)
        except Problem as problem:
            outcome = problem
        except (OSError, HypError) as error:
            self._trouble.met(error)
            outcome = unavailable("storage_unavailable")
        except Exception:
            log.exception("a batch could not be judged")
            outcome = Problem(500, "internal")
        if isinstance(outcome, Durable):
            self._commit.put(outcome)
        else:
            answer(outcome)

    def _make_durable(self, arrival: Arrival, body: bytes, answer: Answer) -> Durable | Outcome:
        if self._is_known(arrival):
            return Known()
        headers, caller = arrival.headers, arrival.caller
        claims = Claims(arrival.dataset, caller.gateway_id, headers.encoding, headers.content_sha)
        judged = self._judges.judge(claims, body)
        if judged.gateway_id is None:
            return Stored(0)
        path = incoming.write(self._folders[arrival.dataset.name], judged.lines, judged.rows) if judged.rows else None
        segment = incoming.segment_of(path) if path else None
        sender = arrival.sender(judged.gateway_id)
        batch = Batch(sender, headers.id, headers.delivery, judged.rows, judged.content_sha, segment)
        return Durable(arrival, batch, path, answer)

    def _is_known(self, arrival: Arrival) -> bool:
        """Whatever the body is now. Of a client that does not say who it is, the rows must be read first."""
        if arrival.caller.gateway_id is None:
            return False
        with self._store.reading() as connection:
            return ledger.is_known(connection, arrival.sender(arrival.caller.gateway_id), arrival.headers.id)
