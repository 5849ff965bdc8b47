"""Taking turns at a table, within the one engine that owns the lake.

Two turns, so that long work does not hold up short work. Whoever *keeps* a table (compacts, retains, expires, purges,
rebuilds) does so alone for as long as it takes, while flushes go on beside it. Whoever *changes* a table (a flush, or
a keeper for the moment of its commit) does that alone. Who needs both takes `keeping` first; who needs the locks of
streams as well takes them in between.

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
    """Held by the one job that may change the dataset's table; who waits for it can still be cancelled."""
    with _turn(_changing[dataset], check_cancelled):
        yield


@contextmanager
def keeping(dataset: str, check_cancelled: Callable[[], None]) -> Iterator[None]:
    """Held by the one job that replaces or removes files of the dataset's table."""
    with _turn(_keeping[dataset], check_cancelled):
        yield


@contextmanager
def running() -> Iterator[None]:
    """Around every job of the engine: what a job may be reading stays until it has ended."""
    me = object()
    with _counting:
        _running[me] = time.time()
    try:
        yield
    finally:
        with _counting:
            del _running[me]


def oldest_running() -> float:
    """When the job that has been running for the longest time began; now, if there is none."""
    with _counting:
        return min(_running.values(), default=time.time())


def others_since(moment: float) -> int:
    """Jobs beside the one that asks that began before that time, and may be reading what was there then."""
    with _counting:
        return max(0, sum(began <= moment for began in _running.values()) - 1)


def wait_for_others(moment: float, seconds: float, check_cancelled: Callable[[], None]) -> bool:
    """Waits for the jobs that began before that time, so long at most: whether all of them have ended."""
    deadline = time.monotonic() + seconds
    while (left := others_since(moment)) and time.monotonic() < deadline:
        check_cancelled()
        time.sleep(_POLL)
    return not left


def oldest_other(mine: float) -> float:
    """When the oldest of the other jobs began, for one that began just before `mine`; now, if there is none."""
    with _counting:
        began = sorted(_running.values())
    own = max((each for each in began if each <= mine), default=None)
    if own is not None:
        began.remove(own)
    return min(began, default=time.time())


@contextmanager
def _turn(mutex: threading.Lock, check_cancelled: Callable[[], None]) -> Iterator[None]:
    while not mutex.acquire(timeout=_LOOK_UP_EVERY):
        check_cancelled()
    try:
        yield
    finally:
        mutex.release()
