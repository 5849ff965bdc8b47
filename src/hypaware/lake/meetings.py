"""Match keys: hashes that a live row and its native row share. Tasks record a few bytes per key.

A build always records the match keys of live rows that lack their client's id. It records those of native rows
only if asked to: as long as a table has no such live row, nothing can match, and imports need not pay for it.
`MeetTask` records the match keys of rows in the lake, and the former keys of settled rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hypaware.model import datasets
from hypaware.model.datasets import GATEWAY, SEQ, Dataset

if TYPE_CHECKING:
    from hypaware.lake.build import Built

HASH_BYTES = 16
_LIVE, _TIME_UNCERTAIN, _EXACT = 1, 2, 4

Note = Callable[[Mapping[str, Any], int], None]


class Met(NamedTuple):
    """One match key of one row."""

    hash: bytes
    seq: int
    flags: int
    at: int
    """The row's time, in seconds."""

    @property
    def is_live(self) -> bool:
        return bool(self.flags & _LIVE)

    @property
    def is_time_uncertain(self) -> bool:
        return bool(self.flags & _TIME_UNCERTAIN)

    @property
    def is_exact(self) -> bool:
        return bool(self.flags & _EXACT)

    @property
    def tombstone_hash(self) -> bytes:
        """The hash to look up among tombstones. The text of a native row counts only if it was purged as a live row."""
        return self.hash if self.is_exact or self.is_live else said_live(self.hash)


@dataclass
class Meetings:
    """Match keys in row order, the most reliable key of each row first."""

    seqs: array[int] = field(default_factory=lambda: array("q"))
    at: array[int] = field(default_factory=lambda: array("q"))
    flags: bytearray = field(default_factory=bytearray)
    hashes: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        return len(self.seqs)

    def __iter__(self) -> Iterator[Met]:
        packed = bytes(self.hashes)
        for index, (seq, flags, at) in enumerate(zip(self.seqs, self.flags, self.at, strict=True)):
            yield Met(packed[index * HASH_BYTES : (index + 1) * HASH_BYTES], seq, flags, at)

    @property
    def has_live(self) -> bool:
        return any(flags & _LIVE for flags in self.flags)

    def record(self, dataset: Dataset, row: Mapping[str, Any], seq: int) -> None:
        assert dataset.match_rules is not None
        meeting = dataset.match_rules.match_keys(row)
        if meeting is None:
            return
        at = _seconds(row.get(dataset.time_column))
        flags = (_LIVE if meeting.is_live else 0) | (_TIME_UNCERTAIN if meeting.time_uncertain else 0)
        for index, key in enumerate(meeting.keys):
            self.add(Met(hash_of(dataset.name, key), seq, flags | (_EXACT if index < meeting.exact else 0), at))

    def add(self, match_key: Met) -> None:
        self.seqs.append(match_key.seq)
        self.at.append(match_key.at)
        self.flags.append(match_key.flags)
        self.hashes += match_key.hash

    def without(self, drop: Container[int]) -> Meetings:
        """Return a copy without the keys of some rows."""
        kept = Meetings()
        for match_key in self:
            if match_key.seq not in drop:
                kept.add(match_key)
        return kept


def hash_of(dataset: str, key: str) -> bytes:
    """Hash a match key. The prefix separates it from hashes of dedupe keys, which start with the dataset name."""
    return sha256(f"meets:{dataset}:{key}".encode("utf-8", "surrogatepass")).digest()[:HASH_BYTES]


def said_live(hash_: bytes) -> bytes:
    """Hash a match key once more, for the tombstone of a live row: its transcript must not restore the text."""
    return sha256(b"live:" + hash_).digest()[:HASH_BYTES]


def noting(dataset: Dataset, own_gateway: str | None, every: bool, into: Meetings) -> Note | None:
    """Return the function that records a row's match keys, or None if the dataset has no live rows.

    Only the home's own rows are recorded: rows of another gateway were matched there.
    """
    rules = dataset.match_rules
    if rules is None:
        return None
    may_be_live = rules.may_be_live

    def record(row: Mapping[str, Any], seq: int) -> None:
        if (every or may_be_live(row)) and own_gateway in (None, row.get(GATEWAY)):
            into.record(dataset, row, seq)

    return record


@dataclass(frozen=True)
class MeetTask:
    """Read rows of a data file above a sequence: former keys of settled rows as `Built.keys`, and `Built.match_keys`.

    Without `every` it only tells whether there is a live row: `Built.reports` is `[True]` or `[False]`.
    """

    dataset: str
    path: Path
    after: int
    own_gateway: str | None
    every: bool

    def run(self) -> Built:
        from hypaware.lake.build import Built, key_hash
        from hypaware.lake.rewrite import read_batches

        dataset, built = datasets.get(self.dataset), Built()
        rules = dataset.match_rules
        assert rules is not None
        columns = [dataset.time_column, *rules.columns] if self.every else [rules.marker_column]
        has_live = False
        for batch in read_batches(self.path, list(dict.fromkeys([SEQ, GATEWAY, *columns]))):
            for row in batch.to_pylist():
                if (seq := row[SEQ]) is None or seq <= self.after or self.own_gateway not in (None, row.get(GATEWAY)):
                    continue
                for key in rules.previous_keys(row):
                    built.seqs.append(seq)
                    built.keys += key_hash(dataset.name, key)
                has_live = has_live or rules.may_be_live(row)
                if self.every:
                    built.match_keys.record(dataset, row, seq)
        built.reports = [has_live]
        return built


def _seconds(moment: Any) -> int:
    if moment is None:
        return 0  # the file is older than the column
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    return int(moment.timestamp())
