"""The lock of a stream: one round, adoption, resending or replay at a time, whoever starts it.

`delivery/locks/<16 hex of the sha256 of the stream's exact names>.lock`. Two names that look alike (`a b`, `a_b`) have
two locks. Several locks are taken in the order of their keys, so that two who want the same ones cannot each wait for
the other.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from types import TracebackType

from hypaware import lock_file
from hypaware.errors import Retryable
from hypaware.home import Home
from hypaware.state.stream_key import StreamKey

# How long a command of the user waits for a round to be done.
PATIENCE_SECONDS = 10.0
_POLL_SECONDS = 0.02
_LOOP_POLL_SECONDS = 0.05


class StreamLock:
    """A lock that is held until it is released, once; also as `with try_lock(…) as lock`."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    def release(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            lock_file.release(fd)

    def __enter__(self) -> StreamLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def try_lock(home: Home, key: StreamKey) -> StreamLock | None:
    """At once: the lock, or None while somebody else has it."""
    fd = lock_file.take(path_of(home, key))
    return None if fd is None else StreamLock(fd)


async def waited_for(home: Home, key: StreamKey, wait: float) -> StreamLock | None:
    """Waits on the event loop, where others go on meanwhile and a cancellation ends it; None if it is still taken."""
    deadline = time.monotonic() + wait
    while (lock := try_lock(home, key)) is None and time.monotonic() < deadline:
        await asyncio.sleep(_LOOP_POLL_SECONDS)
    return lock


@contextmanager
def stream_lock(home: Home, key: StreamKey, wait: float = 0.0) -> Iterator[None]:
    """Waits on this thread, up to so many seconds; raises Retryable (`stream_busy`) when it is still taken."""
    deadline = time.monotonic() + wait
    while (lock := try_lock(home, key)) is None:
        if time.monotonic() >= deadline:
            raise busy(home, key)
        time.sleep(_POLL_SECONDS)
    with lock:
        yield


@contextmanager
def stream_locks(home: Home, keys: Iterable[StreamKey]) -> Iterator[None]:
    """All of them, or none: for a command, which waits a little for the rounds that have them."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with ExitStack() as held:
        for key in sorted(set(keys)):
            held.enter_context(stream_lock(home, key, max(0.0, deadline - time.monotonic())))
        yield


def busy(home: Home, key: StreamKey) -> Retryable:
    pid = lock_file.holder(path_of(home, key))
    who = f"process {pid}" if pid else "another process"
    return Retryable(f"{key} is being delivered by {who}: try again when that is done", kind="stream_busy")


def path_of(home: Home, key: StreamKey) -> Path:
    names = json.dumps([key.sink, key.dataset, key.source]).encode()
    return home.delivery / "locks" / f"{sha256(names).hexdigest()[:16]}.lock"
