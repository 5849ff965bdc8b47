"""Return freed memory to the operating system.

glibc keeps memory that a thread has freed. After a day of large bodies a small process would stay large, so malloc_trim
runs after every 16 MiB of processed bodies. On systems without malloc_trim nothing happens.
"""

from __future__ import annotations

import ctypes

_WORK_BETWEEN = 16 << 20


class FreeMemory:
    def __init__(self) -> None:
        self._processed = 0
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

    def note_processed(self, size: int) -> None:
        """Note that `size` bytes were processed and freed."""
        self._processed += size
        if self._trim is not None and self._processed >= _WORK_BETWEEN:
            self._processed = 0
            self._trim(0)
