"""Keep the index up to date for a process that reads no data files and answers immediately.

Rows of the spool are added here, in one background thread; rows of the lake are added by the builder
(`hypaware.index.builder`), which is a process of its own. A request waits for either only a moment, and answers from
what is there. If no file has changed since the last look, a look costs a few system calls.

If the builder fails, it is started again after a growing pause. `notice` says what a viewer should know about it.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from concurrent import futures
from dataclasses import dataclass

from hypaware.engine.background import Backoff
from hypaware.errors import HypError, NotReady, Retryable
from hypaware.home import Home
from hypaware.home.sqlite_readonly import open_readonly
from hypaware.index import builder, database
from hypaware.index.arrivals import Signature, take_signature
from hypaware.index.refresh import IndexBehind, refresh_index
from hypaware.text import summarize_error

_WAIT_SECONDS = 0.25
"""How long a request waits for new rows."""
_POLL_SECONDS = 0.05
_LOCK_SECONDS = 5.0
# The lake may change again while the builder runs.
_ATTEMPTS = 2
_INLINE_ROWS = 10_000
_LONGEST_PAUSE_SECONDS = 60.0
# A build that is over sooner is not worth a notice.
_SILENT_SECONDS = 1.5


@dataclass(frozen=True)
class IndexNotice:
    """What a viewer should know about the answers: that rows are missing, and why."""

    message: str
    progress: float | None = None
    """The part of the rows that is indexed, while the index is being built."""


class IndexUpdater:
    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._thread = futures.ThreadPoolExecutor(1, "index")
        self._running: futures.Future[None] | None = None
        self._running_since = 0.0
        self._applied: tuple[object, ...] | None = None
        self._not_before = 0.0
        self._backoff = Backoff(longest=_LONGEST_PAUSE_SECONDS)
        self._problem: str | None = None
        self._building_since: float | None = None
        self._closed = threading.Event()

    def update(self, wait_seconds: float | None = None) -> None:
        """Add what was recorded since the last call, or as much of it as a short wait allows, or the given one.

        Raise NotReady if there is no home.
        """
        deadline = None if wait_seconds is None else time.monotonic() + wait_seconds
        own: futures.Future[None] | None = None
        while own is None or not own.done():
            signature = self._take_signature()
            with self._lock:
                if signature == self._applied or time.monotonic() < self._not_before:
                    return
                if self._running is None or self._running.done():
                    own = self._running = self._thread.submit(self._apply, signature)
                    self._running_since = time.monotonic()
                # Only the requests at the beginning of a long build wait for it.
                running, until = self._running, deadline or self._running_since + _WAIT_SECONDS
            futures.wait([running], max(0.0, until - time.monotonic()))
            if not running.done():
                return
            running.result()

    def notice(self) -> IndexNotice | None:
        if (since := self._building_since) is not None:
            progress = builder.read_progress(self._home)
            if time.monotonic() - since >= _SILENT_SECONDS or (progress is not None and progress < 1 / 2):
                message = "The index is being built, newest rows first. Until it is complete, older rows are missing."
                return IndexNotice(message, progress)
        return IndexNotice(self._problem) if self._problem else None

    def close(self) -> None:
        self._closed.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _take_signature(self) -> tuple[object, ...]:
        files: list[Signature | tuple[int, int] | None] = [take_signature(self._home)]
        for path in (self._home.index, self._home.config):
            try:
                status = path.stat()
                # Each refresh changes the index, so its time says nothing; another inode is another index.
                files.append((status.st_ino, status.st_mtime_ns if path == self._home.config else 0))
            except OSError:
                files.append(None)
        return tuple(files)

    def _apply(self, signature: tuple[object, ...]) -> None:
        try:
            self._problem = self._bring_up_to_date()
        except BlockingIOError:
            self._problem = "Another process is writing the index; the newest rows may be missing."
            self._not_before = time.monotonic() + _LOCK_SECONDS
            return
        except NotReady:
            raise
        except (OSError, sqlite3.Error, HypError) as error:
            # Another version of the program has built it: its daemon is running the old one.
            hint = "; run: hyp daemon restart" if isinstance(error, HypError) and error.kind == "index_newer" else ""
            self._problem = f"The newest rows may be missing: {summarize_error(error)}{hint}"
            self._not_before = time.monotonic() + self._backoff.failed()
            return
        finally:
            self._building_since = None
        self._backoff.succeeded()
        # An index that was missing has another inode now. One that is missing now was removed since.
        index, settings = self._take_signature()[1:]
        self._applied = (signature[0], index, settings) if index is not None else None

    def _bring_up_to_date(self) -> str | None:
        """Add all missing rows. Return a warning, or None."""
        for _ in range(_ATTEMPTS):
            try:
                return self._add_spooled_rows()
            except IndexBehind:
                self._wait_for_builder()
        try:
            return self._add_spooled_rows()
        except IndexBehind:
            # The builder has failed, or it cannot read some of the files: what it said is in the index or in its log.
            log = self._home.logs / "index.log"
            raise Retryable(self._read_warning() or f"the index could not be completed; see {log}") from None

    def _add_spooled_rows(self) -> str | None:
        return refresh_index(
            self._home,
            at_most_rows=_INLINE_ROWS,
            wait_seconds=_LOCK_SECONDS,
            replace_newer=False,
            with_lake=False,
        ).warning

    def _wait_for_builder(self) -> None:
        self._building_since = time.monotonic()
        process = builder.start_builder(self._home)
        while not self._closed.wait(_POLL_SECONDS):
            if process is not None and process.poll() is None:
                continue
            if not builder.is_building(self._home):
                return

    def _read_warning(self) -> str | None:
        try:
            with open_readonly(self._home.index) as connection:
                warning = database.read_meta(connection, "warning")
                return str(warning) if warning else None
        except (OSError, sqlite3.Error):
            return None
