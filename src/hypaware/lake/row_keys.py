"""Keys of rows, as hashes: dedupe keys, which identify a row, and match keys, which a live and its native row share.

A build always records the match keys of live rows, and those of native rows once the table has a live row. A live row
with its client's id also has its dedupe key among them, flagged as unsettled: the native row with that key settles it.
Tasks return keys in packed form, a few bytes per key.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple

from hypaware.model.datasets import KEY_BYTES, Dataset, hash_key

MATCH_KEY_BYTES = 16
_LIVE, _TIME_UNCERTAIN, _EXACT, UNSETTLED, SETTLED, _SHOWN, _COPY = 1, 2, 4, 8, 16, 32, 64


def unpack_keys(keys: bytes | bytearray, seqs: Iterable[int]) -> Iterable[tuple[bytes, int]]:
    """Return (key hash, sequence) of packed key hashes."""
    packed = bytes(keys)
    return ((packed[index * KEY_BYTES : (index + 1) * KEY_BYTES], seq) for index, seq in enumerate(seqs))


class MatchKey(NamedTuple):
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
    def is_unsettled(self) -> bool:
        return bool(self.flags & UNSETTLED)

    @property
    def is_shown(self) -> bool:
        """The row is live and has the client's id."""
        return bool(self.flags & _SHOWN)

    @property
    def is_copy(self) -> bool:
        """The key belongs to a copy of another session's part, which has no row of its own."""
        return bool(self.flags & _COPY)

    def as_copy(self) -> MatchKey:
        return self._replace(flags=self.flags | _COPY)

    @property
    def tombstone_hash(self) -> bytes:
        """The hash to look up among tombstones. The text of a native row counts only if it was purged as a live row."""
        return self.hash if self.is_exact or self.is_live else hash_live_text(self.hash)


@dataclass
class MatchKeys:
    """Match keys in row order, the most reliable key of each row first."""

    seqs: array[int] = field(default_factory=lambda: array("q"))
    at: array[int] = field(default_factory=lambda: array("q"))
    flags: bytearray = field(default_factory=bytearray)
    hashes: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        return len(self.seqs)

    def __iter__(self) -> Iterator[MatchKey]:
        packed = bytes(self.hashes)
        for index, (seq, flags, at) in enumerate(zip(self.seqs, self.flags, self.at, strict=True)):
            yield MatchKey(packed[index * MATCH_KEY_BYTES : (index + 1) * MATCH_KEY_BYTES], seq, flags, at)

    @property
    def has_live(self) -> bool:
        return any(flags & (_LIVE | UNSETTLED) for flags in self.flags)

    def record(self, dataset: Dataset, row: Mapping[str, Any], seq: int) -> None:
        assert dataset.match_rules is not None
        found = dataset.match_rules.match_keys(row)
        if found is None:
            return
        moment = row.get(dataset.time_column)
        if isinstance(moment, str):
            moment = datetime.fromisoformat(moment)
        # Without a time, the file is older than the column.
        at = int(moment.timestamp()) if moment is not None else 0
        flags = (_LIVE if found.is_live else 0) | (_TIME_UNCERTAIN if found.time_uncertain else 0)
        flags |= (SETTLED if found.is_settled else 0) | (_SHOWN if found.is_unsettled else 0)
        for index, key in enumerate(found.keys):
            self.add(
                MatchKey(hash_match_key(dataset.name, key), seq, flags | (_EXACT if index < found.exact else 0), at)
            )
        if found.is_unsettled and (own_key := dataset.key_of(row)) is not None:
            self.add(MatchKey(hash_key(dataset.name, own_key), seq, flags | _EXACT | UNSETTLED, at))

    def add(self, match_key: MatchKey) -> None:
        self.seqs.append(match_key.seq)
        self.at.append(match_key.at)
        self.flags.append(match_key.flags)
        self.hashes += match_key.hash

    def without(self, drop: Container[int]) -> MatchKeys:
        """Return a copy without the keys of some rows."""
        kept = MatchKeys()
        for match_key in self:
            if match_key.seq not in drop:
                kept.add(match_key)
        return kept


def hash_match_key(dataset: str, key: str) -> bytes:
    """Hash a match key. The prefix separates it from hashes of dedupe keys, which start with the dataset name."""
    return sha256(f"meets:{dataset}:{key}".encode("utf-8", "surrogatepass")).digest()[:MATCH_KEY_BYTES]


def hash_live_text(hash_: bytes) -> bytes:
    """Hash a match key once more, for the tombstone of a live row: its transcript must not restore the text."""
    return sha256(b"live:" + hash_).digest()[:MATCH_KEY_BYTES]
