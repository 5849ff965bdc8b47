"""The daemon as a process in the background: a session of its own, `/` as its folder, nothing on stdin.

What it logs goes to its rotating log, see `log_files`. Its stdout and stderr go to `logs/daemon-start.log`: what is
said before there is a log, and the last words of a process that dies of something that it could not log.
"""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

from hypaware import durable
from hypaware.daemon import command_line
from hypaware.home import Home

# Only dying processes write here, and there may be one every few seconds.
_LIMIT = 256 * 1024
_LAST_WORDS = 2000


def start_log(home: Home) -> Path:
    return home.logs / "daemon-start.log"


class Detached:
    def __init__(self, home: Home) -> None:
        """Started. Only with the lock of `starting` held: nobody else begins this log anew."""
        log = start_log(home)
        durable.make_dir(log.parent)
        if log.exists() and log.stat().st_size > _LIMIT:
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
        # A caller that lives on must not keep a dead one as a zombie.
        threading.Thread(target=self._process.wait, name="daemon reaper", daemon=True).start()

    def end(self) -> str | None:
        """How it ended, in words; None while it lives."""
        code = self._process.poll()
        if code is None:
            return None
        return f"exit code {code}" if code >= 0 else f"signal {-code}"

    def last_words(self) -> str:
        return last_words(self._home, self._log_start)


def last_words(home: Home, since: int = 0) -> str:
    """The end of what was said there, from an offset on."""
    try:
        with start_log(home).open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(since, size - _LAST_WORDS))
            return log.read().decode(errors="replace").strip()
    except OSError:
        return ""
