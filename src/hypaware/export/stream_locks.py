"""The lock of a stream: one round, adopt, resend or replay at a time, in any process.

The file is `delivery/locks/<16 hex of the sha256 of the stream's exact names>.lock`, so names that look alike (`a b`,
`a_b`) have separate locks. Several locks are taken in the order of their keys, so that two processes cannot deadlock.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path

from hypaware.errors import Retryable
from hypaware.home import Home, locks
from hypaware.state.streams import StreamKey

# How long a user's command waits for a running round.
COMMAND_WAIT_SECONDS = 10.0
_POLL_SECONDS = 0.02
_LOOP_POLL_SECONDS = 0.05


def try_lock_stream(home: Home, key: StreamKey) -> ExitStack | None:
    """Take the lock without waiting; None if another process holds it. Closing the stack releases it, once."""
    fd = locks.try_lock(lock_path(home, key))
    if fd is None:
        return None
    held = ExitStack()
    held.callback(locks.unlock, fd)
    return held


async def acquire_lock(home: Home, key: StreamKey, wait: float) -> ExitStack:
    """Take the lock without blocking the event loop. Raises Retryable (`stream_busy`) after `wait` seconds."""
    # Imported here: a command that finds nothing to deliver must not load it.
    import asyncio

    deadline = time.monotonic() + wait
    while (lock := try_lock_stream(home, key)) is None:
        if time.monotonic() >= deadline:
            raise busy_error(home, key)
        await asyncio.sleep(_LOOP_POLL_SECONDS)
    return lock


@contextmanager
def lock_stream(home: Home, key: StreamKey, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock. Blocks up to `wait` seconds, then raises Retryable (`stream_busy`)."""
    deadline = time.monotonic() + wait
    while (lock := try_lock_stream(home, key)) is None:
        if time.monotonic() >= deadline:
            raise busy_error(home, key)
        time.sleep(_POLL_SECONDS)
    with lock:
        yield


@contextmanager
def lock_streams(home: Home, keys: Iterable[StreamKey], seconds: float | None = None) -> Iterator[None]:
    """Hold all these locks, for a user's command. Raises Retryable (`stream_busy`) if a round takes too long."""
    deadline = time.monotonic() + (COMMAND_WAIT_SECONDS if seconds is None else seconds)
    with ExitStack() as held:
        for key in sorted(set(keys)):
            held.enter_context(lock_stream(home, key, max(0.0, deadline - time.monotonic())))
        yield


def busy_error(home: Home, key: StreamKey) -> Retryable:
    pid = locks.lock_holder(lock_path(home, key))
    holder = f"process {pid}" if pid else "another process"
    return Retryable(f"{key} is being delivered by {holder}; try again later", kind="stream_busy")


def lock_path(home: Home, key: StreamKey) -> Path:
    names = json.dumps([key.sink, key.dataset, key.source]).encode()
    return home.delivery / "locks" / f"{sha256(names).hexdigest()[:16]}.lock"
