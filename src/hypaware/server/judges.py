"""Validate large batches in worker processes: validation is nearly the whole cost of a batch and occupies one core.

The first large batch starts the workers. They end with the server, even if it is killed. Small batches are validated in
the server's own process, because handing them over would cost more. If a worker dies, its batch is validated here.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from hypaware.model import datasets
from hypaware.server.judging import Claims, Judged, judge
from hypaware.server.limits import Limits
from hypaware.server.problem import Problem
from hypaware.server.trouble import log

# A batch of this size takes tens of milliseconds to validate and a few to hand over.
_LARGE_BATCH = 512 << 10
_MAX_PROCESSES = 4


class Judges:
    def __init__(self, limits: Limits, processes: int | None = None) -> None:
        """`processes` defaults to the number of cores, at most four; 0 validates everything in this process."""
        self._limits = limits
        self._processes = min(_MAX_PROCESSES, os.cpu_count() or 1) if processes is None else processes
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()

    def validate(self, claims: Claims, body: bytes) -> Judged:
        if len(body) < _LARGE_BATCH or self._processes < 2:
            return judge(claims, body, self._limits)
        fields = (claims.dataset.name, claims.gateway_id, claims.encoding, claims.content_sha)
        try:
            result = self._start_pool().submit(_judged, fields, body, self._limits).result()
        except BrokenProcessPool:
            log.warning("a validation worker has died; validating its batch in the server process")
            self.close()
            return judge(claims, body, self._limits)
        if isinstance(result, Judged):
            return result
        raise Problem(result[0], result[1], **result[2])

    def _start_pool(self) -> ProcessPoolExecutor:
        with self._lock:
            if self._pool is None:
                spawn = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(self._processes, mp_context=spawn, initializer=_live_with_the_server)
            return self._pool

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool:
            pool.shutdown()


def _judged(
    fields: tuple[str, str | None, str | None, str | None], body: bytes, limits: Limits
) -> Judged | tuple[int, str, dict[str, Any]]:
    """Validate in a worker. A Problem is returned as its fields, because it cannot be pickled."""
    name, *rest = fields
    try:
        return judge(Claims(datasets.get(name), *rest), body, limits)
    except Problem as problem:
        return problem.status, problem.kind, problem.detail


def _live_with_the_server() -> None:
    """Set up a worker: ignore Ctrl-C, which the server handles, and exit when the server dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def exit_with_parent() -> None:
        parent.join()
        os._exit(0)

    threading.Thread(target=exit_with_parent, name="exit-with-server", daemon=True).start()
