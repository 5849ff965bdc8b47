"""Judges in processes of their own, for large batches: judging is nearly all that a batch costs, and holds one core.

They are started by the first large batch and end with the server, also when it is killed. Small batches are judged
where they are: handing them over would cost more than it brings. A judge that dies takes nothing along; its batch is
judged here.
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

# A batch of this size takes some tens of milliseconds to judge, and a few to hand over.
_LARGE = 512 << 10
_MOST = 4


class Judges:
    def __init__(self, limits: Limits, processes: int | None = None) -> None:
        """`processes`: as many as there are cores unless told; 0 judges everything here."""
        self._limits = limits
        self._processes = min(_MOST, os.cpu_count() or 1) if processes is None else processes
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()

    def judge(self, claims: Claims, body: bytes) -> Judged:
        if len(body) < _LARGE or self._processes < 2:
            return judge(claims, body, self._limits)
        said = (claims.dataset.name, claims.gateway_id, claims.encoding, claims.content_sha)
        try:
            found = self._started().submit(_judged, said, body, self._limits).result()
        except BrokenProcessPool:
            log.warning("a process that judges batches has died; the batch is judged here")
            self._drop()
            return judge(claims, body, self._limits)
        if isinstance(found, Judged):
            return found
        raise Problem(found[0], found[1], **found[2])

    def close(self) -> None:
        self._drop()

    def _started(self) -> ProcessPoolExecutor:
        with self._lock:
            if self._pool is None:
                spawn = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(self._processes, mp_context=spawn, initializer=_live_with_the_server)
            return self._pool

    def _drop(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool:
            pool.shutdown()


def _judged(
    said: tuple[str, str | None, str | None, str | None], body: bytes, limits: Limits
) -> Judged | tuple[int, str, dict[str, Any]]:
    """A refusal comes back as what it says."""
    name, *rest = said
    try:
        return judge(Claims(datasets.get(name), *rest), body, limits)
    except Problem as problem:
        return problem.status, problem.kind, problem.detail


def _live_with_the_server() -> None:
    """Ctrl-C is the server's to handle; and whoever kills it must not leave its judges behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_it() -> None:
        parent.join()
        os._exit(0)

    threading.Thread(target=end_with_it, name="end-with-the-server", daemon=True).start()
