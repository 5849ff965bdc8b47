"""Memory that large bodies leave behind, given back to the system.

glibc keeps what a thread has freed for the next time. A day of large bodies would make a small process large, though
it holds nothing: after a while of work, the C library is asked to let go. Where it cannot be asked, nothing happens.
"""

from __future__ import annotations

import ctypes

_WORK_BETWEEN = 16 << 20


class FreeMemory:
    def __init__(self) -> None:
        self._worked = 0
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

    def after(self, size: int) -> None:
        """So many bytes were read and are forgotten."""
        self._worked += size
        if self._trim is not None and self._worked >= _WORK_BETWEEN:
            self._worked = 0
            self._trim(0)
