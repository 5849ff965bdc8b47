"""Light delivery jobs in an engine that dies: the file `die-flush` holds how many of the next flushes kill it."""

from __future__ import annotations

import os
import signal
from typing import Any

from hypaware.engine.jobs import Job, JobContext
from tests.support import delivery_jobs
from tests.support.delivery_jobs import on_open as on_open


def flush(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    left = context.home.root / "die-flush"
    if left.exists():
        count = int(left.read_text()) - 1
        if count:
            left.write_text(str(count))
        else:
            left.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return delivery_jobs.flush(context, args)


JOBS: dict[str, Job] = {**delivery_jobs.JOBS, "flush": flush}
