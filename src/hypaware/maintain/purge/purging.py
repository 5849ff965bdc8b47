"""What every step of a purge is given, and what all of them come to."""

from __future__ import annotations

import secrets
import time
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from hypaware.config import Config
from hypaware.home import Home
from hypaware.lake import metadata
from hypaware.lake.committer import Lake, LakeTable
from hypaware.maintain.purge.selection import Selector
from hypaware.model.datasets import Dataset
from hypaware.state import whose
from hypaware.state.store import Store

# Ids by which rows are looked for in places that are no tables.
_MOST_IDS = 400
MOST_HASHES = 1_000_000


def _quiet(*_: object) -> None:
    return None


class History(Protocol):
    """What a table was before; neither commit is durable by itself."""

    def describe_live_files_only(self, table: LakeTable) -> bool:
        """Writes manifests again that still describe files which are gone: whether there were any."""

    def expire(self, table: LakeTable) -> None:
        """All snapshots but the current one."""


@dataclass(frozen=True)
class Purging:
    home: Home
    config: Config
    store: Store
    lake: Lake
    selector: Selector
    history: History
    allow_reimport: bool = False
    sessions: tuple[str, ...] = ()
    """Of a purge by folder: the sessions that worked there."""
    again: bool = False
    """Whether an earlier try was left unfinished, so that nothing is taken for done."""
    wait: float = 5.0
    """Seconds for producers to seal what they are writing."""
    progress: Callable[[str, int, int], None] = _quiet
    note: Callable[[str], None] = _quiet
    check_cancelled: Callable[[], None] = _quiet
    began: float = field(default_factory=time.time)
    id: str = field(default_factory=lambda: f"purge-{secrets.token_hex(8)}")
    """First in the names of the files that this run writes."""

    @cached_property
    def own_gateway(self) -> str | None:
        """Whose home this is: rows of other gateways have keys of their own."""
        for entry in metadata.entries(self.home):
            if told := metadata.read(entry.metadata).properties.get(metadata.GATEWAY_ID):
                return told
        with self.store.reading() as connection:
            known = whose.load(connection)
        return known.gateway_id if known else None

    def within(self, dataset: Dataset) -> Selector | None:
        return self.selector.within(dataset, self.sessions)

    @property
    def closes(self) -> bool:
        """Whether what still comes is kept out, too."""
        return self.selector.closes and not self.allow_reimport


@dataclass
class Removed:
    """What went from one dataset's table."""

    dataset: str
    rows: int = 0
    sources: Counter[str] = field(default_factory=Counter)
    files_looked_at: int = 0
    files_rewritten: int = 0
    files_removed: int = 0
    orphans_removed: int = 0
    unsaid: int = 0
    """Rows that do not say their session, or folder, and were left: nobody can tell whose they are."""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "sources": dict(sorted(self.sources.items()))}


@dataclass
class Gone:
    """The rows that were found, by what they are known elsewhere. Bounded: of very many, some stand for all."""

    ids: set[str] = field(default_factory=set)
    hashes: set[bytes] = field(default_factory=set)
    seqs: dict[tuple[str, str], array[int]] = field(default_factory=dict)
    """By dataset and source."""
    rows: int = 0
    clean: set[Path] = field(default_factory=set)
    """Data files that were read and hold none of them; they never change."""
    replaced: set[Path] = field(default_factory=set)
    """Files that held rows before they were settled; under the ids and without the columns that are looked for."""
    copies: list[dict[str, Any]] = field(default_factory=list)
    """Where such rows were delivered to."""

    def add(self, ids: list[str], hashes: list[bytes]) -> None:
        room = _MOST_IDS - len(self.ids)
        if room > 0:
            self.ids.update(ids[:room])
        if len(self.hashes) < MOST_HASHES:
            self.hashes.update(hashes)


@dataclass
class Report:
    selector: Selector
    dry_run: bool
    datasets: list[Removed] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)
    """Datasets without a column that decides."""
    spool_rows: int = 0
    """That waited, and were kept out of the lake; the others of the spool went into it first."""
    spool_held: list[str] = field(default_factory=list)
    """Segments that a live process has not sealed."""
    rejects: int = 0
    letters: int = 0
    letter_rows: int = 0
    delivered: list[dict[str, Any]] = field(default_factory=list)
    tombstones: dict[str, Any] = field(default_factory=lambda: {"set": 0, "lifted": 0, "parts": 0})
    again: bool = False
    """Whether it finishes one that was cut off."""
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
            "spool": {"rows": self.spool_rows, "held": self.spool_held},
            "rejects": self.rejects,
            "dead_letters": {"letters": self.letters, "rows": self.letter_rows},
            "delivered": self.delivered,
            "tombstones": self.tombstones,
            "again": self.again,
            "remaining": self.remaining,
            "looked_for": self.looked_for,
        }
