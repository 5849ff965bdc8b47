"""One step over a light lake in a process of its own, which a crash point may kill.

A fork would inherit clients of PostgreSQL and of the bucket, which do not survive it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

from hypaware.home import Home
from hypaware.maintain.purge.other_machines import forget_purged
from hypaware.maintain.purge.selector import SelectorKind
from tests.support.light_home import flush
from tests.support.light_purge import purge


def was_killed(home: Home, step: str, *values: str, crash_at: str) -> bool:
    """Run a step: `flush`, `forget`, or a purge of that kind. Return whether the crash point killed it."""
    command = [sys.executable, "-m", __name__, str(home.root), step, *values]
    environment = {**os.environ, "HYP_CRASH_AT": crash_at}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3000:]
    return done.returncode == -signal.SIGKILL


def _main() -> None:
    home, step, values = Home(Path(sys.argv[1])), sys.argv[2], sys.argv[3:]
    if step == "flush":
        flush(home)
    elif step == "forget":
        forget_purged(home)
    else:
        purge(home, cast(SelectorKind, step), *values)


if __name__ == "__main__":
    _main()
