"""The context of a purge, shared by its steps, and its report."""

from __future__ import annotations

import secrets
import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hypaware.config import Config
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake.table import LakeBackend, LakeTable
from hypaware.maintain.context import ignore
from hypaware.maintain.purge.search import FileMatches, ProgressCallback, split_hashes
from hypaware.maintain.purge.selector import PurgeSelector
from hypaware.model.datasets import Dataset
from hypaware.state import store
from hypaware.state.store import StateStore

# Ids by which rows are searched for outside of tables.
_MAX_IDS = 400
MAX_HASHES = 1_000_000


@dataclass(frozen=True)
class PurgeContext:
    home: Home
    config: Config
    store: StateStore
    lake: LakeBackend
    selector: PurgeSelector
    describe_live_files_only: Callable[[LakeTable], bool]
    """Rewrites manifests that describe removed files; returns whether there were any. The commit is not durable yet."""
    allow_reimport: bool = False
    sessions: tuple[str, ...] = ()
    """In a purge by folder, the sessions that worked there."""
    resumed: bool = False
    """Whether an earlier attempt was left unfinished, so that no step is taken as done."""
    damaged: frozenset[str] = frozenset()
    """Damaged tables that hold none of the rows. They are left alone."""
    wait: float = 5.0
    """Seconds to wait until producers have sealed their segments."""
    progress: ProgressCallback = ignore
    note: Callable[[str], None] = ignore
    check_cancelled: Callable[[], None] = ignore
    started_at: float = field(default_factory=time.time)
    id: str = field(default_factory=lambda: f"purge-{secrets.token_hex(8)}")
    """Prefix of the names of files that this run writes."""

    @cached_property
    def own_gateway(self) -> str | None:
        """The gateway of this home. Rows of other gateways have different keys."""
        for entry in metadata.list_tables(self.home):
            if entry.name in self.damaged:
                continue
            if gateway_id := metadata.read_metadata(entry.metadata).properties.get(metadata.GATEWAY_ID_PROPERTY):
                return gateway_id
        with self.store.reading() as connection:
            identity = store.load_identity(connection)
        return identity.gateway_id if identity else None

    def for_dataset(self, dataset: Dataset) -> PurgeSelector | None:
        return self.selector.for_dataset(dataset, self.sessions)

    @property
    def is_permanent(self) -> bool:
        return self.selector.is_permanent and not self.allow_reimport


@dataclass
class PurgedTable:
    dataset: str
    rows: int = 0
    sources: Counter[str] = field(default_factory=Counter)
    files_looked_at: int = 0
    files_rewritten: int = 0
    files_removed: int = 0
    orphans_removed: int = 0
    unattributed: int = 0
    """Rows without a session, or folder, that were left because they cannot be attributed."""

    def add(self, match: FileMatches, source: str, removed_rows: RemovedRows) -> None:
        """Count the result of one file's search, and add its rows to the removed ones."""
        self.files_looked_at += 1
        self.unattributed += match.unattributed
        if match.rows:
            self.rows += match.rows
            self.sources[source] += match.rows
            self.files_rewritten += not match.is_whole_file
            self.files_removed += match.is_whole_file
            removed_rows.seqs.setdefault((self.dataset, source), array("q")).extend(match.seqs)
            removed_rows.add(match.ids, [key for packed in match.hashes for key in split_hashes(packed)])

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "sources": dict(sorted(self.sources.items()))}


@dataclass
class RemovedRows:
    """The rows that were found, by the values that identify them elsewhere. Of very many rows only some are kept."""

    ids: set[str] = field(default_factory=set)
    hashes: set[bytes] = field(default_factory=set)
    seqs: dict[tuple[str, str], array[int]] = field(default_factory=dict)
    """By dataset and source."""
    clean: set[Path] = field(default_factory=set)
    """Data files that were read and hold none of the rows; data files never change."""
    replaced: set[Path] = field(default_factory=set)
    """Files that held rows before their settlement, under ids and without columns that the search would find."""
    copies: list[dict[str, Any]] = field(default_factory=list)
    """The destinations that received such rows."""

    def add(self, ids: Sequence[str], hashes: Sequence[bytes]) -> None:
        self.ids.update(ids[: max(0, _MAX_IDS - len(self.ids))])
        if len(self.hashes) < MAX_HASHES:
            self.hashes.update(hashes)


@dataclass
class PurgeReport:
    selector: PurgeSelector
    dry_run: bool
    datasets: list[PurgedTable] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)
    """Datasets without the deciding column, and damaged tables that hold none of the rows."""
    spool_rows: int = 0
    """Rows of the spool that were kept out of the lake; the other rows of the spool were flushed first."""
    spool_held: list[str] = field(default_factory=list)
    """Segments that a running process has not sealed."""
    spool_unreadable: list[str] = field(default_factory=list)
    """In a dry run, the problems with segments that cannot be read. A purge refuses to overlook them."""
    rejects: int = 0
    letters: int = 0
    letter_rows: int = 0
    delivered: list[dict[str, Any]] = field(default_factory=list)
    tombstones: dict[str, Any] = field(default_factory=lambda: {"set": 0, "lifted": 0, "parts": 0})
    resumed: bool = False
    remaining: list[dict[str, str]] = field(default_factory=list)
    looked_for: dict[str, Any] = field(default_factory=lambda: {"rows": 0, "ids": 0})

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.datasets)

    def as_json(self) -> dict[str, Any]:
        return {
            "selector": self.selector.as_json(),
            "dry_run": self.dry_run,
            "datasets": [each.as_json() for each in self.datasets],
            "left_alone": self.left_alone,
            "spool": {"rows": self.spool_rows, "held": self.spool_held, "unreadable": self.spool_unreadable},
            "rejects": self.rejects,
            "dead_letters": {"letters": self.letters, "rows": self.letter_rows},
            "delivered": self.delivered,
            "tombstones": self.tombstones,
            "again": self.resumed,
            "remaining": self.remaining,
            "looked_for": self.looked_for,
        }
