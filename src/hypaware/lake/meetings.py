"""By what rows can meet another record of the same thing, as tasks note it: a few bytes for each key of each row.

A build notes rows without their own id always, native ones only if asked to: while no fallback row has ever come into
a table, nothing can meet, and an import pays nothing. `MeetTask` notes the same of rows that are in the lake, and the
keys that settled rows had before.
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
_FALLBACK, _LATE, _EXACT = 1, 2, 4

Note = Callable[[Mapping[str, Any], int], None]


class Met(NamedTuple):
    """One key of one row."""

    hash: bytes
    seq: int
    mark: int
    at: int
    """The row's time, in seconds."""

    @property
    def is_fallback(self) -> bool:
        return bool(self.mark & _FALLBACK)

    @property
    def late(self) -> bool:
        return bool(self.mark & _LATE)

    @property
    def exact(self) -> bool:
        return bool(self.mark & _EXACT)

    @property
    def buried_as(self) -> bytes:
        """What to look for among what was purged: of a native row its words count only if a live one said them."""
        return self.hash if self.exact or self.is_fallback else said_live(self.hash)


@dataclass
class Meetings:
    """The keys of rows, in the order of the rows, the surest key of each first."""

    seqs: array[int] = field(default_factory=lambda: array("q"))
    at: array[int] = field(default_factory=lambda: array("q"))
    marks: bytearray = field(default_factory=bytearray)
    hashes: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        return len(self.seqs)

    def __iter__(self) -> Iterator[Met]:
        packed = bytes(self.hashes)
        for place, (seq, mark, at) in enumerate(zip(self.seqs, self.marks, self.at, strict=True)):
            yield Met(packed[place * HASH_BYTES : (place + 1) * HASH_BYTES], seq, mark, at)

    @property
    def has_fallback(self) -> bool:
        return any(mark & _FALLBACK for mark in self.marks)

    def note(self, dataset: Dataset, row: Mapping[str, Any], seq: int) -> None:
        assert dataset.settling is not None
        meeting = dataset.settling.meeting(row)
        if meeting is None:
            return
        at = _seconds(row.get(dataset.time_column))
        mark = (_FALLBACK if meeting.is_fallback else 0) | (_LATE if meeting.late else 0)
        for place, key in enumerate(meeting.keys):
            self.add(Met(hash_of(dataset.name, key), seq, mark | (_EXACT if place < meeting.exact else 0), at))

    def add(self, met: Met) -> None:
        self.seqs.append(met.seq)
        self.at.append(met.at)
        self.marks.append(met.mark)
        self.hashes += met.hash

    def without(self, drop: Container[int]) -> Meetings:
        """Without the keys of some rows."""
        left = Meetings()
        for met in self:
            if met.seq not in drop:
                left.add(met)
        return left


def hash_of(dataset: str, key: str) -> bytes:
    """Apart from dedupe keys, whose hashes begin with the dataset's name."""
    return sha256(f"meets:{dataset}:{key}".encode("utf-8", "surrogatepass")).digest()[:HASH_BYTES]


def said_live(hash_: bytes) -> bytes:
    """The words of a row without its own id; its transcript must not bring them back either."""
    return sha256(b"live:" + hash_).digest()[:HASH_BYTES]


def noting(dataset: Dataset, own_gateway: str | None, every: bool, into: Meetings) -> Note | None:
    """What to call for each row of a build; None where no row of the dataset can meet another.

    Only the home's own rows can: what another gateway sends was settled there.
    """
    settling = dataset.settling
    if settling is None:
        return None
    may_be_fallback = settling.may_be_fallback

    def note(row: Mapping[str, Any], seq: int) -> None:
        if (every or may_be_fallback(row)) and own_gateway in (None, row.get(GATEWAY)):
            into.note(dataset, row, seq)

    return note


@dataclass(frozen=True)
class MeetTask:
    """Rows of a data file above a sequence: as `Built.keys` those that settled rows had before, and `Built.meetings`.

    Without `every` only a quick look: `Built.notes` is `[True]` if there is a fallback row.
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
        settling = dataset.settling
        assert settling is not None
        looked_at = [dataset.time_column, *settling.columns] if self.every else [settling.telltale]
        fallback = False
        for batch in read_batches(self.path, list(dict.fromkeys([SEQ, GATEWAY, *looked_at]))):
            for row in batch.to_pylist():
                if (seq := row[SEQ]) is None or seq <= self.after or self.own_gateway not in (None, row.get(GATEWAY)):
                    continue
                for key in settling.former_keys(row):
                    built.seqs.append(seq)
                    built.keys += key_hash(dataset.name, key)
                fallback = fallback or settling.may_be_fallback(row)
                if self.every:
                    built.meetings.note(dataset, row, seq)
        built.notes = [fallback]
        return built


def _seconds(moment: Any) -> int:
    if moment is None:
        return 0  # of a file that is older than the column
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    return int(moment.timestamp())
