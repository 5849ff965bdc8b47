"""What the page's process takes of the machine: little memory, and processor time only after everything else.

The agents that the page shows, and the gateway that they use, come first, so the process lowers its priority. Linux has
a priority for each thread, which new threads and processes inherit from the one that starts them. One thread keeps the
priority of the beginning: what a person asks for, and what may live longer than the page, is started from it. On
systems with one priority for a process, what it starts has the low one.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

_NICENESS = 10
_M_ARENA_MAX = -8  # malloc.h of the GNU C library
_ARENAS = 2
_starter: ThreadPoolExecutor | None = None


def limit_arenas() -> None:
    """Let the C library share its memory among threads, as MALLOC_ARENA_MAX does, which counts if it is set.

    The GNU C library would otherwise keep memory for each thread apart: more than the page needs for everything else.
    To be called before the process has other threads. Other C libraries do not do that and are left alone.
    """
    if "MALLOC_ARENA_MAX" in os.environ:
        return
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)


def lower_priority() -> None:
    """Lower the priority of the calling thread, and of the threads and processes that it starts from now on."""
    global _starter
    starter = ThreadPoolExecutor(1, "page: starter")
    starter.submit(os.getpid).result()  # The thread begins now, with the priority of now.
    _starter = starter
    with suppress(OSError):
        os.nice(_NICENESS)


def start_process(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process with the priority that this one had at its beginning."""

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, **options)

    return start() if _starter is None else _starter.submit(start).result()
