"""Survey a provider's sources: pin each one, and compare it with its checkpoint to find out whether it is due.

An unchanged source is not opened. A source is due if it is new, has grown, was replaced, was read under a narrower
window, or has messages that were held back and has been quiet since.

A fork begins with copies of another session's lines, so both have the same first time. If the fork is due, nothing is
held back in its original: of equal rows the first is kept, and that would be the copy.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from hypaware.backfill.providers import ProviderFault, find_sources
from hypaware.backfill.request import ImportArguments, ImportPolicy
from hypaware.clients.client import Environment, Provider, ProviderEvent, Source
from hypaware.clients.compressed_content import read_head
from hypaware.clients.reader import SourceSnapshot, TimeWindow, get_inode, is_database, measure
from hypaware.errors import StateError
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.iceberg.metadata import FLUSH_ID_PROPERTY
from hypaware.lake import health
from hypaware.model.columns import ColumnType, format_timestamp, get_coercer
from hypaware.model.datasets import Dataset
from hypaware.state import flushes
from hypaware.state.flushes import SourceCheckpoint
from hypaware.state.location import find_machine, has_state, open_store
from hypaware.state.store import Connection

QUIET_NS = 10 * 60 * 10**9
UNREADABLE = "unreadable"
"""The name of a provider's event for a source that it could not inspect."""
_MAX_INT64 = 2**63 - 1
# Larger than any transcript. A larger sparse file would use up sequences.
_MAX_BYTES = 1 << 40
HEAD_BYTES = 64 << 10
"""The part of a source in which its first time is looked for."""
_time_text = get_coercer(ColumnType.TIMESTAMP)


@dataclass(frozen=True)
class DueSource:
    found: Source
    snapshot: SourceSnapshot
    first_time: str

    @property
    def max_rows(self) -> int:
        return self.snapshot.size if self.found.max_rows is None else self.found.max_rows

    @property
    def import_order(self) -> tuple[str, int, str]:
        """Time comes first, so that sequence and day rise together and an original precedes its copies."""
        return self.first_time, self.snapshot.mtime_ns, str(self.snapshot.path)


@dataclass
class SourceSurvey:
    due: list[DueSource] = field(default_factory=list)
    unchanged: int = 0
    held: int = 0
    """Messages that are held back in unchanged sources."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Reason → sources that cannot be read now and stay due."""
    events: list[ProviderEvent] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    """All sources that can be read, due or not."""

    @property
    def files(self) -> int:
        return len(self.due) + self.unchanged + self.skipped.total()

    @property
    def bytes(self) -> int:
        return sum(each.snapshot.size for each in self.due)


@dataclass(frozen=True)
class ImportState:
    """What the state knows of a provider and a dataset."""

    checkpoints: Mapping[str, SourceCheckpoint]
    recorded: int = 0
    """The highest recorded sequence of the dataset."""

    @classmethod
    def load(
        cls, connection: Connection, provider: str, dataset: str, machine: str, *, committed: Collection[str] = ()
    ) -> ImportState:
        """Load it, with the checkpoints of `committed` flushes that are not recorded yet."""
        checkpoints = flushes.load_checkpoints(connection, provider, dataset, machine=machine, committed=committed)
        return cls(checkpoints, flushes.highest_recorded_sequence(connection, dataset))


def read_import_state(home: Home, provider: str, dataset: str) -> ImportState:
    """Read the state without opening the home or changing anything. Empty if there is no state."""
    if not has_state(home):
        return ImportState({})
    try:
        with open_store(home, read_only=True).reading() as connection:
            if not connection.has_table("sources"):
                return ImportState({})
            # The next run detects and records a flush that was committed but not recorded.
            table = metadata.find_table(home, dataset)
            snapshots = metadata.read_metadata(table.metadata).snapshots if table else ()
            committed = {flush for each in snapshots if (flush := each.summary.get(FLUSH_ID_PROPERTY))}
            return ImportState.load(connection, provider, dataset, find_machine(home), committed=committed)
    except sqlite3.Error as error:
        raise StateError(f"cannot read the state {home.state}: {error}", repair="hyp verify --repair") from error


def survey_dataset(
    home: Home,
    request: ImportArguments,
    provider: Provider,
    dataset: Dataset,
    state: ImportState,
    policy: ImportPolicy,
    *,
    in_order: bool = True,
    on_progress: Callable[[int], None] = lambda _: None,
) -> SourceSurvey:
    """Return what an import of this provider and dataset would read; raise if the lake has lost rows."""
    health.check_floor(home, dataset.name, state.recorded)
    return survey_sources(
        provider,
        request.environment,
        policy.drop_stale(state.checkpoints),
        clip_to_retention(request.window, metadata.read_retention_start(home, dataset.name)),
        request.now,
        in_order=in_order,
        on_progress=on_progress,
    )


def clip_to_retention(window: TimeWindow, retained_from: str | None) -> TimeWindow:
    """Return the window without days that retention has removed; they must not come back."""
    if retained_from is None:
        return window
    kept = f"{retained_from}T00:00:00.000000Z"
    return TimeWindow(max(kept, window.since or kept), window.until)


def survey_sources(
    provider: Provider,
    environment: Environment,
    checkpoints: Mapping[str, SourceCheckpoint],
    window: TimeWindow,
    now: datetime,
    *,
    in_order: bool = True,
    on_progress: Callable[[int], None] = lambda _: None,
) -> SourceSurvey:
    """Return the survey of a provider, due sources in import order; `in_order` reads their first bytes for that."""
    found = SourceSurvey()
    waiting: list[DueSource] = []
    seen: set[tuple[int, int] | Path] = set()
    number = 0
    for source in find_sources(provider, environment):
        if isinstance(source, ProviderEvent):
            found.events.append(source)
            if source.name == UNREADABLE:
                found.skipped[UNREADABLE] += 1
            continue
        on_progress(number)
        number += 1
        try:
            status = source.path.stat()
            if not stat.S_ISREG(status.st_mode):
                found.skipped["not_a_file"] += 1
                continue
            if status.st_size > _MAX_BYTES:
                found.skipped["too_large"] += 1
                continue
            inode = (status.st_dev, status.st_ino)
            if not status.st_size or inode in seen or source.path in seen:
                continue
            seen.update((inode, source.path))
            found.sources.append(source)
            checkpoint = checkpoints.get(encode_path(source.path))
            snapshot = pin_source(source.path, status, checkpoint, window, now)
            if snapshot is None:
                found.unchanged += 1
                held = frozenset(checkpoint.held) if checkpoint else frozenset()
                found.held += len(held)
                if in_order and (snapshot := pin_source(source.path, status, checkpoint, window, now, held)):
                    first_time = read_first_time(provider, source.path, snapshot.mtime_ns)
                    waiting.append(DueSource(source, snapshot, first_time))
                continue
            first_time = read_first_time(provider, source.path, snapshot.mtime_ns) if in_order else ""
            found.due.append(DueSource(source, snapshot, first_time))
        except FileNotFoundError:
            found.skipped["vanished"] += 1
        except (OSError, ValueError):
            # ValueError: the path contains a NUL byte.
            found.skipped[UNREADABLE] += 1
    if in_order:
        pinned = {path for path, checkpoint in checkpoints.items() if checkpoint.pin is not None}
        _release_originals(found, waiting, pinned)
    found.due.sort(key=lambda due: due.import_order)
    return found


def _release_originals(found: SourceSurvey, waiting: Collection[DueSource], pinned: Collection[str]) -> None:
    """Read the originals of due forks to their end. `waiting` sources are unchanged and have messages held back."""
    last: dict[str, tuple[str, int, str]] = {}
    for due in found.due:
        last[due.first_time] = max(due.import_order, last.get(due.first_time, due.import_order))
    for place, due in enumerate(found.due):
        # The rows of a pinned part may be in the spool already: the same ones must be made.
        if due.import_order < last[due.first_time] and encode_path(due.snapshot.path) not in pinned:
            found.due[place] = replace(due, snapshot=replace(due.snapshot, quiet=True))
    for due in waiting:
        if due.import_order < last.get(due.first_time, due.import_order):
            found.due.append(replace(due, snapshot=replace(due.snapshot, quiet=True, released=frozenset())))
            found.unchanged -= 1
            found.held -= len(due.snapshot.held)


def encode_path(path: str | Path) -> str:
    """Return a path as printable, storable text. Different paths give different texts, even if they are not UTF-8."""
    raw = os.fsencode(path)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return f"{raw.decode('utf-8', 'backslashreplace')} [{hashlib.sha256(raw).hexdigest()[:16]}]"


def pin_source(
    path: Path,
    status: os.stat_result,
    checkpoint: SourceCheckpoint | None,
    window: TimeWindow,
    now: datetime,
    released: frozenset[str] = frozenset(),
) -> SourceSnapshot | None:
    """Return the snapshot of a source that is due, or None if nothing of it can be due.

    `released` messages are not held back any longer.
    """
    size, mtime_ns = measure(path, status)
    mtime_ns = max(-_MAX_INT64, min(mtime_ns, _MAX_INT64))
    # A time in the future is a mistake; waiting for it could take years.
    quiet = abs(int(now.timestamp() * 10**9) - mtime_ns) >= QUIET_NS
    fresh = SourceSnapshot(path, get_inode(status), size, mtime_ns, quiet=quiet, window=window, released=released)
    if checkpoint is None:
        return fresh
    if (pin := checkpoint.pin) is not None and fresh.size >= pin.size:
        # These rows may be in the spool already: make the same ones. The rest of the source stays due.
        pinned = replace(fresh, size=pin.size, mtime_ns=pin.mtime_ns, quiet=pin.quiet)
        return _after_checkpoint(replace(pinned, released=frozenset(pin.released)), checkpoint)
    before = TimeWindow(checkpoint.since, checkpoint.until)
    unchanged = (checkpoint.inode, checkpoint.size, checkpoint.mtime_ns) == (fresh.inode, fresh.size, fresh.mtime_ns)
    # Messages held back while the file was being written are released by time; everything else needs more bytes.
    has_released = not released.isdisjoint(checkpoint.held) or (checkpoint.held and quiet and not checkpoint.quiet)
    if unchanged and before.covers(window) and not has_released:
        return None
    return _after_checkpoint(fresh, checkpoint)


def _after_checkpoint(fresh: SourceSnapshot, checkpoint: SourceCheckpoint) -> SourceSnapshot:
    consumed = checkpoint.consumed
    if is_database(fresh.path):
        # It may become smaller. Another file is another database.
        if fresh.inode != checkpoint.inode:
            return fresh
        consumed = min(consumed, fresh.size)
    if fresh.size < consumed:
        return fresh
    # The reader compares the hash of the prefix, because the file may have been rewritten, or copied to a new inode.
    return replace(
        fresh,
        consumed=consumed,
        prefix_hash=checkpoint.prefix_hash,
        held=frozenset(checkpoint.held),
        left_out=checkpoint.left_out,
        ignored=checkpoint.ignored,
    )


def read_first_time(provider: Provider, path: Path, mtime_ns: int) -> str:
    """Return the first time in a source, or else the time of its file."""
    head = read_head(path, HEAD_BYTES)
    try:
        return str(_time_text(provider.first_time(head)))
    except ValueError:
        return format_timestamp(datetime.fromtimestamp(mtime_ns / 10**9, UTC))
    except Exception as error:
        message = f"finding the first time in {path} failed: {type(error).__name__}: {error}"
        raise ProviderFault("provider_error", message) from error
