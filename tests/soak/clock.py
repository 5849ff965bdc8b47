"""A clock that can be set while processes run: a small library, preloaded, shifts what the C library returns.

Only the time of day is shifted, as when a user or NTP sets it; monotonic clocks and the times of files stay. Needs a C
compiler.
"""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.soak.summary import Impossible

_SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shift;

__attribute__((constructor)) static void find_shift(void) {
    const char *path = getenv("SHIFTED_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(0, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (found != MAP_FAILED) shift = found;
}

int clock_gettime(clockid_t id, struct timespec *at) {
    int code = (int)syscall(SYS_clock_gettime, id, at);
    if (code == 0 && shift && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += *shift;
    return code;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


class Clock:
    def __init__(self, shift: mmap.mmap, environment: dict[str, str]) -> None:
        self._shift = shift
        self.environment = environment
        """What lets a process and its children see the shifted time."""

    def set(self, seconds: int) -> None:
        """Set the clock to this many seconds after (or before) the true time."""
        self._shift[:8] = struct.pack("=q", seconds)

    def advance(self, seconds: int) -> None:
        self.set(struct.unpack("=q", self._shift[:8])[0] + seconds)


@contextmanager
def shifted_clock(folder: Path) -> Iterator[Clock]:
    """Build the library and return a clock that shows the true time at first. Raise Impossible without a compiler."""
    folder.mkdir()
    source, library, shift = folder / "clock.c", folder / "clock.so", folder / "shift"
    source.write_text(_SOURCE)
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source)]
    try:
        subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Impossible(f"the clock cannot be built: {error}") from error
    shift.write_bytes(bytes(8))
    with open(shift, "r+b") as file, mmap.mmap(file.fileno(), 8) as mapped:
        yield Clock(mapped, {"LD_PRELOAD": str(library), "SHIFTED_CLOCK": os.fspath(shift)})
