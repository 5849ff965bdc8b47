"""The lake lock. The JVM that commits holds it, not Python, so it is released exactly when that JVM cannot commit.

It is a `FileChannel` lock (POSIX, per process). Closing any second handle on the file within the JVM would release the
lock silently. So each JVM opens the file once, and keeps the channel open for its lifetime. The channel is referenced
here, because the garbage collector would close it otherwise.
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
    """Acquire the lock for the rest of the JVM's lifetime, or return the one that the JVM already holds.

    While another JVM holds it, `wait` is called repeatedly with the seconds waited so far, and may raise to stop.
    """
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
