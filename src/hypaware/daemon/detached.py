"""A daemon in the background: its own session, `/` as its working directory, nothing on stdin.

Its log lines go to the rotating log. Its stdout and stderr go to `logs/daemon-start.log`, which therefore holds output
from before the log was opened and from crashes that could not be logged.
"""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

from hypaware import durable
from hypaware.daemon import command_line
from hypaware.home import Home

# Only failing processes write here, but one may fail every few seconds.
_START_LOG_BYTES = 256 * 1024
_TAIL_BYTES = 2000


def start_log(home: Home) -> Path:
    return home.logs / "daemon-start.log"


class Detached:
    def __init__(self, home: Home) -> None:
        """Start the process. The caller holds the start lock, so that only one process rotates the start log."""
        log = start_log(home)
        durable.make_dir(log.parent)
        if log.exists() and log.stat().st_size > _START_LOG_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._home = home
        self._log_start = os.fstat(fd).st_size
        try:
            self._process = subprocess.Popen(
                command_line.hyp("daemon", "run", "--quiet"),
                stdin=subprocess.DEVNULL,
                stdout=fd,
                stderr=fd,
                cwd="/",
                env=command_line.environment(home),
                start_new_session=True,
            )
        finally:
            os.close(fd)
        self.pid = self._process.pid
        # Reap the process when it ends, so that a long-lived caller does not keep a zombie.
        threading.Thread(target=self._process.wait, name="daemon reaper", daemon=True).start()

    def exit_reason(self) -> str | None:
        """Return how the process ended, as text, or None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        return f"exit code {code}" if code >= 0 else f"signal {-code}"

    def output(self) -> str:
        return last_words(self._home, self._log_start)


def last_words(home: Home, since: int = 0) -> str:
    """Return the end of the start log, from an offset on."""
    try:
        with start_log(home).open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(since, size - _TAIL_BYTES))
            return log.read().decode(errors="replace").strip()
    except OSError:
        return ""
