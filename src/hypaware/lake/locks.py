"""Locks of a table within the one engine that owns the lake.

The maintenance lock is held by the one job that compacts, retains, expires, purges or rebuilds the table; flushes
continue while it is held. The commit lock is held by the one job that commits: a flush, or a maintenance job during its
commit. A job that needs both acquires the maintenance lock first, and stream locks in between.

@ref keeping#turns
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

_CANCEL_CHECK_SECONDS = 0.2
_POLL_SECONDS = 0.05
_commit_locks: dict[str, threading.Lock] = defaultdict(threading.Lock)
_maintenance_locks: dict[str, threading.Lock] = defaultdict(threading.Lock)
_job_starts: dict[object, float] = {}
_job_starts_lock = threading.Lock()


def commit_lock(dataset: str, check_cancelled: Callable[[], None]) -> AbstractContextManager[None]:
    """Hold the commit lock of a dataset's table. Waiting for it can be cancelled."""
    return _acquire(_commit_locks[dataset], check_cancelled)


def maintenance_lock(dataset: str, check_cancelled: Callable[[], None]) -> AbstractContextManager[None]:
    return _acquire(_maintenance_locks[dataset], check_cancelled)


@contextmanager
def track_job() -> Iterator[None]:
    """Register a running job of the engine. Files that it may be reading are kept until it ends."""
    job = object()
    with _job_starts_lock:
        _job_starts[job] = time.time()
    try:
        yield
    finally:
        with _job_starts_lock:
            del _job_starts[job]


def oldest_job_start() -> float:
    """Return the start time of the oldest running job, or the current time if there is none."""
    with _job_starts_lock:
        return min(_job_starts.values(), default=time.time())


def wait_for_other_jobs(moment: float, seconds: float, check_cancelled: Callable[[], None]) -> bool:
    """Wait for the other jobs that started before a time. Tell whether all of them have ended."""
    deadline = time.monotonic() + seconds
    while True:
        with _job_starts_lock:
            others_run = sum(start <= moment for start in _job_starts.values()) > 1
        if not others_run or time.monotonic() >= deadline:
            return not others_run
        check_cancelled()
        time.sleep(_POLL_SECONDS)


def oldest_other_job_start(mine: float) -> float:
    """Return the start time of the oldest other job, for a job that started just before `mine`, or the current time."""
    with _job_starts_lock:
        starts = sorted(_job_starts.values())
    own = max((each for each in starts if each <= mine), default=None)
    if own is not None:
        starts.remove(own)
    return min(starts, default=time.time())


@contextmanager
def _acquire(mutex: threading.Lock, check_cancelled: Callable[[], None]) -> Iterator[None]:
    while not mutex.acquire(timeout=_CANCEL_CHECK_SECONDS):
        check_cancelled()
    try:
        yield
    finally:
        mutex.release()
