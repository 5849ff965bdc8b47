"""The keys that a home already has, for dry runs and plans: nothing is changed, and Spark is not needed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from operator import attrgetter, itemgetter
from pathlib import Path

from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.home.sqlite_readonly import has_table, open_readonly
from hypaware.iceberg import metadata
from hypaware.iceberg.metadata import TableMetadata
from hypaware.lake import key_index
from hypaware.lake.build import BuildResult
from hypaware.lake.dedupe import KeyScanTask, match_rows
from hypaware.lake.row_keys import unpack_keys
from hypaware.model.datasets import Dataset, hash_row_key
from hypaware.spool import reader


class ExistingKeys:
    """Keys in the key index, in files it does not cover, and in the spool. Reading them changes nothing."""

    def __init__(self, home: Home, dataset: Dataset, own_gateway: str | None = None) -> None:
        self._home = home
        self._dataset = dataset
        self._own_gateway = own_gateway
        self._from_this_run: set[bytes] = set()
        self._met: set[int] = set()
        self.unreadable: dict[Path, OSError] = {}
        """Segments of the spool that cannot be read: rows that they hold count as new."""
        entry = metadata.find_table(home, dataset.name)
        self._table = metadata.read_metadata(entry.metadata) if entry else None

    def duplicates(self, found: list[tuple[bytes, int]]) -> frozenset[int]:
        """Return the sequences of the pairs (key, sequence) whose key exists or occurred earlier in this run."""
        keys = {key for key, _ in found}
        seen = self._from_this_run | self.committed(keys) | keys.intersection(self._spooled())
        self._from_this_run |= keys
        return _find_repeated(found, seen)

    @property
    def may_match(self) -> bool:
        """Whether the lake holds live rows that imported rows could match."""
        if self._table is None or not self._home.keys.is_file():
            return False
        with open_readonly(self._home.keys) as index:
            enabled = (key_index.MATCHING_ENABLED, (self._dataset.name,))
            return has_table(index, "matching") and index.execute(*enabled).fetchone() is not None

    def settled(
        self, built: Sequence[BuildResult], duplicates: frozenset[int], purged: frozenset[int]
    ) -> frozenset[int]:
        """Return the sequences of the rows that would settle a live row of the lake instead of being written."""
        if not self.may_match:
            return frozenset()
        pairs = [pair for each in built for pair in unpack_keys(each.keys, each.seqs) if pair[1] in duplicates]
        new = sorted(
            (met for each in built for met in each.match_keys if met.seq not in duplicates | purged),
            key=attrgetter("seq"),
        )
        with open_readonly(self._home.keys) as index:
            known = key_index.find_unmatched(index, (met.hash for met in new))
            unsettled = key_index.find_unsettled(index, (key for key, _ in pairs))
        by_key = {unsettled[key]: seq for key, seq in pairs if key in unsettled and unsettled[key] not in self._met}
        self._met.update(by_key)
        done = match_rows(new, [met for met in known if met.seq not in self._met])
        self._met.update(done.matched)
        return frozenset({*done.upgrades, *by_key.values()})

    def committed(self, keys: set[bytes]) -> set[bytes]:
        """Return those of the keys that the lake has."""
        if self._table is None:
            return set()
        try:
            through, known = self._indexed(self._table, sorted(keys))
        except sqlite3.Error as error:
            raise LakeError(
                f"the key index {self._home.keys} cannot be read ({error})",
                kind="key_index_unreadable",
                repair="hyp verify --repair",
            ) from error
        for file in metadata.iter_live_files(self._table):
            if through < self._table.floor and (file.max_seq is None or file.max_seq > through):
                scanned = KeyScanTask(self._dataset.name, file.path, through, self._own_gateway).run()
                known.update(key for key, _ in unpack_keys(scanned.keys, scanned.seqs) if key in keys)
        return known

    def _indexed(self, table: TableMetadata, keys: Sequence[bytes]) -> tuple[int, set[bytes]]:
        """Return the sequence up to which the index covers this table, and those of the keys that it has."""
        if not self._home.keys.is_file():
            return 0, set()
        with open_readonly(self._home.keys) as index:
            if not has_table(index, "applied"):
                return 0, set()
            applied = "SELECT uuid, through FROM applied WHERE dataset = ?"
            uuid, through = index.execute(applied, (self._dataset.name,)).fetchone() or (None, 0)
            if uuid != table.uuid or through > table.floor:
                return 0, set()
            lost = {seq for (seq,) in index.execute("SELECT seq FROM lost")} if has_table(index, "lost") else set()
            return int(through), {key for key, seq in key_index.lookup_keys(index, keys) if seq not in lost}

    def _spooled(self) -> Iterator[bytes]:
        """Yield the keys of spooled rows that a flush would accept."""
        for row in reader.read_spooled_rows(self._home, self._dataset.name, unreadable=self.unreadable):
            if (key := hash_row_key(self._dataset, row, self._own_gateway)) is not None:
                yield key


def _find_repeated(found: list[tuple[bytes, int]], seen: set[bytes]) -> frozenset[int]:
    """Return the sequences of the pairs (key, sequence) whose key was seen or has a lower sequence too."""
    repeated = []
    for key, seq in sorted(found, key=itemgetter(1)):
        if key in seen:
            repeated.append(seq)
        else:
            seen.add(key)
    return frozenset(repeated)
