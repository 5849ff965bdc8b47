"""Locks of a table within the one engine that owns the lake.

There are two locks per table, so that long work does not block short work. The maintenance lock (`keeping`) is held by
the one job that compacts, retains, expires, purges or rebuilds the table; flushes continue while it is held. The commit
lock (`changing`) is held by the one job that commits: a flush, or a maintenance job during its commit. A job that needs
both acquires the maintenance lock first; a job that also needs stream locks acquires those in between.

@ref keeping#turns
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOOK_UP_EVERY = 0.2
_POLL = 0.05
_Turns = defaultdict[str, threading.Lock]
_changing: _Turns = defaultdict(threading.Lock)
_keeping: _Turns = defaultdict(threading.Lock)
_running: dict[object, float] = {}
_counting = threading.Lock()


@contextmanager
def changing(dataset: str, check_cancelled: Callable[[], None]) -> Iterator[None]:
    """Hold the commit lock of a dataset's table. Waiting for it can be cancelled."""
    with _turn(_changing[dataset], check_cancelled):
        yield


@contextmanager
def keeping(dataset: str, check_cancelled: Callable[[], None]) -> Iterator[None]:
    """Hold the maintenance lock of a dataset's table. Waiting for it can be cancelled."""
    with _turn(_keeping[dataset], check_cancelled):
        yield


@contextmanager
def running() -> Iterator[None]:
    """Register a running job of the engine. Files that it may be reading are kept until it ends."""
    job = object()
    with _counting:
        _running[job] = time.time()
    try:
        yield
    finally:
        with _counting:
            del _running[job]


def oldest_running() -> float:
    """Return the start time of the oldest running job, or the current time if there is none."""
    with _counting:
        return min(_running.values(), default=time.time())


def others_since(moment: float) -> int:
    """Count the other jobs that started before a time and may be reading files of that time."""
    with _counting:
        return max(0, sum(start <= moment for start in _running.values()) - 1)


def wait_for_others(moment: float, seconds: float, check_cancelled: Callable[[], None]) -> bool:
    """Wait for the other jobs that started before a time. Tell whether all of them have ended."""
    deadline = time.monotonic() + seconds
    while (running_jobs := others_since(moment)) and time.monotonic() < deadline:
        check_cancelled()
        time.sleep(_POLL)
    return not running_jobs


def oldest_other(mine: float) -> float:
    """Return the start time of the oldest other job, for a job that started just before `mine`, or the current time."""
    with _counting:
        starts = sorted(_running.values())
    own = max((each for each in starts if each <= mine), default=None)
    if own is not None:
        starts.remove(own)
    return min(starts, default=time.time())


@contextmanager
def _turn(mutex: threading.Lock, check_cancelled: Callable[[], None]) -> Iterator[None]:
    while not mutex.acquire(timeout=_LOOK_UP_EVERY):
        check_cancelled()
    try:
        yield
    finally:
        mutex.release()
