"""The daemon's log: `logs/daemon.log`, and stderr unless `--quiet` is given.

A line is `2026-11-15T22:53:53Z INFO <message>`, in UTC. The file has mode 0600 and is rotated at 5 MB; five older files
are kept. It has one writer: it is opened with the first line, which is logged after the daemon took its lock. A line
that cannot be written, for example on a full disk, is counted, and the next line that can be written is preceded by the
number of missing lines. The daemon never fails because of its log.
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

from hypaware import durable
from hypaware.home import Home
from hypaware.terminal import harmless

BYTES = 5 * 1024 * 1024
OLDER = 5
_LAST_BYTES, _LAST_LINES = 4096, 10


def log_file(home: Home) -> Path:
    return home.logs / "daemon.log"


def last_lines(home: Home) -> str:
    """Return the last lines of the log, or an empty string if there is no log."""
    try:
        with log_file(home).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-_LAST_LINES:])


@contextmanager
def logging_to(home: Home, *, quiet: bool) -> Iterator[None]:
    """Log the program's messages from INFO on, and the warnings of its libraries, within the block."""
    handlers: list[logging.Handler] = [RotatingLog(log_file(home))]
    if not quiet:
        handlers.append(logging.StreamHandler(sys.stderr))
    root, program = logging.getLogger(), logging.getLogger("hypaware")
    level = program.level
    program.setLevel(logging.INFO)
    for handler in handlers:
        handler.setFormatter(Line())
        root.addHandler(handler)
    try:
        yield
    finally:
        program.setLevel(level)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


class Line(logging.Formatter):
    """Formats a line and escapes control characters, so that logged responses cannot act on a terminal."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))


class RotatingLog(RotatingFileHandler):
    def __init__(self, path: Path, limit: int = BYTES, older: int = OLDER) -> None:
        super().__init__(path, maxBytes=limit, backupCount=older, encoding="utf-8", errors="replace", delay=True)
        self._missing = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, reopening a log file that was removed or moved away."""
        if self.stream is not None and not _is_at(Path(self.baseFilename), self.stream):
            self._discard_stream()
        missing = self._missing
        if missing:
            super().emit(_gap(missing))
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
            durable.make_dir(path.parent)
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


def _is_at(path: Path, stream: TextIOWrapper) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(stream.fileno()))
    except OSError:
        return False


def _gap(lines: int) -> logging.LogRecord:
    text = "%d log lines are missing here because they could not be written"
    return logging.LogRecord("hypaware.daemon", logging.WARNING, __file__, 0, text, (lines,), None)
