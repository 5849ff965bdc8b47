"""One client that is followed: its sources, which of them are due, and what happened to them.

**What is followed.** A source that changed since the follower began, and a source with a checkpoint: what was added
while no daemon ran is recorded too. Older sources without a checkpoint are history, and a large new part is work for
all cores; both are left to the import, which finds them due.

**In which order.** A fork begins with copies of another session's lines, and of equal rows the first is kept. So a
source that may be a fork is recorded after all that an import would read before it, including what is held back there.
If one of those is left to the import, the fork is left to it too.

**How soon.** A message that may still grow is held back for one second after it was seen, then recorded as it is; what
is added to it later makes rows of its own. A source is read from its beginning, so one that takes long to read is read
less often.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hypaware.backfill.providers import RegisteredProvider
from hypaware.backfill.survey import HEAD_BYTES, DueSource, ImportState, SourceSurvey, encode_path, read_first_time
from hypaware.clients.client import Source, WatchableProvider
from hypaware.errors import HypError
from hypaware.follow.source_recorder import MAX_NEW_BYTES, LeftToImport, SourceBusy, SourceRecorder
from hypaware.model.columns import format_timestamp
from hypaware.text import summarize_error

log = logging.getLogger("hypaware.daemon")

HELD_SECONDS = 1.0
SURVEY_SECONDS = 60.0
# For providers that name no folders to watch.
_UNWATCHED_SURVEY_SECONDS = 10.0
_MIN_SURVEY_PAUSE_SECONDS = 0.2
_SURVEY_PACE = 10.0
_READ_PACE = 4.0
_MAX_PAUSE_SECONDS = 30.0
_BUSY_SECONDS = 0.25
_FIRST_RETRY_SECONDS = 1.0
_LAST_RETRY_SECONDS = 60.0
_WORK_SECONDS = 0.5
_MAX_OTHER_FILES = 10_000

Survey = Callable[[], tuple[list[SourceRecorder], ImportState, SourceSurvey]]
"""Looks at all sources: returns a recorder for each dataset, and the state and the survey of the first."""


@dataclass
class _FollowedSource:
    held_since: dict[str, float] = field(default_factory=dict)
    """Message that is held back → when it was first seen."""
    paused_until: float = 0.0
    has_rows: bool = False
    """Whether rows of it were recorded. A fork begins with its copies."""


class FollowedClient:
    def __init__(
        self,
        entry: RegisteredProvider,
        folders: tuple[Path, ...],
        survey: Survey,
        *,
        began: datetime,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = entry.name
        self.folders = folders
        self.is_watchable = isinstance(entry.provider, WatchableProvider)
        self._survey = survey
        self._began = began
        self._clock = clock
        self._recorders: list[SourceRecorder] = []
        self._provider = entry.provider
        self._known: dict[Path, Source] = {}
        self._consumed: dict[str, int] = {}
        """Encoded path → how much of it was read at the last survey."""
        self._sources: dict[Path, _FollowedSource] = {}
        self._due: dict[Path, float] = {}
        self._other_files: set[Path] = set()
        """Files in its folders that are no sources."""
        self._new_files: set[Path] = set()
        self._survey_at = self._surveyed_at = self._next_survey = 0.0
        self._retry_seconds = 0.0
        self._error: str | None = None
        self._left: set[Path] = set()
        self._has_survey = False
        self._rows = 0
        self._last_recorded_at: datetime | None = None

    @property
    def is_covered(self) -> bool:
        """Whether an import would find nothing that is not followed."""
        return self._has_survey and self._error is None and not self._left

    def describe(self) -> dict[str, Any]:
        return {
            "folders": [str(folder) for folder in self.folders],
            "sources": len(self._known),
            "rows": self._rows,
            "last_recorded_at": self._last_recorded_at,
            "left_to_import": len(self._left),
            "error": self._error,
        }

    def next_at(self) -> float:
        """Return the time at which `work` has something to do."""
        return min((self._survey_at, *self._due.values()))

    def contains(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in self.folders)

    def note_change(self, path: Path, *, removed: bool) -> None:
        if path in self._known:
            self._make_due(path, self._clock())
        elif not removed and path not in self._other_files:
            # A new source, or a folder, whose files may have been written before it was watched.
            self._new_files.add(path)
            self.request_survey()

    def request_survey(self) -> None:
        self._survey_at = min(self._survey_at, max(self._clock(), self._next_survey))

    def work(self) -> None:
        """Survey the sources if that is due, then record due sources, for about half a second."""
        started = self._clock()
        try:
            if self._survey_at <= started:
                self._run_survey()
            for path in sorted((path for path, at in self._due.items() if at <= started), key=self._due.__getitem__):
                self._record(path)
                if self._clock() - started > _WORK_SECONDS:
                    break
        except (HypError, OSError) as error:
            self._fail(error)
        except Exception as error:
            log.exception("%s: following failed", self.name)
            self._fail(error)

    def _run_survey(self) -> None:
        started = self._clock()
        self._survey_at = started + self._retry_seconds + _FIRST_RETRY_SECONDS
        self._recorders, state, found = self._survey()
        self._known = {source.path: source for source in found.sources}
        for gone in [path for path in self._sources if path not in self._known]:
            del self._sources[gone]
        if len(self._other_files) > _MAX_OTHER_FILES:
            self._other_files.clear()
        self._other_files |= {path for path in self._new_files if path not in self._known and not path.is_dir()}
        self._new_files.clear()
        self._left.clear()
        self._consumed = {path: checkpoint.consumed for path, checkpoint in state.checkpoints.items()}
        for path in self._known:
            # What an earlier follower held back is released by time.
            checkpoint = state.checkpoints.get(encode_path(path))
            if checkpoint is not None and checkpoint.held and path not in self._sources:
                self._make_due(path, started)
        for due in found.due:
            if self._is_followed(due, state):
                self._make_due(due.snapshot.path, started)
            else:
                self._left.add(due.snapshot.path)
        self._has_survey, self._error, self._retry_seconds = True, None, 0.0
        ended = self._clock()
        self._next_survey = ended + max(_MIN_SURVEY_PAUSE_SECONDS, _SURVEY_PACE * (ended - started))
        self._survey_at = ended + (SURVEY_SECONDS if self.is_watchable else _UNWATCHED_SURVEY_SECONDS)

    def _is_followed(self, due: DueSource, state: ImportState) -> bool:
        if due.snapshot.size - due.snapshot.consumed > MAX_NEW_BYTES:
            return False
        is_new = due.snapshot.mtime_ns / 10**9 >= self._began.timestamp()
        return is_new or encode_path(due.snapshot.path) in state.checkpoints

    def _record(self, path: Path) -> None:
        if path not in self._due:
            # It was recorded as the original of another one.
            return
        paused_until = self._sources.setdefault(path, _FollowedSource()).paused_until
        if self._clock() < paused_until:
            self._due[path] = paused_until
        elif not self._may_be_fork(path) or self._record_originals(path):
            self._read(path)

    def _read(self, path: Path, *, release_all: bool = False) -> bool:
        """Record what is new in a source. Return False if it is busy."""
        source, started = self._sources.setdefault(path, _FollowedSource()), self._clock()
        self._due.pop(path, None)
        held_before = source.held_since.items()
        released = frozenset(key for key, since in held_before if release_all or started - since >= HELD_SECONDS)
        held: set[str] = set()
        try:
            for recorder in self._recorders:
                recorded = recorder.record(self._known.get(path) or Source(path), released)
                held |= recorded.held
                if recorded.rows:
                    source.has_rows = True
                    self._rows += recorded.rows
                    self._last_recorded_at = datetime.now(UTC)
        except SourceBusy:
            self._make_due(path, started + _BUSY_SECONDS)
            return False
        except LeftToImport as reason:
            if path not in self._left:
                log.info("%s: %s; it is recorded by the next import", self.name, reason)
            self._left.add(path)
        except FileNotFoundError:
            self._known.pop(path, None)
            self._sources.pop(path, None)
            return True
        except BaseException:
            self._make_due(path, started + max(self._retry_seconds, _FIRST_RETRY_SECONDS))
            raise
        ended = self._clock()
        source.paused_until = ended + min(_MAX_PAUSE_SECONDS, _READ_PACE * (ended - started))
        source.held_since = {key: source.held_since.get(key, started) for key in held}
        # A message that is held although it was released waits for another line, not for time.
        waiting = [since + HELD_SECONDS for key, since in source.held_since.items() if key not in released]
        if waiting:
            self._make_due(path, min(waiting))
        return True

    def _may_be_fork(self, path: Path) -> bool:
        """Return whether the beginning of a source, where the copies are, may not have been recorded yet."""
        source = self._sources.get(path)
        has_rows = source is not None and source.has_rows
        return not has_rows and self._consumed.get(encode_path(path), 0) < HEAD_BYTES

    def _record_originals(self, path: Path) -> bool:
        """Record everything that an import would read before this source. Return False if that is not possible now."""
        try:
            own = self._import_order(path)
            held = {other for other, source in self._sources.items() if source.held_since}
            others = (self._find_order(other) for other in {*self._due, *held} - self._left - {path})
            for _, _, other in sorted(order for order in others if order is not None and order < own):
                if self._may_be_fork(other) and self._copies_left_source(other):
                    continue
                # The second time without what was held back the first time.
                if not self._read(other, release_all=True) or not self._read(other, release_all=True):
                    self._make_due(path, self._clock() + _BUSY_SECONDS)
                    return False
            return not self._copies_left_source(path)
        except FileNotFoundError:
            return True

    def _copies_left_source(self, path: Path) -> bool:
        """Return whether a source may hold copies of one that is left to the import, and leave it to the import too."""
        own = self._import_order(path)
        for other in self._left - {path}:
            with suppress(OSError):
                # A copied line is not newer than the file that it was copied from.
                written = format_timestamp(datetime.fromtimestamp(other.stat().st_mtime, UTC))
                if written >= own[0] and self._import_order(other) < own:
                    self._left.add(path)
                    self._due.pop(path, None)
                    return True
        return False

    def _find_order(self, path: Path) -> tuple[str, int, Path] | None:
        try:
            return self._import_order(path)
        except OSError:
            return None

    def _import_order(self, path: Path) -> tuple[str, int, Path]:
        mtime_ns = path.stat().st_mtime_ns
        return read_first_time(self._provider, path, mtime_ns), mtime_ns, path

    def _make_due(self, path: Path, at: float) -> None:
        with suppress(KeyError):
            at = max(at, self._sources[path].paused_until)
        self._due[path] = min(at, self._due.get(path, at))

    def _fail(self, error: Exception) -> None:
        """Try again later, with growing pauses. What is due stays due."""
        message = summarize_error(error)
        if message != self._error:
            log.warning("%s: cannot record its transcripts: %s", self.name, message)
        self._error = message
        self._retry_seconds = min(_LAST_RETRY_SECONDS, max(_FIRST_RETRY_SECONDS, 2 * self._retry_seconds))
        retry_at = self._clock() + self._retry_seconds
        self._due = {path: max(at, retry_at) for path, at in self._due.items()}
        # A survey that succeeds ends the failure.
        self._survey_at = retry_at
