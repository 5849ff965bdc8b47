"""The daemon's logs: `logs/daemon.log`, and stderr unless `--quiet` is given.

A line is `2026-11-15T22:53:53Z INFO <message>`, in UTC. The file has mode 0600 and is rotated at 5 MB; five older files
are kept. It has one writer: it is opened with the first line, which is logged after the daemon took its lock. A line
that cannot be written, for example on a full disk, is counted, and the next line that can be written is preceded by the
number of missing lines. The daemon never fails because of its log.

The stdout and stderr of a background daemon go to `logs/daemon-start.log`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from hypaware.home import Home, durable_files
from hypaware.text import escape

MAX_BYTES = 5 * 1024 * 1024
BACKUPS = 5
_TAIL_BYTES, _TAIL_LINES = 4096, 10


def log_path(home: Home) -> Path:
    return home.logs / "daemon.log"


def start_log_path(home: Home) -> Path:
    return home.logs / "daemon-start.log"


def read_tail(path: Path, since: int = 0) -> str:
    """Return the last lines of a log, from an offset on, or an empty string if there is no log."""
    try:
        with path.open("rb") as log:
            log.seek(max(since, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-_TAIL_LINES:])


@contextmanager
def log_to_file(home: Home, *, quiet: bool) -> Iterator[None]:
    """Log the program's messages from INFO on, and the warnings of its libraries, within the block."""
    handlers: list[logging.Handler] = [RotatingLog(log_path(home))]
    if not quiet:
        handlers.append(logging.StreamHandler(sys.stderr))
    root, program = logging.getLogger(), logging.getLogger("hypaware")
    level = program.level
    program.setLevel(logging.INFO)
    for handler in handlers:
        handler.setFormatter(LogFormatter())
        root.addHandler(handler)
    try:
        yield
    finally:
        program.setLevel(level)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


class LogFormatter(logging.Formatter):
    """Formats a line and escapes control characters, so that logged responses cannot act on a terminal."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        return escape(super().format(record))


class RotatingLog(RotatingFileHandler):
    def __init__(self, path: Path, limit: int = MAX_BYTES, older: int = BACKUPS) -> None:
        super().__init__(path, maxBytes=limit, backupCount=older, encoding="utf-8", errors="replace", delay=True)
        self._missing = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, reopening a log file that was removed or moved away."""
        if self.stream is not None and not _is_open_at(Path(self.baseFilename), self.stream):
            self._discard_stream()
        if missing := self._missing:
            text = "%d log lines are missing here because they could not be written"
            super().emit(logging.LogRecord("hypaware.daemon", logging.WARNING, __file__, 0, text, (missing,), None))
            if self._missing > missing:
                return
            self._missing = 0
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        self._missing += 1
        # Otherwise the buffered text would be written before the line that reports the gap.
        self._discard_stream()

    def _open(self) -> TextIOWrapper:
        path = Path(self.baseFilename)
        if path.parent.parent.is_dir():
            durable_files.make_dir(path.parent)
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        file = os.fdopen(fd, "ab")
        try:
            if (size := os.fstat(fd).st_size) and os.pread(fd, 1, size - 1) != b"\n":
                os.write(fd, b"\n")  # a full disk cut off the last line
        except OSError:
            file.close()
            raise
        return TextIOWrapper(file, encoding="utf-8", errors="replace")

    def _discard_stream(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            with suppress(OSError):
                stream.close()


def _is_open_at(path: Path, stream: TextIOWrapper) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(stream.fileno()))
    except OSError:
        return False
