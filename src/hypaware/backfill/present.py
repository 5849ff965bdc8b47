"""Which keys are there already, asked without changing anything: the key index, what it lags behind, the spool."""

from __future__ import annotations

import sqlite3
from collections.abc import Container, Iterator, Sequence
from operator import attrgetter, itemgetter

from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.lake import match_index, metadata
from hypaware.lake.build import Built, row_key
from hypaware.lake.keys import lookup, pairs
from hypaware.lake.metadata import Metadata
from hypaware.lake.scan import FileScan, keys_of_file
from hypaware.lake.settle import settle
from hypaware.looking import has_table, look_into
from hypaware.model.datasets import Dataset
from hypaware.spool import reader


class Present:
    def __init__(self, home: Home, dataset: Dataset, own_gateway: str | None = None) -> None:
        self._home = home
        self._dataset = dataset
        self._own_gateway = own_gateway
        self._of_this_run: set[bytes] = set()
        self._met: set[int] = set()
        entry = metadata.entry(home, dataset.name)
        self._table = metadata.read(entry.metadata) if entry else None

    def duplicates(self, found: list[tuple[bytes, int]]) -> frozenset[int]:
        """Sequences of those (key, sequence) whose key is there, or came before in this run."""
        asked = {key for key, _ in found}
        seen = self._of_this_run | self.committed(asked) | asked.intersection(self._spooled())
        losers = []
        for key, seq in sorted(found, key=itemgetter(1)):
            if key in seen:
                losers.append(seq)
            else:
                seen.add(key)
        self._of_this_run |= asked
        return frozenset(losers)

    @property
    def meets(self) -> bool:
        """Whether anything was ever recorded live, so that what is imported may meet it."""
        if self._table is None or not self._home.keys.is_file():
            return False
        with look_into(self._home.keys) as index:
            return has_table(index, "matching") and match_index.is_kept(index, self._dataset.name)

    def settled(self, built: Sequence[Built], left_out: Container[int]) -> frozenset[int]:
        """Sequences of the rows that would settle one of the lake instead of becoming one."""
        new = sorted((met for each in built for met in each.meetings if met.seq not in left_out), key=attrgetter("seq"))
        if not new:
            return frozenset()
        with look_into(self._home.keys) as index:
            known = match_index.free(index, (met.hash for met in new))
        done = settle(new, [met for met in known if met.seq not in self._met])
        self._met.update(done.met)
        return frozenset(done.settled)

    def committed(self, asked: set[bytes]) -> set[bytes]:
        """Those of the keys that the lake has."""
        if self._table is None:
            return set()
        try:
            through, known = self._indexed(self._table, sorted(asked))
        except sqlite3.Error as error:
            raise LakeError(
                f"the key index {self._home.keys} cannot be used ({error})",
                kind="key_index_unreadable",
                repair="hyp verify --repair",
            ) from error
        for file in metadata.live_files(self._table):
            if through < self._table.floor and (file.max_seq is None or file.max_seq > through):
                keys = keys_of_file(FileScan(self._dataset.name, file.path, through, own_gateway=self._own_gateway))
                known.update(key for key, _ in pairs(keys.hashes, keys.seqs) if key in asked)
        return known

    def _indexed(self, table: Metadata, asked: Sequence[bytes]) -> tuple[int, set[bytes]]:
        """Up to which sequence the index knows this very table, and those of the keys that it has."""
        if not self._home.keys.is_file():
            return 0, set()
        with look_into(self._home.keys) as index:
            if not has_table(index, "applied"):
                return 0, set()
            applied = "SELECT uuid, through FROM applied WHERE dataset = ?"
            uuid, through = index.execute(applied, (self._dataset.name,)).fetchone() or (None, 0)
            if uuid != table.uuid or through > table.floor:
                return 0, set()
            return int(through), {key for key, _ in lookup(index, asked)}

    def _spooled(self) -> Iterator[bytes]:
        """Only rows that a flush would take, by the same rule."""
        for row in reader.read_spooled_rows(self._home, self._dataset.name):
            if (key := row_key(self._dataset, row, self._own_gateway)) is not None:
                yield key
