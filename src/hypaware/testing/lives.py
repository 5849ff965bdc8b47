"""Work done in a process of its own, which may be killed for real in the middle of it."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable

from hypaware import faults


def live(work: Callable[[], None], crash_at: str | None = None) -> bool:
    """Runs the work in a forked child: whether it lived to the end. Any end but that and SIGKILL is an error."""
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
    assert code in (0, -signal.SIGKILL), f"the child ended with {code}"
    return code == 0
