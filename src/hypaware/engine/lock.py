"""The lake's lock, held by the JVM that commits, not by Python: it is free exactly when that JVM can commit no more.

A `FileChannel` lock (POSIX, per process). Closing any second handle on the file within the JVM would free it
silently, so each JVM opens the file once and keeps that channel for its life; nothing else ever opens it. The
channel is referenced from here, because a collected one is closed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypaware import durable

if TYPE_CHECKING:
    from py4j.java_gateway import JVMView

_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class LakeLock:
    path: Path
    _channel: Any
    _lock: Any


_held: dict[tuple[int, Path], LakeLock] = {}


def acquire(jvm: JVMView, path: Path, wait: Callable[[float], None]) -> LakeLock:
    """Takes the lock for the rest of the JVM's life. While another JVM has it, `wait` is called again and again with
    the seconds waited so far; it gives up by raising. A JVM that has the lock already gets the one that it has."""
    owner = (_pid(jvm), path)
    if owner in _held:
        return _held[owner]
    durable.make_dir(path.parent)
    channel = jvm.java.io.RandomAccessFile(str(path), "rw").getChannel()
    began = time.monotonic()
    try:
        while (lock := channel.tryLock()) is None:
            wait(time.monotonic() - began)
            time.sleep(_POLL_SECONDS)
    except BaseException:
        channel.close()
        raise
    _held[owner] = LakeLock(path, channel, lock)
    return _held[owner]


def _pid(jvm: JVMView) -> int:
    return int(jvm.java.lang.ProcessHandle.current().pid())
