"""Run work in a child process that a crash point may kill."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable

from hypaware import faults


def live(work: Callable[[], object], crash_at: str | None = None) -> bool:
    """Run the work in a forked child, optionally killed at a crash point.

    Returns True if the child finished and False if it was killed by SIGKILL; fails on any other exit.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        try:
            with faults.armed(crash_at):
                work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(70)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL), f"the child exited with {code}"
    return code == 0
